//! Writes SVG. Texts are escaped here.

use crate::shared::html::plot::escape;
use crate::shared::html::table::width;

/// Height of a line of text.
pub(super) const LINE: f64 = 16.0;

/// A rectangle of the picture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Area {
    pub(super) fn right(&self) -> f64 {
        self.left + self.width
    }

    pub(super) fn bottom(&self) -> f64 {
        self.top + self.height
    }
}

/// About how wide a text of 12 px is.
pub(super) fn text_width(text: &str) -> f64 {
    // An estimate: which font is used is up to the reader's browser.
    width(text) as f64 * 6.7
}

/// SVG elements.
#[derive(Default)]
pub(super) struct Canvas {
    out: String,
}

impl Canvas {
    /// Writes a text; `class` anchors and colours it.
    pub(super) fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.out.push_str(&format!(r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{}</text>"#, escape(text)));
    }

    /// Writes a text that is turned around its place; if it is cut, with its full form as a tooltip.
    pub(super) fn turned(&mut self, [x, y]: [f64; 2], degrees: f64, class: &str, text: &str, full: &str) {
        let title = if text == full { String::new() } else { format!("<title>{}</title>", escape(full)) };
        let text = escape(text);
        self.out.push_str(&format!(
            r#"<text transform="translate({x:.1} {y:.1}) rotate({degrees})" class="{class}">{text}{title}</text>"#
        ));
    }

    pub(super) fn line(&mut self, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2], class: &str) {
        self.out.push_str(&format!(r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" class="{class}"/>"#));
    }

    /// Draws a rectangle; `paint` are attributes such as its class.
    pub(super) fn rect(&mut self, area: Area, paint: &str, tooltip: &str) {
        let Area { left, top, width, height } = area;
        let title = if tooltip.is_empty() { String::new() } else { format!("<title>{}</title>", escape(tooltip)) };
        self.out.push_str(&format!(
            r#"<rect x="{left:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}" {paint}>{title}</rect>"#
        ));
    }

    /// Draws a path with these attributes.
    pub(super) fn path(&mut self, path: &str, paint: &str, tooltip: &str) {
        let title = if tooltip.is_empty() { String::new() } else { format!("<title>{}</title>", escape(tooltip)) };
        self.out.push_str(&format!(r#"<path d="{path}" {paint}>{title}</path>"#));
    }

    /// Returns the elements in a picture of this size.
    pub(super) fn finish(self, width: f64, height: f64, label: &str) -> String {
        // The style is inside the picture, so that it looks the same outside of a report.
        let (label, style) = (escape(label), include_str!("plot.css"));
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" class="k" role="img" aria-label="{label}"><style>{style}</style><rect width="100%" height="100%" class="kb"/>{}</svg>
"#,
            self.out
        )
    }
}
