//! Documents of files: texts, Markdown, HTML, PDF, DOCX, and the records of WARC and WET files.
//!
//! `kind` tells what a file is, by its name and its first bytes; one file per kind reads it; `files` reads many, in
//! parallel and in order. Whatever a file contains, it becomes a document or a reject. What one file may cost is bounded
//! by its size and the size of what it unpacks to, never by time: the same bytes give the same result on every machine.

mod content;
mod depth;
mod docx;
mod encoding;
pub mod files;
mod html;
mod http;
pub mod kind;
mod markdown;
mod pdf;
mod warc;
