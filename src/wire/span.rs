//! A byte range of a scanned text. Spans are what the scan keeps instead of copies, and what the
//! splice replaces. A span belongs to the one text it was read from and lies within it.

/// Byte range `start..end` of a scanned text, in bytes from its first byte.
///
/// 32 bits suffice: the scan refuses texts of 4 GiB and more, and every configured limit is far
/// below that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    /// The bytes of the span in `text`, the text that it was read from; empty if `text` is a
    /// shorter one.
    pub fn of(self, text: &[u8]) -> &[u8] {
        text.get(self.start as usize..self.end as usize)
            .unwrap_or_default()
    }

    /// Length in bytes.
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// `None` where an end does not fit into 32 bits or the range is backwards.
    pub(crate) fn new(start: usize, end: usize) -> Option<Self> {
        (start <= end).then_some(())?;
        Some(Self {
            start: u32::try_from(start).ok()?,
            end: u32::try_from(end).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_of_the_wrong_text_is_empty_rather_than_a_panic() {
        let span = Span { start: 2, end: 9 };
        assert_eq!(span.of(b"abc"), b"");
        assert_eq!(span.len(), 7);
        assert_eq!(Span { start: 3, end: 1 }.len(), 0);
        assert_eq!(Span::new(2, 1), None);
        assert_eq!(Span::new(0, usize::MAX), None);
    }
}
