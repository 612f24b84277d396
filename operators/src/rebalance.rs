//! `rebalance`: balances rows by group, dropping some rows and repeating others.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use arrow::array::{RecordBatch, StringArray, UInt32Array};
use arrow::compute::{cast, take_record_batch};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use schemars::JsonSchema;
use searchmill_engine::operator::{
    BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs, ParamIssue, Ports,
};
use serde::{Deserialize, Serialize};

use super::shared::columns::id_column;
use super::shared::html::plot::shorten;
use super::shared::issues::unmet;
use super::shared::relation::{Grouping, Keys, ROWS, allot, below, check_keys, columns_checked};

/// Balances rows by group: drops rows from groups that have too many and, if allowed, repeats rows in groups that
/// have too few. Rows keep their order and columns. A repeat follows its row and has `~1`, `~2`, … appended to its
/// text id. The node's seed decides which rows are dropped or repeated once more. The node's summary shows the groups
/// before and after.
pub(crate) struct Rebalance;

/// Parameters of `rebalance`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct RebalanceParams {
    /// Group key: column names or SQL expressions, for example `[tool_calls, turns, question_type]` or
    /// `["least(tool_calls, 4)"]`. NULL is a group.
    pub(crate) by: Vec<String>,
    /// How to size the groups.
    #[serde(default)]
    pub(crate) mode: Mode,
    /// Total number of rows. If a group cannot fill its share, the other groups fill it in proportion. Default: the
    /// largest table with exact proportions.
    #[serde(default)]
    pub(crate) rows: Option<u64>,
    /// Maximum number of times a row appears in the result (1 = rows are only dropped, never repeated).
    #[serde(default = "once")]
    pub(crate) max_repeats: u32,
}

fn once() -> u32 {
    1
}

/// How to size the groups.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Mode {
    /// The same number of rows for each group.
    #[default]
    Uniform,
    /// Rows in proportion to the given ratios. The name of a group is its key values joined with `/`, NULL as `null`:
    /// `{comparison: 2, inference: 1}` or `{2/comparison: 1}`. Unnamed groups are dropped.
    Ratios(BTreeMap<String, f64>),
    /// Rows in proportion to the group's count to the power of 1/temperature: 1 preserves the proportions, higher
    /// temperatures flatten them (as in sampling for multilingual training: Devlin et al. 2018, Conneau et al. 2020).
    Tempered {
        /// Temperature, at least 1.
        temperature: f64,
    },
}

