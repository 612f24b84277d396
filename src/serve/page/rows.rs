//! Rows of a node's output: pages of a table, one row, the values of a column.

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::DataType;
use axum::Json;
use axum::extract::{Path, Query, State};
use searchmill_engine::{Choice, ColumnSummary, Order, Rounds, Rows, Table};
use searchmill_schemas::{RecordKind, type_in_words};
use serde::Deserialize;
use serde_json::{Value, json};

use super::cells;
use super::problem::Problem;
use super::state::Page;
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
    /// Name of a column.
    name: Option<String>,
}

impl Asked {
    fn choice(&self) -> Choice {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.trim().is_empty());
        let pass = given(&self.condition).map(|sql| ("filter".to_owned(), json!({"where": sql})));
        let mut order = Vec::new();
        for key in given(&self.sort).iter().flat_map(|keys| keys.lines()) {
            order.push(match key.strip_prefix('-') {
                Some(by) => Order { by: by.to_owned(), descending: true },
                None => Order { by: key.to_owned(), descending: false },
            });
        }
        Choice { pass, order, limit: Some(LIMIT) }
    }

    fn view(&self, page: &Page, run: &str, node: &str) -> Result<Arc<View>, Problem> {
        let ran = page.node(run, node)?;
        let output = match &self.port {
            Some(port) => ran.outputs.get(port).map(|output| output.id),
            None => ran.outputs.first().map(|(_, output)| output.id),
        };
        let artifact = output.ok_or_else(|| {
            let port = self.port.as_deref().unwrap_or("");
            Problem::missing(format!("`{node}` has no output {port} in the run {run}"))
        })?;
        let name = format!("{run}\n{artifact}\n{:?}\n{:?}\n{:?}", self.condition, self.sort, self.scores);
        page.views.get(&name, || {
            let mut scorers = page.session.scorers(run, &artifact)?;
            let names = scorers.iter().map(|scorer| scorer.node.clone()).collect();
            let place =
                scorers.iter().position(|scorer| self.scores.as_ref().is_none_or(|asked| *asked == scorer.node));
            let scorer = place.map(|place| scorers.swap_remove(place));
            let table = page.session.browse(&artifact, scorer.as_ref())?;
            let choice = self.choice();
            let rows = page.session.choose(&table, &choice)?;
            Ok(View { table, rows, choice, scorers: names, scorer: scorer.map(|scorer| scorer.node) })
        })
    }
}

/// Answers `GET …/rows`.
pub(super) async fn rows(
    State(page): State<Arc<Page>>,
    Path((run, node)): Path<(String, String)>,
    Query(asked): Query<Asked>,
) -> Result<Json<Value>, Problem> {
    let answer = page.ask(move |page| {
        let view = asked.view(page, &run, &node)?;
        let columns = match &asked.columns {
            Some(columns) => columns.lines().map(str::to_owned).collect(),
            None => listed(&view.table),
        };
        let from = asked.from.unwrap_or(0);
        let to = asked.to.unwrap_or(from.saturating_add(ROWS)).min(from.saturating_add(MOST_ROWS));
        let numbers = view.rows.page(from..to);
        let batch = view.table.read(&numbers, &columns)?;
        let ids = match view.table.rows.schema.index_of("id") {
            Ok(_) => {
                cells::rows(&view.table.read(&numbers, &["id".to_owned()])?, usize::MAX).map_err(Problem::broken)?
            }
            Err(_) => Vec::new(),
        };
        let rows = cells::rows(&batch, asked.texts.unwrap_or(CELL)).map_err(Problem::broken)?;
        let rows: Vec<Value> = (0..numbers.len())
            .map(|place| json!({"number": numbers[place], "id": ids.get(place).map(|id| &id[0]), "cells": rows[place]}))
            .collect();
        Ok(json!({
            "kind": view.table.kind().name(),
            "all": view.table.rows.rows,
            "count": view.rows.count(),
            "from": from,
            "columns": columns,
            "every": described(&view),
            "scorers": view.scorers,
            "scorer": view.scorer,
            "rows": rows,
        }))
    });
    answer.await.map(Json)
}

/// Answers `GET …/row`: one row whole, but for long texts.
pub(super) async fn row(
    State(page): State<Arc<Page>>,
    Path((run, node)): Path<(String, String)>,
    Query(asked): Query<Asked>,
) -> Result<Json<Value>, Problem> {
    let answer = page.ask(move |page| {
        let view = asked.view(page, &run, &node)?;
        let (at, number) = match (&asked.id, asked.at) {
            // The place is a hint: the table may have been filtered otherwise since.
            (Some(id), at) => {
                let number =
                    view.table.position(id)?.ok_or_else(|| Problem::missing(format!("no row has the id `{id}`")))?;
                let at = match &view.rows {
                    Rows::All(_) => Some(number),
                    Rows::These(numbers) if at.is_some_and(|at| numbers.get(at as usize) == Some(&number)) => at,
                    Rows::These(numbers) => numbers.iter().position(|other| *other == number).map(|at| at as u64),
                };
                (at, number)
            }
            (None, at) => {
                let at = at.unwrap_or(0);
                let number = view.rows.page(at..at.saturating_add(1)).first().copied();
                (Some(at), number.ok_or_else(|| Problem::missing(format!("there is no row {at}")))?)
            }
        };
        let columns: Vec<String> = view.table.columns().iter().map(|field| field.name().clone()).collect();
        let batch = view.table.read(&[number], &columns)?;
        let row = cells::object(&batch, asked.texts.unwrap_or(TEXT)).map_err(Problem::broken)?;
        Ok(json!({
            "kind": view.table.kind().name(),
            "at": at,
            "number": number,
            "count": view.rows.count(),
            "every": described(&view),
            "scorer": view.scorer,
            "row": row,
        }))
    });
    answer.await.map(Json)
}

/// Answers `GET …/column`: what a column holds.
pub(super) async fn column(
    State(page): State<Arc<Page>>,
    Path((run, node)): Path<(String, String)>,
    Query(asked): Query<Asked>,
) -> Result<Json<ColumnSummary>, Problem> {
    let answer = page.ask(move |page| {
        let view = asked.view(page, &run, &node)?;
        let name = asked.name.as_deref().unwrap_or_default();
        Ok(page.session.summarize(&view.table, name, &view.choice)?)
    });
    answer.await.map(Json)
}

/// Answers `GET …/rounds`: how good each question was in each round of the node's loop, by the column `name`.
pub(super) async fn rounds(
    State(page): State<Arc<Page>>,
    Path((run, node)): Path<(String, String)>,
    Query(asked): Query<Asked>,
) -> Result<Json<Rounds>, Problem> {
    let answer = page.ask(move |page| {
        page.require_run(&run)?;
        Ok(page.session.rounds(&run, &node, asked.name.as_deref())?)
    });
    answer.await.map(Json)
}

/// Returns all columns of a view with their types, and whether they are scores.
fn described(view: &View) -> Vec<Value> {
    let described = |field: arrow::datatypes::FieldRef| {
        let scores = view.table.rows.schema.index_of(field.name()).is_err();
        json!({"name": field.name(), "type": type_in_words(field.data_type()), "scores": scores})
    };
    view.table.columns().into_iter().map(described).collect()
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
    let mut columns: Vec<String> = Vec::new();
    for name in first {
        if table.columns().iter().any(|field| field.name() == name) {
            columns.push((*name).to_owned());
        }
    }
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
