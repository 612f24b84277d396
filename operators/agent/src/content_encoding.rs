//! Bodies that a server or a gateway compressed, asked or not (`Content-Encoding`, RFC 9110, section 8.4).

use std::io::Read;

use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use reqwest::header::{CONTENT_ENCODING, HeaderMap};

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Buffer of the brotli decoder in bytes.
const BUFFER: usize = 4096;

/// A body that could not be decoded.
pub(crate) struct Undecoded {
    /// What is wrong, with the name of the encoding.
    pub(crate) message: String,
    /// The beginning, as far as it could be decoded.
    pub(crate) beginning: Vec<u8>,
}

/// Returns the body without its encodings, at most `most` bytes.
///
/// # Errors
/// If an encoding is unknown, or the body is damaged, cut or too long.
pub(crate) fn decoded(headers: &HeaderMap, mut body: Vec<u8>, most: usize) -> Result<Vec<u8>, Undecoded> {
    let named = headers.get_all(CONTENT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
    let names: Vec<String> =
        named.flat_map(|value| value.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect();
    // The last encoding was applied last.
    for name in names.iter().rev() {
        body = without(name, body, most)?;
    }
    // Some gateways do not name the encoding. No JSON and no text begins with these bytes.
    if body.starts_with(&GZIP) {
        return without("gzip", body, most);
    }
    if body.starts_with(&ZSTD) {
        return without("zstd", body, most);
    }
    Ok(body)
}

/// Removes one encoding. A body that is not encoded, although a header says so, stays as it is.
fn without(name: &str, body: Vec<u8>, most: usize) -> Result<Vec<u8>, Undecoded> {
    let read = match name {
        "" | "identity" => return Ok(body),
        "gzip" | "x-gzip" if !body.starts_with(&GZIP) => return Ok(body),
        "zstd" if !body.starts_with(&ZSTD) => return Ok(body),
        // A body of gzip may have several members (RFC 1952, section 2.2): `GzDecoder` would end after the first.
        "gzip" | "x-gzip" => whole(MultiGzDecoder::new(body.as_slice()), name, most),
        "zstd" => match zstd::Decoder::new(body.as_slice()) {
            Ok(decoder) => whole(decoder, name, most),
            Err(error) => Err(undecoded(name, &error.to_string(), Vec::new())),
        },
        "br" => whole(brotli::Decompressor::new(body.as_slice(), BUFFER), name, most),
        // Servers also send the bare format, without the header of zlib.
        "deflate" => whole(ZlibDecoder::new(body.as_slice()), name, most)
            .or_else(|undecoded| whole(DeflateDecoder::new(body.as_slice()), name, most).map_err(|_| undecoded)),
        _ => Err(undecoded(name, "it is unknown", Vec::new())),
    };
    // These two encodings have no mark.
    // So begin JSON, a page, and an event stream (`data:`, `event:`, or a comment behind `:`).
    let plain = matches!(name, "br" | "deflate") && body.first().is_some_and(|first| b"{[:<de".contains(first));
    match read {
        Err(_) if plain && std::str::from_utf8(&body).is_ok() => Ok(body),
        read => read,
    }
}

fn whole(decoder: impl Read, name: &str, most: usize) -> Result<Vec<u8>, Undecoded> {
    let mut body = Vec::new();
    // One byte more tells a body at the limit from a longer one: a few bytes may decompress to any size.
    let read = decoder.take(most as u64 + 1).read_to_end(&mut body);
    match read {
        Err(error) => Err(undecoded(name, &error.to_string(), body)),
        Ok(_) if body.len() > most => {
            body.truncate(most);
            Err(undecoded(name, &format!("it has more than {} MiB (limit)", most >> 20), body))
        }
        Ok(_) => Ok(body),
    }
}

fn undecoded(name: &str, reason: &str, beginning: Vec<u8>) -> Undecoded {
    let message = format!("the response cannot be decoded as `{name}` (`Content-Encoding`): {reason}");
    Undecoded { message, beginning }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use reqwest::header::HeaderValue;

    use super::*;

    const TEXT: &[u8] = b"{\"choices\": [{\"message\": {\"content\": \"Tael\"}}]}";

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).expect("in memory");
        encoder.finish().expect("in memory")
    }

    fn read(encoding: &str, body: Vec<u8>) -> Result<Vec<u8>, String> {
        let mut headers = HeaderMap::new();
        if !encoding.is_empty() {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_str(encoding).expect("a header"));
        }
        decoded(&headers, body, 1 << 20).map_err(|undecoded| undecoded.message)
    }

    fn zlib(text: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).expect("in memory");
        encoder.finish().expect("in memory")
    }

    fn deflate(text: &[u8]) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).expect("in memory");
        encoder.finish().expect("in memory")
    }

    fn brotli(text: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        let mut encoder = ::brotli::CompressorWriter::new(&mut body, BUFFER, 5, 20);
        encoder.write_all(text).expect("in memory");
        drop(encoder);
        body
    }

    #[test]
    fn every_encoding_is_removed_whether_or_not_it_is_named_rightly() {
        let zstd = |text: &[u8]| zstd::encode_all(text, 1).expect("in memory");
        for (encoding, body) in [
            ("", TEXT.to_vec()),
            ("identity", TEXT.to_vec()),
            ("gzip", gzip(TEXT)),
            ("GZIP", gzip(TEXT)),
            ("x-gzip", gzip(TEXT)),
            ("gzip", [gzip(&TEXT[..9]), gzip(&TEXT[9..])].concat()),
            ("deflate", zlib(TEXT)),
            ("deflate", deflate(TEXT)),
            ("br", brotli(TEXT)),
            ("zstd", zstd(TEXT)),
            ("gzip, br", brotli(&gzip(TEXT))),
            ("", gzip(TEXT)),
            ("", zstd(TEXT)),
            ("identity", gzip(TEXT)),
            ("gzip", TEXT.to_vec()),
            ("br", TEXT.to_vec()),
            ("deflate", TEXT.to_vec()),
            ("zstd", TEXT.to_vec()),
        ] {
            assert_eq!(read(encoding, body).as_deref(), Ok(TEXT), "{encoding}");
        }
    }

    #[test]
    fn what_cannot_be_decoded_is_an_error_that_names_the_encoding() {
        let mut cut = gzip(TEXT);
        cut.truncate(30);
        assert!(read("gzip", cut).expect_err("cut").contains("decoded as `gzip` (`Content-Encoding`)"));
        let mut cut = brotli(&TEXT.repeat(20));
        cut.truncate(cut.len() - 4);
        assert!(read("br", cut).expect_err("cut").contains("decoded as `br`"));
        assert!(
            read("snappy", TEXT.to_vec())
                .expect_err("unknown")
                .contains("`snappy` (`Content-Encoding`): it is unknown")
        );
        let long = gzip(&vec![b' '; (1 << 20) + 1]);
        assert!(read("gzip", long).expect_err("long").contains("more than 1 MiB (limit)"));
    }
}
