//! DOCX: paragraphs as lines, headings as Markdown headings, rows of tables as lines.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};

use flate2::read::DeflateDecoder;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesRef, BytesStart, Event};
use quick_xml::reader::Reader;
use zip::{CompressionMethod, ZipArchive};

use super::content::{Content, damaged, no_text, too_large};
use super::markdown;
use crate::source::record::Fault;

/// Reads a document. No part of the archive is unpacked beyond `limit` bytes.
pub(super) fn read(bytes: &[u8], limit: u64) -> Result<Content, Fault> {
    let mut archive =
        ZipArchive::new(Cursor::new(bytes)).map_err(|error| damaged(format!("not a readable ZIP archive: {error}")))?;
    let document = part(&mut archive, "word/document.xml", limit)?
        .ok_or_else(|| damaged("the archive has no `word/document.xml`; it is no DOCX file"))?;
    // Both parts may be missing.
    let styles = styles(&part(&mut archive, "word/styles.xml", limit)?.unwrap_or_default())?;
    let title = core_title(&part(&mut archive, "docProps/core.xml", limit)?.unwrap_or_default())?;
    let body = Body::default().read(&document, &styles)?;
    let text = body.text.trim();
    if text.is_empty() {
        return Err(no_text("the document has no text"));
    }
    let mut details = serde_json::Map::new();
    let heading = markdown::sections(text, &mut details);
    Ok(Content { title: title.or(body.title).or(heading), text: text.to_owned(), details })
}

/// Unpacks a part of the archive.
fn part(archive: &mut ZipArchive<Cursor<&[u8]>>, name: &str, limit: u64) -> Result<Option<String>, Fault> {
    let Some(index) = archive.index_for_name(name) else { return Ok(None) };
    let entry = archive.by_index_raw(index).map_err(|error| broken(name, &error))?;
    let mut unpacked = Vec::new();
    // The archive is opened raw: this crate's `zip` has no decompressor, and this one is bounded.
    let read = match entry.compression() {
        CompressionMethod::Stored => entry.take(limit + 1).read_to_end(&mut unpacked),
        CompressionMethod::DEFLATE => DeflateDecoder::new(entry).take(limit + 1).read_to_end(&mut unpacked),
        other => return Err(damaged(format!("`{name}` is compressed with {other}; write the file again with Word"))),
    };
    read.map_err(|error| broken(name, &error))?;
    if unpacked.len() as u64 > limit {
        return Err(too_large(&format!("`{name}`, unpacked,"), limit));
    }
    Ok(Some(String::from_utf8(unpacked).map_err(|error| broken(name, &error))?))
}

fn broken(name: &str, error: &dyn std::fmt::Display) -> Fault {
    damaged(format!("`{name}` cannot be unpacked: {error}"))
}

fn invalid(error: impl std::fmt::Display) -> Fault {
    damaged(format!("its XML is not valid: {error}"))
}

fn attribute(element: &BytesStart<'_>, local: &[u8]) -> Result<Option<String>, Fault> {
    for found in element.attributes() {
        let found = found.map_err(invalid)?;
        if found.key.local_name().as_ref() == local {
            return Ok(Some(String::from_utf8_lossy(&found.value).into_owned()));
        }
    }
    Ok(None)
}

/// What a paragraph is, by its style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Title,
    /// 1 to 6.
    Heading(usize),
}

/// Returns the style of a name: of the built-in styles, names are English in every language of Word.
fn style_of(name: &str) -> Option<Style> {
    let name = name.to_ascii_lowercase();
    if name == "title" {
        return Some(Style::Title);
    }
    let level = name.strip_prefix("heading")?.trim().parse::<usize>().ok()?;
    // Word has nine levels, Markdown six.
    if (1..=9).contains(&level) { Some(Style::Heading(level.min(6))) } else { None }
}

fn styles(xml: &str) -> Result<BTreeMap<String, Style>, Fault> {
    let mut found = BTreeMap::new();
    let mut current = None;
    let mut reader = Reader::from_str(xml);
    loop {
        match reader.read_event().map_err(invalid)? {
            Event::Start(element) if element.local_name().as_ref() == b"style" => {
                current = attribute(&element, b"styleId")?;
            }
            Event::Empty(element) if element.local_name().as_ref() == b"name" => {
                let style = attribute(&element, b"val")?.and_then(|name| style_of(&name));
                found.extend(current.take().zip(style));
            }
            Event::Eof => return Ok(found),
            _ => {}
        }
    }
}

