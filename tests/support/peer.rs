//! A programmable MCP server that lives in the test's process and is reached over stdio or over HTTP. What it is
//! asked it answers from its [`Catalogue`], unless a rule of the test says else; a request that is held is handed to
//! the test. It keeps what it was asked, can be slow, dead, and come back, and speaks unasked.
//!
//! Over stdio the gateway starts `tests/servers/relay.py`, which carries the bytes to and fro; over HTTP it is an
//! [`HttpServer`] with rules. A test that looks at the record sees the same in both.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};

use super::catalogue::{Catalogue, Kind};
use super::gateway::{python, server_script};
use super::http_server::{Exchange, HttpServer, Seen};
use super::mcp::raw_member;
use super::{Scratch, process_runs, wait_until};

/// One message that the server has read.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The JSON-RPC method; over HTTP also `GET` and `DELETE`. Empty for an answer.
    pub method: String,
    /// The session over HTTP.
    pub session: Option<String>,
    /// Which process of a stdio server read it, counted from 1; 0 over HTTP.
    pub process: usize,
    /// As it came.
    pub text: String,
    pub message: Value,
}

impl Asked {
    fn of_line(text: String, process: usize) -> Option<Self> {
        let message: Value = serde_json::from_str(&text).ok()?;
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        message.is_object().then_some(Self {
            method,
            session: None,
            process,
            text,
            message,
        })
    }

    fn of_seen(seen: &Seen) -> Self {
        let message: Value = serde_json::from_str(&seen.body).unwrap_or_default();
        let method = match seen.method.as_str() {
            "POST" => message["method"].as_str().unwrap_or_default().to_owned(),
            other => other.to_owned(),
        };
        Self {
            method,
            session: seen.session().map(str::to_owned),
            process: 0,
            text: seen.body.clone(),
            message,
        }
    }

    pub fn is(&self, method: &str) -> bool {
        self.method == method
    }

    pub fn params(&self) -> &Value {
        &self.message["params"]
    }

    /// The tool, prompt or URI that it is about.
    pub fn name(&self) -> &str {
        let params = self.params();
        let name = params["name"].as_str().or(params["uri"].as_str());
        name.unwrap_or_default()
    }

    /// Whether it calls this tool.
    pub fn calls(&self, tool: &str) -> bool {
        self.is("tools/call") && self.name() == tool
    }

    /// Whether it calls a tool with this nonce.
    pub fn has_nonce(&self, nonce: &str) -> bool {
        self.params()["arguments"]["nonce"] == nonce
    }

    /// The raw JSON-RPC id.
    pub fn id(&self) -> Option<String> {
        raw_member(&self.text, "id")
    }

    fn wants_answer(&self) -> bool {
        self.message.get("id").is_some() && !self.method.is_empty()
    }
}

type Matches = Arc<dyn Fn(&Asked) -> bool + Send + Sync>;
type Answers = Arc<dyn Fn(&Asked) -> Result<Value, Value> + Send + Sync>;

#[derive(Clone)]
enum Action {
    Answer(Answers),
    Hold,
    /// The server dies of it.
    Die,
}

struct State {
    catalogue: Catalogue,
    rules: Vec<(Matches, Action)>,
    held: Vec<Held>,
    tasks: usize,
    // Over stdio.
    asked: Vec<Asked>,
    processes: Vec<Process>,
    is_up: bool,
    is_ending: bool,
    faults: Vec<String>,
    // Over HTTP.
    gets: Vec<Exchange>,
}

/// One process of a stdio server.
struct Process {
    pid: u32,
    hello: Value,
    link: Arc<Mutex<UnixStream>>,
    is_open: bool,
    stdin_ended: bool,
}

struct Inner {
    name: String,
    state: Mutex<State>,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|failed| failed.into_inner())
    }

    /// What becomes of a request; `None`: the catalogue's own answer.
    fn rule(&self, asked: &Asked) -> Option<Action> {
        let rules: Vec<_> = self.lock().rules.clone();
        let rule = rules.iter().rev().find(|(matches, _)| matches(asked));
        rule.map(|(_, action)| action.clone())
    }

    fn own_answer(&self, asked: &Asked) -> Result<Value, Value> {
        let (catalogue, serial) = {
            let mut state = self.lock();
            state.tasks += usize::from(asked.params()["task"].is_object());
            (state.catalogue.clone(), state.tasks)
        };
        catalogue.answer(&self.name, &asked.message, serial)
    }

    fn handle(&self, held: Held) {
        if !self.lock().is_up {
            return held.die();
        }
        match self.rule(&held.asked) {
            None => {
                let answer = self.own_answer(&held.asked);
                held.answer(answer);
            }
            Some(Action::Answer(answers)) => {
                let answer = answers(&held.asked);
                held.answer(answer);
            }
            Some(Action::Hold) => {
                let mut state = self.lock();
                if !state.is_ending {
                    state.held.push(held);
                }
            }
            Some(Action::Die) => {
                let mut state = self.lock();
                state.is_up = false;
                let gets = std::mem::take(&mut state.gets);
                drop(state);
                drop(gets);
                held.die();
            }
        }
    }
}