impl Operator for Rebalance {
    type Params = RebalanceParams;
    const NAME: &'static str = "rebalance";
    const VERSION: u32 = 2;
    const ABOUT: &'static str = "Balances rows by group: drops some rows, repeats others.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "Equally many rollouts of each combination of tool calls, turns and type; each row at most three times",
            yaml: "balanced: {op: rebalance, from: good, with: {by: [tool_calls, turns, question_type], rows: 2000, max_repeats: 3}}",
        },
        Example {
            title: "Two comparison questions for each inference question, all others dropped",
            yaml: "mixed: {op: rebalance, from: good, with: {by: [question_type], mode: {ratios: {comparison: 2, inference: 1}}}}",
        },
        Example {
            title: "Proportions between the natural ones and uniform",
            yaml: "gentle: {op: rebalance, from: good, with: {by: [tool_calls], mode: {tempered: {temperature: 2}}, rows: 1000}}",
        },
    ];

    fn declare(params: &RebalanceParams) -> Declaration {
        let ports =
            Ports::new().any_rows_in(ROWS, "rows to balance").same_out(ROWS, ROWS, "balanced rows, in input order");
        let by = params.by.clone();
        Declaration::seeded(ports).issues(issues(params)).gives_plain_columns().checks_columns(move |tables| {
            columns_checked(tables, ROWS, |schema| Keys::new(schema, "by", &by)).into_iter().collect()
        })
    }

    fn open(params: &RebalanceParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

fn issues(params: &RebalanceParams) -> Vec<ParamIssue> {
    let mut issues = check_keys("by", &params.by);
    issues.extend(unmet(&[
        (!params.by.is_empty(), "by", "name at least one column"),
        (params.max_repeats > 0, "max_repeats", "must be at least 1"),
    ]));
    match &params.mode {
        Mode::Tempered { temperature } if !(temperature.is_finite() && *temperature >= 1.0) => {
            let message = format!("must be 1 or more, found {temperature}");
            issues.push(ParamIssue::new("mode.tempered.temperature", message));
        }
        Mode::Ratios(ratios) if !ratios.values().any(|&ratio| ratio > 0.0) => {
            issues.push(ParamIssue::new("mode.ratios", "at least one group needs a ratio above 0"));
        }
        Mode::Ratios(ratios) => {
            for (name, ratio) in ratios {
                if !(ratio.is_finite() && *ratio >= 0.0) {
                    let message = format!("must be 0 or more, found {ratio}");
                    issues.push(ParamIssue::new(format!("mode.ratios.{name}"), message));
                }
            }
        }
        Mode::Uniform | Mode::Tempered { .. } => {}
    }
    issues
}

/// A group with its row counts before and after.
struct Group {
    label: String,
    before: u64,
    after: u64,
}

impl BlockingKernel for RebalanceParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let rows = inputs.rows(ROWS)?;
        // Ids with `~`, from an earlier `rebalance`: repeats must not reuse them.
        let mut taken = HashSet::new();
        let mut grouping = Grouping::new(&rows.schema, "by", &self.by)?;
        let mut members = Vec::new();
        for batch in rows.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            members.extend(grouping.assign(&batch)?);
            if let Some(ids) = id_column(&batch) {
                // Only these can equal the id of a repeat: the set is small.
                taken.extend(ids.iter().flatten().filter(|id| id.contains('~')).map(str::to_owned));
            }
        }
        let groups = self.share(grouping.labels().cloned().collect(), &members)?;
        let copies = draw(&groups, &members, context.seed());
        // The rows are read again: only their groups were held in memory.
        let mut start = 0;
        for batch in rows.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let wanted = &copies[start..start + batch.num_rows()];
            start += batch.num_rows();
            let repeated = repeat(&batch, wanted, &mut taken)?;
            if repeated.num_rows() > 0 {
                outputs.write(ROWS, &repeated)?;
            }
        }
        report(&groups, &copies, outputs);
        Ok(())
    }
}

impl RebalanceParams {
    /// Sizes the groups; `members` has the group of each row.
    fn share(&self, labels: Vec<String>, members: &[u32]) -> Result<Vec<Group>, OperatorError> {
        let mut counts = vec![0_u64; labels.len()];
        for &group in members {
            counts[group as usize] += 1;
        }
        let weights: Vec<f64> = match &self.mode {
            Mode::Uniform => vec![1.0; labels.len()],
            Mode::Tempered { temperature } => {
                counts.iter().map(|&count| (count as f64).powf(1.0 / temperature)).collect()
            }
            Mode::Ratios(ratios) => {
                require_groups(ratios, &labels)?;
                labels.iter().map(|label| ratios.get(label).copied().unwrap_or(0.0)).collect()
            }
        };
        let caps: Vec<u64> = counts.iter().map(|&count| count * u64::from(self.max_repeats)).collect();
        let after = allot(&weights, &caps, self.rows);
        let mut groups = Vec::with_capacity(labels.len());
        for ((label, before), after) in labels.into_iter().zip(counts).zip(after) {
            groups.push(Group { label, before, after });
        }
        Ok(groups)
    }
}

/// Number of times to write each row.
fn draw(groups: &[Group], members: &[u32], seed: u64) -> Vec<u32> {
    let mut rows_of: Vec<Vec<u32>> = groups.iter().map(|group| Vec::with_capacity(group.before as usize)).collect();
    for (row, &group) in members.iter().enumerate() {
        rows_of[group as usize].push(row as u32);
    }
    let mut copies = vec![0_u32; members.len()];
    for (number, (group, rows)) in (0..).zip(groups.iter().zip(&mut rows_of)) {
        let count = rows.len() as u64;
        if count == 0 {
            continue;
        }
        // A stream of its own for each group: what is drawn from it does not depend on the other ones.
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(number);
        // Each row `after / count` times, and once more for `after % count` rows drawn without repeats (a partial
        // Fisher-Yates shuffle).
        let extra = (group.after % count) as usize;
        for index in 0..extra {
            let other = index + below(&mut random, count - index as u64) as usize;
            rows.swap(index, other);
        }
        for (index, &row) in rows.iter().enumerate() {
            copies[row as usize] = (group.after / count) as u32 + u32::from(index < extra);
        }
    }
    copies
}

