//! A gateway that asks for tokens: the file, and sessions that are opened with one of them.

use std::os::unix::fs::PermissionsExt;

use super::mcp::{LATEST, initialize_body};
use super::{Gateway, Request, Scratch, Session};

pub const ALICE: &str = "alice-secret-0123456789";
pub const BOB: &str = "bob-secret-0123456789";

/// The token file of one gateway.
pub struct TokenFile {
    scratch: Scratch,
    pub path: String,
}

impl TokenFile {
    /// Alice and Bob.
    pub fn two() -> Self {
        let scratch = Scratch::new();
        let path = scratch.path("tokens");
        let file = Self { scratch, path };
        file.replace(&format!("alice {ALICE}\nbob {BOB}\n"));
        file
    }

    /// Takes Bob's token away.
    pub fn without_bob(&self) {
        self.replace(&format!("alice {ALICE}\n"));
    }

    /// Puts another file in its place, as deployments do.
    fn replace(&self, text: &str) {
        let new = self.scratch.path("new");
        std::fs::write(&new, text).expect("the scratch directory is ours");
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600)).expect("our file");
        std::fs::rename(&new, &self.path).expect("the scratch directory is ours");
    }
}

pub fn bearer(request: Request, token: &str) -> Request {
    request.set("Authorization", &format!("Bearer {token}"))
}

/// Opens a session with a token.
pub fn open(gateway: &Gateway, token: &str) -> Session {
    let initialize = Request::post(initialize_body("0", LATEST));
    let response = gateway.ask(&bearer(initialize, token));
    assert_eq!(response.status, 200, "{response}");
    let id = response.field("mcp-session-id").expect("a session");
    Session {
        id: id.to_owned(),
        version: LATEST.to_owned(),
    }
}
