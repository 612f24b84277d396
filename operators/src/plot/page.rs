//! The page: the picture and its numbers.

use super::data::Data;
use super::params::{Kind, PlotParams, unquoted};
use crate::shared::html::table::{NOTHING, Table, number};
use crate::shared::html::{self, list};

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
    let titles = [
        params.facet.as_deref(),
        params.series.as_deref(),
        Some(params.x_title()),
        Some(params.y_title()),
        params.low.as_deref(),
        params.high.as_deref(),
        params.value.as_deref(),
    ];
    let header: Vec<&str> = titles.into_iter().flatten().map(unquoted).collect();
    let mut table = Table::new("Numbers", &header);
    for point in data.points.iter().take(ROWS) {
        let [low, high] = match point.range {
            Some(ends) => ends.map(number),
            None => [NOTHING, NOTHING].map(str::to_owned),
        };
        let cells = [
            data.facets[point.facet].clone(),
            data.series[point.series].clone(),
            data.x.text(point.x),
            if params.kind == Kind::Heatmap { data.y.text(point.y) } else { number(point.y) },
            low,
            high,
            number(point.value),
        ];
        // Only what the params name has a column.
        table.row(titles.iter().zip(cells).filter(|(title, _)| title.is_some()).map(|(_, cell)| cell));
    }
    table
}
