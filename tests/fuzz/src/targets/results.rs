//! What is read out of the server's results, against a reading with serde_json: the
//! task that a result tells of, the status of one, a list with only one's own tasks,
//! the handshake. And what Ringway writes of its own with a hostile text in it.
//!
//! The first byte picks what is offered to clients and whose tasks are asked for; a
//! JSON text follows.

use ringway::wire::depth::within_depth;
use ringway::wire::handshake::{Handshake, HandshakeError, Offer, UNKNOWN_VERSION_CHARACTERS_MAX};
use ringway::wire::notice;
use ringway::wire::reply::{self, Reason};
use ringway::wire::task::{self, Created, ListError, Status, TASK_ID_BYTES_MAX};
use ringway::wire::version::Version;
use serde_json::Value;

use super::sse::events;
use crate::json::{Member, elements, find, is_json, may_be_refused, members, on_one_line};

pub fn results(data: &[u8]) {
    let Some((choice, text)) = data.split_first() else {
        return;
    };
    check(text, *choice);
    if let Ok(text) = std::str::from_utf8(text) {
        check_written(text);
    }
}

/// What comes from the server has been scanned: it is JSON, and not too deep.
pub(super) fn check(bytes: &[u8], choice: u8) {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) if is_json(bytes) && within_depth(bytes) => text,
        _ => {
            let _ = (task::created(bytes), task::status(bytes));
            let _ = task::own_list(bytes, |_| true, str::to_owned);
            let _ = task::created_in(bytes);
            return;
        }
    };
    check_task(text);
    check_list(text, choice);
    let offer = Offer {
        get_streams: choice & 1 != 0,
        tasks: choice & 2 != 0,
    };
    check_handshake(text, offer);
}

fn string(raw: &str) -> Option<String> {
    serde_json::from_str(raw).ok()
}

