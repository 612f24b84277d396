//! Archives: one file that carries an artifact with its lineage to another store.
//!
//! An archive is a `tar` compressed with zstd. Its first file, `searchmill-archive.json`, lists all other files with
//! size and digest. The others follow in that order, laid out as in a store. Times, owners and modes are fixed, so that
//! equal content gives equal bytes.
//!
//! An import accepts only listed, regular files at valid paths of a store. It verifies all digests before anything
//! becomes visible, and changes nothing that exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fingerprint::{Digest, NodeKey, hash_bytes, hash_reader};
use crate::store::{
    Admission, ArtifactId, Damage, Intake, IoContext, Makers, NodeResult, RUN_FILES, Release, Store, StoreError,
    StoreUse, artifact_place, description_place, memo_place, record_place, release_place, run_time,
};

/// Version of the archive format.
///
/// 1: descriptions of artifacts are among their files; 2: they are beside their folders.
pub const ARCHIVE_FORMAT: u32 = 2;
/// The list of files, the first file.
const MANIFEST: &str = "searchmill-archive.json";
/// Limit of the list's size: about 300,000 files.
const MANIFEST_BYTES: u64 = 48 << 20;
/// Tolerated difference between the clocks of exporting and importing machine.
const AHEAD: Duration = Duration::from_hours(24);
/// Compression level: zstd's default.
const LEVEL: i32 = 3;

/// The subject of an archive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Root {
    /// The artifact.
    pub artifact: ArtifactId,
    /// Key of the result that produced it, if known.
    pub key: Option<NodeKey>,
    /// Its name: `pipeline/node.port`.
    pub name: String,
    /// The run it was taken from, if known.
    pub run: Option<String>,
}

/// One file of an archive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct FileEntry {
    path: String,
    bytes: u64,
    digest: Digest,
}

/// The first file of an archive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Manifest {
    format: u32,
    searchmill: String,
    root: Option<Root>,
    shallow: bool,
    files: Vec<FileEntry>,
}

/// What to export.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// An artifact with its lineage; without one, only cached rows.
    pub root: Option<Root>,
    /// Whether to include only the artifacts of the root's own result; of all others, only records.
    pub shallow: bool,
    /// Whether to include cached rows of external nodes in the lineage (all of the store without a root).
    pub memo: bool,
}

/// Contents of an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Census {
    /// Artifacts.
    pub artifacts: usize,
    /// Results.
    pub results: usize,
    /// Runs.
    pub runs: usize,
    /// Cached rows.
    pub rows: usize,
    /// Bytes before compression.
    pub bytes: u64,
    /// Artifacts of the lineage that are missing in the store.
    pub missing: usize,
    /// Artifacts of the lineage that were released: their descriptions are included, their files are not.
    pub released: usize,
}

/// Why an archive is not imported.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The archive is invalid.
    #[error("the archive is refused, nothing of it was taken: {0}")]
    Refused(String),
}

fn refused(why: impl std::fmt::Display) -> ArchiveError {
    ArchiveError::Refused(why.to_string())
}

enum Body {
    File(PathBuf),
    Open(File),
    Text(Vec<u8>),
}

/// An archive ready to be written.
pub struct Export {
    manifest: Manifest,
    bodies: Vec<Body>,
    /// Its contents.
    pub census: Census,
    /// Nothing is collected from under it.
    _in_use: StoreUse,
}

impl Export {
    /// Collects the requested content and verifies the digest of every artifact.
    ///
    /// # Errors
    /// Fails if the root is not in the store or something is damaged.
    pub fn gather(store: &Store, in_use: StoreUse, request: &Request) -> Result<Self, StoreError> {
        let (root, shallow) = (request.root.clone(), request.shallow);
        let searchmill = env!("CARGO_PKG_VERSION").to_owned();
        let manifest = Manifest { format: ARCHIVE_FORMAT, searchmill, root, shallow, files: Vec::new() };
        let mut export = Self { manifest, bodies: Vec::new(), census: Census::default(), _in_use: in_use };
        let mut memos = BTreeSet::new();
        if let Some(root) = &request.root {
            memos = export.lineage(store, root, request.shallow)?;
        } else if request.memo {
            memos = store.memo_bases().into_iter().collect();
        }
        if request.memo {
            for base in &memos {
                export.memo(store, base)?;
            }
        }
        Ok(export)
    }

