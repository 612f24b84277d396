//! The recipes of `examples/cookbook`, run in a copy of their folder as their pages say.

mod decontamination;
mod preference_pairs;
mod questions_judged;
mod retriever_study;
mod two_data_sets;
mod best_of_n;
mod reranker;
mod nightly_budget;
mod foreign_trajectories;
mod own_documents;
mod kills;

use std::path::Path;

use crate::harness::project::Mill;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/cookbook");

/// Returns a project folder with a copy of the files of a recipe.
pub(crate) fn recipe(name: &str) -> Mill {
    let mill = Mill::new();
    copy(&Path::new(FOLDER).join(name), &mill.path(""));
    mill
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let entry = entry.expect("an entry of the recipe's folder");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir_all(&target).expect("a folder");
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).expect("a copy of a file");
        }
    }
}
