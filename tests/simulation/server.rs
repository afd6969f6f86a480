//! The model of a shared MCP server: late, out of order, talkative, and wrong now
//! and then. Whatever it says about a call carries that call's nonce, so that what
//! goes astray is seen. It also checks what the gateway sends it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ringway::routing::upstream_id::{Owner, UpstreamId};
use ringway::wire::method::LOG_LEVELS;
use serde_json::Value;

use crate::checks::{Ask, Record, is_of_session, parsed};
use crate::dice::Dice;
use crate::settings::Settings;
use crate::text::{Nonce, Text, passed};

/// The resources that there are; some lie below others.
pub(crate) const URIS: [&str; 7] = [
    "file:///a",
    "file:///a/b",
    "file:///a/b?x=1",
    "file:///ab",
    "mem://c",
    "mem://c#d",
    "mem://c#d/e",
];

/// The `list_changed` notifications, with the capability that each belongs to.
pub(crate) const LISTS: [&str; 3] = ["tools", "resources", "prompts"];

/// What the server can do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Abilities {
    pub(crate) logging: bool,
    pub(crate) subscribe: bool,
    pub(crate) tasks: bool,
    pub(crate) task_list: bool,
    pub(crate) task_cancel: bool,
    /// Which of [`LISTS`] there are.
    pub(crate) lists: Vec<&'static str>,
}

impl Abilities {
    pub(crate) fn draw(dice: &mut Dice) -> Abilities {
        let all = dice.chance(70);
        Abilities {
            logging: all || dice.chance(70),
            subscribe: all || dice.chance(70),
            tasks: all || dice.chance(70),
            task_list: all || dice.chance(70),
            task_cancel: all || dice.chance(70),
            lists: match all {
                true => LISTS.to_vec(),
                false => vec!["tools", "resources"],
            },
        }
    }

    /// The same with one ability less, if there is one to lose.
    pub(crate) fn less(&self, dice: &mut Dice) -> Abilities {
        let mut less = self.clone();
        match dice.below(5) {
            0 => less.logging = false,
            1 => less.subscribe = false,
            2 => less.tasks = false,
            3 => less.task_cancel = false,
            _ => drop(less.lists.pop()),
        }
        less
    }

