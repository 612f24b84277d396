//! Forward and backward passes of a batch: by tensor operations here, by the loops of [`super::plain`] in f32 on the CPU. What lies in memory is bounded: a pass holds so many tokens, the logits of so
//! many tokens lie there at a time, and with `checkpointing` the activations of one layer at a time.

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, Var};

pub use super::batch::{Batch, Outcome, Settings, logits_at_once};
use super::example::Example;
use super::optimizer::Gradients;
use super::plain;
use super::schedule::Pass;
use super::student::Student;
use crate::decoder::{log_probabilities, product};

/// The loss of a pass without gradients.
pub fn evaluate(student: &Student, pass: &Pass, examples: &[Example]) -> Result<Outcome> {
    let batch = Batch::new(pass, examples);
    if student.compute.is_plain() {
        return plain::evaluate(student, &batch);
    }
    let tokens = batch.tensor(&student.compute.device)?;
    let hidden = student.decoder.hidden(&tokens, &batch.layout, None)?.detach();
    let hidden = hidden.flatten_to(1)?;
    let head = student.decoder.head_weight().detach();
    let mut outcome = Outcome::default();
    for chunk in batch.targets.chunks(chunk_rows(&head)?) {
        let piece = Piece::of(&hidden, chunk)?;
        piece.judge(&product(&piece.rows, &head)?, chunk, &mut outcome)?;
    }
    Ok(outcome)
}

/// The loss of a pass; its gradients are added to `gradients`.
pub fn pass(
    student: &Student,
    pass: &Pass,
    examples: &[Example],
    settings: Settings,
    gradients: &mut Gradients,
) -> Result<Outcome> {
    let mut batch = Batch::new(pass, examples);
    if let Some(dropout) = settings.dropout {
        batch.layout = batch.layout.training(dropout);
    }
    if student.compute.is_plain() {
        return plain::pass(student, &batch, settings, gradients);
    }
    by_tensors(student, &batch, settings, gradients)
}

/// The same by tensor operations, on any device and in any precision.
pub fn by_tensors(student: &Student, batch: &Batch, settings: Settings, gradients: &mut Gradients) -> Result<Outcome> {
    let mut sums = Sums { student, gradients };
    let tokens = batch.tensor(&student.compute.device)?;
    if settings.checkpointing {
        return by_layers(student, (&tokens, batch), settings.scale, &mut sums);
    }
    let hidden = student.decoder.hidden(&tokens, &batch.layout, None)?;
    let (outcome, gradient) = head(student, &hidden.detach(), &batch.targets, settings.scale, &mut sums)?;
    sums.add(&backward(&hidden, &gradient)?)?;
    Ok(outcome)
}

/// Gradients of what `out` was made of, given that of `out`.
fn backward(out: &Tensor, gradient: &Tensor) -> Result<GradStore> {
    (out * gradient.detach())?.sum_all()?.backward()
}

/// One layer at a time: forwards only the layers' inputs are kept.
fn by_layers(
    student: &Student,
    (tokens, batch): (&Tensor, &Batch),
    scale: f64,
    sums: &mut Sums<'_>,
) -> Result<Outcome> {
    let decoder = &student.decoder;
    let angles = decoder.angles(&batch.layout);
    let embedded = decoder.embed(tokens)?;
    let mut inputs = vec![embedded.detach()];
    for layer in 0..decoder.blocks().len() {
        let next = decoder.layer(layer, &inputs[layer], &batch.layout, &angles, None)?.detach();
        inputs.push(next);
    }
    let last = Var::from_tensor(&inputs.pop().unwrap_or(embedded.detach()))?;
    let hidden = decoder.finish(last.as_tensor())?;
    let (outcome, mut gradient) = head(student, &hidden.detach(), &batch.targets, scale, sums)?;
    let grads = backward(&hidden, &gradient)?;
    gradient = of(&grads, &last)?;
    sums.add(&grads)?;
    for (layer, input) in inputs.iter().enumerate().rev() {
        let input = Var::from_tensor(input)?;
        let out = decoder.layer(layer, input.as_tensor(), &batch.layout, &angles, None)?;
        let grads = backward(&out, &gradient)?;
        gradient = of(&grads, &input)?;
        sums.add(&grads)?;
    }
    if student.trains_head() {
        sums.add(&backward(&embedded, &gradient)?)?;
    }
    Ok(outcome)
}

