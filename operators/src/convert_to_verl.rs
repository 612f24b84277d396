//! `convert-to-verl`: converts questions to the parquet rows of search-agent RL trainers: ReSearch, Search-R1 and
//! verl's search example.
//!
//! Columns, their order and types match the trainers' own preprocessors (pandas and `datasets`): text is `LargeUtf8`
//! at the top level and `Utf8` in nested fields, list items are named `element`, and every field is nullable.

use std::sync::Arc;

use arrow::array::UInt32Array;
use arrow::compute::take_record_batch;
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use arrow::json::ReaderBuilder;
use schemars::JsonSchema;
use searchmill_agent::protocol::{ProtocolParams, ProtocolSettings};
use searchmill_engine::operator::{
    BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs, ParamIssue, Ports,
};
use searchmill_schemas::{Question, RecordKind, from_batch};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::shared::columns::with_all;
use super::shared::conversion::carry;
use super::shared::unfit::Unfit;

const QUESTIONS: &str = "questions";
const ROWS: &str = "rows";

/// Data sets that the rewards of Search-R1 and of verl's search example know; they judge all of them by exact match.
const REWARDED: [&str; 7] = ["nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle"];

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
    /// Protocol of `rollout` whose opening is the prompt of each row, for example `r1-searcher`, in place of the trainer's
    /// own prompt: a model should be trained on what it read in its rollouts. What the protocol puts before the model's
    /// first word (`<think>`) is not part of it. Not for ReSearch, whose trainer adds the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) prompt: Option<ProtocolParams>,
    /// Columns of the questions to add after the trainer's, for example `[source]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) carry: Vec<String>,
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
        Example {
            title: "With the prompt of R1-Searcher's rollouts",
            yaml: "rl: {op: convert-to-verl, from: train, with: {layout: search-r1, data_source: r1-searcher, prompt: r1-searcher}}",
        },
        Example {
            title: "With the data set that each question is from",
            yaml: "rl: {op: convert-to-verl, from: mixed, with: {layout: search-r1, data_source: nq, carry: [source]}}",
        },
    ];

    fn declare(params: &ConvertToVerlParams) -> Declaration {
        let ports = Ports::new().rows_in(QUESTIONS, &[RecordKind::Question], "questions with golden answers");
        let ports = ports.rows_out(ROWS, RecordKind::Table, "rows in the trainer's layout");
        carry::checked(Declaration::pure(ports).issues(issues(params)), QUESTIONS, &params.carry)
    }

    fn open(params: &ConvertToVerlParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

fn issues(params: &ConvertToVerlParams) -> Vec<ParamIssue> {
    let missing = params.data_source.is_none() && params.layout != Layout::Research;
    let issue = ParamIssue::new("data_source", "this layout needs `data_source`, the name of a data set")
        .with_help(format!("write `data_source: NAME`: {}, or one with a reward of your own", REWARDED.join(", ")));
    let mut issues: Vec<ParamIssue> = missing.then_some(issue).into_iter().collect();
    if params.prompt.is_some() && params.layout == Layout::Research {
        let issue = ParamIssue::new("prompt", "rows of ReSearch have no prompt: its trainer adds it");
        issues.push(issue.with_help("remove `prompt`"));
    }
    let of_protocol = params.prompt.as_ref().map(ProtocolParams::check).unwrap_or_default();
    issues.extend(of_protocol.into_iter().map(|(path, text)| ParamIssue::new(format!("prompt.{path}"), text)));
    issues
}

impl ConvertToVerlParams {
    fn data_source(&self) -> &str {
        self.data_source.as_deref().unwrap_or("musique")
    }

    /// Warns of rows that the trainer would not learn from as wanted.
    fn warn(&self, context: &Context) {
        let known: &[&str] = if self.layout == Layout::Research { &["musique"] } else { &REWARDED };
        let (source, names) = (self.data_source(), known.join(", "));
        // With a prompt of another system, the reward is another one, too.
        if self.prompt.is_none() && !known.contains(&source) {
            context.progress().log(&format!(
                "warning: the trainer's own reward knows no data set `{source}`: write one of {names} in `data_source`, or \
                 give the trainer a reward of yours"
            ));
        }
        if self.layout == Layout::Verl && self.agent_name.is_none() {
            context.progress().log(
                "warning: verl calls no tools for rows without an agent, unless its configuration names one: write \
                 `agent_name: tool_agent`",
            );
        }
    }

    /// The columns; `agent_name` is last, if present.
    fn schema(&self) -> SchemaRef {
        use DataType::{Boolean, Int64, LargeUtf8, Null, Utf8};
        let mut fields = match self.layout {
            Layout::SearchR1 => vec![
                field("id", LargeUtf8),
                field("question", LargeUtf8),
                field("golden_answers", list(Utf8)),
                field("data_source", LargeUtf8),
                field("prompt", chat()),
                field("ability", LargeUtf8),
                field("reward_model", reward_model(target())),
                field("extra_info", structure(vec![field("split", Utf8), field("index", Int64)])),
            ],
            Layout::Research => vec![
                field("data_source", LargeUtf8),
                field("question", LargeUtf8),
                field("ability", LargeUtf8),
                field("reward_model", reward_model(list(Utf8))),
                field("extra_info", structure(vec![field("id", Utf8)])),
            ],
            Layout::Verl => {
                let create = vec![field("ground_truth", target()), field("question", Utf8), field("data_source", Utf8)];
                let search = structure(vec![field("create_kwargs", structure(create))]);
                let extra = structure(vec![
                    field("index", Int64),
                    field("need_tools_kwargs", Boolean),
                    field("question", Utf8),
                    field("split", Utf8),
                    field("tools_kwargs", structure(vec![field("search", search)])),
                ]);
                vec![
                    field("data_source", LargeUtf8),
                    field("prompt", chat()),
                    field("ability", LargeUtf8),
                    field("reward_model", reward_model(target())),
                    field("extra_info", extra),
                    field("metadata", Null),
                ]
            }
        };
        fields.extend(self.agent_name.as_ref().map(|_| field("agent_name", LargeUtf8)));
        Arc::new(Schema::new(fields))
    }

    /// Builds one row.
    fn row(&self, question: &Question, index: u64) -> Value {
        let mut row = match self.layout {
            Layout::SearchR1 => {
                let mut asked = question.question.trim().to_owned();
                // Search-R1's own preprocessor adds the question mark, so its prompts always have one.
                if !asked.ends_with('?') {
                    asked.push('?');
                }
                let prompt = format!("{}{asked}\n", instruction("search", "information"));
                json!({
                    "id": question.id,
                    "question": asked,
                    "golden_answers": question.golden_answers,
                    "data_source": self.data_source(),
                    "prompt": [{"role": "user", "content": prompt}],
                    "ability": "fact-reasoning",
                    "reward_model": {"style": "rule", "ground_truth": {"target": question.golden_answers}},
                    "extra_info": {"split": self.split, "index": index},
                })
            }
            Layout::Research => json!({
                "data_source": self.data_source(),
                "question": question.question,
                "ability": "qa",
                "reward_model": {"style": "rule", "ground_truth": question.golden_answers},
                "extra_info": {"id": question.id},
            }),
            Layout::Verl => {
                // verl's `default_compute_score` selects the reward of its search example by names with this prefix.
                let source = format!("searchR1_{}", self.data_source());
                let truth = json!({"target": question.golden_answers});
                let asked = &question.question;
                let create = json!({"ground_truth": truth, "question": asked, "data_source": source});
                let prompt = format!("{}{asked}", instruction("tool_call", "tool_response"));
                json!({
                    "data_source": source,
                    "prompt": [
                        {"role": "system", "content": "You are a helpful and harmless assistant."},
                        {"role": "user", "content": prompt},
                    ],
                    "ability": "fact-reasoning",
                    "reward_model": {"style": "rule", "ground_truth": truth},
                    "extra_info": {
                        "index": index,
                        "need_tools_kwargs": true,
                        "question": asked,
                        "split": self.split,
                        "tools_kwargs": {"search": {"create_kwargs": create}},
                    },
                })
            }
        };
        if let Some(name) = &self.agent_name {
            row["agent_name"] = json!(name);
        }
        if let Some(protocol) = &self.prompt {
            row["prompt"] = opening(protocol, &question.question);
        }
        row
    }
}

/// Returns the messages that the model reads first in a rollout.
fn opening(protocol: &ProtocolParams, question: &str) -> Value {
    // The trainer offers a search, as the rollouts had one.
    let settings = ProtocolSettings { tool: Some("search"), ..ProtocolSettings::default() };
    let mut messages = Vec::new();
    for message in protocol.open(&settings).opening(question) {
        // A message of a tool is the beginning of the model's turn.
        if message.is_opening() {
            messages.push(json!({"role": message.role, "content": message.content}));
        }
    }
    messages.into()
}

impl BlockingKernel for ConvertToVerlParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        self.warn(context);
        let (schema, mut index) = (self.schema(), 0);
        for batch in inputs.rows(QUESTIONS)?.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let (mut rows, mut indices) = (Vec::new(), Vec::new());
            for (place, question) in from_batch::<Question>(&batch)?.into_iter().enumerate() {
                // No trainer accepts a blank question.
                if question.question.trim().is_empty() {
                    outputs.reject(Unfit::new("the question is blank").reject(question.id))?;
                } else {
                    rows.push(self.row(&question, index));
                    indices.push(place as u32);
                }
                // Also after a reject: the index is that of the question in the whole table.
                index += 1;
            }
            if rows.is_empty() {
                continue;
            }
            // `flush` returns at most the batch size, so the batch size is all rows.
            let mut decoder = ReaderBuilder::new(Arc::clone(&schema)).with_batch_size(rows.len()).build_decoder()?;
            decoder.serialize(&rows)?;
            let rows =
                decoder.flush()?.ok_or_else(|| OperatorError::engine("the trainer's rows could not be built"))?;
            if let Some(name) = self.carry.iter().find(|name| rows.column_by_name(name).is_some()) {
                let message = format!("`carry`: the training rows already have a column `{name}`");
                return Err(OperatorError::pipeline(message).with_help("rename the column by `sql`"));
            }
            let questions = take_record_batch(&batch, &UInt32Array::from(indices))?;
            outputs.write(ROWS, &with_all(&rows, &carry::columns(&questions, &self.carry)?)?)?;
        }
        Ok(())
    }
}

