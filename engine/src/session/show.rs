//! Reads artifacts by node or id.

use std::path::{Path, PathBuf};

use super::failure::{Failure, check_released};
use super::find::{Origin, find};
use super::open::{Session, StoreView};
use crate::node_id::NodeId;
use crate::operator::{InputArtifact, RowsInput, TreeInput, TreeKind};
use crate::store::{ArtifactId, Store, outside_id};

/// An artifact to show.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Shown {
    /// The node, if it was found in a run.
    pub node: Option<NodeId>,
    /// That run.
    pub run: Option<String>,
    /// Id of the artifact.
    pub artifact: ArtifactId,
    /// The node's summary of the result; empty if a port was named.
    pub summary: String,
    /// Where the artifact is from, if the newest run has no output of the node.
    pub older: Option<Older>,
}

/// The files of an artifact, for other programs. They are read-only.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Located {
    /// Folder of the files. It contains nothing else.
    pub folder: PathBuf,
    /// The files, in order, relative to the folder.
    pub files: Vec<String>,
    /// Record kind of a table, or kind of a folder.
    pub kind: String,
    /// Number of rows; `None` for a folder.
    pub rows: Option<u64>,
    /// Node, run and pipeline of the artifact, if the newest run has no output of the node.
    pub older: Option<Older>,
}

/// An output of a run before the newest one.
#[derive(Clone, Debug)]
pub struct Older {
    /// The node.
    pub node: NodeId,
    /// The run.
    pub run: String,
    /// Its pipeline.
    pub pipeline: String,
}

impl Older {
    /// Describes an output that was found without a run's name, unless it is of the newest run.
    fn of(store: &Store, run: Option<&str>, origin: &Origin) -> Option<Self> {
        let Origin::Output { run: id, node, .. } = origin else { return None };
        if run.is_some() || store.newest_runs().first().is_none_or(|newest| newest == id) {
            return None;
        }
        let pipeline = store.run(id).map(|run| run.pipeline).unwrap_or_default();
        Some(Self { node: node.node.clone(), run: id.clone(), pipeline })
    }
}

impl Session {
    /// Returns the rows of a table: `NODE` or `NODE.PORT` of the newest run of its pipeline, an artifact's id, or a pin.
    /// [`RowsInput::batches`] reads them bit by bit. For the rows of a chosen run, see [`StoreView::find`].
    ///
    /// ```
    /// # use searchmill_engine::Session;
    /// # use searchmill_schemas::Document;
    /// # fn example(session: &Session) -> Result<(), Box<dyn std::error::Error>> {
    /// for document in session.rows("corpus")?.read_all::<Document>()? {
    ///     println!("{}: {}", document.id, document.text);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if there is no such table, if several pipelines of the store have such a node, if only an earlier run has it,
    /// or if its files are gone or damaged.
    pub fn rows(&self, what: &str) -> Result<RowsInput, Failure> {
        match self.store().input(what)? {
            InputArtifact::Rows(rows) => Ok(rows),
            InputArtifact::Tree(_) => Err(Failure::usage(format!("`{what}` is a folder, not a table"))),
        }
    }

    /// Opens a folder outside the store, with the digest that it would have as an artifact.
    ///
    /// # Errors
    /// Fails if a file cannot be read.
    pub fn folder(&self, path: &Path, kind: TreeKind) -> Result<TreeInput, Failure> {
        let path = self.directory().join(path);
        let digest = outside_id(&path, kind)?.to_string();
        Ok(TreeInput { kind, path, digest })
    }
}

impl StoreView<'_> {
    /// Returns the files of an artifact, named as for [`StoreView::find`]. They are fetched from a shared store.
    ///
    /// # Errors
    /// Fails if there is none, or if its files are gone or damaged.
    pub fn locate(&self, what: &str, run: Option<&str>) -> Result<Located, Failure> {
        let store = self.session.existing()?;
        let named = find(self.session, what, run, false)?;
        let (id, older) = (named.artifact, Older::of(store, run, &named.origin));
        let opened = self.artifact(&id)?;
        let Some(artifact) = store.artifact(&id) else {
            return Err(Failure::Other(format!("the artifact {id} is gone")));
        };
        let folder = store.artifact_folder(&id);
        let files = artifact.parts.iter().map(|part| part.name.clone()).collect();
        let (kind, rows) = match opened {
            InputArtifact::Tree(tree) => (tree.kind.name(), None),
            InputArtifact::Rows(rows) => (rows.kind.name(), Some(rows.rows)),
        };
        Ok(Located { folder: std::path::absolute(folder)?, files, kind: kind.to_owned(), rows, older })
    }

    /// Returns the artifact of that name, resolved as by [`Session::rows`].
    ///
    /// # Errors
    /// Fails if there is none, or if its files are damaged.
    pub fn input(&self, what: &str) -> Result<InputArtifact, Failure> {
        self.artifact(&find(self.session, what, None, false)?.artifact)
    }

    /// Opens an artifact.
    ///
    /// # Errors
    /// Fails if it is not in the store, or if its files are damaged.
    pub fn artifact(&self, id: &ArtifactId) -> Result<InputArtifact, Failure> {
        let store = self.session.existing()?;
        check_released(store, id)?;
        Ok(store.open_input(id)?)
    }

    /// Returns the artifact to show for a node, a port, an artifact's id or a pin; with `rejects`, the node's rejects.
    /// `run`: the id of the run that has the node ([`RunSummary::run`](crate::RunSummary::run)); by default the newest.
    ///
    /// # Errors
    /// Fails if there is none.
    pub fn find(&self, what: &str, run: Option<&str>, rejects: bool) -> Result<Shown, Failure> {
        let store = self.session.existing()?;
        let named = find(self.session, what, run, rejects)?;
        let (artifact, older) = (named.artifact, Older::of(store, run, &named.origin));
        let Origin::Output { node, run, .. } = named.origin else {
            return Ok(Shown { node: None, run: None, artifact, summary: String::new(), older: None });
        };
        // A summary is about the whole result, not about one port.
        let whole = node.node == what && !rejects;
        let summary = match node.key {
            Some(key) if whole => store.result(&key).map(|result| result.summary).unwrap_or_default(),
            _ => String::new(),
        };
        Ok(Shown { node: Some(node.node), run: Some(run), artifact, summary, older })
    }
}