fn core_title(xml: &str) -> Result<Option<String>, Fault> {
    let mut reader = Reader::from_str(xml);
    let mut inside = false;
    let mut title = String::new();
    loop {
        match reader.read_event().map_err(invalid)? {
            Event::Start(element) => inside = element.local_name().as_ref() == b"title",
            Event::Text(text) if inside => title.push_str(&text.decode().map_err(invalid)?),
            Event::GeneralRef(reference) if inside => push_reference(&mut title, &reference)?,
            Event::End(_) => inside = false,
            Event::Eof => return Ok(Some(title.trim().to_owned()).filter(|title| !title.is_empty())),
            _ => {}
        }
    }
}

fn push_reference(text: &mut String, reference: &BytesRef<'_>) -> Result<(), Fault> {
    match reference.resolve_char_ref().map_err(invalid)? {
        Some(character) => text.push(character),
        None => text.push_str(resolve_predefined_entity(&reference.decode().map_err(invalid)?).unwrap_or_default()),
    }
    Ok(())
}

/// The text of the body while it is read.
#[derive(Default)]
struct Body {
    text: String,
    /// The first paragraph with the style `Title`.
    title: Option<String>,
    paragraph: String,
    style: Option<Style>,
    is_item: bool,
    /// Open table cells.
    cells: u32,
    /// Open elements whose text counts not: alternatives of what is there already.
    skipped: u32,
    in_text: bool,
}

impl Body {
    fn read(mut self, xml: &str, styles: &BTreeMap<String, Style>) -> Result<Self, Fault> {
        let mut reader = Reader::from_str(xml);
        loop {
            match reader.read_event().map_err(invalid)? {
                Event::Start(element) => self.open(&element, styles)?,
                Event::Empty(element) => {
                    self.open(&element, styles)?;
                    self.close(element.local_name().as_ref());
                }
                Event::End(element) => self.close(element.local_name().as_ref()),
                Event::Text(text) if self.in_text => self.paragraph.push_str(&text.decode().map_err(invalid)?),
                Event::CData(text) if self.in_text => self.paragraph.push_str(&text.decode().map_err(invalid)?),
                Event::GeneralRef(reference) if self.in_text => push_reference(&mut self.paragraph, &reference)?,
                Event::Eof => return Ok(self),
                _ => {}
            }
        }
    }

    fn open(&mut self, element: &BytesStart<'_>, styles: &BTreeMap<String, Style>) -> Result<(), Fault> {
        match element.local_name().as_ref() {
            // An alternative for programs that cannot show what stands before it.
            b"Fallback" => self.skipped += 1,
            _ if self.skipped > 0 => {}
            b"t" => self.in_text = true,
            b"tab" => self.paragraph.push('\t'),
            b"br" | b"cr" => self.paragraph.push('\n'),
            b"noBreakHyphen" => self.paragraph.push('-'),
            b"numPr" => self.is_item = true,
            b"pStyle" => {
                let id = attribute(element, b"val")?.unwrap_or_default();
                // Without its definition, the id of a built-in style is like its name.
                self.style = styles.get(&id).copied().or_else(|| style_of(&id));
            }
            b"tc" => self.cells += 1,
            _ => {}
        }
        Ok(())
    }

    fn close(&mut self, name: &[u8]) {
        match name {
            b"Fallback" => self.skipped = self.skipped.saturating_sub(1),
            _ if self.skipped > 0 => {}
            b"t" => self.in_text = false,
            b"p" => self.end_paragraph(),
            b"tc" => {
                // Paragraphs of a cell end with a space; a bar takes its place.
                self.cells = self.cells.saturating_sub(1);
                self.text.truncate(self.text.trim_end_matches([' ', '\n']).len());
                self.text.push_str(" | ");
            }
            b"tr" => {
                self.text.truncate(self.text.trim_end_matches([' ', '|']).len());
                self.text.push('\n');
            }
            b"tbl" => self.text.push('\n'),
            _ => {}
        }
    }