/// Fails if a ratio names two groups, or no group while some group has no ratio: most likely a misspelt name.
fn require_groups(ratios: &BTreeMap<String, f64>, labels: &[String]) -> Result<(), OperatorError> {
    for name in ratios.keys() {
        // Labels may be equal: NULL and the text `null` have the same one.
        let count = labels.iter().filter(|label| *label == name).count();
        if count > 1 {
            let message = format!("`mode.ratios`: `{name}` is the name of {count} groups");
            return Err(OperatorError::pipeline(message).with_help("add an expression to `by` that distinguishes them"));
        }
    }
    let absent = ratios.keys().find(|name| !labels.contains(name));
    let unnamed = labels.iter().any(|label| !ratios.contains_key(label));
    match absent {
        Some(name) if unnamed => {
            let groups = labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
            Err(OperatorError::pipeline(format!("`mode.ratios`: there is no group `{name}`"))
                .with_help(format!("groups: {groups}; set the ratio of groups to drop to 0")))
        }
        _ => Ok(()),
    }
}

/// Returns `id~1`, or the next free number.
fn next_id(id: &str, number: &mut u32, taken: &mut HashSet<String>) -> String {
    loop {
        *number += 1;
        let name = format!("{id}~{number}");
        if taken.is_empty() || taken.insert(name.clone()) {
            return name;
        }
    }
}

/// Repeats each row of a batch as often as requested.
fn repeat(batch: &RecordBatch, copies: &[u32], taken: &mut HashSet<String>) -> Result<RecordBatch, OperatorError> {
    let places = copies.iter().enumerate().flat_map(|(row, &times)| std::iter::repeat_n(row as u32, times as usize));
    let result = take_record_batch(batch, &UInt32Array::from_iter_values(places))?;
    if copies.iter().all(|&times| times <= 1) {
        return Ok(result);
    }
    let Some(ids) = id_column(batch) else { return Ok(result) };
    let mut named = Vec::with_capacity(result.num_rows());
    for (id, &times) in ids.iter().zip(copies) {
        let mut number = 0;
        for repeat in 0..times {
            named.push(match id {
                Some(id) if repeat > 0 => Some(next_id(id, &mut number, taken)),
                id => id.map(str::to_owned),
            });
        }
    }
    // The type of the column stays: ids may be large strings or views.
    let (schema, mut columns, _) = result.into_parts();
    let place = schema.index_of("id")?;
    columns[place] = cast(&StringArray::from(named), schema.field(place).data_type())?;
    Ok(RecordBatch::try_new(schema, columns)?)
}

/// Characters of a group's label in the table. (A formatted width is limited to 65,535.)
const SHOWN: usize = 60;

/// Reports the groups before and after as a table (largest first), and the figures.
fn report(groups: &[Group], copies: &[u32], outputs: &mut Outputs) {
    let before = groups.iter().map(|group| group.before).sum::<u64>();
    let after = groups.iter().map(|group| group.after).sum::<u64>();
    outputs.figure("groups", groups.len() as f64);
    outputs.figure("rows_before", before as f64);
    outputs.figure("rows_after", after as f64);
    outputs.figure("rows_left_out", copies.iter().filter(|&&times| times == 0).count() as f64);
    outputs.figure("rows_repeated", copies.iter().filter(|&&times| times > 1).count() as f64);
    let width = groups.iter().map(|group| group.label.chars().count()).max().unwrap_or(0).clamp(5, SHOWN);
    let mut text = format!("{:<width$}  {:>8} {:>7}  {:>8} {:>7}\n", "group", "before", "share", "after", "share");
    let mut sorted: Vec<&Group> = groups.iter().collect();
    // Ties by label, so that the table is the same in every run.
    sorted.sort_by(|a, b| b.before.cmp(&a.before).then_with(|| a.label.cmp(&b.label)));
    let lines = sorted.iter().map(|group| (group.label.as_str(), group.before, group.after));
    for (label, old, new) in lines.chain([("all", before, after)]) {
        let label = shorten(label, SHOWN);
        let (old_share, new_share) = (percent(old, before), percent(new, after));
        writeln!(text, "{label:<width$}  {old:>8} {old_share:>7}  {new:>8} {new_share:>7}").ok();
    }
    outputs.summary(&text);
}