    /// Adds a root's lineage. Returns the memos of rows and answers used by its results.
    fn lineage(&mut self, store: &Store, root: &Root, shallow: bool) -> Result<BTreeSet<Digest>, StoreError> {
        let makers = Makers::read(store);
        let nodes = root.run.as_ref().map(|run| store.run_nodes(run)).unwrap_or_default();
        let preferred: BTreeSet<NodeKey> = nodes.into_iter().filter_map(|node| node.key).collect();
        let start = makers.chosen(root.key, &root.artifact, &preferred);
        let keys = makers.ancestry(&start, &preferred);
        let results: Vec<&NodeResult> = keys.iter().filter_map(|key| makers.result(key)).collect();
        let mut runs: BTreeSet<String> = results.iter().map(|result| result.run.clone()).collect();
        runs.extend(root.run.clone());
        for run in &runs {
            // An import refuses a run whose id has no time.
            if store.run(run).is_none() || run_time(run).is_none() {
                continue;
            }
            self.census.runs += 1;
            for name in RUN_FILES {
                let path = store.root().join("runs").join(run).join(name);
                let text = std::fs::read(&path).context("read", &path)?;
                // The last line of an active run may be incomplete.
                let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
                let text = if name == "run.json" { text } else { text[..whole].to_vec() };
                self.text(format!("runs/{run}/{name}"), text);
            }
        }
        let mut artifacts = BTreeSet::from([root.artifact]);
        for result in &results {
            let place =
                record_place(&result.key, if makers.is_collected(&result.key) { "collected" } else { "results" });
            let path = store.root().join(&place);
            let text = std::fs::read(&path).context("read", &path)?;
            self.census.results += 1;
            self.text(place, text);
            if !shallow || start.contains(&result.key) {
                artifacts.extend(result.outputs.values().map(|output| output.id));
            }
        }
        for id in &artifacts {
            self.artifact(store, id, *id == root.artifact)?;
        }
        Ok(results.iter().flat_map(|result| result.memos()).collect())
    }

    fn artifact(&mut self, store: &Store, id: &ArtifactId, needed: bool) -> Result<(), StoreError> {
        // Damage is detected below.
        let brought = store.bring(id);
        let is_gone = brought == Err(Damage::Missing) && store.is_shared();
        let Some(artifact) = store.artifact(id).filter(|_| !is_gone) else {
            if let Some(note) = store.release_of(id) {
                self.census.released += 1;
                self.text(release_place(id), serde_json::to_vec(&note)?);
                return Ok(());
            }
            self.census.missing += 1;
            return if needed { Err(StoreError::NotInStore(*id)) } else { Ok(()) };
        };
        store.verify(id).map_err(|damage| StoreError::Damaged(*id, damage))?;
        let (folder, place) = (store.artifact_folder(id), artifact_place(id));
        self.text(description_place(id), serde_json::to_vec_pretty(&artifact)?);
        for part in &artifact.parts {
            self.push(format!("{place}/{}", part.name), part.bytes, part.digest, Body::File(folder.join(&part.name)));
        }
        self.census.artifacts += 1;
        Ok(())
    }

    fn memo(&mut self, store: &Store, base: &Digest) -> Result<(), StoreError> {
        let Some((path, rows)) = store.merge_memo(base)? else { return Ok(()) };
        let file = store.nameless(&path)?;
        let mut reader = file.try_clone().context("read", &path)?;
        let digest = hash_reader(&mut reader).context("read", &path)?;
        let bytes = file.metadata().context("read", &path)?.len();
        // The clone shares its position with the file, which is written to the archive from here on.
        std::io::Seek::rewind(&mut reader).context("read", &path)?;
        self.census.rows += rows;
        self.push(memo_place(base, &digest), bytes, digest, Body::Open(file));
        Ok(())
    }

