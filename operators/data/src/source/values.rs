//! Splits JSON values that are not one per line: arrays, concatenated objects, the members of one object, or the items
//! of a list in it.

use std::io::Read;

use memchr::{memchr_iter, memchr2};

use super::record::{BLOCK_BYTES, Cut, MAX_RECORD_BYTES, Place, Unreadable};

/// Blocks of JSON values. Only brackets, commas and strings are scanned; values are validated when they are parsed. The
/// outermost bracket must be closed, with nothing behind it.
pub(crate) struct ValueBlocks<R> {
    reader: R,
    cut: Cut,
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
    /// The outermost bracket, and its line.
    outermost: Option<(u8, u64)>,
    /// Whether it was closed.
    closed: bool,
    /// What is wrong between the values.
    fault: Option<&'static str>,
    /// Whether members of the outermost object are skipped, because they are not the wanted list.
    skipping: bool,
    /// Whether the wanted list was seen.
    found_list: bool,
    /// Depth of values: 0 in a sequence, 1 inside the outermost bracket, 2 inside the wanted list.
    base: usize,
    depth: usize,
    in_string: bool,
    start: Option<usize>,
}

impl<R: Read> ValueBlocks<R> {
    /// With [`Cut::Members`], an outermost object is split into its members (`"key": value`).
    pub(crate) fn new(reader: R, cut: Cut) -> Self {
        let (buffer, state, places) = (Vec::new(), State::default(), Vec::new());
        Self { reader, cut, buffer, scanned: 0, counted: 0, line: 1, state, places, ended: false }
    }

    /// Returns the next values, or `None` at the end.
    ///
    /// # Errors
    /// Fails if the stream cannot be read or ends within its brackets, if there is text that belongs to no value, or if a
    /// value is longer than [`MAX_RECORD_BYTES`].
    pub(crate) fn next(&mut self) -> std::io::Result<Option<(Vec<u8>, Vec<Place>)>> {
        while self.places.is_empty() && !self.ended {
            if self.state.skipping {
                drop(self.take_scanned());
            }
            self.read_more()?;
        }
        if self.places.is_empty() {
            return Ok(None);
        }
        Ok(Some((self.take_scanned(), std::mem::take(&mut self.places))))
    }

    /// Whether the outermost value is an object without the list of [`Cut::Items`].
    pub(crate) fn lacks_list(&self) -> bool {
        self.state.skipping && !self.state.found_list
    }

    /// Returns the buffer; an unfinished value remains in it.
    fn take_scanned(&mut self) -> Vec<u8> {
        let start = self.state.start.unwrap_or(self.scanned);
        self.count_lines(start);
        let tail = self.buffer[start..].to_vec();
        self.scanned -= start;
        self.counted = 0;
        self.state.start = self.state.start.map(|_| 0);
        std::mem::replace(&mut self.buffer, tail)
    }

