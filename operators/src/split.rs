//! `split`: splits rows into disjoint parts (train, dev, test).

mod assignment;
mod params;

use std::collections::{BTreeMap, HashMap};

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch, StringArray};
use arrow::compute::{cast, filter_record_batch};
use arrow::datatypes::DataType;
use searchmill_engine::operator::{
    BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs, ParamIssue, Ports,
    RowsInput,
};
use searchmill_schemas::text_value;

use super::shared::forest::Forest;
use super::shared::issues::{refused, unmet};
use assignment::{Unit, balanced, by_position};
use params::{By, PartSize, SplitParams, share_of};

/// Splits rows into disjoint parts.
pub struct Split;

impl Operator for Split {
    type Params = SplitParams;
    const NAME: &'static str = "split";
    const VERSION: u32 = 2;
    const ABOUT: &'static str = "Splits rows into disjoint parts: by row, by group, or so that no document is shared.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "Nine tenths for training, one for testing",
            yaml: "parts: {op: split, from: questions, with: {parts: {train: 0.9, test: 0.1}}}",
        },
        Example {
            title: "200 test questions whose evidence is in no training question",
            yaml: "parts: {op: split, from: questions, with: {parts: {test: 200, train: rest}, by: document}}",
        },
        Example {
            title: "Each question type in a single part",
            yaml: "parts: {op: split, from: questions, with: {parts: {seen: 0.8, unseen: 0.2}, by: {group: question_type}}}",
        },
    ];

    fn declare(params: &SplitParams) -> Declaration {
        Declaration::seeded(ports(params)).issues(issues(params)).gives_plain_columns()
    }

    fn open(params: &SplitParams, inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        check_input(params, inputs.rows("rows")?)?;
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

fn ports(params: &SplitParams) -> Ports {
    let ports = Ports::new().equal_outputs().any_rows_in("rows", "rows with an `id` (or the column that `by` names)");
    params.parts.keys().fold(ports, |ports, part| ports.same_out(part, "rows", "the rows of this part, in input order"))
}

fn issues(params: &SplitParams) -> Vec<ParamIssue> {
    let mut issues: Vec<ParamIssue> = params.parts.iter().filter_map(|(name, size)| check_part(name, *size)).collect();
    let help = "write `parts: {train: 0.9, test: 0.1}`";
    issues.extend(refused(&[(params.parts.is_empty(), "parts", "no part is named", help)]));
    issues.extend(check_shares(&params.parts));
    issues.extend(unmet(&[(params.by != By::Group(String::new()), "by.group", "expected a column name")]));
    issues
}

fn check_part(name: &str, size: PartSize) -> Option<ParamIssue> {
    let path = format!("parts.{name}");
    let first = name.starts_with(|c: char| c.is_ascii_lowercase());
    if !first || !name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-') {
        return Some(ParamIssue::new(path, "a part's name is an output port: lower-case letters, digits, `_` and `-`"));
    }
    match size {
        _ if name == "rejects" => Some(ParamIssue::new(path, "`rejects` is reserved for rejected rows")),
        PartSize::Rows(0) => Some(ParamIssue::new(path, "must be at least 1 row")),
        PartSize::Share(share) if !(share > 0.0 && share <= 1.0) => {
            Some(ParamIssue::new(path, format!("a share must be above 0 and at most 1, found {share}")))
        }
        _ => None,
    }
}

fn check_shares(parts: &BTreeMap<String, PartSize>) -> Option<ParamIssue> {
    let shares: Vec<f64> = parts.values().filter_map(|size| share_of(*size)).collect();
    let sum: f64 = shares.iter().sum();
    let rests = parts.values().filter(|size| matches!(size, PartSize::Rest(_))).count();
    let message = match rests {
        // Row counts alone may leave rows over.
        0 if !shares.is_empty() && (sum - 1.0).abs() > 1e-9 => format!("the shares add up to {sum}, not to 1"),
        1 if sum > 1.0 - 1e-9 => format!("the shares add up to {sum}: nothing is left for `rest`"),
        0 | 1 => return None,
        _ => "only one part can be `rest`".to_owned(),
    };
    Some(ParamIssue::new("parts", message).with_help("write one part as `rest`, for example `train: rest`"))
}

