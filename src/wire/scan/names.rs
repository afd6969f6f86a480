//! The member names that the gateway acts on, at the three levels where it looks, and the rule
//! for names that only resemble one. Some servers match names by folded case: for them `"ID"` is
//! an id, so a name that folds to a known one, but is not it, is told apart from an unknown one.

/// Where an object stands in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Message,
    Params,
    Meta,
}

/// Declares an enum of names whose discriminants index both `ALL` and the slots of the reading.
macro_rules! names {
    ($type:ident { $($name:ident = $text:literal),+ $(,)? }) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum $type { $($name),+ }

        impl $type {
            pub(super) const ALL: &'static [&'static str] = &[$($text),+];
            pub(super) const COUNT: usize = Self::ALL.len();
        }
    };
}

names!(MessageName {
    Jsonrpc = "jsonrpc",
    Id = "id",
    Method = "method",
    Params = "params",
    Result = "result",
    Error = "error",
});

names!(ParamsName {
    Name = "name",
    Uri = "uri",
    RequestId = "requestId",
    TaskId = "taskId",
    ProgressToken = "progressToken",
    Level = "level",
    Task = "task",
    Cursor = "cursor",
    ProtocolVersion = "protocolVersion",
    Meta = "_meta",
});

names!(MetaName {
    ProgressToken = "progressToken",
    ProtocolVersion = "io.modelcontextprotocol/protocolVersion",
    RelatedTask = "io.modelcontextprotocol/related-task",
    SubscriptionId = "io.modelcontextprotocol/subscriptionId",
});

impl Level {
    pub(super) fn names(self) -> &'static [&'static str] {
        match self {
            Self::Message => MessageName::ALL,
            Self::Params => ParamsName::ALL,
            Self::Meta => MetaName::ALL,
        }
    }

    /// The level inside the member `name` of this one, if that is looked into.
    pub(super) fn inside(self, name: usize) -> Option<Self> {
        match self {
            Self::Message if name == MessageName::Params as usize => Some(Self::Params),
            Self::Params if name == ParamsName::Meta as usize => Some(Self::Meta),
            _ => None,
        }
    }
}

/// What a decoded member name is. The numbers index [`Level::names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wire) enum Match {
    Known(usize),
    Folded(usize),
    Unknown,
}

pub(in crate::wire) fn classify(names: &[&str], name: &str) -> Match {
    if let Some(known) = names.iter().position(|known| *known == name) {
        return Match::Known(known);
    }
    let folded = if name.is_ascii() {
        names
            .iter()
            .position(|known| known.eq_ignore_ascii_case(name))
    } else {
        names.iter().position(|known| folds_to(name, known))
    };
    folded.map_or(Match::Unknown, Match::Folded)
}

/// Equality under ASCII case folding plus the two characters outside ASCII whose Unicode fold
/// lies within it: U+017F (long s) and U+212A (Kelvin sign).
fn folds_to(name: &str, known: &str) -> bool {
    let folded = name.chars().map(|character| match character {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    });
    folded.eq(known
        .chars()
        .map(|character| character.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_params(name: &str) -> Match {
        classify(ParamsName::ALL, name)
    }

    #[test]
    fn exact_names_are_known() {
        for level in [Level::Message, Level::Params, Level::Meta] {
            for (index, name) in level.names().iter().enumerate() {
                assert_eq!(classify(level.names(), name), Match::Known(index));
            }
        }
    }

    #[test]
    fn case_long_s_and_kelvin_sign_fold() {
        let task = Match::Folded(ParamsName::Task as usize);
        for name in ["TASK", "ta\u{17f}k", "tas\u{212a}", "Ta\u{17f}\u{212a}"] {
            assert_eq!(in_params(name), task, "{name}");
        }
        assert_eq!(
            in_params("progressto\u{212a}en"),
            Match::Folded(ParamsName::ProgressToken as usize)
        );
        assert_eq!(
            classify(MessageName::ALL, "ID"),
            Match::Folded(MessageName::Id as usize)
        );
    }

    #[test]
    fn names_that_only_look_alike_are_unknown() {
        for name in [
            "",
            "tasks",
            "tas",
            "t\u{e4}sk",
            "\u{131}d",
            "task\0",
            " task",
            "arguments",
        ] {
            assert_eq!(in_params(name), Match::Unknown, "{name}");
        }
        // U+0131, the dotless i, has no fold in ASCII.
        assert_eq!(classify(MessageName::ALL, "\u{131}d"), Match::Unknown);
    }
}
