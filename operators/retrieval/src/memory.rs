//! The memory that opened indexes need.

use std::path::Path;

/// Files that are read into memory as a whole: vectors, and weights of encoders. All others are mapped.
const READ: [&str; 2] = ["faiss", "safetensors"];

/// Returns the bytes of memory that indexes need when they are open, without the buffers of searches.
///
/// # Errors
/// Fails if a folder cannot be read.
pub fn memory_need(trees: &[&searchmill_engine::operator::TreeInput]) -> std::io::Result<u64> {
    trees.iter().map(|tree| read_whole(&tree.path)).sum()
}

/// Returns the bytes of the files below a folder that are read as a whole.
fn read_whole(folder: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in fs_err::read_dir(folder)? {
        let path = entry?.path();
        let metadata = fs_err::metadata(&path)?;
        if metadata.is_dir() {
            bytes += read_whole(&path)?;
        } else if let Some(ending) = path.extension()
            && READ.iter().any(|read| ending == *read)
        {
            bytes += metadata.len();
        }
    }
    Ok(bytes)
}
