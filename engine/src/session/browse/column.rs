//! Counts the values of a column: a histogram of numbers, the most common of other values.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use datafusion::prelude::DataFrame;
use serde::Serialize;

use super::super::failure::Failure;
use super::super::open::StoreView;
use super::{Choice, Table};

/// Number of bins of a histogram (at most).
const BINS: i64 = 20;
/// Number of most common values (at most).
const COMMON: usize = 20;
/// Characters of a common value (at most).
const CHARACTERS: usize = 200;

/// What a column holds, over the chosen rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ColumnSummary {
    /// The column.
    pub name: String,
    /// Number of rows.
    pub rows: u64,
    /// Number of rows without a value.
    pub nulls: u64,
    /// Number of different values.
    pub distinct: u64,
    /// What was counted, if not the values: `length` for lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<&'static str>,
    /// Smallest number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Largest number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// Mean of the numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean: Option<f64>,
    /// Histogram of the numbers: bins of equal width.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bins: Vec<Bin>,
    /// The most common values, most common first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub common: Vec<Common>,
}

/// A bin of a histogram.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bin {
    /// Lower end, which belongs to the bin.
    pub from: f64,
    /// Upper end, which belongs to the next bin; of numbers with fractions, to the last one.
    pub to: f64,
    /// Number of rows.
    pub rows: u64,
}

/// A common value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Common {
    /// The value as text, cut after 200 characters.
    pub value: String,
    /// Number of rows.
    pub rows: u64,
}

impl StoreView<'_> {
    /// Counts the values of a column. Not for code that already runs on tokio.
    ///
    /// # Errors
    /// Fails if there is no such column, if its values cannot be counted (objects), or as [`StoreView::choose`] does.
    pub fn summarize(&self, table: &Table, name: &str, choice: &Choice) -> Result<ColumnSummary, Failure> {
        let field = table.columns().into_iter().find(|field| field.name() == name);
        let field = field.ok_or_else(|| Failure::usage(format!("there is no column `{name}`")))?;
        let column = format!("\"{}\"", name.replace('"', "\"\""));
        let (value, of) = match field.data_type() {
            DataType::List(_) | DataType::LargeList(_) => {
                (format!("coalesce(array_length({column}), 0)"), Some("length"))
            }
            DataType::Struct(_) | DataType::Map(..) => {
                return Err(Failure::usage(format!("`{name}` has objects: they cannot be counted")));
            }
            _ => (column, None),
        };
        let choice = Choice { order: Vec::new(), ..choice.clone() };
        let counts =
            self.ask(table, &choice, &format!("SELECT count(*), count({value}), count(DISTINCT {value}) FROM chosen"))?;
        let [rows, values, distinct] = [0, 1, 2].map(|column| number(&counts, column).unwrap_or(0.0) as u64);
        let (name, nulls) = (name.to_owned(), rows - values);
        let mut summary = ColumnSummary { name, rows, nulls, distinct, of, ..ColumnSummary::default() };
        if of.is_some() || field.data_type().is_numeric() {
            let whole = of.is_some() || field.data_type().is_integer();
            self.count_numbers(table, &choice, &value, whole, &mut summary)?;
        } else {
            let sql = format!(
                "SELECT CAST({value} AS VARCHAR) AS v, count(*) AS n FROM chosen WHERE {value} IS NOT NULL \
                 GROUP BY {value} ORDER BY n DESC, v LIMIT {COMMON}"
            );
            for batch in self.ask(table, &choice, &sql)? {
                let texts = cast(batch.column(0), &DataType::Utf8);
                let texts = texts.map_err(|error| Failure::Other(error.to_string()))?;
                let counts = batch.column(1).as_primitive::<Int64Type>();
                for (text, rows) in texts.as_string::<i32>().iter().zip(counts.values()) {
                    let value = text.unwrap_or_default().chars().take(CHARACTERS).collect();
                    summary.common.push(Common { value, rows: *rows as u64 });
                }
            }
        }
        Ok(summary)
    }

    /// Adds the range, the mean and the histogram of numbers.
    fn count_numbers(
        &self,
        table: &Table,
        choice: &Choice,
        value: &str,
        whole: bool,
        summary: &mut ColumnSummary,
    ) -> Result<(), Failure> {
        // NaN and infinities have no place in a histogram.
        let finite = format!(
            "SELECT CAST({value} AS DOUBLE) AS x FROM chosen WHERE {value} IS NOT NULL AND \
             CAST({value} AS DOUBLE) BETWEEN -1.7976931348623157e308 AND 1.7976931348623157e308"
        );
        let range = self.ask(table, choice, &format!("SELECT min(x), max(x), avg(x) FROM ({finite})"))?;
        let (Some(min), Some(max)) = (number(&range, 0), number(&range, 1)) else { return Ok(()) };
        (summary.min, summary.max, summary.mean) = (Some(min), Some(max), number(&range, 2));
        // Whole numbers have bins of whole numbers; the last one ends behind the largest.
        let span = max - min;
        let (bins, width) = if whole {
            let width = ((span + 1.0) / BINS as f64).ceil();
            (((span + 1.0) / width).ceil() as i64, width)
        } else if min == max {
            (1, 1.0)
        } else {
            (BINS, span / BINS as f64)
        };
        if !width.is_finite() || width == 0.0 {
            return Ok(());
        }
        let sql = format!(
            "SELECT least(CAST(floor((x - ({min:e})) / {width:e}) AS BIGINT), {}) AS bin, count(*) AS n \
             FROM ({finite}) GROUP BY bin",
            bins - 1
        );
        for bin in 0..bins {
            let from = min + width * bin as f64;
            let to = if bin + 1 == bins && !whole { max } else { from + width };
            summary.bins.push(Bin { from, to, rows: 0 });
        }
        for batch in self.ask(table, choice, &sql)? {
            let [numbers, counts] = [0, 1].map(|column| batch.column(column).as_primitive::<Int64Type>().values());
            for (bin, rows) in numbers.iter().zip(counts) {
                if let Some(bin) = usize::try_from(*bin).ok().and_then(|bin| summary.bins.get_mut(bin)) {
                    bin.rows = *rows as u64;
                }
            }
        }
        Ok(())
    }

    fn ask(&self, table: &Table, choice: &Choice, sql: &str) -> Result<Vec<RecordBatch>, Failure> {
        self.query(table, choice, sql, |chosen| {
            chosen.session.register_table("chosen", chosen.rows.into_view())?;
            let state = chosen.session.state();
            let plan = futures::executor::block_on(state.create_logical_plan(sql))?;
            Ok(DataFrame::new(state, plan))
        })
    }
}

/// Returns a number of the first row of a result; `None` if it is null or not there.
fn number(batches: &[RecordBatch], column: usize) -> Option<f64> {
    let batch = batches.first().filter(|batch| batch.num_rows() > 0)?;
    let values = cast(batch.column(column), &DataType::Float64).ok()?;
    let values = values.as_primitive::<Float64Type>();
    values.is_valid(0).then(|| values.value(0))
}
