//! Every target over its seeds and over mutations of them, without libFuzzer: the same
//! functions, the same texts each time. `RINGWAY_FUZZ_ROUNDS=n` takes other mutations n
//! times as often. What fails is written to a file, which runs again as a seed does, or
//! with `RINGWAY_FUZZ_INPUT=FILE`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use fuzz::mutate::{Chance, mutated, words};
use fuzz::{Target, targets};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The seeds of a target with their names, in the order of these.
fn seeds(target: &Target) -> Vec<(String, Vec<u8>)> {
    let folder = here("seeds").join(target.name);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut seeds: Vec<_> = files
        .map(|file| {
            let path = file.expect("a file").path();
            let name = path.file_name().expect("a name").to_string_lossy().into();
            (name, std::fs::read(&path).expect("a readable seed"))
        })
        .collect();
    seeds.sort();
    assert!(seeds.len() >= 20, "{}: {} seeds", target.name, seeds.len());
    seeds
}

/// Runs one text; where it fails, says how to run it again.
fn holds(target: &Target, what: &str, text: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(text))).is_err() {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-find", target.name));
        std::fs::write(&file, text).expect("room for a file");
        panic!(
            "{}: {what} fails, see above; the text is in {}",
            target.name,
            file.display()
        );
    }
}

fn check(name: &str) {
    let targets = targets();
    let target = targets.iter().find(|target| target.name == name);
    let target = target.expect("a target");
    if let Some(file) = std::env::var_os("RINGWAY_FUZZ_INPUT") {
        let text = std::fs::read(&file).expect("a readable file");
        return holds(target, &file.to_string_lossy(), &text);
    }
    let rounds = std::env::var("RINGWAY_FUZZ_ROUNDS").map_or(1, |n| n.parse().expect("a number"));
    let words = target.dictionary.map_or(Vec::new(), |file| {
        words(&std::fs::read_to_string(here(file)).expect("a dictionary"))
    });
    let seeds = seeds(target);
    let texts: Vec<_> = seeds.iter().map(|(_, text)| text.clone()).collect();
    for (name, text) in &seeds {
        holds(target, &format!("the seed {name}"), text);
    }
    let mut runs = 0;
    for round in 0..rounds {
        for (place, (name, text)) in seeds.iter().enumerate() {
            let mut chance = Chance(round << 32 | place as u64);
            for mutation in 0..target.mutations {
                let text = mutated(text, &words, &texts, target.bytes_max, &mut chance);
                let what = format!("mutation {mutation} of {name} in round {round}");
                holds(target, &what, &text);
                runs += 1;
            }
        }
    }
    println!("{name}: {} seeds, {runs} mutations", seeds.len());
}

#[test]
fn chunked() {
    check("chunked");
}

#[test]
fn documents() {
    check("documents");
}

#[test]
fn head_guard() {
    check("head_guard");
}

#[test]
fn lines() {
    check("lines");
}

#[test]
fn results() {
    check("results");
}

#[test]
fn routing() {
    check("routing");
}

#[test]
fn scan_splice() {
    check("scan_splice");
}

#[test]
fn sse() {
    check("sse");
}

#[test]
fn upstream_events() {
    check("upstream_events");
}

#[test]
fn upstream_response() {
    check("upstream_response");
}

/// Each target is a test here, a binary for libFuzzer, and a folder of seeds.
#[test]
fn every_target_is_everywhere() {
    let manifest = std::fs::read_to_string(here("Cargo.toml")).expect("a manifest");
    let tests = include_str!("corpus.rs");
    let mut folders: Vec<_> = std::fs::read_dir(here("seeds"))
        .expect("seeds")
        .map(|folder| folder.expect("a folder").file_name())
        .collect();
    folders.sort();
    let targets = targets();
    assert!(folders.iter().eq(targets.iter().map(|target| target.name)));
    assert_eq!(manifest.matches("[[bin]]").count(), targets.len());
    assert_eq!(tests.matches("    check(\"").count(), targets.len());
    for target in targets {
        let name = target.name;
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")));
        assert!(tests.contains(&format!("#[test]\nfn {name}() {{")));
        let binary = here("fuzz_targets").join(format!("{name}.rs"));
        let binary = std::fs::read_to_string(binary).expect("a binary");
        assert!(binary.contains(&format!("fuzz::targets::{name}::{name}(data)")));
    }
}

/// The dictionaries mean what libFuzzer takes them for.
#[test]
fn words_are_read_as_libfuzzer_reads_them() {
    let read = words("# no\n\nx=\"a\\\\\\\"\\x0d\\xc5\\xbfb\"\n\"{\"\n");
    assert_eq!(read, [b"a\\\"\x0d\xc5\xbfb".to_vec(), b"{".to_vec()]);
}