enum Face {
    Stdio { socket: String, _scratch: Scratch },
    Http { server: HttpServer, share: bool },
}

pub struct Peer {
    pub name: String,
    inner: Arc<Inner>,
    face: Face,
}

/// Which kind of upstream a server is to the gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reached {
    Stdio,
    /// Over HTTP, one upstream session a session.
    Http,
    /// Over HTTP, one upstream session for all.
    SharedHttp,
}

impl Reached {
    pub const ALL: [Self; 3] = [Self::Stdio, Self::Http, Self::SharedHttp];
}

impl Peer {
    pub fn new(reached: Reached, name: &str, catalogue: Catalogue) -> Self {
        match reached {
            Reached::Stdio => Self::stdio(name, catalogue),
            Reached::Http => Self::http(name, catalogue),
            Reached::SharedHttp => Self::shared_http(name, catalogue),
        }
    }

    fn inner(name: &str, catalogue: Catalogue) -> Arc<Inner> {
        Arc::new(Inner {
            name: name.to_owned(),
            state: Mutex::new(State {
                catalogue,
                rules: Vec::new(),
                held: Vec::new(),
                tasks: 0,
                asked: Vec::new(),
                processes: Vec::new(),
                is_up: true,
                is_ending: false,
                faults: Vec::new(),
                gets: Vec::new(),
            }),
        })
    }

    pub fn stdio(name: &str, catalogue: Catalogue) -> Self {
        let inner = Self::inner(name, catalogue);
        let scratch = Scratch::new();
        let socket = scratch.path("socket");
        let listener = UnixListener::bind(&socket).expect("a short path");
        let accepting = Arc::clone(&inner);
        std::thread::spawn(move || accept(&accepting, &listener));
        Self {
            name: name.to_owned(),
            inner,
            face: Face::Stdio {
                socket,
                _scratch: scratch,
            },
        }
    }

    pub fn http(name: &str, catalogue: Catalogue) -> Self {
        Self::over_http(name, catalogue, false)
    }

    pub fn shared_http(name: &str, catalogue: Catalogue) -> Self {
        Self::over_http(name, catalogue, true)
    }

    fn over_http(name: &str, catalogue: Catalogue, share: bool) -> Self {
        let inner = Self::inner(name, catalogue);
        let server = HttpServer::new();
        let answering = Arc::clone(&inner);
        server.on(
            |seen| seen.method == "POST" && !seen.is_one_way(),
            move |exchange| {
                let asked = Asked::of_seen(&exchange.seen);
                let way = Way::Http(exchange);
                answering.handle(Held { asked, way });
            },
        );
        let listening = Arc::clone(&inner);
        server.on(
            |seen| seen.method == "GET",
            move |mut exchange| {
                exchange.sse();
                let mut state = listening.lock();
                if state.is_up && !state.is_ending {
                    state.gets.push(exchange);
                }
            },
        );
        Self {
            name: name.to_owned(),
            inner,
            face: Face::Http { server, share },
        }
    }

    pub fn reached(&self) -> Reached {
        match &self.face {
            Face::Stdio { .. } => Reached::Stdio,
            Face::Http { share: false, .. } => Reached::Http,
            Face::Http { share: true, .. } => Reached::SharedHttp,
        }
    }

    /// The words of a stdio server's command line.
    pub fn command(&self) -> Vec<String> {
        let Face::Stdio { socket, .. } = &self.face else {
            panic!("not over stdio");
        };
        let script = server_script("relay.py");
        let script = script.to_str().expect("a UTF-8 path");
        [python(), "-S", script, socket].map(str::to_owned).to_vec()
    }

    /// The server beneath, where it is reached over HTTP.
    pub fn server(&self) -> &HttpServer {
        let Face::Http { server, .. } = &self.face else {
            panic!("not over HTTP");
        };
        server
    }

    /// Its part of a configuration file, with these lines besides.
    pub fn toml(&self, more: &str) -> String {
        let place = match &self.face {
            Face::Stdio { .. } => format!("command = {}", json!(self.command())),
            Face::Http { server, share } => format!("url = {:?}\nshare = {share}", server.url()),
        };
        format!(
            "[[routes.upstreams]]\nname = {:?}\n{place}\n{more}\n\n",
            self.name
        )
    }

