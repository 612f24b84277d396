//! The picture: heading, legend, panels with their axes.

use super::axis::Scale;
use super::canvas::{Area, Canvas, LINE, text_width};
use super::data::{Data, Point, Values};
use super::params::{Kind, PlotParams};
use super::{heatmap, marks};
use crate::shared::html::plot::shorten;

const WIDTH: f64 = 760.0;
const EDGE: f64 = 14.0;
/// Characters of a text on an axis.
const CUT: usize = 26;
/// Texts are turned by this if they would overlap.
const TURN: f64 = -35.0;

/// Draws the rows.
pub(super) fn draw(params: &PlotParams, data: &Data) -> String {
    let mut canvas = Canvas::default();
    // Two or four panels stand in pairs, so that none is left alone in a row.
    let columns = match data.facets.len() {
        1 => 1,
        2 | 4 => 2,
        _ => 3,
    };
    let width = if columns == 3 { WIDTH * 1.3 } else { WIDTH };
    let mut top = EDGE;
    if !params.title.is_empty() {
        canvas.text(EDGE, top + LINE, "kh", &shorten(&params.title, (width / 9.0) as usize));
        top += LINE * 1.8;
    }
    // Axes without points would show numbers that nobody has measured.
    if data.points.is_empty() {
        canvas.text(width / 2.0, top + 100.0, "ks km", "No rows to draw");
        return canvas.finish(width, top + 200.0, &params.title);
    }
    let legend = Area { left: EDGE, top, width: width - 2.0 * EDGE, height: 0.0 };
    top = match params.kind {
        Kind::Heatmap => heatmap::legend(&mut canvas, params, data, legend),
        _ => marks::legend(&mut canvas, params, data, legend),
    };
    let axes = Axes::of(params, data);
    let panels = Area { left: EDGE + LINE, top, width: width - 2.0 * EDGE - LINE, height: 0.0 };
    let bottom = axes.panels(&mut canvas, params, data, panels, columns);
    let beside = [EDGE + LINE * 0.7, f64::midpoint(top, bottom)];
    canvas.turned(beside, -90.0, "ks km", &shorten(params.y_title(), 60), params.y_title());
    canvas.text(width / 2.0 + LINE, bottom + LINE, "ks km", &shorten(params.x_title(), 100));
    canvas.finish(width, bottom + LINE + EDGE, &params.title)
}

/// The axes that all panels share.
pub(super) struct Axes {
    x: Axis,
    y: Axis,
}

/// One axis.
enum Axis {
    Numbers(Scale),
    Texts(Vec<String>),
}

impl Axis {
    fn of(values: &Values, numbers: impl Iterator<Item = f64>, count: usize) -> Self {
        match values {
            Values::Numbers => Self::Numbers(Scale::covering(numbers, count)),
            Values::Texts(texts) => Self::Texts(texts.clone()),
        }
    }

    /// Returns the place of a value, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        match self {
            Self::Numbers(scale) => scale.place(value),
            Self::Texts(texts) => (value + 0.5) / texts.len().max(1) as f64,
        }
    }

    /// Returns the labels with their places.
    fn labels(&self) -> Vec<(f64, String)> {
        match self {
            Self::Numbers(scale) => scale.ticks.iter().map(|tick| (scale.place(*tick), scale.label(*tick))).collect(),
            Self::Texts(texts) => {
                texts.iter().enumerate().map(|(index, text)| (self.place(index as f64), text.clone())).collect()
            }
        }
    }

    fn widest(&self) -> f64 {
        self.labels().iter().map(|(_, text)| text_width(&shorten(text, CUT))).fold(0.0, f64::max)
    }
}

impl Axes {
    fn of(params: &PlotParams, data: &Data) -> Self {
        let mut covered = Vec::new();
        for point in &data.points {
            covered.push(point.y);
            covered.extend(point.range.into_iter().flatten());
        }
        // Bars begin at 0.
        if params.kind == Kind::Bars {
            covered.push(0.0);
        }
        Self {
            x: Axis::of(&data.x, data.points.iter().map(|point| point.x), 7),
            y: Axis::of(&data.y, covered.into_iter(), 5),
        }
    }

