//! Character maps of fonts (`ToUnicode`): which characters a code shows. lopdf reads those that are written by the book;
//! many are not.

use std::collections::BTreeMap;

/// A character map.
#[derive(Default)]
pub(super) struct CharacterMap {
    single: BTreeMap<u32, String>,
    /// Ranges by their first codes: last code, and the UTF-16 of the first one.
    ranges: BTreeMap<u32, (u32, Vec<u16>)>,
}

enum Token<'a> {
    Hex(Vec<u8>),
    Open,
    Close,
    Word(&'a [u8]),
}

#[derive(Clone, Copy, PartialEq)]
enum Section {
    None,
    Characters,
    Ranges,
}

impl CharacterMap {
    /// Reads what can be read of a map.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let mut map = Self::default();
        let (mut section, mut codes, mut list) = (Section::None, Vec::new(), None);
        for token in tokens(bytes) {
            match token {
                Token::Word(b"beginbfchar") => (section, codes, list) = (Section::Characters, Vec::new(), None),
                Token::Word(b"beginbfrange") => (section, codes, list) = (Section::Ranges, Vec::new(), None),
                Token::Word(_) => section = Section::None,
                _ if section == Section::None => {}
                Token::Open => list = Some(0),
                Token::Close => {
                    list = None;
                    codes.clear();
                }
                Token::Hex(hex) => match (section, codes.as_slice(), list) {
                    // The code was the number before.
                    (Section::Characters, [code], _) => {
                        map.single.insert(*code, String::from_utf16_lossy(&units(&hex)));
                        codes.clear();
                    }
                    (Section::Ranges, [first, last], Some(next)) => {
                        if let Some(code) = first.checked_add(next).filter(|code| code <= last) {
                            map.single.insert(code, String::from_utf16_lossy(&units(&hex)));
                        }
                        list = next.checked_add(1);
                    }
                    (Section::Ranges, [first, last], None) => {
                        map.ranges.insert(*first, (*last, units(&hex)));
                        codes.clear();
                    }
                    _ => codes.push(hex.iter().fold(0, |sum: u32, byte| sum << 8 | u32::from(*byte))),
                },
            }
        }
        map
    }

    /// Returns what a code shows.
    pub(super) fn get(&self, code: u32) -> Option<String> {
        if let Some(text) = self.single.get(&code) {
            return Some(text.clone());
        }
        let (first, (last, units)) = self.ranges.range(..=code).next_back()?;
        let (end, before) = units.split_last()?;
        let end = u16::try_from(code - first).ok().filter(|_| code <= *last)?.wrapping_add(*end);
        Some(String::from_utf16_lossy(&[before, &[end]].concat()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.single.is_empty() && self.ranges.is_empty()
    }
}

/// Returns the UTF-16 units of a target; a single byte is a character, too.
fn units(hex: &[u8]) -> Vec<u16> {
    match hex {
        [one] => vec![u16::from(*one)],
        bytes => bytes.as_chunks::<2>().0.iter().map(|pair| u16::from_be_bytes(*pair)).collect(),
    }
}

fn tokens(mut rest: &[u8]) -> impl Iterator<Item = Token<'_>> {
    std::iter::from_fn(move || {
        loop {
            let (first, after) = rest.split_first()?;
            match first {
                b'%' => rest = &rest[rest.iter().position(|end| matches!(end, b'\n' | b'\r')).unwrap_or(rest.len())..],
                b'[' | b']' => {
                    rest = after;
                    return Some(if *first == b'[' { Token::Open } else { Token::Close });
                }
                b'<' if after.first() != Some(&b'<') => {
                    let end = memchr::memchr(b'>', after).unwrap_or(after.len());
                    let digits = after[..end].iter().filter_map(|digit| char::from(*digit).to_digit(16));
                    let digits: Vec<u8> = digits.map(|digit| digit as u8).collect();
                    let hex = digits.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).unwrap_or(&0)).collect();
                    rest = after.get(end + 1..).unwrap_or_default();
                    return Some(Token::Hex(hex));
                }
                byte if byte.is_ascii_alphanumeric() => {
                    let end = rest.iter().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(rest.len());
                    let word = &rest[..end];
                    rest = &rest[end..];
                    return Some(Token::Word(word));
                }
                b'<' => rest = &after[1..],
                _ => rest = after,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_ranges_and_lists() {
        let map = CharacterMap::parse(
            b"/CIDInit /ProcSet findresource begin\n% <00> comment\n1 begincodespacerange <00> <FF> endcodespacerange \
              2 beginbfchar <01> <00660069>\n<02><D83D DE00> endbfchar\r1 beginbfrange <10> <12> <0041> <20> <21> [<0062>\
              <0063 0064> <0065>] <30> <30> <61> endbfrange endcmap",
        );
        let told = |code: u32| map.get(code).unwrap_or_default();
        assert_eq!([0x01, 0x02, 0x10, 0x12, 0x20, 0x21, 0x30].map(told), ["fi", "😀", "A", "C", "b", "cd", "a"]);
        assert_eq!([0x00, 0x13, 0x22, 0x31].map(|code| map.get(code)), [const { None }; 4]);
        for broken in ["", "1 beginbfchar <", "1 beginbfrange <00> <FFFFFFFF> [", "beginbfrange <00> <02> <>", "<<<<"] {
            assert_eq!(CharacterMap::parse(broken.as_bytes()).get(1), None, "{broken}");
        }
    }
}
