//! File formats and compressions.

use std::io::{BufRead, BufReader, Read};

use schemars::JsonSchema;
use searchmill_engine::operator::OperatorError;
use serde::{Deserialize, Serialize};

/// The format of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Detect by file extension (`.jsonl`, `.ndjson`, `.json`, `.csv`, `.tsv`, `.parquet`, each also with `.gz` or
    /// `.zst`).
    #[default]
    Auto,
    /// One JSON object per line.
    Jsonl,
    /// A JSON array of objects, or concatenated JSON objects with any line breaks.
    Json,
    /// Comma-separated values with a header line; quoting as in RFC 4180.
    Csv,
    /// Tab-separated values with a header line.
    Tsv,
    /// Apache Parquet.
    Parquet,
}

/// The compression of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Reading: detect by the first bytes. Writing: by file extension (`.gz`, `.zst`); Parquet uses snappy.
    #[default]
    Auto,
    /// No compression.
    None,
    /// gzip; multiple members form one file.
    Gz,
    /// Zstandard.
    Zst,
}

/// Lists endings of files, each also with those of compressed files.
macro_rules! endings {
    ($($format:literal)+) => {
        &[$($format,)+ $(concat!($format, ".gz"),)+ $(concat!($format, ".zst"),)+ $(concat!($format, ".zstd"),)+]
    };
}

pub(crate) use endings;

/// File name endings with a known format.
pub const ENDINGS: &[&str] = endings!(".jsonl" ".ndjson" ".json" ".csv" ".tsv" ".parquet" ".pq");

impl Format {
    /// Returns the format of a file name.
    pub fn of_name(name: &str) -> Option<Self> {
        let lower = name.to_ascii_lowercase();
        match unpacked_name(&lower).rsplit_once('.')?.1 {
            "jsonl" | "ndjson" => Some(Self::Jsonl),
            "json" => Some(Self::Json),
            "csv" => Some(Self::Csv),
            "tsv" => Some(Self::Tsv),
            "parquet" | "pq" => Some(Self::Parquet),
            _ => None,
        }
    }

    /// Returns this format, or for `Auto` the format of the file name.
    pub fn or_of_name(self, name: &str) -> Option<Self> {
        if self == Self::Auto { Self::of_name(name) } else { Some(self) }
    }

    /// Returns the same for a file that messages name `shown`.
    ///
    /// # Errors
    /// Fails if the file name does not determine it.
    pub fn of_file(self, name: &str, shown: &str) -> Result<Self, OperatorError> {
        if let Some(format) = self.or_of_name(name) {
            return Ok(format);
        }
        let message = format!("the format of `{shown}` cannot be told from its name");
        let help = "write `format: jsonl` (or json, csv, tsv, parquet); write `layout: files` for texts, Markdown, HTML, \
                    PDF, DOCX and WARC files";
        Err(OperatorError::pipeline(message).with_help(help))
    }
}

const COMPRESSED: [(&str, Compression); 3] =
    [(".gz", Compression::Gz), (".zst", Compression::Zst), (".zstd", Compression::Zst)];

/// Returns a file name without the ending of its compression, which may have capitals.
pub(crate) fn unpacked_name(name: &str) -> &str {
    for (ending, _) in COMPRESSED {
        // A name that is nothing but an ending is a hidden file.
        if name.len() > ending.len()
            && let Some((plain, end)) = name.split_at_checked(name.len() - ending.len())
            && end.eq_ignore_ascii_case(ending)
        {
            return plain;
        }
    }
    name
}

impl Compression {
    /// Returns the compression of a file name.
    pub fn of_name(name: &str) -> Self {
        let lower = name.to_ascii_lowercase();
        COMPRESSED.iter().find(|(ending, _)| lower.ends_with(ending)).map_or(Self::None, |(_, found)| *found)
    }
}

/// The bytes of a file.
pub type Reading = Box<dyn Read + Send>;

/// Decompresses a stream with any number of members or frames.
///
/// # Errors
/// Fails if the first bytes cannot be read.
pub(crate) fn decompressed(raw: Reading, compression: Compression) -> std::io::Result<Reading> {
    // Files are often compressed under a name that does not say so: the first bytes decide.
    let mut raw = BufReader::with_capacity(1 << 18, raw);
    let found = match compression {
        Compression::Auto => match raw.fill_buf()? {
            [0x1f, 0x8b, ..] => Compression::Gz,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zst,
            _ => Compression::None,
        },
        named => named,
    };
    Ok(match found {
        Compression::Gz => Box::new(flate2::read::MultiGzDecoder::new(raw)),
        Compression::Zst => Box::new(zstd::stream::read::Decoder::with_buffer(raw)?),
        Compression::Auto | Compression::None => Box::new(raw),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_name_formats() {
        assert_eq!(Format::of_name("a.jsonl"), Some(Format::Jsonl));
        assert_eq!(Format::of_name("A.JSONL.GZ"), Some(Format::Jsonl));
        assert_eq!(Format::of_name("b.csv.zst"), Some(Format::Csv));
        assert_eq!(Format::of_name("train-00000-of-00001.parquet"), Some(Format::Parquet));
        assert_eq!(Format::of_name("README"), None);
        assert_eq!(Format::of_name("notes.txt"), None);
        assert!(ENDINGS.iter().all(|ending| Format::of_name(&format!("a{ending}")).is_some()));
        assert_eq!(ENDINGS.len(), 7 * (1 + COMPRESSED.len()), "every format, plain and compressed");
    }

    #[test]
    fn members_and_frames_follow_each_other() {
        let mut gz = Vec::new();
        for part in ["one\n", "two\n"] {
            let mut encoder = flate2::write::GzEncoder::new(&mut gz, flate2::Compression::fast());
            std::io::Write::write_all(&mut encoder, part.as_bytes()).unwrap();
            encoder.finish().unwrap();
        }
        let zst = ["one\n", "two\n"].map(|part| zstd::encode_all(part.as_bytes(), 1).unwrap()).concat();
        for bytes in [gz, zst, b"one\ntwo\n".to_vec()] {
            let mut text = String::new();
            let raw = Box::new(std::io::Cursor::new(bytes));
            decompressed(raw, Compression::Auto).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "one\ntwo\n");
        }
    }
}
