//! Splits JSON values that are not one per line: arrays, concatenated objects, or the members of one object.

use std::io::Read;

use memchr::{memchr_iter, memchr2};

use super::record::{BLOCK_BYTES, MAX_RECORD_BYTES, Place};

/// Blocks of JSON values. Only brackets, commas and strings are scanned; values are validated when they are parsed.
pub(crate) struct ValueBlocks<R> {
    reader: R,
    split_objects: bool,
    buffer: Vec<u8>,
    scanned: usize,
    counted: usize,
    line: u64,
    state: State,
    places: Vec<Place>,
    ended: bool,
}

#[derive(Default)]
struct State {
    begun: bool,
    /// Depth of values: 0 in a sequence, 1 inside the outermost bracket.
    base: usize,
    depth: usize,
    in_string: bool,
    start: Option<usize>,
}

impl<R: Read> ValueBlocks<R> {
    /// With `split_objects`, an outermost object is split into its members (`"key": value`).
    pub(crate) fn new(reader: R, split_objects: bool) -> Self {
        Self {
            reader,
            split_objects,
            buffer: Vec::new(),
            scanned: 0,
            counted: 0,
            line: 1,
            state: State::default(),
            places: Vec::new(),
            ended: false,
        }
    }

    /// Returns the next values, or `None` at the end.
    ///
    /// # Errors
    /// Fails if the stream cannot be read, or a value is longer than [`MAX_RECORD_BYTES`].
    pub(crate) fn next(&mut self) -> std::io::Result<Option<(Vec<u8>, Vec<Place>)>> {
        while self.places.is_empty() && !self.ended {
            self.read_more()?;
        }
        if self.places.is_empty() {
            return Ok(None);
        }
        let kept = self.state.start.unwrap_or(self.scanned);
        self.count_lines(kept);
        let tail = self.buffer[kept..].to_vec();
        let bytes = std::mem::replace(&mut self.buffer, tail);
        self.scanned -= kept;
        self.counted = 0;
        self.state.start = self.state.start.map(|_| 0);
        Ok(Some((bytes, std::mem::take(&mut self.places))))
    }

