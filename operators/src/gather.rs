//! `gather`: puts tables below each other, with columns that say where a row comes from.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, new_null_array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use schemars::JsonSchema;
use searchmill_engine::operator::{
    Accept, BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs,
    ParamIssue, Ports, RowsInput, Tables,
};
use searchmill_schemas::{RecordKind, cast_exactly};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::shared::columns::id_column;
use super::shared::relation::ROWS;

/// Puts the rows of named inputs below each other, in the order of `tables`, and adds columns that say which input a
/// row comes from. The inputs have the same record kind. A column that an input lacks is NULL in its rows.
///
/// Ids are unique in a table, so a row's id gets `~` and the name of its input: `q7@0~size=100`. Ids of parents
/// (`question_id`, …) stay as they are. Kinds without ids (hits, scores, metrics, tables) are not changed.
///
/// An input of another operator that takes one table and is given all variants of a node with a `matrix` gets them
/// through such a node (`NODE@all`), which nobody has to write.
pub(crate) struct Gather;

/// Parameters of `gather`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct GatherParams {
    /// Names of the added columns.
    pub(crate) columns: Vec<String>,
    /// The inputs, in the order of their rows.
    pub(crate) tables: Vec<Gathered>,
}

/// One input of `gather`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct Gathered {
    /// Name of the input in `from:`.
    pub(crate) name: String,
    /// Its values of the added columns, in their order: text, numbers, `true`, `false` or `null`. A column is a number
    /// if all its values are.
    pub(crate) values: Vec<Value>,
}

impl Operator for Gather {
    type Params = GatherParams;
    const NAME: &'static str = "gather";
    const VERSION: u32 = 3;
    const GATHERS: bool = true;
    const ABOUT: &'static str = "Puts tables below each other, with columns that say where a row comes from.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "Two data sets as one, with a column `source`",
            yaml: "both: {op: gather, from: {nq: nq, hotpotqa: hotpotqa}, with: {columns: [source], tables: [{name: nq, values: [nq]}, {name: hotpotqa, values: [hotpotqa]}]}}",
        },
        Example {
            title: "Scores of two runs with two settings each",
            yaml: "all: {op: gather, from: {a: first, b: second}, with: {columns: [model, size], tables: [{name: b, values: [big, 7]}, {name: a, values: [small, 1.5]}]}}",
        },
    ];

    fn declare(params: &GatherParams) -> Declaration {
        let first = params.tables.first().map_or_else(String::new, |table| table.name.clone());
        // The result has the kind of the first input; the run checks that all inputs have it.
        let ports = Ports::new().named_inputs(Accept::AnyRows).same_out(ROWS, &first, "the rows of all inputs");
        let (named, given, checked) = (params.clone(), params.clone(), params.clone());
        Declaration::pure(ports)
            .issues(issues(params))
            .checks_inputs(move |inputs| input_issues(&named, inputs))
            .checks_columns(move |tables| {
                // Inputs that are known already may disagree, whatever the others have.
                let known: Vec<&SchemaRef> =
                    checked.tables.iter().filter_map(|table| tables.get(&table.name)).collect();
                let Err(error) = united(&checked, &known) else { return Vec::new() };
                vec![ParamIssue { help: error.help, ..ParamIssue::new("", error.message) }]
            })
            .gives(move |tables| {
                let known: Option<Vec<&SchemaRef>> = given.tables.iter().map(|table| tables.get(&table.name)).collect();
                // One unknown input may have any columns: then those of the result are unknown too.
                let Some(Ok(schema)) = known.map(|known| united(&given, &known)) else { return Tables::new() };
                Tables::from([(ROWS.to_owned(), schema)])
            })
    }

    fn open(params: &GatherParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

fn issues(params: &GatherParams) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    for (place, column) in params.columns.iter().enumerate() {
        if params.columns[..place].contains(column) {
            issues.push(ParamIssue::new(format!("columns.{place}"), format!("the column `{column}` is there twice")));
        }
    }
    if params.tables.is_empty() {
        issues.push(ParamIssue::new("tables", "there are no tables").with_help("name the inputs of `from:`"));
    }
    for (index, table) in params.tables.iter().enumerate() {
        if params.tables[..index].iter().any(|other| other.name == table.name) {
            let message = format!("the input `{}` is there twice", table.name);
            issues.push(ParamIssue::new(format!("tables.{index}.name"), message));
        }
        let (count, wanted) = (table.values.len(), params.columns.len());
        if count != wanted {
            let message = format!("`{}` has {count} values for {wanted} columns", table.name);
            issues.push(ParamIssue::new(format!("tables.{index}.values"), message));
        }
        if table.values.iter().any(|value| value.is_array() || value.is_object()) {
            let issue = format!("a value of `{}` is a list or a map", table.name);
            let issue = ParamIssue::new(format!("tables.{index}.values"), issue);
            issues.push(issue.with_help("write text or a number"));
        }
    }
    issues
}

