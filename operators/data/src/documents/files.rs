//! Reads the documents of many files: files and records are read in parallel, rows come in their order.

use std::collections::BTreeSet;
use std::io::{Error, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use searchmill_engine::operator::{Context, OperatorError};
use searchmill_schemas::{Document, Reject, to_batch};
use serde_json::{Map, Value};

use super::content::{Content, damaged, no_text, too_large};
use super::kind::Kind;
use super::warc::{Bad, Record, Records};
use super::{docx, encoding, html, http, markdown, pdf};
use crate::source::format::{Compression, decompressed, unpacked_name};
use crate::source::location::{Place, SourceFile};
use crate::source::ordered::Flow;
use crate::source::record::{Decoded, Fault};
use crate::source::stream;

/// Default of `max_bytes`.
pub const MAX_BYTES: u64 = 64 << 20;

/// Files, or records of one file, that are read together.
const GROUP: usize = 16;

/// Bytes of files or records that are read together.
const GROUP_BYTES: usize = 4 << 20;

/// How many times its size a compressed file is taken to unpack to.
const UNPACKED: u64 = 4;

/// Larger files are read one at a time, so that memory holds one of them.
const LARGE: usize = 8 << 20;

/// Longest text of a document, whatever `max_bytes` is: rows of a group share 32-bit offsets.
const MAX_TEXT: usize = 64 << 20;

/// What is read together.
pub struct Part(Inner);

enum Inner {
    Files(Vec<SourceFile>),
    Records(SourceFile, Vec<Result<Record, Bad>>),
}

/// Reads documents.
pub struct Documents<'a> {
    context: &'a Context,
    compression: Compression,
    limit: u64,
    large: Mutex<()>,
}

impl<'a> Documents<'a> {
    /// Files and records with more than `limit` bytes are rejected.
    pub fn new(context: &'a Context, compression: Compression, limit: u64) -> Self {
        Self { context, compression, limit: limit.min(u64::MAX / 8), large: Mutex::new(()) }
    }

