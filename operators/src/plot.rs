//! `plot`: draws rows as a page and an SVG file.

mod axis;
mod canvas;
mod colour;
mod data;
mod figure;
mod heatmap;
mod marks;
mod page;
mod params;
#[cfg(test)]
mod tests;

use searchmill_engine::operator::{
    BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs, Ports, TreeKind,
};

use super::shared::html::write;
use super::shared::relation::{ROWS, columns_checked};
use data::Data;
use params::PlotParams;

const PLOT: &str = "plot";

/// Draws rows: bars, lines, points or a heat map. Every row is one mark. Rows without a finite number are not drawn; the
/// page says how many. Files have no scripts and no fonts of their own, use colours that colour-blind readers can tell
/// apart, and follow the light or dark mode of the reader.
pub(crate) struct Plot;

impl Operator for Plot {
    type Params = PlotParams;
    const NAME: &'static str = "plot";
    const VERSION: u32 = 2;
    const ABOUT: &'static str = "Draws rows as a page and an SVG file: bars with intervals, lines, points, heat maps.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "The differences of `compare` as bars with their intervals, a panel for each group",
            yaml: "figure: {op: plot, from: compared.metrics, with: {x: metric, y: value, series: system, low: low, high: high, facet: \"\\\"group\\\"\"}}",
        },
        Example {
            title: "Recall by depth, a line for each retriever, a panel for each data set",
            yaml: "curve:\n  op: plot\n  from: study\n  with: {kind: lines, x: k, y: recall, series: retriever, facet: dataset, title: Recall, x_title: documents, y_title: recall@k}",
        },
        Example {
            title: "A matrix as a heat map",
            yaml: "grid: {op: plot, from: cells, with: {kind: heatmap, x: chunk_size, y: retriever, value: \"round(recall, 3)\"}}",
        },
        Example {
            title: "Every rollout as a point, tokens beside F1",
            yaml: "cost: {op: plot, from: scored, with: {kind: scatter, x: prompt_tokens + completion_tokens, y: f1, series: question_type, low: f1 - 0.1, high: f1 + 0.1}}",
        },
    ];

    fn declare(params: &PlotParams) -> Declaration {
        let about = "`plot.svg`, and `plot.html`: the plot with the numbers.";
        let ports = Ports::new().any_rows_in(ROWS, "The rows to draw.").tree_out(PLOT, TreeKind::Report, about);
        let checked = params.clone();
        Declaration::pure(ports).issues(params.issues()).checks_columns(move |tables| {
            let mut issues = checked.column_issues(tables);
            // `check` stops at the first unknown column; `column_issues` lists all of them.
            if issues.is_empty() {
                issues.extend(columns_checked(tables, ROWS, |schema| data::check(&checked, schema)));
            }
            issues
        })
    }

    fn open(params: &PlotParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

impl BlockingKernel for PlotParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let data = Data::read(self, inputs.rows(ROWS)?, context)?;
        let svg = figure::draw(self, &data);
        let folder = outputs.tree(PLOT)?;
        write(&folder.join("plot.svg"), &svg)?;
        write(&folder.join("plot.html"), &page::render(self, &data, &svg))?;
        outputs.figure("rows", data.points.len() as f64);
        outputs.figure("not_drawn", data.undrawn as f64);
        outputs.summary(&data.notes().iter().map(|note| format!("{note}\n")).collect::<String>());
        Ok(())
    }
}
