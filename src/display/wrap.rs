//! Breaks long lines between words.

/// Wraps a paragraph: the first line starts in column `first`, the others in column `rest`. No line exceeds `width`,
/// unless a single word does. The lines do not include the indentation.
pub(super) fn wrapped(paragraph: &str, first: usize, rest: usize, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let (mut line, mut column) = (String::new(), first);
    for word in paragraph.split(' ') {
        let length = word.chars().count();
        if !line.is_empty() && column + 1 + length > width {
            lines.push(std::mem::take(&mut line));
            column = rest;
        }
        if !line.is_empty() {
            line.push(' ');
            column += 1;
        }
        line.push_str(word);
        column += length;
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_the_width_and_words_stay_whole() {
        assert_eq!(wrapped("one two three four", 0, 0, 9), ["one two", "three", "four"]);
        assert_eq!(wrapped("one two three four", 4, 2, 9), ["one", "two", "three", "four"]);
        assert_eq!(wrapped("one two three four", 0, 2, 80), ["one two three four"]);
        assert_eq!(wrapped("a_very_long_word b", 0, 0, 5), ["a_very_long_word", "b"]);
        assert_eq!(wrapped("", 0, 0, 5), [""]);
    }
}
