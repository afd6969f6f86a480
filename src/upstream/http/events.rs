//! Server-sent events as a client reads them, without I/O: the steps of "interpreting an event
//! stream" in the WHATWG's HTML standard, over bytes. That they are UTF-8 is for whoever reads the
//! data to check: no field name and no line end can hide in what is not.
//!
//! An event that is whole in what was read is given out where it lies. What the end of a read has
//! cut through is kept, and of that only what matters: the data, an id, and the line that has not
//! been seen to its end.
#![forbid(unsafe_code)]

use std::mem;

use memchr::{memchr, memchr2};

/// The longest value of `id` and of `retry` in bytes; a longer one counts as not written.
pub const VALUE_BYTES_MAX: usize = 4 * 1024;
/// What is kept of a line that is not data: enough to see that its value is too long.
const LINE_BYTES_MAX: usize = "retry: ".len() + VALUE_BYTES_MAX + 1;
/// A buffer of up to this capacity is kept for the next event. There may be thousands of quiet
/// streams.
const KEPT_BYTES_MAX: usize = 64 * 1024;
const BOM: &[u8] = b"\xef\xbb\xbf";

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// The lines of data, joined by LF. Empty if the only line is: servers send such an event for
    /// its id.
    pub data: &'a [u8],
    /// The id that the event names, which is then the last event id of the stream. Empty: it has
    /// none any more.
    pub id: Option<&'a [u8]>,
    /// The type of the event is `message`, said or not.
    pub is_message: bool,
}

/// What a stream says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    Event(Event<'a>),
    /// The last event id, named by what is no event because it has no line of data.
    Id(&'a [u8]),
    /// How long to wait before a reconnect, milliseconds.
    Retry(u64),
}

/// Data and id of an event are together over the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event is over the limit")]
pub struct TooLarge;

/// Reads one stream.
#[derive(Debug)]
pub struct EventReader {
    bytes_max: usize,
    /// Bytes of a BOM that were seen at the start of the stream; `None`: the start is behind us.
    bom: Option<usize>,
    /// The last read ended with a CR: an LF at the start of the next one belongs to it.
    is_after_cr: bool,
    /// The last read ended inside of a line of data, whose begin is in `data`.
    is_in_data: bool,
    /// The last read ended inside of another line, or of one that is too short to tell: its begin.
    line: Vec<u8>,
    /// What is kept of the event under construction.
    data: Vec<u8>,
    has_data: bool,
    id: Vec<u8>,
    has_id: bool,
    is_message: bool,
    is_broken: bool,
}

/// What is known of the event under construction and lies in the bytes of this read.
#[derive(Default)]
struct Here<'a> {
    /// The first line of data, so far the only one.
    data: Option<&'a [u8]>,
    id: Option<&'a [u8]>,
}

#[derive(Clone, Copy)]
enum Field {
    Data,
    Event,
    Id,
    Retry,
}

impl EventReader {
    /// Bytes of the event under construction that are kept.
    pub fn held(&self) -> usize {
        self.data.len() + self.line.len() + self.id.len()
    }

