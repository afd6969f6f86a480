//! The model of a client's session: what it may send, what it knows, and what it
//! may expect to be told.

use std::collections::{BTreeMap, BTreeSet};

use ringway::routing::session::{SessionId, TokenId};
use ringway::wire::method::LOG_LEVELS;
use ringway::wire::version::Version;

use crate::checks::{Ask, Record, is_of_session, parsed};
use crate::dice::Dice;
use crate::server::URIS;
use crate::text::{Nonce, Text};

/// What an event on a GET stream is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Subject {
    List(String),
    Updated(String),
    /// Of the task that this call has made.
    Status(usize),
    Progress(usize),
}

/// What a session is to be told about a subject, by moments.
#[derive(Clone, Copy, Default, Debug)]
struct Telling {
    /// When its shard last had a reason to tell it.
    due: u64,
    /// When it last had leave to tell it instead of something else.
    may: u64,
    /// When a stream last took it, to write it.
    taken: u64,
    /// When a stream took it whose write was done.
    told: u64,
    /// When the hub last read of a change that the session must hear of.
    owed: u64,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) number: usize,
    pub(crate) id: SessionId,
    pub(crate) owner: TokenId,
    pub(crate) shard: usize,
    pub(crate) version: Version,
    pub(crate) is_open: bool,
    pub(crate) last_heard_ms: u64,
    pub(crate) is_used: bool,
    /// A place in [`LOG_LEVELS`].
    pub(crate) level: Option<usize>,
    /// The URIs that it is subscribed to, each since when.
    pub(crate) holds: BTreeMap<String, u64>,
    ever_held: BTreeSet<String>,
    /// When it last let go of one.
    let_go: u64,
    /// The calls that have made its tasks.
    pub(crate) tasks: Vec<usize>,
    /// Cursors that it was given, and what the server calls them.
    pub(crate) cursors: Vec<(String, String)>,
    /// How many lists it was given by the present server.
    pub(crate) lists: usize,
    /// How many servers have died.
    pub(crate) deaths: usize,
    telling: BTreeMap<Subject, Telling>,
    /// The connection of its newest GET stream.
    pub(crate) stream: Option<usize>,
}

/// Whether a subscription to one URI covers another.
pub(crate) fn covers(held: &str, uri: &str) -> bool {
    uri.strip_prefix(held).is_some_and(|rest| {
        let is_boundary = |text: Option<char>| matches!(text, Some('/' | '?' | '#'));
        rest.is_empty() || is_boundary(rest.chars().next()) || is_boundary(held.chars().last())
    })
}

