//! The Python package against this program: its own tests, types and notebook; and the site, which Python builds. Needs the
//! Python of `scripts/setup-python`.

use std::path::Path;
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Returns the Python that `scripts/setup-python` makes, in the package's folder. `None` without the module.
fn command(module: &str) -> Option<Command> {
    let python = std::env::var("SEARCHMILL_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python).args(["-c", &format!("import pyarrow, {module}")]).output();
    if !has.is_ok_and(|has| has.status.success()) {
        searchmill_fixtures::skip(&format!("a Python with pyarrow and {module} (scripts/setup-python)"));
        return None;
    }
    let mut command = Command::new(python);
    command.current_dir(Path::new(ROOT).join("python")).env("PYTHONPATH", ".").env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("SEARCHMILL", env!("CARGO_BIN_EXE_searchmill"));
    Some(command)
}

/// Runs a module, and expects it to end well.
fn passes(module: &str, args: &[&str]) {
    let Some(mut command) = command(module) else { return };
    let done = command.args(["-m", module]).args(args).output().expect("Python");
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{module}: {text}\n{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn its_tests_pass() {
    passes("pytest", &["-q", "-p", "no:cacheprovider", "tests"]);
}

#[test]
fn its_types_are_right() {
    passes("mypy", &["--cache-dir=/dev/null", "searchmill", "tests"]);
}

#[test]
fn its_style_is_one() {
    passes("ruff", &["check", "--no-cache", "."]);
    passes("ruff", &["format", "--no-cache", "--check", "."]);
}

/// Runs all cells of the notebook of the examples.
#[test]
fn the_notebook_runs() {
    let mill = crate::harness::project::Mill::new();
    std::os::unix::fs::symlink(Path::new(ROOT).join("pipelines"), mill.path("pipelines")).expect("a link");
    let run = "import os, nbclient, nbformat; \
               book = nbformat.read('../examples/notebook/artifacts.ipynb', as_version=4); \
               nbclient.NotebookClient(book, timeout=300).execute(); \
               print(''.join(output.get('text', '') for cell in book.cells for output in cell.get('outputs', [])))";
    let Some(mut command) = command("nbclient") else { return };
    let done = command.args(["-c", run]).env("ROOT", mill.path("")).output().expect("Python");
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{text}\n{}", String::from_utf8_lossy(&done.stderr));
    assert!(text.contains("would run: ['rollouts']") && text.contains("different chunks were seen"), "{text}");
}

/// Every link and anchor of the pages leads somewhere, also to pipelines and examples.
#[test]
fn the_site_is_built() {
    let Some(mut command) = command("zensical") else { return };
    let done = command.arg("../scripts/build-site").output().expect("Python");
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{text}\n{}", String::from_utf8_lossy(&done.stderr));
    let index = std::fs::read_to_string(Path::new(ROOT).join("target/site/search.json")).expect("an index of words");
    assert!(index.contains("keep-a-budget"), "the site can be searched");
}
