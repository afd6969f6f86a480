//! Tasks in what the server says: the task that a result tells of, the status
//! of one, and a list with only the tasks of one session. The id of an element is
//! read from the very slice that is kept or left out.

use simd_json::prelude::ValueIntoString;
use simd_json::tape::Object;

use super::document::{MembersError, Reader, elements, find, members, object};
use super::reply::json_string;
use super::scan::scan;
use super::splice::fold_newlines;
use super::walk::decoded;
use crate::limits::TASK_ANSWER_BYTES_MAX;

/// Longest `taskId` that is taken for one, in bytes as decoded.
pub const TASK_ID_BYTES_MAX: usize = 1024;

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Working,
    InputRequired,
    Completed,
    Failed,
    Cancelled,
}

impl Status {
    /// The status that `word` names in the protocol.
    pub fn of(word: &str) -> Option<Status> {
        match word {
            "working" => Some(Status::Working),
            "input_required" => Some(Status::InputRequired),
            "completed" => Some(Status::Completed),
            "failed" => Some(Status::Failed),
            "cancelled" => Some(Status::Cancelled),
            _ => None,
        }
    }

    /// Whether the task is over: no other status follows.
    pub fn is_terminal(self) -> bool {
        match self {
            Status::Working | Status::InputRequired => false,
            Status::Completed | Status::Failed | Status::Cancelled => true,
        }
    }
}

/// A task that the server has made for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    pub task_id: String,
    /// `None` if there is none, or one that Ringway does not know.
    pub status: Option<Status>,
}

/// Why a result of `tasks/list` cannot be shown to anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    #[error("the server's task list is not an object that can be read")]
    Form,
    #[error("the server's task list has a name twice")]
    Twice,
    #[error("the server's task list has no array of tasks")]
    Tasks,
    #[error("the server's task list has a nextCursor that is no readable string")]
    Cursor,
}

impl From<MembersError> for ListError {
    fn from(error: MembersError) -> ListError {
        match error {
            MembersError::Form => ListError::Form,
            MembersError::Twice => ListError::Twice,
        }
    }
}

/// The task that the result of a task-augmented request tells of, in
/// `result.task`. `None`: there is no task in it.
pub fn created(result: &[u8]) -> Option<Created> {
    let mut reader = Reader::default();
    let tape = reader.walk(result)?;
    let result = object(tape.as_value())?;
    let task = object(result.get("task")?)?;
    Some(Created {
        task_id: task_id(&task)?.to_owned(),
        status: status_of(&task),
    })
}

/// The same of a whole message, an answer. Long ones are not looked into.
pub fn created_in(answer: &[u8]) -> Option<Created> {
    let envelope = scan(answer).ok()?;
    let result = envelope.result?.of(answer);
    (result.len() <= TASK_ANSWER_BYTES_MAX).then_some(())?;
    created(result)
}

/// The status in a result of `tasks/get` or `tasks/cancel`, or in the params of
/// `notifications/tasks/status`. Whose it is, is not asked here.
pub fn status(task: &[u8]) -> Option<Status> {
    let mut reader = Reader::default();
    let tape = reader.walk(task)?;
    status_of(&object(tape.as_value())?)
}

/// A result of `tasks/list` with only the tasks whose decoded id `is_own`
/// accepts, and of its members only `tasks` and `nextCursor`: any other may tell
/// of the tasks of other sessions. Both members and the kept tasks stay in order,
/// keys and tasks as the server wrote them, but for raw line breaks. Where the
/// server has more to tell, `next_cursor` gets its cursor and gives the one to
/// show instead; a `nextCursor` of null is left out.
pub fn own_list(
    result: &[u8],
    is_own: impl FnMut(&str) -> bool,
    next_cursor: impl FnOnce(&str) -> String,
) -> Result<Vec<u8>, ListError> {
    let members = members(result)?;
    let own = own_tasks(find(&members, "tasks").ok_or(ListError::Tasks)?, is_own)?;
    let cursor = match find(&members, "nextCursor") {
        None | Some("null") => None,
        Some(raw) => Some(next_cursor(
            &decoded(raw.as_bytes()).ok_or(ListError::Cursor)?,
        )),
    };
    let mut out = Vec::new();
    for member in &members {
        let mut value = Vec::new();
        match (member.name.as_ref(), &cursor) {
            ("tasks", _) => value.extend_from_slice(&own),
            ("nextCursor", Some(cursor)) => json_string(&mut value, cursor),
            _ => continue,
        }
        out.push(if out.is_empty() { b'{' } else { b',' });
        out.extend_from_slice(member.key.as_bytes());
        out.push(b':');
        out.append(&mut value);
    }
    out.push(b'}');
    fold_newlines(&mut out);
    Ok(out)
}

