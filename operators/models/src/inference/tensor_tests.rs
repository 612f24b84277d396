//! Generation by tensor operations (the code that runs on a GPU), compared with the loops and transformers.

use std::sync::Arc;

use candle_core::{DType, Device};
use searchmill_fixtures::models::{byte_tokenizer, folder, model_folder};

use super::engine;
use super::generator::Generator;
use super::network::{Network, Piece, Scratch};
use super::tensor_network::TensorNetwork;
use super::tests::{finished, prompt, request};
use super::*;
use crate::decoder::Decoder;
use crate::decoder::tests::{decoder, reference};
use crate::device::Precision;

const FAMILIES: [&str; 4] = ["qwen2", "qwen3", "llama", "qwen3_linear"];

fn tensors(family: &str, rows: usize) -> Generator {
    Generator::Tensors(TensorNetwork::new(&decoder(family), rows, 64).unwrap())
}

fn loops(family: &str) -> Generator {
    Generator::Loops(Network::new(&decoder(family)).unwrap())
}

/// Returns the logits of each row's last token after each step; `steps` are the tokens read per row and step.
fn read(generator: &mut Generator, rows: &[Vec<u32>], steps: &[Vec<usize>]) -> Vec<Vec<f32>> {
    let (mut scratch, mut out) = (Scratch::default(), Vec::new());
    let mut slots: Vec<_> = rows.iter().map(|_| generator.empty().unwrap()).collect();
    for counts in steps {
        let mut pieces = Vec::new();
        for ((slot, row), count) in slots.iter_mut().zip(rows).zip(counts).filter(|(_, count)| **count > 0) {
            let at = slot.tokens.len();
            pieces.push(Piece { slot, tokens: &row[at..at + count], wanted: 1 });
        }
        let mut logits = Vec::new();
        generator.read(&mut pieces, &mut scratch, &mut logits).unwrap();
        out.push(logits);
    }
    out
}

fn relative_error(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0_f32, |most, number| most.max(number.abs()));
    found.iter().zip(expected).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

/// Sixteen rows of different lengths that read texts, single tokens, both in one step, or nothing.
#[test]
fn logits_of_a_ragged_batch_are_those_of_the_loops() {
    let rows: Vec<Vec<u32>> = (0..16).map(|row| (0..40).map(|at| (at * 7 + row * 13) % 90 + 3).collect()).collect();
    let steps: Vec<Vec<usize>> = vec![
        (0..16).map(|row| 1 + row * 5 % 17).collect(),
        vec![1; 16],
        (0..16).map(|row| if row % 3 == 0 { 6 } else { 1 }).collect(),
        (0..16).map(|row| usize::from(row > 4 && row % 2 == 1)).collect(),
        (0..16).map(|row| usize::from(row == 9)).collect(),
        (0..16).map(|row| if row == 2 { 5 } else { 0 }).collect(),
        vec![1; 16],
    ];
    for family in FAMILIES {
        let found = read(&mut tensors(family, 16), &rows, &steps);
        let expected = read(&mut loops(family), &rows, &steps);
        for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let error = relative_error(found, expected);
            assert!(error < 1e-4, "{family}, step {step}: {error}");
        }
    }
}

#[test]
fn bf16_is_near_the_loops() {
    let decoder = Decoder::load(&folder("qwen3"), &Device::Cpu, DType::BF16).unwrap();
    let mut half = Generator::Tensors(TensorNetwork::new(&decoder, 2, 64).unwrap());
    let rows = [prompt(0), prompt(2)];
    let steps = [vec![10, 12], vec![1, 1]];
    let (found, expected) = (read(&mut half, &rows, &steps), read(&mut loops("qwen3"), &rows, &steps));
    assert!(relative_error(&found[1], &expected[1]) < 0.06);
}

#[test]
fn greedy_continuations_are_those_of_transformers() {
    for family in FAMILIES {
        let reference = reference(family);
        let tokens = reference["one.tokens"].squeeze(0).unwrap().to_vec1::<u32>().unwrap();
        let expected = reference["greedy"].squeeze(0).unwrap().to_vec1::<u32>().unwrap();
        let limits = Limits { rows: 2, context: 64, tokens: usize::MAX, kept: 1, prompt_tokens: 3 };
        let model = engine::start(tensors(family, 3), Arc::new(byte_tokenizer()), limits, 1).unwrap();
        let greedy =
            || Request { sampling: Sampling::GREEDY, stop_tokens: Arc::from([]), ..request(&tokens[..8], 0, 24) };
        let sent: Vec<_> = (0..5).map(|_| model.send(greedy())).collect();
        for found in sent.into_iter().map(finished) {
            assert_eq!(found.tokens, expected, "{family}");
        }
    }
}

/// More rows than places, with common prefixes: slots are copied, taken over and returned.
#[test]
fn sampled_rows_are_those_of_the_loops() {
    let limits = Limits { rows: 3, context: 64, tokens: usize::MAX, kept: 2, prompt_tokens: 16 };
    let start = |generator| engine::start(generator, Arc::new(byte_tokenizer()), limits, 1).unwrap();
    let (tensors, loops) = (start(tensors("qwen3", 5)), start(loops("qwen3")));
    let all = |model: &engine::JobSender| -> Vec<Completion> {
        let sent: Vec<_> = (0..24).map(|row| model.send(request(&prompt(row), row as u64, 12))).collect();
        sent.into_iter().map(finished).collect()
    };
    let (found, expected) = (all(&tensors), all(&loops));
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.tokens, expected.tokens);
    }
    assert!(found.iter().map(|row| row.reused).sum::<usize>() >= 9 * 20, "common prefixes are read once");
}

#[test]
fn a_model_in_bf16_answers_and_what_does_not_fit_is_refused_with_the_numbers() {
    let made = model_folder(64);
    let compute = Compute::on_cpu(Precision::Bf16);
    let opening = Opening { rows: 4, context: None, threads: 1, memory: None, compute };
    let model = TextModel::open(made.path(), None, opening.clone()).unwrap();
    let done = model.start(request(&[97, 98], 1, 5)).map(finished).unwrap();
    assert!(!done.tokens.is_empty() || done.finish == Finish::Stop);
    let config = Decoder::read_config(made.path()).unwrap();
    let small = Opening { memory: Some(1000), ..opening.clone() };
    let error = TextModel::open(made.path(), None, small).err().unwrap().message;
    assert!(error.contains("the model needs 1 MiB (weights 1"), "{error}");
    let need = inference_need(&config, 3, 64, 2);
    let limits = planned(&config, 40, 64, Some(need.total()), &opening.compute).unwrap();
    assert_eq!((limits.rows, limits.kept), (3, 0), "as many rows as there is room for");
}
