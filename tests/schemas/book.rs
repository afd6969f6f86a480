//! The book of the messages that were seen: each is judged by both validators when it comes, and in the end the
//! list must have been seen whole.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::{Value, json};

use crate::definitions::{Definition, Version};
use crate::list::Entry;
use crate::official::Official;
use crate::support::Response;
use crate::typed;

/// Says which validators run, past the test runner, which hides what tests print.
fn say(official: Option<&Official>) {
    let line = match official {
        Some(_) => "schemas: typed model and official JSON schemas",
        None => "schemas: typed model only (no ../shared/mcp)",
    };
    let _ = writeln!(std::io::stdout(), "{line}");
}

pub(crate) struct Book {
    list: &'static [Entry],
    official: Option<Official>,
    /// One message of each kind and version, with what it was judged by.
    seen: BTreeMap<(String, Version), Vec<(Definition, Value)>>,
    faults: Vec<String>,
}

impl Book {
    pub(crate) fn new(list: &'static [Entry]) -> Self {
        let official = Official::find();
        say(official.as_ref());
        Self {
            list,
            official,
            seen: BTreeMap::new(),
            faults: Vec::new(),
        }
    }

    /// The answer to a request of `method` in a session of `version`, with what came before it.
    pub(crate) fn answer(&mut self, version: Version, method: &str, response: &Response) {
        for message in response.messages() {
            self.for_client(version, method, response.status, &message);
        }
    }

    /// The answer to a request that no session is behind: a client of any version may get it.
    pub(crate) fn answer_to_all(&mut self, method: &str, response: &Response) {
        for version in Version::ALL {
            self.answer(version, method, response);
        }
    }

    /// The answer to a batch: as a whole where it is an array, and each of its messages. Whatever is no error
    /// must be the answer to a ping.
    pub(crate) fn batch(&mut self, response: &Response) {
        let version = Version::V2025_03_26;
        if !response.is_sse() {
            let mut whole = response.json();
            // What names no request is judged by itself, as everywhere.
            let array = whole
                .as_array_mut()
                .expect("a batch is answered by an array");
            array.retain(|message| message.get("id").is_some());
            let whole = vec![(Definition::BatchResponse, whole)];
            self.note("batch".to_owned(), version, whole);
        }
        for message in response.messages() {
            // In a batch there is no status of its own; alone it would be that of a refusal.
            self.for_client(version, "ping", 400, &message);
        }
    }

    /// One message to a client.
    pub(crate) fn for_client(
        &mut self,
        version: Version,
        method: &str,
        status: u16,
        message: &Value,
    ) {
        match message.get("id") {
            None if message.get("error").is_some() => {
                let name = format!("{status}, {}", name_of_error(message));
                let newest = Version::V2025_11_25;
                self.note(name, newest, vec![(Definition::Error, message.clone())]);
            }
            _ => self.message(version, method, message),
        }
    }

    /// One line to the server.
    pub(crate) fn for_server(&mut self, version: Version, line: &str) {
        let message: Value = serde_json::from_str(line).expect("a line is JSON");
        // Of results the server gets only those of its pings.
        self.message(version, "ping", &message);
    }

    fn message(&mut self, version: Version, answered: &str, message: &Value) {
        if message.get("error").is_some() {
            let parts = vec![(Definition::Error, message.clone())];
            self.note(name_of_error(message), version, parts);
        } else if let Some(result) = message.get("result") {
            let definition = Definition::of_result(answered)
                .unwrap_or_else(|| panic!("a result of {answered}: {message}"));
            let name = format!("result of {answered}");
            if definition == Definition::EmptyResult && *result != json!({}) {
                // The schemas allow any member there.
                self.faults.push(format!("{name} is not empty: {message}"));
            }
            let whole = (Definition::ResultResponse, message.clone());
            self.note(name, version, vec![whole, (definition, result.clone())]);
        } else {
            let method = message["method"].as_str().expect("a method").to_owned();
            let definition =
                Definition::of_method(&method).unwrap_or_else(|| panic!("no {method}: {message}"));
            let envelope = match message.get("id") {
                Some(_) => Definition::Request,
                None => Definition::Notification,
            };
            let mut own = message.clone();
            if !version.has_whole_definitions() {
                for path in ["/jsonrpc", "/id", "/params/_meta"] {
                    remove(&mut own, path);
                }
            }
            let parts = vec![(envelope, message.clone()), (definition, own)];
            self.note(method, version, parts);
        }
    }

