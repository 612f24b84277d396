//! Rules about the source files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

pub(crate) fn rust_files(folder: &str) -> Vec<(PathBuf, String)> {
    let found = files_of(folder, "rs");
    assert!(!found.is_empty(), "no Rust files in {folder}");
    found
}

/// Returns the files below `folder` with this extension, and their texts.
fn files_of(folder: &str, wanted: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut pending = vec![Path::new(ROOT).join(folder)];
    while let Some(folder) = pending.pop() {
        for path in crate::harness::project::files_in(&folder) {
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == wanted) {
                let text = std::fs::read_to_string(&path).expect("a text file");
                found.push((path.strip_prefix(ROOT).expect("below the root").to_owned(), text));
            }
        }
    }
    found.sort();
    found
}

/// Returns all Markdown pages with their texts.
fn pages() -> Vec<(PathBuf, String)> {
    let top = crate::harness::project::files_in(Path::new(ROOT))
        .into_iter()
        .filter(|path| path.extension().is_some_and(|e| e == "md"));
    let read = |path: PathBuf| {
        (PathBuf::from(path.file_name().expect("a name")), std::fs::read_to_string(&path).expect("a page"))
    };
    let folders = ["benches", "docs", "examples", "pipelines", "tests/golden"];
    let pages: Vec<_> = top.map(read).chain(folders.iter().flat_map(|folder| files_of(folder, "md"))).collect();
    assert!(pages.len() > 20, "only {} pages", pages.len());
    pages
}

/// Returns the text without comments and tests.
fn code(text: &str) -> String {
    let own = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    own.lines().filter(is_code).collect::<Vec<_>>().join("\n")
}

pub(crate) fn is_test_file(path: &Path) -> bool {
    let name = path.to_string_lossy();
    name.ends_with("tests.rs") || name.ends_with("fuzz.rs") || name.contains("/tests/")
}

/// Returns the files of `folder` whose code has one of these words, except the allowed ones.
fn offenders(folder: &str, words: &[&str], allowed: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in rust_files(folder) {
        let name = path.to_string_lossy().into_owned();
        if is_test_file(&path) || allowed.iter().any(|allowed| name.starts_with(allowed)) {
            continue;
        }
        let code = code(&text);
        found.extend(words.iter().filter(|word| code.contains(**word)).map(|word| format!("{name}: {word}")));
    }
    found
}

/// A file that no `mod` line names is not compiled, and its tests never run.
#[test]
fn every_file_is_compiled() {
    let mut lost = Vec::new();
    for folder in ["src", "engine/src", "operators", "schemas/src", "tests/it", "tests/fixtures"] {
        let files = rust_files(folder);
        let declared: BTreeSet<(PathBuf, String)> =
            files.iter().flat_map(|(path, text)| declared_in(path, text)).collect();
        for (path, _) in &files {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let parent = path.parent().expect("a folder").to_owned();
            let wanted = match name.as_str() {
                "lib" | "main" | "build" => continue,
                "mod" => {
                    let room = parent.file_name().expect("a name").to_string_lossy().into_owned();
                    (parent.parent().expect("a folder").to_owned(), room)
                }
                _ => (parent, name),
            };
            let is_program =
                wanted.0.ends_with("bin") || wanted.0.ends_with("benches") || wanted.0.ends_with("examples");
            if !is_program && !declared.contains(&wanted) {
                lost.push(path.display().to_string());
            }
        }
    }
    assert_eq!(lost, Vec::<String>::new(), "no `mod` line names these files");
}

/// Returns the folders and names of the modules that a file declares.
fn declared_in(path: &Path, text: &str) -> Vec<(PathBuf, String)> {
    let folder = path.parent().expect("a folder");
    let stem = path.file_stem().expect("a name").to_string_lossy();
    let below = match stem.as_ref() {
        "mod" | "lib" | "main" => folder.to_owned(),
        name => folder.join(name),
    };
    let mut found = Vec::new();
    let mut moved = None;
    for line in text.lines().map(str::trim) {
        if let Some(path) = line.strip_prefix("#[path = \"") {
            moved = path.strip_suffix(".rs\"]").map(str::to_owned);
        } else if let Some(name) = line.strip_suffix(';').and_then(|line| line.rsplit_once("mod ")) {
            match moved.take() {
                // A path counts from the folder of the file that says it.
                Some(other) => found.push((folder.to_owned(), other)),
                None => found.push((below.clone(), name.1.to_owned())),
            }
        }
    }
    found
}

