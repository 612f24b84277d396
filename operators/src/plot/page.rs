//! The page: the picture and its numbers.

use super::data::{Data, Point};
use super::params::{Kind, PlotParams, unquoted};
use crate::shared::html;
use crate::shared::html::list;
use crate::shared::html::table::{NOTHING, Table, number};

/// Rows of the table.
const ROWS: usize = 500;

/// Renders the page.
pub(super) fn render(params: &PlotParams, data: &Data, svg: &str) -> String {
    let mut notes = data.notes();
    if data.points.len() > ROWS {
        notes.push(format!("The table lists {ROWS} of {} rows.", data.points.len()));
    }
    let title = if params.title.is_empty() { "Plot" } else { &params.title };
    let content = format!("<figure>{svg}</figure>{}{}", list(&notes), table(params, data).html());
    html::page(title, &content)
}

fn table(params: &PlotParams, data: &Data) -> Table {
    let is_map = params.kind == Kind::Heatmap;
    let columns = [
        params.facet.as_deref(),
        params.series.as_deref(),
        Some(params.x_title()),
        Some(params.y_title()),
        params.low.as_deref(),
        params.high.as_deref(),
        params.value.as_deref(),
    ];
    let header: Vec<&str> = columns.into_iter().flatten().map(unquoted).collect();
    let mut table = Table::new("Numbers", &header);
    let end = |point: &Point, end: usize| point.range.map_or(NOTHING.to_owned(), |range| number(range[end]));
    for point in data.points.iter().take(ROWS) {
        let y = if is_map { data.y.text(point.y) } else { number(point.y) };
        let cells = [
            params.facet.as_ref().map(|_| data.facets[point.facet].clone()),
            params.series.as_ref().map(|_| data.series[point.series].clone()),
            Some(data.x.text(point.x)),
            Some(y),
            params.low.as_ref().map(|_| end(point, 0)),
            params.high.as_ref().map(|_| end(point, 1)),
            params.value.as_ref().map(|_| number(point.value)),
        ];
        table.row(cells.into_iter().flatten());
    }
    table
}
