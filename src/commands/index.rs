//! Search indexes that the command line names, and how they are searched.

use std::path::Path;

use searchmill_engine::operator::{InputArtifact, TreeInput, TreeKind};
use searchmill_engine::{Failure, Session};
use searchmill_retrieval::SearchSettings;
use serde_json::{Value, json};

use crate::args::FusionArgs;

/// Returns an index: a folder as given, or an artifact in the store.
pub(super) fn index_tree(session: &Session, what: &str) -> Result<TreeInput, Failure> {
    if session.directory().join(what).is_dir() {
        return session.folder(Path::new(what), TreeKind::Index);
    }
    // A name of the store is one word: a path with several parts can only be a folder.
    if Path::new(what).components().count() > 1 {
        return Err(Failure::usage(format!("there is no folder {what}")));
    }
    match session.store().input(what)? {
        InputArtifact::Tree(tree) if tree.kind == TreeKind::Index => Ok(tree),
        _ => {
            Err(Failure::usage(format!("`{what}` is not a search index"))
                .with_help("name the output of an `index` node"))
        }
    }
}

/// Returns the settings of a search for `top_k` passages, checked.
pub(super) fn search_settings(args: &FusionArgs, top_k: usize) -> Result<SearchSettings, Failure> {
    let fusion = serde_yaml::from_str::<Value>(&args.fusion).map_err(|error| wrong(args, &error.to_string()))?;
    let given = json!({"top_k": top_k, "pool": args.pool, "fusion": fusion, "candidates": args.candidates});
    let settings: SearchSettings = serde_json::from_value(given)
        .map_err(|error| wrong(args, &error.to_string()).with_help("write `rrf`, `weighted`, `concat` or `none`"))?;
    match settings.check("").into_iter().next() {
        Some(issue) => Err(wrong(args, &issue.message)),
        None => Ok(settings),
    }
}

fn wrong(args: &FusionArgs, problem: &str) -> Failure {
    Failure::usage(format!("`--fusion {}`: {problem}", args.fusion))
}
