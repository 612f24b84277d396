//! Identifies a folder outside the store by its content.

use std::fs;
use std::path::Path;

use super::artifact::{Artifact, ArtifactId};
use super::description::{IN_FOLDER, is_in_folder};
use super::part::file_part;
use crate::error::OperatorError;
use crate::operator::{PortType, TreeKind};
use crate::store::error::IoContext;

/// Returns the id that the folder would have as an artifact. Reads all its files.
///
/// # Errors
/// Fails if a file cannot be read.
pub(crate) fn outside_id(folder: &Path, kind: TreeKind) -> Result<ArtifactId, OperatorError> {
    let described = is_in_folder(folder);
    let mut names = Vec::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(current) = pending.pop() {
        for entry in fs::read_dir(&current).context("read", &current)? {
            let path = entry.context("read", &current)?.path();
            if path.is_dir() {
                pending.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).unwrap_or(&path);
            // The description in a store of an earlier version is not part of the content.
            if !(described && name == Path::new(IN_FOLDER)) {
                names.push(name.to_string_lossy().into_owned());
            }
        }
    }
    names.sort();
    let parts = names.into_iter().map(|name| file_part(folder, name, 0)).collect::<Result<_, _>>()?;
    Ok(Artifact { artifact_type: (&PortType::Tree(kind)).into(), parts }.id())
}
