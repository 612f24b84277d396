//! Splits WARC and WET files (ISO 28500) into records.

use std::io::{BufRead, BufReader, Read};

use super::content::{damaged, too_large};
use crate::source::record::Fault;

/// Longest header block of a record.
const MAX_HEAD: usize = 1 << 20;

/// A record.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Position of its first byte in the unpacked file.
    pub(super) offset: u64,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Record {
    pub(super) fn header(&self, wanted: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.map(|(_, value)| value.as_str())
    }
}

/// Why a record, or the rest of a file, cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bad {
    pub(super) offset: u64,
    pub(super) fault: Fault,
}

/// The records of a file.
pub(super) struct Records<R> {
    reader: BufReader<R>,
    offset: u64,
    limit: u64,
    /// Where the record begins whose first line is read.
    begun: Option<u64>,
    started: bool,
    failed: Option<std::io::Error>,
}

impl<R: Read> Records<R> {
    /// Records with more than `limit` bytes are skipped and reported.
    pub(super) fn new(reader: R, limit: u64) -> Self {
        let reader = BufReader::with_capacity(1 << 17, reader);
        Self { reader, offset: 0, limit, begun: None, started: false, failed: None }
    }

    /// Returns the next record or what is wrong with it; `None` at the end.
    ///
    /// # Errors
    /// Fails if the file cannot be read, other than by its content.
    pub(super) fn next(&mut self) -> std::io::Result<Option<Result<Record, Bad>>> {
        if let Some(error) = self.failed.take() {
            return self.cut(self.offset, error);
        }
        if !self.started {
            self.started = true;
            match self.begin() {
                Ok(true) => {}
                Ok(false) => {
                    let message = "the file does not begin with a WARC record; what precedes the first one is skipped";
                    return Ok(Some(Err(Bad { offset: 0, fault: damaged(message) })));
                }
                Err(error) => return self.cut(self.offset, error),
            }
        }
        let Some(offset) = self.begun.take() else { return Ok(None) };
        let record = match self.record(offset) {
            Ok(record) => record,
            Err(error) => return self.cut(offset, error),
        };
        match self.begin() {
            // The bytes of this record are not those that its length says.
            Ok(clean) if !clean && record.is_ok() => {
                let message = "no record follows at the end of this one: its Content-Length is wrong";
                return Ok(Some(Err(Bad { offset, fault: damaged(message) })));
            }
            Ok(_) => {}
            // This record is whole: the error is that of the next one.
            Err(error) => self.failed = Some(error),
        }
        Ok(Some(record.map_err(|fault| Bad { offset, fault })))
    }

    /// Ends the file where it is damaged.
    fn cut(&mut self, offset: u64, error: std::io::Error) -> std::io::Result<Option<Result<Record, Bad>>> {
        self.begun = None;
        if !crate::source::stream::is_damage(&error) {
            return Err(error);
        }
        let end = self.offset;
        let message =
            format!("the file is damaged or cut short after byte {end} (unpacked), and read up to there: {error}");
        Ok(Some(Err(Bad { offset, fault: damaged(message) })))
    }

    /// Reads a line with its end, of at most [`MAX_HEAD`] bytes; empty at the end of the file.
    fn line(&mut self) -> std::io::Result<Vec<u8>> {
        let mut line = Vec::new();
        let read = (&mut self.reader).take(MAX_HEAD as u64).read_until(b'\n', &mut line);
        self.offset += line.len() as u64;
        read.map(|_| line)
    }

    /// Reads the first line of the next record, if there is one. Returns whether only empty lines precede it.
    fn begin(&mut self) -> std::io::Result<bool> {
        let mut clean = true;
        loop {
            let offset = self.offset;
            let line = self.line()?;
            if line.starts_with(b"WARC/") {
                self.begun = Some(offset);
                return Ok(clean);
            }
            if line.is_empty() {
                return Ok(clean);
            }
            clean &= line.iter().all(u8::is_ascii_whitespace);
        }
    }

    fn headers(&mut self) -> std::io::Result<Option<Vec<(String, String)>>> {
        let (mut headers, mut length): (Vec<(String, String)>, _) = (Vec::new(), 0);
        loop {
            let line = self.line()?;
            length += line.len();
            // Without a limit, a file that is no WARC would be read as one header.
            if length > MAX_HEAD || line.is_empty() {
                return Ok(None);
            }
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end();
            if text.is_empty() {
                return Ok(Some(headers));
            }
            match (text.split_once(':'), headers.last_mut()) {
                // The value of the header before goes on.
                (_, Some((_, value))) if text.starts_with([' ', '\t']) => {
                    value.push(' ');
                    value.push_str(text.trim_start());
                }
                (Some((name, value)), _) => headers.push((name.trim().to_owned(), value.trim().to_owned())),
                _ => return Ok(None),
            }
        }
    }