fn task_id(task: &[Member<'_>]) -> Option<String> {
    let id = string(find(task, "taskId")?)?;
    (1..=TASK_ID_BYTES_MAX).contains(&id.len()).then_some(id)
}

fn status(task: &[Member<'_>]) -> Option<Status> {
    match string(find(task, "status")?)?.as_str() {
        "working" => Some(Status::Working),
        "input_required" => Some(Status::InputRequired),
        "completed" => Some(Status::Completed),
        "failed" => Some(Status::Failed),
        "cancelled" => Some(Status::Cancelled),
        _ => None,
    }
}

fn created(text: &str) -> Option<Created> {
    let task = members(find(&members(text)?, "task")?)?;
    Some(Created {
        task_id: task_id(&task)?,
        status: status(&task),
    })
}

fn check_task(text: &str) {
    let of_task = members(text).and_then(|members| status(&members));
    for (read, is_as_expected) in [
        (
            task::created(text.as_bytes()).is_some(),
            task::created(text.as_bytes()) == created(text),
        ),
        (
            task::status(text.as_bytes()).is_some(),
            task::status(text.as_bytes()) == of_task,
        ),
    ] {
        let is_refused = !read && may_be_refused(text);
        assert!(is_as_expected || is_refused, "{text}");
    }
}

fn check_list(text: &str, choice: u8) {
    let is_own = |id: &str| id.bytes().fold(choice, u8::wrapping_add) % 3 != 0;
    let cursor = |cursor: &str| format!("<{cursor}>\n\u{0}");
    let mut asked = Vec::new();
    let list = task::own_list(
        text.as_bytes(),
        |id| {
            asked.push(id.to_owned());
            is_own(id)
        },
        cursor,
    );
    let expected = own_list(text, is_own, cursor);
    let (list, own) = match (list, expected) {
        (Ok(list), Ok(own)) => (list, own),
        (Err(error), Err(expected)) => return assert_eq!(error, expected),
        (list, own) => panic!("{list:?} instead of {own:?}"),
    };
    let list = String::from_utf8(list).expect("a list is text");
    assert!(is_json(list.as_bytes()) && !list.contains(['\r', '\n']));
    assert!(
        asked
            .iter()
            .all(|id| (1..=TASK_ID_BYTES_MAX).contains(&id.len()))
    );
    if own.is_certain {
        assert_eq!(list, own.text);
        return;
    }
    // An element that simd-json refuses is nobody's; the others stay as they are.
    let shown = members(&list).expect("two members at most");
    let shown = elements(find(&shown, "tasks").expect("a list")).expect("an array");
    let mut own = own.tasks.iter().peekable();
    for task in shown {
        let is_shown = |own: &String| own == task;
        assert!(own.any(is_shown), "not one's own: {task}");
    }
}

#[derive(Debug)]
struct OwnList {
    text: String,
    tasks: Vec<String>,
    /// Nothing is in the tasks that may be refused.
    is_certain: bool,
}

fn own_list(
    text: &str,
    is_own: impl Fn(&str) -> bool,
    next_cursor: impl Fn(&str) -> String,
) -> Result<OwnList, ListError> {
    let members = match members(text) {
        Some(members) => members,
        None if has_repeated_name(text) => return Err(ListError::Twice),
        None => return Err(ListError::Form),
    };
    let all = find(&members, "tasks").and_then(elements);
    let all = all.ok_or(ListError::Tasks)?;
    let is_certain = !all.iter().any(|task| may_be_refused(task));
    let own = all.iter().filter(|task| {
        let id = crate::json::members(task).and_then(|task| task_id(&task));
        id.is_some_and(|id| is_own(&id))
    });
    let tasks: Vec<_> = own.map(|task| on_one_line(task)).collect();
    let cursor = match find(&members, "nextCursor") {
        None | Some("null") => None,
        Some(raw) => Some(next_cursor(&string(raw).ok_or(ListError::Cursor)?)),
    };
    let shown = members
        .iter()
        .filter_map(|member| match member.name.as_str() {
            "tasks" => Some(format!("{}:[{}]", member.key, tasks.join(","))),
            "nextCursor" => {
                let cursor = Value::from(cursor.as_deref()?).to_string();
                Some(format!("{}:{cursor}", member.key))
            }
            _ => None,
        });
    let shown: Vec<_> = shown.collect();
    Ok(OwnList {
        text: format!("{{{}}}", shown.join(",")),
        tasks,
        is_certain,
    })
}

/// Whether an object cannot be read because of a name that it has twice.
fn has_repeated_name(text: &str) -> bool {
    serde_json::from_str::<crate::json::Members<'_>>(text).is_ok()
}

fn check_handshake(text: &str, offer: Offer) {
    let read = Handshake::read(text.as_bytes(), offer);
    let top = members(text);
    let version = top
        .as_deref()
        .and_then(|top| string(find(top, "protocolVersion")?));
    let group = |name| match top.as_deref().and_then(|top| find(top, name)) {
        Some(group) => members(group),
        None => Some(Vec::new()),
    };
    let (Some(version), Some(capabilities), Some(info)) =
        (version, group("capabilities"), group("serverInfo"))
    else {
        let is_version = matches!(read, Err(HandshakeError::Version { .. }));
        assert!(read.is_err() && (!is_version || top.is_some()), "{text}");
        return;
    };
    let handshake = match read {
        Ok(handshake) => handshake,
        Err(error) => {
            assert_eq!(Version::parse(version.as_bytes()), None, "{text}");
            let characters = version.chars().count().min(UNKNOWN_VERSION_CHARACTERS_MAX);
            let HandshakeError::Version { version: told } = error else {
                panic!("{text}: {error}");
            };
            assert_eq!(told.chars().count(), characters, "{text}");
            assert!(version.starts_with(&told), "{text}");
            return;
        }
    };
    assert_eq!(handshake.version.as_str(), version);
    let text_of = |name| find(&info, name).and_then(string).unwrap_or_default();
    assert_eq!(handshake.server_name, text_of("name"));
    assert_eq!(handshake.server_version, text_of("version"));
    let has = |name| find(&capabilities, name).is_some();
    assert_eq!(handshake.logging, has("logging"));
    assert_eq!(handshake.tasks.is_offered, offer.tasks && has("tasks"));
    let tasks = find(&capabilities, "tasks").and_then(members);
    let can = |name| {
        let flag = tasks.as_deref().and_then(|tasks| find(tasks, name));
        offer.tasks && flag.is_some_and(|flag| flag != "false" && flag != "null")
    };
    assert_eq!(handshake.tasks.list, can("list"));
    assert_eq!(handshake.tasks.cancel, can("cancel"));
    let lists = ["tools", "resources", "prompts"];
    let lists = lists.iter().filter(|list| has(list)).count();
    assert_eq!(handshake.kinds.len(), lists);
    let flags = find(&capabilities, "resources").and_then(members);
    let subscribe = flags.is_some_and(|flags| find(&flags, "subscribe") == Some("true"));
    assert_eq!(handshake.subscribe, offer.get_streams && subscribe);
    assert!(!handshake.is_less_than(&handshake.clone()));
    for version in Version::ALL {
        check_shown(text, offer, version, handshake.result_for(version));
    }
}

/// The answer that a client gets, member by member.
fn check_shown(text: &str, offer: Offer, version: Version, shown: &[u8]) {
    assert!(is_json(shown));
    let shown = std::str::from_utf8(shown).expect("UTF-8");
    assert!(!shown.contains(['\r', '\n']), "one line");
    let (before, after) = (members(text).expect("read"), members(shown).expect("read"));
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(after) {
        assert_eq!(before.name, after.name);
        match before.name.as_str() {
            "protocolVersion" => assert_eq!(after.value, format!("\"{}\"", version.as_str())),
            "capabilities" => check_capabilities(before.value, offer, version, after.value),
            _ => assert_eq!(after.value, on_one_line(before.value)),
        }
    }
}

fn check_capabilities(before: &str, offer: Offer, version: Version, after: &str) {
    let has_tasks = offer.tasks && version == Version::V2025_11_25;
    let is_promise = |name: &str| name == "listChanged" || name == "subscribe";
    let before = members(before).expect("read");
    let after = members(after).expect("read");
    let before = before.iter().filter(|it| has_tasks || it.name != "tasks");
    let before: Vec<_> = before.collect();
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(after) {
        assert_eq!(before.name, after.name);
        let flags = members(before.value).unwrap_or_default();
        if offer.get_streams || !flags.iter().any(|flag| is_promise(&flag.name)) {
            assert_eq!(after.value, on_one_line(before.value));
            continue;
        }
        let kept = flags.iter().filter(|flag| !is_promise(&flag.name));
        let kept = kept.map(|flag| (flag.name.clone(), on_one_line(flag.value)));
        let shown = members(after.value).expect("an object");
        let shown = shown
            .iter()
            .map(|it| (it.name.clone(), it.value.to_owned()));
        assert!(kept.eq(shown), "{after:?}");
    }
}

fn check_written(text: &str) {
    let told = events(&notice::updated_frame(text));
    let [told] = &told[..] else {
        panic!("{} events", told.len());
    };
    let told: Value = serde_json::from_str(told).expect("JSON");
    assert_eq!(told["params"]["uri"], text);

    let mut id = Vec::new();
    reply::json_string(&mut id, text);
    let mut cancelled = Vec::new();
    reply::cancelled_line(&mut cancelled, &id, text);
    assert_eq!(cancelled.pop(), Some(b'\n'));
    for (message, id_at, text_at) in [
        (reply::error(Some(&id), -1, text), "/id", "/error/message"),
        (reply::refusal(&id, i64::MIN, text), "/id", "/error/message"),
        (reply::result(&id, &id), "/id", "/result"),
        (reply::failure(Some(&id), Reason::Timeout), "/id", "/id"),
        (cancelled, "/params/requestId", "/params/reason"),
    ] {
        assert!(!message.iter().any(|byte| matches!(byte, b'\r' | b'\n')));
        let message: Value = serde_json::from_slice(&message).expect("JSON");
        for place in [id_at, text_at] {
            let found = message.pointer(place).and_then(Value::as_str);
            assert_eq!(found, Some(text), "{place}");
        }
    }
}