    /// Passes on groups of files, and groups of records of WARC files, until `push` returns [`Flow::Stop`].
    ///
    /// # Errors
    /// Fails if a WARC file cannot be read, other than by its content.
    pub fn parts(&self, files: &[SourceFile], push: &mut dyn FnMut(Part) -> Flow) -> Result<(), OperatorError> {
        // A WARC file is read record by record, alone.
        for group in files.chunk_by(|one, next| !is_warc(one) && !is_warc(next)) {
            let mut rest = group;
            while !rest.is_empty() {
                let (files, others) = rest.split_at(read_together(rest));
                rest = others;
                let flow = match files {
                    [file] if is_warc(file) => self.records(file, push)?,
                    files => push(Part(Inner::Files(files.to_vec()))),
                };
                if flow == Flow::Stop {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Opens the decompressed bytes of a file. Of many small local files, opening through the library of object stores
    /// would be most of the work; it takes no names but UTF-8 either.
    fn open(&self, file: &SourceFile) -> Result<Box<dyn Read + Send>, OperatorError> {
        let Place::Local(path) = &file.place else { return stream::bytes(file, self.compression, self.context) };
        let opened = std::fs::File::open(path);
        let read = opened.and_then(|raw| decompressed(self.context.watched(path, Box::new(raw)), self.compression));
        read.map_err(|error| stream::broken(file, &error))
    }

    fn records(&self, file: &SourceFile, push: &mut dyn FnMut(Part) -> Flow) -> Result<Flow, OperatorError> {
        let mut records = Records::new(self.open(file)?, self.limit);
        let (mut group, mut bytes) = (Vec::new(), 0);
        loop {
            let next = records.next().map_err(|error| stream::broken(file, &error))?;
            // Also without a record: the last group is passed on at the end.
            let ended = next.is_none();
            bytes += next.iter().flatten().map(|record| record.body.len()).sum::<usize>();
            group.extend(next);
            if ended || bytes > GROUP_BYTES || group.len() >= GROUP {
                bytes = 0;
                let flow = push(Part(Inner::Records(file.clone(), std::mem::take(&mut group))));
                if ended || flow == Flow::Stop {
                    return Ok(flow);
                }
            }
        }
    }

    /// Reads a part.
    ///
    /// # Errors
    /// Fails if a file cannot be read, other than by its content.
    pub fn read(&self, part: Part) -> Result<Decoded, OperatorError> {
        let (mut documents, mut rejects, mut skipped) = (Vec::new(), Vec::new(), 0);
        let file = match part.0 {
            Inner::Files(files) => {
                for file in &files {
                    self.context.check_cancelled()?;
                    match self.file(file)? {
                        Ok(document) => documents.push(document),
                        Err(fault) => rejects.push(reject(&file.below, fault)),
                    }
                }
                files.first().map_or_else(|| Arc::from(""), |file| Arc::clone(&file.name))
            }
            Inner::Records(file, records) => {
                for record in records {
                    let read = record.and_then(|record| {
                        let offset = record.offset;
                        self.record(&file, &record).map_err(|fault| Bad { offset, fault })
                    });
                    match read {
                        Ok(Some(document)) => documents.push(document),
                        Ok(None) => skipped += 1,
                        Err(bad) => rejects.push(reject(&name_of(&file, bad.offset), bad.fault)),
                    }
                }
                file.name
            }
        };
        let (batch, lines) = (to_batch(&documents)?, vec![0; documents.len()]);
        let (dropped, nulled, remarks) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
        Ok(Decoded { file, batch, lines, rejects, dropped, nulled, remarks, skipped })
    }

    fn file(&self, file: &SourceFile) -> Result<Result<Document, Fault>, OperatorError> {
        let (bytes, _alone) = match content_of(&mut *self.open(file)?, self.limit, || self.alone()) {
            Ok(read) => read,
            Err(error) if stream::is_damage(&error) => {
                return Ok(Err(damaged(format!("the file is damaged or cut short: {error}"))));
            }
            Err(error) => return Err(stream::broken(file, &error)),
        };
        if bytes.len() as u64 > self.limit {
            return Ok(Err(too_large("the file", self.limit)));
        }
        let read = Kind::of(Kind::of_name(&file.name), &bytes)
            .and_then(|kind| Ok((kind, self.content(kind, &bytes, None, None)?)));
        Ok(read.map(|(kind, content)| {
            let title = content.title.clone().unwrap_or_else(|| stem(&file.name).to_owned());
            let facts = [("path", Some(&*file.below)), ("media_type", Some(kind.media_type()))];
            document(file.below.to_string(), Some(title), content, &facts)
        }))
    }

    /// Reads a record; `None` for one that is no document: requests, redirects, images, pages without a byte.
    fn record(&self, file: &SourceFile, record: &Record) -> Result<Option<Document>, Fault> {
        let unpacked;
        let (kind, bytes, content_type) = match record.header("warc-type") {
            Some("response") => {
                unpacked = http::read(&record.body, self.limit)?;
                let content_type = unpacked.content_type.as_deref();
                let kind = match content_type {
                    // A page of an error is no document.
                    _ if !(200..300).contains(&unpacked.status) => None,
                    Some(content_type) => Kind::of_content_type(content_type),
                    None => Kind::of(None, &unpacked.body).ok(),
                };
                (kind, unpacked.body.as_slice(), content_type)
            }
            Some("conversion" | "resource") => {
                let content_type = record.header("content-type");
                (content_type.and_then(Kind::of_content_type), record.body.as_slice(), content_type)
            }
            _ => return Ok(None),
        };
        let Some(kind) = kind.filter(|_| !bytes.is_empty()) else { return Ok(None) };
        let kind = Kind::of_record(kind, bytes)?;
        let url = record.header("warc-target-uri").map(|url| url.trim_matches(['<', '>']));
        let charset = content_type.and_then(encoding::of_content_type);
        // Memory holds one large document at a time.
        let alone = if bytes.len() > LARGE { Some(self.alone()) } else { None };
        let content = self.content(kind, bytes, charset, url)?;
        drop(alone);
        let id = record.header("warc-record-id").map(|id| id.trim_matches(['<', '>'])).filter(|id| !id.is_empty());
        let id = id.map_or_else(|| name_of(file, record.offset), str::to_owned);
        let facts = [
            ("path", Some(&*file.below)),
            ("media_type", Some(kind.media_type())),
            ("url", url),
            ("language", record.header("warc-identified-content-language")),
            ("crawled", record.header("warc-date")),
        ];
        let title = content.title.clone();
        Ok(Some(document(id, title, content, &facts)))
    }

    /// Waits until no other large file is read.
    fn alone(&self) -> MutexGuard<'_, ()> {
        self.large.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the content of a file or record. What a library fails on is a reject.
    fn content(&self, kind: Kind, bytes: &[u8], charset: Option<String>, url: Option<&str>) -> Result<Content, Fault> {
        // The libraries read files of strangers; a panic in one must not end the node.
        let read = catch_unwind(AssertUnwindSafe(|| content(kind, bytes, charset, url, self.limit)));
        let content = read.unwrap_or_else(|_| Err(damaged("its reader failed on it; convert it to another format")))?;
        if content.text.len() > MAX_TEXT {
            let message = format!("its text has {} bytes; a document has at most {MAX_TEXT}", content.text.len());
            return Err(Fault { message, ..too_large("", 0) });
        }
        Ok(content)
    }
}

fn is_warc(file: &SourceFile) -> bool {
    Kind::of_name(&file.name) == Some(Kind::Warc)
}

/// Returns how many files, the first ones, are read together, by about how many bytes they unpack to.
fn read_together(files: &[SourceFile]) -> usize {
    let (mut count, mut bytes) = (0, 0_u64);
    for file in files.iter().take(GROUP) {
        // The size of a file on another machine is not known.
        if let Place::Local(path) = &file.place {
            let packed = std::fs::metadata(path).map_or(0, |found| found.len());
            let is_plain = Compression::of_name(&file.name) == Compression::None;
            bytes = bytes.saturating_add(if is_plain { packed } else { packed.saturating_mul(UNPACKED) });
        }
        if bytes > GROUP_BYTES as u64 {
            break;
        }
        count += 1;
    }
    // One at least, however large it is.
    count.max(1)
}

/// Reads at most `limit` + 1 bytes. More than [`LARGE`] are read with the lock, which is returned too.
fn content_of<L>(reader: &mut dyn Read, limit: u64, lock: impl FnOnce() -> L) -> Result<(Vec<u8>, Option<L>), Error> {
    let mut bytes = Vec::new();
    let mut reader = reader.take(limit + 1);
    reader.by_ref().take(LARGE as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() <= LARGE {
        return Ok((bytes, None));
    }
    let lock = lock();
    reader.read_to_end(&mut bytes)?;
    Ok((bytes, Some(lock)))
}

fn content(kind: Kind, bytes: &[u8], charset: Option<String>, url: Option<&str>, limit: u64) -> Result<Content, Fault> {
    let charset = charset.or_else(|| if kind == Kind::Html { encoding::of_page(bytes) } else { None });
    let decoded = match kind {
        Kind::Pdf => return pdf::read(bytes, limit),
        Kind::Docx => return docx::read(bytes, limit),
        _ => encoding::decode(bytes, charset.as_deref()),
    };
    match kind {
        Kind::Markdown => Ok(markdown::read(&decoded.text)?.with(decoded.details)),
        Kind::Html => Ok(html::read(&decoded.text, url)?.with(decoded.details)),
        _ if decoded.text.trim().is_empty() => Err(no_text("the file has no text")),
        _ => Ok(decoded),
    }
}

fn document(id: String, title: Option<String>, content: Content, facts: &[(&str, Option<&str>)]) -> Document {
    let known = facts.iter().filter_map(|(name, value)| Some(((*name).to_owned(), Value::from((*value)?))));
    let content = content.with(known.collect::<Map<_, _>>());
    Document { id, title, text: content.text, metadata: Some(Value::Object(content.details).to_string()) }
}

/// The name of a file without its endings.
fn stem(name: &str) -> &str {
    let unpacked = unpacked_name(name);
    match unpacked.rsplit_once('.') {
        Some((stem, _)) if !stem.is_empty() => stem,
        _ => unpacked,
    }
}

fn name_of(file: &SourceFile, offset: u64) -> String {
    format!("{}@{offset}", file.below)
}

fn reject(id: &str, fault: Fault) -> Reject {
    Reject { id: id.to_owned(), kind: fault.kind.to_owned(), message: fault.message, attempts: 1, detail: None }
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::testing::Harness;

    use super::*;

    #[test]
    fn titles_lack_the_ending_whatever_its_case() {
        assert_eq!(["a.txt", "a.TXT.GZ", "a.b.md.zst", ".gz", "a"].map(stem), ["a", "a", "a.b", ".gz", "a"]);
    }

    /// Returns zeros without end, and counts them.
    struct Endless(u64);

    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            buffer.fill(0);
            self.0 += buffer.len() as u64;
            assert!(self.0 < 4 * MAX_BYTES, "{} bytes are read", self.0);
            Ok(buffer.len())
        }
    }

    #[test]
    fn no_more_of_a_file_is_held_than_the_limit() {
        let read = |limit: u64| {
            let mut endless = Endless(0);
            let mut locked = None;
            let (bytes, lock) = content_of(&mut endless, limit, || locked = Some(())).unwrap();
            assert_eq!((bytes.len() as u64, endless.0), (limit + 1, limit + 1));
            assert_eq!(lock, locked);
            lock.is_some()
        };
        assert_eq!(
            [0, 100, LARGE as u64 - 1, LARGE as u64, 3 * LARGE as u64].map(read),
            [false, false, false, true, true]
        );
        let small = content_of(&mut &b"abc"[..], MAX_BYTES, || panic!("a small file waits for none")).unwrap();
        assert_eq!(small.0, b"abc");
    }

    #[test]
    fn large_files_are_read_in_groups_of_their_own() {
        let harness = Harness::new();
        let file = |name: &str, size: u64| {
            let path = harness.path().join(name);
            std::fs::File::create(&path).unwrap().set_len(size).unwrap();
            SourceFile::local(&path)
        };
        let half = GROUP_BYTES as u64 / 2;
        let mut files: Vec<SourceFile> = (0..5).map(|number| file(&format!("{number}.txt"), half)).collect();
        files.extend((0..20).map(|number| file(&format!("small{number}.txt"), 1)));
        files.push(file("large.txt", 3 * half));
        let context = harness.context();
        let documents = Documents::new(&context, Compression::Auto, MAX_BYTES);
        let mut sizes = Vec::new();
        let push = &mut |Part(inner)| {
            let Inner::Files(files) = inner else { panic!("no WARC file is there") };
            sizes.push(files.len());
            Flow::Continue
        };
        documents.parts(&files, push).unwrap();
        assert_eq!(sizes, [2, 2, 16, 5, 1]);
    }
}
