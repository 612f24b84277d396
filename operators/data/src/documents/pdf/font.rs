//! Fonts: which characters the bytes of a string show, and how wide they are.

use std::collections::BTreeMap;

use lopdf::{DecompressError, Dictionary, Document, Encoding, Error, Object};

use super::cmap::CharacterMap;

/// Most bytes that the character map of a font unpacks to.
const MAX_MAP: usize = 4 << 20;

/// What a number of the list of widths costs.
const WIDTH_COST: u64 = 16;

/// Width of a glyph that no font tells, in thousandths of the font size.
const UNKNOWN_WIDTH: f32 = 500.0;

/// A font of a page.
pub(super) struct Font<'a> {
    map: CharacterMap,
    encoding: Option<Encoding<'a>>,
    /// Codes have two bytes.
    is_composite: bool,
    /// Codes are UTF-16.
    is_utf_16: bool,
    widths: Widths,
    default_width: f32,
    /// Bytes of its character map, and what its widths cost.
    pub(super) cost: u64,
}

/// Widths of codes: ranges that do not overlap, by their first code.
#[derive(Default)]
struct Widths(BTreeMap<u32, (u32, f32)>);

impl Widths {
    /// Sets the width of the codes from `first` to `last`.
    fn set(&mut self, first: u32, last: u32, width: f32) {
        if first > last {
            return;
        }
        if let Some((&start, &(end, known))) = self.0.range(..first).next_back()
            && end >= first
        {
            self.0.insert(start, (first - 1, known));
            self.restore_after(last, end, known);
        }
        while let Some((&start, &(end, known))) = self.0.range(first..=last).next() {
            self.0.remove(&start);
            self.restore_after(last, end, known);
        }
        self.0.insert(first, (last, width));
    }

    /// Restores what a range that ends at `end` says of the codes after `last`.
    fn restore_after(&mut self, last: u32, end: u32, width: f32) {
        if end > last {
            self.0.insert(last + 1, (end, width));
        }
    }

    fn get(&self, code: u32) -> Option<f32> {
        let (_, (last, width)) = self.0.range(..=code).next_back()?;
        if code <= *last { Some(*width) } else { None }
    }
}

