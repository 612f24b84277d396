//! Decodes texts. The encoding comes from a byte order mark, from what the file or server says, or is guessed.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE};

use super::content::Content;

/// Bytes of a page that may name its encoding, as browsers have it.
const PRESCANNED: usize = 1024;

/// Decodes a text. `named` is the encoding that its surroundings name. Line ends become `\n`. The details are
/// `encoding`, `encoding_guessed` and `encoding_errors`.
pub(super) fn decode(bytes: &[u8], named: Option<&str>) -> Content {
    if let Some((encoding, mark)) = Encoding::for_bom(bytes) {
        return decoded(&bytes[mark..], encoding, false);
    }
    // Servers and pages often name another encoding than theirs: it counts only if all bytes fit.
    if let Some(label) = named
        && let Some(encoding) = Encoding::for_label(label.trim().as_bytes())
        && !encoding.decode_without_bom_handling(bytes).1
    {
        return decoded(bytes, encoding, false);
    }
    if std::str::from_utf8(bytes).is_ok() {
        return decoded(bytes, UTF_8, false);
    }
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    detector.feed(bytes, true);
    decoded(bytes, detector.guess(None, Utf8Detection::Allow), true)
}

fn decoded(bytes: &[u8], encoding: &'static Encoding, is_guessed: bool) -> Content {
    let (text, has_errors) = encoding.decode_without_bom_handling(bytes);
    let mut details = serde_json::Map::new();
    details.insert("encoding".to_owned(), encoding.name().into());
    if is_guessed {
        details.insert("encoding_guessed".to_owned(), true.into());
    }
    if has_errors {
        details.insert("encoding_errors".to_owned(), true.into());
    }
    let text = if text.contains('\r') { text.replace("\r\n", "\n").replace('\r', "\n") } else { text.into_owned() };
    Content { title: None, text, details }
}

/// Returns the encoding that a page names (`<meta charset=…>`, `<?xml encoding=…?>`). In wide characters, the name would
/// not have been found: UTF-16 means UTF-8 (HTML standard, "prescan a byte stream to determine its encoding").
pub(super) fn of_page(bytes: &[u8]) -> Option<String> {
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(PRESCANNED)]).to_ascii_lowercase();
    let head = start.split("<body").next().unwrap_or_default();
    let after = ["charset=", "<?xml version=\"1.0\" encoding="].iter().find_map(|mark| head.split_once(mark))?.1;
    let name = charset(after)?;
    let named = Encoding::for_label(name.as_bytes());
    Some(if named == Some(UTF_16LE) || named == Some(UTF_16BE) { "utf-8".to_owned() } else { name })
}

/// Returns the `charset` of a `Content-Type`.
pub(super) fn of_content_type(content_type: &str) -> Option<String> {
    charset(content_type.to_ascii_lowercase().split_once("charset=")?.1)
}

fn charset(after: &str) -> Option<String> {
    let after = after.trim_start_matches([' ', '"', '\'']);
    let name = after.split(|c: char| !c.is_ascii_alphanumeric() && !"-_:.".contains(c)).next().unwrap_or_default();
    if name.is_empty() { None } else { Some(name.to_owned()) }
}

#[cfg(test)]
mod tests {
    use encoding_rs::{SHIFT_JIS, WINDOWS_1252};

    use super::*;

    fn told(bytes: &[u8], said: Option<&str>) -> (String, String, bool, bool) {
        let Content { text, details, .. } = decode(bytes, said);
        let flag = |name: &str| details.get(name).is_some();
        (text, details["encoding"].as_str().unwrap().to_owned(), flag("encoding_guessed"), flag("encoding_errors"))
    }

    #[test]
    fn marks_names_and_guesses() {
        let wide: Vec<u8> = "\u{feff}Añb\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(told(&wide, None), ("Añb\n".to_owned(), "UTF-16LE".to_owned(), false, false));
        assert_eq!(told("\u{feff}é".as_bytes(), Some("latin1")), ("é".to_owned(), "UTF-8".to_owned(), false, false));
        assert_eq!(told("é\rb".as_bytes(), None), ("é\nb".to_owned(), "UTF-8".to_owned(), false, false));
        let japanese = "これは日本語の文章です。塩田は海の近くにあります。";
        let bytes = SHIFT_JIS.encode(japanese).0;
        assert_eq!(told(&bytes, None), (japanese.to_owned(), "Shift_JIS".to_owned(), true, false));
        assert_eq!(told(&bytes, Some("shift_jis")), (japanese.to_owned(), "Shift_JIS".to_owned(), false, false));
        let western = "Das Café “Zur Mühle” öffnet für Gäste täglich um acht – außer montags.";
        let bytes = WINDOWS_1252.encode(western).0;
        assert_eq!(told(&bytes, None), (western.to_owned(), "windows-1252".to_owned(), true, false));
        assert_eq!(told(&bytes, Some("utf-8")).1, "windows-1252", "a name that does not fit is not believed");
    }

    #[test]
    fn names_in_pages_and_headers() {
        assert_eq!(of_page(b"<html><meta charset='Shift_JIS'>").as_deref(), Some("shift_jis"));
        let long = b"<meta http-equiv=content-type content=\"text/html; charset=ISO-8859-1\">";
        assert_eq!(of_page(long).as_deref(), Some("iso-8859-1"));
        let narrow = "<meta charset=\"utf-16\"><p>Grüße</p>".as_bytes();
        let said = of_page(narrow);
        assert_eq!(told(narrow, said.as_deref()).1, "UTF-8", "bytes in which the name was found are not wide");
        assert_eq!(of_page(b"<?xml version=\"1.0\" encoding=\"UTF-16BE\"?>").as_deref(), Some("utf-8"));
        assert_eq!(of_content_type("text/html; charset=utf-16").as_deref(), Some("utf-16"), "a server may say so");
        assert_eq!(of_page(b"<p>charset</p><body>charset=x"), None);
        assert_eq!(of_content_type("text/html; Charset=\"UTF-8\"").as_deref(), Some("utf-8"));
        assert_eq!(of_content_type("text/html"), None);
    }
}
