//! Plots as inline SVG without scripts; CSS classes of the page set the colours, for light and dark mode.

use std::fmt::Write;

use serde::Serialize;

/// A mean with an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Estimate {
    /// Mean over rows.
    pub(crate) value: f64,
    /// Lower end of the interval; `None` with fewer than two questions or without resampling.
    pub(crate) low: Option<f64>,
    /// Upper end.
    pub(crate) high: Option<f64>,
    /// Number of rows with this measure.
    pub(crate) count: usize,
}

impl Estimate {
    /// Formats `0.612 – 0.744`, or a single value if both ends agree to three digits (all rows score the same).
    pub(crate) fn interval(&self) -> Option<String> {
        let (low, high) = (format!("{:.3}", self.low?), format!("{:.3}", self.high?));
        Some(if low == high { low } else { format!("{low} – {high}") })
    }
}

/// Escapes text for HTML and SVG, in content and in quoted attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Control characters are not allowed in HTML.
            c if c.is_control() && !matches!(c, '\n' | '\t' | '\r') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// One series of a plot.
pub(crate) struct Series {
    /// Name in the legend.
    pub(crate) name: String,
    /// CSS class of its colour.
    pub(crate) class: &'static str,
    /// One value per category (bars) or x (lines).
    pub(crate) values: Vec<Option<Estimate>>,
}

impl Series {
    /// A series of values without intervals; `None` draws nothing.
    pub(crate) fn plain<V: Into<Option<f64>>>(
        name: &str,
        class: &'static str,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        let values = values.into_iter().map(|value| Some(Estimate { value: value.into()?, ..Estimate::default() }));
        Self { name: name.to_owned(), class, values: values.collect() }
    }

    /// Whether the series has no values.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.iter().all(Option::is_none)
    }
}

/// A plot of several series over shared categories.
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) categories: Vec<String>,
    pub(crate) series: Vec<Series>,
    /// Unit of the y axis.
    pub(crate) unit: Unit,
    /// Label under the x axis.
    pub(crate) x_title: String,
}

/// Unit of the y axis.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Unit {
    /// 0 to 1.
    Score,
    /// Shares of a whole, shown as percentages.
    Share,
    /// Whole numbers.
    Count,
    /// Any numbers from 0 up.
    Number,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 46.0;
const TOP: f64 = 14.0;
const INNER_WIDTH: f64 = WIDTH - LEFT - 10.0;
const INNER_HEIGHT: f64 = HEIGHT - TOP - 46.0;

impl Plot {
    /// Draws grouped bars with error bars.
    pub(crate) fn bars(&self) -> String {
        let top = self.top();
        let slot = INNER_WIDTH / self.categories.len().max(1) as f64;
        // Four fifths of a slot, so that groups of bars stand apart.
        let width = (slot * 0.8 / self.series.len().max(1) as f64).min(44.0);
        let mut marks = String::new();
        for (s, series) in self.series.iter().enumerate() {
            for (category, value) in series.values.iter().enumerate() {
                let Some(estimate) = value else { continue };
                let offset = (s as f64 - self.series.len() as f64 / 2.0) * width;
                let x = LEFT + slot * (category as f64 + 0.5) + offset;
                let name = format!("{}, {}: {}", series.name, self.categories[category], self.label(*estimate));
                marks.push_str(&bar(x, width, *estimate, top, series.class, &name));
            }
        }
        self.figure(&marks, top, slot)
    }

