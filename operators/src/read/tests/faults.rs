//! The rule of all readers, held against damaged files: rows in are rows out and rejects, or there is an error that names
//! the file. Each format meets each fault with 200 seeds; what a damaged file holds is told by readers of these tests.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use searchmill_engine::operator::testing::Harness;
use serde_json::{Value, json};

use super::run;

const SEEDS: u64 = 200;
const ROWS: usize = 24;

/// Id and text of a row.
type Pair = (String, String);

/// Random numbers (SplitMix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// Questions of a real data set, or of these tests without it, and some with everything that formats escape.
fn pairs() -> Vec<Pair> {
    let text = searchmill_fixtures::shared_text("data/hotpotqa/dev_200.jsonl").unwrap_or_default();
    let real = text.lines().take(ROWS - 9).map(|line| {
        let row: Value = serde_json::from_str(line).unwrap();
        row["question"].as_str().unwrap().to_owned()
    });
    let own = [
        "plain words",
        "a, b, and c",
        "He said \"no\" twice",
        "\"quoted whole\"",
        "two\nlines, one \"row\"",
        "a\ttab",
        "6' 2\"",
        "Zürich, naïve café, 東京 🎈",
        "{\"k\": [1, \"]\"]}",
    ];
    let own = own.iter().map(|text| (*text).to_owned());
    real.chain(own).enumerate().map(|(place, text)| (format!("q{place}"), text)).collect()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Format {
    Jsonl,
    Json,
    Csv,
    Tsv,
    Parquet,
}

const FORMATS: [(Format, &str); 5] = [
    (Format::Jsonl, "jsonl"),
    (Format::Json, "json"),
    (Format::Csv, "csv"),
    (Format::Tsv, "tsv"),
    (Format::Parquet, "parquet"),
];

fn encoded(format: Format, rows: &[Pair], dice: &mut Dice) -> Vec<u8> {
    let objects: Vec<Value> = rows.iter().map(|(id, text)| json!({"id": id, "question": text})).collect();
    match format {
        Format::Jsonl => objects.iter().flat_map(|row| format!("{row}\n").into_bytes()).collect(),
        Format::Json if dice.below(2) == 0 => serde_json::to_vec_pretty(&objects).unwrap(),
        Format::Json => serde_json::to_vec(&objects).unwrap(),
        Format::Csv | Format::Tsv => {
            let delimiter = if format == Format::Csv { b',' } else { b'\t' };
            let mut writer = csv::WriterBuilder::new().delimiter(delimiter).from_writer(Vec::new());
            writer.write_record(["id", "question"]).unwrap();
            for (id, text) in rows {
                writer.write_record([id, text]).unwrap();
            }
            writer.into_inner().unwrap()
        }
        Format::Parquet => {
            let of =
                |part: fn(&Pair) -> &str| Arc::new(rows.iter().map(|row| Some(part(row))).collect::<StringArray>());
            let batch =
                RecordBatch::try_from_iter([("id", of(|row| &row.0) as _), ("question", of(|row| &row.1) as _)])
                    .unwrap();
            let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
            writer.write(&batch).unwrap();
            writer.into_inner().unwrap()
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Cut,
    Lose,
    Quote,
    Double,
    Recode,
    Mislabel,
}

const FAULTS: [Fault; 6] = [Fault::Cut, Fault::Lose, Fault::Quote, Fault::Double, Fault::Recode, Fault::Mislabel];

/// Returns the damaged bytes.
fn damaged(bytes: &[u8], fault: Fault, dice: &mut Dice) -> Vec<u8> {
    let place = dice.below(bytes.len());
    let end = bytes.len().min(place + 1 + dice.below(60));
    match fault {
        Fault::Cut => bytes[..place].to_vec(),
        Fault::Lose => [&bytes[..place], &bytes[end..]].concat(),
        Fault::Quote => [&bytes[..place], b"\"", &bytes[place..]].concat(),
        Fault::Double if dice.below(2) == 0 => {
            let start = bytes[..place].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            let end = bytes[place..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| place + at + 1);
            [&bytes[..end], &bytes[start..end], &bytes[end..]].concat()
        }
        Fault::Double => [&bytes[..end], &bytes[place..end], &bytes[end..]].concat(),
        Fault::Recode => recoded(bytes, dice),
        Fault::Mislabel => bytes.to_vec(),
    }
}

fn recoded(bytes: &[u8], dice: &mut Dice) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let marked = if dice.below(2) == 0 { "\u{feff}" } else { "" };
    let units = || marked.encode_utf16().chain(text.encode_utf16());
    match dice.below(3) {
        0 => units().flat_map(u16::to_le_bytes).collect(),
        1 => units().flat_map(u16::to_be_bytes).collect(),
        _ => text.chars().map(|ch| u8::try_from(u32::from(ch)).unwrap_or(b'?')).collect(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Packing {
    None,
    Gz,
    Zst,
}

fn packed(bytes: &[u8], packing: Packing) -> Vec<u8> {
    match packing {
        Packing::None => bytes.to_vec(),
        Packing::Gz => {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            packer.write_all(bytes).unwrap();
            packer.finish().unwrap()
        }
        // As the command `zstd` packs, with a checksum.
        Packing::Zst => {
            let mut packer = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
            packer.include_checksum(true).unwrap();
            packer.write_all(bytes).unwrap();
            packer.finish().unwrap()
        }
    }
}

/// Returns the text of a packed file, if it is whole.
fn unpacked(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    match bytes {
        [0x1f, 0x8b, ..] => flate2::read::MultiGzDecoder::new(bytes).read_to_end(&mut text).ok()?,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => zstd::stream::Decoder::new(bytes).ok()?.read_to_end(&mut text).ok()?,
        _ => return Some(bytes.to_vec()),
    };
    Some(text)
}

/// What a file in a format holds: the records, or `None` if it is not whole. A record that is no row has no pair.
fn held(bytes: &[u8], format: Format) -> Option<Vec<Option<Pair>>> {
    let text = unpacked(bytes)?;
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
    // A row without an id has its number.
    let pair = |place: usize, row: &Value| {
        let part = |name: &str| row.get(name)?.as_str().map(str::to_owned);
        let id = part("id").or_else(|| row.get("id").is_none().then(|| place.to_string()));
        Some((id?, part("question")?))
    };
    match format {
        Format::Jsonl => {
            let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.iter().all(u8::is_ascii_whitespace));
            Some(lines.enumerate().map(|(place, line)| pair(place, &serde_json::from_slice(line).ok()?)).collect())
        }
        Format::Json => {
            let values: Vec<Value> = match text.trim_ascii_start().first() {
                Some(b'[') => serde_json::from_slice(text).ok()?,
                _ => serde_json::Deserializer::from_slice(text).into_iter().collect::<Result<_, _>>().ok()?,
            };
            Some(values.iter().enumerate().map(|(place, value)| pair(place, value)).collect())
        }
        Format::Csv | Format::Tsv => cells(text, if format == Format::Csv { b',' } else { b'\t' }),
        Format::Parquet => None,
    }
}

/// Reads cells as RFC 4180 has them.
fn cells(text: &[u8], delimiter: u8) -> Option<Vec<Option<Pair>>> {
    let mut rows: Vec<Vec<Vec<u8>>> = vec![vec![Vec::new()]];
    let (mut at, mut is_quoted) = (0, false);
    while at < text.len() {
        let row = rows.last_mut()?;
        let cell = row.last_mut()?;
        let starts = at == 0 || text[at - 1] == delimiter || matches!(text[at - 1], b'\n' | b'\r');
        match text[at] {
            b'"' if is_quoted && text.get(at + 1) == Some(&b'"') => {
                cell.push(b'"');
                at += 1;
            }
            b'"' if is_quoted => {
                is_quoted = false;
                let ends = text.get(at + 1).is_none_or(|next| *next == delimiter || matches!(next, b'\n' | b'\r'));
                if !ends {
                    return None;
                }
            }
            byte if is_quoted => cell.push(byte),
            b'"' if starts => is_quoted = true,
            byte if byte == delimiter => row.push(Vec::new()),
            b'\n' | b'\r' => rows.push(vec![Vec::new()]),
            byte => cell.push(byte),
        }
        at += 1;
    }
    if is_quoted {
        return None;
    }
    let is_blank = |row: &Vec<Vec<u8>>| matches!(row.as_slice(), [cell] if cell.is_empty());
    let mut rows = rows.into_iter().filter(|row| !is_blank(row));
    let header = rows.next().unwrap_or_default();
    let place = |name: &[u8]| header.iter().position(|cell| cell == name);
    let (id, question) = (place(b"id"), place(b"question"));
    let pair = |number: usize, row: Vec<Vec<u8>>| {
        let part = |place: Option<usize>| String::from_utf8(row.get(place?)?.clone()).ok();
        let own = part(id).unwrap_or_default();
        let id = if own.is_empty() { number.to_string() } else { own };
        let is_text = row.iter().all(|cell| std::str::from_utf8(cell).is_ok());
        let question = part(question).filter(|text| !text.is_empty());
        if row.len() == header.len() && is_text { Some((id, question?)) } else { None }
    };
    Some(rows.enumerate().map(|(number, row)| pair(number, row)).collect())
}

/// What a file held before it was damaged, if that is what it still holds.
enum Original<'a> {
    Rows(&'a [Pair]),
    Count(usize),
}

/// Reads the file; returns what is silently wrong, if anything.
fn silent(
    harness: &Harness,
    name: &str,
    bytes: &[u8],
    format: Format,
    original: Option<Original<'_>>,
) -> Option<String> {
    std::fs::write(harness.directory.join(name), bytes).unwrap();
    let outcome = match run(harness, json!({"path": name, "as": "question"})) {
        Err(error) => {
            let text = format!("{}\n{}", error.message, error.help.clone().unwrap_or_default());
            return (!text.contains(name)).then(|| format!("an error without the file: {text}"));
        }
        Ok(outcome) => outcome,
    };
    let (batch, rejects) = (outcome.batch("rows"), outcome.rejects());
    let column = |name: &str| batch[name].as_string::<i32>().clone();
    let (ids, questions) = (column("id"), column("question"));
    let rows: Vec<Pair> =
        (0..batch.num_rows()).map(|row| (ids.value(row).to_owned(), questions.value(row).to_owned())).collect();
    if let Some(nameless) = rejects.iter().find(|reject| !reject.id.starts_with(name)) {
        return Some(format!("a reject without its place: {}", nameless.id));
    }
    match original {
        Some(Original::Rows(pairs)) => {
            return (rows != pairs).then(|| format!("{} of {} rows", rows.len(), pairs.len()));
        }
        Some(Original::Count(count)) => {
            return (rows.len() + rejects.len() != count).then(|| format!("{} of {count} rows", rows.len()));
        }
        None => {}
    }
    let Some(records) = held(bytes, format) else {
        return rejects.is_empty().then(|| format!("{} rows of a file that is not whole, and no word", rows.len()));
    };
    if records.len() != rows.len() + rejects.len() {
        return Some(format!("{} records, {} rows and {} rejects", records.len(), rows.len(), rejects.len()));
    }
    // Rows have their own values, in their order.
    let mut rest = records.iter().flatten();
    let strange = rows.iter().find(|row| !rest.any(|record| record == *row));
    strange.map(|row| format!("a row that is no record: {row:?}"))
}

fn hold(format: Format, packing: Packing) {
    let pairs = pairs();
    let mut harness = Harness::new();
    harness.directory = harness.path().to_owned();
    let ending = FORMATS.iter().find(|(known, _)| *known == format).unwrap().1;
    let packed_ending = match packing {
        Packing::None => "",
        Packing::Gz => ".gz",
        Packing::Zst => ".zst",
    };
    let name = format!("file.{ending}{packed_ending}");
    let mut found = Vec::new();
    for fault in FAULTS {
        for seed in 0..SEEDS {
            let mut dice = Dice(seed);
            let whole = encoded(format, &pairs, &mut dice);
            let (mut name, mut read_as) = (name.clone(), format);
            // Faults of text happen before it is packed, those of bytes before or after.
            let inside = matches!(fault, Fault::Recode) || dice.below(2) == 0;
            let bytes = if inside {
                packed(&damaged(&whole, fault, &mut dice), packing)
            } else {
                damaged(&packed(&whole, packing), fault, &mut dice)
            };
            if matches!(fault, Fault::Mislabel) {
                let (other, ending) = FORMATS[dice.below(FORMATS.len())];
                let wrong = ["", ".gz", ".zst"][dice.below(3)];
                (name, read_as) = (format!("file.{ending}{wrong}"), other);
            }
            // A file that opens is whole, but its pages have no checksums: a byte more or less may be another value.
            let is_parquet = format == Format::Parquet && read_as == Format::Parquet;
            let rows = is_parquet.then(|| match fault {
                Fault::Cut | Fault::Recode | Fault::Mislabel => Original::Rows(&pairs),
                Fault::Lose | Fault::Quote | Fault::Double => Original::Count(pairs.len()),
            });
            let what = silent(&harness, &name, &bytes, read_as, rows);
            found.extend(what.map(|what| format!("{name} {fault:?} {seed}: {what}")));
        }
    }
    assert!(found.is_empty(), "{} silent:\n{}", found.len(), found.join("\n"));
}

#[test]
fn no_fault_of_jsonl_is_silent() {
    hold(Format::Jsonl, Packing::None);
}

#[test]
fn no_fault_of_json_is_silent() {
    hold(Format::Json, Packing::None);
}

#[test]
fn no_fault_of_csv_is_silent() {
    hold(Format::Csv, Packing::None);
}

#[test]
fn no_fault_of_tsv_is_silent() {
    hold(Format::Tsv, Packing::None);
}

#[test]
fn no_fault_of_parquet_is_silent() {
    hold(Format::Parquet, Packing::None);
}

#[test]
fn no_fault_of_packed_files_is_silent() {
    hold(Format::Jsonl, Packing::Gz);
    hold(Format::Csv, Packing::Zst);
}

#[test]
fn no_fault_of_packed_arrays_is_silent() {
    hold(Format::Json, Packing::Zst);
    hold(Format::Tsv, Packing::Gz);
}
