//! The rows as points on axes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, Float64Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use indexmap::IndexSet;
use searchmill_engine::operator::{Context, OperatorError, RowsInput};

use super::params::{Kind, PlotParams};
use crate::shared::numbers::{finite, numbers};
use crate::shared::relation::{Keys, Label, labels};

/// Most rows of a plot.
const POINTS: usize = 20_000;
/// Most colours.
pub(super) const SERIES: usize = 8;
/// Most panels.
const FACETS: usize = 24;
/// Most texts on an axis.
const CATEGORIES: usize = 100;

/// The values of an axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Values {
    Numbers,
    /// Points lie at their places.
    Texts(Vec<String>),
}

/// A row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) facet: usize,
    pub(super) series: usize,
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) range: Option<[f64; 2]>,
    /// The number of a cell of a heat map.
    pub(super) value: f64,
}

/// The rows that are drawn.
pub(super) struct Data {
    /// Empty text without `facet`.
    pub(super) facets: Vec<String>,
    /// Empty text without `series`.
    pub(super) series: Vec<String>,
    pub(super) x: Values,
    pub(super) y: Values,
    pub(super) points: Vec<Point>,
    /// Rows without a finite number.
    pub(super) undrawn: u64,
}

/// A column of the rows: places of texts, or numbers.
enum Column {
    Numbers(Float64Array),
    Labels(Vec<Label>),
}

/// A row before its texts have places.
struct Raw {
    facet: Option<Label>,
    series: Option<Label>,
    x: Place,
    y: Place,
    value: f64,
    range: Option<[f64; 2]>,
}

enum Place {
    Number(f64),
    Label(Label),
}

impl Place {
    fn label(&self) -> Option<&Label> {
        match self {
            Self::Label(label) => Some(label),
            Self::Number(_) => None,
        }
    }

    fn coordinate(&self, set: &IndexSet<Label>) -> f64 {
        match self {
            Self::Number(number) => *number,
            Self::Label(label) => set.get_index_of(label).unwrap_or_default() as f64,
        }
    }
}