    fn end_paragraph(&mut self) {
        let paragraph = std::mem::take(&mut self.paragraph);
        let paragraph = paragraph.trim();
        let (style, is_item) = (self.style.take(), std::mem::take(&mut self.is_item));
        if paragraph.is_empty() {
            return;
        }
        let line = paragraph.replace('\n', " ");
        if self.cells > 0 {
            self.text += &format!("{line} ");
            return;
        }
        match style {
            Some(Style::Title) if self.title.is_none() => self.title = Some(line),
            Some(Style::Heading(level)) => self.text += &format!("{} {line}", "#".repeat(level)),
            None if is_item => self.text += &format!("- {paragraph}"),
            Some(Style::Title) | None => self.text.push_str(paragraph),
        }
        self.text.push_str("\n\n");
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::DeflateEncoder;

    use super::*;

    /// A ZIP archive of deflated files, written by hand: the tests' `zip` cannot deflate.
    pub(in crate::documents) fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
        let (mut bytes, mut directory) = (Vec::new(), Vec::new());
        for (name, content) in files {
            let mut packer = DeflateEncoder::new(Vec::new(), Compression::best());
            packer.write_all(content).unwrap();
            let packed = packer.finish().unwrap();
            let mut crc = flate2::Crc::new();
            crc.update(content);
            let offset = bytes.len() as u32;
            let mut head = vec![20, 0, 0, 0, 8, 0, 0, 0, 0, 0];
            for number in [crc.sum(), packed.len() as u32, content.len() as u32] {
                head.extend(number.to_le_bytes());
            }
            head.extend((name.len() as u16).to_le_bytes());
            head.extend([0, 0]);
            bytes.extend(b"PK\x03\x04");
            bytes.extend(&head);
            bytes.extend(name.as_bytes());
            bytes.extend(packed);
            directory.extend(b"PK\x01\x02\x14\x00");
            directory.extend(&head);
            directory.extend([0; 10]);
            directory.extend(offset.to_le_bytes());
            directory.extend(name.as_bytes());
        }
        let (start, count) = (bytes.len() as u32, files.len() as u16);
        bytes.extend(&directory);
        bytes.extend(b"PK\x05\x06\0\0\0\0");
        bytes.extend(count.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend((directory.len() as u32).to_le_bytes());
        bytes.extend(start.to_le_bytes());
        bytes.extend([0, 0]);
        bytes
    }

    fn paragraph(style: &str, text: &str) -> String {
        format!("<w:p><w:pPr><w:pStyle w:val=\"{style}\"/></w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>")
    }

    fn document(body: &str) -> String {
        format!("<?xml version=\"1.0\"?><w:document xmlns:w=\"w\"><w:body>{body}</w:body></w:document>")
    }

    #[test]
    fn paragraphs_headings_lists_and_tables() {
        let styles = "<w:styles><w:style w:styleId=\"berschrift2\"><w:name w:val=\"heading 2\"/></w:style></w:styles>";
        let cell = |text: &str| format!("<w:tc>{}</w:tc>", paragraph("", text));
        let body = [
            paragraph("Title", "Salt"),
            paragraph("Heading1", "The pans &amp; the &#x6d;ill"),
            "<w:p><w:r><w:t>One</w:t><w:tab/><w:t xml:space=\"preserve\"> two</w:t><w:delText>gone</w:delText></w:r></w:p>".to_owned(),
            "<w:p><w:pPr><w:numPr/></w:pPr><w:r><w:t>item</w:t></w:r></w:p>".to_owned(),
            format!("<w:tbl><w:tr>{}{}</w:tr><w:tr>{}</w:tr></w:tbl>", cell("a"), cell("b"), cell("c")),
            paragraph("berschrift2", "Decline"),
            "<w:p><mc:Fallback><w:r><w:t>twice</w:t></w:r></mc:Fallback><w:r><w:t>end</w:t></w:r></w:p>".to_owned(),
        ]
        .concat();
        let bytes =
            archive(&[("word/document.xml", document(&body).as_bytes()), ("word/styles.xml", styles.as_bytes())]);
        let made = read(&bytes, 1 << 20).unwrap();
        assert_eq!(made.title.as_deref(), Some("Salt"));
        assert_eq!(made.text, "# The pans & the mill\n\nOne\t two\n\n- item\n\na | b\nc\n\n## Decline\n\nend");
        assert_eq!(made.details["sections"][1]["title"], "Decline");
        let core =
            "<cp:coreProperties><dc:creator>I</dc:creator><dc:title>From &lt;core&gt;</dc:title></cp:coreProperties>";
        let bytes =
            archive(&[("word/document.xml", document(&body).as_bytes()), ("docProps/core.xml", core.as_bytes())]);
        assert_eq!(read(&bytes, 1 << 20).unwrap().title.as_deref(), Some("From <core>"));
    }

    #[test]
    fn bombs_and_broken_archives_are_rejects() {
        let bomb = vec![b' '; 8 << 20];
        let bytes = archive(&[("word/document.xml", &bomb)]);
        assert!(bytes.len() < 20_000);
        let fault = read(&bytes, 1 << 20).unwrap_err();
        assert!(fault.message.contains("`word/document.xml`, unpacked, has more than 1048576 bytes"), "{fault:?}");
        let good = archive(&[("word/document.xml", document(&paragraph("", "x")).as_bytes())]);
        for end in 0..good.len() {
            assert!(read(&good[..end], 1 << 20).is_err(), "cut at {end}");
        }
        assert!(read(&archive(&[("a.txt", b"x")]), 100).unwrap_err().message.contains("no `word/document.xml`"));
        assert!(
            read(&archive(&[("word/document.xml", b"<w:p><w:t>x</w:p>")]), 100).unwrap_err().message.contains("XML")
        );
        assert_eq!(
            read(&archive(&[("word/document.xml", document("").as_bytes())]), 1000).unwrap_err().kind,
            "no_text"
        );
    }
}
