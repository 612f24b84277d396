//! Recognises files that are not UTF-8 text, or not in the format of their name, by their first bytes.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};

use super::format::Format;
use super::record::Unreadable;

/// First bytes of binary formats, and what to do with such a file.
const BINARY: [(&[u8], &str, &str); 8] = [
    (b"PAR1", "a Parquet file", "write `format: parquet`"),
    (b"ARROW1", "an Arrow IPC file", "write it as Parquet, or read it with `exec`"),
    (b"PK\x03\x04", "a ZIP archive", "unpack it"),
    (b"BZh", "compressed by bzip2", "unpack it, or compress it by gzip or Zstandard"),
    (b"\xfd7zXZ\0", "compressed by xz", "unpack it, or compress it by gzip or Zstandard"),
    (b"\x1f\x8b", "compressed by gzip", "leave out `compression`, or write `compression: gz`"),
    (b"\x28\xb5\x2f\xfd", "compressed by Zstandard", "leave out `compression`, or write `compression: zst`"),
    (b"SQLite format 3\0", "an SQLite data base", "export its table as CSV"),
];

/// Fails if a file that should be text in this format begins as something else.
pub(crate) fn check_start(start: &[u8], format: Format) -> std::io::Result<()> {
    if let Some(encoding) = wide(start) {
        let message = format!("it is {encoding}, and not UTF-8");
        return Err(Unreadable::error(message, format!("convert it: `iconv -f {encoding} -t UTF-8 FILE > NEW`")));
    }
    if let Some((_, what, help)) = BINARY.iter().find(|(mark, ..)| start.starts_with(mark)) {
        return Err(Unreadable::error(format!("it is {what}, and not {}", name(format)), *help));
    }
    let text = start.trim_ascii_start();
    let is_json = [b"{\"".as_slice(), b"[{", b"[["].iter().any(|mark| text.starts_with(mark));
    if is_json && matches!(format, Format::Csv | Format::Tsv) {
        let help = "write `format: jsonl` (a record on each line) or `format: json`";
        return Err(Unreadable::error(format!("it is JSON, and not {}", name(format)), help));
    }
    Ok(())
}

fn name(format: Format) -> &'static str {
    match format {
        Format::Jsonl => "JSON lines",
        Format::Csv => "CSV",
        Format::Tsv => "TSV",
        Format::Parquet => "Parquet",
        Format::Auto | Format::Json => "JSON",
    }
}

/// Returns the encoding of a text in units of two or four bytes.
fn wide(start: &[u8]) -> Option<&'static str> {
    match start {
        [0xff, 0xfe, 0, 0, ..] => Some("UTF-32LE"),
        [0, 0, 0xfe, 0xff, ..] => Some("UTF-32BE"),
        // Without a mark: the first characters of these formats are ASCII.
        [0xff, 0xfe, ..] | [1..0x80, 0, 1..0x80, 0, ..] => Some("UTF-16LE"),
        [0xfe, 0xff, ..] | [0, 1..0x80, 0, 1..0x80, ..] => Some("UTF-16BE"),
        _ => None,
    }
}

/// Fails if the header of cells is one cell that contains another separator.
pub(crate) fn check_header(header: &[String], delimiter: u8) -> std::io::Result<()> {
    let [cell] = header else { return Ok(()) };
    // With a space or a quotation mark, the cell may be one title with a comma.
    let is_words = cell.contains([' ', '"']);
    let (mark, help) = match delimiter {
        b'\t' if is_words => return Ok(()),
        b'\t' if cell.contains(',') => ("commas", "write `format: csv`"),
        b'\t' if cell.contains(';') => ("`;`", "write `format: csv` and `delimiter: \";\"`"),
        b'\t' => return Ok(()),
        _ if cell.contains('\t') => ("tabs", "write `format: tsv`"),
        _ if is_words => return Ok(()),
        other if other != b',' && cell.contains(',') => ("commas", "leave out `delimiter`"),
        other if other != b';' && cell.contains(';') => ("`;`", "write `delimiter: \";\"`"),
        other if other != b'|' && cell.contains('|') => ("`|`", "write `delimiter: \"|\"`"),
        _ => return Ok(()),
    };
    let wanted = match delimiter {
        b',' => "commas".to_owned(),
        b'\t' => "tabs".to_owned(),
        other => format!("`{}`", char::from(other)),
    };
    Err(Unreadable::error(format!("the header `{cell}` is separated by {mark}, and not by {wanted}"), help))
}

/// Says where bytes are not UTF-8, and what they are by their looks.
pub(crate) fn not_utf8(bytes: &[u8]) -> Option<String> {
    let fault = std::str::from_utf8(bytes).err()?;
    let place = fault.valid_up_to();
    let cut = if fault.error_len().is_none() { ", or cut short inside a character" } else { "" };
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    detector.feed(bytes, true);
    let named = match detector.guess(None, Utf8Detection::Deny).name() {
        "windows-1252" => "Latin-1 (windows-1252)".to_owned(),
        other => other.to_owned(),
    };
    Some(format!(
        "not UTF-8: byte 0x{:02X} at place {}; it may be {named}{cut}: convert the file by `iconv -f ENCODING -t UTF-8`",
        bytes[place],
        place + 1
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(start: &[u8], format: Format) -> String {
        check_start(start, format).map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn encodings_and_formats_are_named() {
        let wide: Vec<u8> = "[{\"a\":1}]".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(fault(&wide, Format::Json), "it is UTF-16LE, and not UTF-8");
        assert_eq!(fault(&[&[0xff, 0xfe], wide.as_slice()].concat(), Format::Csv), "it is UTF-16LE, and not UTF-8");
        assert_eq!(fault(&[0xfe, 0xff, 0, b'{'], Format::Jsonl), "it is UTF-16BE, and not UTF-8");
        assert_eq!(fault(b"PAR1....", Format::Jsonl), "it is a Parquet file, and not JSON lines");
        assert_eq!(fault(b"{\"id\": 1, \"b\": 2}\n", Format::Csv), "it is JSON, and not CSV");
        for fine in [&b"id,text\n"[..], b"", b"a", b"{id},x\n"] {
            assert_eq!(fault(fine, Format::Csv), "");
        }
    }

    #[test]
    fn a_header_of_one_cell_shows_another_separator() {
        let of = |cell: &str, delimiter| check_header(&[cell.to_owned()], delimiter).is_err();
        assert!(of("id\ttext", b',') && of("id,text", b'\t') && of("id;text", b','));
        assert!(of("id,text", b';') && of("id;text", b'|') && of("id|text", b',') && of("id;text", b'\t'));
        assert!(!of("text", b',') && !of("name, first", b'\t') && !of("a; b", b','));
    }

    #[test]
    fn bytes_that_are_not_utf8_are_named() {
        assert_eq!(not_utf8("é".as_bytes()), None);
        let said = not_utf8(b"caf\xe9 cr\xe8me").unwrap();
        assert!(said.contains("0xE9 at place 4") && said.contains("Latin-1"), "{said}");
        assert!(not_utf8(b"caf\xc3").unwrap().contains("cut short"));
    }
}