    fn text(&mut self, path: String, text: Vec<u8>) {
        self.push(path, text.len() as u64, hash_bytes(&text), Body::Text(text));
    }

    fn push(&mut self, path: String, bytes: u64, digest: Digest, body: Body) {
        self.census.bytes += bytes;
        self.manifest.files.push(FileEntry { path, bytes, digest });
        self.bodies.push(body);
    }

    /// Writes the archive.
    ///
    /// # Errors
    /// Fails if a file cannot be read or `out` cannot be written.
    pub fn write(self, out: impl Write) -> std::io::Result<()> {
        let mut encoder = zstd::Encoder::new(out, LEVEL)?;
        encoder.include_checksum(true)?;
        let mut tar = tar::Builder::new(encoder);
        let manifest = serde_json::to_vec_pretty(&self.manifest)?;
        append(&mut tar, MANIFEST, manifest.len() as u64, &mut manifest.as_slice())?;
        for (file, body) in self.manifest.files.iter().zip(self.bodies) {
            match body {
                Body::Text(text) => append(&mut tar, &file.path, file.bytes, &mut text.as_slice())?,
                Body::Open(mut open) => append(&mut tar, &file.path, file.bytes, &mut open)?,
                Body::File(path) => append(&mut tar, &file.path, file.bytes, &mut File::open(path)?)?,
            }
        }
        tar.into_inner()?.finish()?.flush()
    }
}

fn append(tar: &mut tar::Builder<impl Write>, path: &str, bytes: u64, content: &mut dyn Read) -> std::io::Result<()> {
    // Nothing of this machine or moment: equal content gives equal bytes.
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_size(bytes);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    // The header has promised that length, whatever becomes of the file meanwhile.
    tar.append_data(&mut header, path, content.take(bytes))
}

/// Outcome of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Imported {
    /// New artifacts.
    pub artifacts: usize,
    /// New results.
    pub results: usize,
    /// New runs.
    pub runs: usize,
    /// New cached rows.
    pub rows: usize,
    /// Objects that existed already.
    pub known: usize,
    /// Results that existed already with other outputs; the existing ones stay.
    pub different: usize,
    /// The subject of the archive.
    pub root: Option<String>,
    /// The subject's artifact.
    pub artifact: Option<ArtifactId>,
}

/// A valid path of a store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StorePath {
    Artifact(ArtifactId, String),
    Description(ArtifactId),
    Result(NodeKey, &'static str),
    Run(String, String),
    Memo(Digest, Digest),
    Release(ArtifactId),
}

impl StorePath {
    /// Parses a path. Accepts it only if this program would write exactly the same path.
    fn parse(path: &str) -> Option<Self> {
        let place = match path.split('/').collect::<Vec<_>>().as_slice() {
            ["artifacts", _, id, part @ ..] if is_plain(part) => Self::Artifact(ArtifactId::parse(id)?, part.join("/")),
            ["artifacts", _, name] => Self::Description(ArtifactId::parse(name.strip_suffix(".json")?)?),
            ["results", _, name] => Self::Result(NodeKey(Digest::parse(name.strip_suffix(".json")?)?), "results"),
            ["collected", _, name] => Self::Result(NodeKey(Digest::parse(name.strip_suffix(".json")?)?), "collected"),
            ["runs", id, name] if run_time(id).is_some() && RUN_FILES.contains(name) => {
                Self::Run((*id).to_owned(), (*name).to_owned())
            }
            ["released", _, name] => Self::Release(ArtifactId::parse(name.strip_suffix(".json")?)?),
            ["memo", _, base, name] => Self::Memo(Digest::parse(base)?, Digest::parse(name.strip_suffix(".rows")?)?),
            _ => return None,
        };
        // One place has one path: the digits of a digest are in lower case, and its folder is named by the first two.
        if place.path() == path { Some(place) } else { None }
    }