/// What a message on a GET stream is about.
fn subject(message: &[u8]) -> Subject {
    let value = parsed(message);
    let method = value["method"].as_str().expect("a notification");
    let text = |member: &str| {
        value["params"][member]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let call = || Nonce::all(message).first().expect("a task's nonce").call;
    match method {
        "notifications/resources/updated" => Subject::Updated(text("uri")),
        "notifications/tasks/status" => Subject::Status(call()),
        "notifications/progress" => Subject::Progress(call()),
        _ => {
            let list = method.strip_prefix("notifications/");
            let list = list.and_then(|rest| rest.strip_suffix("/list_changed"));
            Subject::List(list.expect("a change of a list").to_owned())
        }
    }
}

impl Client {
    pub(crate) fn new(
        number: usize,
        id: SessionId,
        owner: TokenId,
        shard: usize,
        version: Version,
        now_ms: u64,
    ) -> Client {
        Client {
            number,
            id,
            owner,
            shard,
            version,
            is_open: true,
            last_heard_ms: now_ms,
            is_used: false,
            level: None,
            holds: BTreeMap::new(),
            ever_held: BTreeSet::new(),
            let_go: 0,
            tasks: Vec::new(),
            cursors: Vec::new(),
            lists: 0,
            deaths: 0,
            telling: BTreeMap::new(),
            stream: None,
        }
    }

    /// The session has ended.
    pub(crate) fn closes(&mut self) {
        self.is_open = false;
        self.level = None;
        self.holds.clear();
        self.tasks.clear();
        self.telling.clear();
    }

    pub(crate) fn is_granted(&mut self, uri: &str, moment: u64) {
        self.holds.entry(uri.to_owned()).or_insert(moment);
        self.ever_held.insert(uri.to_owned());
    }

    /// It no longer holds a URI: what only that one covered it need not be told.
    pub(crate) fn lets_go(&mut self, uri: &str, moment: u64) {
        if self.holds.remove(uri).is_none() {
            return;
        }
        self.let_go = moment;
        let holds = &self.holds;
        self.telling.retain(|subject, _| match subject {
            Subject::Updated(updated) => holds.keys().any(|held| covers(held, updated)),
            _ => true,
        });
    }

    pub(crate) fn wants(&self, uri: &str) -> bool {
        self.holds.keys().any(|held| covers(held, uri))
    }

    /// The server and all its tasks are gone.
    pub(crate) fn forgets_tasks(&mut self) {
        self.tasks.clear();
        self.cursors.clear();
        self.lists = 0;
        self.deaths += 1;
        self.telling
            .retain(|subject, _| !matches!(subject, Subject::Status(_) | Subject::Progress(_)));
    }

    /// Its shard has a reason to tell it.
    pub(crate) fn is_due(&mut self, subject: Subject, moment: u64) {
        self.telling.entry(subject).or_default().due = moment;
    }

    pub(crate) fn task_is_due(&mut self, message: &[u8], moment: u64) {
        self.is_due(subject(message), moment);
    }

    /// A resource is updated: with many marks below a subscribed URI, that one
    /// may stand for others.
    pub(crate) fn update_is_due(&mut self, uri: &str, has_many: bool, moment: u64) {
        if !self.wants(uri) {
            return;
        }
        self.is_due(Subject::Updated(uri.to_owned()), moment);
        if has_many {
            let above: Vec<_> = self
                .ever_held
                .iter()
                .filter(|held| covers(held, uri))
                .cloned()
                .collect();
            for held in above {
                self.telling.entry(Subject::Updated(held)).or_default().may = moment;
            }
        }
    }

    pub(crate) fn is_owed(&mut self, subject: Subject, moment: u64) {
        self.telling.entry(subject).or_default().owed = moment;
    }

    /// Check 5: a stream takes these messages to write them, for each of which
    /// something has happened since the last one. Checks 1 and 8 of its content.
    pub(crate) fn takes(&mut self, messages: &[&[u8]], moment: u64, record: &Record) {
        for message in messages {
            is_of_session(message, self.number);
            let subject = subject(message);
            match &subject {
                Subject::List(_) => {}
                Subject::Updated(uri) => assert!(
                    self.wants(uri),
                    "check 1: an update of {uri}, to which it is not subscribed"
                ),
                Subject::Status(call) | Subject::Progress(call) => assert!(
                    record.calls[*call].has_said(message),
                    "check 8: the server has not said this: {}",
                    String::from_utf8_lossy(message)
                ),
            }
            let telling = self.telling.entry(subject.clone()).or_default();
            assert!(
                telling.due.max(telling.may) > telling.taken,
                "check 5: session {} is told twice of {subject:?}",
                self.number
            );
            telling.taken = moment;
        }
    }

    /// The write of what was taken at `moment` is done.
    pub(crate) fn is_told(&mut self, messages: &[&[u8]], moment: u64) {
        for message in messages {
            if let Some(telling) = self.telling.get_mut(&subject(message)) {
                telling.told = telling.told.max(moment);
            }
        }
    }

    /// It failed: they are to be told again. Updates need not be, and may, if the
    /// client has unsubscribed from something since they were taken.
    pub(crate) fn is_not_told(&mut self, messages: &[&[u8]], taken: u64, moment: u64) {
        for message in messages {
            let subject = subject(message);
            let has_let_go = matches!(subject, Subject::Updated(_)) && self.let_go > taken;
            match self.telling.get_mut(&subject) {
                Some(telling) if has_let_go => telling.may = moment,
                Some(telling) => telling.due = moment,
                None => {}
            }
        }
    }

    /// Check 5, once all is quiet and a stream is open.
    ///
    /// With `forgets` the gateway may have forgotten a task, and the news of it.
    pub(crate) fn was_told_everything(&self, has_many: bool, forgets: bool) {
        let told = |uri: &str| {
            let telling = self.telling.get(&Subject::Updated(uri.to_owned()));
            telling.map_or(0, |telling| telling.told)
        };
        for (subject, telling) in &self.telling {
            let is_of_task = matches!(subject, Subject::Status(_) | Subject::Progress(_));
            if forgets && is_of_task {
                continue;
            }
            let mut last = telling.told;
            if let Subject::Updated(uri) = subject
                && has_many
            {
                let above = self.ever_held.iter().filter(|held| covers(held, uri));
                last = above.map(|held| told(held)).fold(last, u64::max);
            }
            assert!(
                last >= telling.due,
                "check 5: session {} was not told of {subject:?} that was due: {telling:?}",
                self.number
            );
            assert!(
                last >= telling.owed,
                "check 5: session {} was not told of {subject:?} that the server said: {telling:?}",
                self.number
            );
        }
    }
}

/// The text of a request. `task` is the task's id where it is about one.
pub(crate) fn request(
    ask: &Ask,
    nonce: Nonce,
    has_token: bool,
    task: &str,
    pad: usize,
    dice: &mut Dice,
) -> Text {
    let token = match (has_token, dice.chance(50)) {
        (false, true) => "",
        (false, false) => r#","_meta":{"x":1.0}"#,
        (true, true) => r#","_meta":{"progressToken":@token}"#,
        (true, false) => r#","_meta":{"x":[1e2], "progressToken" : @token ,"y":null}"#,
    };
    let uri = |uri: &str, dice: &mut Dice| uri.replace('/', dice.pick(&["/", "\\/", "\\u002f"]));
    let pad = "v".repeat(pad);
    let (method, params) = match ask {
        Ask::Plain => match dice.below(3) {
            0 => (
                "tools/call",
                format!(r#""name":"echo","arguments":{{"of":"{nonce}","n":1.00,"pad":"{pad}"}}"#),
            ),
            1 => {
                let uri = dice.pick(&URIS);
                ("resources/read", format!(r#""of":"{nonce}","uri":"{uri}""#))
            }
            _ => (
                "prompts/get",
                format!(r#""name":"p","arguments":{{"of":"{nonce}"}}"#),
            ),
        },
        Ask::MakeTask => (
            "tools/call",
            format!(r#""task":{{"ttl":60000}},"name":"slow","arguments":{{"of":"{nonce}"}}"#),
        ),
        Ask::TaskGet(_) => ("tasks/get", format!(r#""taskId":"{task}","of":"{nonce}""#)),
        Ask::TaskResult(_) => (
            "tasks/result",
            format!(r#""of":"{nonce}","taskId":"{task}""#),
        ),
        Ask::TaskCancel(_) => (
            "tasks/cancel",
            format!(r#""taskId":"{task}","of":"{nonce}""#),
        ),
        Ask::TaskList(None) => ("tasks/list", format!(r#""of":"{nonce}""#)),
        Ask::TaskList(Some(_)) => ("tasks/list", format!(r#""cursor":@cursor,"of":"{nonce}""#)),
        Ask::Subscribe(of) => (
            "resources/subscribe",
            format!(r#""uri":"{}""#, uri(of, dice)),
        ),
        Ask::Unsubscribe(of) => (
            "resources/unsubscribe",
            format!(r#""uri":"{}""#, uri(of, dice)),
        ),
        Ask::SetLevel(level) => {
            let level = level.map_or("loud", |level| LOG_LEVELS[level]);
            ("logging/setLevel", format!(r#""level":"{level}""#))
        }
        Ask::Ping => ("ping", r#""x":1"#.into()),
    };
    Text::new(&match dice.below(3) {
        0 => format!(
            r#"{{"jsonrpc":"2.0","id":@id,"method":"{method}","params":{{{params}{token}}}}}"#
        ),
        1 => format!(
            r#"{{"params":{{{params}{token}}},"id":@id,"method":"{method}","jsonrpc":"2.0"}}"#
        ),
        _ => format!(
            " {{\r\n \"jsonrpc\": \"2.0\",\n \"method\": \"{method}\",\t\"id\" : @id,\n \"params\": {{{params}{token}}}\r\n}}\n"
        ),
    })
}

/// Ids that all sessions use, and tokens as well.
pub(crate) const COMMON_IDS: [&str; 7] = [
    "1",
    "2",
    r#""1""#,
    r#""a""#,
    r#""\u0061""#,
    "-3",
    r#""\ud83e\udd8a""#,
];
