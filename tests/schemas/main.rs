//! What Ringway itself writes, judged by the protocol's schemas: every message of the list is brought about over
//! sockets and pipes, in each protocol version in which it can occur, and validated twice: by a typed model that
//! others have generated, and by the official JSON schemas where these can be found.

mod book;
mod clients;
mod definitions;
mod list;
mod official;
mod server;
#[path = "../support/mod.rs"]
mod support;
mod typed;

use serde_json::json;

use book::Book;
use definitions::{Definition, Version};
use official::Official;
use support::Scratch;

/// What clients get.
#[test]
fn every_message_to_clients_fits_the_schema_of_its_version() {
    let mut book = Book::new(list::TO_CLIENTS);
    for version in Version::ALL {
        clients::in_a_session(&mut book, version);
        clients::without_capabilities(&mut book, version);
        clients::when_the_server_is_gone(&mut book, version);
        clients::while_draining(&mut book, version);
    }
    clients::in_time(&mut book);
    clients::with_tasks(&mut book);
    clients::in_batches(&mut book);
    clients::without_an_id(&mut book);
    clients::over_the_limits(&mut book);
    clients::with_tokens(&mut book);
    book.close();
}

/// What the server gets.
#[test]
fn every_message_to_the_server_fits_the_schema_of_its_version() {
    let mut book = Book::new(list::TO_THE_SERVER);
    for version in Version::ALL {
        server::hears(&mut book, version);
    }
    book.close();
}

/// What one version allows another refuses: each is judged by its own schema.
#[test]
fn versions_are_kept_apart() {
    let official = Official::find();
    let nameless = json!({"jsonrpc": "2.0", "error": {"code": -32700, "message": "m"}});
    for version in Version::ALL {
        let is_fine = version == Version::V2025_11_25;
        let verdict = typed::check(version, Definition::Error, &nameless);
        assert_eq!(verdict.is_ok(), is_fine, "{version:?}: {verdict:?}");
        if let Some(official) = &official {
            let verdict = official.check(version, Definition::Error, &nameless);
            assert_eq!(verdict.is_ok(), is_fine, "{version:?}: {verdict:?}");
        }
        let cancel =
            json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/cancel", "params": {"taskId": "t"}});
        let verdict = typed::check(version, Definition::CancelTask, &cancel);
        assert_eq!(verdict.is_ok(), is_fine, "{version:?}: {verdict:?}");
    }
}

/// A folder that was named must hold the schemas, as they were published.
#[test]
fn folder_of_schemas_that_is_not_whole_is_refused() {
    let scratch = Scratch::new();
    let folder = scratch.path("schemas");
    let folder = std::path::Path::new(&folder);
    std::fs::create_dir(folder).expect("the scratch directory is ours");
    let read = || std::panic::catch_unwind(|| Official::read(folder)).is_ok();
    assert!(!read(), "an empty folder is taken");
    for version in Version::ALL {
        let path = folder.join(format!("schema-{}.json", version.name()));
        std::fs::write(path, "{}").expect("the scratch directory is ours");
    }
    assert!(!read(), "other schemas are taken");
}