    fn result(&self) -> String {
        let mut groups = Vec::new();
        if self.logging {
            groups.push(r#""logging":{}"#.to_owned());
        }
        if self.tasks {
            let list = if self.task_list { r#","list":{}"# } else { "" };
            let cancel = if self.task_cancel {
                r#","cancel":{}"#
            } else {
                ""
            };
            groups.push(format!(r#""tasks":{{"requests":{{}}{list}{cancel}}}"#));
        }
        for list in &self.lists {
            let subscribe = *list == "resources" && self.subscribe;
            groups.push(format!(
                r#""{list}":{{"listChanged":true,"subscribe":{subscribe}}}"#
            ));
        }
        let groups = groups.join(",");
        format!(
            r#"{{"protocolVersion":"2025-11-25","capabilities":{{{groups}}},"serverInfo":{{"name":"model","version":"1"}}}}"#
        )
    }

    /// Whether sessions of this server would miss something with another one.
    pub(crate) fn has_more_than(&self, other: &Abilities) -> bool {
        let misses = |has: bool, has_still: bool| has && !has_still;
        misses(self.logging, other.logging)
            || misses(self.has_subscribe(), other.has_subscribe())
            || misses(self.tasks, other.tasks)
            || misses(self.tasks && self.task_list, other.tasks && other.task_list)
            || misses(
                self.tasks && self.task_cancel,
                other.tasks && other.task_cancel,
            )
            || self.lists.iter().any(|list| !other.lists.contains(list))
    }

    pub(crate) fn has_subscribe(&self) -> bool {
        self.subscribe && self.lists.contains(&"resources")
    }
}

/// A line on its way to the hub, and what it means.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) line: Vec<u8>,
    pub(crate) about: About,
}

/// What a line of the server means.
#[derive(Clone, Debug)]
pub(crate) enum About {
    Nothing,
    /// Answer number so-and-so of a call.
    Reply(usize, usize),
    /// An answer that is too long to be read.
    TooLong(usize, UpstreamId),
    Progress(usize),
    Changed(&'static str),
    Updated(String),
}

/// A request that the server has, or had.
#[derive(Clone, Debug)]
struct Pending {
    digits: String,
    ask: Asked,
    is_silent: bool,
    /// It is withdrawn; the server may answer all the same.
    is_cancelled: bool,
    /// The server has had enough of it.
    is_over: bool,
}

#[derive(Clone, Debug)]
enum Asked {
    Initialize,
    Subscribe {
        uri: String,
        is_refused: bool,
    },
    Unsubscribe,
    SetLevel,
    CancelTask,
    /// Call number so-and-so of a client.
    Call(usize),
}

/// The last request about a URI. Check 4.
#[derive(Debug)]
struct Dealing {
    digits: String,
    is_subscribe: bool,
    is_open: bool,
    was_refused: bool,
}

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) id: String,
    /// The call that has made it, and its token.
    call: usize,
    digits: String,
    status: &'static str,
    /// The gateway has asked for its end.
    pub(crate) is_cancelled: bool,
}

impl Task {
    pub(crate) fn is_terminal(&self) -> bool {
        !matches!(self.status, "working" | "input_required")
    }

    fn shown(&self, nonce: Nonce) -> String {
        let Task { id, status, .. } = self;
        format!(r#"{{"taskId":"{id}","status":"{status}","ttl":null,"of":"{nonce}"}}"#)
    }
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) epoch: u64,
    pub(crate) is_alive: bool,
    pub(crate) abilities: Abilities,
    pub(crate) stdin: VecDeque<Vec<u8>>,
    pub(crate) stdout: VecDeque<Said>,
    pending: Vec<Pending>,
    past: Vec<Pending>,
    pub(crate) subscribed: BTreeSet<String>,
    dealings: BTreeMap<String, Dealing>,
    /// A place in [`LOG_LEVELS`].
    pub(crate) level: usize,
    pub(crate) tasks: Vec<Task>,
    /// Lines that it has read.
    pub(crate) heard: usize,
    serial: usize,
}

impl Server {
    /// The child before the first.
    pub(crate) fn none(abilities: Abilities) -> Server {
        Server {
            epoch: 0,
            is_alive: false,
            abilities,
            stdin: VecDeque::new(),
            stdout: VecDeque::new(),
            pending: Vec::new(),
            past: Vec::new(),
            subscribed: BTreeSet::new(),
            dealings: BTreeMap::new(),
            level: 1,
            tasks: Vec::new(),
            heard: 0,
            serial: 0,
        }
    }

    /// The next child.
    pub(crate) fn start(&self, abilities: Abilities) -> Server {
        Server {
            epoch: self.epoch + 1,
            is_alive: true,
            serial: self.serial,
            ..Server::none(abilities)
        }
    }

    /// Of what it has said some is lost.
    pub(crate) fn die(&mut self, dice: &mut Dice) {
        self.is_alive = false;
        self.stdin.clear();
        let kept = dice.below(self.stdout.len() + 1);
        self.stdout.truncate(kept);
    }

    /// Reads one line. True if there was one.
    pub(crate) fn hear(
        &mut self,
        dice: &mut Dice,
        settings: &Settings,
        record: &mut Record,
    ) -> bool {
        let Some(line) = self.stdin.pop_front() else {
            return false;
        };
        self.heard += 1;
        let message = parsed(&line);
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        let params = &message["params"];
        let digits = message["id"].to_string();
        if message.get("method").is_none() {
            return true; // an answer to a request of the server's own
        }
        if message.get("id").is_none() {
            if method == "notifications/cancelled" {
                self.hear_cancelled(&params["requestId"].to_string(), dice, record);
            } else {
                assert_eq!(method, "notifications/initialized");
            }
            return true;
        }
        let id = UpstreamId::read(digits.as_bytes())
            .expect("an id of the gateway's")
            .id;
        let is_known = |pending: &Pending| pending.digits == digits;
        assert!(
            !self.pending.iter().chain(&self.past).any(is_known),
            "check 2: id {digits} comes twice"
        );
        let asked = match id.owner() {
            Owner::Hub => self.hear_hub(&digits, &method, params, dice, settings, record),
            Owner::Shard(shard) => self.hear_call(&line, shard, &digits, record),
        };
        let is_silent = match &asked {
            Asked::Initialize => false,
            _ => dice.chance(settings.faults.silent),
        };
        if is_silent {
            record.tally.count("requests that are never answered");
            if let Asked::Subscribe { uri, .. } = &asked
                && dice.chance(50)
            {
                self.subscribed.remove(uri);
            }
        }
        self.pending.push(Pending {
            digits,
            ask: asked,
            is_silent,
            is_cancelled: false,
            is_over: false,
        });
        true
    }

    fn hear_cancelled(&mut self, digits: &str, dice: &mut Dice, record: &mut Record) {
        let all = self.pending.iter_mut().chain(&mut self.past);
        let mut known = all.filter(|pending| pending.digits == digits);
        let known = known.next().expect("a cancel follows its request");
        known.is_cancelled = true;
        // A good server says nothing more about it; this one may.
        known.is_silent |= dice.chance(50);
        record.tally.count("cancels that reached the server");
        for dealing in self.dealings.values_mut() {
            if dealing.digits == digits {
                dealing.is_open = false;
                dealing.was_refused = false;
            }
        }
    }

    fn hear_hub(
        &mut self,
        digits: &str,
        method: &str,
        params: &Value,
        dice: &mut Dice,
        settings: &Settings,
        record: &mut Record,
    ) -> Asked {
        let text = |member: &str| params[member].as_str().expect(member).to_owned();
        match method {
            "initialize" => Asked::Initialize,
            "logging/setLevel" => {
                assert!(self.abilities.logging);
                let level = text("level");
                let level = LOG_LEVELS.iter().position(|known| *known == level);
                self.level = level.expect("a log level");
                record.tally.count("log levels that reached the server");
                Asked::SetLevel
            }
            "tasks/cancel" => {
                let id = text("taskId");
                let task = self.tasks.iter_mut().find(|task| task.id == id);
                let task = task.expect("check 6: an unknown task is cancelled");
                task.is_cancelled = true;
                if !task.is_terminal() {
                    task.status = "cancelled";
                }
                record.tally.count("tasks that the gateway cancelled");
                Asked::CancelTask
            }
            "resources/subscribe" => {
                let uri = text("uri");
                let is_refused = dice.chance(settings.faults.refused);
                self.deal(digits, &uri, true, is_refused);
                if !is_refused {
                    self.subscribed.insert(uri.clone());
                }
                Asked::Subscribe { uri, is_refused }
            }
            "resources/unsubscribe" => {
                let uri = text("uri");
                self.deal(digits, &uri, false, false);
                self.subscribed.remove(&uri);
                Asked::Unsubscribe
            }
            _ => panic!("the hub asks for {method}"),
        }
    }

    /// Check 4: subscribe and unsubscribe of a URI alternate and never overlap.
    fn deal(&mut self, digits: &str, uri: &str, is_subscribe: bool, is_refused: bool) {
        assert!(self.abilities.has_subscribe(), "check 4: not offered");
        let before = self.dealings.insert(
            uri.to_owned(),
            Dealing {
                digits: digits.to_owned(),
                is_subscribe,
                is_open: true,
                was_refused: is_refused,
            },
        );
        let expects_subscribe = match &before {
            None => true,
            Some(before) => {
                assert!(!before.is_open, "check 4: two requests about {uri} at once");
                !before.is_subscribe || before.was_refused
            }
        };
        assert_eq!(
            is_subscribe, expects_subscribe,
            "check 4: subscribe and unsubscribe of {uri} do not alternate"
        );
    }

    /// Checks 1 and 8: a client's request is what it sent, but for the ids.
    fn hear_call(&mut self, line: &[u8], shard: usize, digits: &str, record: &mut Record) -> Asked {
        // Its own nonce is newer than that of a task that it names.
        let nonces = Nonce::all(line).into_iter();
        let nonce = nonces.max_by_key(|nonce| nonce.call);
        let nonce = nonce.expect("a client's request has a nonce");
        is_of_session(line, nonce.session);
        let call = &mut record.calls[nonce.call];
        assert_eq!(call.shard, shard, "the id names another shard");
        assert_eq!(call.epoch, self.epoch, "a line for an earlier child");
        let expected = passed(&call.text.fill(digits, digits, &call.cursor));
        assert_eq!(
            String::from_utf8_lossy(line),
            String::from_utf8_lossy(&expected),
            "check 8: not what the client sent"
        );
        let before = call.upstream.replace(digits.to_owned());
        assert_eq!(before, None, "check 2: a call is sent twice");
        Asked::Call(nonce.call)
    }

    fn say(&mut self, line: impl Into<Vec<u8>>, about: About) {
        self.stdout.push_back(Said {
            line: line.into(),
            about,
        });
    }

    /// Says something or other. True if it was an answer.
    pub(crate) fn speak(
        &mut self,
        dice: &mut Dice,
        settings: &Settings,
        record: &mut Record,
    ) -> bool {
        let open: Vec<usize> = (0..self.pending.len())
            .filter(|place| self.may_answer(&self.pending[*place], record))
            .collect();
        let is_tasky = !self.tasks.is_empty();
        let what = dice.weighted(&[
            (if open.is_empty() { 0 } else { 40 }, 0),
            (if open.is_empty() { 0 } else { 25 }, 1),
            (if self.past.is_empty() { 0 } else { 8 }, 2),
            (2, 3),
            (12, 4),
            (4, 5),
            (if is_tasky { 15 } else { 0 }, 6),
            (4, 7),
        ]);
        match what {
            0 => {
                let place = dice.pick(&open);
                self.answer(place, dice, settings, record);
                return true;
            }
            1 => {
                let place = dice.pick(&open);
                for _ in 0..dice.between(1, 4) {
                    let pending = self.pending[place].clone();
                    self.progress(&pending, dice, settings, record);
                }
                if dice.chance(50) {
                    self.answer(place, dice, settings, record);
                    return true;
                }
            }
            2 => {
                let old = match dice.chance(30) {
                    true => self.past[0].clone(),
                    false => dice.pick(&self.past),
                };
                record.tally.count("late answers and progress");
                match dice.chance(60) {
                    true => self.say_answer(&old, dice, settings, record),
                    false => self.progress(&old, dice, settings, record),
                }
            }
            3 => self.unknown(dice),
            4 => self.update(dice, settings, record),
            5 => {
                let list = dice.pick(&LISTS);
                self.change(list, dice);
            }
            6 => self.move_a_task(dice, settings, record),
            _ => self.noise(dice),
        }
        false
    }

    fn may_answer(&self, pending: &Pending, record: &Record) -> bool {
        if pending.is_silent {
            return false;
        }
        let Asked::Call(call) = pending.ask else {
            return true;
        };
        match record.calls[call].ask {
            Ask::TaskResult(Some(of)) => self.task(of).is_some_and(|task| task.is_terminal()),
            _ => true,
        }
    }

    /// The task that a call has made.
    fn task(&self, call: usize) -> Option<&Task> {
        self.tasks.iter().find(|task| task.call == call)
    }

    /// Answers everything that it will ever answer. True if there was something.
    pub(crate) fn answer_all(
        &mut self,
        dice: &mut Dice,
        settings: &Settings,
        record: &mut Record,
    ) -> bool {
        let mut has_answered = false;
        let mut place = 0;
        while place < self.pending.len() {
            if self.may_answer(&self.pending[place], record) {
                self.answer(place, dice, settings, record);
                has_answered = true;
            } else {
                place += 1;
            }
        }
        has_answered
    }

    fn answer(&mut self, place: usize, dice: &mut Dice, settings: &Settings, record: &mut Record) {
        let mut pending = self.pending.remove(place);
        self.say_answer(&pending, dice, settings, record);
        if dice.chance(settings.faults.twice) {
            record.tally.count("answers that come twice");
            self.say_answer(&pending, dice, settings, record);
        }
        for dealing in self.dealings.values_mut() {
            if dealing.digits == pending.digits {
                dealing.is_open = false;
            }
        }
        pending.is_over = true;
        self.past.push(pending);
    }

    fn say_answer(
        &mut self,
        pending: &Pending,
        dice: &mut Dice,
        settings: &Settings,
        record: &mut Record,
    ) {
        let digits = &pending.digits;
        let result =
            |result: &str| format!(r#"{{"jsonrpc":"2.0","id":{digits},"result":{result}}}"#);
        match &pending.ask {
            Asked::Initialize => {
                let line = result(&self.abilities.result());
                self.say(line, About::Nothing);
            }
            Asked::Subscribe {
                is_refused: true, ..
            } => {
                record.tally.count("subscribes refused");
                let line = format!(
                    r#"{{"jsonrpc":"2.0","id":{digits},"error":{{"code":-32002,"message":"no such resource","data":"~999999:0~"}}}}"#
                );
                self.say(line, About::Nothing);
            }
            // What belongs to nobody in particular must reach nobody.
            Asked::Subscribe { .. } | Asked::Unsubscribe => {
                let line = result(r#"{"_meta":{"secret":"~999999:0~"}}"#);
                self.say(line, About::Nothing);
            }
            Asked::SetLevel | Asked::CancelTask => {
                let line = result("{}");
                self.say(line, About::Nothing);
            }
            Asked::Call(call) => self.say_reply(*call, digits, dice, settings, record),
        }
    }

    fn say_reply(
        &mut self,
        number: usize,
        digits: &str,
        dice: &mut Dice,
        settings: &Settings,
        record: &mut Record,
    ) {
        if dice.chance(settings.faults.too_long) {
            record.tally.count("answers that are too long");
            let id = UpstreamId::read(digits.as_bytes())
                .expect("it was read before")
                .id;
            record.calls[number].is_too_long = true;
            self.say("", About::TooLong(number, id));
            return;
        }
        let ask = record.calls[number].ask.clone();
        let nonce = record.calls[number].nonce;
        self.serial += 1;
        let serial = self.serial;
        let result = match ask {
            Ask::MakeTask if self.makes_task(number, record) && dice.chance(90) => {
                let task = self.make_task(number, nonce, digits, dice, record);
                format!(r#"{{"task":{task},"_meta":{{"n":{serial}}}}}"#)
            }
            Ask::TaskGet(Some(of)) | Ask::TaskCancel(Some(of)) => {
                let is_cancel = matches!(ask, Ask::TaskCancel(_));
                let of_nonce = record.calls[of].nonce;
                let task = self.tasks.iter_mut().find(|task| task.call == of);
                let task = task.expect("the gateway knows tasks of this child only");
                if is_cancel && !task.is_terminal() {
                    task.status = "cancelled";
                }
                task.shown(of_nonce)
            }
            Ask::TaskList(_) => self.list_tasks(number, nonce, dice, record),
            _ => self.some_result(nonce, serial, dice, settings),
        };
        let is_error = matches!(ask, Ask::Plain) && dice.chance(10);
        let line = match (is_error, dice.below(3)) {
            (true, _) => Text::new(&format!(
                r#"{{"jsonrpc":"2.0","error":{{"code":-32000,"message":"no {nonce}","data":[1.0,{serial}]}},"id":@id}}"#
            )),
            (_, 0) => Text::new(&format!(
                r#"{{"id":@id,"result":{result},"jsonrpc":"2.0"}}"#
            )),
            (_, 1) => Text::new(&format!(
                "{{\"jsonrpc\" : \"2.0\",\r\"result\":{result}\r,\"id\":\t@id }}"
            )),
            _ => Text::new(&format!(
                r#"{{"jsonrpc":"2.0","id":@id,"result":{result}}}"#
            )),
        };
        let call = &mut record.calls[number];
        call.replies.push(line.clone());
        let about = About::Reply(number, call.replies.len() - 1);
        // Its decimal string is accepted too.
        let id = match dice.chance(5) {
            true => format!("\"{digits}\""),
            false => digits.to_owned(),
        };
        self.say(line.fill(&id, "", ""), about);
    }

    /// Whether an answer may tell of a task: the first one, or a repeated one.
    fn makes_task(&self, number: usize, record: &Record) -> bool {
        let call = &record.calls[number];
        let is_first = call.replies.is_empty() && !call.is_too_long;
        self.abilities.tasks && (is_first || call.has_task)
    }

    fn some_result(
        &mut self,
        nonce: Nonce,
        serial: usize,
        dice: &mut Dice,
        settings: &Settings,
    ) -> String {
        let size = match settings.is_big && dice.chance(20) {
            true => dice.pick(&[3_000, 40_000, 200_000]),
            false => dice.pick(&[0, 0, 30, 400]),
        };
        let pad = "p".repeat(size);
        format!(
            r#"{{"content":[{{"type":"text","text":"{nonce} \u00e9 é"}}],"id":7,"n":{serial},"x":1.0e+2,"pad":"{pad}"}}"#
        )
    }

    fn make_task(
        &mut self,
        number: usize,
        nonce: Nonce,
        digits: &str,
        dice: &mut Dice,
        record: &mut Record,
    ) -> String {
        record.calls[number].has_task = true;
        if self.task(number).is_none() {
            self.tasks.push(Task {
                id: format!("task {nonce}"),
                call: number,
                digits: digits.to_owned(),
                status: dice.weighted(&[(8, "working"), (1, "input_required"), (1, "completed")]),
                is_cancelled: false,
            });
        }
        record.tally.count("tasks made");
        let task = self.task(number).expect("it was made just now");
        task.shown(nonce)
    }

    /// The tasks of all sessions, or some of them.
    fn list_tasks(
        &mut self,
        number: usize,
        nonce: Nonce,
        dice: &mut Dice,
        record: &mut Record,
    ) -> String {
        let from = match dice.chance(70) {
            true => 0,
            false => dice.below(self.tasks.len() + 1),
        };
        self.serial += 1;
        let shown = |task: &Task| (task.call, task.shown(record.calls[task.call].nonce));
        let listed = self.tasks[from..].iter().map(shown).collect::<Vec<_>>();
        let cursor = dice.chance(50).then(|| format!("at \"{}\"", self.serial));
        let texts: Vec<_> = listed.iter().map(|(_, text)| text.clone()).collect();
        let next = match &cursor {
            Some(cursor) => format!(",\"nextCursor\":{}", Value::from(cursor.clone())),
            None => String::new(),
        };
        let list = texts.join(" , ");
        let call = &mut record.calls[number];
        // Of several answers the first counts.
        if call.replies.is_empty() {
            call.listed.tasks = listed;
            call.listed.cursor = cursor;
        }
        format!(r#"{{"all":"~999999:9~","tasks":[ {list} ],"of":"{nonce}"{next}}}"#)
    }

    /// Progress of a call, or of the task that it has made; also where nobody asked.
    fn progress(
        &mut self,
        pending: &Pending,
        dice: &mut Dice,
        settings: &Settings,
        record: &mut Record,
    ) {
        let Asked::Call(number) = pending.ask else {
            return;
        };
        let call = &mut record.calls[number];
        let nonce = call.nonce;
        self.serial += 1;
        let size = match settings.is_big && dice.chance(10) {
            true => 300_000,
            false => dice.pick(&[0, 0, 100]),
        };
        let pad = "q".repeat(size);
        let serial = self.serial;
        let line = Text::new(&format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progress":{serial}.50,"progressToken":@token,"message":"{nonce}{pad}"}}}}"#
        ));
        let token = match dice.chance(5) {
            true => format!("\"{}\"", pending.digits),
            false => pending.digits.clone(),
        };
        call.progress.push(line.clone());
        record.tally.count("progress said");
        self.say(line.fill("", &token, ""), About::Progress(number));
    }

    /// Answers and progress for ids that nobody has used.
    fn unknown(&mut self, dice: &mut Dice) {
        let generation = 1_000 + dice.below(1_000) as u32;
        let id = UpstreamId::of_call(dice.below(5), dice.below(100) as u32, generation);
        let digits = String::from_utf8_lossy(id.digits(&mut itoa::Buffer::new())).into_owned();
        let id = dice.pick(&[digits, "1".into(), "\"x\"".into(), "1.5".into()]);
        let line = match dice.chance(50) {
            true => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"of":"~999999:1~"}}}}"#),
            false => format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{id},"progress":1,"message":"~999999:1~"}}}}"#
            ),
        };
        self.say(line, About::Nothing);
    }

    fn update(&mut self, dice: &mut Dice, settings: &Settings, record: &mut Record) {
        let wanted: Vec<_> = self.subscribed.iter().cloned().collect();
        let times = if settings.has_many_resources {
            dice.between(1, 40)
        } else {
            1
        };
        for _ in 0..times {
            let mut uri = match !wanted.is_empty() && dice.chance(80) {
                true => dice.pick(&wanted),
                false => dice.pick(&URIS).to_owned(),
            };
            if settings.has_many_resources {
                uri = format!("{uri}/{}", dice.below(200));
            } else if dice.chance(20) {
                uri.push_str(dice.pick(&["/f", "?q", "#z", "x"]));
            }
            record.tally.count("updates said");
            let spelled = uri.replace('/', dice.pick(&["/", "\\/"]));
            let line = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{spelled}","title":"~999999:2~"}}}}"#
            );
            self.say(line, About::Updated(uri));
        }
    }

    fn change(&mut self, list: &'static str, dice: &mut Dice) {
        for _ in 0..dice.pick(&[1, 1, 5]) {
            let line = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/{list}/list_changed","params":{{"of":"~999999:3~"}}}}"#
            );
            self.say(line, About::Changed(list));
        }
    }

    fn move_a_task(&mut self, dice: &mut Dice, settings: &Settings, record: &mut Record) {
        let place = dice.below(self.tasks.len());
        if dice.chance(40) {
            let Task { call, digits, .. } = &self.tasks[place];
            let pending = Pending {
                digits: digits.clone(),
                ask: Asked::Call(*call),
                is_silent: false,
                is_cancelled: false,
                is_over: true,
            };
            record.tally.count("progress of tasks");
            self.progress(&pending, dice, settings, record);
            return;
        }
        let status = dice.pick(&["working", "input_required", "completed", "failed"]);
        self.set_status(place, status, record);
    }

    fn set_status(&mut self, place: usize, status: &'static str, record: &mut Record) {
        self.serial += 1;
        let task = &mut self.tasks[place];
        if !task.is_terminal() {
            task.status = status;
        }
        let Task {
            id, status, call, ..
        } = task;
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/tasks/status\",\r\"params\":{{\"taskId\":\"{id}\",\"status\":\"{status}\",\"n\":{}}}}}",
            self.serial
        );
        record.calls[*call].statuses.push(passed(line.as_bytes()));
        record.tally.count("task statuses said");
        self.say(line, About::Nothing);
    }

    /// Ends most of its tasks.
    pub(crate) fn finish_tasks(&mut self, dice: &mut Dice, record: &mut Record) {
        for place in 0..self.tasks.len() {
            if !self.tasks[place].is_terminal() && dice.chance(60) {
                self.set_status(place, "completed", record);
            }
        }
    }

    fn noise(&mut self, dice: &mut Dice) {
        self.serial += 1;
        let n = self.serial;
        let line = match dice.below(7) {
            0 => format!("Listening on ~999999:4~ {n}"),
            1 => r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"~999999:5~"}}"#.into(),
            2 => format!(r#"{{"jsonrpc":"2.0","id":"s{n}","method":"sampling/createMessage","params":{{}}}}"#),
            3 => format!(r#"{{"jsonrpc":"2.0","id":{n},"method":"ping"}}"#),
            4 => r#"{"jsonrpc":"2.0","method":"notifications/other","params":{"of":"~999999:6~"}}"#.into(),
            5 => r#"{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"task ~999999:7~","status":"completed"}}"#.into(),
            _ => r#"{"jsonrpc":"2.0","id":1,"id":2,"result":{"of":"~999999:8~"}}"#.into(),
        };
        self.say(line, About::Nothing);
    }

    /// Check 6: what the server still works on has been withdrawn.
    pub(crate) fn has_been_told_of_every_end(&self, record: &Record) {
        for pending in &self.pending {
            if let Asked::Call(call) = pending.ask {
                assert!(
                    pending.is_cancelled,
                    "check 6: the server still works on {}, which has ended: {:?}",
                    record.calls[call].nonce, record.calls[call].ended
                );
            }
        }
        for task in &self.tasks {
            assert!(
                task.is_terminal() || !self.abilities.task_cancel,
                "check 6: {} has no owner and goes on",
                task.id
            );
        }
    }
}
