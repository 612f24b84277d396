//! Colours of numbers: cividis, which looks the same to colour-blind readers (Nuñez, Anderton and Renslow 2018), and two
//! hues around 0 for numbers of both signs.

use super::axis::ends;

/// Colours and the numbers at their ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Colours {
    pub(super) low: f64,
    pub(super) high: f64,
    stops: &'static [[u8; 3]],
}

const CIVIDIS: [[u8; 3]; 6] =
    [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];
const AROUND_ZERO: [[u8; 3]; 3] = [[0, 114, 178], [242, 242, 242], [213, 94, 0]];

impl Colours {
    /// Covers the numbers.
    pub(super) fn covering(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = ends(values).unwrap_or((0.0, 1.0));
        if low < 0.0 && high > 0.0 {
            // As far to both sides, so that 0 has the neutral colour.
            let reach = high.max(-low);
            return Self { low: -reach, high: reach, stops: &AROUND_ZERO };
        }
        Self { low, high, stops: &CIVIDIS }
    }

    /// Returns the colour of a number, and whether text on it must be light.
    pub(super) fn of(&self, value: f64) -> (String, bool) {
        // Halves, so that the difference of the largest numbers is finite.
        let range = self.high / 2.0 - self.low / 2.0;
        let share = if range > 0.0 { ((value / 2.0 - self.low / 2.0) / range).clamp(0.0, 1.0) } else { 0.5 };
        let position = share * (self.stops.len() - 1) as f64;
        let (from, to) = (self.stops[position.floor() as usize], self.stops[position.ceil() as usize]);
        let [red, green, blue] = [0, 1, 2].map(|channel| {
            let (from, to) = (f64::from(from[channel]), f64::from(to[channel]));
            (from + (to - from) * position.fract()).round()
        });
        // Luma of Rec. 709.
        let is_dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 130.0;
        (format!("#{:02x}{:02x}{:02x}", red as u8, green as u8, blue as u8), is_dark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_and_middle() {
        let colours = Colours::covering([2.0, 4.0].into_iter());
        assert_eq!(
            [2.0, 4.0].map(|value| colours.of(value)),
            [("#00224e".to_owned(), true), ("#fee838".to_owned(), false)]
        );
        let signed = Colours::covering([-1.0, 4.0].into_iter());
        assert_eq!((signed.low, signed.high), (-4.0, 4.0));
        assert_eq!(signed.of(0.0).0, "#f2f2f2");
        assert_eq!(Colours::covering([3.0].into_iter()).of(3.0).0, "#7d7c74", "a single number has the middle");
        assert_eq!(Colours::covering(std::iter::empty()).low, 0.0);
    }
}
