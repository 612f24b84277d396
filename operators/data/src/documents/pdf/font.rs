//! Fonts: which characters the bytes of a string show, and how wide they are.

use std::collections::BTreeMap;

use lopdf::{Dictionary, Document, Encoding, Error, Object};

/// Most bytes that the character map of a font unpacks to.
pub(super) const MAX_MAP: usize = 4 << 20;

/// Width of a glyph that no font tells, in thousandths of the font size.
const UNKNOWN_WIDTH: f32 = 500.0;

/// A font of a page.
pub(super) struct Font<'a> {
    encoding: Encoding<'a>,
    /// Codes have two bytes.
    is_composite: bool,
    widths: BTreeMap<u32, f32>,
    default_width: f32,
}

/// Prefers the character maps of fonts to their encodings, which name glyphs that only the font knows. Removes unknown
/// names of glyphs: they would cost all other names of the font.
pub(super) fn prepare(document: &mut Document) {
    let mut mapped = Vec::new();
    let mut named = Vec::new();
    for (id, object) in &document.objects {
        let Ok(dictionary) = object.as_dict() else { continue };
        if dictionary.has_type(b"Font")
            && dictionary.get_deref(b"ToUnicode", document).and_then(Object::as_stream).is_ok()
        {
            mapped.push(*id);
        } else if let Some(names) = differences(dictionary).map(known) {
            named.push((*id, None, names));
        } else if let Some(names) =
            dictionary.get(b"Encoding").and_then(Object::as_dict).ok().and_then(differences).map(known)
        {
            named.push((*id, Some(b"Encoding"), names));
        }
    }
    for id in mapped {
        if let Ok(font) = document.get_dictionary_mut(id) {
            font.remove(b"Encoding");
        }
    }
    for (id, inner, names) in named {
        let Ok(dictionary) = document.get_dictionary_mut(id) else { continue };
        let target = match inner {
            Some(inner) => dictionary.get_mut(inner).and_then(Object::as_dict_mut).ok(),
            None => Some(dictionary),
        };
        if let Some(target) = target {
            target.set("Differences", names);
        }
    }
}

fn differences(dictionary: &Dictionary) -> Option<&Vec<Object>> {
    dictionary.get(b"Differences").and_then(Object::as_array).ok()
}

/// Returns the names that lopdf knows, each after its code.
fn known(names: &Vec<Object>) -> Vec<Object> {
    let mut kept = Vec::new();
    let mut code = 0;
    for object in names {
        match object {
            Object::Integer(number) => code = *number,
            Object::Name(name) => {
                if (0..=255).contains(&code) && is_known(name) {
                    kept.push(Object::Integer(code));
                    kept.push(Object::Name(name.clone()));
                }
                code = code.saturating_add(1);
            }
            _ => {}
        }
    }
    kept
}

/// Whether a font with only this name gets it: lopdf does not publish its list.
fn is_known(name: &[u8]) -> bool {
    let mut encoding = Dictionary::new();
    encoding.set("Differences", vec![Object::Integer(0), Object::Name(name.to_vec())]);
    let mut font = Dictionary::new();
    font.set("Type", Object::Name(b"Font".to_vec()));
    font.set("Encoding", Object::Dictionary(encoding));
    matches!(font.get_font_encoding(&Document::new()), Ok(Encoding::Differences(_)))
}

impl<'a> Font<'a> {
    /// Reads a font.
    ///
    /// # Errors
    /// Fails if its character map is larger than [`MAX_MAP`] or it is no font.
    pub(super) fn new(document: &'a Document, font: &'a Dictionary) -> Result<Self, Error> {
        let encoding = font.get_font_encoding_with_limit(document, MAX_MAP)?;
        let is_composite = font.get(b"Subtype").and_then(Object::as_name).is_ok_and(|name| name == b"Type0");
        let mut made = Self { encoding, is_composite, widths: BTreeMap::new(), default_width: UNKNOWN_WIDTH };
        if is_composite {
            made.composite_widths(document, font);
        } else {
            made.simple_widths(document, font);
        }
        Ok(made)
    }