#[test]
fn every_file_says_what_it_is() {
    for folder in ["src", "engine", "operators", "schemas", "tests"] {
        for (path, text) in rust_files(folder) {
            assert!(text.starts_with("//!"), "{} does not open with `//!`", path.display());
            assert!(text.lines().count() <= 700, "{} is longer than 700 lines", path.display());
        }
    }
}

#[test]
fn lines_of_pages_are_under_100_columns() {
    let mut long = Vec::new();
    for (path, text) in pages() {
        let lines = (1..).zip(text.lines()).filter(|(_, line)| line.chars().count() >= 100);
        long.extend(lines.map(|(number, _)| format!("{}:{number}", path.display())));
    }
    assert_eq!(long, Vec::<String>::new());
}

#[test]
fn the_readme_is_under_200_lines() {
    let text = std::fs::read_to_string(Path::new(ROOT).join("README.md")).expect("the README");
    assert!(text.lines().count() < 200, "move details to docs/");
}

#[test]
fn links_between_pages_resolve() {
    let mut broken = Vec::new();
    for (path, text) in pages() {
        let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        let files = links.filter(|link| !link.is_empty() && !link.contains("://"));
        let missing = files.filter(|file| !Path::new(ROOT).join(&path).with_file_name(file).exists());
        broken.extend(missing.map(|file| format!("{}: {file}", path.display())));
    }
    assert_eq!(broken, Vec::<String>::new());
}

