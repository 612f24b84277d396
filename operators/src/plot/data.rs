//! The rows as points on axes.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float64Array, RecordBatch};
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
    value: Option<f64>,
    range: Option<[f64; 2]>,
}

enum Place {
    Number(Option<f64>),
    Label(Label),
}

impl Column {
    fn place(&self, row: usize) -> Place {
        match self {
            Self::Numbers(numbers) => Place::Number(finite(numbers, row)),
            Self::Labels(labels) => Place::Label(labels[row].clone()),
        }
    }
}

fn numbers_of(name: &str, key: &str, column: &ArrayRef) -> Result<Float64Array, OperatorError> {
    let wrong = || OperatorError::pipeline(format!("`{name}`: `{key}` is {}, not a number", column.data_type()));
    numbers(column)?.ok_or_else(wrong)
}

/// Columns of a batch, by the params that name them.
struct Columns {
    x: Column,
    y: Column,
    value: Option<Float64Array>,
    ends: Option<[Float64Array; 2]>,
    series: Option<Vec<Label>>,
    facet: Option<Vec<Label>>,
}

impl Columns {
    fn of(params: &PlotParams, keys: &Keys, batch: &RecordBatch) -> Result<Self, OperatorError> {
        let arrays = keys.values(batch)?;
        let named = params.keys();
        let find = |wanted: &str| {
            let place = named.iter().position(|(name, _)| *name == wanted)?;
            Some((named[place].1, &arrays[place]))
        };
        let number = |name: &str| find(name).map(|(key, array)| numbers_of(name, key, array)).transpose();
        let text = |name: &str| find(name).map(|(_, array)| labels(array)).transpose();
        let axis = |name: &str, numeric: bool| {
            let (key, array) = find(name).ok_or_else(|| OperatorError::engine(format!("`{name}` is not bound")))?;
            if numeric { numbers_of(name, key, array).map(Column::Numbers) } else { labels(array).map(Column::Labels) }
        };
        let x_is_number = find("x").is_some_and(|(_, array)| array.data_type().is_numeric());
        let is_map = params.kind == Kind::Heatmap;
        Ok(Self {
            x: axis("x", x_is_number && matches!(params.kind, Kind::Lines | Kind::Scatter))?,
            y: axis("y", !is_map)?,
            value: number("value")?,
            ends: number("low")?.zip(number("high")?).map(|(low, high)| [low, high]),
            series: text("series")?,
            facet: text("facet")?,
        })
    }

    fn row(&self, row: usize) -> Raw {
        let range = self.ends.as_ref().and_then(|[low, high]| Some([finite(low, row)?, finite(high, row)?]));
        Raw {
            facet: self.facet.as_ref().map(|labels| labels[row].clone()),
            series: self.series.as_ref().map(|labels| labels[row].clone()),
            x: self.x.place(row),
            y: self.y.place(row),
            value: self.value.as_ref().map_or(Some(0.0), |numbers| finite(numbers, row)),
            range: range.map(|[low, high]| [low.min(high), low.max(high)]),
        }
    }
}

impl Raw {
    fn is_drawn(&self) -> bool {
        let lacks = |place: &Place| matches!(place, Place::Number(None));
        !lacks(&self.x) && !lacks(&self.y) && self.value.is_some()
    }
}

