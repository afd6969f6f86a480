//! A JSON text as serde_json takes it apart, every string and number as it is written, and what
//! parsers of several kinds read in it.

use serde_json::value::RawValue;

use crate::json::Members;

#[derive(Clone, Debug)]
pub enum Node {
    /// A string, a number, a word, as written.
    Leaf(String),
    /// A string that is to say this, however it is written. Only in what is expected.
    Word(String),
    Array(Vec<Node>),
    Object(Vec<Member>),
}

#[derive(Clone, Debug)]
pub struct Member {
    pub key: String,
    /// `None` if there is half a surrogate pair in it.
    pub name: Option<String>,
    pub value: Node,
}

impl Node {
    /// The text must be JSON.
    pub fn read(text: &str) -> Node {
        let text = text.trim_ascii();
        match text.as_bytes().first() {
            Some(b'{') => {
                let Members(members) =
                    serde_json::from_str::<Members<'_, &RawValue>>(text).expect("an object");
                let members = members.into_iter().map(|(key, value)| Member {
                    key: key.get().to_owned(),
                    name: serde_json::from_str(key.get()).ok(),
                    value: Node::read(value.get()),
                });
                Node::Object(members.collect())
            }
            Some(b'[') => {
                let values: Vec<&RawValue> = serde_json::from_str(text).expect("an array");
                Node::Array(values.into_iter().map(|it| Node::read(it.get())).collect())
            }
            _ => Node::Leaf(text.to_owned()),
        }
    }

    /// What a string says, if Rust can hold it.
    pub fn string(&self) -> Option<String> {
        match self {
            Node::Leaf(raw) => serde_json::from_str(raw).ok(),
            Node::Word(word) => Some(word.clone()),
            _ => None,
        }
    }

    pub fn members(&self) -> &[Member] {
        match self {
            Node::Object(members) => members,
            _ => &[],
        }
    }

    /// Every value under a name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Node> {
        let members = self.members().iter();
        members.filter_map(move |it| (it.name.as_deref() == Some(name)).then_some(&it.value))
    }

    /// The same, for changes.
    pub fn change(&mut self, name: &str, mut change: impl FnMut(&mut Node)) {
        if let Node::Object(members) = self {
            let of_name = members.iter_mut();
            let of_name = of_name.filter(|it| it.name.as_deref() == Some(name));
            of_name.for_each(|it| change(&mut it.value));
        }
    }

    /// The elements of an array, or the value itself.
    pub fn one_or_many(&self) -> &[Node] {
        match self {
            Node::Array(values) => values,
            other => std::slice::from_ref(other),
        }
    }

    /// The same, for changes.
    pub fn change_each(&mut self, mut change: impl FnMut(&mut Node)) {
        match self {
            Node::Array(values) => values.iter_mut().for_each(change),
            other => change(other),
        }
    }

    /// A string says something else, if it is one.
    pub fn rename(&mut self, public: impl FnOnce(&str) -> String) {
        if let Some(own) = self.string() {
            let public = public(&own);
            if public != own {
                *self = Node::Word(public);
            }
        }
    }

    /// Whether `shown` is what is expected: the same text but for blanks between tokens and for
    /// the spelling of words.
    pub fn is_written_as(&self, shown: &Node) -> bool {
        match (self, shown) {
            (Node::Leaf(raw), Node::Leaf(shown)) => raw == shown,
            (Node::Word(word), Node::Leaf(_)) => shown.string().as_ref() == Some(word),
            (Node::Array(all), Node::Array(shown)) => {
                all.len() == shown.len()
                    && all
                        .iter()
                        .zip(shown)
                        .all(|(it, shown)| it.is_written_as(shown))
            }
            (Node::Object(all), Node::Object(shown)) => {
                let is_same = |(it, shown): (&Member, &Member)| {
                    it.key == shown.key && it.value.is_written_as(&shown.value)
                };
                all.len() == shown.len() && all.iter().zip(shown).all(is_same)
            }
            _ => false,
        }
    }

    /// How many members there are at all levels.
    pub fn count(&self) -> usize {
        match self {
            Node::Array(values) => values.iter().map(Node::count).sum(),
            Node::Object(members) => members.iter().map(|it| 1 + it.value.count()).sum(),
            _ => 0,
        }
    }
}

/// How a parser reads names.
#[derive(Clone, Copy, Debug)]
pub struct Parser {
    /// Of members with one name the first, else the last.
    pub takes_first: bool,
    /// Names count whatever their case.
    pub folds: bool,
}

impl Parser {
    pub const ALL: [Parser; 4] = [
        Parser::new(true, true),
        Parser::new(false, true),
        Parser::new(true, false),
        Parser::new(false, false),
    ];

    const fn new(takes_first: bool, folds: bool) -> Parser {
        Parser { takes_first, folds }
    }

    pub fn find(self, node: &Node, name: &str) -> Option<Node> {
        let is_it = |it: &&Member| match &it.name {
            Some(own) if self.folds => folded(own) == folded(name),
            own => own.as_deref() == Some(name),
        };
        let mut found = node.members().iter().filter(is_it);
        let member = match self.takes_first {
            true => found.next(),
            false => found.next_back(),
        };
        member.map(|it| it.value.clone())
    }

    /// What is at the end of a path of names.
    pub fn at(self, node: &Node, path: &[&str]) -> Option<Node> {
        path.iter()
            .try_fold(node.clone(), |node, name| self.find(&node, name))
    }
}

/// Names are one for those who fold them: ASCII letters, the long s and the sign of Kelvin.
pub fn folded(name: &str) -> String {
    let plain = |letter| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    name.chars().map(plain).collect()
}

/// The blanks before each token and behind the last one.
pub fn blanks(text: &str) -> Vec<String> {
    let bytes = text.as_bytes();
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
    let mut blanks = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let length = rest.iter().take_while(|byte| is_blank(byte)).count();
        blanks.push(text[at..at + length].to_owned());
        let Some(first) = rest.get(length) else { break };
        at += length + 1;
        let is_inside = |byte: &u8| !is_blank(byte) && !b",:{}[]\"".contains(byte);
        match first {
            b'"' => {
                while bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            first if is_inside(first) => {
                at += bytes[at..]
                    .iter()
                    .take_while(|byte| is_inside(byte))
                    .count();
            }
            _ => {}
        }
    }
    blanks
}
