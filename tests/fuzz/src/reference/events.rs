//! A stream of server-sent events, from "interpreting an event stream" in the HTML
//! standard.

/// The longest `id` and `retry` that count.
const VALUE_BYTES_MAX: usize = 4_096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Event {
        data: Vec<u8>,
        id: Option<Vec<u8>>,
        is_message: bool,
    },
    Id(Vec<u8>),
    Retry(u64),
}

/// What a stream says so far, whether an event went over the limit after that, and the
/// last event id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub said: Vec<Said>,
    pub is_too_large: bool,
    pub last_id: Vec<u8>,
}

pub fn events(stream: &[u8], bytes_max: usize) -> Outcome {
    let stream = stream.strip_prefix(b"\xef\xbb\xbf").unwrap_or(stream);
    let (lines, rest) = lines(stream);
    let mut said = Vec::new();
    let mut last_id = Vec::new();
    // The buffers of the standard; each line of data is followed by an LF. The id
    // buffer is also empty before the first id, so what an event names is kept apart.
    let (mut data, mut kind, mut id_buffer) = (Vec::new(), Vec::new(), Vec::new());
    let mut named: Option<Vec<u8>> = None;
    for line in lines {
        if line.is_empty() {
            last_id = id_buffer.clone();
            let id = named.take();
            let is_message = kind.is_empty() || kind == b"message";
            kind.clear();
            if data.pop() == Some(b'\n') {
                let data = std::mem::take(&mut data);
                said.push(Said::Event {
                    data,
                    id,
                    is_message,
                });
            } else if let Some(id) = id {
                said.push(Said::Id(id));
            }
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let name = &line[..colon.unwrap_or(line.len())];
        let value = colon.map_or(&b""[..], |colon| &line[colon + 1..]);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let is_short = value.len() <= VALUE_BYTES_MAX;
        match name {
            b"data" => {
                data.extend_from_slice(value);
                data.push(b'\n');
            }
            b"event" => kind = value.to_vec(),
            b"id" if is_short && !value.contains(&0) => {
                id_buffer = value.to_vec();
                named = Some(id_buffer.clone());
            }
            b"retry" if is_short && !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                let text = String::from_utf8_lossy(value);
                said.push(Said::Retry(text.parse().unwrap_or(u64::MAX)));
            }
            _ => {}
        }
        if is_over(&data, &named, bytes_max) {
            return Outcome {
                said,
                is_too_large: true,
                last_id,
            };
        }
    }
    // Data counts as it comes; how it ends is known from one byte behind the colon on.
    if let Some(value) = rest.strip_prefix(b"data:")
        && !value.is_empty()
    {
        data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        data.push(b'\n');
    }
    Outcome {
        said,
        is_too_large: is_over(&data, &named, bytes_max),
        last_id,
    }
}

fn is_over(data: &[u8], id: &Option<Vec<u8>>, bytes_max: usize) -> bool {
    let id = id.as_ref().map_or(0, Vec::len);
    data.len().saturating_sub(1) + id > bytes_max
}

/// The whole lines of a stream, and what is behind the last of them.
fn lines(mut stream: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let mut lines = Vec::new();
    while let Some(end) = stream.iter().position(|byte| b"\r\n".contains(byte)) {
        lines.push(&stream[..end]);
        stream = match &stream[end..] {
            [b'\r', b'\n', rest @ ..] => rest,
            rest => &rest[1..],
        };
    }
    (lines, stream)
}
