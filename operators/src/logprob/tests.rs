//! Tests of `logprob` against the tensor path, with batches of any size.

use arrow::array::{AsArray, ListArray};
use arrow::datatypes::{Float32Type, Float64Type};
use candle_core::{DType, Device, Tensor};
use searchmill_engine::operator::entry;
use searchmill_engine::operator::testing::{Harness, Outcome, inputs, rows_input, tree_input};
use searchmill_fixtures::models::model_folder;
use searchmill_models::decoder::{Decoder, Layout, log_probabilities};
use searchmill_schemas::Role;
use serde_json::{Value, json};

use super::*;
use crate::shared::relation::testing::trajectories;

fn run(folder: &tempfile::TempDir, rows: &[Trajectory], batch_rows: usize, params: Value) -> Outcome {
    let mut harness = Harness::new();
    harness.batch_rows = batch_rows;
    let bound = inputs([("trajectories", rows_input(rows)), ("model", tree_input(TreeKind::Model, folder.path()))]);
    harness.run(&entry::<Logprob>(), params, &bound).expect("runs")
}

/// Rollouts without tool definitions: each byte is a token here, so definitions would be slow to process.
fn short(count: usize) -> Vec<Trajectory> {
    let mut rows = trajectories(count);
    for row in &mut rows {
        row.tools = "[]".to_owned();
    }
    rows
}

fn tokens(list: &ListArray, row: usize) -> Vec<f32> {
    list.value(row).as_primitive::<Float32Type>().values().to_vec()
}

#[test]
fn figures_are_those_of_the_whole_text_and_do_not_depend_on_batches() {
    let (folder, rows) = (model_folder(4096), short(3));
    let outcome = run(&folder, &rows, 8192, json!({"span": "prediction"}));
    let batch = outcome.batch("trajectories");
    let column = |name: &str| batch.column_by_name(name).unwrap_or_else(|| panic!("{name}"));
    let (sums, means) =
        (column("logprob").as_primitive::<Float64Type>(), column("logprob_mean").as_primitive::<Float64Type>());
    let scorer = Scorer::open(folder.path(), None, None, None, &Compute::cpu()).unwrap();
    let decoder = Decoder::load(folder.path(), &Device::Cpu, DType::F32).unwrap();
    let row = 2;
    let before = rows[row].messages[..rows[row].messages.len() - 1].iter();
    let messages: Vec<_> = before.map(|message| chat_message(message, false)).collect();
    let prompt =
        scorer.template().prompt(&messages, &parse_tools(&rows[row].tools).unwrap(), &BTreeMap::new()).unwrap().text;
    assert!(prompt.contains("<tool_response>\n") && prompt.ends_with("<|im_start|>assistant\n"), "{prompt}");
    let tokenizer = searchmill_models::inference::read_tokenizer(folder.path(), decoder.config()).unwrap();
    let text = tokenizer.encode(format!("{prompt}<answer>Answer {row}"), false).unwrap();
    let (ids, count) = (text.get_ids(), text.get_ids().len());
    let input = Tensor::from_slice(ids, (1, count), &Device::Cpu).unwrap();
    let logits = decoder.logits(&decoder.hidden(&input, &Layout::whole(1, count)).unwrap()).unwrap();
    let logits = logits.squeeze(0).unwrap().narrow(0, count - 9, 8).unwrap();
    let expected = log_probabilities(&logits, &ids[count - 8..]).unwrap().to_vec1::<f32>().unwrap();
    let found = tokens(column("logprob_tokens").as_list::<i32>(), row);
    assert_eq!(found.len(), "Answer 2".len(), "a token is a byte");
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-3, "{found} {expected}");
    }
    let sum: f64 = found.iter().map(|number| f64::from(*number)).sum();
    assert!((sums.value(row) - sum).abs() < 1e-9 && (means.value(row) - sum / 8.0).abs() < 1e-9);
    for batch_rows in [1, 2] {
        assert_eq!(run(&folder, &rows, batch_rows, json!({"span": "prediction"})).batch("trajectories"), batch);
    }
}

#[test]
fn the_likelier_of_several_golden_answers_counts() {
    let folder = model_folder(4096);
    let mut rows = short(1);
    let mean = |rows: &[Trajectory]| {
        let batch = run(&folder, rows, 8192, json!({})).batch("trajectories");
        let text = batch.column_by_name("logprob_text").unwrap().as_string::<i32>().value(0).to_owned();
        (batch.column_by_name("logprob_mean").unwrap().as_primitive::<Float64Type>().value(0), text)
    };
    let both = mean(&rows);
    let golden = rows[0].golden_answers.clone();
    let alone: Vec<_> = golden
        .iter()
        .map(|answer| {
            rows[0].golden_answers = vec![answer.clone()];
            mean(&rows)
        })
        .collect();
    assert_eq!(both, alone.into_iter().max_by(|one, other| one.0.total_cmp(&other.0)).unwrap());
}

