//! The pictures of the documentation: of the page as it is, on the quickstart. They are taken again with UPDATE=1.

use std::path::Path;
use std::process::Command;

use regex::Regex;
use serde_json::Value;

use super::views::{Page, browser};
use crate::harness::project::Mill;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Times, sizes and names of runs differ from run to run.
fn without_what_differs(text: &str) -> String {
    let replace = |text: &str, pattern: &str, by: &str| {
        Regex::new(pattern).expect("a pattern").replace_all(text, by).into_owned()
    };
    let text = replace(text, r"\d{8}-\d{6}-[0-9a-f]{8}", "RUN");
    let text = replace(&text, r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "MOMENT");
    let text = replace(&text, r"\d+([.:]\d+)? (ms|s|min|h)\b", "TIME");
    replace(&text, r"\d+(\.\d+)? [KM]iB\b", "SIZE")
}

/// A page that shows other words than its picture makes the picture old.
#[test]
fn they_show_the_page_as_it_is() {
    let Some((browser, web)) = browser() else {
        searchmill_fixtures::skip("a browser (scripts/setup-browser)");
        return;
    };
    let mill = Mill::new();
    std::os::unix::fs::symlink(Path::new(ROOT).join("pipelines"), mill.path("pipelines")).expect("a link");
    mill.call(&["run", "pipelines/quickstart.yaml", "train_file", "report_page"]).exit(0);
    let page = Page::start(&mill, &[]);
    let folder = tempfile::tempdir().expect("a folder");
    let told = Command::new("node")
        .arg("tests/pictures.js")
        .current_dir(web)
        .env("SEARCHMILL_PAGE", &page.base)
        .env("SEARCHMILL_BROWSER", browser)
        .env("PICTURES", folder.path())
        .output()
        .expect("node");
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let shown: Value = serde_json::from_slice(&told.stdout).expect("JSON");
    let golden = Path::new(ROOT).join("tests/pictures");
    for (name, text) in shown.as_object().expect("pictures") {
        let text = without_what_differs(text.as_str().expect("text"));
        assert!(!text.contains("[object") && !text.contains("undefined") && !text.contains("NaN"), "{name}: {text}");
        let file = golden.join(format!("{name}.txt"));
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(&golden).expect("a folder");
            std::fs::write(&file, &text).expect("a file");
            let picture = format!("{name}.png");
            let kept = Path::new(ROOT).join("docs/pictures").join(&picture);
            std::fs::copy(folder.path().join(&picture), kept).expect("a picture");
        }
        let known = std::fs::read_to_string(&file).unwrap_or_default();
        // Nodes stand in the order in which they ended.
        let (mut lines, mut known): (Vec<&str>, Vec<&str>) = (text.lines().collect(), known.lines().collect());
        lines.sort_unstable();
        known.sort_unstable();
        assert_eq!(lines, known, "the picture {name} is old: UPDATE=1 takes it again; look at it");
    }
}