fn check_input(params: &SplitParams, rows: &RowsInput) -> Result<(), OperatorError> {
    let names: Vec<&str> = rows.schema.fields().iter().map(|field| field.name().as_str()).collect();
    let missing = match &params.by {
        By::Row if !names.contains(&"id") => "`by: row` needs a column `id`".to_owned(),
        By::Group(column) if !names.contains(&column.as_str()) => {
            format!("there is no column `{column}` to split by")
        }
        By::Document if !names.contains(&"evidence") && !names.contains(&"document_id") => {
            "`by: document` needs a column `evidence` or `document_id`".to_owned()
        }
        _ => return Ok(()),
    };
    Err(OperatorError::pipeline(format!("{missing}; the {} rows have: {}", rows.kind, names.join(", "))))
}

impl BlockingKernel for SplitParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let rows = inputs.rows("rows")?;
        let (units, unit_of_row) = self.units(rows, context)?;
        let sizes: Vec<PartSize> = self.parts.values().copied().collect();
        let assigned = match self.by {
            By::Document => balanced(&units, &sizes),
            By::Row | By::Group(_) => by_position(&units, &sizes),
        };
        let mut counts = vec![0; self.parts.len()];
        let mut first = 0;
        for batch in rows.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let units = &unit_of_row[first..first + batch.num_rows()];
            first += batch.num_rows();
            for (part, name) in self.parts.keys().enumerate() {
                let mask = units.iter().map(|unit| Some(assigned[*unit as usize] == Some(part)));
                let selected = filter_record_batch(&batch, &mask.collect::<BooleanArray>())?;
                counts[part] += selected.num_rows() as u64;
                if selected.num_rows() > 0 {
                    outputs.write(name, &selected)?;
                }
            }
        }
        for (name, count) in self.parts.keys().zip(&counts) {
            // A part without rows has columns too.
            if *count == 0 {
                outputs.write(name, &RecordBatch::new_empty(rows.schema.clone()))?;
            }
        }
        self.report(&units, &counts, rows.rows, outputs);
        Ok(())
    }
}

impl SplitParams {
    /// The units that must stay together, and the unit of each row.
    fn units(&self, rows: &RowsInput, context: &Context) -> Result<(Vec<Unit>, Vec<u32>), OperatorError> {
        let column = match &self.by {
            By::Row => "id",
            By::Group(column) => column,
            By::Document => return linked_units(rows, context),
        };
        let mut names: HashMap<String, u32> = HashMap::new();
        let (mut units, mut unit_of_row) = (Vec::new(), Vec::new());
        for batch in rows.batches() {
            let values = texts(&batch?, column)?;
            for row in 0..values.len() {
                // Rows without a value are one group: no text of a column is likely to be a NUL.
                let name = text_value(&values, row).unwrap_or("\0");
                let unit = *names.entry(name.to_owned()).or_insert_with(|| {
                    units.push(Unit::new(context.seed(), name, true));
                    units.len() as u32 - 1
                });
                units[unit as usize].rows += 1;
                unit_of_row.push(unit);
            }
        }
        Ok((units, unit_of_row))
    }

    fn report(&self, units: &[Unit], counts: &[u64], total: u64, outputs: &mut Outputs) {
        let all = total.max(1) as f64;
        let mut text = String::from("part            rows    share  wanted\n");
        for ((name, size), count) in self.parts.iter().zip(counts) {
            let wanted = match size {
                PartSize::Rows(rows) => format!("{rows} rows"),
                PartSize::Share(share) => format!("{:.1} %", 100.0 * share),
                PartSize::Rest(_) => "rest".to_owned(),
            };
            text += &format!("{name:<12} {count:>7} {:>6.1} %  {wanted}\n", 100.0 * *count as f64 / all);
            outputs.figure(&format!("rows_{name}"), *count as f64);
        }
        let left = total - counts.iter().sum::<u64>();
        if left > 0 {
            text += &format!("{:<12} {left:>7} {:>6.1} %\n", "(no part)", 100.0 * left as f64 / all);
        }
        if self.by != By::Row {
            let groups: Vec<u64> = units.iter().filter(|unit| unit.linked).map(|unit| unit.rows).collect();
            let largest = groups.iter().copied().max().unwrap_or(0);
            text += &format!("{} groups kept together, the largest of {largest} rows\n", groups.len());
            outputs.figure("largest_group", largest as f64);
        }
        outputs.summary(&text);
    }
}