#[test]
fn what_cannot_be_scored_is_rejected_with_the_reason() {
    let (narrow, wide) = (model_folder(64), model_folder(4096));
    let mut rows = short(2);
    let rejects = run(&narrow, &rows, 8192, json!({})).rejects();
    assert_eq!(rejects.len(), 2);
    assert!(rejects[0].message.contains("tokens, the model's context 64"), "{}", rejects[0].message);
    rows[0].golden_answers.clear();
    rows[1].messages.truncate(2);
    let rejects = run(&wide, &rows, 8192, json!({})).rejects();
    let told: Vec<_> = rejects.iter().map(|reject| reject.message.as_str()).collect();
    assert_eq!(told, ["there is no golden answer", "the model said nothing"]);
}

/// GPU test: bf16 results must be close to f32.
#[test]
fn figures_in_bf16_are_near() {
    let (folder, rows) = (model_folder(4096), short(2));
    let mean = |params: Value| -> Vec<f64> {
        let batch = run(&folder, &rows, 8192, params).batch("trajectories");
        batch.column_by_name("logprob_mean").unwrap().as_primitive::<Float64Type>().values().to_vec()
    };
    let (half, whole) = (mean(json!({"span": "prediction", "dtype": "bf16"})), mean(json!({"span": "prediction"})));
    for (half, whole) in half.iter().zip(&whole) {
        assert!((half - whole).abs() < 0.03 * whole.abs(), "{half} {whole}");
        assert!(half != whole, "it is another computation");
    }
}

#[test]
fn an_answer_takes_the_place_of_the_prediction_in_one_text() {
    let folder = model_folder(4096);
    let mut row = crate::shared::conversion::testing::one_text();
    row.prediction = "c".to_owned();
    row.golden_answers = vec!["c".to_owned()];
    let list = |params: Value| {
        let batch = run(&folder, std::slice::from_ref(&row), 8192, params).batch("trajectories");
        let column = batch.column_by_name("logprob_tokens").expect("tokens").clone();
        tokens(column.as_list::<i32>(), 0)
    };
    let turn = list(json!({"span": "last_turn"}));
    let place = " <answer>".len();
    for span in ["prediction", "gold_answer"] {
        assert_eq!(list(json!({"span": span})), turn[place..=place], "{span}");
    }
    let ended = Message::text(Role::Assistant, "<answer>a</answer>");
    let alone =
        Trajectory { prediction: "a".to_owned(), messages: [&row.messages[..2], &[ended]].concat(), ..row.clone() };
    assert_eq!(
        frame(&alone, &alone.messages[2].content),
        Ok(("<answer>", "</answer>")),
        "not the `a` of the closing tag, and no search is needed"
    );
    let silent = Trajectory { prediction: String::new(), ..row.clone() };
    let rejects = run(&folder, &[silent], 8192, json!({})).rejects();
    assert!(rejects[0].message.contains("no answer whose place"), "{}", rejects[0].message);
}

#[test]
fn in_turns_the_gold_answer_takes_the_place_of_a_last_turn_without_answer() {
    let folder = model_folder(4096);
    let mut row = short(1).remove(0);
    (row.protocol, row.tools, row.prediction) = ("searchlm".to_owned(), "[]".to_owned(), String::new());
    row.golden_answers = vec!["Ada".to_owned()];
    let last = row.messages.iter().rposition(Message::is_model).expect("a turn");
    let score = |said: &str, params: Value| {
        let mut row = row.clone();
        said.clone_into(&mut row.messages[last].content);
        run(&folder, &[row], 8192, params)
    };
    let cut = score("<QUERY> and so", json!({})).batch("trajectories");
    let list = |batch: &RecordBatch| {
        let column = batch.column_by_name("logprob_tokens").expect("tokens").clone();
        tokens(column.as_list::<i32>(), 0)
    };
    assert_eq!(list(&cut), list(&score("Ada", json!({"span": "last_turn"})).batch("trajectories")));
    assert_eq!(score("<QUERY> and so", json!({"span": "prediction"})).rejects().len(), 1, "there is no prediction");
}