fn input_issues(params: &GatherParams, inputs: &[&str]) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    for (index, table) in params.tables.iter().enumerate() {
        if !inputs.contains(&table.name.as_str()) {
            let message = format!("there is no input `{}`", table.name);
            issues.push(ParamIssue::new(format!("tables.{index}.name"), message).with_help("name it in `from:`"));
        }
    }
    for name in inputs {
        if params.tables.iter().all(|table| table.name != *name) {
            let issue = ParamIssue::new("tables", format!("the input `{name}` is not in `tables`"));
            issues.push(issue.with_help("add it, or remove it"));
        }
    }
    issues
}

/// Returns the columns of all inputs, then the added ones.
fn united(params: &GatherParams, schemas: &[&SchemaRef]) -> Result<SchemaRef, OperatorError> {
    let mut fields: Vec<Field> = Vec::new();
    for field in schemas.iter().flat_map(|schema| schema.fields()) {
        if params.columns.contains(field.name()) {
            let message = format!("the rows already have a column `{}`", field.name());
            let help = "rename the key of the matrix, or the column by `sql`";
            return Err(OperatorError::pipeline(message).with_help(help));
        }
        match fields.iter_mut().find(|known| known.name() == field.name()) {
            None => fields.push(field.as_ref().clone()),
            Some(known) => {
                *known = Field::new(known.name(), common(known, field)?, known.is_nullable() || field.is_nullable());
            }
        }
    }
    for field in &mut fields {
        let is_lacking = schemas.iter().any(|schema| schema.column_with_name(field.name()).is_none());
        field.set_nullable(field.is_nullable() || is_lacking);
    }
    for (index, name) in params.columns.iter().enumerate() {
        fields.push(Field::new(name, type_of(params, index), true));
    }
    Ok(Arc::new(Schema::new(fields)))
}

/// Returns the type for the values of both columns.
fn common(one: &Field, other: &Field) -> Result<DataType, OperatorError> {
    match (one.data_type(), other.data_type()) {
        (one, other) if one == other => Ok(one.clone()),
        (DataType::Null, known) | (known, DataType::Null) => Ok(known.clone()),
        // An unsigned number beyond the range is an error when its row is read.
        (one, other) if one.is_integer() && other.is_integer() => Ok(DataType::Int64),
        (one, other) if one.is_numeric() && other.is_numeric() => Ok(DataType::Float64),
        (mine, theirs) => {
            let message = format!("the column `{}` is {mine} in one input and {theirs} in another", one.name());
            Err(OperatorError::data(message).with_help("give it one type by `sql`: `CAST(… AS …)`"))
        }
    }
}

/// Returns the type of an added column: that of all its values.
fn type_of(params: &GatherParams, index: usize) -> DataType {
    let mut values: Vec<&Value> = params.tables.iter().filter_map(|table| table.values.get(index)).collect();
    values.retain(|value| !value.is_null());
    if values.is_empty() {
        DataType::Utf8
    } else if values.iter().all(|value| value.is_i64()) {
        DataType::Int64
    } else if values.iter().all(|value| value.is_number()) {
        DataType::Float64
    } else if values.iter().all(|value| value.is_boolean()) {
        DataType::Boolean
    } else {
        DataType::Utf8
    }
}

/// Returns a column with one value in all rows.
fn constant(value: &Value, data_type: &DataType, rows: usize) -> ArrayRef {
    match data_type {
        DataType::Int64 => Arc::new(Int64Array::from(vec![value.as_i64(); rows])),
        DataType::Float64 => Arc::new(Float64Array::from(vec![value.as_f64(); rows])),
        DataType::Boolean => Arc::new(BooleanArray::from(vec![value.as_bool(); rows])),
        _ => {
            let text = match value {
                Value::Null => None,
                Value::String(text) => Some(text.clone()),
                other => Some(other.to_string()),
            };
            Arc::new(StringArray::from(vec![text.as_deref(); rows]))
        }
    }
}

