//! Search indexes that the command line names, and how they are searched.

use std::path::Path;

use searchmill_engine::operator::{InputArtifact, TreeInput, TreeKind};
use searchmill_engine::{Failure, Session};
use searchmill_retrieval::SearchSettings;
use serde_json::Value;

/// Returns an index: a folder as given, or an artifact in the store.
pub(super) fn index_tree(session: &Session, what: &str) -> Result<TreeInput, Failure> {
    if session.directory().join(what).is_dir() {
        return session.folder(Path::new(what), TreeKind::Index);
    }
    if Path::new(what).components().count() > 1 {
        return Err(Failure::usage(format!("there is no folder {what}")));
    }
    match session.input(what)? {
        InputArtifact::Tree(tree) if tree.kind == TreeKind::Index => Ok(tree),
        _ => {
            Err(Failure::usage(format!("`{what}` is not a search index"))
                .with_help("name the output of an `index` node"))
        }
    }
}

/// Adds the value of `--fusion` to the settings of a search, and checks them.
pub(super) fn search_settings(fusion: &str, mut given: Value) -> Result<SearchSettings, Failure> {
    let wrong = |problem: String| Failure::usage(format!("`--fusion {fusion}`: {problem}"));
    given["fusion"] = serde_yaml::from_str(fusion).map_err(|error| wrong(error.to_string()))?;
    let settings: SearchSettings = serde_json::from_value(given)
        .map_err(|error| wrong(error.to_string()).with_help("write `rrf`, `weighted` or `none`"))?;
    match settings.check("").into_iter().next() {
        Some(issue) => Err(wrong(issue.message)),
        None => Ok(settings),
    }
}
