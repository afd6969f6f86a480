//! The log level of a shared server: the most verbose that any live session has
//! asked for, `info` when none has. The server is told one level at a time, so
//! that what it ends up with is what was told last.

use crate::wire::method::LOG_LEVELS;

/// A level's place in [`LOG_LEVELS`]; smaller is more verbose.
pub type Level = u8;

/// The level of a server that nobody has asked anything of.
const INFO: Level = 1;

/// How many sessions of one shard ask for each level.
#[derive(Debug, Default)]
pub struct Asked([u32; LOG_LEVELS.len()]);

impl Asked {
    /// A session asks for `now` instead of `before`; `None` for nothing.
    pub fn change(&mut self, before: Option<Level>, now: Option<Level>) {
        if let Some(before) = before {
            self.0[usize::from(before)] -= 1;
        }
        if let Some(now) = now {
            self.0[usize::from(now)] += 1;
        }
    }

    /// The most verbose level that a session asks for.
    pub fn most_verbose(&self) -> Option<Level> {
        let place = self.0.iter().position(|sessions| *sessions > 0)?;
        Some(place as Level)
    }
}

/// What the server has been told, and what it should be told.
#[derive(Debug)]
pub struct LogLevel {
    /// The most verbose level of each shard.
    shards: Vec<Option<Level>>,
    told: Level,
    is_being_told: bool,
}

impl LogLevel {
    pub fn new(shards: usize) -> LogLevel {
        LogLevel {
            shards: vec![None; shards],
            told: INFO,
            is_being_told: false,
        }
    }

    /// The server has been started anew and knows nothing.
    pub fn restart(&mut self) {
        self.told = INFO;
        self.is_being_told = false;
    }

    /// The most verbose level of a shard's sessions.
    pub fn set(&mut self, shard: usize, level: Option<Level>) {
        self.shards[shard] = level;
    }

    /// The level to tell the server now, if any. Its answer is to be reported
    /// to [`LogLevel::answered`].
    pub fn to_tell(&mut self) -> Option<&'static str> {
        let wanted = self.shards.iter().flatten().min().copied().unwrap_or(INFO);
        if self.is_being_told || wanted == self.told {
            return None;
        }
        self.is_being_told = true;
        self.told = wanted;
        LOG_LEVELS.get(usize::from(wanted)).copied()
    }

    /// The server has answered, or refused: it is not asked again for the same.
    pub fn answered(&mut self) {
        self.is_being_told = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_verbose_wish_counts_and_is_lowered_again() {
        let mut level = LogLevel::new(2);
        assert_eq!(level.to_tell(), None);
        level.set(0, Some(3));
        level.set(1, Some(0));
        assert_eq!(level.to_tell(), Some("debug"));
        level.answered();
        level.set(1, None);
        assert_eq!(level.to_tell(), Some("warning"));
        level.answered();
        level.set(0, None);
        assert_eq!(level.to_tell(), Some("info"));
    }

    #[test]
    fn one_level_is_told_at_a_time_and_the_last_wish_wins() {
        let mut level = LogLevel::new(1);
        level.set(0, Some(0));
        assert_eq!(level.to_tell(), Some("debug"));
        level.set(0, Some(4));
        level.set(0, Some(5));
        assert_eq!(level.to_tell(), None);
        level.answered();
        assert_eq!(level.to_tell(), Some("critical"));
        level.answered();
        assert_eq!(level.to_tell(), None);
    }

    #[test]
    fn a_restarted_server_is_told_again() {
        let mut level = LogLevel::new(1);
        level.set(0, Some(0));
        level.to_tell();
        level.restart();
        assert_eq!(level.to_tell(), Some("debug"));
    }

    #[test]
    fn wishes_of_a_shard_are_counted_by_session() {
        let mut asked = Asked::default();
        asked.change(None, Some(2));
        asked.change(None, Some(5));
        asked.change(Some(2), Some(6));
        assert_eq!(asked.most_verbose(), Some(5));
        asked.change(Some(5), None);
        asked.change(Some(6), None);
        assert_eq!(asked.most_verbose(), None);
    }
}