    // --- What it does.

    /// What matches is answered so; a later rule goes before an earlier one.
    pub fn answer(
        &self,
        matches: impl Fn(&Asked) -> bool + Send + Sync + 'static,
        answers: impl Fn(&Asked) -> Result<Value, Value> + Send + Sync + 'static,
    ) {
        self.rule(matches, Action::Answer(Arc::new(answers)));
    }

    /// What matches is kept for [`Peer::take`].
    pub fn hold(&self, matches: impl Fn(&Asked) -> bool + Send + Sync + 'static) {
        self.rule(matches, Action::Hold);
    }

    /// The server dies of what matches, and does not come back before [`Peer::up_again`].
    pub fn die_of(&self, matches: impl Fn(&Asked) -> bool + Send + Sync + 'static) {
        self.rule(matches, Action::Die);
    }

    fn rule(&self, matches: impl Fn(&Asked) -> bool + Send + Sync + 'static, action: Action) {
        self.inner.lock().rules.push((Arc::new(matches), action));
    }

    pub fn forget_rules(&self) {
        self.inner.lock().rules.clear();
    }

    /// Waits for a request that is held and matches, and hands it over.
    #[track_caller]
    pub fn take(&self, what: &str, matches: impl Fn(&Asked) -> bool) -> Held {
        let mut taken = None;
        self.wait(&format!("{} holds {what}", self.name), || {
            let mut state = self.inner.lock();
            let at = state.held.iter().position(|held| matches(&held.asked));
            taken = at.map(|at| state.held.remove(at));
            taken.is_some()
        });
        taken.expect("waited for")
    }

    /// Requests that are held.
    pub fn held_count(&self) -> usize {
        self.inner.lock().held.len()
    }

    /// Changes what it offers, and says nothing.
    pub fn change(&self, change: impl FnOnce(&mut Catalogue)) {
        change(&mut self.inner.lock().catalogue);
    }

    /// Says a message to whoever listens: over stdio on stdout, over HTTP on every GET stream.
    #[track_caller]
    pub fn say(&self, message: &Value) {
        let text = message.to_string();
        match &self.face {
            Face::Stdio { .. } => {
                let link = self.current().expect("it runs");
                write_line(&link, &text);
            }
            Face::Http { .. } => {
                let mut state = self.inner.lock();
                state.gets.retain(|get| !get.is_cut());
                assert!(!state.gets.is_empty(), "nobody listens to {}", self.name);
                for get in &mut state.gets {
                    get.event(&text);
                }
            }
        }
    }

    /// The same on the GET stream of one session over HTTP.
    #[track_caller]
    pub fn say_in(&self, session: &str, message: &Value) {
        let mut state = self.inner.lock();
        let get = state.gets.iter_mut();
        let mut of_session = get.filter(|get| get.seen.session() == Some(session));
        let get = of_session.next_back().expect("the session listens");
        get.event(&message.to_string());
    }

    /// Waits until so many GET streams are open.
    #[track_caller]
    pub fn wait_listened(&self, count: usize) {
        if self.reached() == Reached::Stdio {
            return;
        }
        self.wait(&format!("{count} listen to {}", self.name), || {
            let mut state = self.inner.lock();
            state.gets.retain(|get| !get.is_cut());
            state.gets.len() >= count
        });
    }

    pub fn say_list_changed(&self, kind: Kind) {
        let kind = if kind == Kind::Templates {
            Kind::Resources
        } else {
            kind
        };
        let method = format!("notifications/{}/list_changed", kind.member());
        self.say(&json!({ "jsonrpc": "2.0", "method": method }));
    }

