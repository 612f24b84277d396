//! Words that had a meaning of this project alone: they are kept out of the names of files, so that a name says what is in
//! a file. ARCHITECTURE.md has the words that stay.

use std::path::Path;

use super::tidy::rust_files;

/// Words of the first version, and what to write for them: run log, retained, message, result, released, path, pipeline
/// test, …
const OLD: [&str; 9] = ["ledger", "kept", "told", "said", "made", "went", "place", "trial", "spread"];

#[test]
fn names_of_files_use_none_of_the_old_words() {
    let mut found = Vec::new();
    for folder in ["src", "engine/src", "operators", "schemas/src", "tests/it"] {
        for (path, _) in rust_files(folder) {
            if path.components().any(|part| has_old_word(Path::new(part.as_os_str()))) {
                found.push(path.display().to_string());
            }
        }
    }
    assert_eq!(found, Vec::<String>::new(), "name these files for what they hold");
}

fn has_old_word(name: &Path) -> bool {
    let stem = name.file_stem().expect("a name").to_string_lossy();
    stem.split('_').any(|word| OLD.contains(&word))
}
