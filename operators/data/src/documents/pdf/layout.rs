//! Joins the strings of a page to words and lines, by their places.

/// Gap that is a space, in font sizes.
const SPACE: f32 = 0.15;
/// Distance between two lines, in font sizes; superscripts stay in their line.
const LINE: f32 = 0.6;
/// Distance between two paragraphs.
const PARAGRAPH: f32 = 1.9;
/// Step back that begins another column on the same line.
const BACK: f32 = -4.0;

/// Latin ligatures, as letters: searches are for letters.
const LIGATURES: [(char, &str); 7] = [
    ('\u{fb00}', "ff"),
    ('\u{fb01}', "fi"),
    ('\u{fb02}', "fl"),
    ('\u{fb03}', "ffi"),
    ('\u{fb04}', "ffl"),
    ('\u{fb05}', "st"),
    ('\u{fb06}', "st"),
];

/// A point on the page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) x: f32,
    pub(super) y: f32,
}

/// The length of a vector. `hypot` differs between machines in its last bit.
pub(super) fn length(x: f32, y: f32) -> f32 {
    (x * x + y * y).sqrt()
}

/// The text of a page so far.
#[derive(Default)]
pub(super) struct Layout {
    text: String,
    /// End and font size of the last string.
    last: Option<(Point, f32)>,
}

impl Layout {
    /// Adds a string that is shown from `start` to `end`, with the font size on the page.
    pub(super) fn show(&mut self, string: &str, start: Point, end: Point, size: f32) {
        if string.is_empty() {
            return;
        }
        if let Some((last, last_size)) = self.last {
            self.separate(last, start, end, size.max(last_size).max(f32::MIN_POSITIVE));
        }
        for character in string.chars() {
            match LIGATURES.iter().find(|(ligature, _)| *ligature == character) {
                Some((_, letters)) => self.text.push_str(letters),
                None if character.is_control() || character == '\u{a0}' => self.text.push(' '),
                None => self.text.push(character),
            }
        }
        self.last = Some((end, size));
    }

    fn separate(&mut self, last: Point, start: Point, end: Point, size: f32) {
        let (dx, dy) = (end.x - start.x, end.y - start.y);
        let length = length(dx, dy);
        let (ux, uy) = if length > 0.0 { (dx / length, dy / length) } else { (1.0, 0.0) };
        let (vx, vy) = (start.x - last.x, start.y - last.y);
        let along = (vx * ux + vy * uy) / size;
        let across = (vx * uy - vy * ux).abs() / size;
        if across > PARAGRAPH {
            self.end_line("\n\n");
        } else if across > LINE || along < BACK {
            self.end_line("\n");
        } else if !(-1.0..=SPACE).contains(&along) && !self.text.ends_with([' ', '\n']) {
            self.text.push(' ');
        }
    }

    fn end_line(&mut self, end: &str) {
        self.text.truncate(self.text.trim_end().len());
        self.text.push_str(end);
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Returns the text, without spaces at the ends of lines.
    pub(super) fn finish(self) -> String {
        let lines = self.text.lines().map(str::trim_end);
        lines.collect::<Vec<_>>().join("\n").trim().to_owned()
    }
}