    /// Draws lines over x = the categories.
    pub(crate) fn lines(&self) -> String {
        let top = self.top();
        let step = INNER_WIDTH / self.categories.len().max(2) as f64;
        let mut marks = String::new();
        for Series { name, class, values } in &self.series {
            let (mut path, mut points) = (Vec::new(), String::new());
            for (i, value) in values.iter().enumerate() {
                let Some(estimate) = value else { continue };
                let (x, y) = (LEFT + step * (i as f64 + 0.5), y(estimate.value, top));
                path.push(format!("{x:.1},{y:.1}"));
                let label = escape(&format!("{name} at {}: {}", self.categories[i], self.label(*estimate)));
                let title = format!("<title>{label}</title>");
                write!(points, r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="3.5">{title}</circle>"#).ok();
            }
            // The points after their line, so that they lie on it.
            write!(marks, r#"<polyline class="line {class}" points="{}"/>{points}"#, path.join(" ")).ok();
        }
        self.figure(&marks, top, step)
    }

    /// Draws the axes around the marks; a category has a slot of this width.
    fn figure(&self, marks: &str, top: f64, slot: f64) -> String {
        let title = escape(&self.title);
        let mut out = format!("<figure><figcaption>{title}</figcaption>{}", self.legend());
        write!(out, r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">"#).ok();
        let step = match self.unit {
            Unit::Score | Unit::Share | Unit::Number => top / 5.0,
            Unit::Count => (top / 5.0).max(1.0),
        };
        let mut value = 0.0;
        // A sum of steps may end a little above the top.
        while value <= top + 1e-9 {
            let (right, y, label) = (LEFT + INNER_WIDTH, y(value, top), self.tick(value));
            write!(out, r#"<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1}" y2="{y:.1}"/>"#).ok();
            let (x, y) = (LEFT - 6.0, y + 4.0);
            write!(out, r#"<text x="{x}" y="{y:.1}" class="tick end">{label}</text>"#).ok();
            value += step;
        }
        out.push_str(marks);
        // Draws only every n-th label if labels would overlap; each keeps its full text as a tooltip.
        let longest = self.categories.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let fits = (slot / 7.0) as usize;
        let every = if longest <= 4 { (longest * 8 / slot as usize) + 1 } else { 1 };
        for (category, name) in self.categories.iter().enumerate().step_by(every) {
            let shown = escape(&shorten(name, fits.max(4)));
            let full = escape(name);
            let (x, y) = (LEFT + slot * (category as f64 + 0.5), TOP + INNER_HEIGHT + 19.0);
            write!(out, r#"<text x="{x:.1}" y="{y:.1}" class="tick middle">{shown}<title>{full}</title></text>"#).ok();
        }
        let (x, y, name) = (LEFT + INNER_WIDTH / 2.0, HEIGHT - 8.0, escape(&self.x_title));
        write!(out, r#"<text x="{x:.1}" y="{y:.1}" class="axis middle">{name}</text></svg></figure>"#).ok();
        out
    }

    fn legend(&self) -> String {
        let mut out = String::from(r#"<div class="legend">"#);
        for Series { name, class, .. } in &self.series {
            write!(out, r#"<span><i class="swatch {class}"></i>{}</span>"#, escape(name)).ok();
        }
        out + "</div>"
    }

    fn tick(&self, value: f64) -> String {
        match self.unit {
            Unit::Score => format!("{value:.1}"),
            Unit::Share => format!("{:.0}%", value * 100.0),
            Unit::Count => format!("{value:.0}"),
            Unit::Number => short(value),
        }
    }

    fn label(&self, estimate: Estimate) -> String {
        match (self.unit, estimate.interval()) {
            (Unit::Score, Some(range)) if range.contains(' ') => format!("{:.3} ({range})", estimate.value),
            (Unit::Score, _) => format!("{:.3}", estimate.value),
            (Unit::Share, _) => format!("{:.1}%", estimate.value * 100.0),
            (Unit::Count, _) => format!("{:.0}", estimate.value),
            (Unit::Number, _) => format!("{:.4}", estimate.value),
        }
    }

    /// Upper end of the y axis: 1 for scores, otherwise a round number not below the highest value.
    fn top(&self) -> f64 {
        let values = self.series.iter().flat_map(|series| series.values.iter().flatten());
        let highest = values.map(|estimate| estimate.value).fold(0.0, f64::max);
        match self.unit {
            Unit::Score => 1.0,
            Unit::Share => [0.1, 0.25, 0.5].into_iter().find(|top| highest <= *top).unwrap_or(1.0),
            Unit::Count => round_up(highest),
            Unit::Number => scaled_up(highest),
        }
    }
}

/// Returns the next of 5, 10, 25, 50, 100, 250, …: each is five times a whole tick.
fn round_up(highest: f64) -> f64 {
    let mut top = 5.0;
    let mut factors = [2.0, 2.5, 2.0].iter().cycle();
    while top < highest {
        top *= factors.next().copied().unwrap_or(2.0);
    }
    top
}

/// Returns the next of 1, 2, 2.5 and 5 times a power of ten.
fn scaled_up(highest: f64) -> f64 {
    if !(highest.is_finite() && highest > 0.0) {
        return 1.0;
    }
    let power = 10_f64.powi(highest.log10().floor() as i32);
    [1.0, 2.0, 2.5, 5.0].into_iter().map(|factor| factor * power).find(|top| highest <= *top).unwrap_or(10.0 * power)
}

/// Formats a number with at most three decimals, without trailing zeros.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn y(value: f64, top: f64) -> f64 {
    TOP + INNER_HEIGHT * (1.0 - (value / top).clamp(0.0, 1.0))
}

fn bar(x: f64, width: f64, estimate: Estimate, top: f64, class: &str, name: &str) -> String {
    let (high, base) = (y(estimate.value, top), y(0.0, top));
    // A bar of 0 is a line, so that its tooltip can be found.
    let (left, inner, height) = (x + 1.0, (width - 2.0).max(1.0), (base - high).max(0.5));
    let mut out = format!(
        r#"<g><rect class="{class}" x="{left:.1}" y="{high:.1}" width="{inner:.1}" height="{height:.1}" rx="2"/>"#
    );
    if let (Some(low), Some(high)) = (estimate.low, estimate.high) {
        let (middle, low, high) = (x + width / 2.0, y(low, top), y(high, top));
        let (from, to) = (middle - 4.0, middle + 4.0);
        write!(
            out,
            r#"<path class="error" d="M{middle:.1} {low:.1}V{high:.1}M{from:.1} {low:.1}H{to:.1}M{from:.1} {high:.1}H{to:.1}"/>"#
        )
        .ok();
    }
    write!(out, "<title>{}</title></g>", escape(name)).ok();
    out
}

/// Cuts a text to a number of characters.
pub(crate) fn shorten(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    let kept: String = text.chars().take(characters.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        assert_eq!(escape("<b>\"R&D\"'\u{1}"), "&lt;b&gt;&quot;R&amp;D&quot;&#39;\u{fffd}");
        let plot = Plot {
            title: "<script>".into(),
            categories: vec!["</svg>".into()],
            series: vec![Series::plain("<s>", "c1", [0.5])],
            unit: Unit::Score,
            x_title: "<x>".into(),
        };
        for drawn in [plot.bars(), plot.lines()] {
            assert!(!drawn.contains("<script>") && drawn.matches("</svg>").count() == 1 && !drawn.contains("<s>"));
        }
    }

    #[test]
    fn a_bar_is_as_high_as_its_value() {
        let drawn = bar(0.0, 10.0, Estimate { value: 0.5, ..Estimate::default() }, 1.0, "c", "n");
        assert!(drawn.contains(&format!(r#"height="{:.1}""#, INNER_HEIGHT / 2.0)), "{drawn}");
    }

    #[test]
    fn numbers_of_any_size_get_an_axis() {
        assert_eq!(
            [0.0, 0.03, 0.7, 1.0, 1.2, 2.3, 7.0, 61.0].map(scaled_up),
            [1.0, 0.05, 1.0, 1.0, 2.0, 2.5, 10.0, 100.0]
        );
        assert_eq!([0.0, 0.4, 2.0, 0.001].map(short), ["0", "0.4", "2", "0.001"]);
    }

    #[test]
    fn axes_end_at_round_numbers() {
        assert_eq!([0.0, 5.0, 6.0, 11.0, 26.0, 70.0, 101.0].map(round_up), [5.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0]);
    }
}
