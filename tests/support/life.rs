//! The life of a scripted server over its restarts: the journal that all its processes write, and the gate
//! that holds back the second.

use serde_json::json;

use super::{Gateway, Layout, Scratch, Upstream};

/// The files of one server's life.
pub struct Life {
    pub scratch: Scratch,
    pub journal: String,
    pub gate: String,
}

impl Life {
    pub fn new() -> Self {
        let scratch = Scratch::new();
        let (journal, gate) = (scratch.path("journal"), scratch.path("gate"));
        Self {
            scratch,
            journal,
            gate,
        }
    }

    /// A gateway whose server gets `arguments`, and from its second start on those of `again` besides.
    pub fn start(
        &self,
        layout: Layout,
        flags: &[&str],
        arguments: &[&str],
        again: &[&str],
    ) -> Gateway {
        let again = json!(again).to_string();
        let own = ["--journal", &self.journal, "--again", &again];
        layout.start(
            flags,
            Upstream::Python("scripted.py", &[&own, arguments].concat()),
        )
    }

    /// The second start waits until [`Life::open_gate`].
    pub fn start_gated(&self, layout: Layout) -> Gateway {
        self.start(layout, &[], &[], &["--gate", &self.gate])
    }

    pub fn open_gate(&self) {
        std::fs::write(&self.gate, "").expect("the scratch directory is ours");
    }

    /// The numbers behind this word in the journal: process ids, in the order of their starts.
    pub fn pids(&self, word: &str) -> Vec<u32> {
        let text = std::fs::read_to_string(&self.journal).expect("the server has started");
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        lines
            .filter(|(event, _)| *event == word)
            .map(|(_, pid)| pid.parse().expect("a pid"))
            .collect()
    }
}