/// Removes unknown names of glyphs from encodings: they would cost the font all other names.
pub(super) fn prepare(document: &mut Document) {
    let mut named = Vec::new();
    for (id, object) in &document.objects {
        let Ok(dictionary) = object.as_dict() else { continue };
        if let Some(names) = differences(dictionary) {
            named.push((*id, false, known(names)));
        } else if let Some(names) = dictionary.get(b"Encoding").and_then(Object::as_dict).ok().and_then(differences) {
            named.push((*id, true, known(names)));
        }
    }
    for (id, is_inner, names) in named {
        let Ok(dictionary) = document.get_dictionary_mut(id) else { continue };
        let target = if is_inner {
            dictionary.get_mut(b"Encoding").and_then(Object::as_dict_mut).ok()
        } else {
            Some(dictionary)
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
fn known(names: &[Object]) -> Vec<Object> {
    let mut names_with_codes = Vec::new();
    let mut code = 0;
    for object in names {
        match object {
            Object::Integer(number) => code = *number,
            Object::Name(name) => {
                if (0..=255).contains(&code) && is_known(name) {
                    names_with_codes.push(Object::Integer(code));
                    names_with_codes.push(Object::Name(name.clone()));
                }
                code = code.saturating_add(1);
            }
            _ => {}
        }
    }
    names_with_codes
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
    /// Reads a font. Its widths are read while it costs at most `most`.
    ///
    /// # Errors
    /// Fails if its character map is larger than [`MAX_MAP`].
    pub(super) fn new(document: &'a Document, font: &'a Dictionary, most: u64) -> Result<Self, Error> {
        let map = font.get_deref(b"ToUnicode", document).and_then(Object::as_stream);
        let (map, cost) = match map.and_then(|stream| stream.get_plain_content_with_limit(MAX_MAP)) {
            Ok(bytes) => (CharacterMap::parse(&bytes), bytes.len() as u64),
            Err(error @ Error::Decompress(DecompressError::MemoryLimitExceeded { .. })) => return Err(error),
            Err(_) => (CharacterMap::default(), 0),
        };
        let subtype = font.get_deref(b"Subtype", document).and_then(Object::as_name).unwrap_or_default();
        let encoding = font.get_deref(b"Encoding", document).and_then(Object::as_name).unwrap_or_default();
        let is_composite = subtype == b"Type0";
        let is_utf_16 = is_composite && encoding.starts_with(b"Uni") && map.is_empty();
        let encoding = if is_composite { None } else { font.get_font_encoding_with_limit(document, MAX_MAP).ok() };
        let (widths, default_width) = (Widths::default(), UNKNOWN_WIDTH);
        let mut read = Self { map, encoding, is_composite, is_utf_16, widths, default_width, cost };
        if is_composite {
            read.composite_widths(document, font, most);
        } else {
            read.simple_widths(document, font);
        }
        Ok(read)
    }

    fn simple_widths(&mut self, document: &Document, font: &Dictionary) {
        let first = font.get_deref(b"FirstChar", document).and_then(Object::as_i64).unwrap_or(0);
        let Ok(widths) = font.get_deref(b"Widths", document).and_then(Object::as_array) else { return };
        // Type 3 fonts have units of their own.
        let matrix = font.get_deref(b"FontMatrix", document).and_then(Object::as_array).ok();
        let unit = matrix.and_then(|matrix| matrix.first()?.as_float().ok()).map_or(1.0, |scale| scale * 1000.0);
        // Damaged files have any numbers; codes are single bytes.
        for (code, width) in (first.clamp(0, 255)..256).zip(widths) {
            if let Some(width) = number(document, width) {
                self.widths.set(code as u32, code as u32, width * unit);
            }
        }
    }

    /// Reads `/W`: `code [width …]` or `first last width`.
    fn composite_widths(&mut self, document: &Document, font: &Dictionary, most: u64) {
        let inner = font.get_deref(b"DescendantFonts", document).and_then(Object::as_array).ok();
        let inner = inner.and_then(|fonts| document.dereference(fonts.first()?).ok()?.1.as_dict().ok());
        let Some(inner) = inner else { return };
        self.default_width = inner.get_deref(b"DW", document).and_then(Object::as_float).unwrap_or(1000.0);
        let Ok(list) = inner.get_deref(b"W", document).and_then(Object::as_array) else { return };
        let mut rest = list.as_slice();
        while let [first, second, ..] = rest {
            let Some(first) = number(document, first).map(|first| first as u32) else { return };
            let second = document.dereference(second).map_or(second, |(_, second)| second);
            // An array may stand in the list many times.
            let numbers = if let Object::Array(widths) = second { 2 + widths.len() as u64 } else { 3 };
            self.cost += WIDTH_COST * numbers;
            if self.cost > most {
                return;
            }
            match (second, rest.get(2)) {
                (Object::Array(widths), _) => {
                    for (code, width) in (first..=0xffff).zip(widths) {
                        if let Some(width) = number(document, width) {
                            self.widths.set(code, code, width);
                        }
                    }
                    rest = &rest[2..];
                }
                (last, Some(width)) => {
                    let (Some(last), Some(width)) = (number(document, last), number(document, width)) else { return };
                    self.widths.set(first, (last as u32).min(0xffff), width);
                    rest = &rest[3..];
                }
                _ => return,
            }
        }
    }

    /// Returns the characters that a string shows; those that the font does not tell are U+FFFD.
    pub(super) fn text(&self, bytes: &[u8]) -> String {
        if self.is_utf_16 {
            return encoding_rs::UTF_16BE.decode_without_bom_handling(bytes).0.into_owned();
        }
        let shown = self.codes(bytes).map(|code| self.map.get(code).or_else(|| self.encoded(code)));
        shown.map(|text| text.unwrap_or_else(|| char::REPLACEMENT_CHARACTER.to_string())).collect()
    }

    fn encoded(&self, code: u32) -> Option<String> {
        let code = u8::try_from(code).ok()?;
        self.encoding.as_ref()?.bytes_to_string(&[code]).ok().filter(|text| !text.is_empty())
    }

    fn codes(&self, bytes: &[u8]) -> impl Iterator<Item = u32> {
        let step = if self.is_composite { 2 } else { 1 };
        bytes.chunks(step).map(|code| code.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
    }

    /// Returns how wide a string is, in font sizes, its number of codes, and how many of these are spaces.
    pub(super) fn measure(&self, bytes: &[u8]) -> (f32, usize, usize) {
        let (mut width, mut count, mut spaces) = (0.0, 0, 0);
        for code in self.codes(bytes) {
            width += self.widths.get(code).unwrap_or(self.default_width) / 1000.0;
            count += 1;
            spaces += usize::from(!self.is_composite && code == 32);
        }
        (width, count, spaces)
    }
}

fn number(document: &Document, object: &Object) -> Option<f32> {
    document.dereference(object).ok()?.1.as_float().ok()
}