    fn read_more(&mut self) -> std::io::Result<()> {
        if self.state.start.is_some_and(|start| self.buffer.len() - start > MAX_RECORD_BYTES) {
            let message = format!("the value on line {} is longer than {MAX_RECORD_BYTES} bytes", self.line);
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, message));
        }
        let first = !self.state.begun && self.buffer.is_empty();
        if (&mut self.reader).take(BLOCK_BYTES as u64).read_to_end(&mut self.buffer)? == 0 {
            self.ended = true;
            self.finish();
            return Ok(());
        }
        if first && self.buffer.starts_with(b"\xef\xbb\xbf") {
            self.scanned = 3;
        }
        self.scan();
        Ok(())
    }

    fn scan(&mut self) {
        while self.scanned < self.buffer.len() {
            if self.state.in_string && !self.skip_string() {
                return;
            }
            if self.scanned < self.buffer.len() {
                self.step(self.buffer[self.scanned]);
                self.scanned += 1;
            }
        }
    }

    /// Skips to after the closing quote. Returns false if the buffer ends before it or within an escape.
    fn skip_string(&mut self) -> bool {
        while let Some(found) = memchr2(b'"', b'\\', &self.buffer[self.scanned..]) {
            let at = self.scanned + found;
            if self.buffer[at] == b'"' {
                self.scanned = at + 1;
                self.state.in_string = false;
                self.end_bare_string();
                return true;
            }
            if at + 1 >= self.buffer.len() {
                self.scanned = at;
                return false;
            }
            self.scanned = at + 2;
        }
        self.scanned = self.buffer.len();
        false
    }

    fn end_bare_string(&mut self) {
        if self.state.base == 0 && self.state.depth == 0 {
            self.close(self.scanned);
        }
    }

    fn step(&mut self, byte: u8) {
        if !self.state.begun && self.begin(byte) {
            return;
        }
        match byte {
            b'"' => {
                self.open();
                self.state.in_string = true;
            }
            b'{' | b'[' => {
                self.open();
                self.state.depth += 1;
            }
            b'}' | b']' => self.step_out(),
            b',' if self.state.depth == self.state.base => self.close(self.scanned),
            byte if byte.is_ascii_whitespace() => {
                if self.state.base == 0 && self.state.depth == 0 {
                    self.close(self.scanned);
                }
            }
            _ => self.open(),
        }
    }

    /// The first byte decides whether values stand inside an outermost bracket.
    fn begin(&mut self, byte: u8) -> bool {
        if byte.is_ascii_whitespace() {
            return true;
        }
        self.state.begun = true;
        let container = byte == b'[' || (byte == b'{' && self.split_objects);
        if container {
            self.state.base = 1;
            self.state.depth = 1;
        }
        container
    }

    fn step_out(&mut self) {
        if self.state.depth <= self.state.base {
            self.close(self.scanned);
            self.state.base = 0;
            self.state.depth = 0;
            return;
        }
        self.state.depth -= 1;
        if self.state.depth == 0 {
            self.close(self.scanned + 1);
        }
    }

    fn open(&mut self) {
        if self.state.start.is_none() {
            self.count_lines(self.scanned);
            self.state.start = Some(self.scanned);
        }
    }

    fn close(&mut self, end: usize) {
        if let Some(start) = self.state.start.take() {
            self.places.push(Place { range: start..end, line: self.line });
        }
    }

    /// Emits an unclosed value at the end of the input; parsing rejects it.
    fn finish(&mut self) {
        self.close(self.buffer.len());
    }

    fn count_lines(&mut self, to: usize) {
        self.line += memchr_iter(b'\n', &self.buffer[self.counted..to]).count() as u64;
        self.counted = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str, split_objects: bool) -> Vec<(u64, String)> {
        let mut blocks = ValueBlocks::new(text.as_bytes(), split_objects);
        let mut found = Vec::new();
        while let Some((bytes, places)) = blocks.next().unwrap() {
            found.extend(
                places
                    .iter()
                    .map(|place| (place.line, String::from_utf8_lossy(&bytes[place.range.clone()]).trim().to_owned())),
            );
        }
        found
    }

    fn owned(rows: &[(u64, &str)]) -> Vec<(u64, String)> {
        rows.iter().map(|(line, text)| (*line, (*text).to_owned())).collect()
    }

    #[test]
    fn arrays_sequences_and_members() {
        assert_eq!(split("", false), owned(&[]));
        assert_eq!(split("[]", false), owned(&[]));
        assert_eq!(split("\u{feff}[1, 2]", false), owned(&[(1, "1"), (1, "2")]));
        assert_eq!(split("[\n {\"a\": \"]},[\\\"\"},\n [1],\n\"x\"\n]\n", false).len(), 3);
        assert_eq!(
            split("{\"a\":1}\n{\"b\":{\"c\":[2]}}{} 7 \"s\"", false),
            owned(&[(1, "{\"a\":1}"), (2, "{\"b\":{\"c\":[2]}}"), (2, "{}"), (2, "7"), (2, "\"s\"")])
        );
        assert_eq!(
            split("{\"t\": [\"a, b\"],\n \"u\": []}", true),
            owned(&[(1, "\"t\": [\"a, b\"]"), (2, "\"u\": []")])
        );
    }

    #[test]
    fn what_is_not_closed_is_kept_for_its_reject() {
        assert_eq!(split("[{\"a\":1}, {\"b\":", false), owned(&[(1, "{\"a\":1}"), (1, "{\"b\":")]));
        assert_eq!(split("[1]]]", false), owned(&[(1, "1")]));
    }

    /// Strings full of brackets, commas, quotes and backslashes, in an array several blocks long with line breaks.
    #[test]
    fn values_stay_whole_across_blocks() {
        let tricky = ["]},[{", "\\", "\"", "\\\"", "a,b", "Ä\n", ""];
        let row = |n: usize| serde_json::json!({"n": n, "deep": [[tricky[n % 7]], {"k": tricky[n % 5]}], "pad": "x,]".repeat(n % 90)});
        let rows: Vec<serde_json::Value> = (0..60_000).map(row).collect();
        let array = serde_json::to_string_pretty(&rows).unwrap();
        assert!(array.len() > 3 * BLOCK_BYTES);
        let lines: Vec<String> = rows.iter().map(ToString::to_string).collect();
        for text in [array, lines.join("\n"), lines.concat()] {
            let mut blocks = ValueBlocks::new(text.as_bytes(), false);
            let (mut found, mut blocks_seen) = (0, 0);
            while let Some((bytes, places)) = blocks.next().unwrap() {
                for place in places {
                    let value: serde_json::Value = serde_json::from_slice(&bytes[place.range]).unwrap();
                    assert_eq!(value, rows[found]);
                    found += 1;
                }
                blocks_seen += 1;
            }
            assert_eq!(found, rows.len());
            assert!(blocks_seen > 2);
        }
    }
}
