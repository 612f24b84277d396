//! Cells with colours, and the legend of the colours.

use super::canvas::{Area, Canvas, LINE, text_width};
use super::colour::Colours;
use super::data::{Data, Point};
use super::marks::Frame;
use super::params::PlotParams;
use crate::shared::html::plot::shorten;
use crate::shared::html::table::number;

/// Width of the legend, and its steps.
const LEGEND: f64 = 200.0;
const STEPS: usize = 40;

fn colours(data: &Data) -> Colours {
    Colours::covering(data.points.iter().map(|point| point.value))
}

/// Draws the colours with the numbers at their ends; returns where they end.
pub(super) fn legend(canvas: &mut Canvas, params: &PlotParams, data: &Data, area: Area) -> f64 {
    let colours = colours(data);
    let y = area.top + LINE * 0.8;
    let name = shorten(params.value.as_deref().unwrap_or_default(), 40);
    canvas.text(area.left, y, "ks", &name);
    let (low, high) = (number(colours.low), number(colours.high));
    let left = area.left + text_width(&name) + text_width(&low) + 20.0;
    canvas.text(left - 6.0, y, "ks kr", &low);
    for step in 0..STEPS {
        let share = (step as f64 + 0.5) / STEPS as f64;
        let (colour, _) = colours.of(colours.low + (colours.high - colours.low) * share);
        let width = LEGEND / STEPS as f64;
        // One tenth more, so that no line shows between the steps.
        let part = Area { left: left + width * step as f64, top: y - 10.0, width: width + 0.1, height: 12.0 };
        canvas.rect(part, &format!(r#"fill="{colour}""#), "");
    }
    canvas.text(left + LEGEND + 6.0, y, "ks", &high);
    y + LINE * 0.8
}

/// Draws a cell for each point, with its number if it has room.
pub(super) fn cells(canvas: &mut Canvas, frame: &Frame, points: &[&Point]) {
    let (data, panel) = (frame.data, frame.panel);
    let colours = colours(data);
    let (width, height) = (panel.width / data.x.slots(), panel.height / data.y.slots());
    for point in points {
        let [x, y] = (frame.at)(point);
        let (colour, is_dark) = colours.of(point.value);
        let shown = number(point.value);
        let area =
            Area { left: x - width / 2.0 + 0.5, top: y - height / 2.0 + 0.5, width: width - 1.0, height: height - 1.0 };
        let tooltip = format!("{}, {}: {shown}", data.x.text(point.x), data.y.text(point.y));
        canvas.rect(area, &format!(r#"fill="{colour}""#), &tooltip);
        // Without room, the tooltip has the number.
        if text_width(&shown) + 4.0 < width && height > 14.0 {
            let class = if is_dark { "km light" } else { "km dark" };
            canvas.text(x, y + 4.0, class, &shown);
        }
    }
}