    pub fn say_updated(&self, uri: &str) {
        let params = json!({ "uri": uri });
        self.say(&json!({ "jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params }));
    }

    /// Dies, and cannot be started or reached until [`Peer::up`].
    pub fn down(&self) {
        self.inner.lock().is_up = false;
        match &self.face {
            Face::Stdio { .. } => {
                let state = self.inner.lock();
                for process in &state.processes {
                    end(&process.link);
                }
            }
            Face::Http { server, .. } => {
                server.down();
                server.forget_sessions();
                let mut state = self.inner.lock();
                let (gets, held) = (
                    std::mem::take(&mut state.gets),
                    std::mem::take(&mut state.held),
                );
                drop(state);
                drop((gets, held));
            }
        }
    }

    pub fn up(&self) {
        self.up_again();
        if let Face::Http { server, .. } = &self.face {
            server.up();
        }
    }

    /// Lives again after it has died of what it was asked.
    pub fn up_again(&self) {
        self.inner.lock().is_up = true;
    }

    // --- What it has seen.

    /// All that it has read, in order.
    pub fn all(&self) -> Vec<Asked> {
        match &self.face {
            Face::Stdio { .. } => self.inner.lock().asked.clone(),
            Face::Http { server, .. } => {
                let seen = server.seen(|_| true);
                seen.iter().map(Asked::of_seen).collect()
            }
        }
    }

    pub fn asked(&self, matches: impl Fn(&Asked) -> bool) -> Vec<Asked> {
        let mut all = self.all();
        all.retain(|asked| matches(asked));
        all
    }

    pub fn count(&self, matches: impl Fn(&Asked) -> bool) -> usize {
        self.asked(matches).len()
    }

    /// The names of what it was asked with this method, in order.
    pub fn names(&self, method: &str) -> Vec<String> {
        let asked = self.asked(|asked| asked.is(method));
        asked.iter().map(|asked| asked.name().to_owned()).collect()
    }

    /// Waits until it has read exactly so many that match; more fail the test.
    #[track_caller]
    pub fn wait_asked(
        &self,
        what: &str,
        count: usize,
        matches: impl Fn(&Asked) -> bool,
    ) -> Vec<Asked> {
        let mut asked = Vec::new();
        self.wait(&format!("{} is asked {what}", self.name), || {
            asked = self.asked(&matches);
            asked.len() >= count
        });
        assert_eq!(asked.len(), count, "{}: {what}: {asked:#?}", self.name);
        asked
    }

    /// A wait that tells what the server has seen when it fails.
    #[track_caller]
    fn wait(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let start = std::time::Instant::now();
        while !holds() {
            if start.elapsed() > super::GUARD {
                let all = self.all();
                let last: Vec<&str> = all.iter().map(|asked| asked.text.as_str()).collect();
                panic!("never came true: {what}; it was asked {last:#?}");
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// The processes that were started, in order.
    pub fn pids(&self) -> Vec<u32> {
        let state = self.inner.lock();
        state.processes.iter().map(|process| process.pid).collect()
    }

    /// The process that runs.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        let state = self.inner.lock();
        let open: Vec<_> = state.processes.iter().filter(|one| one.is_open).collect();
        assert_eq!(open.len(), 1, "one process of {} runs", self.name);
        open[0].pid
    }

    /// What the last process said of itself: `directory`, `environment`.
    pub fn hello(&self) -> Value {
        let state = self.inner.lock();
        let last = state.processes.last().expect("it was started");
        last.hello.clone()
    }

    /// Waits until a process has been told to end by the end of its stdin, and has ended.
    #[track_caller]
    pub fn wait_ended(&self, pid: u32) {
        self.wait(
            &format!("process {pid} of {} is told to end", self.name),
            || {
                let state = self.inner.lock();
                let mut processes = state.processes.iter();
                processes.any(|process| process.pid == pid && process.stdin_ended)
            },
        );
        wait_until("it has ended", || !process_runs(pid));
    }

    /// The sessions over HTTP that are alive.
    pub fn live(&self) -> Vec<String> {
        self.server().live()
    }

    /// How many sessions it has ever given.
    pub fn given_count(&self) -> usize {
        self.server().given().len()
    }

    /// The sessions in which requests that match came.
    pub fn sessions_of(&self, matches: impl Fn(&Asked) -> bool) -> BTreeSet<String> {
        let asked = self.asked(matches).into_iter();
        asked.filter_map(|asked| asked.session).collect()
    }

    fn current(&self) -> Option<Arc<Mutex<UnixStream>>> {
        let state = self.inner.lock();
        let open = state.processes.iter().rev().find(|process| process.is_open);
        open.map(|process| Arc::clone(&process.link))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let (held, gets, faults) = {
            let mut state = self.inner.lock();
            state.is_ending = true;
            state.is_up = false;
            state.rules.clear();
            for process in &state.processes {
                end(&process.link);
            }
            (
                std::mem::take(&mut state.held),
                std::mem::take(&mut state.gets),
                std::mem::take(&mut state.faults),
            )
        };
        drop((held, gets));
        if let Face::Stdio { socket, .. } = &self.face {
            // Wakes the accepting thread, which then ends.
            drop(UnixStream::connect(socket));
        }
        if std::thread::panicking() {
            let all = self.all();
            let from = all.len().saturating_sub(30);
            let last = all[from..].iter().map(|asked| {
                let text: String = asked.text.chars().take(200).collect();
                format!("\n  {} {:?} {text}", asked.method, asked.session)
            });
            eprintln!("--- {} was asked:{}", self.name, last.collect::<String>());
            return;
        }
        assert!(faults.is_empty(), "{}: {faults:#?}", self.name);
    }
}

/// One request and the hand that answers it.
pub struct Held {
    pub asked: Asked,
    way: Way,
}

enum Way {
    Stdio(Arc<Mutex<UnixStream>>),
    Http(Exchange),
}

impl Held {
    pub fn reply(self, result: &Value) {
        self.answer(Ok(result.clone()));
    }

    pub fn fail(self, code: i64, message: &str) {
        self.answer(Err(json!({ "code": code, "message": message })));
    }

    fn answer(self, answer: Result<Value, Value>) {
        match (self.way, answer) {
            (Way::Stdio(link), answer) => {
                let id = self.asked.id().unwrap_or_default();
                let end = match answer {
                    Ok(result) => format!(r#""result":{result}"#),
                    Err(error) => format!(r#""error":{error}"#),
                };
                write_line(&link, &format!(r#"{{"jsonrpc":"2.0","id":{id},{end}}}"#));
            }
            (Way::Http(exchange), Ok(result)) => exchange.reply(&result.to_string()),
            (Way::Http(exchange), Err(error)) => exchange.fail(&error.to_string()),
        }
    }

    /// Says a message that belongs to the request before its answer.
    pub fn say(&mut self, message: &Value) {
        let text = message.to_string();
        match &mut self.way {
            Way::Stdio(link) => write_line(link, &text),
            Way::Http(exchange) => {
                exchange.begin();
                exchange.event(&text);
            }
        }
    }

    /// Reports progress with the token that the request carries.
    pub fn progress(&mut self, step: usize, message: &str) {
        let token = self.asked.params()["_meta"]["progressToken"].clone();
        assert!(!token.is_null(), "no token: {:?}", self.asked);
        let params = json!({ "progressToken": token, "progress": step, "message": message });
        self.say(
            &json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }),
        );
    }

    fn die(self) {
        match self.way {
            Way::Stdio(link) => end(&link),
            Way::Http(exchange) => exchange.close(),
        }
    }
}

fn write_line(link: &Mutex<UnixStream>, text: &str) {
    let mut link = link.lock().unwrap_or_else(|failed| failed.into_inner());
    // A process that is gone is no failure.
    let _ = link.write_all(format!("{text}\n").as_bytes());
}

fn end(link: &Mutex<UnixStream>) {
    let link = link.lock().unwrap_or_else(|failed| failed.into_inner());
    let _ = link.shutdown(Shutdown::Both);
}

/// Takes the relays of a stdio server, one process after the other.
fn accept(inner: &Arc<Inner>, listener: &UnixListener) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        {
            let state = inner.lock();
            if state.is_ending {
                return;
            }
            if !state.is_up {
                continue;
            }
        }
        let inner = Arc::clone(inner);
        std::thread::spawn(move || serve(&inner, &stream));
    }
}

/// Reads and answers one process's lines.
fn serve(inner: &Inner, stream: &UnixStream) {
    let (Ok(reader), Ok(writer)) = (stream.try_clone(), stream.try_clone()) else {
        return;
    };
    let mut lines = BufReader::new(reader).lines();
    let Some(Ok(hello)) = lines.next() else {
        return;
    };
    let hello: Value = serde_json::from_str(&hello).unwrap_or_default();
    let pid = hello["pid"]
        .as_u64()
        .and_then(|pid| u32::try_from(pid).ok());
    let link = Arc::new(Mutex::new(writer));
    let process = {
        let mut state = inner.lock();
        state.processes.push(Process {
            pid: pid.unwrap_or_default(),
            hello,
            link: Arc::clone(&link),
            is_open: true,
            stdin_ended: false,
        });
        if !state.is_up {
            end(&link);
        }
        state.processes.len()
    };
    let mut ended = true;
    for line in lines {
        let Ok(line) = line else {
            ended = false;
            break;
        };
        let Some(asked) = Asked::of_line(line.clone(), process) else {
            let fault = format!("a line that is no message: {line}");
            inner.lock().faults.push(fault);
            continue;
        };
        inner.lock().asked.push(asked.clone());
        if asked.wants_answer() {
            let way = Way::Stdio(Arc::clone(&link));
            inner.handle(Held { asked, way });
        }
    }
    let mut state = inner.lock();
    state.processes[process - 1].is_open = false;
    // A process that was shot ends its socket too; a test that cares looks at its own kill.
    state.processes[process - 1].stdin_ended = ended;
    drop(state);
    end(&link);
}
