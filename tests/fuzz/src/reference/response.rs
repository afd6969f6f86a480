//! One HTTP response, from RFC 9112: the head by splitting text, the body by slicing.

const HEAD_BYTES_MAX: usize = 65_536;
const FIELDS_MAX: usize = 128;
const INTERIM_MAX: usize = 16;
const CHUNK_LINE_BYTES_MAX: usize = 4_096;
const TRAILER_BYTES_MAX: usize = 16_384;

/// What is known of a part of a response. Where it says `Refused` no byte that follows
/// changes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<T> {
    More,
    Refused,
    /// The part is whole, so many bytes long.
    Whole(T, usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Framing {
    None,
    Length(u64),
    Chunked,
    UntilClose,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Json,
    Events,
    Other,
    Missing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub status: u16,
    pub keeps_alive: bool,
    pub body: Framing,
    pub content: Content,
    pub is_encoded: bool,
    /// The id of a session; inside `None`, where it cannot be used.
    pub session: Option<Option<Vec<u8>>>,
}

/// The response's head with the interim ones before it.
pub fn head(bytes: &[u8]) -> Verdict<Head> {
    let seen = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
    let more = match seen.len() {
        HEAD_BYTES_MAX => Verdict::Refused,
        _ => Verdict::More,
    };
    let mut used = 0;
    for _ in 0..=INTERIM_MAX {
        let lines = match lines(&seen[used..]) {
            Verdict::Whole(lines, length) => {
                used += length;
                lines
            }
            Verdict::More => return more,
            Verdict::Refused => return Verdict::Refused,
        };
        match meaning(&lines) {
            None => return Verdict::Refused,
            Some(Meaning::Interim) => {}
            Some(Meaning::Final(head)) => return Verdict::Whole(head, used),
        }
    }
    Verdict::Refused
}

/// The lines before an empty one.
fn lines(bytes: &[u8]) -> Verdict<Vec<String>> {
    let begin = b"HTTP/1.";
    let first = &bytes[..bytes.len().min(begin.len())];
    if !begin.starts_with(first) {
        return Verdict::Refused;
    }
    // One byte a character, so that text can be handled as such.
    let text: String = bytes.iter().copied().map(char::from).collect();
    // What could be the begin of a CR LF is not judged yet.
    let judged = text.strip_suffix('\r').unwrap_or(&text);
    let mut lines = Vec::new();
    let mut used = 0;
    for line in judged.split_inclusive('\n') {
        let Some(line) = line.strip_suffix('\n') else {
            return match line.contains('\r') {
                true => Verdict::Refused,
                false => Verdict::More,
            };
        };
        used += line.chars().count() + 1;
        let Some(line) = line.strip_suffix('\r') else {
            return Verdict::Refused;
        };
        if line.is_empty() && !lines.is_empty() {
            return Verdict::Whole(lines, used);
        }
        if line.contains('\r') || line.starts_with([' ', '\t']) || lines.len() > FIELDS_MAX {
            return Verdict::Refused;
        }
        lines.push(line.to_owned());
    }
    Verdict::More
}

enum Meaning {
    Interim,
    Final(Head),
}

fn meaning(lines: &[String]) -> Option<Meaning> {
    let (first, fields) = lines.split_first()?;
    let mut parts = first.splitn(3, ' ');
    let is_new = match parts.next()? {
        "HTTP/1.1" => true,
        "HTTP/1.0" => false,
        _ => return None,
    };
    let status = parts.next()?;
    if status.len() != 3 || !is_digits(status) || !is_text(parts.next().unwrap_or("")) {
        return None;
    }
    let status: u16 = status.parse().ok()?;
    let mut named = Vec::new();
    for field in fields {
        let (name, value) = field.split_once(':')?;
        if !is_token(name) || !is_text(value) {
            return None;
        }
        named.push((name.to_ascii_lowercase(), trim(value)));
    }
    if status < 100 || status == 101 {
        return None;
    }
    if status < 200 {
        return Some(Meaning::Interim);
    }

    let values = |wanted: &str| -> Vec<&str> {
        let named = named.iter().filter(|(name, _)| name == wanted);
        named.map(|(_, value)| *value).collect()
    };
    let lengths = values("content-length");
    let codings = values("transfer-encoding");
    let framing = match (&lengths[..], &codings[..]) {
        ([], []) => Framing::UntilClose,
        ([], [coding]) if coding.eq_ignore_ascii_case("chunked") && is_new => Framing::Chunked,
        ([first, others @ ..], []) => {
            let length = decimal(first)?;
            if others.iter().any(|other| decimal(other) != Some(length)) {
                return None;
            }
            Framing::Length(length)
        }
        _ => return None,
    };
    let has_none = status == 204 || status == 304;
    let is_clear = !has_none || matches!(framing, Framing::UntilClose | Framing::Length(0));
    let body = if has_none { Framing::None } else { framing };
    let contents: Vec<_> = values("content-type").into_iter().map(content).collect();
    if contents.iter().any(|content| *content != contents[0]) {
        return None;
    }
    let encodings = values("content-encoding").join(",");
    let mut encodings = encodings.split(',').map(trim);
    let is_encoded = !encodings.all(|one| one.is_empty() || one.eq_ignore_ascii_case("identity"));
    let is_empty = matches!(body, Framing::None | Framing::Length(0));
    if is_encoded && status < 300 && !is_empty {
        return None;
    }
    let connection = values("connection").join(",");
    let closes = connection
        .split(',')
        .any(|one| trim(one).eq_ignore_ascii_case("close"));
    let ids = values("mcp-session-id");
    let session = ids.first().map(|id| {
        let is_one = ids.iter().all(|other| other == id);
        let is_visible = id.chars().all(|c| ('!'..='~').contains(&c));
        let is_sound = is_one && is_visible && !id.is_empty() && id.len() <= 1024;
        is_sound.then(|| id.as_bytes().to_vec())
    });
    Some(Meaning::Final(Head {
        status,
        keeps_alive: is_new && !closes && is_clear && body != Framing::UntilClose,
        body,
        content: contents.into_iter().next().unwrap_or(Content::Missing),
        is_encoded,
        session,
    }))
}

fn content(value: &str) -> Content {
    let essence = value.split(';').next().unwrap_or("");
    let essence = trim(essence).to_ascii_lowercase();
    let subtype = essence.strip_prefix("application/").unwrap_or("");
    if value.is_empty() {
        Content::Missing
    } else if essence == "text/event-stream" {
        Content::Events
    } else if subtype == "json" || subtype.strip_suffix("+json").is_some_and(is_token) {
        Content::Json
    } else {
        Content::Other
    }
}

/// Space and tab, which are all the white space of HTTP.
fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

fn decimal(text: &str) -> Option<u64> {
    is_digits(text).then(|| text.parse().ok()).flatten()
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_digit())
}