impl BlockingKernel for GatherParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let tables: Vec<&RowsInput> =
            self.tables.iter().map(|table| inputs.rows(&table.name)).collect::<Result<_, _>>()?;
        let Some(kind) = tables.first().map(|table| table.kind) else { return Ok(()) };
        for (gathered, table) in self.tables.iter().zip(&tables) {
            if table.kind != kind {
                let (one, other, first) = (&gathered.name, table.kind, &self.tables[0].name);
                let message = format!("`{one}` has {other} rows, `{first}` has {kind} rows");
                return Err(OperatorError::pipeline(message).with_help("only rows of one kind can be gathered"));
            }
        }
        let schemas: Vec<&SchemaRef> = tables.iter().map(|table| &table.schema).collect();
        let schema = united(self, &schemas)?;
        if tables.iter().all(|table| table.rows == 0) {
            // Later nodes may refer to the columns.
            outputs.write(ROWS, &RecordBatch::new_empty(Arc::clone(&schema)))?;
        }
        for (gathered, table) in self.tables.iter().zip(&tables) {
            for batch in table.batches() {
                context.check_cancelled()?;
                let batch = batch?;
                let columns = schema.fields().iter().map(|field| self.column(field, gathered, kind, &batch));
                let columns = columns.collect::<Result<Vec<_>, _>>()?;
                outputs.write(ROWS, &RecordBatch::try_new(Arc::clone(&schema), columns)?)?;
            }
        }
        Ok(())
    }
}

