//! Twenty steps compared with torch and PEFT (`scripts/reference_training.py`).

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};

use super::example::Example;
use super::learning_rate::{Decay, Rate};
use super::objective::Sft;
use super::optimizer::{AdamParams, AdamW, Gradients, norm};
use super::state;
use super::step::{self, Settings};
use super::student::{LoraParams, Student, Tuning};
use crate::device::{Compute, Precision};

pub(super) fn reference(name: &str) -> BTreeMap<String, Tensor> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/training").join(name);
    candle_core::safetensors::load(path, &Device::Cpu).expect("reference").into_iter().collect()
}

pub(super) fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap()
}

/// Returns the recorded sequences: tokens, and which of them are learnt.
pub(super) fn examples(reference: &BTreeMap<String, Tensor>) -> Vec<Example> {
    let (tokens, learnt) = (numbers(&reference["tokens"]), numbers(&reference["learnt"]));
    let mut at = 0;
    let cut = numbers(&reference["lengths"]).into_iter().map(|length| {
        let range = at..at + length as usize;
        at = range.end;
        Example {
            id: String::new(),
            question: String::new(),
            tokens: tokens[range.clone()].iter().map(|token| *token as u32).collect(),
            learnt: learnt[range].iter().map(|learnt| *learnt > 0.0).collect(),
            weight: 1.0,
            sampled: None,
            paired: None,
        }
    });
    cut.collect()
}

/// Returns losses and gradient norms of twenty steps, in passes of at most `most` tokens.
fn train(student: &Student, examples: &[Example], most: usize) -> (Vec<f64>, Vec<f64>) {
    let rate = Rate { peak: 1e-2, warmup: 3, total: 20, decay: Decay::Cosine };
    let mut adam = AdamW::new(AdamParams::default());
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    for step in 0..20 {
        let batch: Vec<usize> = (0..4).map(|place| (step * 4 + place) % examples.len()).collect();
        let settings = Settings { objective: &Sft::default(), pass_tokens: most, checkpointing: false, dropout: None };
        let mut gradients = Gradients::new();
        let loss = step::learn(student, &batch, examples, settings, &mut gradients).unwrap().loss;
        let length = norm(&gradients).unwrap();
        let clip = (1.0 / (length + 1e-6)).min(1.0);
        adam.step(&student.weights, &gradients, rate.at(step as u64), clip).unwrap();
        losses.push(loss);
        norms.push(length);
    }
    (losses, norms)
}

fn check(student: &Student, reference: &BTreeMap<String, Tensor>, most: usize) {
    let (losses, norms) = train(student, &examples(reference), most);
    let apart = |found: &[f64], wanted: &Tensor| {
        found.iter().zip(numbers(wanted)).map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max)
    };
    let (loss, norm) = (apart(&losses, &reference["losses"]), apart(&norms, &reference["norms"]));
    assert!(
        loss < 1e-3 && norm < 1e-2,
        "{most} tokens a pass: losses within {loss:.1e}, norms within {norm:.1e}; {losses:.4?}"
    );
    assert!(losses[19] < losses[0] - 0.5, "it learns");
}

pub(super) fn model() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/qwen3")
}

#[test]
fn twenty_steps_of_all_weights_are_those_of_torch() {
    let reference = reference("full.safetensors");
    for most in [10_000, 50] {
        check(&Student::load(&model(), &Tuning::Full, 0, &Compute::cpu()).unwrap(), &reference, most);
    }
}

/// Loads the student of an adapter that starts as PEFT's.
fn adapted(reference: &BTreeMap<String, Tensor>, compute: &Compute) -> Student {
    let lora = LoraParams { rank: 4, alpha: 8.0, dropout: 0.0, ..LoraParams::default() };
    let student = Student::load(&model(), &Tuning::Lora(lora), 0, compute).unwrap();
    for (name, var) in &student.weights {
        let start = reference[&format!("start/{name}")].flatten_all().unwrap().to_vec1::<f32>().unwrap();
        state::set(var, start).unwrap();
    }
    student
}

#[test]
fn twenty_steps_of_an_adapter_are_those_of_peft() {
    let reference = reference("lora.safetensors");
    check(&adapted(&reference, &Compute::cpu()), &reference, 10_000);
}

/// The code that runs on a GPU: bf16 over f32 weights, and an adapter on a bf16 model. Losses stay near those of torch in f32.
#[test]
fn twenty_steps_in_bf16_stay_near() {
    let (full, lora) = (reference("full.safetensors"), reference("lora.safetensors"));
    let compute = Compute::on_cpu(Precision::Bf16);
    let students = [
        ("full", &full, Student::load(&model(), &Tuning::Full, 0, &compute).unwrap()),
        ("lora", &lora, adapted(&lora, &compute)),
    ];
    for (name, reference, student) in students {
        assert!(student.weights.values().all(|var| var.dtype() == DType::F32), "trained weights are kept in f32");
        let (losses, _) = train(&student, &examples(reference), 10_000);
        for (found, wanted) in losses.iter().zip(numbers(&reference["losses"])) {
            assert!((found - wanted).abs() < 0.05 * wanted, "{name}: {losses:.3?}");
        }
    }
}