fn of(grads: &GradStore, var: &Var) -> Result<Tensor> {
    grads.get(var).cloned().ok_or_else(|| candle_core::Error::Msg("a gradient was lost".to_owned()))
}

/// Loss and gradient of the last layer's vectors (rows × columns × dimensions), some tokens at a time.
fn head(
    student: &Student,
    hidden: &Tensor,
    targets: &[(u32, u32, f32)],
    scale: f64,
    sums: &mut Sums<'_>,
) -> Result<(Outcome, Tensor)> {
    let weight = student.decoder.head_weight();
    let weight = if student.trains_head() { weight.clone() } else { weight.detach() };
    let flat = hidden.flatten_to(1)?;
    let mut gradient = flat.zeros_like()?;
    let mut outcome = Outcome::default();
    for chunk in targets.chunks(chunk_rows(&weight)?) {
        let piece = Piece::of(&flat, chunk)?;
        let rows = Var::from_tensor(&piece.rows)?;
        let logits = product(&rows, &weight)?;
        let losses = piece.judge(&logits, chunk, &mut outcome)?;
        let grads = (losses.sum_all()? * scale)?.backward()?;
        gradient = gradient.index_add(&piece.places, &of(&grads, &rows)?, 0)?;
        sums.add(&grads)?;
    }
    Ok((outcome, gradient.reshape(hidden.shape())?))
}

/// Tokens whose logits are made at once.
fn chunk_rows(head: &Tensor) -> Result<usize> {
    Ok((logits_at_once(head.device()) / head.dim(0)?).max(16))
}

/// Some of the tokens that are predicted.
struct Piece {
    places: Tensor,
    rows: Tensor,
    tokens: Vec<u32>,
    weights: Tensor,
}

impl Piece {
    fn of(hidden: &Tensor, chunk: &[(u32, u32, f32)]) -> Result<Self> {
        let column = |place: fn(&(u32, u32, f32)) -> u32| chunk.iter().map(place).collect::<Vec<u32>>();
        let device = hidden.device();
        let places = Tensor::from_vec(column(|target| target.0), chunk.len(), device)?;
        let weights = Tensor::from_vec(chunk.iter().map(|target| target.2).collect(), chunk.len(), device)?;
        Ok(Self { rows: hidden.index_select(&places, 0)?, places, tokens: column(|target| target.1), weights })
    }

    /// The weighted losses; adds to what the pass came to.
    fn judge(&self, logits: &Tensor, chunk: &[(u32, u32, f32)], outcome: &mut Outcome) -> Result<Tensor> {
        let losses = (log_probabilities(logits, &self.tokens)? * &self.weights)?.neg()?;
        outcome.loss += losses.to_vec1::<f32>()?.into_iter().map(f64::from).sum::<f64>();
        let best = logits.detach().argmax(1)?.to_vec1::<u32>()?;
        let right = best.iter().zip(chunk).filter(|(best, target)| **best == target.1);
        outcome.right += right.map(|(_, target)| f64::from(target.2)).sum::<f64>();
        Ok(losses)
    }
}

/// Gathers gradients by weight.
struct Sums<'a> {
    student: &'a Student,
    gradients: &'a mut Gradients,
}

impl Sums<'_> {
    fn add(&mut self, grads: &GradStore) -> Result<()> {
        for (name, var) in &self.student.weights {
            let Some(gradient) = grads.get(var) else { continue };
            let sum = match self.gradients.get(name) {
                Some(sum) => (sum + gradient)?,
                None => gradient.clone(),
            };
            self.gradients.insert(name.clone(), sum);
        }
        Ok(())
    }
}

/// The weights of all tokens that these examples predict.
pub fn whole_weight(batch: &[usize], examples: &[Example]) -> f64 {
    batch.iter().map(|example| examples[*example].whole_weight()).sum()
}

/// Lengths of examples, for packing.
pub fn lengths(batch: &[usize], examples: &[Example]) -> Vec<(usize, usize)> {
    batch.iter().map(|example| (*example, examples[*example].tokens.len())).collect()
}
