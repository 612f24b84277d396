//! Tests of broken pipelines: `tests/diagnostics/*.yaml`, with the expected text next to each one.
//! `UPDATE=1 cargo test --test it diagnostics` rewrites the expected texts.

use std::path::{Path, PathBuf};

use searchmill::display::diagnostic::render;
use searchmill_engine::diagnostic::{Diagnostic, SourceMap};
use searchmill_engine::spec::{self, Overrides};

/// The folder of broken pipelines, relative to the package.
const FOLDER: &str = "tests/diagnostics";

/// Reads overrides from the first lines of a case: `# set: a=1` overrides a param, `# params: FILE` names a file of
/// params.
fn overrides(text: &str) -> Overrides {
    let lines = |word: &str| {
        let found = text.lines().map_while(|line| line.strip_prefix("# ")).filter_map(|line| line.strip_prefix(word));
        found.map(|rest| rest.trim().to_owned()).collect::<Vec<_>>()
    };
    let params_files = lines("params:").iter().map(|name| Path::new(FOLDER).join(name)).collect();
    Overrides { set: lines("set:"), params_files }
}

fn findings(path: &Path, sources: &mut SourceMap) -> Vec<Diagnostic> {
    let text = String::from_utf8_lossy(&std::fs::read(path).expect("a case")).into_owned();
    spec::read(path, &overrides(&text), sources).problems
}

fn cases() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(FOLDER).expect("the folder of cases");
    let mut cases: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    cases.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    cases.sort();
    cases
}

#[test]
fn every_fault_is_told_as_expected() {
    let cases = cases();
    assert!(cases.len() >= 30, "only {} cases were found in {FOLDER}", cases.len());
    let mut wrong = Vec::new();
    for case in cases {
        let mut sources = SourceMap::new();
        let found = findings(&case, &mut sources);
        let told: String = found.iter().map(|finding| render(finding, &sources, false) + "\n").collect();
        let told = format!("{told}{} error{}\n", found.len(), if found.len() == 1 { "" } else { "s" });
        let expected = case.with_extension("txt");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&expected, &told).expect("the expected text can be written");
        } else if std::fs::read_to_string(&expected).unwrap_or_default() != told {
            wrong.push(format!("{} tells\n{told}", case.display()));
        }
    }
    assert!(wrong.is_empty(), "{}\nUPDATE=1 rewrites the expected texts", wrong.join("\n"));
}