/// Returns a column as text.
fn texts(batch: &RecordBatch, name: &str) -> Result<StringArray, OperatorError> {
    let column = batch.column_by_name(name);
    let column = column.ok_or_else(|| OperatorError::data(format!("there is no column `{name}`")))?;
    Ok(cast(column, &DataType::Utf8)?.as_string::<i32>().clone())
}

/// Units of rows that share a document, directly or through other rows.
fn linked_units(rows: &RowsInput, context: &Context) -> Result<(Vec<Unit>, Vec<u32>), OperatorError> {
    let (mut forest, mut first_row) = (Forest::new(rows.rows as u32), HashMap::new());
    let (mut ids, mut linked, mut unnamed) = (Vec::new(), Vec::new(), 0);
    for batch in rows.batches() {
        context.check_cancelled()?;
        let batch = batch?;
        let keys = document_keys(&batch)?;
        let named = if batch.column_by_name("id").is_some() { Some(texts(&batch, "id")?) } else { None };
        for (place, keys) in keys.into_iter().enumerate() {
            let row = ids.len() as u32;
            unnamed += usize::from(keys.is_empty());
            linked.push(!keys.is_empty());
            for key in keys {
                forest.join(row, *first_row.entry(key).or_insert(row));
            }
            // Without ids, the number of the row ranks it.
            ids.push(match &named {
                Some(named) => named.value(place).to_owned(),
                None => row.to_string(),
            });
        }
    }
    let rows = ids.len();
    // Rows that name no document can go to any part.
    if unnamed > 0 && unnamed == rows {
        let message = format!("none of the {rows} rows names a document, so `by: document` cannot split by it");
        let help = "documents are named by `document_id` (chunks, hits) or by `document_id` or `title` in `evidence` \
                    (questions); fix the columns in `read`, or write `by: row`";
        return Err(OperatorError::data(message).with_help(help));
    }
    if unnamed > 0 {
        // A few questions without evidence are normal: unanswerable ones.
        let severity = if 2 * unnamed >= rows { "warning: " } else { "" };
        let place = "`by: document` puts them into any part";
        context.progress().log(&format!("{severity}{unnamed} of {rows} rows name no document: {place}"));
    }
    let (mut units, mut unit_of_row, mut unit_of_root) = (Vec::new(), Vec::with_capacity(rows), HashMap::new());
    for (row, id) in ids.iter().enumerate() {
        let root = forest.root(row as u32);
        // Units are numbered by their first row, whose id ranks the unit. A row without keys is alone in its unit, so
        // the root speaks for all of its rows.
        let unit = *unit_of_root.entry(root).or_insert_with(|| {
            units.push(Unit::new(context.seed(), id, linked[root as usize]));
            units.len() as u32 - 1
        });
        units[unit as usize].rows += 1;
        unit_of_row.push(unit);
    }
    Ok((units, unit_of_row))
}

/// Returns the documents that each row refers to: `d` plus an id, or `t` plus a title.
fn document_keys(batch: &RecordBatch) -> Result<Vec<Vec<String>>, OperatorError> {
    let mut keys = vec![Vec::new(); batch.num_rows()];
    let Some(evidence) = batch.column_by_name("evidence").and_then(|column| column.as_list_opt::<i32>()) else {
        for (keys, id) in keys.iter_mut().zip(&texts(batch, "document_id")?) {
            if let Some(id) = id
                && !id.is_empty()
            {
                keys.push(format!("d{id}"));
            }
        }
        return Ok(keys);
    };
    for (row, keys) in keys.iter_mut().enumerate() {
        let entries = evidence.value(row);
        let Some(entries) = entries.as_struct_opt() else {
            return Err(OperatorError::data("`evidence` is not a list of objects"));
        };
        // An id and a title may be equal without naming the same document.
        for (field, mark) in [("document_id", 'd'), ("title", 't')] {
            let values = entries.column_by_name(field).and_then(|column| column.as_string_opt::<i32>());
            for value in values.into_iter().flatten().flatten() {
                if !value.is_empty() {
                    keys.push(format!("{mark}{value}"));
                }
            }
        }
    }
    Ok(keys)
}

#[cfg(test)]
mod tests;
