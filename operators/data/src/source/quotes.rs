//! Checks the quotation marks of CSV and TSV files while their bytes pass. Without a partner, a mark swallows rows: the
//! parser joins all lines up to the next one.

use std::io::{self, Read};

use memchr::{memchr, memchr_iter};

/// Passes bytes on and fails where a mark has no partner.
pub(crate) struct Quotes<R> {
    reader: R,
    delimiter: u8,
    state: State,
    /// The line of the next byte, from 1.
    line: u64,
    /// The line of the last mark that opened a cell.
    opened: u64,
}

/// What stands before the next byte.
#[derive(Clone, Copy)]
enum State {
    /// This byte, outside of quoted cells.
    Outside(u8),
    /// A part of a quoted cell.
    Inside,
    /// A mark in a quoted cell: it ends the cell, or is the first of two that stand for one.
    Mark,
}

impl<R: Read> Quotes<R> {
    pub(crate) fn new(reader: R, delimiter: u8) -> Self {
        Self { reader, delimiter, state: State::Outside(b'\n'), line: 1, opened: 0 }
    }

    /// Whether a cell ends at this byte.
    fn is_end(&self, byte: u8) -> bool {
        byte == self.delimiter || matches!(byte, b'\n' | b'\r')
    }

    fn pass(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut at = 0;
        while at < bytes.len() {
            match self.state {
                State::Mark if bytes[at] == b'"' => {
                    self.state = State::Inside;
                    at += 1;
                }
                State::Mark if self.is_end(bytes[at]) => self.state = State::Outside(b'"'),
                State::Mark => {
                    let (opened, line) = (self.opened, self.line);
                    return Err(unreadable(&format!(
                        "the quotation mark that opens a cell on line {opened} has no partner: behind the next one, on \
                         line {line}, the cell goes on"
                    )));
                }
                State::Inside | State::Outside(_) => at = self.pass_to_mark(bytes, at),
            }
        }
        Ok(())
    }

    /// Passes the bytes up to the next mark and the mark itself. Returns the place after it.
    fn pass_to_mark(&mut self, bytes: &[u8], at: usize) -> usize {
        let end = memchr(b'"', &bytes[at..]).map_or(bytes.len(), |found| at + found);
        self.line += memchr_iter(b'\n', &bytes[at..end]).count() as u64;
        if let State::Outside(before) = &mut self.state
            && end > at
        {
            *before = bytes[end - 1];
        }
        if end == bytes.len() {
            return end;
        }
        self.state = match self.state {
            State::Outside(before) if self.is_end(before) => {
                self.opened = self.line;
                State::Inside
            }
            // Inside a cell that is not quoted, marks are text.
            State::Outside(_) => State::Outside(b'"'),
            State::Inside | State::Mark => State::Mark,
        };
        end + 1
    }
}

fn unreadable(message: &str) -> io::Error {
    let help = "if quotation marks are text in this file, write `quotes: false`; else close the cell, and write marks inside \
                it twice (`\"\"`)";
    super::record::Unreadable::error(message, help)
}

impl<R: Read> Read for Quotes<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        // With an empty buffer, nothing read is not the end.
        if read == 0 && !buffer.is_empty() && matches!(self.state, State::Inside) {
            let message = format!("the quotation mark that opens a cell on line {} is never closed", self.opened);
            return Err(unreadable(&message));
        }
        self.pass(&buffer[..read])?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a text in pieces of every size; the outcome is the same.
    fn read(text: &str) -> Result<(), String> {
        let of_size = |size: usize| {
            let mut quotes = Quotes::new(text.as_bytes(), b',');
            let mut buffer = vec![0; size];
            loop {
                match quotes.read(&mut buffer) {
                    Ok(0) => return Ok(()),
                    Ok(_) => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
        };
        let whole = of_size(1 << 16);
        for size in 1..text.len().max(2) {
            assert_eq!(of_size(size), whole, "{text} in pieces of {size}");
        }
        whole
    }

    #[test]
    fn marks_with_partners_pass() {
        for text in [
            "",
            "a,b\n",
            "\"a\",\"b\"\n",
            "\"a,\n\"\"b\"\"\",c\r\n\"\"",
            "6\" pipe,the \"x\" of\n",
            "\"\",\"\"\"\"\n",
            "a\"\"b\n",
        ] {
            assert_eq!(read(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn marks_without_partners_are_named_with_their_line() {
        assert!(read("id\n1\n\"x\n2\n").unwrap_err().contains("on line 3 is never closed"));
        assert!(read("\"").unwrap_err().contains("on line 1 is never closed"));
        assert!(read("\"a\"\"").unwrap_err().contains("on line 1 is never closed"));
        let joined = read("id,text\n1,\"a\n2,b\n3,\"c\n").unwrap_err();
        assert!(joined.contains("on line 2 has no partner") && joined.contains("on line 4"), "{joined}");
        assert!(read("\"a\" ,b\n").is_err());
    }
}
