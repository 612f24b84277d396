//! The HTTP response inside a WARC record.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::{MultiGzDecoder, ZlibDecoder};

use super::content::{damaged, too_large};
use crate::source::record::Fault;

/// A response.
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) content_type: Option<String>,
    pub(super) body: Vec<u8>,
}

/// Reads a response. The body is unpacked to at most `limit` bytes.
pub(super) fn read(bytes: &[u8], limit: u64) -> Result<Response, Fault> {
    const NO_HEAD: &str = "the record is no HTTP response: it has no status line and headers";
    let Some((head, body)) = split(bytes) else { return Err(damaged(NO_HEAD)) };
    let head = String::from_utf8_lossy(head);
    let mut lines = head.lines();
    let line = lines.next().unwrap_or_default();
    let status = match line.split(' ').nth(1).unwrap_or_default().parse() {
        Ok(status) if line.starts_with("HTTP/") => status,
        _ => return Err(damaged(NO_HEAD)),
    };
    let mut headers: BTreeMap<String, &str> = BTreeMap::new();
    for line in lines {
        if let Some((name, value)) = line.split_once(':') {
            // The first one of a name counts.
            headers.entry(name.trim().to_ascii_lowercase()).or_insert(value.trim());
        }
    }
    let chunks = match headers.get("transfer-encoding") {
        Some(value) if value.to_ascii_lowercase().contains("chunked") => dechunked(body),
        _ => None,
    };
    // Crawlers that store a body without its chunks leave the header.
    let body = chunks.unwrap_or_else(|| body.to_vec());
    let packing = headers.get("content-encoding").copied().unwrap_or_default().to_ascii_lowercase();
    let body = unpacked(body, &packing, limit)?;
    Ok(Response { status, content_type: headers.get("content-type").map(|&value| value.to_owned()), body })
}

/// Splits at the first empty line.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let crlf = memchr::memmem::find(bytes, b"\r\n\r\n").map(|at| (at, at + 4));
    let lf = memchr::memmem::find(bytes, b"\n\n").map(|at| (at, at + 2));
    let (end, start) = [crlf, lf].into_iter().flatten().min()?;
    Some((&bytes[..end], &bytes[start..]))
}

/// Joins the chunks of a body; `None` if it has none.
fn dechunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let end = memchr::memchr(b'\n', rest)?;
        let line = std::str::from_utf8(&rest[..end]).ok()?;
        let length = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
        rest = &rest[end + 1..];
        if length == 0 {
            return Some(whole);
        }
        whole.extend_from_slice(rest.get(..length)?);
        rest = rest[length..].strip_prefix(b"\r\n").or_else(|| rest[length..].strip_prefix(b"\n"))?;
    }
}

/// Unpacks a body. A body that does not begin like its packing was stored unpacked.
fn unpacked(body: Vec<u8>, packing: &str, limit: u64) -> Result<Vec<u8>, Fault> {
    let mut unpacker: Box<dyn Read + '_> = match packing {
        "gzip" | "x-gzip" if body.starts_with(b"\x1f\x8b") => Box::new(MultiGzDecoder::new(body.as_slice())),
        // The low half of the first byte is the method of compression; 8 is the only one.
        "deflate" if body.first().is_some_and(|first| first & 0x0f == 8) => Box::new(ZlibDecoder::new(body.as_slice())),
        "br" | "zstd" if std::str::from_utf8(&body).is_err() => {
            let message = format!("the body is packed with {packing}, which is not read; store bodies unpacked");
            return Err(damaged(message));
        }
        _ => return Ok(body),
    };
    let mut whole = Vec::new();
    let read = unpacker.by_ref().take(limit + 1).read_to_end(&mut whole);
    read.map_err(|error| damaged(format!("the body is not valid {packing}: {error}")))?;
    if whole.len() as u64 > limit { Err(too_large("the body, unpacked,", limit)) } else { Ok(whole) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn bodies_are_joined_and_unpacked_within_the_limit() {
        let plain = read(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>", 10).unwrap();
        assert_eq!(
            (plain.status, plain.content_type.as_deref(), plain.body.as_slice()),
            (200, Some("text/html"), &b"<p>"[..])
        );
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        assert_eq!(read(chunked, 10).unwrap().body, b"abcde");
        let joined = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n<p>joined";
        assert_eq!(read(joined, 10).unwrap().body, b"<p>joined");
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packer.write_all(&vec![b'x'; 50_000]).unwrap();
        let mut packed = b"HTTP/1.0 404 Not Found\nContent-Encoding: gzip\n\n".to_vec();
        packed.extend(packer.finish().unwrap());
        let made = read(&packed, 50_000).unwrap();
        assert_eq!((made.status, made.body.len()), (404, 50_000));
        assert_eq!(read(&packed, 49_999).map(drop).unwrap_err().kind, "too_large");
        assert_eq!(read(&packed[..packed.len() - 9], 50_000).map(drop).unwrap_err().kind, "damaged");
        assert_eq!(read(b"no response", 10).map(drop).unwrap_err().kind, "damaged");
        assert!(
            read(b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n\r\n\xff\xfe", 10)
                .map(drop)
                .unwrap_err()
                .message
                .contains("packed with br")
        );
    }
}
