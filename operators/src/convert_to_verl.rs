//! `convert-to-verl`: converts questions to the parquet rows of search-agent RL trainers.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::json::ReaderBuilder;
use schemars::JsonSchema;
use searchmill_engine::operator::{
    BlockingKernel, Context, Declaration, Example, FailureKind, Inputs, Kernel, Operator, OperatorError, Outputs,
    ParamIssue, Ports,
};
use searchmill_schemas::{Question, RecordKind, Reject, from_batch};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::conversion::verl::{Labels, Layout};

const QUESTIONS: &str = "questions";
const ROWS: &str = "rows";

/// Converts each question to a row in the layout of an RL trainer of the verl family; `write` stores the rows as a
/// parquet file. `extra_info.index` is the question's position in the whole table: trainers group rollouts by it, so
/// it must be unique. Blank questions are rejected.
pub(crate) struct ConvertToVerl;

/// Parameters of `convert-to-verl`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct ConvertToVerlParams {
    /// Trainer that reads the rows.
    pub(crate) layout: Layout,
    /// Name of the data set, by which trainers choose the reward. Search-R1 and verl support nq, triviaqa, popqa,
    /// hotpotqa, 2wikimultihopqa, musique and bamboogle (for verl, the prefix `searchR1_` is added). ReSearch
    /// supports only musique, its default.
    #[serde(default)]
    pub(crate) data_source: Option<String>,
    /// Name of the split, written to `extra_info` (not used by ReSearch).
    #[serde(default = "train")]
    pub(crate) split: String,
    /// Adds a column `agent_name`. verl's agent loop calls tools only if the rows (or its configuration) say
    /// `tool_agent`.
    #[serde(default)]
    pub(crate) agent_name: Option<String>,
}

fn train() -> String {
    "train".to_owned()
}

impl Operator for ConvertToVerl {
    type Params = ConvertToVerlParams;
    const NAME: &'static str = "convert-to-verl";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Converts questions to rows for RL trainers of the verl family.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "Training questions for Search-R1",
            yaml: "rl: {op: convert-to-verl, from: train, with: {layout: search-r1, data_source: hotpotqa}}",
        },
        Example {
            title: "For verl's agent loop",
            yaml: "rl: {op: convert-to-verl, from: train, with: {layout: verl, data_source: hotpotqa, agent_name: tool_agent}}",
        },
    ];

    fn declare(params: &ConvertToVerlParams) -> Declaration {
        let ports = Ports::new().rows_in(QUESTIONS, &[RecordKind::Question], "questions with golden answers").rows_out(
            ROWS,
            RecordKind::Table,
            "rows in the trainer's layout",
        );
        Declaration::pure(ports).issues(issues(params))
    }

    fn open(params: &ConvertToVerlParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        let labels = Labels {
            data_source: params.data_source.clone().unwrap_or_else(|| "musique".to_owned()),
            split: params.split.clone(),
            agent_name: params.agent_name.clone(),
        };
        Ok(Kernel::Blocking(Box::new(VerlKernel { layout: params.layout, labels })))
    }
}

fn issues(params: &ConvertToVerlParams) -> Vec<ParamIssue> {
    let missing = params.data_source.is_none() && params.layout != Layout::Research;
    let issue = ParamIssue::new("data_source", "this layout needs the name of the data set").with_help(
        "one of nq, triviaqa, popqa, hotpotqa, 2wikimultihopqa, musique, bamboogle, or one with a reward of your own",
    );
    missing.then_some(issue).into_iter().collect()
}

struct VerlKernel {
    layout: Layout,
    labels: Labels,
}

impl BlockingKernel for VerlKernel {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let schema = self.layout.schema(self.labels.agent_name.is_some());
        let mut index = 0;
        for batch in inputs.rows(QUESTIONS)?.batches() {
            context.check_cancelled()?;
            let mut rows = Vec::new();
            for question in from_batch::<Question>(&batch?)? {
                match self.layout.row(&question, index, &self.labels) {
                    Some(row) => rows.push(row),
                    None => outputs.reject(blank(question))?,
                }
                index += 1;
            }
            if !rows.is_empty() {
                outputs.write(ROWS, &to_columns(&schema, &rows)?)?;
            }
        }
        Ok(())
    }
}

fn blank(question: Question) -> Reject {
    Reject {
        id: question.id,
        kind: FailureKind::Data.name().to_owned(),
        message: "the question is blank".to_owned(),
        attempts: 1,
        detail: None,
    }
}

