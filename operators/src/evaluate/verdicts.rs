//! Verdicts of judges: the share of right answers by each, and how far two of them agree.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use searchmill_engine::operator::OperatorError;

use super::scored::Scored;
use crate::shared::html::plot::Estimate;
use crate::shared::statistics::{Bootstrap, Measure, intervals};

/// Returns the verdicts of each row, in the order of `columns`. Null, and a text that is no verdict, is `None`.
///
/// # Errors
/// Fails if a column is missing or of a type without verdicts.
pub(super) fn of_rows(batch: &RecordBatch, columns: &[String]) -> Result<Vec<Vec<Option<bool>>>, OperatorError> {
    let mut rows = vec![Vec::with_capacity(columns.len()); batch.num_rows()];
    for name in columns {
        let Some(column) = batch.column_by_name(name) else {
            let known: Vec<_> = batch.schema().fields().iter().map(|field| format!("`{}`", field.name())).collect();
            let (message, known) = (format!("`verdicts`: the trajectories have no column `{name}`"), known.join(", "));
            let help = format!("columns: {known}. `judge` adds `judged`; `columns:` of `read` adds stored verdicts");
            return Err(OperatorError::pipeline(message).with_help(help));
        };
        let kind = column.data_type();
        let texts = cast(column, &DataType::Utf8).map_err(|_| {
            let message = format!("`verdicts`: the column `{name}` is {kind}, not booleans, numbers or texts");
            OperatorError::pipeline(message)
        })?;
        for (row, text) in rows.iter_mut().zip(texts.as_string::<i32>()) {
            row.push(text.and_then(verdict));
        }
    }
    Ok(rows)
}

fn verdict(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        // `cast` writes booleans as `true`; pandas stores integers with missing values as floats, such as `1.0`.
        "true" | "correct" | "yes" | "1" | "1.0" => Some(true),
        "false" | "incorrect" | "no" | "0" | "0.0" => Some(false),
        _ => None,
    }
}

/// Fails if a column has no verdict in any row.
pub(super) fn require(rows: &[Scored], columns: &[String]) -> Result<(), OperatorError> {
    for (index, name) in columns.iter().enumerate() {
        // Most likely a wrong column or another spelling of verdicts; the share would be a mean of no rows.
        if !rows.is_empty() && rows.iter().all(|row| row.verdicts[index].is_none()) {
            return Err(OperatorError::pipeline(format!("`verdicts`: no row has a verdict in the column `{name}`"))
                .with_help("a verdict is a boolean, 1 or 0, or a text such as `True`, `incorrect` or `yes`"));
        }
    }
    Ok(())
}

/// Number of rows without a verdict, for each column.
pub(super) fn absent(rows: &[Scored], columns: &[String]) -> Vec<(String, usize)> {
    let columns = columns.iter().enumerate();
    columns.map(|(i, name)| (name.clone(), rows.iter().filter(|row| row.verdicts[i].is_none()).count())).collect()
}

fn pairs(count: usize) -> Vec<(usize, usize)> {
    (0..count).flat_map(|one| (one + 1..count).map(move |other| (one, other))).collect()
}

/// Names of the means: the share of right answers in each column, and the share of equal verdicts in every two.
pub(super) fn names(columns: &[String]) -> Vec<String> {
    let pairs = pairs(columns.len()).into_iter();
    let agreements = pairs.map(|(one, other)| format!("agreement/{}/{}", columns[one], columns[other]));
    columns.iter().map(|name| format!("verdict/{name}")).chain(agreements).collect()
}

/// Values of a row, in the order of [`names`].
pub(super) fn values(verdicts: &[Option<bool>]) -> Vec<Option<f64>> {
    let mut values: Vec<Option<f64>> = verdicts.iter().map(|verdict| verdict.map(f64::from)).collect();
    for (one, other) in pairs(verdicts.len()) {
        // Rows with one verdict of the two say nothing about their agreement.
        values.push(verdicts[one].zip(verdicts[other]).map(|(one, other)| f64::from(one == other)));
    }
    values
}

/// Whether a measure of this name is made of verdicts.
pub(super) fn is_of_verdicts(name: &str) -> bool {
    ["verdict/", "agreement/", "kappa/"].iter().any(|start| name.starts_with(start))
}

/// Rows with two verdicts: their number, those that the one calls right, the other, and both.
#[derive(Clone, Copy, Default)]
struct Table([f64; 4]);

impl Table {
    fn sum(tables: impl IntoIterator<Item = Self>) -> Self {
        let mut sum = Self::default();
        for table in tables {
            for (sum, value) in sum.0.iter_mut().zip(table.0) {
                *sum += value;
            }
        }
        sum
    }

    fn of(rows: &[&Scored], one: usize, other: usize) -> Self {
        Self::sum(rows.iter().filter_map(|row| {
            let (one, other) = (row.verdicts[one]?, row.verdicts[other]?);
            Some(Self([true, one, other, one && other].map(f64::from)))
        }))
    }