    /// Reads the record at `offset`, whose first line is read.
    fn record(&mut self, offset: u64) -> std::io::Result<Result<Record, Fault>> {
        let Some(headers) = self.headers()? else {
            return Ok(Err(damaged("the headers of the record are not readable")));
        };
        let mut record = Record { offset, headers, body: Vec::new() };
        let Some(length) = record.header("content-length").and_then(|length| length.parse::<u64>().ok()) else {
            return Ok(Err(damaged("the record has no Content-Length")));
        };
        // Skipped without holding it: the next record can still be read.
        if length > self.limit {
            self.offset += std::io::copy(&mut (&mut self.reader).take(length), &mut std::io::sink())?;
            return Ok(Err(too_large("the record", self.limit)));
        }
        let read = (&mut self.reader).take(length).read_to_end(&mut record.body);
        self.offset += record.body.len() as u64;
        read?;
        if (record.body.len() as u64) < length {
            let end = self.offset;
            return Ok(Err(damaged(format!("the file ends at byte {end}, inside the record"))));
        }
        Ok(Ok(record))
    }
}

#[cfg(test)]
mod tests {
    use flate2::read::MultiGzDecoder;

    use super::*;

    fn record(id: &str, length: usize, body: &str) -> String {
        format!(
            "WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Record-ID: <{id}>\r\nContent-Length: {length}\r\n\r\n{body}\r\n\r\n"
        )
    }

    fn told(bytes: impl Read, limit: u64) -> Vec<Result<String, (u64, &'static str)>> {
        let mut records = Records::new(bytes, limit);
        let mut told = Vec::new();
        while let Some(next) = records.next().unwrap() {
            told.push(match next {
                Ok(record) => {
                    let id = record.header("warc-record-id").unwrap().to_owned();
                    Ok(format!("{id} {}", String::from_utf8(record.body).unwrap()))
                }
                Err(bad) => Err((bad.offset, bad.fault.kind)),
            });
        }
        told
    }

    #[test]
    fn records_follow_each_other_whatever_their_bodies_contain() {
        let file = record("a", 13, "WARC/1.0\r\nxyz") + &record("b", 0, "") + &record("c", 1, "c");
        assert_eq!(
            told(file.as_bytes(), 100),
            ["<a> WARC/1.0\r\nxyz", "<b> ", "<c> c"].map(|text| Ok(text.to_owned()))
        );
        assert_eq!(told(&b""[..], 100), []);
        let folded = "WARC/1.1\nWARC-Record-ID: <x\n y>\ncontent-length: 1\n\nz";
        assert_eq!(told(folded.as_bytes(), 100), [Ok("<x y> z".to_owned())]);
    }

    #[test]
    fn a_wrong_length_costs_one_record() {
        let (a, c) = (record("a", 1, "a"), record("c", 1, "c"));
        let at = a.len() as u64;
        for length in [0, 2, 5] {
            let file = a.clone() + &record("b", length, "bbbb b\nb") + &c;
            let wanted = [Ok("<a> a".to_owned()), Err((at, "damaged")), Ok("<c> c".to_owned())];
            assert_eq!(told(file.as_bytes(), 100), wanted, "{length}");
        }
        let swallowed = a.clone() + &record("b", 40, "b") + &c + &record("d", 1, "d");
        assert_eq!(
            told(swallowed.as_bytes(), 100),
            [Ok("<a> a".to_owned()), Err((at, "damaged")), Ok("<d> d".to_owned())]
        );
        let no_length = a + "WARC/1.0\r\nX: y\r\n\r\n" + &c;
        assert_eq!(
            told(no_length.as_bytes(), 100),
            [Ok("<a> a".to_owned()), Err((at, "damaged")), Ok("<c> c".to_owned())]
        );
        let large = record("a", 5, "aaaaa") + &c;
        assert_eq!(told(large.as_bytes(), 4), [Err((0, "too_large")), Ok("<c> c".to_owned())]);
        assert_eq!(
            told(&b"text\nWARC/1.0\nWARC-Record-ID: <r>\nContent-Length: 0\n\n"[..], 9),
            [Err((0, "damaged")), Ok("<r> ".to_owned())]
        );
    }

    #[test]
    fn records_before_a_break_are_kept() {
        let member = |text: String| {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            std::io::Write::write_all(&mut packer, text.as_bytes()).unwrap();
            packer.finish().unwrap()
        };
        let (a, b) = (record("a", 1, "a"), record("b", 1, "b"));
        let at = a.len() as u64;
        let whole = [member(a.clone()), member(b)].concat();
        assert_eq!(told(MultiGzDecoder::new(whole.as_slice()), 9), [Ok("<a> a".to_owned()), Ok("<b> b".to_owned())]);
        for missing in [9, 12, 40] {
            let found = told(MultiGzDecoder::new(&whole[..whole.len() - missing]), 9);
            assert_eq!(found[0], Ok("<a> a".to_owned()), "{missing}");
            assert!(matches!(found.last(), Some(Err((offset, "damaged"))) if *offset >= at), "{missing}: {found:?}");
        }
        let cut = a.clone() + &record("b", 400, "b");
        assert_eq!(told(cut.as_bytes(), 1000), [Ok("<a> a".to_owned()), Err((at, "damaged"))]);
    }
}