    fn note(&mut self, name: String, version: Version, parts: Vec<(Definition, Value)>) {
        let entry = self.list.iter().find(|(known, _)| *known == name);
        match entry {
            None => self.faults.push(format!("not in the list: {name}")),
            Some((_, versions)) if !versions.contains(&version) => {
                self.faults.push(format!("not in {version:?}: {name}"));
            }
            Some(_) => {}
        }
        for (definition, value) in &parts {
            for (validator, verdict) in self.judge(version, *definition, value) {
                if let Err(fault) = verdict {
                    let definition = definition.name(version);
                    self.faults.push(format!(
                        "{name}, {}: {validator} refuses it as {definition}: {fault}\n  {value}",
                        version.name()
                    ));
                }
            }
        }
        self.seen.insert((name, version), parts);
    }

    /// What each validator says.
    fn judge(
        &self,
        version: Version,
        definition: Definition,
        value: &Value,
    ) -> Vec<(&'static str, Result<(), String>)> {
        let mut verdicts = vec![("the typed model", typed::check(version, definition, value))];
        if let Some(official) = &self.official {
            let verdict = official.check(version, definition, value);
            verdicts.push(("the official schema", verdict));
        }
        verdicts
    }

    /// Everything on the list was seen, and all that was seen is valid.
    pub(crate) fn close(mut self) {
        for (name, versions) in self.list {
            for version in *versions {
                if !self.seen.contains_key(&((*name).to_owned(), *version)) {
                    self.faults
                        .push(format!("not seen, {}: {name}", version.name()));
                }
            }
        }
        // Faults first: the test of the test needs messages that are valid.
        self.expect_no_faults();
        let spoilt = self.spoil();
        self.expect_no_faults();
        let (kinds, seen) = (self.list.len(), self.seen.len());
        let _ = writeln!(
            std::io::stdout(),
            "schemas: {kinds} kinds of messages, with their versions {seen}, are valid; {spoilt} spoilt ones are refused"
        );
    }

    fn expect_no_faults(&mut self) {
        let faults = std::mem::take(&mut self.faults);
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    /// The test of the test: of every message that was seen each required member is taken out, gets another
    /// type, and the whole gets a member more. Validators that let this pass would let anything pass.
    fn spoil(&mut self) -> usize {
        let mut count = 0;
        let mut faults = Vec::new();
        for ((name, version), parts) in &self.seen {
            for (definition, value) in parts {
                let mut expect_refused = |what: String, spoilt: &Value, by_schema: bool| {
                    count += 1;
                    for (validator, verdict) in self.judge(*version, *definition, spoilt) {
                        let is_asked = by_schema || validator == "the typed model";
                        if verdict.is_ok() && is_asked {
                            faults.push(format!(
                                "{name}, {}: {validator} takes it as {} {what}: {spoilt}",
                                version.name(),
                                definition.name(*version)
                            ));
                        }
                    }
                };
                for path in definition.required(*version) {
                    let mut without = value.clone();
                    // A path that is not there would show nothing below.
                    assert!(remove(&mut without, path), "{name} has no {path}: {value}");
                    expect_refused(format!("without {path}"), &without, true);
                }
                let optional = definition.optional().iter();
                let optional = optional.filter(|path| value.pointer(path).is_some());
                for path in definition.required(*version).iter().chain(optional) {
                    let mut other = value.clone();
                    if let Some(member) = other.pointer_mut(path) {
                        *member = match member {
                            Value::Bool(_) => json!("true"),
                            _ => json!(true),
                        };
                    }
                    expect_refused(format!("with another {path}"), &other, true);
                }
                // A result may have any member: those of its own kind are judged apart.
                let mut more = value.clone();
                if let (Some(members), false) =
                    (more.as_object_mut(), *definition == Definition::EmptyResult)
                {
                    members.insert("unheardOf".to_owned(), json!(1));
                    expect_refused("with a member more".to_owned(), &more, false);
                }
            }
        }
        self.faults.append(&mut faults);
        count
    }
}

/// A test that ends on the way has perhaps ended because of a message that was noted.
impl Drop for Book {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- faults so far:\n{}", self.faults.join("\n"));
        }
    }
}

/// An error by its code, its reason if it has one, and its sentence.
fn name_of_error(message: &Value) -> String {
    let error = &message["error"];
    let (code, sentence) = (&error["code"], error["message"].as_str().unwrap_or("?"));
    match error["data"]["reason"].as_str() {
        Some(reason) => format!("{code} {reason}: {sentence}"),
        None => format!("{code}: {sentence}"),
    }
}

/// Takes the member at a path out. False if there is none.
fn remove(value: &mut Value, path: &str) -> bool {
    let Some((parent, name)) = path.rsplit_once('/') else {
        return false;
    };
    let parent = value.pointer_mut(parent).and_then(Value::as_object_mut);
    parent.is_some_and(|members| members.remove(name).is_some())
}