fn to_columns(schema: &SchemaRef, rows: &[Value]) -> Result<RecordBatch, OperatorError> {
    let mut decoder = ReaderBuilder::new(SchemaRef::clone(schema)).with_batch_size(rows.len()).build_decoder()?;
    decoder.serialize(rows)?;
    decoder.flush()?.ok_or_else(|| OperatorError::engine("the trainer's rows could not be built"))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use searchmill_engine::operator::entry;
    use searchmill_engine::operator::testing::{Harness, Outcome, inputs, rows_input};
    use serde_json::json;

    use super::*;

    fn run(questions: &[Question], params: Value) -> Result<Outcome, OperatorError> {
        Harness::new().run(&entry::<ConvertToVerl>(), params, &inputs([("questions", rows_input(questions))]))
    }

    fn question(id: &str, text: &str, golden: &[&str]) -> Question {
        Question {
            id: id.to_owned(),
            question: text.to_owned(),
            golden_answers: golden.iter().map(|&answer| answer.to_owned()).collect(),
            question_type: None,
            evidence: Vec::new(),
            metadata: None,
        }
    }

    /// Returns the first `count` questions of a FlashRAG file.
    fn questions_of(data_set: &str, count: usize) -> Option<Vec<Question>> {
        let text = searchmill_fixtures::shared_text(&format!("data/{data_set}/dev_200.jsonl"))?;
        let rows = text.lines().take(count).map(|line| {
            let row: Value = serde_json::from_str(line).expect("JSON");
            let golden = row["golden_answers"].as_array().expect("answers").iter().filter_map(Value::as_str);
            question(
                row["id"].as_str().expect("id"),
                row["question"].as_str().expect("text"),
                &golden.collect::<Vec<_>>(),
            )
        });
        Some(rows.collect())
    }

    fn equals_the_file(name: &str, data_set: &str, params: Value) {
        let Some(questions) = questions_of(data_set, 5) else { return };
        let Some(path) = searchmill_fixtures::shared(&format!("data/layouts/{name}.parquet")) else { return };
        let file = File::open(path).expect("the layout's file");
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("parquet").build().expect("a reader");
        let wanted = reader.map(|batch| batch.expect("rows")).next().expect("one batch");
        let found = run(&questions, params).expect("runs").batch("rows");
        assert_eq!(found.schema().fields(), wanted.schema().fields());
        assert_eq!(found.columns(), wanted.columns());
    }

    #[test]
    fn rows_equal_the_files_of_the_trainers() {
        equals_the_file("research", "musique", json!({"layout": "research"}));
        equals_the_file(
            "search_r1",
            "hotpotqa",
            json!({"layout": "search-r1", "data_source": "hotpotqa", "split": "test"}),
        );
        equals_the_file(
            "verl_search_r1_like",
            "hotpotqa",
            json!({"layout": "verl", "data_source": "hotpotqa", "split": "test"}),
        );
    }

    #[test]
    fn edges() {
        let questions = [question("a", " who? ", &["x", "東京"]), question("b", "  ", &[]), question("c", "when", &[])];
        let params = json!({"layout": "search-r1", "data_source": "nq"});
        let outcome = run(&questions, params.clone()).expect("runs");
        let written = serde_json::to_string(&run(&questions, params.clone()).expect("runs").rejects()).expect("JSON");
        assert!(written.contains("the question is blank"));
        let batch = outcome.batch("rows");
        assert_eq!(batch.num_rows(), 2);
        let shown = arrow::util::pretty::pretty_format_batches(&[batch]).expect("a table").to_string();
        assert!(shown.contains("| when? ") && shown.contains("index: 2") && shown.contains("[x, 東京]"), "{shown}");
        assert!(run(&[], params).expect("runs").rows.is_empty());
        let error = run(&questions, json!({"layout": "verl"})).expect_err("no data source");
        assert!(error.message.starts_with("data_source: "));
    }

    #[test]
    fn an_agent_name_is_a_column_of_its_own() {
        let params = json!({"layout": "verl", "data_source": "nq", "agent_name": "tool_agent"});
        let batch = run(&[question("a", "who?", &["x"])], params).expect("runs").batch("rows");
        assert_eq!(batch.schema().fields().last().expect("columns").name(), "agent_name");
        assert_eq!(batch.num_columns(), 7);
    }
}