    /// `bytes_max`: the most that an event's data and id may have together.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            bom: Some(0),
            is_after_cr: false,
            is_in_data: false,
            line: Vec::new(),
            data: Vec::new(),
            has_data: false,
            id: Vec::new(),
            has_id: false,
            is_message: true,
            is_broken: false,
        }
    }

    /// Reads on, and says what that completes. An event that the end of the stream cuts off is
    /// never said.
    ///
    /// # Errors
    /// As soon as an event goes over the limit, and on each call after that, which then says
    /// nothing.
    pub fn feed(&mut self, bytes: &[u8], on: impl FnMut(Item<'_>)) -> Result<(), TooLarge> {
        if self.is_broken {
            return Err(TooLarge);
        }
        let read = self.read(bytes, on);
        self.is_broken = read.is_err();
        read
    }

    fn read(&mut self, bytes: &[u8], mut on: impl FnMut(Item<'_>)) -> Result<(), TooLarge> {
        let mut rest = self.after_bom(bytes);
        if self.is_after_cr && !rest.is_empty() {
            self.is_after_cr = false;
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        let mut here = Here::default();
        while let Some(end) = memchr2(b'\r', b'\n', rest) {
            let line = &rest[..end];
            let is_cr = rest[end] == b'\r';
            rest = &rest[end + 1..];
            if is_cr {
                self.is_after_cr = rest.is_empty();
                rest = rest.strip_prefix(b"\n").unwrap_or(rest);
            }
            if self.is_in_data || !self.line.is_empty() {
                self.end_line(line, &mut on)?;
            } else if line.is_empty() {
                self.dispatch(mem::take(&mut here), &mut on);
            } else {
                self.read_line(line, &mut here, &mut on)?;
            }
        }
        self.keep(here);
        self.keep_line(rest)
    }

    /// The bytes without a BOM at the start of the stream.
    fn after_bom<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let Some(seen) = self.bom else { return bytes };
        let missing = &BOM[seen..];
        let pairs = bytes.iter().zip(missing);
        let equal = pairs.take_while(|(byte, wanted)| byte == wanted).count();
        if equal == missing.len() {
            self.bom = None;
            &bytes[equal..]
        } else if equal == bytes.len() {
            self.bom = Some(seen + equal);
            &[]
        } else {
            // It was the begin of a line.
            self.bom = None;
            self.line.extend_from_slice(&BOM[..seen]);
            bytes
        }
    }

    /// Reads a whole line that is not empty.
    fn read_line<'a>(
        &mut self,
        line: &'a [u8],
        here: &mut Here<'a>,
        on: &mut impl FnMut(Item<'_>),
    ) -> Result<(), TooLarge> {
        let Some((field, value)) = field(line) else {
            return Ok(());
        };
        let data_bytes = here.data.map_or(self.data.len(), <[u8]>::len);
        match field {
            Field::Data => {
                let has_data = self.has_data || here.data.is_some();
                let id_bytes = here.id.map_or(self.id.len(), <[u8]>::len);
                self.check(data_bytes + usize::from(has_data) + value.len() + id_bytes)?;
                if has_data {
                    if let Some(first) = here.data.take() {
                        self.keep_data(first);
                    }
                    self.data.push(b'\n');
                    self.data.extend_from_slice(value);
                } else {
                    here.data = Some(value);
                }
            }
            Field::Id => {
                if value.len() <= VALUE_BYTES_MAX && memchr(0, value).is_none() {
                    self.check(data_bytes + value.len())?;
                    here.id = Some(value);
                }
            }
            Field::Event => self.is_message = matches!(value, b"" | b"message"),
            Field::Retry => {
                if let Some(ms) = number(value) {
                    on(Item::Retry(ms));
                }
            }
        }
        Ok(())
    }

    /// An empty line: says what has been collected, and begins anew.
    fn dispatch(&mut self, here: Here<'_>, on: &mut impl FnMut(Item<'_>)) {
        let data = here.data.or(self.has_data.then_some(&self.data));
        let id = here.id.or(self.has_id.then_some(&self.id));
        match (data, id) {
            (Some(data), id) => on(Item::Event(Event {
                data,
                id,
                is_message: self.is_message,
            })),
            (None, Some(id)) => on(Item::Id(id)),
            (None, None) => {}
        }
        self.is_message = true;
        self.has_data = false;
        self.has_id = false;
        self.id.clear();
        self.data.clear();
        if self.data.capacity() > KEPT_BYTES_MAX {
            self.data = Vec::new();
        }
    }

    fn check(&self, bytes: usize) -> Result<(), TooLarge> {
        if bytes > self.bytes_max {
            return Err(TooLarge);
        }
        Ok(())
    }

    /// Keeps what lies in the bytes of a read that is over.
    fn keep(&mut self, here: Here<'_>) {
        if let Some(data) = here.data {
            self.keep_data(data);
        }
        if let Some(id) = here.id {
            self.id.clear();
            self.id.extend_from_slice(id);
            self.has_id = true;
        }
    }

    fn keep_data(&mut self, data: &[u8]) {
        self.data.extend_from_slice(data);
        self.has_data = true;
    }

    /// Keeps a piece of a line whose end has not been read. Data goes where it will be said from.
    fn keep_line(&mut self, piece: &[u8]) -> Result<(), TooLarge> {
        const BEGIN: usize = "data:".len() + 1;
        if self.is_in_data {
            return self.add_data(piece);
        }
        let missing = BEGIN.saturating_sub(self.line.len()).min(piece.len());
        let (begin, rest) = piece.split_at(missing);
        self.line.extend_from_slice(begin);
        if let [b'd', b'a', b't', b'a', b':', first] = self.line[..] {
            self.line.clear();
            self.is_in_data = true;
            if self.has_data {
                self.add_data(b"\n")?;
            }
            self.has_data = true;
            if first != b' ' {
                self.add_data(&[first])?;
            }
            return self.add_data(rest);
        }
        let room = LINE_BYTES_MAX.saturating_sub(self.line.len());
        self.line.extend_from_slice(&rest[..rest.len().min(room)]);
        Ok(())
    }

    fn add_data(&mut self, piece: &[u8]) -> Result<(), TooLarge> {
        self.check(self.data.len() + piece.len() + self.id.len())?;
        self.data.extend_from_slice(piece);
        Ok(())
    }

    /// The last piece of a line that began in an earlier read.
    fn end_line(&mut self, piece: &[u8], on: &mut impl FnMut(Item<'_>)) -> Result<(), TooLarge> {
        self.keep_line(piece)?;
        if mem::take(&mut self.is_in_data) {
            return Ok(());
        }
        let mut line = mem::take(&mut self.line);
        let mut here = Here::default();
        self.read_line(&line, &mut here, on)?;
        self.keep(here);
        line.clear();
        self.line = line;
        Ok(())
    }
}

/// The field and its value, if it is one that matters. A line without a colon is a field without a
/// value, and one blank behind the colon is not of the value.
fn field(line: &[u8]) -> Option<(Field, &[u8])> {
    let (field, rest) = match line {
        [b'd', b'a', b't', b'a', rest @ ..] => (Field::Data, rest),
        [b'e', b'v', b'e', b'n', b't', rest @ ..] => (Field::Event, rest),
        [b'i', b'd', rest @ ..] => (Field::Id, rest),
        [b'r', b'e', b't', b'r', b'y', rest @ ..] => (Field::Retry, rest),
        _ => return None,
    };
    match rest {
        [] => Some((field, rest)),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some((field, value)),
        _ => None,
    }
}

/// Digits and nothing else. A number that has no room is the largest one: nobody waits that long
/// either.
fn number(value: &[u8]) -> Option<u64> {
    if !(1..=VALUE_BYTES_MAX).contains(&value.len()) || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(value.iter().fold(0u64, |number, byte| {
        let digit = u64::from(byte - b'0');
        number.saturating_mul(10).saturating_add(digit)
    }))
}

#[cfg(test)]
#[allow(unreachable_pub)]
#[path = "../../../tests/fuzz/src/reference/events.rs"]
mod reference;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::reference::{Outcome, Said};
    use super::*;

    const PLENTY: usize = 1 << 20;

    fn said(item: Item<'_>) -> Said {
        match item {
            Item::Event(event) => Said::Event {
                data: event.data.to_vec(),
                id: event.id.map(<[u8]>::to_vec),
                is_message: event.is_message,
            },
            Item::Id(id) => Said::Id(id.to_vec()),
            Item::Retry(ms) => Said::Retry(ms),
        }
    }

    fn fed<'a>(bytes_max: usize, pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
        let mut reader = EventReader::new(bytes_max);
        let mut all = Vec::new();
        let mut is_too_large = false;
        for piece in pieces {
            is_too_large = reader.feed(piece, |item| all.push(said(item))).is_err();
            if is_too_large {
                let more = b"\n\nretry: 1\nid: 1\ndata\n\n";
                let again = reader.feed(more, |item| panic!("{item:?} after the end"));
                assert_eq!(again, Err(TooLarge));
                break;
            }
            let nothing = reader.feed(b"", |item| panic!("{item:?} of nothing"));
            assert_eq!(nothing, Ok(()));
            assert!(reader.data.len() + reader.id.len() <= bytes_max);
            assert!(reader.line.len() <= LINE_BYTES_MAX && reader.id.len() <= VALUE_BYTES_MAX);
        }
        let last_id = all.iter().rev().find_map(|said| match said {
            Said::Event { id, .. } => id.clone(),
            Said::Id(id) => Some(id.clone()),
            Said::Retry(_) => None,
        });
        Outcome {
            said: all,
            is_too_large,
            last_id: last_id.unwrap_or_default(),
        }
    }

    /// At once, byte by byte, and cut at each place: the same each time, and what the reference
    /// says.
    #[track_caller]
    fn outcome(bytes_max: usize, stream: &[u8]) -> Outcome {
        let whole = fed(bytes_max, [stream]);
        assert_eq!(fed(bytes_max, stream.chunks(1)), whole, "in bytes");
        if stream.len() < 400 {
            for cut in 0..=stream.len() {
                let (a, b) = stream.split_at(cut);
                assert_eq!(fed(bytes_max, [a, b]), whole, "cut at {cut}");
            }
        }
        assert_eq!(reference::events(stream, bytes_max), whole);
        whole
    }

    #[track_caller]
    fn items(stream: impl AsRef<[u8]>) -> Vec<Said> {
        let outcome = outcome(PLENTY, stream.as_ref());
        assert!(!outcome.is_too_large);
        outcome.said
    }

    /// A message without an id.
    fn message(data: &str) -> Said {
        event(data, None, true)
    }

    fn event(data: &str, id: Option<&str>, is_message: bool) -> Said {
        Said::Event {
            data: data.into(),
            id: id.map(Into::into),
            is_message,
        }
    }

    #[test]
    fn an_event_that_is_whole_in_a_read_is_given_where_it_lies() {
        let stream = b"event: message\nid: 7\ndata: {\"a\":1}\n\ndata: x\n\n";
        let mut seen = Vec::new();
        let mut reader = EventReader::new(PLENTY);
        reader
            .feed(stream, |item| {
                let Item::Event(event) = item else {
                    panic!("{item:?}")
                };
                seen.push(event.data.as_ptr().addr() - stream.as_ptr().addr());
                seen.extend(
                    event
                        .id
                        .map(|id| id.as_ptr().addr() - stream.as_ptr().addr()),
                );
            })
            .unwrap();
        assert_eq!(seen, [27, 19, 42]);
        let capacities = [&reader.data, &reader.id, &reader.line].map(Vec::capacity);
        assert_eq!(capacities, [0, 0, 0], "nothing was kept");
    }

    #[test]
    fn a_long_line_of_data_is_kept_once() {
        let mut reader = EventReader::new(PLENTY);
        let data = vec![b'x'; 100_000];
        reader.feed(b"data: ", |_| panic!("no event")).unwrap();
        for piece in data.chunks(1_000) {
            reader.feed(piece, |_| panic!("no event")).unwrap();
        }
        assert_eq!((reader.data.len(), reader.line.len()), (100_000, 0));
        let mut count = 0;
        reader
            .feed(b"\n\n", |item| {
                let Item::Event(event) = item else {
                    panic!("{item:?}")
                };
                assert_eq!(event.data, data);
                count += 1;
            })
            .unwrap();
        assert_eq!(count, 1);
        assert_eq!(reader.data.capacity(), 0, "a large buffer is given back");
    }

    #[test]
    fn lines_end_in_lf_cr_or_both() {
        let two = [message("a\nb"), message("c")];
        assert_eq!(items("data: a\ndata: b\n\ndata: c\n\n"), two);
        assert_eq!(items("data: a\rdata: b\r\rdata: c\r\r"), two);
        assert_eq!(items("data: a\r\ndata: b\r\n\r\ndata: c\r\n\r\n"), two);
        assert_eq!(items("data: a\r\ndata: b\r\r\ndata: c\n\r"), two);
        assert_eq!(items("\n\r\r\n\n"), []);
    }

    #[test]
    fn an_event_that_ends_in_cr_does_not_wait_for_a_lf() {
        let mut reader = EventReader::new(PLENTY);
        let mut all = Vec::new();
        for piece in ["data: a\r", "\r", "", "\ndata: b\r\n\r", "\n", "\n"] {
            reader
                .feed(piece.as_bytes(), |item| all.push((piece, said(item))))
                .unwrap();
        }
        let b = ("\ndata: b\r\n\r", message("b"));
        assert_eq!(all, [("\r", message("a")), b]);
    }

    #[test]
    fn a_bom_is_dropped_once_at_the_start() {
        let bom = "\u{feff}";
        assert_eq!(items(format!("{bom}data: a\n\n")), [message("a")]);
        assert_eq!(items(format!("{bom}{bom}data: a\n\n")), []);
        assert_eq!(items(format!("{bom}\n{bom}data: a\n\n")), []);
        assert_eq!(items(format!("data: {bom}a\n\n")), [message("\u{feff}a")]);
        assert_eq!(items(b"\xef\xbbdata: a\ndata: b\n\n"), [message("b")]);
        assert_eq!(items(b"\xefdata: a\n\n"), []);
        assert_eq!(items(b"\xef\xbb\n\ndata: a\n\n"), [message("a")]);
    }

    #[test]
    fn comments_and_fields_that_are_not_known_are_skipped() {
        let stream = ": hi\n:\ndatax: 1\nDATA: 2\ndat\n data: 3\nfoo: bar\nretr: 4\nidx: 5\neven: t\n\
                      data: a\n\n";
        assert_eq!(items(stream), [message("a")]);
        let long = "x".repeat(3 * VALUE_BYTES_MAX);
        let lines = format!(":{long}\ndata: a\ndatax{long}\nfoo: {long}\n\n");
        assert_eq!(outcome(1, lines.as_bytes()).said, [message("a")]);
    }

    #[test]
    fn a_field_has_one_blank_behind_its_colon_or_no_colon_at_all() {
        assert_eq!(items("data:a\n\n"), [message("a")]);
        assert_eq!(items("data:  a \n\n"), [message(" a ")]);
        assert_eq!(items("data:\ta\n\n"), [message("\ta")]);
        assert_eq!(items("data::a\n\n"), [message(":a")]);
        assert_eq!(items("data\n\n"), [message("")]);
        assert_eq!(items("data:\n\n"), [message("")]);
        assert_eq!(items("data: \n\n"), [message("")]);
        assert_eq!(items("data\ndata\n\n"), [message("\n")]);
        assert_eq!(items("data \n\n"), []);
        assert_eq!(items("id:a\ndata\n\n"), [event("", Some("a"), true)]);
    }

    #[test]
    fn lines_of_data_are_joined_wherever_they_are_cut() {
        let four = [message("{\n\n  \"a\": 1\n}")];
        assert_eq!(items("data: {\ndata:\ndata:   \"a\": 1\ndata: }\n\n"), four);
        assert_eq!(items("data:\ndata: a\n\n"), [message("\na")]);
    }

    #[test]
    fn an_event_without_data_is_none_but_its_id_counts() {
        assert_eq!(items("event: x\n\n"), []);
        assert_eq!(items("id: 1\n\n"), [Said::Id(b"1".to_vec())]);
        // Its type does not last.
        let stream = "event: x\nid: 1\n\ndata: a\n\n";
        assert_eq!(items(stream), [Said::Id(b"1".to_vec()), message("a")]);
        let stream = "event: x\ndata: a\n\ndata: b\n\n";
        assert_eq!(items(stream), [event("a", None, false), message("b")]);
    }

    #[test]
    fn what_the_end_of_the_stream_cuts_off_is_not_said() {
        for stream in [
            "data: a",
            "data: a\n",
            "data: a\nid: 1",
            "id: 1\n",
            "data: a\nretry: 5",
        ] {
            assert_eq!(items(stream), []);
        }
        let stream = "id: 1\ndata: a\n\nid: 2\ndata: b\n";
        assert_eq!(outcome(PLENTY, stream.as_bytes()).last_id, b"1");
    }

    #[test]
    fn only_the_type_message_is_one() {
        for (kind, is_message) in [
            ("message", true),
            ("", true),
            ("Message", false),
            ("messages", false),
            ("messag", false),
            (" message", false),
            ("ping", false),
            (&"x".repeat(2 * VALUE_BYTES_MAX), false),
        ] {
            let stream = format!("event: {kind}\ndata: a\n\n");
            assert_eq!(items(stream), [event("a", None, is_message)], "{kind}");
        }
        assert_eq!(items("event: x\nevent: message\ndata\n\n"), [message("")]);
        assert_eq!(items("event: x\nevent\ndata\n\n"), [message("")]);
        assert_eq!(
            items("event: message\nevent: x\ndata\n\n"),
            [event("", None, false)]
        );
    }

    #[test]
    fn the_last_id_counts_unless_it_has_a_nul_or_is_too_long() {
        assert_eq!(
            items("id: 1\nid: 2\ndata: a\n\n"),
            [event("a", Some("2"), true)]
        );
        assert_eq!(
            items("data: a\nid: 1\ndata: b\n\n"),
            [event("a\nb", Some("1"), true)]
        );
        assert_eq!(
            items("id: 1\nid: a\0b\ndata: a\n\n"),
            [event("a", Some("1"), true)]
        );
        assert_eq!(items("id: a\0\n\n"), []);
        assert_eq!(items("id\ndata: a\n\n"), [event("a", Some(""), true)]);
        assert_eq!(
            items("id: 1\ndata: a\n\ndata: b\n\n"),
            [event("a", Some("1"), true), message("b")]
        );
        let longest = "x".repeat(VALUE_BYTES_MAX);
        let last =
            |separator: &str, id: &str| items(format!("id: 1\nid:{separator}{id}\ndata: a\n\n"));
        for separator in ["", " "] {
            assert_eq!(
                last(separator, &longest),
                [event("a", Some(&longest), true)]
            );
            assert_eq!(
                last(separator, &format!("{longest}x")),
                [event("a", Some("1"), true)]
            );
        }
    }

    #[test]
    fn a_retry_is_digits() {
        assert_eq!(items("retry: 0\n"), [Said::Retry(0)]);
        assert_eq!(items("retry:0042\r"), [Said::Retry(42)]);
        let two = [Said::Retry(7), Said::Retry(8), message("a")];
        assert_eq!(items("retry: 7\ndata: a\nretry: 8\n\n"), two);
        let max = [Said::Retry(u64::MAX)];
        assert_eq!(items("retry: 18446744073709551615\n"), max);
        assert_eq!(items("retry: 99999999999999999999999\n"), max);
        for bad in ["", "-1", "+1", "1.5", "1 ", "x", "1s", "\u{b2}"] {
            assert_eq!(items(format!("retry: {bad}\n\n")), [], "{bad}");
        }
        assert_eq!(items("retry\n"), []);
        let longest = format!("{}5", "0".repeat(VALUE_BYTES_MAX - 1));
        assert_eq!(items(format!("retry: {longest}\n")), [Said::Retry(5)]);
        assert_eq!(items(format!("retry: 0{longest}\n")), []);
    }

    #[test]
    fn data_and_id_of_an_event_are_bounded_together() {
        #[track_caller]
        fn fits(bytes: usize, stream: &str) {
            assert!(!outcome(bytes, stream.as_bytes()).is_too_large, "{stream}");
            let over = outcome(bytes - 1, stream.as_bytes());
            assert!(over.is_too_large, "{stream}");
            assert_eq!(over.said, []);
        }
        fits(3, "data: abc\n\n");
        fits(3, "data:abc");
        fits(3, "data: a\ndata: b\n\n");
        fits(2, "data\ndata\ndata\n\n");
        fits(2, "data\ndata\ndata: ");
        fits(3, "id: a\ndata: bc\n\n");
        fits(3, "data: bc\nid: a\n\n");
        fits(3, "id: a\ndata: b\ndata:\n\n");
        fits(5, "id: abcde\nid: a\ndata: abc\n\n");
        // Each event anew.
        let stream = "id: a\ndata: bc\n\ndata: abc\n\nid: abc\n\n";
        assert!(!outcome(3, stream.as_bytes()).is_too_large);
        assert_eq!(
            outcome(0, b"event: long\n: long\ndata\n\nid\n\n")
                .said
                .len(),
            2
        );
        // What came before is said.
        let stream = "data: a\n\nretry: 5\ndata: abcd";
        let over = outcome(3, stream.as_bytes());
        assert_eq!((over.said.len(), over.is_too_large), (2, true));
    }

    #[test]
    fn bytes_that_are_not_utf_8_pass() {
        let stream = b"data: \xff\xc3\n\n";
        let data = b"\xff\xc3".to_vec();
        let event = Said::Event {
            data,
            id: None,
            is_message: true,
        };
        assert_eq!(items(stream), [event]);
    }

    /// Pieces of which streams are made.
    const PIECES: &[&[u8]] = &[
        b"data: {\"a\":1}\n\n",
        b"event: message\ndata: b\n\n",
        b"data:",
        b"data",
        b"event: ",
        b"message",
        b"id: 7\n",
        b"id",
        b"retry: 5",
        b": ",
        b":",
        b" ",
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"x",
        b"\0",
        b"\xef\xbb\xbf",
        b"\xef",
        b"\xbb",
        b"\xff",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn a_stream_says_what_the_reference_reads_however_it_is_cut(
            pieces in prop::collection::vec(prop::sample::select(PIECES), 0..24),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
            bytes_max in prop::sample::select(&[0, 1, 2, 7, 9, 20, PLENTY][..]),
        ) {
            let stream = pieces.concat();
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.sort_unstable();
            let starts = std::iter::once(0).chain(cuts.iter().copied());
            let ends = cuts.iter().copied().chain([stream.len()]);
            let parts: Vec<_> = starts.zip(ends).map(|(from, to)| &stream[from..to]).collect();
            let whole = fed(bytes_max, [&stream[..]]);
            prop_assert_eq!(fed(bytes_max, parts), whole.clone());
            prop_assert_eq!(fed(bytes_max, stream.chunks(1)), whole.clone());
            prop_assert_eq!(reference::events(&stream, bytes_max), whole);
        }
    }
}