    fn read_more(&mut self) -> std::io::Result<()> {
        // Checked before reading on: one value must not fill the memory.
        if self.state.start.is_some_and(|start| self.buffer.len() - start > MAX_RECORD_BYTES) {
            let message = format!("the value on line {} is longer than {MAX_RECORD_BYTES} bytes", self.line);
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, message));
        }
        let first = !self.state.begun && self.buffer.is_empty();
        if (&mut self.reader).take(BLOCK_BYTES as u64).read_to_end(&mut self.buffer)? == 0 {
            self.ended = true;
            if let (Some((opened, line)), false) = (self.state.outermost, self.state.closed) {
                let opened = char::from(opened);
                return Err(broken(&format!("it is cut short: the `{opened}` on line {line} is never closed")));
            }
            // An unclosed value in no bracket is emitted: parsing rejects it.
            self.close(self.buffer.len());
            return Ok(());
        }
        if first && self.buffer.starts_with(b"\xef\xbb\xbf") {
            self.scanned = 3;
        }
        while self.scanned < self.buffer.len() && self.state.fault.is_none() {
            if self.state.in_string && !self.skip_string() {
                break;
            }
            if self.scanned < self.buffer.len() {
                self.step(self.buffer[self.scanned]);
                // The place of a fault stays, for its line.
                self.scanned += usize::from(self.state.fault.is_none());
            }
        }
        let Some(fault) = self.state.fault else { return Ok(()) };
        self.count_lines(self.scanned);
        Err(broken(&format!("line {}: {fault}", self.line)))
    }

    /// Skips to after the closing quote. Returns false if the buffer ends before it or within an escape.
    fn skip_string(&mut self) -> bool {
        while let Some(found) = memchr2(b'"', b'\\', &self.buffer[self.scanned..]) {
            let at = self.scanned + found;
            if self.buffer[at] == b'"' {
                self.scanned = at + 1;
                self.state.in_string = false;
                // A text in no bracket is a value of its own.
                if self.state.base == 0 && self.state.depth == 0 {
                    self.close(self.scanned);
                }
                return true;
            }
            // What is escaped comes with the next bytes.
            if at + 1 >= self.buffer.len() {
                self.scanned = at;
                return false;
            }
            self.scanned = at + 2;
        }
        self.scanned = self.buffer.len();
        false
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
            // Its items are values; what precedes it in the outermost object is skipped.
            b'[' if self.is_wanted_list() => {
                self.state.start = None;
                (self.state.skipping, self.state.found_list) = (false, true);
                (self.state.base, self.state.depth) = (2, 2);
            }
            b'{' | b'[' => {
                self.open();
                self.state.depth += 1;
            }
            b'}' | b']' => self.step_out(byte),
            b',' if self.state.depth == self.state.base => {
                if self.state.base > 0 && !self.state.skipping && self.state.start.is_none() {
                    self.state.fault = Some("a comma without a value before it");
                }
                self.close(self.scanned);
            }
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
        let is_object = byte == b'{' && matches!(self.cut, Cut::Members | Cut::Items(_));
        self.state.skipping = is_object && self.cut != Cut::Members;
        let container = byte == b'[' || is_object;
        if container {
            (self.state.base, self.state.depth) = (1, 1);
            self.count_lines(self.scanned);
            self.state.outermost = Some((byte, self.line));
        }
        container
    }

    fn step_out(&mut self, byte: u8) {
        if self.state.depth <= self.state.base {
            self.close(self.scanned);
            let opened = match (self.state.base, self.state.outermost) {
                (2, _) => b'[',
                (1, Some((opened, _))) => opened,
                _ => {
                    self.state.fault = Some("a closing bracket without an opening one");
                    return;
                }
            };
            if (opened == b'[') != (byte == b']') {
                self.state.fault = Some("a bracket of the other kind was opened");
                return;
            }
            let outer = usize::from(self.state.base == 2);
            self.state.closed = outer == 0;
            self.state.skipping |= outer == 1;
            (self.state.base, self.state.depth) = (outer, outer);
            return;
        }
        self.state.depth -= 1;
        if self.state.depth == 0 {
            self.close(self.scanned + 1);
        }
    }

    /// Whether the bracket at the current place opens the list of [`Cut::Items`].
    fn is_wanted_list(&self) -> bool {
        let (Cut::Items(name), true, 1, Some(start)) =
            (self.cut, self.state.skipping, self.state.depth, self.state.start)
        else {
            return false;
        };
        let key = self.buffer[start..self.scanned].trim_ascii_end().strip_suffix(b":").unwrap_or_default();
        serde_json::from_slice::<String>(key).is_ok_and(|key| key == name)
    }

    fn open(&mut self) {
        if self.state.closed {
            self.state.fault = Some("there is text behind the end of the JSON value");
            return;
        }
        if self.state.start.is_none() {
            self.count_lines(self.scanned);
            self.state.start = Some(self.scanned);
        }
    }

    fn close(&mut self, end: usize) {
        if let Some(start) = self.state.start.take().filter(|_| !self.state.skipping) {
            self.places.push(Place { range: start..end, line: self.line });
        }
    }

    fn count_lines(&mut self, to: usize) {
        self.line += memchr_iter(b'\n', &self.buffer[self.counted..to]).count() as u64;
        self.counted = to;
    }
}

