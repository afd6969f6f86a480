//! The second validator: the official JSON schemas, where they can be found. They are no part of the repository:
//! RINGWAY_MCP_SCHEMAS names their folder, else they are looked for beside the checkout.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use jsonschema::Validator;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::definitions::{Definition, Version};
use crate::support::hex;

/// SHA-256 of the schema of a version, as it was published. Judging by another text would prove nothing.
fn known_digest(version: Version) -> &'static str {
    match version {
        Version::V2024_11_05 => "61cea2392d4f284092d09bc84b9ac488c0d5618ac2b38a56942fc5b99fd960ce",
        Version::V2025_03_26 => "e720669548c8100a4282c49e580efd6ddf7f28899ea786fc8db251dbdb356131",
        Version::V2025_06_18 => "af845e7e5b9d27107d1690f0936022546177a1403e63ffb11470135b296a2e01",
        Version::V2025_11_25 => "268a5f82ba70fd7e4b6dc4aa1e64f116f74b4d0edcb69dc046829c79dd4e97e7",
    }
}

/// The official schemas.
pub(crate) struct Official {
    schemas: Vec<(Version, Value)>,
    validators: RefCell<HashMap<(&'static str, &'static str), Validator>>,
}

impl Official {
    /// Reads the schemas. `None`: there are none beside the checkout, and nobody has named another folder.
    ///
    /// # Panics
    /// If the folder lacks one, or one is not what was published.
    pub(crate) fn find() -> Option<Official> {
        match std::env::var_os("RINGWAY_MCP_SCHEMAS") {
            Some(folder) => Some(Official::read(Path::new(&folder))),
            None => {
                let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/mcp");
                folder.is_dir().then(|| Official::read(&folder))
            }
        }
    }

    /// The same of a folder.
    pub(crate) fn read(folder: &Path) -> Official {
        let read = |version: Version| {
            let path = folder.join(format!("schema-{}.json", version.name()));
            let text =
                std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert_eq!(
                hex(&Sha256::digest(&text)),
                known_digest(version),
                "{} is not the schema that was published",
                path.display()
            );
            let schema = serde_json::from_slice(&text).expect("a schema is JSON");
            (version, schema)
        };
        Official {
            schemas: Version::ALL.map(read).into(),
            validators: RefCell::default(),
        }
    }

    /// Checks a value against a definition of that version.
    ///
    /// # Errors
    /// What is wrong with the value, with the rule of the schema.
    pub(crate) fn check(
        &self,
        version: Version,
        definition: Definition,
        value: &Value,
    ) -> Result<(), String> {
        let name = definition.name(version);
        let mut validators = self.validators.borrow_mut();
        let validator = validators
            .entry((version.name(), name))
            .or_insert_with(|| self.validator(version, name));
        let faults: Vec<String> = validator
            .iter_errors(value)
            .map(|fault| {
                let (place, rule) = (fault.instance_path(), fault.schema_path());
                format!("{fault} (at {place:?} by {rule})")
            })
            .collect();
        match faults.is_empty() {
            true => Ok(()),
            false => Err(faults.join("; ")),
        }
    }

    fn validator(&self, version: Version, name: &str) -> Validator {
        let schema = self.schemas.iter().find(|(known, _)| *known == version);
        let schema = &schema.expect("every version was read").1;
        // The older drafts keep definitions under another name.
        let place = match schema.get("$defs") {
            Some(_) => "$defs",
            None => "definitions",
        };
        assert!(
            schema[place].get(name).is_some(),
            "{version:?} has no {name}"
        );
        let narrow = json!({
            "$schema": schema["$schema"],
            place: schema[place],
            "allOf": [{ "$ref": format!("#/{place}/{name}") }],
        });
        jsonschema::options()
            .should_validate_formats(true)
            .build(&narrow)
            .unwrap_or_else(|fault| panic!("{version:?} {name}: {fault}"))
    }
}
