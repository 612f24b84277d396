//! Bars, lines and points, and their legend.

use super::canvas::{Area, Canvas, LINE, text_width};
use super::data::{Data, Point};
use super::params::{Kind, PlotParams};
use crate::shared::html::plot::shorten;
use crate::shared::html::table::number;

/// Lines with more points have no marks on them.
const MARKED: usize = 80;
/// Dashes of lines, by series.
const DASHES: [&str; 8] = ["none", "7 3", "2 3", "9 3 2 3", "4 2", "1 2", "12 3", "6 2 1 2 1 2"];

/// Where a panel draws.
pub(super) struct Frame<'a> {
    pub(super) panel: Area,
    /// The place of a point.
    pub(super) at: &'a dyn Fn(&Point) -> [f64; 2],
    /// The height of a number.
    pub(super) y: &'a dyn Fn(f64) -> f64,
    pub(super) data: &'a Data,
    pub(super) params: &'a PlotParams,
}

impl Frame<'_> {
    /// The tooltip of a point.
    pub(super) fn tooltip(&self, point: &Point) -> String {
        let mut text = format!("{}: {}", self.data.x.text(point.x), number(point.y));
        if self.params.series.is_some() {
            text = format!("{}, {text}", self.data.series[point.series]);
        }
        if let Some([low, high]) = point.range {
            text += &format!(" ({} – {})", number(low), number(high));
        }
        text
    }

    fn whisker(&self, canvas: &mut Canvas, x: f64, point: &Point) {
        let Some([low, high]) = point.range else { return };
        let (low, high, from, to) = ((self.y)(low), (self.y)(high), x - 4.0, x + 4.0);
        let path = format!("M{x:.1} {low:.1}V{high:.1}M{from:.1} {low:.1}H{to:.1}M{from:.1} {high:.1}H{to:.1}");
        canvas.path(&path, r#"class="ke""#, "");
    }
}

/// Draws the names of the series; returns where they end.
pub(super) fn legend(canvas: &mut Canvas, params: &PlotParams, data: &Data, area: Area) -> f64 {
    if params.series.is_none() {
        return area.top;
    }
    let (mut x, mut y) = (area.left, area.top + LINE * 0.8);
    for (series, name) in data.series.iter().enumerate() {
        let name = shorten(name, 60);
        let width = text_width(&name) + 34.0;
        if x + width > area.right() && x > area.left {
            (x, y) = (area.left, y + LINE * 1.2);
        }
        if params.kind == Kind::Bars {
            let swatch = Area { left: x, top: y - 10.0, width: 11.0, height: 11.0 };
            canvas.rect(swatch, &format!(r#"class="f{series}" rx="2""#), "");
        } else {
            if params.kind == Kind::Lines {
                let path = format!("M{x:.1} {:.1}H{:.1}", y - 4.0, x + 14.0);
                canvas.path(&path, &line_paint(series), "");
            }
            shape(canvas, [x + 7.0, y - 4.0], series, "");
        }
        canvas.text(x + 19.0, y, "ks", &name);
        x += width;
    }
    y + LINE * 0.6
}

/// Draws a bar for each point, those of one place side by side.
pub(super) fn bars(canvas: &mut Canvas, frame: &Frame, points: &[&Point]) {
    let series = frame.data.series.len() as f64;
    // At most 48 px: a single bar would otherwise fill the panel.
    let width = (frame.panel.width / frame.data.x.slots() * 0.8 / series).min(48.0);
    for point in points {
        let [middle, y] = (frame.at)(point);
        let left = middle + (point.series as f64 - series / 2.0) * width;
        let zero = (frame.y)(0.0);
        let area = Area {
            left: left + width * 0.04,
            top: y.min(zero),
            width: width * 0.92,
            // A bar of 0 stays visible as a thin line.
            height: (y - zero).abs().max(0.5),
        };
        canvas.rect(area, &format!(r#"class="f{}""#, point.series), &frame.tooltip(point));
        frame.whisker(canvas, left + width / 2.0, point);
    }
}

/// Draws a line for each series, with the intervals as a band.
pub(super) fn lines(canvas: &mut Canvas, frame: &Frame, points: &[&Point]) {
    let mut all: Vec<Vec<&Point>> = vec![Vec::new(); frame.data.series.len()];
    for point in points {
        all[point.series].push(point);
    }
    // The bands first, so that none covers a line.
    for own in &mut all {
        own.sort_by(|one, other| one.x.total_cmp(&other.x));
        band(canvas, frame, own);
    }
    for (series, own) in all.iter().enumerate() {
        let mut steps = Vec::with_capacity(own.len());
        for point in own {
            let [x, y] = (frame.at)(point);
            steps.push(format!("{x:.1} {y:.1}"));
        }
        if steps.len() > 1 {
            canvas.path(&format!("M{}", steps.join("L")), &line_paint(series), "");
        }
        if own.len() <= MARKED {
            for point in own {
                shape(canvas, (frame.at)(point), series, &frame.tooltip(point));
            }
        }
    }
}

fn line_paint(series: usize) -> String {
    let dash = DASHES.get(series).copied().unwrap_or("none");
    format!(r#"class="kl l{series}" stroke-dasharray="{dash}""#)
}

fn band(canvas: &mut Canvas, frame: &Frame, own: &[&Point]) {
    // A point without an interval ends the band.
    for part in own.split(|point| point.range.is_none()) {
        // Along the lower ends, and back along the upper ones.
        let (mut steps, mut back) = (Vec::new(), Vec::new());
        for point in part {
            let [low, high] = point.range.unwrap_or([point.y; 2]);
            let x = (frame.at)(point)[0];
            steps.push(format!("{x:.1} {:.1}", (frame.y)(low)));
            back.push(format!("{x:.1} {:.1}", (frame.y)(high)));
        }
        steps.extend(back.into_iter().rev());
        match part {
            [] => {}
            [alone] => frame.whisker(canvas, (frame.at)(alone)[0], alone),
            [first, ..] => {
                let paint = format!(r#"class="kv f{}""#, first.series);
                canvas.path(&format!("M{}Z", steps.join("L")), &paint, "");
            }
        }
    }
}

/// Draws a shape for each point.
pub(super) fn scatter(canvas: &mut Canvas, frame: &Frame, points: &[&Point]) {
    for point in points {
        let place = (frame.at)(point);
        frame.whisker(canvas, place[0], point);
        shape(canvas, place, point.series, &frame.tooltip(point));
    }
}

/// Draws the shape of a series, so that readers need not tell colours apart.
fn shape(canvas: &mut Canvas, [x, y]: [f64; 2], series: usize, tooltip: &str) {
    let filled = format!(r#"class="f{series}""#);
    let open = format!(r#"class="kp l{series}" fill="none""#);
    let (path, paint) = match series {
        0 => ("m-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z", filled),
        1 => ("m-3.3 -3.3h6.6v6.6h-6.6z", filled),
        2 => ("m0 -4.2l4.2 7.4h-8.4z", filled),
        3 => ("m0 -4.6l4.6 4.6l-4.6 4.6l-4.6 -4.6z", filled),
        4 => ("m0 4.2l4.2 -7.4h-8.4z", filled),
        5 => ("m-4 0h8m-4 -4v8", open),
        6 => ("m-3.2 -3.2l6.4 6.4m0 -6.4l-6.4 6.4", open),
        _ => ("m-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z", open),
    };
    canvas.path(&format!("M{x:.1} {y:.1}{path}"), &paint, tooltip);
}