fn task_id<'text>(task: &Object<'_, 'text>) -> Option<&'text str> {
    let id = task.get("taskId")?.into_string()?;
    (1..=TASK_ID_BYTES_MAX).contains(&id.len()).then_some(id)
}

fn status_of(task: &Object<'_, '_>) -> Option<Status> {
    Status::of(task.get("status")?.into_string()?)
}

/// The raw array `tasks` with only the elements that are somebody's and own.
fn own_tasks(tasks: &str, mut is_own: impl FnMut(&str) -> bool) -> Result<Vec<u8>, ListError> {
    let mut out = vec![b'['];
    let mut reader = Reader::default();
    elements(tasks, |task| {
        if is_owned(&mut reader, task.as_bytes(), &mut is_own) {
            if out.len() > 1 {
                out.push(b',');
            }
            out.extend_from_slice(task.as_bytes());
        }
    })
    .ok_or(ListError::Tasks)?;
    out.push(b']');
    Ok(out)
}

fn is_owned(reader: &mut Reader, task: &[u8], is_own: impl FnOnce(&str) -> bool) -> bool {
    let Some(tape) = reader.walk(task) else {
        return false;
    };
    let task = object(tape.as_value());
    task.as_ref().and_then(task_id).is_some_and(is_own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::Index;

    fn no_cursor(cursor: &str) -> String {
        panic!("asked for a cursor in place of {cursor:?}")
    }

    fn own(result: &str, is_own: impl FnMut(&str) -> bool) -> Result<String, ListError> {
        own_list(result.as_bytes(), is_own, no_cursor)
            .map(|list| String::from_utf8(list).expect("a list is text"))
    }

    fn made(id: &str, status: Option<Status>) -> Option<Created> {
        Some(Created {
            task_id: id.to_owned(),
            status,
        })
    }

    #[test]
    fn every_status_of_the_protocol_is_known_and_three_are_the_end() {
        let words = [
            ("working", Status::Working, false),
            ("input_required", Status::InputRequired, false),
            ("completed", Status::Completed, true),
            ("failed", Status::Failed, true),
            ("cancelled", Status::Cancelled, true),
        ];
        for (word, status, is_terminal) in words {
            assert_eq!(Status::of(word), Some(status));
            assert_eq!(status.is_terminal(), is_terminal);
        }
        for word in ["", "Working", "canceled", "done", "working "] {
            assert_eq!(Status::of(word), None);
        }
    }

    #[test]
    fn a_created_task_is_read_as_decoded() {
        let result = br#" {"_meta":{"task":{"taskId":"no"}},
            "t\u0061sk":{"createdAt":"2025-11-25T10:30:00Z","ttl":null,"status":"work\u0069ng",
                "taskId":"\ud83e\udd8a-\n\u00e9","x":[1.5,-3,{"taskId":"no"}]}} "#;
        assert_eq!(
            created(result),
            made("\u{1f98a}-\n\u{e9}", Some(Status::Working))
        );
    }

    #[test]
    fn a_created_task_needs_no_status() {
        for status in [
            "",
            r#","status":"paused""#,
            r#","status":7"#,
            r#","status":null"#,
        ] {
            let result = format!(r#"{{"task":{{"taskId":"a"{status}}}}}"#);
            assert_eq!(created(result.as_bytes()), made("a", None), "{result}");
        }
    }

    #[test]
    fn a_result_without_a_task_has_none() {
        for result in [
            "",
            "null",
            "[]",
            r#""task""#,
            "{}",
            r#"{"content":[],"isError":false}"#,
            r#"{"taskId":"a","status":"working"}"#,
            r#"{"task":null}"#,
            r#"{"task":"a"}"#,
            r#"{"task":["taskId","a"]}"#,
            r#"{"task":{"status":"working"}}"#,
            r#"{"task":{"taskId":7}}"#,
            r#"{"task":{"taskId":""}}"#,
            r#"{"x":{"task":{"taskId":"a"}}}"#,
        ] {
            assert_eq!(created(result.as_bytes()), None, "{result}");
        }
    }

    #[test]
    fn a_name_that_appears_twice_makes_a_result_unreadable() {
        for result in [
            r#"{"task":{"taskId":"a"},"task":{"taskId":"b"}}"#,
            r#"{"task":{"taskId":"a"},"t\u0061sk":1}"#,
            r#"{"x":1,"task":{"taskId":"a"},"x":1}"#,
            r#"{"task":{"taskId":"a","taskId":"a"}}"#,
            r#"{"task":{"taskId":"a","task\u0049d":"b"}}"#,
            r#"{"task":{"x":1,"taskId":"a","y":2,"\u0078":1}}"#,
        ] {
            assert_eq!(created(result.as_bytes()), None, "{result}");
        }
        let deeper = br#"{"task":{"taskId":"a","x":{"y":1,"y":2}},"taskId":3}"#;
        assert_eq!(created(deeper), made("a", None));
    }

    #[test]
    fn a_task_id_has_1024_bytes_at_most_as_decoded() {
        let longest = "\u{e9}".repeat(TASK_ID_BYTES_MAX / 2);
        let spelled = "\\u00e9".repeat(TASK_ID_BYTES_MAX / 2);
        let result = format!(r#"{{"task":{{"taskId":"{spelled}"}}}}"#);
        assert_eq!(created(result.as_bytes()), made(&longest, None));
        let longer = result.replace(&spelled, &format!("{spelled}x"));
        assert_eq!(created(longer.as_bytes()), None);
        for (result, count) in [(result, 1), (longer, 0)] {
            let list = result.replacen(r#""task":{"#, r#""tasks":[{"#, 1);
            let list = list.replace("}}", "}]}");
            let mut asked = 0;
            own(&list, |_| {
                asked += 1;
                true
            })
            .expect("a list");
            assert_eq!(asked, count);
        }
    }

    #[test]
    fn a_status_is_read_from_the_object_itself() {
        let read = |text: &str| status(text.as_bytes());
        let cancelled = r#"{"_meta":{},"taskId":"a","status":"cancelled","ttl":1e3}"#;
        assert_eq!(read(cancelled), Some(Status::Cancelled));
        let spelled = r#" {"st\u0061tus" : "input\u005frequired"} "#;
        assert_eq!(read(spelled), Some(Status::InputRequired));
        for none in [
            "",
            "[]",
            "{}",
            r#""working""#,
            r#"{"status":"other"}"#,
            r#"{"status":["working"]}"#,
            r#"{"task":{"status":"working"}}"#,
            r#"{"status":"working","status":"working"}"#,
            r#"{"status":"working","stat\u0075s":"failed"}"#,
            r#"{"status":"working","taskId":"a","taskId":"a"}"#,
        ] {
            assert_eq!(read(none), None, "{none}");
        }
    }

    /// Values that are JSON and that simd-json refuses.
    const REFUSED: [&str; 6] = [
        r#""\ud800""#,
        r#""\udc00x""#,
        r#"{"\ud800\u0041":1}"#,
        "1e999",
        "-1E+999",
        "123456789012345678901234567890",
    ];

    #[test]
    fn what_simd_json_refuses_hides_the_task_that_has_it_and_no_other() {
        for refused in REFUSED {
            let task = format!(r#"{{"taskId":"a","status":"working","x":{refused}}}"#);
            assert_eq!(created(format!(r#"{{"task":{task}}}"#).as_bytes()), None);
            assert_eq!(status(task.as_bytes()), None, "{refused}");
            let list = format!(
                r#"{{"x":{refused},"tasks":[{task},{{"taskId":"a"}},{refused}],"y":{refused}}}"#
            );
            let shown = r#"{"tasks":[{"taskId":"a"}]}"#;
            assert_eq!(own(&list, |_| true).as_deref(), Ok(shown), "{refused}");
        }
    }

    #[test]
    fn a_list_shows_own_tasks_as_written_and_in_order() {
        let list = r#" { "_meta" : {"a" : 1e0}, "t\u0061sks" :
            [ {"taskId":"1", "ttl" : 1.50},{"taskId":"2"} ,
              {"status":"x\u0041","taskId":"\u0033"},{"taskId":"1"}, {"taskId":"4"}],
            "\u0078":[ ] } "#;
        let mut asked = Vec::new();
        let shown = own(list, |id| {
            asked.push(id.to_owned());
            id == "1" || id == "3"
        });
        let expected = concat!(
            r#"{"t\u0061sks":[{"taskId":"1", "ttl" : 1.50},"#,
            r#"{"status":"x\u0041","taskId":"\u0033"},{"taskId":"1"}]}"#
        );
        assert_eq!(shown.as_deref(), Ok(expected));
        assert_eq!(asked, ["1", "2", "3", "1", "4"]);
    }

    /// Names that are neither `tasks` nor `nextCursor`, some of them nearly.
    const OTHER_NAMES: [&str; 20] = [
        "",
        " ",
        "_meta",
        "total",
        "x",
        "a\"b\\",
        "\u{1f98a}",
        "task",
        "tasks ",
        " tasks",
        "tasks\0",
        "Tasks",
        "TASKS",
        "\"tasks\"",
        "\\u0074asks",
        "nextcursor",
        "NextCursor",
        "next_cursor",
        "nextCursor\n",
        "cursor",
    ];

    #[test]
    fn other_members_are_left_out_whatever_their_name_and_spelling() {
        let own_first = |id: &str| id == "1";
        for name in OTHER_NAMES {
            for ways in [&[][..], &[true], &[true, false], &[false, true]] {
                let key = spelled(name, ways);
                for value in ["null", "7", r#""2""#, "[]", r#"{"tasks":[{"taskId":"1"}]}"#] {
                    let other = format!("{key} : {value}");
                    let tasks = r#""tasks":[{"taskId":"1"},{"taskId":"2"}]"#;
                    for list in [
                        format!("{{{other},{tasks}}}"),
                        format!("{{{tasks},{other}}}"),
                        format!("{{\"nextCursor\":null,{other},{tasks}}}"),
                    ] {
                        let only = r#"{"tasks":[{"taskId":"1"}]}"#;
                        assert_eq!(own(&list, own_first).as_deref(), Ok(only), "{list}");
                    }
                    let cursor = r#""nextCursor":"c""#;
                    for list in [
                        format!("{{{other},{cursor},{tasks}}}"),
                        format!("{{{cursor},{other},{tasks}}}"),
                        format!("{{{cursor},{tasks},{other}}}"),
                    ] {
                        let shown = own_list(list.as_bytes(), own_first, str::to_owned);
                        let only = br#"{"nextCursor":"c","tasks":[{"taskId":"1"}]}"#;
                        assert_eq!(shown.as_deref(), Ok(&only[..]), "{list}");
                    }
                }
            }
            let alone = format!("{{{}:[]}}", spelled(name, &[]));
            assert_eq!(own(&alone, |_| true), Err(ListError::Tasks), "{alone}");
        }
    }

    #[test]
    fn a_list_with_no_own_task_is_empty() {
        for tasks in ["[]", "[ ]", r#"[{"taskId":"a"}, {"taskId":"b"}]"#] {
            let list = format!(r#"{{"tasks":{tasks}}}"#);
            assert_eq!(own(&list, |_| false).as_deref(), Ok(r#"{"tasks":[]}"#));
        }
    }

    #[test]
    fn an_element_that_is_nobodys_is_left_out_unasked() {
        for element in [
            "null",
            "7",
            r#""taskId""#,
            "[]",
            r#"["taskId","a"]"#,
            "{}",
            r#"{"status":"working"}"#,
            r#"{"taskId":null}"#,
            r#"{"taskId":7}"#,
            r#"{"taskId":["a"]}"#,
            r#"{"taskId":""}"#,
            r#"{"task":{"taskId":"a"}}"#,
            r#"{"taskId":"a","taskId":"a"}"#,
            r#"{"taskId":"a","t\u0061skId":"b"}"#,
            r#"{"taskId":"a","status":"working","x":1,"status":"working"}"#,
        ] {
            let list = format!(r#"{{"tasks":[{element},{{"taskId":"b"}},{element}]}}"#);
            let mut asked = 0;
            let shown = own(&list, |_| {
                asked += 1;
                true
            });
            let only = r#"{"tasks":[{"taskId":"b"}]}"#;
            assert_eq!(shown.as_deref(), Ok(only), "{element}");
            assert_eq!(asked, 1, "{element}");
        }
    }

    #[test]
    fn the_servers_cursor_gives_way_to_ringways() {
        for key in [r#""nextCursor""#, r#""next\u0043ursor""#] {
            let replaced = |cursor: &str| {
                assert_eq!(cursor, "a\n\u{1f98a}");
                "\"\\\u{e9}\n".to_owned()
            };
            let written = format!(r#"{key} : "\u0061\n\ud83e\udd8a""#);
            let with = "\"\\\"\\\\\u{e9}\\n\"";
            let first = format!(r#"{{"a":1,{written},"tasks":[],"cursor":2}}"#);
            let shown = own_list(first.as_bytes(), |_| false, replaced);
            let expected = format!(r#"{{{key}:{with},"tasks":[]}}"#);
            assert_eq!(shown, Ok(expected.into_bytes()));
            let last = format!(r#"{{"tasks":[],"cursor":2,{written}}}"#);
            let shown = own_list(last.as_bytes(), |_| false, replaced);
            let expected = format!(r#"{{"tasks":[],{key}:{with}}}"#);
            assert_eq!(shown, Ok(expected.into_bytes()));
        }
    }

    #[test]
    fn an_empty_cursor_is_one_and_a_null_is_none() {
        let shown = own_list(
            br#"{"nextCursor":"","tasks":[]}"#,
            |_| false,
            |cursor| format!("<{cursor}>"),
        );
        assert_eq!(shown, Ok(br#"{"nextCursor":"<>","tasks":[]}"#.to_vec()));
        let null = own(r#"{"tasks":[],"nextCursor":null,"x":null}"#, |_| false);
        assert_eq!(null.as_deref(), Ok(r#"{"tasks":[]}"#));
        let null = own(r#"{"nextCursor": null ,"tasks":[]}"#, |_| false);
        assert_eq!(null.as_deref(), Ok(r#"{"tasks":[]}"#));
    }

    #[test]
    fn a_list_of_another_form_is_an_error() {
        for (list, error) in [
            ("", ListError::Form),
            ("null", ListError::Form),
            ("[]", ListError::Form),
            (r#"{"tasks":[]}{}"#, ListError::Form),
            (r#"{"tasks":[],"\ud800":1}"#, ListError::Form),
            ("{}", ListError::Tasks),
            (r#"{"task":[]}"#, ListError::Tasks),
            (r#"{"x":{"tasks":[]}}"#, ListError::Tasks),
            (r#"{"tasks":null}"#, ListError::Tasks),
            (r#"{"tasks":"[]"}"#, ListError::Tasks),
            (r#"{"tasks":{"taskId":"a"}}"#, ListError::Tasks),
            (r#"{"tasks":[],"nextCursor":7}"#, ListError::Cursor),
            (r#"{"tasks":[],"nextCursor":"\ud800"}"#, ListError::Cursor),
            (r#"{"nextCursor":["x"],"tasks":[]}"#, ListError::Cursor),
            (r#"{"tasks":[],"tasks":[]}"#, ListError::Twice),
            (r#"{"tasks":[],"task\u0073":[]}"#, ListError::Twice),
            (r#"{"x":1,"tasks":[],"\u0078":1}"#, ListError::Twice),
        ] {
            assert_eq!(own(list, |_| true), Err(error), "{list}");
        }
        let not_text = [&br#"{"tasks":[],"x":""#[..], &[0xed, 0xa0, 0x80], br#""}"#].concat();
        assert_eq!(
            own_list(&not_text, |_| true, no_cursor),
            Err(ListError::Form)
        );
    }

    #[test]
    fn a_text_of_128_levels_is_read_and_a_hostile_depth_is_refused() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let task = |levels| {
            format!(
                r#"{{"taskId":"a","status":"failed","x":{}}}"#,
                nested(levels)
            )
        };
        assert_eq!(status(task(127).as_bytes()), Some(Status::Failed));
        let result = format!(r#"{{"task":{}}}"#, task(126));
        assert_eq!(created(result.as_bytes()), made("a", Some(Status::Failed)));
        let list = format!(r#"{{"x":{},"tasks":[{}]}}"#, nested(127), task(125));
        let shown = format!(r#"{{"tasks":[{}]}}"#, task(125));
        assert_eq!(own(&list, |_| true), Ok(shown));

        let deep = 100_000;
        assert_eq!(status(task(deep).as_bytes()), None);
        let result = format!(r#"{{"task":{}}}"#, task(deep));
        assert_eq!(created(result.as_bytes()), None);
        let list = format!(r#"{{"tasks":[{}]}}"#, task(deep));
        assert_eq!(own(&list, |_| true).as_deref(), Ok(r#"{"tasks":[]}"#));
    }

    #[test]
    fn names_without_number_are_told_apart() {
        let many: String = (0..200_000).map(|name| format!(r#","{name}":0"#)).collect();
        let task = format!(r#"{{"taskId":"a","status":"working"{many}}}"#);
        assert_eq!(status(task.as_bytes()), Some(Status::Working));
        let list = format!(r#"{{"tasks":[{task}]{many}}}"#);
        let shown = format!(r#"{{"tasks":[{task}]}}"#);
        assert_eq!(own(&list, |_| true), Ok(shown));
        let twice = format!(r#"{},"0":0}}"#, &list[..list.len() - 1]);
        assert_eq!(own(&twice, |_| true), Err(ListError::Twice));
    }

    /// An element of a list as a server may write it, and its id if it has one.
    #[derive(Clone, Debug)]
    struct Element {
        text: String,
        id: Option<String>,
    }

    /// `text` as a JSON string, in one of the ways to spell each character.
    fn spelled(text: &str, ways: &[bool]) -> String {
        let mut out = String::from("\"");
        for (at, letter) in text.chars().enumerate() {
            let must = letter < ' ' || letter == '"' || letter == '\\';
            if must || ways.get(at % ways.len().max(1)) == Some(&true) {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            } else {
                out.push(letter);
            }
        }
        out.push('"');
        out
    }

    fn word() -> impl Strategy<Value = String> {
        (any::<String>(), any::<Vec<bool>>()).prop_map(|(text, ways)| spelled(&text, &ways))
    }

    fn blank() -> impl Strategy<Value = &'static str> {
        prop_oneof![4 => Just(""), 1 => Just(" "), 1 => Just("\r\n\t"), 1 => Just("\n")]
    }

    /// A JSON value; names may appear twice in objects deep in it.
    fn value() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("null".to_owned()),
            Just("true".to_owned()),
            any::<i64>().prop_map(|number| number.to_string()),
            (-999_i32..999, 0_u32..99, -20_i32..20).prop_map(|(n, f, e)| format!("{n}.{f}E{e}")),
            Just(r#"{"taskId":"0","taskId":"1"}"#.to_owned()),
            word(),
        ];
        leaf.prop_recursive(4, 24, 6, |inner| {
            prop_oneof![
                (prop::collection::vec(inner.clone(), 0..6), blank()).prop_map(
                    |(values, blank)| format!(
                        "[{blank}{}{blank}]",
                        values.join(&format!(",{blank}"))
                    )
                ),
                (prop::collection::vec((word(), inner), 0..6), blank()).prop_map(
                    |(members, blank)| {
                        let members = members.iter().map(|(key, value)| format!("{key}:{value}"));
                        let members = members.collect::<Vec<_>>().join(",");
                        format!("{{{blank}{members}{blank}}}")
                    }
                ),
            ]
        })
    }

    /// What is wrong with an element, if anything is.
    #[derive(Clone, Debug)]
    enum Flaw {
        None,
        NoId,
        OtherId(String),
        TwoIds(String),
        Twice,
        Refused(&'static str),
    }

    fn flaw() -> impl Strategy<Value = Flaw> {
        prop_oneof![
            6 => Just(Flaw::None),
            1 => Just(Flaw::NoId),
            1 => prop_oneof![Just("7"), Just("null"), Just(r#"["1"]"#), Just(r#""""#)]
                .prop_map(|id| Flaw::OtherId(id.to_owned())),
            1 => word().prop_map(Flaw::TwoIds),
            1 => Just(Flaw::Twice),
            1 => prop::sample::select(&REFUSED[..]).prop_map(Flaw::Refused),
        ]
    }

    fn element() -> impl Strategy<Value = Element> {
        let id = prop_oneof![4 => "[0-4]", 1 => any::<String>()]
            .prop_filter("an id is not empty", |id| !id.is_empty())
            .prop_filter("an id is short", |id| id.len() <= TASK_ID_BYTES_MAX);
        let ways = any::<Vec<bool>>();
        let others = prop::collection::vec(value(), 0..4);
        (id, ways, others, any::<Index>(), blank(), flaw()).prop_map(
            |(id, ways, others, place, blank, flaw)| {
                let mut members = Vec::new();
                for (number, other) in others.iter().enumerate() {
                    members.push(format!(r#""x{number}":{blank}{other}"#));
                }
                let key = spelled("taskId", &ways);
                let place = place.index(members.len() + 1);
                match &flaw {
                    Flaw::NoId => {}
                    Flaw::OtherId(other) => members.insert(place, format!("{key}:{other}")),
                    _ => members.insert(place, format!("{key}{blank}:{}", spelled(&id, &ways))),
                }
                match &flaw {
                    Flaw::TwoIds(other) => members.push(format!(r#""taskId":{other}"#)),
                    Flaw::Twice => members.extend([r#""y":1"#, r#""\u0079":1"#].map(String::from)),
                    Flaw::Refused(value) => members.push(format!(r#""y":{value}"#)),
                    _ => {}
                }
                let text = format!("{{{blank}{}{blank}}}", members.join(&format!("{blank},")));
                let id = matches!(flaw, Flaw::None).then_some(id);
                Element { text, id }
            },
        )
    }

    /// A result of `tasks/list` with other members around those that are shown,
    /// and what is needed to tell what is shown of it.
    #[derive(Clone, Debug)]
    struct List {
        text: String,
        keys: [String; 2],
        elements: Vec<Element>,
        cursor: Option<String>,
        is_cursor_first: bool,
    }

    /// Three names that are neither `tasks` nor `nextCursor`, none of them twice.
    fn other_names() -> impl Strategy<Value = [String; 3]> {
        let name = || {
            prop_oneof![
                1 => prop::sample::select(&OTHER_NAMES[..]).prop_map(str::to_owned),
                1 => any::<String>(),
            ]
            .prop_filter("a shown name", |name| {
                name != "tasks" && name != "nextCursor"
            })
        };
        [name(), name(), name()].prop_filter("a name twice", |[a, b, c]| a != b && b != c && a != c)
    }

    fn list() -> impl Strategy<Value = List> {
        (
            prop::collection::vec(element(), 0..8),
            (prop::option::of(any::<String>()), any::<bool>()),
            (other_names(), [value(), value(), value()]),
            any::<Vec<bool>>(),
            blank(),
        )
            .prop_map(
                |(elements, (cursor, is_cursor_first), (names, values), ways, blank)| {
                    let keys = ["tasks", "nextCursor"].map(|name| spelled(name, &ways));
                    let texts: Vec<&str> = elements.iter().map(|it| it.text.as_str()).collect();
                    let texts = texts.join(&format!("{blank},{blank}"));
                    let [tasks, next] = &keys;
                    let mut members: Vec<String> = names
                        .iter()
                        .zip(&values)
                        .map(|(name, value)| format!("{}{blank}:{value}", spelled(name, &ways)))
                        .collect();
                    members.insert(1, format!("{tasks}:{blank}[{texts}{blank}]"));
                    if let Some(cursor) = &cursor {
                        let cursor = format!("{next}{blank}:{blank}{}", spelled(cursor, &ways));
                        members.insert(if is_cursor_first { 1 } else { 3 }, cursor);
                    }
                    let members = members.join(&format!("{blank},{blank}"));
                    List {
                        text: format!("{blank}{{{members}}}{blank}"),
                        keys,
                        elements,
                        cursor,
                        is_cursor_first,
                    }
                },
            )
    }

    fn is_even(id: &str) -> bool {
        id.bytes().fold(0_u8, u8::wrapping_add) % 2 == 0
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn a_shown_list_is_the_servers_without_what_is_not_own(list in list()) {
            let mut asked = None;
            let shown = own_list(list.text.as_bytes(), is_even, |cursor| {
                asked = Some(cursor.to_owned());
                "7:3".to_owned()
            });
            let kept = list.elements.iter().filter(|it| it.id.as_deref().is_some_and(is_even));
            let kept: Vec<&str> = kept.map(|it| it.text.as_str()).collect();
            let [tasks, next] = &list.keys;
            let tasks = format!("{tasks}:[{}]", kept.join(","));
            let expected = match (&list.cursor, list.is_cursor_first) {
                (None, _) => format!("{{{tasks}}}"),
                (Some(_), true) => format!(r#"{{{next}:"7:3",{tasks}}}"#),
                (Some(_), false) => format!(r#"{{{tasks},{next}:"7:3"}}"#),
            };
            let expected = expected.replace(['\r', '\n'], " ");
            let shown = shown.map(|bytes| String::from_utf8(bytes).expect("a list is text"));
            prop_assert_eq!(shown, Ok(expected));
            prop_assert_eq!(asked, list.cursor);
        }

        #[test]
        fn a_created_task_is_the_one_that_was_written(element in element(), other in value()) {
            let result = format!(r#"{{"x":{other},"task":{}}}"#, element.text);
            let task_id = created(result.as_bytes()).map(|task| task.task_id);
            prop_assert_eq!(task_id, element.id);
        }

        #[test]
        fn of_a_changed_list_nothing_foreign_is_shown(
            list in list(),
            changes in prop::collection::vec((any::<Index>(), 0..3, any::<u8>()), 1..6),
        ) {
            let mut bytes = list.text.into_bytes();
            for (place, kind, byte) in changes {
                let place = place.index(bytes.len());
                match kind {
                    0 => bytes[place] = byte,
                    1 => bytes.insert(place, br#""\,:{}[]"#[usize::from(byte) % 8]),
                    _ if bytes.len() > 1 => drop(bytes.remove(place)),
                    _ => {}
                }
            }
            created(&bytes);
            status(&bytes);
            if let Ok(shown) = own_list(&bytes, is_even, |_| String::new()) {
                prop_assert!(!shown.contains(&b'\n') && !shown.contains(&b'\r'));
                // Read by another parser than the one that chose.
                if let Ok(shown) = serde_json::from_slice::<serde_json::Value>(&shown) {
                    let mut names = shown.as_object().expect("a list is an object").keys();
                    prop_assert!(names.all(|name| name == "tasks" || name == "nextCursor"));
                    for task in shown["tasks"].as_array().expect("a list has tasks") {
                        prop_assert!(task["taskId"].as_str().is_some_and(is_even));
                    }
                }
            }
        }

        #[test]
        fn no_bytes_are_too_bad_to_be_read(bytes in any::<Vec<u8>>()) {
            for text in [
                bytes.clone(),
                [&br#"{"task":{"taskId":"a","x":"#[..], &bytes, b"}}"].concat(),
                [&br#"{"tasks":[{"taskId":""#[..], &bytes, br#""}]}"#].concat(),
            ] {
                created(&text);
                status(&text);
                let _ = own_list(&text, |_| true, |_| String::new());
            }
        }
    }
}