/// Trainer that reads the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Layout {
    /// Search-R1 (PeterGriffinJin/Search-R1): prompt as chat messages, `<search>` and `<information>` tags.
    SearchR1,
    /// ReSearch (Agent-RL/ReSearch, branch re-search): the question only; the trainer adds the prompt.
    Research,
    /// verl's multi-turn search example (volcengine/verl): system and user prompt, `<tool_call>` tags, tool kwargs.
    Verl,
}

fn field(name: &str, data_type: DataType) -> Field {
    Field::new(name, data_type, true)
}

fn structure(fields: Vec<Field>) -> DataType {
    DataType::Struct(Fields::from(fields))
}

fn list(item: DataType) -> DataType {
    DataType::List(Arc::new(field("element", item)))
}

fn chat() -> DataType {
    list(structure(vec![field("role", DataType::Utf8), field("content", DataType::Utf8)]))
}

fn target() -> DataType {
    structure(vec![field("target", list(DataType::Utf8))])
}

fn reward_model(ground_truth: DataType) -> DataType {
    structure(vec![field("style", DataType::Utf8), field("ground_truth", ground_truth)])
}

/// The instruction used to train and serve Search-R1 models, word for word, up to the question.
fn instruction(call: &str, result: &str) -> String {
    format!(
        "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new \
         information. After reasoning, if you find you lack some knowledge, you can call a search engine by <{call}> \
         query </{call}> and it will return the top searched results between <{result}> and </{result}>. You can search \
         as many times as your want. If you find no further external knowledge needed, you can directly provide the \
         answer inside <answer> and </answer>, without detailed illustrations. For example, <answer> Beijing </answer>. \
         Question: "
    )
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use searchmill_engine::operator::entry;
    use searchmill_engine::operator::testing::{Harness, Outcome, inputs, rows_input};

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
    fn rows_that_a_trainer_would_not_train_on_are_told() {
        let told = |params: Value| {
            let harness = Harness::new();
            let questions = [question("a", "Who?", &["Ada"])];
            let bound = inputs([("questions", rows_input(&questions))]);
            harness.run(&entry::<ConvertToVerl>(), params, &bound).expect("runs");
            harness.logged()
        };
        let agent = json!({"layout": "verl", "data_source": "nq", "agent_name": "tool_agent"});
        assert_eq!(told(agent), Vec::<String>::new());
        let none = told(json!({"layout": "verl", "data_source": "multihop-rag"}));
        assert_eq!(none.len(), 2, "{none:?}");
        assert!(
            none[0].starts_with("warning: the trainer's own reward knows no data set `multihop-rag`: write one of nq,")
        );
        assert!(none[1].ends_with("write `agent_name: tool_agent`"), "{none:?}");
        let other = json!({"layout": "search-r1", "data_source": "r1-searcher", "prompt": "r1-searcher"});
        assert_eq!(told(other), Vec::<String>::new(), "a reward of its own");
        assert_eq!(told(json!({"layout": "research", "data_source": "nq"})).len(), 1);
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
    fn the_prompt_is_that_of_the_rollouts() {
        let params = json!({"layout": "search-r1", "data_source": "r1-searcher", "prompt": "r1-searcher"});
        let batch = run(&[question("a", "Who?", &["x"])], params).expect("runs").batch("rows");
        let shown = arrow::util::pretty::pretty_format_columns("prompt", &[Arc::clone(&batch["prompt"])]);
        let shown = shown.expect("a table").to_string();
        assert!(
            shown.contains("[{role: system, content: The User asks") && shown.contains("<|begin_of_query|>"),
            "{shown}"
        );
        assert!(shown.contains("{role: user, content: Who?}]") && !shown.contains("<search>"), "{shown}");
        let error = run(&[], json!({"layout": "research", "prompt": "r1-searcher"})).expect_err("no prompt");
        assert!(error.message.starts_with("prompt: rows of ReSearch have no prompt"), "{error}");
    }

    #[test]
    fn an_agent_name_is_a_column_of_its_own() {
        let params = json!({"layout": "verl", "data_source": "nq", "agent_name": "tool_agent"});
        let batch = run(&[question("a", "who?", &["x"])], params).expect("runs").batch("rows");
        assert_eq!(batch.schema().fields().last().expect("columns").name(), "agent_name");
        assert_eq!(batch.num_columns(), 7);
    }
}