fn broken(message: &str) -> std::io::Error {
    Unreadable::error(message, "fetch the file again, or mend it; `format: jsonl` reads one record on each line")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str, members: bool) -> Vec<(u64, String)> {
        cut(text, if members { Cut::Members } else { Cut::Values }).0
    }

    /// Returns the values with their lines, and whether the wanted list is missing.
    fn cut(text: &str, cut: Cut) -> (Vec<(u64, String)>, bool) {
        let mut blocks = ValueBlocks::new(text.as_bytes(), cut);
        let mut found = Vec::new();
        while let Some((bytes, places)) = blocks.next().unwrap() {
            found.extend(
                places
                    .iter()
                    .map(|place| (place.line, String::from_utf8_lossy(&bytes[place.range.clone()]).trim().to_owned())),
            );
        }
        (found, blocks.lacks_list())
    }

    #[test]
    fn items_of_a_list_in_an_object() {
        let items = |text: &str| cut(text, Cut::Items("Data"));
        let text = "{\"Domain\": \"Web, {[\",\n\"Other\": [1, {\"Data\": [9]}],\n \"Data\" : [{\"a\": [1]},\n {}],\n\"End\": [3]}";
        assert_eq!(items(text), (owned(&[(3, "{\"a\": [1]}"), (4, "{}")]), false));
        assert_eq!(items("{\"Data\": []}"), (owned(&[]), false));
        assert_eq!(items("[{\"Data\": [1]}, 2]"), (owned(&[(1, "{\"Data\": [1]}"), (1, "2")]), false));
        assert_eq!(items("{\"b\": {\"Data\": [1]}}"), (owned(&[]), true));
        assert!(fault("{\"a\": 1}\n{\"Data\": [1]}", Cut::Items("Data")).contains("behind the end"));
        let long = format!("{{\"x\": [{}0],\n \"Data\": [7]}}", "[1, 2], ".repeat(BLOCK_BYTES / 4));
        assert_eq!(items(&long), (owned(&[(2, "7")]), false));
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

    /// Returns what is wrong with a text.
    fn fault(text: &str, cut: Cut) -> String {
        let mut blocks = ValueBlocks::new(text.as_bytes(), cut);
        loop {
            match blocks.next() {
                Ok(Some(_)) => {}
                Ok(None) => return String::new(),
                Err(error) => return error.to_string(),
            }
        }
    }

    #[test]
    fn brackets_are_closed_and_nothing_stands_behind_them() {
        let values = |text: &str| fault(text, Cut::Values);
        for cut in ["[", "[1, 2, ", "[1, 2", "\n[{\"a\":1}, {\"b\":", "[\n  {\n \"a\": [1", "[\"a", "[\"a\\"] {
            assert!(values(cut).starts_with("it is cut short: the `[` on line "), "{cut}: {}", values(cut));
        }
        assert!(values("[1]\ngarbage").starts_with("line 2: there is text behind"));
        assert!(values("[1] [2]").contains("text behind") && values("[1],").is_empty());
        assert!(values("[1]]]").contains("a closing bracket") && values("{}\n}").contains("line 2: a closing bracket"));
        assert!(values("[1}").contains("other kind") && values("[1,,2]").contains("a comma without"));
        assert!(fault("{\"a\": 1", Cut::Members).contains("the `{` on line 1") && values("[1, 2,]").is_empty());
        let items = |text: &str| fault(text, Cut::Items("Data"));
        assert!(items("{\"Data\": [1, 2]").contains("cut short") && items("{\"Data\": [1, 2").contains("cut short"));
        assert!(items("{\"Data\": [1}").contains("other kind") && items("{\"Data\": [1]} x").contains("text behind"));
        assert_eq!(items("{\"Data\": [1], \"more\": [[], {}], \"end\": 2}\n"), "");
    }

    #[test]
    fn what_is_not_closed_outside_of_brackets_is_kept_for_its_reject() {
        assert_eq!(split("{\"a\":1} {\"b\":", false), owned(&[(1, "{\"a\":1}"), (1, "{\"b\":")]));
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
            let mut blocks = ValueBlocks::new(text.as_bytes(), Cut::Values);
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
