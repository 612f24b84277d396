//! Parquet rows of questions for search-agent RL trainers: ReSearch, Search-R1 and verl's search example.
//!
//! Columns, their order and types match the trainers' own preprocessors (pandas and `datasets`): text is `LargeUtf8`
//! at the top level and `Utf8` in nested fields, list items are named `element`, and every field is nullable.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use schemars::JsonSchema;
use searchmill_schemas::Question;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

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

/// Values that every row contains besides its question.
pub(crate) struct Labels {
    pub(crate) data_source: String,
    pub(crate) split: String,
    pub(crate) agent_name: Option<String>,
}

impl Layout {
    /// The columns; `agent_name` is last, if present.
    pub(crate) fn schema(self, agent_name: bool) -> SchemaRef {
        let mut fields = match self {
            Self::SearchR1 => search_r1_fields(),
            Self::Research => research_fields(),
            Self::Verl => verl_fields(),
        };
        if agent_name {
            fields.push(field("agent_name", DataType::LargeUtf8));
        }
        Arc::new(Schema::new(fields))
    }

    /// Builds one row; `None` if the question is blank (no trainer accepts it).
    pub(crate) fn row(self, question: &Question, index: u64, labels: &Labels) -> Option<Value> {
        if question.question.trim().is_empty() {
            return None;
        }
        let mut row = match self {
            Self::SearchR1 => search_r1_row(question, index, labels),
            Self::Research => research_row(question, labels),
            Self::Verl => verl_row(question, index, labels),
        };
        if let Some(name) = &labels.agent_name {
            row["agent_name"] = json!(name);
        }
        Some(row)
    }
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

fn search_r1_fields() -> Vec<Field> {
    let extra = structure(vec![field("split", DataType::Utf8), field("index", DataType::Int64)]);
    vec![
        field("id", DataType::LargeUtf8),
        field("question", DataType::LargeUtf8),
        field("golden_answers", list(DataType::Utf8)),
        field("data_source", DataType::LargeUtf8),
        field("prompt", chat()),
        field("ability", DataType::LargeUtf8),
        field("reward_model", reward_model(target())),
        field("extra_info", extra),
    ]
}

fn search_r1_row(question: &Question, index: u64, labels: &Labels) -> Value {
    let mut asked = question.question.trim().to_owned();
    if !asked.ends_with('?') {
        asked.push('?');
    }
    let prompt = format!("{}{asked}\n", instruction("search", "information"));
    json!({
        "id": question.id,
        "question": asked,
        "golden_answers": question.golden_answers,
        "data_source": labels.data_source,
        "prompt": [{"role": "user", "content": prompt}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": question.golden_answers}},
        "extra_info": {"split": labels.split, "index": index},
    })
}

fn research_fields() -> Vec<Field> {
    vec![
        field("data_source", DataType::LargeUtf8),
        field("question", DataType::LargeUtf8),
        field("ability", DataType::LargeUtf8),
        field("reward_model", reward_model(list(DataType::Utf8))),
        field("extra_info", structure(vec![field("id", DataType::Utf8)])),
    ]
}

fn research_row(question: &Question, labels: &Labels) -> Value {
    json!({
        "data_source": labels.data_source,
        "question": question.question,
        "ability": "qa",
        "reward_model": {"style": "rule", "ground_truth": question.golden_answers},
        "extra_info": {"id": question.id},
    })
}

fn verl_fields() -> Vec<Field> {
    let create = structure(vec![
        field("ground_truth", target()),
        field("question", DataType::Utf8),
        field("data_source", DataType::Utf8),
    ]);
    let search = structure(vec![field("create_kwargs", create)]);
    let extra = structure(vec![
        field("index", DataType::Int64),
        field("need_tools_kwargs", DataType::Boolean),
        field("question", DataType::Utf8),
        field("split", DataType::Utf8),
        field("tools_kwargs", structure(vec![field("search", search)])),
    ]);
    vec![
        field("data_source", DataType::LargeUtf8),
        field("prompt", chat()),
        field("ability", DataType::LargeUtf8),
        field("reward_model", reward_model(target())),
        field("extra_info", extra),
        field("metadata", DataType::Null),
    ]
}

fn verl_row(question: &Question, index: u64, labels: &Labels) -> Value {
    let source = format!("searchR1_{}", labels.data_source);
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
            "split": labels.split,
            "tools_kwargs": {"search": {"create_kwargs": create}},
        },
    })
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