    fn path(&self) -> String {
        match self {
            Self::Artifact(id, part) => format!("{}/{part}", artifact_place(id)),
            Self::Description(id) => description_place(id),
            Self::Result(key, folder) => record_place(key, folder),
            Self::Run(id, name) => format!("runs/{id}/{name}"),
            Self::Memo(base, segment) => memo_place(base, segment),
            Self::Release(id) => release_place(id),
        }
    }
}

/// Whether all components lead downwards.
fn is_plain(components: &[&str]) -> bool {
    !components.is_empty()
        && components.iter().all(|name| !matches!(*name, "" | "." | "..") && !name.contains(['\\', '\0', ':']))
}

/// Imports an archive into a store.
///
/// # Errors
/// Fails if the archive is damaged or irregular in any way (then nothing is imported), or the store cannot be written.
pub fn import(store: &Store, input: impl Read) -> Result<Imported, ArchiveError> {
    let mut tar = tar::Archive::new(zstd::Decoder::new(input).map_err(refused)?);
    let mut entries = tar.entries().map_err(refused)?;
    let manifest = read_manifest(entries.next())?;
    let places = store_paths(&manifest)?;
    let intake = store.intake()?;
    for (file, place) in manifest.files.iter().zip(&places) {
        let Some(entry) = entries.next() else { return Err(refused(format!("it ends before {}", file.path))) };
        unpack(&intake, entry, file, place)?;
    }
    if let Some(more) = entries.next() {
        let path = more.map(|entry| entry_path(&entry)).unwrap_or_default();
        return Err(refused(format!("`{path}` is not listed")));
    }
    // Nothing is visible in the store until everything has been checked.
    let checked = check(&intake, &manifest, &places)?;
    let admitted = admit(&intake, checked, manifest.root)?;
    store.send_pending()?;
    Ok(admitted)
}

type Entry<'a, R> = std::io::Result<tar::Entry<'a, R>>;

fn entry_path(entry: &tar::Entry<'_, impl Read>) -> String {
    String::from_utf8_lossy(&entry.path_bytes()).into_owned()
}

fn read_manifest(entry: Option<Entry<'_, impl Read>>) -> Result<Manifest, ArchiveError> {
    let entry = entry.ok_or_else(|| refused("it is empty"))?.map_err(refused)?;
    if entry_path(&entry) != MANIFEST || !entry.header().entry_type().is_file() {
        return Err(refused(format!("not a searchmill archive: it does not start with {MANIFEST}")));
    }
    if entry.size() > MANIFEST_BYTES {
        let (found, most) = (entry.size() >> 20, MANIFEST_BYTES >> 20);
        return Err(refused(format!("{MANIFEST} has {found} MiB, the limit is {most} MiB")));
    }
    let mut text = Vec::new();
    entry.take(MANIFEST_BYTES).read_to_end(&mut text).map_err(refused)?;
    // The version is read before anything else of the list is trusted.
    if let Ok(list) = serde_json::from_slice::<Value>(&text)
        && let Some(found) = list["format"].as_u64()
        && !(1..=u64::from(ARCHIVE_FORMAT)).contains(&found)
    {
        return Err(refused(format!("it has format {found}, this searchmill reads formats 1 to {ARCHIVE_FORMAT}")));
    }
    serde_json::from_slice(&text).map_err(|error| refused(format!("{MANIFEST}: {error}")))
}

fn store_paths(manifest: &Manifest) -> Result<Vec<StorePath>, ArchiveError> {
    let mut seen = BTreeSet::new();
    let mut places = Vec::with_capacity(manifest.files.len());
    for FileEntry { path, .. } in &manifest.files {
        let place = StorePath::parse(path).ok_or_else(|| refused(format!("`{path}` is not a path of a store")))?;
        // Equal places have equal paths.
        if !seen.insert(path) {
            return Err(refused(format!("`{path}` is listed twice")));
        }
        places.push(place);
    }
    Ok(places)
}