fn percent(part: u64, all: u64) -> String {
    if all == 0 { "–".to_owned() } else { format!("{:.1} %", 100.0 * part as f64 / all as f64) }
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::entry;
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, LargeStringArray};
    use searchmill_engine::operator::testing::{Harness, Outcome, batch_input, inputs, rows_input};
    use searchmill_schemas::{RecordKind, Trajectory};
    use serde_json::{Value, json};

    use super::*;
    use crate::shared::relation::testing::{ids, trajectories};

    fn run_seeded(rows: &[Trajectory], params: Value, seed: u64) -> Result<Outcome, OperatorError> {
        let mut harness = Harness::new();
        harness.seed = seed;
        harness.run(&entry::<Rebalance>(), params, &inputs([("rows", rows_input(rows))]))
    }

    fn run(rows: &[Trajectory], params: Value) -> (Vec<Trajectory>, Outcome) {
        let outcome = run_seeded(rows, params, 0).expect("runs");
        (outcome.read("rows"), outcome)
    }

    fn counts(rows: &[Trajectory]) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for row in rows {
            *counts.entry(row.question_type.clone().unwrap_or("null".to_owned())).or_insert(0) += 1;
        }
        counts
    }

    #[test]
    fn uniform_evens_out_without_repeats_by_default() {
        let rows = trajectories(1_000);
        assert_eq!(counts(&rows), [("comparison", 400), ("inference", 400), ("null", 200)].map(owned).into());
        let (balanced, outcome) = run(&rows, json!({"by": ["question_type"]}));
        assert_eq!(counts(&balanced), [("comparison", 200), ("inference", 200), ("null", 200)].map(owned).into());
        let mut all = rows.iter();
        assert!(balanced.iter().all(|row| all.any(|other| other == row)), "whole rows, in input order, none twice");
        assert_eq!(outcome.figures["rows_after"], 600.0);
        assert!(outcome.summary.starts_with("group         before   share     after   share\n"), "{}", outcome.summary);
        assert!(outcome.summary.contains("null             200  20.0 %       200  33.3 %\n"), "{}", outcome.summary);
    }

    fn owned((name, count): (&str, usize)) -> (String, usize) {
        (name.to_owned(), count)
    }

    #[test]
    fn a_group_of_a_long_text_is_cut_in_the_table_alone() {
        let mut rows = trajectories(4);
        for row in &mut rows[..2] {
            row.question_type = Some("x".repeat(70_000));
        }
        let (balanced, outcome) = run(&rows, json!({"by": ["question_type"]}));
        assert!(balanced.iter().any(|row| row.question_type.as_ref().is_some_and(|text| text.len() == 70_000)));
        assert!(outcome.summary.lines().all(|line| line.chars().count() < 120), "{}", outcome.summary);
        assert!(outcome.summary.contains(&format!("{}…  ", "x".repeat(59))), "{}", outcome.summary);
    }

    #[test]
    fn repeats_follow_their_row_with_numbered_ids() {
        let rows = trajectories(5);
        let (balanced, _) = run(&rows, json!({"by": ["question_type"], "rows": 9, "max_repeats": 3}));
        assert_eq!(counts(&balanced).values().collect::<Vec<_>>(), [&3, &3, &3]);
        let third: Vec<_> = ids(&balanced).into_iter().filter(|id| id.starts_with("q2")).collect();
        assert_eq!(third, ["q2@0", "q2@0~1", "q2@0~2"], "the only row without a type");
        let mut copy = balanced.iter().find(|row| row.id == "q2@0~1").expect("a repeat").clone();
        copy.id = "q2@0".to_owned();
        assert_eq!(copy, rows[2]);
    }

    #[test]
    fn rebalancing_twice_never_gives_one_id_to_two_rows() {
        let params = json!({"by": ["question_type"], "rows": 30, "max_repeats": 9});
        let (first, _) = run(&trajectories(5), params.clone());
        let (second, _) = run(&first, json!({"by": ["question_type"], "rows": 90, "max_repeats": 9}));
        assert_eq!(second.len(), 90);
        assert_eq!(ids(&second).into_iter().collect::<HashSet<_>>().len(), 90);
    }

    #[test]
    fn tables_without_ids_or_with_null_ids_repeat_too() {
        let ids: ArrayRef = Arc::new(LargeStringArray::from(vec![Some("a"), None, Some("b")]));
        let kind: ArrayRef = Arc::new(StringArray::from(vec!["x", "y", "y"]));
        let params = json!({"by": ["Some Kind"], "rows": 6, "max_repeats": 3});
        let run = |batch: RecordBatch| {
            let bound = inputs([("rows", batch_input(RecordKind::Table, batch))]);
            Harness::new().run(&entry::<Rebalance>(), params.clone(), &bound).expect("runs").batch("rows")
        };
        let named = run(RecordBatch::try_from_iter([("id", ids), ("Some Kind", Arc::clone(&kind))]).expect("a batch"));
        let found: Vec<_> = named.column(0).as_string::<i64>().iter().map(|id| id.map(str::to_owned)).collect();
        assert_eq!(found[..3], [Some("a".to_owned()), Some("a~1".to_owned()), Some("a~2".to_owned())]);
        assert_eq!(found[3..].iter().filter(|id| id.is_none()).count() + found[3..].iter().flatten().count(), 3);
        assert!(!found.contains(&Some(String::new())));
        assert_eq!(run(RecordBatch::try_from_iter([("Some Kind", kind)]).expect("a batch")).num_rows(), 6);
    }

    #[test]
    fn ratios_temperature_and_expressions() {
        let rows = trajectories(1_000);
        let ratios = json!({"by": ["question_type"], "mode": {"ratios": {"comparison": 2, "null": 1, "inference": 0}}});
        assert_eq!(counts(&run(&rows, ratios).0), [("comparison", 400), ("null", 200)].map(owned).into());
        let natural = json!({"by": ["question_type"], "mode": {"tempered": {"temperature": 1}}});
        assert_eq!(run(&rows, natural).0, rows, "temperature 1 leaves everything");
        let tempered = json!({"by": ["question_type"], "mode": {"tempered": {"temperature": 2}}, "rows": 500});
        assert_eq!(
            counts(&run(&rows, tempered).0),
            [("comparison", 185), ("inference", 185), ("null", 130)].map(owned).into(),
            "√400 : √400 : √200"
        );
        let by = json!({"by": ["tool_calls > 1", "question_type"], "rows": 60});
        let outcome = run(&rows, by).1;
        assert!(outcome.summary.contains("\ntrue/comparison "), "{}", outcome.summary);
        assert_eq!(outcome.figures["groups"], 6.0);
    }

    #[test]
    fn the_seed_decides_and_nothing_else() {
        let rows = trajectories(300);
        let draw = |seed| run_seeded(&rows, json!({"by": ["tool_calls"], "rows": 50}), seed).expect("runs");
        assert_eq!(draw(3).read::<Trajectory>("rows"), draw(3).read::<Trajectory>("rows"));
        assert_ne!(draw(3).read::<Trajectory>("rows"), draw(4).read::<Trajectory>("rows"));
    }

    #[test]
    fn empty_input_and_mistakes() {
        let (none, outcome) = run(&[], json!({"by": ["question_type"], "rows": 10}));
        assert!(none.is_empty());
        assert_eq!(outcome.figures["rows_after"], 0.0);
        let rows = trajectories(10);
        let fails = |params: Value| run_seeded(&rows, params, 0).expect_err("a mistake");
        let typo = fails(json!({"by": ["question_type"], "mode": {"ratios": {"comparision": 1, "inference": 1}}}));
        assert_eq!(typo.message, "`mode.ratios`: there is no group `comparision`");
        let mut rows = trajectories(10);
        rows[0].question_type = Some("null".to_owned());
        let two = json!({"by": ["question_type"], "mode": {"ratios": {"comparison": 1, "inference": 1, "null": 1}}});
        let two = run_seeded(&rows, two, 0).expect_err("NULL and a text");
        assert_eq!(two.message, "`mode.ratios`: `null` is the name of 2 groups");
        assert!(fails(json!({"by": ["tool_cals"]})).help.expect("help").contains("did you mean `tool_calls`?"));
        for (params, path) in [
            (json!({"by": []}), "by: "),
            (json!({"by": ["id"], "max_repeats": 0}), "max_repeats: "),
            (json!({"by": ["id"], "mode": {"tempered": {"temperature": 0.5}}}), "mode.tempered.temperature: "),
            (json!({"by": ["id"], "mode": {"ratios": {"a": -1, "b": 1}}}), "mode.ratios.a: "),
            (json!({"by": ["length("]}), "by.0: "),
        ] {
            assert!(fails(params.clone()).message.starts_with(path), "{params}");
        }
    }
}
