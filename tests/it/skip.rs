//! What a test needs that is not in the repository, and the word that it was skipped. `make test` counts these words.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Data sets and vectors of others, beside the checkout.
const SHARED: &str = "../shared";

/// A file or folder below `../shared`, or `None`, said aloud, where it is not there.
pub(crate) fn shared(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|folder| folder.join("Makefile").is_file())?;
    let path = root.join(SHARED).join(name);
    if !path.exists() {
        skip(SHARED);
        return None;
    }
    Some(path)
}

/// The text of a file below `../shared`.
pub(crate) fn shared_text(name: &str) -> Option<String> {
    shared(name).map(|path| std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// A file of golden vectors that come with the repository.
pub(crate) fn golden(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|folder| folder.join("Makefile").is_file());
    let path = root.expect("a checkout").join("tests/golden").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Says that the test that calls this cannot be made here, and what it needs.
pub(crate) fn skip(needs: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let said = writeln!(std::io::stderr(), "SKIPPED: {test} needs {needs}");
    said.expect("stderr");
    if let Some(list) = std::env::var_os("SEARCHMILL_SKIPPED") {
        let file = OpenOptions::new().create(true).append(true).open(list);
        file.and_then(|mut file| file.write_all(format!("{needs}\t{test}\n").as_bytes()))
            .expect("the list of skipped tests");
    }
}