    /// Draws the panels; returns where they end.
    fn panels(&self, canvas: &mut Canvas, params: &PlotParams, data: &Data, area: Area, columns: usize) -> f64 {
        let (left, gap) = (self.y.widest() + 10.0, 14.0);
        // The last number of the axis is wider than the edge.
        let over = if matches!(self.x, Axis::Numbers(_)) { (self.x.widest() / 2.0 - EDGE).max(0.0) } else { 0.0 };
        let width = (area.width - over - gap * (columns - 1) as f64) / columns as f64 - left;
        let turned = match &self.x {
            Axis::Texts(texts) => self.x.widest() + 6.0 > width / texts.len().max(1) as f64,
            Axis::Numbers(_) => false,
        };
        let below = if turned { self.x.widest() * 0.58 + 14.0 } else { LINE + 4.0 };
        let titled = if params.facet.is_some() { LINE * 1.2 } else { 0.0 };
        let height = match (&self.y, columns) {
            (Axis::Texts(texts), _) => (texts.len() as f64 * 30.0).clamp(90.0, 600.0),
            (Axis::Numbers(_), 1) => 320.0,
            (Axis::Numbers(_), 2) => 230.0,
            (Axis::Numbers(_), _) => 200.0,
        };
        let mut top = area.top + 6.0;
        for (row, facets) in data.facets.chunks(columns).enumerate() {
            for (column, facet) in facets.iter().enumerate() {
                let start = area.left + column as f64 * (width + left + gap) + left;
                let panel = Area { left: start, top: top + titled, width, height };
                if params.facet.is_some() {
                    canvas.text(panel.left, panel.top - 6.0, "kf", &shorten(facet, (width / 7.0) as usize));
                }
                self.panel(canvas, params, data, panel, row * columns + column);
                self.x_labels(canvas, panel, turned);
            }
            top += titled + height + below + if params.facet.is_some() { 10.0 } else { 4.0 };
        }
        top
    }

    fn panel(&self, canvas: &mut Canvas, params: &PlotParams, data: &Data, panel: Area, facet: usize) {
        for (place, label) in self.y.labels() {
            let y = self.y_at(panel, place);
            if matches!(self.y, Axis::Numbers(_)) {
                canvas.line([panel.left, y], [panel.right(), y], "kg");
            }
            canvas.turned([panel.left - 7.0, y + 4.0], 0.0, "ks kr", &shorten(&label, CUT), &label);
        }
        if let Axis::Numbers(scale) = &self.y {
            let is_inside = scale.first() < 0.0 && scale.last() > 0.0;
            let zero = self.y_at(panel, if is_inside { scale.place(0.0) } else { 0.0 });
            canvas.line([panel.left, zero], [panel.right(), zero], "ka");
        }
        let points: Vec<&Point> = data.points.iter().filter(|point| point.facet == facet).collect();
        let frame = marks::Frame {
            panel,
            at: &|point| [panel.left + panel.width * self.x.place(point.x), self.y_at(panel, self.y.place(point.y))],
            y: &|value| self.y_at(panel, self.y.place(value)),
            data,
            params,
        };
        match params.kind {
            Kind::Heatmap => heatmap::cells(canvas, &frame, &points),
            Kind::Bars => marks::bars(canvas, &frame, &points),
            Kind::Lines => marks::lines(canvas, &frame, &points),
            Kind::Scatter => marks::scatter(canvas, &frame, &points),
        }
    }

    /// Texts go from top to bottom, numbers from bottom to top.
    fn y_at(&self, panel: Area, place: f64) -> f64 {
        let from_top = if matches!(self.y, Axis::Texts(_)) { place } else { 1.0 - place };
        panel.top + panel.height * from_top
    }

    fn x_labels(&self, canvas: &mut Canvas, panel: Area, turned: bool) {
        let labels = self.x.labels();
        let slot = panel.width / labels.len().max(1) as f64;
        // Turned texts need a line each, numbers their width.
        let needed = if turned { LINE * 0.8 } else { self.x.widest() + 6.0 };
        let every =
            if matches!(self.x, Axis::Texts(_)) && !turned { 1 } else { (needed / slot).ceil().max(1.0) as usize };
        for (place, label) in labels.into_iter().step_by(every) {
            let (x, y) = (panel.left + panel.width * place, panel.bottom() + LINE);
            // A turned text must not begin left of the picture.
            let room = if turned { (x / 5.6) as usize } else { CUT };
            let shown = shorten(&label, CUT.min(room));
            let (at, turn, class) = if turned { ([x + 4.0, y - 3.0], TURN, "ks kr") } else { ([x, y], 0.0, "ks km") };
            canvas.turned(at, turn, class, &shown, &label);
        }
    }
}