#[test]
fn the_engine_names_no_operator() {
    let names: Vec<&str> = searchmill_operators::all().iter().map(|entry| entry.name).collect();
    let mut found = Vec::new();
    for (path, text) in rust_files("engine/src") {
        if is_test_file(&path) {
            continue;
        }
        let code = code(&text);
        for name in &names {
            let snake = name.replace('-', "_");
            let words = [format!("op: {name},"), format!("searchmill_operators::{snake}")];
            // A compound name is unambiguous; a plain one may also be a port, a column or a field.
            let compound = name.contains('-') && (code.contains(name) || code.contains(&snake));
            if compound || words.iter().any(|word| code.contains(word)) || dispatches_on(&code, name) {
                found.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert_eq!(found, Vec::<String>::new());
    let manifest = std::fs::read_to_string(Path::new(ROOT).join("engine/Cargo.toml")).unwrap();
    assert!(!manifest.contains("searchmill-operators"));
}

/// Whether the code matches on or compares with an operator's name.
fn dispatches_on(code: &str, name: &str) -> bool {
    let forms = [format!("operator == \"{name}\""), format!("name == \"{name}\""), format!("NAME == \"{name}\"")];
    let dispatching = |line: &str| line.contains(&format!("\"{name}\" =>")) || line.contains(&format!("\"{name}\" |"));
    forms.iter().any(|form| code.contains(form)) || code.lines().any(dispatching)
}

/// Returns the modules of the engine, in the order of its `mod` lines.
fn modules() -> Vec<String> {
    let text = std::fs::read_to_string(Path::new(ROOT).join("engine/src/lib.rs")).expect("lib.rs");
    let names = text.lines().filter_map(|line| line.strip_prefix("pub mod ").or_else(|| line.strip_prefix("mod ")));
    names.map(|name| name.trim_end_matches(';').to_owned()).collect()
}

#[test]
fn modules_of_the_engine_use_only_what_stands_above_them() {
    let modules = modules();
    assert!(modules.len() >= 8, "{modules:?}");
    let mut wrong = Vec::new();
    for (place, module) in modules.iter().enumerate() {
        for (path, text) in rust_files("engine/src") {
            let name = path.to_string_lossy().into_owned();
            let own = name == format!("engine/src/{module}.rs") || name.starts_with(&format!("engine/src/{module}/"));
            if !own || is_test_file(&path) {
                continue;
            }
            let code = code(&text);
            let below = modules[place + 1..].iter().filter(|below| code.contains(&format!("crate::{below}")));
            wrong.extend(below.map(|below| format!("{name} uses {below}, which stands below {module}")));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Modules of the engine that the command line may use: data and pure functions. Everything else must go through
/// `Session`.
const OPEN: [&str; 5] = ["diagnostic", "events", "lineage", "operator", "schedule"];

/// Returns the names directly after `searchmill_engine::`, including those in braces.
fn engine_names(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for after in code.split("searchmill_engine::").skip(1) {
        let (mut depth, mut name) = (0_usize, String::new());
        let is_group = after.starts_with('{');
        for letter in after.chars() {
            match letter {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                letter if depth <= usize::from(is_group) && (letter.is_alphanumeric() || letter == '_') => {
                    name.push(letter);
                    continue;
                }
                _ => {}
            }
            // A name after `::` belongs to the name before it.
            if !name.is_empty() {
                found.push(std::mem::take(&mut name));
            }
            if depth == 0 {
                break;
            }
        }
    }
    found
}

#[test]
fn the_command_line_uses_the_engine_through_its_session() {
    let closed: Vec<String> = modules().into_iter().filter(|module| !OPEN.contains(&module.as_str())).collect();
    assert!(closed.len() >= 5 && closed.iter().any(|module| module == "store"), "{closed:?}");
    let example = "use searchmill_engine::{Plan, store::Store}; searchmill_engine::execute::run(x)";
    assert_eq!(engine_names(example).iter().filter(|name| closed.contains(name)).count(), 2, "both are found");
    for folder in ["src", "examples/rust-operator/src"] {
        let mut wrong = Vec::new();
        for (path, text) in rust_files(folder) {
            let names = engine_names(&text).into_iter().filter(|name| closed.contains(name));
            wrong.extend(names.map(|name| format!("{}: {name}", path.display())));
        }
        assert_eq!(wrong, Vec::<String>::new());
    }
}

/// The crates of the workspace, each with the crates it may use.
const CRATES: [(&str, &[&str]); 10] = [
    ("schemas", &[]),
    ("engine", &["schemas"]),
    ("operators/text", &["engine", "schemas"]),
    ("operators/kernels", &[]),
    ("operators/world", &["text", "engine", "schemas"]),
    ("operators/data", &["text", "engine", "schemas"]),
    ("operators/models", &["kernels", "data", "text", "engine", "schemas"]),
    ("operators/retrieval", &["models", "kernels", "data", "text", "engine", "schemas"]),
    ("operators/agent", &["retrieval", "models", "kernels", "data", "text", "engine", "schemas"]),
    ("operators", &["agent", "retrieval", "models", "kernels", "data", "text", "world", "engine", "schemas"]),
];

/// Returns the lines of a section of a manifest.
fn section<'a>(manifest: &'a str, name: &str) -> Vec<&'a str> {
    let after = manifest.split(&format!("[{name}]\n")).nth(1).unwrap_or_default();
    after.lines().take_while(|line| !line.starts_with('[')).collect()
}

#[test]
fn crates_use_only_what_stands_above_them() {
    let root = std::fs::read_to_string(Path::new(ROOT).join("Cargo.toml")).expect("the manifest");
    for (crate_folder, allowed) in CRATES {
        assert!(root.contains(&format!("\"{crate_folder}\"")), "{crate_folder} is not a member");
        let manifest =
            std::fs::read_to_string(Path::new(ROOT).join(crate_folder).join("Cargo.toml")).expect("a manifest");
        let uses = section(&manifest, "dependencies");
        let ours = uses.iter().filter_map(|line| line.strip_prefix("searchmill-")?.split(['.', ' ']).next());
        let wrong: Vec<&str> = ours.filter(|name| !allowed.contains(name)).collect();
        assert_eq!(wrong, Vec::<&str>::new(), "used by {crate_folder}");
    }
    let members = root.split("members = [").nth(1).and_then(|rest| rest.split(']').next()).expect("members");
    assert_eq!(members.matches('"').count() / 2, CRATES.len() + 1, "each crate stands in CRATES, the fixtures aside");
}

#[test]
fn schemas_depend_on_arrow_and_serde_alone() {
    let text = std::fs::read_to_string(Path::new(ROOT).join("schemas/Cargo.toml")).expect("schemas/Cargo.toml");
    let section = text.split("[dependencies]\n").nth(1).expect("dependencies").split("\n[").next().unwrap_or_default();
    let names = section.lines().filter_map(|line| line.split(['.', ' ', '=']).next()).filter(|name| !name.is_empty());
    let names: BTreeSet<&str> = names.filter(|name| !name.starts_with('#')).collect();
    let allowed = BTreeSet::from(["arrow", "serde", "serde_arrow"]);
    assert!(names.contains("arrow") && names.is_subset(&allowed), "{names:?}");
}

#[test]
fn only_the_display_prints() {
    let words = ["println!", "eprintln!", "print!(", "eprint!(", "stdout()", "stderr()", "dbg!("];
    assert_eq!(offenders("src", &words, &["src/display"]), Vec::<String>::new());
    assert_eq!(offenders("engine/src", &words, &[]), Vec::<String>::new());
    assert_eq!(offenders("operators", &words[..4], &["operators/benches", "operators/examples"]), Vec::<String>::new());
}

#[test]
fn only_the_fingerprint_hashes() {
    let words = ["blake3", "sha2::", "DefaultHasher", "RandomState"];
    assert_eq!(offenders("engine/src", &words, &["engine/src/fingerprint"]), Vec::<String>::new());
}

#[test]
fn only_the_store_writes() {
    let words = ["fs::write", "File::create", "create_dir", "fs::rename", "remove_file", "remove_dir", "OpenOptions"];
    let allowed = ["engine/src/store", "engine/src/operator/testing.rs"];
    assert_eq!(offenders("engine/src", &words, &allowed), Vec::<String>::new());
}

/// It opens without following links.
#[test]
fn one_file_of_the_store_changes_files() {
    let words = [
        "fs::write(",
        "File::create",
        "File::options",
        "create_dir",
        "fs::rename(",
        "fs::remove",
        "fs::copy(",
        "fs::hard_link(",
        "fs::symlink(",
    ];
    // `layout` creates the folder of the store itself, which may be reached through links.
    let allowed = ["engine/src/store/nofollow.rs", "engine/src/store/layout.rs"];
    assert_eq!(offenders("engine/src/store", &words, &allowed), Vec::<String>::new());
}

#[test]
fn only_the_execution_spawns() {
    let words =
        ["tokio::spawn", "thread::spawn", "thread::Builder", "rayon::spawn", "process::Command", "spawn_blocking"];
    // The store's threads: heartbeats of leases, parts that are written beside the kernel, connections.
    let allowed = ["engine/src/execute", "engine/src/store", "engine/src/operator/testing.rs"];
    assert_eq!(offenders("engine/src", &words, &allowed), Vec::<String>::new());
}

fn schema() -> String {
    crate::harness::project::Mill::new().call(&["schema"]).exit(0).stdout
}

#[test]
fn the_shipped_schema_is_the_generated_one() {
    let path = Path::new(ROOT).join("pipelines/pipeline.schema.json");
    let now = schema();
    let parsed: Value = serde_json::from_str(&now).expect("JSON");
    assert!(parsed["$schema"].is_string(), "a JSON Schema");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &now).expect("the schema can be written");
    }
    let shipped = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        shipped == now,
        "pipelines/pipeline.schema.json is out of date: UPDATE=1 cargo test --workspace --test it tidy::"
    );
    for entry in searchmill_operators::all() {
        assert!(now.contains(&format!("\"{}\"", entry.name)), "{} is not in the schema", entry.name);
    }
}

/// Checks that the list at the end of `docs/reference/operators.md` has a sentence for each operator.
#[test]
fn the_reference_lists_the_operators() {
    const HEAD: &str = "## All operators\n\n";
    let path = Path::new(ROOT).join("docs/reference/operators.md");
    let text = std::fs::read_to_string(&path).expect("the reference");
    let (before, _) = text.split_once(HEAD).expect("docs/reference/operators.md has a list of all operators");
    let entries = searchmill_operators::all();
    let items = entries.iter().map(|entry| item(&format!("- **`{}`**: {}", entry.name, entry.about)));
    let now = format!("{before}{HEAD}{}", items.collect::<String>());
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &now).expect("the reference can be written");
    }
    assert!(
        text == now || std::env::var_os("UPDATE").is_some(),
        "docs/reference/operators.md does not list the operators: UPDATE=1 cargo test --workspace --test it tidy::"
    );
}

/// Returns an item of a Markdown list, in lines of at most 96 columns.
fn item(text: &str) -> String {
    let (mut item, mut column) = (String::new(), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 {
            let breaks = column + 1 + length > 96;
            item.push_str(if breaks { "\n  " } else { " " });
            column = if breaks { 2 } else { column + 1 };
        }
        item.push_str(word);
        column += length;
    }
    item + "\n"
}
