//! `plot`: draws rows as a page and an SVG file.

mod axis;
mod canvas;
mod colour;
mod data;
mod figure;
mod heatmap;
mod marks;
mod page;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use searchmill_engine::operator::{
    BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs, ParamIssue, Ports,
    Tables, TreeKind,
};
use serde::{Deserialize, Serialize};

use crate::relation::{ROWS, check_key, unknown_keys};
use data::Data;

const PLOT: &str = "plot";

/// Draws rows: bars, lines, points or a heat map. Every row is one mark. Rows without a finite number are not drawn; the
/// page says how many. Files have no scripts and no fonts of their own, use colours that colour-blind readers can tell
/// apart, and follow the light or dark mode of the reader.
pub(crate) struct Plot;

/// How to draw the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// A bar from 0 to `y` for each value of `x` and `series`.
    #[default]
    Bars,
    /// A line through the rows of each `series`. `x` may be numbers or texts.
    Lines,
    /// A point for each row. `x` may be numbers or texts.
    Scatter,
    /// A cell for each value of `x` and `y`, with the colour of `value`.
    Heatmap,
}

/// Parameters of `plot`. All but the titles name columns or SQL expressions.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct PlotParams {
    /// How to draw the rows (`bars`).
    #[serde(default)]
    pub(crate) kind: Kind,
    /// The horizontal axis. Numbers are sorted, texts keep the order of the rows.
    pub(crate) x: String,
    /// The vertical axis: numbers, or for `heatmap` any values.
    pub(crate) y: String,
    /// What has a colour of its own: at most 8 values.
    #[serde(default)]
    pub(crate) series: Option<String>,
    /// Lower end of an interval around `y`.
    #[serde(default)]
    pub(crate) low: Option<String>,
    /// Upper end of an interval around `y`.
    #[serde(default)]
    pub(crate) high: Option<String>,
    /// The number that a cell of a `heatmap` shows.
    #[serde(default)]
    pub(crate) value: Option<String>,
    /// What has a panel of its own: at most 24 values.
    #[serde(default)]
    pub(crate) facet: Option<String>,
    /// Heading.
    #[serde(default)]
    pub(crate) title: String,
    /// Text below the horizontal axis (default: `x`).
    #[serde(default)]
    pub(crate) x_title: Option<String>,
    /// Text beside the vertical axis (default: `y`).
    #[serde(default)]
    pub(crate) y_title: Option<String>,
}

impl Operator for Plot {
    type Params = PlotParams;
    const NAME: &'static str = "plot";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Draws rows as a page and an SVG file: bars with intervals, lines, points, heat maps.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "Metrics of `evaluate` as bars with their intervals",
            yaml: "figure: {op: plot, from: scores.metrics, with: {x: name, y: value, low: low, high: high, facet: \"\\\"group\\\"\"}}",
        },
        Example {
            title: "Recall by depth, a line for each retriever, a panel for each data set",
            yaml: "curve:\n  op: plot\n  from: study\n  with: {kind: lines, x: k, y: recall, series: retriever, facet: dataset, title: Recall, x_title: documents, y_title: recall@k}",
        },
        Example {
            title: "A matrix as a heat map",
            yaml: "grid: {op: plot, from: cells, with: {kind: heatmap, x: chunk_size, y: retriever, value: round(recall, 3)}}",
        },
        Example {
            title: "Every rollout as a point, tokens beside F1",
            yaml: "cost: {op: plot, from: scored, with: {kind: scatter, x: prompt_tokens + completion_tokens, y: f1, series: question_type, low: f1 - 0.1, high: f1 + 0.1}}",
        },
    ];

    fn declare(params: &PlotParams) -> Declaration {
        let ports = Ports::new().any_rows_in(ROWS, "The rows to draw.").tree_out(
            PLOT,
            TreeKind::Report,
            "`plot.svg`, and `plot.html`: the plot with the numbers.",
        );
        let checked = params.clone();
        Declaration::pure(ports).issues(params.issues()).checks_columns(move |tables| checked.column_issues(tables))
    }

    fn open(params: &PlotParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

impl PlotParams {
    /// The params that name columns, with their names.
    fn keys(&self) -> Vec<(&'static str, &str)> {
        let given = [
            ("x", Some(&self.x)),
            ("y", Some(&self.y)),
            ("series", self.series.as_ref()),
            ("low", self.low.as_ref()),
            ("high", self.high.as_ref()),
            ("value", self.value.as_ref()),
            ("facet", self.facet.as_ref()),
        ];
        given.into_iter().filter_map(|(name, key)| Some((name, key?.as_str()))).collect()
    }

    fn issues(&self) -> Vec<ParamIssue> {
        let mut issues: Vec<_> = self.keys().into_iter().filter_map(|(name, key)| check_key(name, key)).collect();
        let is_map = self.kind == Kind::Heatmap;
        if is_map && self.value.is_none() {
            issues.push(ParamIssue::new("value", "a heat map needs the number that its cells show"));
        }
        if !is_map && self.value.is_some() {
            issues.push(ParamIssue::new("value", "belongs to `kind: heatmap`").with_help("name the number in `y`"));
        }
        let others = [("series", &self.series), ("low", &self.low), ("high", &self.high)];
        for (name, _) in others.into_iter().filter(|(_, key)| is_map && key.is_some()) {
            issues.push(ParamIssue::new(name, "a heat map has no place for it").with_help("remove it, or use `facet`"));
        }
        match (&self.low, &self.high) {
            (Some(_), None) => issues.push(ParamIssue::new("low", "an interval has two ends: name `high` too")),
            (None, Some(_)) => issues.push(ParamIssue::new("high", "an interval has two ends: name `low` too")),
            _ => {}
        }
        issues
    }

    fn column_issues(&self, tables: &Tables) -> Vec<ParamIssue> {
        let Some(schema) = tables.get(ROWS) else { return Vec::new() };
        let of = |(name, key): (&str, &str)| {
            let found = unknown_keys(schema, name, &[key]).into_iter();
            found.map(|issue| ParamIssue { path: name.to_owned(), ..issue }).collect::<Vec<_>>()
        };
        self.keys().into_iter().flat_map(of).collect()
    }

    fn x_title(&self) -> &str {
        self.x_title.as_deref().unwrap_or(&self.x)
    }

    fn y_title(&self) -> &str {
        self.y_title.as_deref().unwrap_or(&self.y)
    }
}

impl BlockingKernel for PlotParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let data = Data::read(self, inputs.rows(ROWS)?, context)?;
        let svg = figure::draw(self, &data);
        let folder = outputs.tree(PLOT)?;
        std::fs::write(folder.join("plot.svg"), &svg)?;
        std::fs::write(folder.join("plot.html"), page::render(self, &data, &svg))?;
        outputs.figure("rows", data.points.len() as f64);
        outputs.figure("not_drawn", data.undrawn as f64);
        outputs.summary(&data.notes().iter().map(|note| format!("{note}\n")).collect::<String>());
        Ok(())
    }
}
