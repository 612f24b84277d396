//! Rows of a node's output: pages of a table, one row, the values of a column.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::DataType;
use axum::Json;
use axum::extract::{Path, Query, State};
use searchmill_engine::{Choice, ColumnSummary, Order, Rounds, Table};
use searchmill_schemas::{RecordKind, type_in_words};
use serde::Deserialize;
use serde_json::{Value, json};

use super::cells;
use super::problem::Problem;
use super::state::{Page, no_node};
use super::views::View;

/// Rows of one answer (at most).
const MOST_ROWS: u64 = 1000;
/// Rows of one answer, unless asked for.
const ROWS: u64 = 100;
/// Characters of a cell of a list.
const CELL: usize = 160;
/// Characters of each text of one row, unless asked for.
const TEXT: usize = 4000;
/// Columns that a list shows, unless asked for (at most).
const COLUMNS: usize = 60;
/// Time after which a query is ended.
const LIMIT: Duration = Duration::from_secs(30);

/// Which table, which of its rows, and in which order.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Asked {
    /// Output of the node; the first one if missing.
    port: Option<String>,
    /// SQL predicate, as in `filter`.
    #[serde(rename = "where")]
    condition: Option<String>,
    /// Columns or SQL expressions to sort by, one a line; `-` before it: the largest first.
    sort: Option<String>,
    /// Node whose scores stand beside rollouts.
    scores: Option<String>,
    /// Columns, one a line.
    columns: Option<String>,
    from: Option<u64>,
    to: Option<u64>,
    /// Id of a row.
    id: Option<String>,
    /// Place of a row among those chosen, from 0.
    at: Option<u64>,
    /// Characters of a text (at most).
    texts: Option<usize>,
    /// Rows as objects with all columns.
    #[serde(default)]
    whole: bool,
    /// Name of a column.
    name: Option<String>,
}

impl Asked {
    fn choice(&self) -> Choice {
        // A field of a form that was emptied is no condition.
        let condition = self.condition.as_ref().filter(|sql| !sql.trim().is_empty());
        let pass = condition.map(|sql| ("filter".to_owned(), json!({"where": sql})));
        let keys = self.sort.as_deref().unwrap_or_default().lines();
        let order = keys.filter(|key| !key.trim().is_empty()).map(Order::written).collect();
        // With a time limit: the predicate is written by a user, and a slow one holds one of the few turns of `ask`.
        Choice { pass, order, limit: Some(LIMIT) }
    }

    fn view(&self, page: &Page, run: &str, node: &str) -> Result<Arc<View>, Problem> {
        let nodes = page.nodes(run)?;
        let Some(ran) = nodes.iter().rfind(|ran| ran.node == node) else { return Err(no_node(run, node)) };
        let output = match &self.port {
            Some(port) => ran.outputs.get_key_value(port),
            None => ran.outputs.first(),
        };
        let Some((port, output)) = output else {
            let port = self.port.as_deref().unwrap_or("");
            return Err(Problem::missing(format!("`{node}` has no output {port} in the run {run}")));
        };
        let (port, artifact) = (port.clone(), output.id);
        // While a run goes on, more of its nodes may score the rows.
        let name =
            format!("{run}\n{}\n{artifact}\n{:?}\n{:?}\n{:?}", nodes.len(), self.condition, self.sort, self.scores);
        page.views.get(&name, || {
            let mut scorers = page.session.runs().scorers(run, &artifact)?;
            // Before `swap_remove`, which changes the order.
            let names = scorers.iter().map(|scorer| scorer.node.clone()).collect();
            let index = match &self.scores {
                Some(asked) => scorers.iter().position(|scorer| scorer.node == *asked),
                None if scorers.is_empty() => None,
                None => Some(0),
            };
            let scorer = index.map(|index| scorers.swap_remove(index));
            let table = page.session.store().browse(&artifact, scorer.as_ref())?;
            let choice = self.choice();
            let rows = page.session.store().choose(&table, &choice)?;
            Ok(View { artifact, port, table, rows, choice, scorers: names, scorer: scorer.map(|scorer| scorer.node) })
        })
    }
}

/// Asks about the rows of a node's output.
async fn about<T: Send + 'static>(
    page: Arc<Page>,
    run: String,
    node: String,
    asked: Asked,
    answer: impl FnOnce(&Page, &View, &Asked) -> Result<T, Problem> + Send + 'static,
) -> Result<Json<T>, Problem> {
    let answered = page.ask(move |page| {
        let view = asked.view(page, &run, &node)?;
        // The store may have been collected since the view was made.
        answer(page, &view, &asked).map_err(|problem| match page.session.store().artifact(&view.artifact) {
            Ok(_) => problem,
            Err(failure) => Problem::gone(failure.to_string()),
        })
    });
    answered.await.map(Json)
}

/// Answers `GET …/rows`.
pub(super) async fn rows(
    State(page): State<Arc<Page>>,
    Path((run, node)): Path<(String, String)>,
    Query(asked): Query<Asked>,
) -> Result<Json<Value>, Problem> {
    about(page, run, node, asked, |_, view, asked| listed_rows(view, asked)).await
}

