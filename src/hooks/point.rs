//! The points of a call at which hooks are asked, and sets of them.

use super::Hook;
use super::call::HookCall;
use super::verdict::Verdict;

/// Where in a call a hook is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Point {
    BeforeToolCall,
    AfterToolCall,
    BeforePrompt,
    AfterPrompt,
    BeforeRead,
    AfterRead,
    BeforeSubscribe,
    Progress,
}

/// A set of points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Points(u8);

impl Point {
    pub const ALL: [Point; 8] = [
        Point::BeforeToolCall,
        Point::AfterToolCall,
        Point::BeforePrompt,
        Point::AfterPrompt,
        Point::BeforeRead,
        Point::AfterRead,
        Point::BeforeSubscribe,
        Point::Progress,
    ];

    /// Whether the message goes from the server to the client. Hooks are then asked in reverse
    /// order, so that the one nearest to the client is the first and the last to see a call.
    pub fn is_on_the_way_back(self) -> bool {
        match self {
            Point::AfterToolCall | Point::AfterPrompt | Point::AfterRead | Point::Progress => true,
            Point::BeforeToolCall
            | Point::BeforePrompt
            | Point::BeforeRead
            | Point::BeforeSubscribe => false,
        }
    }

    /// Asks one hook.
    pub(super) fn ask(self, hook: &dyn Hook, call: &mut HookCall<'_>, text: &[u8]) -> Verdict {
        match self {
            Point::BeforeToolCall => hook.before_tool_call(call, text),
            Point::AfterToolCall => hook.after_tool_call(call, text),
            Point::BeforePrompt => hook.before_prompt(call, text),
            Point::AfterPrompt => hook.after_prompt(call, text),
            Point::BeforeRead => hook.before_read(call, text),
            Point::AfterRead => hook.after_read(call, text),
            Point::BeforeSubscribe => hook.before_subscribe(call, text),
            Point::Progress => hook.progress(call, text),
        }
    }
}

impl Points {
    pub const NONE: Points = Points(0);
    pub const ALL: Points = Points(u8::MAX);

    /// The set and one more.
    #[must_use]
    pub const fn with(self, point: Point) -> Points {
        Points(self.0 | 1 << point as u8)
    }

    /// Everything that is in one or the other.
    #[must_use]
    pub const fn and(self, others: Points) -> Points {
        Points(self.0 | others.0)
    }

    pub const fn has(self, point: Point) -> bool {
        self.0 & 1 << point as u8 != 0
    }
}

impl From<Point> for Points {
    fn from(point: Point) -> Points {
        Points::NONE.with(point)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_in_and_nothing_else() {
        for one in Point::ALL {
            for other in Point::ALL {
                assert_eq!(Points::from(one).has(other), one == other);
            }
            assert!(Points::ALL.has(one));
            assert!(!Points::NONE.has(one));
        }
        let all = Point::ALL.into_iter().fold(Points::NONE, Points::with);
        assert_eq!(all, Points::ALL);
        let two = Points::from(Point::Progress).and(Point::BeforeRead.into());
        assert_eq!(Point::ALL.into_iter().filter(|it| two.has(*it)).count(), 2);
    }
}