fn unpack(intake: &Intake, entry: Entry<'_, impl Read>, file: &FileEntry, to: &StorePath) -> Result<(), ArchiveError> {
    let mut entry = entry.map_err(refused)?;
    let path = entry_path(&entry);
    if path != file.path || !entry.header().entry_type().is_file() {
        return Err(refused(format!("expected the regular file {}, found `{path}`", file.path)));
    }
    if entry.size() != file.bytes {
        return Err(refused(format!("{path} has {} bytes, listed are {}", entry.size(), file.bytes)));
    }
    let mut content = Tracked { inner: &mut entry, failed: None };
    let taken = intake.add(&to.path(), &mut content, file.bytes);
    if let Some(error) = content.failed {
        return Err(refused(format!("{path}: {error}")));
    }
    match taken? {
        (digest, bytes) if digest == file.digest && bytes == file.bytes => Ok(()),
        _ => Err(refused(format!("{path} does not match the list (digest differs)"))),
    }
}

/// A reader that distinguishes archive faults from disk faults.
struct Tracked<'a> {
    inner: &'a mut dyn Read,
    failed: Option<String>,
}

impl Read for Tracked<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let outcome = self.inner.read(buffer);
        if let Err(error) = &outcome {
            self.failed = Some(error.to_string());
        }
        outcome
    }
}

