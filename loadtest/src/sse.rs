//! Server-sent events, read as the HTML standard says, as far as MCP uses them: the data of each event.

/// Longest event that is kept, bytes.
pub const EVENT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Gathers events from the bytes of a stream, however they are cut.
#[derive(Debug, Default)]
pub struct Events {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    has_begun: bool,
    /// The last line ended in a carriage return, whose line feed may follow.
    after_return: bool,
}

impl Events {
    /// Calls `on` with the data of each event that ends in `bytes`.
    pub fn feed(&mut self, mut bytes: &[u8], mut on: impl FnMut(&[u8])) {
        if !self.has_begun && !bytes.is_empty() {
            self.has_begun = true;
            // A byte order mark; one that is cut in two is not looked for.
            bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        }
        if self.after_return && bytes.first() == Some(&b'\n') {
            bytes = &bytes[1..];
        }
        if !bytes.is_empty() {
            self.after_return = false;
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) {
            if self.line.is_empty() {
                self.line(&bytes[..end], &mut on);
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&bytes[..end]);
                self.line(&line, &mut on);
                line.clear();
                self.line = line;
            }
            let is_return = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            if is_return {
                match bytes.first() {
                    Some(b'\n') => bytes = &bytes[1..],
                    None => self.after_return = true,
                    _ => {}
                }
            }
        }
        self.line.extend_from_slice(bytes);
    }

    fn line(&mut self, line: &[u8], on: &mut impl FnMut(&[u8])) {
        if line.is_empty() {
            if self.has_data {
                // An event with an id alone says from where to go on, and nothing else.
                if !self.data.is_empty() {
                    on(&self.data);
                }
                self.data.clear();
                self.has_data = false;
            }
            return;
        }
        let (name, value) = match memchr::memchr(b':', line) {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, b"".as_slice()),
        };
        if name == b"data" {
            if self.has_data {
                self.data.push(b'\n');
            }
            self.has_data = true;
            self.data
                .extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        }
    }

    /// Bytes of an event that has begun.
    pub fn waiting(&self) -> usize {
        self.line.len() + self.data.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(bytes: &[u8], step: usize) -> Vec<String> {
        let mut events = Events::default();
        let mut found = Vec::new();
        for part in bytes.chunks(step) {
            events.feed(part, |data| {
                found.push(String::from_utf8_lossy(data).into_owned())
            });
        }
        found
    }

    #[test]
    fn events_are_the_same_however_they_are_cut() {
        let text = b": hello\n\nevent: message\ndata: one\n\ndata:two\r\nid: 7\r\ndata: lines\r\n\r\nretry: 5\rdata:  x\r\rdata: cut off";
        for step in 1..text.len() {
            assert_eq!(
                events(text, step),
                ["one", "two\nlines", " x"],
                "step {step}"
            );
        }
    }

    #[test]
    fn event_without_data_is_none() {
        assert!(events(b"event: message\nid: 1\n\n: x\n\n", 100).is_empty());
        assert!(events(b"data\n\nid: 1\ndata:\n\n", 100).is_empty());
        assert_eq!(events(b"\xef\xbb\xbfdata: x\n\n", 100), ["x"]);
    }
}