fn listed_rows(view: &View, asked: &Asked) -> Result<Value, Problem> {
    let columns = match &asked.columns {
        Some(columns) => columns.lines().map(str::to_owned).collect(),
        None if asked.whole => view.table.columns().iter().map(|field| field.name().clone()).collect(),
        None => listed(&view.table),
    };
    let from = asked.from.unwrap_or(0);
    let to = asked.to.unwrap_or(from.saturating_add(ROWS)).min(from.saturating_add(MOST_ROWS));
    let numbers = view.rows.page(from..to);
    let mut read = columns.clone();
    if view.table.rows.schema.index_of("id").is_ok() {
        // Whole, for the address of the row, beside the one that may be shown.
        read.push("id".to_owned());
    }
    let batch = view.table.read(&numbers, &read)?;
    let shown = batch.project(&(0..columns.len()).collect::<Vec<_>>());
    let shown = shown.map_err(|error| Problem::broken(error.to_string()))?;
    let texts = asked.texts.unwrap_or(if asked.whole { TEXT } else { CELL });
    let (key, cells) = if asked.whole {
        ("row", cells::objects(&shown, texts).map_err(Problem::broken)?)
    } else {
        ("cells", cells::rows(&shown, texts).map_err(Problem::broken)?.into_iter().map(Value::Array).collect())
    };
    let ids = batch.column_by_name("id").and_then(|ids| ids.as_string_opt::<i32>());
    let mut rows = Vec::with_capacity(cells.len());
    for (index, cells) in cells.into_iter().enumerate() {
        let id = ids.map(|ids| ids.value(index));
        rows.push(json!({"number": numbers[index], "id": id, key: cells}));
    }
    Ok(json!({
        "kind": view.table.kind().name(),
        "all": view.table.rows.rows,
        "count": view.rows.count(),
        "from": from,
        "columns": columns,
        "every": described(view),
        "scorers": view.scorers,
        "scorer": view.scorer,
        "rows": rows,
    }))
}

/// Answers `GET …/row`: one row whole, but for long texts.
pub(super) async fn row(
    State(page): State<Arc<Page>>,
    Path((run, node)): Path<(String, String)>,
    Query(asked): Query<Asked>,
) -> Result<Json<Value>, Problem> {
    about(page, run, node, asked, |_, view, asked| one_row(view, asked)).await
}

fn one_row(view: &View, asked: &Asked) -> Result<Value, Problem> {
    let (at, number) = if let Some(id) = &asked.id {
        let Some(number) = view.table.position(id)? else {
            return Err(Problem::missing(format!("no row has the id `{id}`")));
        };
        (view.rows.place(number, asked.at), number)
    } else {
        let at = asked.at.unwrap_or(0);
        let Some(number) = view.rows.page(at..at.saturating_add(1)).pop() else {
            return Err(Problem::missing(format!("there is no row {at}")));
        };
        (Some(at), number)
    };
    let columns: Vec<String> = view.table.columns().iter().map(|field| field.name().clone()).collect();
    let batch = view.table.read(&[number], &columns)?;
    Ok(json!({
        "artifact": view.artifact,
        "port": view.port,
        "kind": view.table.kind().name(),
        "at": at,
        "number": number,
        "count": view.rows.count(),
        "every": described(view),
        "scorer": view.scorer,
        "row": cells::objects(&batch, asked.texts.unwrap_or(TEXT)).map_err(Problem::broken)?.pop(),
    }))
}

/// Answers `GET …/column`: what a column holds.
pub(super) async fn column(
    State(page): State<Arc<Page>>,
    Path((run, node)): Path<(String, String)>,
    Query(asked): Query<Asked>,
) -> Result<Json<ColumnSummary>, Problem> {
    about(page, run, node, asked, |page, view, asked| {
        let name = asked.name.as_deref().unwrap_or_default();
        Ok(page.session.store().summarize(&view.table, name, &view.choice)?)
    })
    .await
}

/// Answers `GET …/rounds`: how good each question was in each round of the node's loop, by the column `name`.
pub(super) async fn rounds(
    State(page): State<Arc<Page>>,
    Path((run, node)): Path<(String, String)>,
    Query(asked): Query<Asked>,
) -> Result<Json<Rounds>, Problem> {
    let answer = page.ask(move |page| {
        page.require_run(&run)?;
        Ok(page.session.runs().rounds(&run, &node, asked.name.as_deref())?)
    });
    answer.await.map(Json)
}

/// Returns all columns of a view with their types, and whether they are scores.
fn described(view: &View) -> Vec<Value> {
    let mut columns = Vec::new();
    for field in view.table.columns() {
        let scores = view.table.rows.schema.index_of(field.name()).is_err();
        columns.push(json!({"name": field.name(), "type": type_in_words(field.data_type()), "scores": scores}));
    }
    columns
}

/// Returns the columns of a list: scores first, no long texts, no nested values.
fn listed(table: &Table) -> Vec<String> {
    let first: &[&str] = match table.kind() {
        RecordKind::Trajectory => &[
            "id",
            "reward",
            "f1",
            "em",
            "question",
            "prediction",
            "golden_answers",
            "question_type",
            "turns",
            "tool_calls",
            "finish_reason",
        ],
        RecordKind::Document | RecordKind::Chunk => &["id", "title", "text"],
        _ => &["id"],
    };
    let of_kind = table.kind().schema();
    let first = first.iter().filter(|name| table.columns().iter().any(|field| field.name() == *name));
    let mut columns: Vec<String> = first.map(|name| (*name).to_owned()).collect();
    for field in table.columns() {
        let is_nested = matches!(field.data_type(), DataType::Struct(_) | DataType::Map(..))
            || matches!(field.data_type(), DataType::List(item) if item.data_type().is_nested());
        let is_listed = columns.contains(field.name());
        // Of rollouts, the columns that others added: rewards, scores.
        let is_known = table.kind() == RecordKind::Trajectory && of_kind.index_of(field.name()).is_ok();
        let is_long = ["contents", "row", "detail", "metadata", "tools"].contains(&field.name().as_str());
        let is_hidden = is_nested || is_listed || is_known || is_long && table.kind() != RecordKind::Table;
        if !is_hidden {
            columns.push(field.name().clone());
        }
    }
    columns.truncate(COLUMNS);
    columns
}