/// The verified contents of an archive.
#[derive(Default)]
struct Checked {
    artifacts: BTreeMap<ArtifactId, Vec<(String, Digest)>>,
    results: Vec<(NodeResult, &'static str)>,
    runs: BTreeSet<String>,
    memos: Vec<(Digest, Digest)>,
    releases: Vec<(ArtifactId, Release)>,
}

fn check(intake: &Intake, manifest: &Manifest, places: &[StorePath]) -> Result<Checked, ArchiveError> {
    let mut checked = Checked::default();
    let mut described = BTreeSet::new();
    for (place, file) in places.iter().zip(&manifest.files) {
        let path = &file.path;
        match place {
            StorePath::Artifact(id, part) => {
                checked.artifacts.entry(*id).or_default().push((part.clone(), file.digest));
            }
            StorePath::Description(id) => {
                described.insert(*id);
                checked.artifacts.entry(*id).or_default();
            }
            StorePath::Result(key, folder) => {
                let result = intake.result(key, folder);
                let result = result.ok_or_else(|| refused(format!("{path} is not a record of that key")))?;
                checked.results.push((result, folder));
            }
            StorePath::Run(id, _) => drop(checked.runs.insert(id.clone())),
            StorePath::Release(id) => {
                let note = intake.release(id);
                let note = note.ok_or_else(|| refused(format!("{path} is not the description of that artifact")))?;
                checked.releases.push((*id, note));
            }
            StorePath::Memo(base, segment) => {
                if *segment != file.digest || intake.memo_rows(base, segment).is_none() {
                    return Err(refused(format!("{path} contains something other than cached rows")));
                }
                checked.memos.push((*base, *segment));
            }
        }
    }
    // Archives of earlier versions have the description among the files.
    for (id, files) in &mut checked.artifacts {
        if !described.contains(id) {
            files.retain(|(name, _)| name != "artifact.json");
        }
    }
    if let Some((id, _)) = checked.artifacts.iter().find(|(id, files)| !intake.holds_artifact(id, files)) {
        return Err(refused(format!("the files of the artifact {id} do not match it")));
    }
    // A run dated later than tomorrow would stay the newest one, in lists and for collection.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let latest = (now + AHEAD).as_secs_f64();
    for id in &checked.runs {
        let run = intake.run(id).ok_or_else(|| refused(format!("the record of the run {id} cannot be read")))?;
        if [run_time(id), Some(run.started), run.finished].into_iter().flatten().any(|time| time > latest) {
            let why =
                "is dated in the future: the clock of this machine or of the exporting one is off by more than a day";
            return Err(refused(format!("the run {id} {why}")));
        }
    }
    Ok(checked)
}

/// Admits files first, then the records that refer to them.
fn admit(intake: &Intake, checked: Checked, root: Option<Root>) -> Result<Imported, ArchiveError> {
    let artifact = root.as_ref().map(|root| root.artifact);
    let mut imported = Imported { artifact, root: root.map(|root| root.name), ..Imported::default() };
    for id in checked.artifacts.keys() {
        let admission = intake.admit_artifact(id)?;
        count(admission, &mut imported.artifacts, &mut imported.known, &mut imported.different);
    }
    for (id, note) in &checked.releases {
        imported.known += usize::from(!intake.admit_release(id, note)?);
    }
    for (base, segment) in &checked.memos {
        imported.rows += intake.admit_memo(base, segment)?;
    }
    for (result, folder) in &checked.results {
        let admission = intake.admit_result(result, folder)?;
        count(admission, &mut imported.results, &mut imported.known, &mut imported.different);
    }
    for id in &checked.runs {
        let admission = intake.admit_run(id)?;
        count(admission, &mut imported.runs, &mut imported.known, &mut imported.different);
    }
    Ok(imported)
}

fn count(admission: Admission, new: &mut usize, known: &mut usize, different: &mut usize) {
    match admission {
        Admission::New => *new += 1,
        Admission::Known => *known += 1,
        Admission::Different => *different += 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_too_long_is_refused_before_it_is_read() {
        let mut tar = tar::Builder::new(Vec::new());
        append(&mut tar, MANIFEST, MANIFEST_BYTES + 1, &mut std::io::repeat(b' ').take(MANIFEST_BYTES + 1)).unwrap();
        let bytes = tar.into_inner().unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let error = read_manifest(archive.entries().unwrap().next()).unwrap_err();
        assert!(error.to_string().contains("the limit is 48 MiB"), "{error}");
    }

    #[test]
    fn only_places_of_a_store_are_taken() {
        let hex = hash_bytes(b"x").hex();
        let fold = &hex[..2];
        for path in [
            format!("artifacts/{fold}/{hex}/artifact.json"),
            format!("artifacts/{fold}/{hex}.json"),
            format!("artifacts/{fold}/{hex}/deep/er/part"),
            format!("results/{fold}/{hex}.json"),
            format!("collected/{fold}/{hex}.json"),
            "runs/20261120-131502-1a2bf00d/run.json".to_owned(),
            format!("memo/{fold}/{hex}/{hex}.rows"),
            format!("released/{fold}/{hex}.json"),
        ] {
            assert!(StorePath::parse(&path).is_some_and(|place| place.path() == path), "{path}");
        }
        let upper = hex.to_uppercase();
        for path in [
            format!("artifacts/{fold}/{hex}"),
            format!("artifacts/{fold}/{hex}/"),
            format!("artifacts/{fold}/{hex}/../x"),
            format!("artifacts/{fold}/{hex}/a//b"),
            format!("artifacts/{fold}/{hex}/a\\b"),
            format!("artifacts/00x/{hex}/a"),
            format!("artifacts/{}/{upper}/a", &upper[..2]),
            format!("/artifacts/{fold}/{hex}/a"),
            format!("./artifacts/{fold}/{hex}/a"),
            format!("results/{fold}/../{hex}.json"),
            "runs/../run.json".to_owned(),
            "runs/x/other".to_owned(),
            "runs/zzz/run.json".to_owned(),
            "runs/99991120-131502-1A2BF00D/run.json".to_owned(),
            "runs/20261120-131502-1a2bf00d/imported".to_owned(),
            "format".to_owned(),
            "leases/store".to_owned(),
            "pins/a.json".to_owned(),
            String::new(),
        ] {
            assert_eq!(StorePath::parse(&path), None, "{path}");
        }
    }
}
