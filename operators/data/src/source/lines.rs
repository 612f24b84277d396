//! Splits a stream of lines into blocks of records.

use std::io::Read;

use memchr::{memchr, memchr_iter, memrchr};

use super::record::{BLOCK_BYTES, MAX_RECORD_BYTES, Place};

/// Blocks of lines. Blank lines are skipped but counted, a byte order mark is dropped, the last newline is optional.
pub(crate) struct LineBlocks<R> {
    reader: R,
    carry: Vec<u8>,
    line: u64,
    ended: bool,
}

/// A block of whole lines.
pub(crate) struct LineBlock {
    /// The block's bytes.
    pub bytes: Vec<u8>,
    /// The position of each record.
    pub places: Vec<Place>,
    /// Numbers of lines over the size limit.
    pub(crate) oversized: Vec<u64>,
}

impl<R: Read> LineBlocks<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { reader, carry: Vec::new(), line: 1, ended: false }
    }

    /// Returns the next block, or `None` at the end.
    ///
    /// # Errors
    /// Fails if the stream cannot be read.
    pub(crate) fn next(&mut self) -> std::io::Result<Option<LineBlock>> {
        let first = self.line == 1 && self.carry.is_empty();
        let mut oversized = Vec::new();
        let bytes = self.fill(&mut oversized)?;
        if bytes.is_empty() && oversized.is_empty() {
            return Ok(None);
        }
        // A byte order mark is no part of the first record.
        let start = if first && bytes.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        let places = self.places(&bytes, start, &mut oversized);
        Ok(Some(LineBlock { bytes, places, oversized }))
    }

    fn fill(&mut self, oversized: &mut Vec<u64>) -> std::io::Result<Vec<u8>> {
        let mut bytes = std::mem::take(&mut self.carry);
        let mut searched = 0;
        while !self.ended {
            let wanted = BLOCK_BYTES.max(bytes.len());
            bytes.reserve(wanted);
            if (&mut self.reader).take(wanted as u64).read_to_end(&mut bytes)? == 0 {
                self.ended = true;
                break;
            }
            // A block ends with a line; the rest is carried to the next one.
            if let Some(newline) = memrchr(b'\n', &bytes[searched..]) {
                self.carry = bytes.split_off(searched + newline + 1);
                return Ok(bytes);
            }
            searched = bytes.len();
            if bytes.len() > MAX_RECORD_BYTES {
                bytes = self.skip_line()?;
                oversized.push(self.line);
                self.line += 1;
                searched = 0;
            }
        }
        Ok(bytes)
    }

    /// Skips the rest of the line. Returns the bytes read after it.
    fn skip_line(&mut self) -> std::io::Result<Vec<u8>> {
        let mut chunk = vec![0; 1 << 16];
        loop {
            let read = self.reader.read(&mut chunk)?;
            if read == 0 {
                self.ended = true;
                return Ok(Vec::new());
            }
            if let Some(newline) = memchr(b'\n', &chunk[..read]) {
                return Ok(chunk[newline + 1..read].to_vec());
            }
        }
    }

    fn places(&mut self, bytes: &[u8], start: usize, oversized: &mut Vec<u64>) -> Vec<Place> {
        let mut places = Vec::new();
        let mut from = start;
        for end in memchr_iter(b'\n', bytes).chain(std::iter::once(bytes.len())) {
            if end == bytes.len() && from >= end {
                break;
            }
            if end - from > MAX_RECORD_BYTES {
                oversized.push(self.line);
            } else if !bytes[from..end].iter().all(u8::is_ascii_whitespace) {
                places.push(Place { range: from..end, line: self.line });
            }
            self.line += 1;
            from = end + 1;
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(text: &[u8]) -> Vec<(u64, String)> {
        let mut blocks = LineBlocks::new(text);
        let mut found = Vec::new();
        while let Some(block) = blocks.next().unwrap() {
            let text = |place: &Place| String::from_utf8_lossy(&block.bytes[place.range.clone()]).trim_end().to_owned();
            found.extend(block.places.iter().map(|place| (place.line, text(place))));
        }
        found
    }

    fn owned(rows: &[(u64, &str)]) -> Vec<(u64, String)> {
        rows.iter().map(|(line, text)| (*line, (*text).to_owned())).collect()
    }

    #[test]
    fn every_kind_of_line_end() {
        assert_eq!(records(b""), owned(&[]));
        assert_eq!(records(b"\n\n"), owned(&[]));
        assert_eq!(records(b"{}"), owned(&[(1, "{}")]));
        assert_eq!(records(b"\xef\xbb\xbf{}\r\n\r\n[]\n \n3"), owned(&[(1, "{}"), (3, "[]"), (5, "3")]));
    }

    #[test]
    fn lines_longer_than_a_block_stay_whole() {
        let long = "x".repeat(3 * BLOCK_BYTES + 17);
        let text = format!("a\n{long}\nb\n");
        let found = records(text.as_bytes());
        assert_eq!(found.len(), 3);
        assert_eq!(found[1], (2, long));
        assert_eq!(found[2], (3, "b".to_owned()));
    }

    #[test]
    fn a_line_beyond_the_limit_is_skipped_and_named() {
        let middle = std::io::repeat(b'x').take(MAX_RECORD_BYTES as u64 + 9_000_000);
        let stream = b"first\n".as_slice().chain(middle).chain(b"\nlast\n".as_slice());
        let mut blocks = LineBlocks::new(stream);
        let (mut kept, mut oversized) = (Vec::new(), Vec::new());
        while let Some(block) = blocks.next().unwrap() {
            kept.extend(block.places.iter().map(|place| place.line));
            oversized.extend(block.oversized);
        }
        assert_eq!(kept, [1, 3]);
        assert_eq!(oversized, [2]);
    }
}