impl GatherParams {
    /// Returns a column of the result for rows of one input.
    fn column(
        &self,
        field: &Field,
        gathered: &Gathered,
        kind: RecordKind,
        batch: &RecordBatch,
    ) -> Result<ArrayRef, OperatorError> {
        let (name, wanted) = (field.name(), field.data_type());
        if let Some(index) = self.columns.iter().position(|column| column == name)
            && let Some(value) = gathered.values.get(index)
        {
            return Ok(constant(value, wanted, batch.num_rows()));
        }
        if kind.id_column() == Some(name) {
            // Two inputs may have the same ids, which are unique in a table.
            let ids = id_column(batch).ok_or_else(|| OperatorError::data("the ids are not text"))?;
            let named = ids.iter().map(|id| id.map(|id| searchmill_schemas::gathered(id, &gathered.name)));
            return Ok(Arc::new(named.collect::<StringArray>()));
        }
        let Some(column) = batch.column_by_name(name) else { return Ok(new_null_array(wanted, batch.num_rows())) };
        if column.data_type() == wanted {
            return Ok(Arc::clone(column));
        }
        cast_exactly(column, wanted).map_err(|error| {
            let message = format!("the column `{name}` of `{}` does not fit {wanted}: {error}", gathered.name);
            OperatorError::data(message).with_help("give it one type by `sql`: `CAST(… AS …)`")
        })
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::datatypes::{Float64Type, Int64Type};
    use searchmill_engine::operator::entry;
    use searchmill_engine::operator::testing::{Harness, Outcome, batch_input, inputs, rows_input};
    use searchmill_schemas::{Trajectory, to_batch};
    use serde_json::json;

    use super::*;
    use crate::shared::columns::with_columns;
    use crate::shared::relation::testing::{ids, trajectories};

    fn params() -> Value {
        json!({"columns": ["size", "retriever"], "tables": [
            {"name": "size=9", "values": [9, "bm25"]}, {"name": "size=10", "values": [10, null]},
        ]})
    }

    fn run(params: Value, one: &[Trajectory], other: &[Trajectory]) -> Result<Outcome, OperatorError> {
        let bound = inputs([("size=10", rows_input(other)), ("size=9", rows_input(one))]);
        Harness::new().run(&entry::<Gather>(), params, &bound)
    }

    #[test]
    fn rows_stand_in_the_order_of_the_tables_with_their_values() {
        let rows = trajectories(2);
        let outcome = run(params(), &rows, &rows[..1]).expect("runs");
        let gathered: Vec<Trajectory> = outcome.read(ROWS);
        assert_eq!(ids(&gathered), ["q0@0~size=9", "q1@0~size=9", "q0@0~size=10"]);
        assert_eq!(gathered[1].question_id, rows[1].question_id, "parents keep their ids");
        assert_eq!(gathered[1].messages, rows[1].messages);
        let batch = outcome.batch(ROWS);
        let sizes = batch.column_by_name("size").expect("size").as_primitive::<Int64Type>();
        assert_eq!(sizes.values(), &[9, 9, 10]);
        let retrievers = batch.column_by_name("retriever").expect("retriever").as_string::<i32>();
        assert!(retrievers.value(0) == "bm25" && retrievers.is_null(2));
    }

    #[test]
    fn tables_without_rows_still_have_the_columns() {
        let batch = run(params(), &[], &[]).expect("runs").batch(ROWS);
        assert!(batch.num_rows() == 0 && batch.column_by_name("size").is_some(), "{:?}", batch.schema());
    }

    #[test]
    fn other_columns_ride_along_with_one_type() {
        let table = |column: ArrayRef| {
            let field = Field::new("w", column.data_type().clone(), true);
            batch_input(
                RecordKind::Trajectory,
                with_columns(&to_batch(&trajectories(1)).expect("rows"), vec![(field, column)]).expect("fits"),
            )
        };
        let bound = |one: ArrayRef, other: ArrayRef| inputs([("size=9", table(one)), ("size=10", table(other))]);
        let run = |bound: Inputs| Harness::new().run(&entry::<Gather>(), params(), &bound);
        let outcome =
            run(bound(Arc::new(Int64Array::from(vec![1])), Arc::new(Float64Array::from(vec![0.5])))).expect("runs");
        assert_eq!(
            outcome.batch(ROWS).column_by_name("w").expect("w").as_primitive::<Float64Type>().values(),
            &[1.0, 0.5]
        );
        let mixed = run(bound(Arc::new(Int64Array::from(vec![1])), Arc::new(StringArray::from(vec!["x"]))));
        assert_eq!(mixed.expect_err("two types").message, "the column `w` is Int64 in one input and Utf8 in another");
        let lacking =
            inputs([("size=9", rows_input(&trajectories(1))), ("size=10", table(Arc::new(Int64Array::from(vec![3]))))]);
        let batch = run(lacking).expect("runs").batch(ROWS);
        let w = batch.column_by_name("w").expect("w").as_primitive::<Int64Type>();
        assert!(w.is_null(0) && w.value(1) == 3);
    }

    #[test]
    fn a_number_that_the_common_type_cannot_hold_is_an_error_and_not_null() {
        let table = |column: ArrayRef| {
            let field = Field::new("w", column.data_type().clone(), true);
            let rows = to_batch(&trajectories(1)).expect("rows");
            batch_input(RecordKind::Trajectory, with_columns(&rows, vec![(field, column)]).expect("fits"))
        };
        let large: ArrayRef = Arc::new(arrow::array::UInt64Array::from(vec![u64::MAX]));
        let small: ArrayRef = Arc::new(Int64Array::from(vec![-1]));
        let bound = inputs([("size=9", table(large)), ("size=10", table(small))]);
        let error = Harness::new().run(&entry::<Gather>(), params(), &bound).expect_err("too large");
        assert!(error.message.starts_with("the column `w` of `size=9` does not fit Int64: "), "{}", error.message);
        assert!(error.message.contains("18446744073709551615"), "{}", error.message);
        let whole: ArrayRef = Arc::new(Int64Array::from(vec![(1 << 53) + 1]));
        let fraction: ArrayRef = Arc::new(Float64Array::from(vec![1.5]));
        let bound = inputs([("size=9", table(whole)), ("size=10", table(fraction))]);
        let error = Harness::new().run(&entry::<Gather>(), params(), &bound).expect_err("it would be rounded");
        let wanted = "the column `w` of `size=9` does not fit Float64: not every Int64 is a Float64";
        assert_eq!(error.message, wanted);
    }

    #[test]
    fn values_decide_the_type_of_a_column() {
        let typed = |values: [Value; 2]| {
            let mut params = params();
            for (place, value) in values.into_iter().enumerate() {
                params["tables"][place]["values"][0] = value;
            }
            run(params, &trajectories(1), &trajectories(1))
                .expect("runs")
                .batch(ROWS)
                .column_by_name("size")
                .expect("size")
                .data_type()
                .clone()
        };
        assert_eq!(typed([json!(1), json!(2.5)]), DataType::Float64);
        assert_eq!(typed([json!(true), json!(null)]), DataType::Boolean);
        assert_eq!(typed([json!(1), json!("all")]), DataType::Utf8);
        assert_eq!(typed([json!(null), json!(null)]), DataType::Utf8);
    }

    #[test]
    fn a_column_that_is_there_already_is_an_error() {
        let mut params = params();
        params["columns"][0] = json!("turns");
        let error = run(params, &trajectories(1), &[]).expect_err("a column of trajectories");
        assert_eq!(error.message, "the rows already have a column `turns`");
    }

    #[test]
    fn wrong_params_are_named() {
        let issues = |params: Value| {
            let bound = (entry::<Gather>().bind)(params).expect("binds");
            let own = bound.declaration.issues.iter().map(|issue| issue.path.clone());
            own.chain(bound.declaration.input_issues(&["a"]).into_iter().map(|issue| issue.path)).collect::<Vec<_>>()
        };
        let table = |name: &str, values: Value| json!({"name": name, "values": values});
        assert_eq!(issues(json!({"columns": ["x"], "tables": [table("a", json!([1]))]})), Vec::<String>::new());
        assert_eq!(issues(json!({"columns": ["x", "x"], "tables": [table("a", json!([1, 2]))]})), ["columns.1"]);
        assert_eq!(issues(json!({"columns": ["x"], "tables": [table("a", json!([]))]})), ["tables.0.values"]);
        assert_eq!(issues(json!({"columns": ["x"], "tables": [table("a", json!([[1]]))]})), ["tables.0.values"]);
        assert_eq!(issues(json!({"columns": [], "tables": [table("b", json!([]))]})), ["tables.0.name", "tables"]);
        assert_eq!(issues(json!({"columns": [], "tables": []})), ["tables", "tables"]);
    }
}