/// Columns of a batch, by the params that name them.
struct Columns(BTreeMap<&'static str, Column>);

impl Columns {
    fn of(params: &PlotParams, keys: &Keys, batch: &RecordBatch) -> Result<Self, OperatorError> {
        let mut columns = BTreeMap::new();
        for ((name, key), array) in params.keys().into_iter().zip(keys.values(batch)?) {
            let kind = array.data_type();
            let is_number = match name {
                // Bars and cells have a slot each, also those of numbers.
                "x" => kind.is_numeric() && matches!(params.kind, Kind::Lines | Kind::Scatter),
                "y" => params.kind != Kind::Heatmap,
                name => matches!(name, "value" | "low" | "high"),
            };
            let column = if !is_number {
                Column::Labels(labels(&array)?)
            } else if let Some(numbers) = numbers(&array)? {
                Column::Numbers(numbers)
            } else {
                return Err(OperatorError::pipeline(format!("`{name}`: `{key}` is {kind}, not a number")));
            };
            columns.insert(name, column);
        }
        Ok(Self(columns))
    }

    fn number(&self, name: &str, row: usize) -> Option<f64> {
        if let Some(Column::Numbers(numbers)) = self.0.get(name) { finite(numbers, row) } else { None }
    }

    fn label(&self, name: &str, row: usize) -> Option<Label> {
        if let Some(Column::Labels(labels)) = self.0.get(name) { Some(labels[row].clone()) } else { None }
    }

    /// Returns a row; `None` if one of its numbers is missing.
    fn row(&self, row: usize) -> Option<Raw> {
        let range = self.number("low", row).zip(self.number("high", row));
        Some(Raw {
            facet: self.label("facet", row),
            series: self.label("series", row),
            x: self.place("x", row)?,
            y: self.place("y", row)?,
            value: if self.0.contains_key("value") { self.number("value", row)? } else { 0.0 },
            range: range.map(|(low, high)| [low.min(high), low.max(high)]),
        })
    }

    fn place(&self, name: &str, row: usize) -> Option<Place> {
        match self.label(name, row) {
            Some(label) => Some(Place::Label(label)),
            None => self.number(name, row).map(Place::Number),
        }
    }

    fn values(&self, name: &str, set: &IndexSet<Label>) -> Values {
        if let Some(Column::Labels(_)) = self.0.get(name) { Values::Texts(texts(set)) } else { Values::Numbers }
    }
}

/// Binds the params to the columns, and checks their types, also without rows.
fn bound(params: &PlotParams, schema: &SchemaRef) -> Result<(Keys, Columns), OperatorError> {
    let mut keys = Vec::new();
    for (name, key) in params.keys() {
        // Each alone too, so that an error names its param.
        Keys::new(schema, name, &[key])?;
        keys.push(key);
    }
    let keys = Keys::new(schema, "x", &keys)?;
    let empty = Columns::of(params, &keys, &RecordBatch::new_empty(Arc::clone(schema)))?;
    Ok((keys, empty))
}

/// Checks that the params fit the columns.
///
/// # Errors
/// Fails if a column is missing, or is no number where one is drawn.
pub(super) fn check(params: &PlotParams, schema: &SchemaRef) -> Result<(), OperatorError> {
    bound(params, schema).map(drop)
}

impl Data {
    /// Reads the rows.
    ///
    /// # Errors
    /// Fails if a column is not a number, if there are too many rows, colours or panels, or if two rows are one mark.
    pub(super) fn read(params: &PlotParams, rows: &RowsInput, context: &Context) -> Result<Self, OperatorError> {
        let (keys, empty) = bound(params, &rows.schema)?;
        let (mut raw, mut undrawn) = (Vec::new(), 0);
        for batch in rows.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let columns = Columns::of(params, &keys, &batch)?;
            let drawn = raw.len();
            raw.extend((0..batch.num_rows()).filter_map(|row| columns.row(row)));
            undrawn += (batch.num_rows() - (raw.len() - drawn)) as u64;
            // After each batch, so that a large table fails before it fills the memory.
            limit("", "rows", raw.len(), POINTS, "average them with `sql`, or draw some of them with `sample`")?;
        }
        let data = Self::placed(raw, &empty, undrawn)?;
        data.require_single_marks(params)?;
        Ok(data)
    }

    fn placed(raw: Vec<Raw>, columns: &Columns, undrawn: u64) -> Result<Self, OperatorError> {
        let [mut facets, mut series, mut x, mut y] = std::array::from_fn(|_| IndexSet::new());
        for row in &raw {
            facets.extend(row.facet.clone());
            series.extend(row.series.clone());
            x.extend(row.x.label().cloned());
            y.extend(row.y.label().cloned());
        }
        for set in [&mut facets, &mut series, &mut x, &mut y] {
            // Numbers in their order, texts in that of the rows: the sort is stable.
            set.sort_by(|one: &Label, other| one.order.cmp(&other.order));
        }
        limit("`facet`: ", "panels", facets.len(), FACETS, "draw fewer with `filter`, or another column")?;
        limit("`series`: ", "colours", series.len(), SERIES, "draw fewer with `filter`, or make it the `facet`")?;
        limit("`x`: ", "texts on the axis", x.len(), CATEGORIES, "draw fewer with `filter`, or numbers")?;
        limit("`y`: ", "texts on the axis", y.len(), CATEGORIES, "draw fewer with `filter`, or numbers")?;
        let mut points = Vec::with_capacity(raw.len());
        for row in &raw {
            points.push(Point {
                facet: row.facet.as_ref().and_then(|label| facets.get_index_of(label)).unwrap_or_default(),
                series: row.series.as_ref().and_then(|label| series.get_index_of(label)).unwrap_or_default(),
                x: row.x.coordinate(&x),
                y: row.y.coordinate(&y),
                range: row.range,
                value: row.value,
            });
        }
        // Without facets or series, there is one with an empty name.
        for set in [&mut facets, &mut series] {
            if set.is_empty() {
                set.insert(Label::of_text(""));
            }
        }
        let (x, y) = (columns.values("x", &x), columns.values("y", &y));
        Ok(Self { facets: texts(&facets), series: texts(&series), x, y, points, undrawn })
    }

    /// Fails if two rows would be one bar, one cell, or one point of a line.
    fn require_single_marks(&self, params: &PlotParams) -> Result<(), OperatorError> {
        if params.kind == Kind::Scatter {
            return Ok(());
        }
        let mut seen = BTreeSet::new();
        let is_map = params.kind == Kind::Heatmap;
        let twice = self.points.iter().find(|point| {
            let y = if is_map { point.y.to_bits() } else { 0 };
            // The sum makes a minus zero a zero.
            !seen.insert((point.facet, point.series, (point.x + 0.0).to_bits(), y))
        });
        let Some(point) = twice else { return Ok(()) };
        let named = [
            Some(format!("`{}` is {}", params.x, self.x.text(point.x))),
            is_map.then(|| format!("`{}` is {}", params.y, self.y.text(point.y))),
            params.series.as_ref().map(|key| format!("`{key}` is {}", self.series[point.series])),
            params.facet.as_ref().map(|key| format!("`{key}` is {}", self.facets[point.facet])),
        ];
        let message = format!("two rows are one mark: {}", named.into_iter().flatten().collect::<Vec<_>>().join(", "));
        let help = "name the column that tells them apart in `series` or `facet`, average them with `sql` (`avg(…)`, \
                    `GROUP BY`), or use `kind: scatter`";
        Err(OperatorError::pipeline(message).with_help(help))
    }

    /// What the plot leaves out.
    pub(super) fn notes(&self) -> Vec<String> {
        match self.undrawn {
            0 => Vec::new(),
            rows => vec![format!("{rows} rows are not drawn: a number is null, NaN or infinite.")],
        }
    }
}

impl Values {
    /// Number of slots on the axis.
    pub(super) fn slots(&self) -> f64 {
        match self {
            Self::Texts(texts) => texts.len().max(1) as f64,
            Self::Numbers => 1.0,
        }
    }

    /// Returns the value of a coordinate.
    pub(super) fn text(&self, coordinate: f64) -> String {
        match self {
            Self::Numbers => coordinate.to_string(),
            Self::Texts(texts) => texts.get(coordinate as usize).cloned().unwrap_or_default(),
        }
    }
}

fn texts(set: &IndexSet<Label>) -> Vec<String> {
    set.iter().map(|label| label.text.clone()).collect()
}

fn limit(param: &str, what: &str, found: usize, most: usize, help: &str) -> Result<(), OperatorError> {
    if found <= most {
        return Ok(());
    }
    Err(OperatorError::pipeline(format!("{param}more than {most} {what} cannot be told apart")).with_help(help))
}
