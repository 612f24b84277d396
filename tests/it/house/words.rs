//! Names: old words are kept out of the names of files, so that a name says what is in a file; and the tests that
//! ARCHITECTURE.md names exist. That page has the words that stay.

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

/// Every `file::test` that enforces a line of ARCHITECTURE.md is a test of that file.
#[test]
fn the_tests_that_the_architecture_names_exist() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("ARCHITECTURE.md")).expect("a page");
    let section = text.split("## What does not exist here").nth(1).and_then(|rest| rest.split("\n## ").next());
    let files: Vec<_> = ["tests/it", "src", "engine/src", "operators"].into_iter().flat_map(rust_files).collect();
    let (mut checked, mut missing) = (0, Vec::new());
    for quoted in section.expect("the section").split('`').skip(1).step_by(2) {
        let Some((file, test)) = quoted.split_once("::").filter(|(file, _)| file.starts_with(char::is_lowercase))
        else {
            continue;
        };
        let test = test.rsplit("::").next().expect("a name");
        let of_file = |path: &Path| path.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with(file));
        let is_there = files.iter().any(|(path, text)| of_file(path) && text.contains(&format!("fn {test}(")));
        checked += 1;
        // A rule that is no test is a lint, or the place holder of the page's first line.
        if !is_there && quoted != "file::test" {
            missing.push(quoted);
        }
    }
    assert!(checked > 40, "only {checked} tests are named");
    assert_eq!(missing, Vec::<&str>::new());
}