fn is_token(text: &str) -> bool {
    let is_mark = |c: char| "!#$%&'*+-.^_`|~".contains(c);
    !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || is_mark(c))
}

fn is_text(text: &str) -> bool {
    text.chars().all(|c| c == '\t' || !c.is_ascii_control())
}

/// The body that begins with the first byte: what of it is there, and what is known of
/// its end.
pub fn body(framing: &Framing, bytes: &[u8]) -> (Vec<u8>, Verdict<()>) {
    match framing {
        Framing::None => (Vec::new(), Verdict::Whole((), 0)),
        Framing::UntilClose => (bytes.to_vec(), Verdict::More),
        Framing::Length(length) => match usize::try_from(*length) {
            Ok(length) if length <= bytes.len() => {
                (bytes[..length].to_vec(), Verdict::Whole((), length))
            }
            _ => (bytes.to_vec(), Verdict::More),
        },
        Framing::Chunked => {
            let mut data = Vec::new();
            let verdict = match chunks(bytes, &mut data) {
                Ok(rest) => Verdict::Whole((), bytes.len() - rest.len()),
                Err(Stop::More) => Verdict::More,
                Err(Stop::Refused) => Verdict::Refused,
            };
            (data, verdict)
        }
    }
}

enum Stop {
    More,
    Refused,
}

fn chunks<'a>(mut rest: &'a [u8], data: &mut Vec<u8>) -> Result<&'a [u8], Stop> {
    loop {
        let line;
        (line, rest) = text_line(rest, CHUNK_LINE_BYTES_MAX, is_size_line)?;
        let (digits, _) = line.split_once(';').unwrap_or((&line, ""));
        let size = u64::from_str_radix(digits, 16).map_err(|_| Stop::Refused)?;
        if size == 0 {
            break;
        }
        let here = usize::try_from(size).map_or(rest.len(), |size| size.min(rest.len()));
        data.extend_from_slice(&rest[..here]);
        rest = &rest[here..];
        if (here as u64) < size {
            return Err(Stop::More);
        }
        rest = match rest {
            [b'\r', b'\n', rest @ ..] => rest,
            [] | [b'\r'] => return Err(Stop::More),
            _ => return Err(Stop::Refused),
        };
    }
    let mut room = TRAILER_BYTES_MAX;
    loop {
        let before = rest.len();
        let line;
        (line, rest) = text_line(rest, room, is_trailer)?;
        room -= before - rest.len();
        if line.is_empty() {
            return Ok(rest);
        }
    }
}

/// A line without its CR LF, and what follows it. `is_right` judges the line as far as
/// it is there, and is told whether that is all of it.
fn text_line(
    bytes: &[u8],
    bytes_max: usize,
    is_right: impl Fn(&str, bool) -> bool,
) -> Result<(String, &[u8]), Stop> {
    let end = bytes.iter().position(|byte| *byte == b'\r');
    let (line, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
    let text: String = line.iter().copied().map(char::from).collect();
    let is_long = line.len() + rest.len().min(2) > bytes_max;
    if is_long || !is_right(&text, end.is_some()) {
        return Err(Stop::Refused);
    }
    match rest {
        [b'\r', b'\n', rest @ ..] => Ok((text, rest)),
        [] | [b'\r'] => Err(Stop::More),
        _ => Err(Stop::Refused),
    }
}

fn is_size_line(line: &str, is_whole: bool) -> bool {
    let (digits, extension) = match line.split_once(';') {
        Some((digits, extension)) => (digits, Some(extension)),
        None => (line, None),
    };
    let has_digits = !digits.is_empty() || (extension.is_none() && !is_whole);
    has_digits
        && digits.len() <= 16
        && digits.chars().all(|c| c.is_ascii_hexdigit())
        && is_text(extension.unwrap_or(""))
}

fn is_trailer(line: &str, _: bool) -> bool {
    is_text(line) && !line.starts_with([' ', '\t'])
}