    /// Cohen's kappa (Cohen 1960, Educational and Psychological Measurement 20(1), 37–46): the agreement beyond that of
    /// chance, over the most that is possible. `None` if chance alone makes the two agree always.
    fn kappa(&self) -> Option<f64> {
        let [all, one, other, both] = self.0;
        let observed = (both + (all - one - other + both)) / all;
        let by_chance = (one * other + (all - one) * (all - other)) / (all * all);
        // Without rows, both shares are 0 / 0.
        if all > 0.0 && by_chance < 1.0 { Some((observed - by_chance) / (1.0 - by_chance)) } else { None }
    }
}

/// Cohen's kappa of every two columns, with intervals over questions. `rows` are sorted by question.
pub(super) fn kappas(rows: &[&Scored], columns: &[String], bootstrap: &Bootstrap, stream: u64) -> Vec<Measure> {
    let mut measures = Vec::new();
    for (one, other) in pairs(columns.len()) {
        // A table for each question: a resample draws whole questions.
        let questions = rows.chunk_by(|row, next| row.question_id == next.question_id);
        let tables: Vec<Table> = questions.map(|rows| Table::of(rows, one, other)).collect();
        let whole = Table::sum(tables.iter().copied());
        let Some(value) = whole.kappa() else { continue };
        let ends = intervals(tables.len(), bootstrap, stream, |drawn| {
            vec![Table::sum(drawn.iter().map(|question| tables[*question])).kappa()]
        });
        for (low, high) in ends {
            let estimate = Estimate { value, low, high, count: whole.0[0] as usize };
            measures.push((format!("kappa/{}/{}", columns[one], columns[other]), estimate));
        }
    }
    measures
}

#[cfg(test)]
mod tests {
    use searchmill_fixtures::trajectories::trajectory;

    use super::*;

    fn row(question: usize, verdicts: [Option<bool>; 2]) -> Scored {
        let scored = Scored::of(&trajectory(&format!("q{question:03}"), 0, "x", "x"), 0.8);
        Scored { verdicts: verdicts.into(), ..scored }
    }

    /// The example of Cohen's kappa with 20 and 15 agreements, 5 and 10 disagreements: 0.7 observed, 0.5 by chance.
    fn example() -> Vec<Scored> {
        let cells = [(20, true, true), (5, true, false), (10, false, true), (15, false, false)];
        let verdicts = cells.into_iter().flat_map(|(count, one, other)| std::iter::repeat_n([one, other], count));
        verdicts.enumerate().map(|(place, verdicts)| row(place, verdicts.map(Some))).collect()
    }

    #[test]
    fn kappa_by_hand() {
        let columns = ["a", "b"].map(str::to_owned);
        let mut rows = example();
        rows.push(row(998, [None, Some(true)]));
        let rows: Vec<&Scored> = rows.iter().collect();
        let bootstrap = Bootstrap { resamples: 500, confidence: 0.95, seed: 1 };
        let [(name, kappa)] = <[Measure; 1]>::try_from(kappas(&rows, &columns, &bootstrap, 3)).unwrap();
        assert_eq!((name.as_str(), kappa.count), ("kappa/a/b", 50), "a row without both verdicts does not count");
        assert!((kappa.value - 0.4).abs() < 1e-12, "{kappa:?}");
        // The large-sample standard error is sqrt(0.7 · 0.3 / 50) / 0.5 = 0.13.
        assert!((0.05..0.25).contains(&kappa.low.unwrap()) && (0.55..0.75).contains(&kappa.high.unwrap()), "{kappa:?}");
        let same: Vec<_> = (0..3).map(|place| row(place, [Some(true), Some(true)])).collect();
        assert!(kappas(&same.iter().collect::<Vec<_>>(), &columns, &bootstrap, 3).is_empty(), "always agree by chance");
        assert!(kappas(&rows, &columns[..1], &bootstrap, 3).is_empty());
    }

    #[test]
    fn names_and_values_belong_together() {
        let columns = ["a", "b", "c"].map(str::to_owned);
        let named: Vec<_> = names(&columns).into_iter().zip(values(&[Some(true), Some(false), None])).collect();
        let wanted = [
            ("verdict/a", Some(1.0)),
            ("verdict/b", Some(0.0)),
            ("verdict/c", None),
            ("agreement/a/b", Some(0.0)),
            ("agreement/a/c", None),
            ("agreement/b/c", None),
        ];
        assert_eq!(named, wanted.map(|(name, value)| (name.to_owned(), value)));
    }

    #[test]
    fn what_counts_as_a_verdict() {
        let read = |text: &str| verdict(text);
        assert_eq!([" True", "CORRECT", "1", "yes"].map(read), [Some(true); 4]);
        assert_eq!(["False\n", "incorrect", "0.0", "no"].map(read), [Some(false); 4]);
        assert_eq!(["", "maybe", "2", "It is true"].map(read), [None; 4]);
    }
}