    /// The number of bytes of its character map.
    pub(super) fn map_bytes(document: &Document, font: &Dictionary) -> Result<usize, Error> {
        match font.get_deref(b"ToUnicode", document).and_then(Object::as_stream) {
            Ok(map) => Ok(map.get_plain_content_with_limit(MAX_MAP)?.len()),
            Err(_) => Ok(0),
        }
    }

    fn simple_widths(&mut self, document: &Document, font: &Dictionary) {
        let first = font.get_deref(b"FirstChar", document).and_then(Object::as_i64).unwrap_or(0);
        let Ok(widths) = font.get_deref(b"Widths", document).and_then(Object::as_array) else { return };
        // Type 3 fonts have units of their own.
        let matrix = font.get_deref(b"FontMatrix", document).and_then(Object::as_array).ok();
        let unit = matrix.and_then(|matrix| matrix.first()?.as_float().ok()).map_or(1.0, |scale| scale * 1000.0);
        for (code, width) in (first.clamp(0, 255)..256).zip(widths) {
            if let Some(width) = number(document, width) {
                self.widths.insert(code as u32, width * unit);
            }
        }
    }

    /// Reads `/W`: `code [width …]` or `first last width`.
    fn composite_widths(&mut self, document: &Document, font: &Dictionary) {
        let inner = font.get_deref(b"DescendantFonts", document).and_then(Object::as_array).ok();
        let inner = inner.and_then(|fonts| document.dereference(fonts.first()?).ok()?.1.as_dict().ok());
        let Some(inner) = inner else { return };
        self.default_width = inner.get_deref(b"DW", document).and_then(Object::as_float).unwrap_or(1000.0);
        let Ok(list) = inner.get_deref(b"W", document).and_then(Object::as_array) else { return };
        let mut rest = list.as_slice();
        while let [first, second, ..] = rest {
            let Some(first) = number(document, first).map(|first| first as u32) else { return };
            let second = document.dereference(second).map_or(second, |(_, second)| second);
            match (second, rest.get(2)) {
                (Object::Array(widths), _) => {
                    for (code, width) in (first..=0xffff).zip(widths) {
                        self.widths.extend(number(document, width).map(|width| (code, width)));
                    }
                    rest = &rest[2..];
                }
                (last, Some(width)) => {
                    let (Some(last), Some(width)) = (number(document, last), number(document, width)) else { return };
                    for code in first..=(last as u32).min(0xffff) {
                        self.widths.insert(code, width);
                    }
                    rest = &rest[3..];
                }
                _ => return,
            }
        }
    }

    /// Returns the characters that a string shows; those that the font does not tell are U+FFFD.
    pub(super) fn text(&self, bytes: &[u8]) -> String {
        let unknown = || "\u{fffd}".repeat(self.codes(bytes).count());
        self.encoding.bytes_to_string(bytes).unwrap_or_else(|_| unknown())
    }

    fn codes(&self, bytes: &[u8]) -> impl Iterator<Item = u32> {
        let step = if self.is_composite { 2 } else { 1 };
        bytes.chunks(step).map(|code| code.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
    }

    /// Returns how wide a string is, in font sizes, its number of codes, and how many of these are spaces.
    pub(super) fn measure(&self, bytes: &[u8]) -> (f32, usize, usize) {
        let (mut width, mut count, mut spaces) = (0.0, 0, 0);
        for code in self.codes(bytes) {
            width += self.widths.get(&code).unwrap_or(&self.default_width) / 1000.0;
            count += 1;
            spaces += usize::from(!self.is_composite && code == 32);
        }
        (width, count, spaces)
    }
}

fn number(document: &Document, object: &Object) -> Option<f32> {
    document.dereference(object).ok()?.1.as_float().ok()
}