/// Binds the params to the columns, and checks their types, also without rows.
fn bound(params: &PlotParams, schema: &SchemaRef) -> Result<(Keys, Columns), OperatorError> {
    let keys = params.keys();
    let bound = keys.iter().map(|(name, key)| Keys::new(schema, name, &[key]).map(drop));
    bound.collect::<Result<(), _>>()?;
    let names: Vec<&str> = keys.iter().map(|(_, key)| *key).collect();
    let keys = Keys::new(schema, "x", &names)?;
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
            let (drawn, others): (Vec<Raw>, Vec<Raw>) =
                (0..batch.num_rows()).map(|row| columns.row(row)).partition(Raw::is_drawn);
            undrawn += others.len() as u64;
            raw.extend(drawn);
            limit("", "rows", raw.len(), POINTS, "average them with `sql`, or draw some of them with `sample`")?;
        }
        let data = Self::placed(raw, &empty, undrawn)?;
        data.require_single_marks(params)?;
        Ok(data)
    }

    fn placed(raw: Vec<Raw>, columns: &Columns, undrawn: u64) -> Result<Self, OperatorError> {
        let label = |place: &Place| match place {
            Place::Label(label) => Some(label.clone()),
            Place::Number(_) => None,
        };
        let facets = ordered(raw.iter().filter_map(|raw| raw.facet.clone()));
        let series = ordered(raw.iter().filter_map(|raw| raw.series.clone()));
        let (x, y) =
            (ordered(raw.iter().filter_map(|raw| label(&raw.x))), ordered(raw.iter().filter_map(|raw| label(&raw.y))));
        limit("facet", "panels", facets.len(), FACETS, "draw fewer with `filter`, or another column")?;
        limit("series", "colours", series.len(), SERIES, "draw fewer with `filter`, or make it the `facet`")?;
        limit("x", "texts on the axis", x.len(), CATEGORIES, "draw fewer with `filter`, or numbers")?;
        limit("y", "texts on the axis", y.len(), CATEGORIES, "draw fewer with `filter`, or numbers")?;
        let place = |set: &IndexSet<Label>, label: Option<&Label>| label.and_then(|label| set.get_index_of(label));
        let coordinate = |set: &IndexSet<Label>, found: &Place| match found {
            Place::Number(number) => number.unwrap_or_default(),
            Place::Label(label) => set.get_index_of(label).unwrap_or_default() as f64,
        };
        let point = |raw: &Raw| Point {
            facet: place(&facets, raw.facet.as_ref()).unwrap_or_default(),
            series: place(&series, raw.series.as_ref()).unwrap_or_default(),
            x: coordinate(&x, &raw.x),
            y: coordinate(&y, &raw.y),
            range: raw.range,
            value: raw.value.unwrap_or_default(),
        };
        let points = raw.iter().map(point).collect();
        let values = |column: &Column, set: &IndexSet<Label>| match column {
            Column::Numbers(_) => Values::Numbers,
            Column::Labels(_) => Values::Texts(texts(set)),
        };
        let one = |set: &IndexSet<Label>| if set.is_empty() { vec![String::new()] } else { texts(set) };
        let (facets, series) = (one(&facets), one(&series));
        Ok(Self { facets, series, x: values(&columns.x, &x), y: values(&columns.y, &y), points, undrawn })
    }

    /// Fails if two rows would be one bar, one cell, or one point of a line.
    fn require_single_marks(&self, params: &PlotParams) -> Result<(), OperatorError> {
        let mut seen = BTreeSet::new();
        let is_map = params.kind == Kind::Heatmap;
        let mark = |point: &Point| {
            let y = if is_map { point.y.to_bits() } else { 0 };
            (point.facet, point.series, (point.x + 0.0).to_bits(), y)
        };
        let twice = self.points.iter().filter(|_| params.kind != Kind::Scatter).find(|point| !seen.insert(mark(point)));
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
        let undrawn = self.undrawn;
        let note = || format!("{undrawn} rows are not drawn: a number is null, NaN or infinite.");
        (undrawn > 0).then(note).into_iter().collect()
    }
}

impl Values {
    /// Returns the value of a coordinate.
    pub(super) fn text(&self, coordinate: f64) -> String {
        match self {
            Self::Numbers => coordinate.to_string(),
            Self::Texts(texts) => texts.get(coordinate as usize).cloned().unwrap_or_default(),
        }
    }
}

/// Numbers in their order, texts in that of the rows.
fn ordered(labels: impl Iterator<Item = Label>) -> IndexSet<Label> {
    let mut set: IndexSet<Label> = labels.collect();
    set.sort_by(|one, other| one.order().cmp(&other.order()));
    set
}

fn texts(set: &IndexSet<Label>) -> Vec<String> {
    set.iter().map(|label| label.text.clone()).collect()
}

fn limit(param: &str, what: &str, found: usize, most: usize, help: &str) -> Result<(), OperatorError> {
    if found <= most {
        return Ok(());
    }
    let of = if param.is_empty() { String::new() } else { format!("`{param}`: ") };
    Err(OperatorError::pipeline(format!("{of}more than {most} {what} cannot be told apart")).with_help(help))
}
