//! The backend of tensor operations: forward and backward passes on any device and in any precision. Memory is bounded by the
//! tokens of a pass, the logits of some of them at a time, and with `checkpointing` the activations of one layer.

use candle_core::backprop::GradStore;
use candle_core::{DType, Result, Tensor, Var};
use searchmill_kernels::training::Predictions;

use super::batch::{Batch, PassOutcome, Target, logits_at_once, temperatures};
use super::optimizer::{Gradients, add};
use super::student::Student;
use crate::decoder::{log_probabilities, product};

/// Computes the loss without gradients.
pub(super) fn evaluate(student: &Student, batch: &Batch<'_>) -> Result<PassOutcome> {
    let tokens = batch.tensor(&student.compute.device)?;
    let hidden = student.decoder.hidden(&tokens, &batch.layout)?.detach().flatten_to(1)?;
    let head = student.decoder.head_weight().detach();
    let mut outcome = PassOutcome::default();
    for chunk in batch.targets.chunks(chunk_rows(&head)?) {
        let logits = product(&hidden.index_select(&positions(chunk, &hidden)?, 0)?, &head)?;
        judge(&logits, chunk, batch, &mut outcome)?;
    }
    Ok(outcome)
}

/// Computes the loss and adds its gradients to `gradients`.
pub fn pass(
    student: &Student,
    batch: &Batch<'_>,
    checkpointing: bool,
    gradients: &mut Gradients,
) -> Result<PassOutcome> {
    let mut sums = Sums { student, gradients };
    let tokens = batch.tensor(&student.compute.device)?;
    if checkpointing {
        return by_layers(student, &tokens, batch, &mut sums);
    }
    let hidden = student.decoder.hidden(&tokens, &batch.layout)?;
    let (outcome, gradient) = head(student, &hidden.detach(), batch, &mut sums)?;
    sums.add(&backward(&hidden, &gradient)?)?;
    Ok(outcome)
}

/// Propagates the gradient of `out` back to what it was computed from.
fn backward(out: &Tensor, gradient: &Tensor) -> Result<GradStore> {
    (out * gradient.detach())?.sum_all()?.backward()
}

/// One layer at a time: the forward pass keeps only the inputs of the layers.
fn by_layers(student: &Student, tokens: &Tensor, batch: &Batch<'_>, sums: &mut Sums<'_>) -> Result<PassOutcome> {
    let decoder = &student.decoder;
    let angles = decoder.angles(&batch.layout);
    let embedded = decoder.embed(tokens)?;
    let mut inputs = vec![embedded.detach()];
    for (layer, block) in decoder.blocks.iter().enumerate() {
        inputs.push(block.forward(&inputs[layer], &batch.layout, &angles)?.detach());
    }
    let last = Var::from_tensor(&inputs.pop().unwrap_or(embedded.detach()))?;
    let hidden = decoder.finish(last.as_tensor())?;
    let (outcome, mut gradient) = head(student, &hidden.detach(), batch, sums)?;
    let grads = backward(&hidden, &gradient)?;
    gradient = of(&grads, &last)?;
    sums.add(&grads)?;
    // From the last layer on: each is computed again, with a graph of its own that is dropped behind it.
    for (block, input) in decoder.blocks.iter().zip(&inputs).rev() {
        let input = Var::from_tensor(input)?;
        let out = block.forward(input.as_tensor(), &batch.layout, &angles)?;
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
    match grads.get(var) {
        Some(gradient) => Ok(gradient.clone()),
        None => candle_core::bail!("a gradient was lost"),
    }
}

/// Returns the outcome of the last layer's vectors (rows × columns × width) and their gradient, some targets at a time.
fn head(student: &Student, hidden: &Tensor, batch: &Batch<'_>, sums: &mut Sums<'_>) -> Result<(PassOutcome, Tensor)> {
    let weight = student.decoder.head_weight();
    // A frozen layer is detached, so that no gradient of it is computed.
    let weight = if student.trains_head() { weight.clone() } else { weight.detach() };
    let flat = hidden.flatten_to(1)?;
    let mut gradient = flat.zeros_like()?;
    let mut outcome = PassOutcome::default();
    for chunk in batch.targets.chunks(chunk_rows(&weight)?) {
        let positions = positions(chunk, &flat)?;
        let rows = Var::from_tensor(&flat.index_select(&positions, 0)?)?;
        let logits = product(&rows, &weight)?;
        let grads = judge(&logits, chunk, batch, &mut outcome)?.backward()?;
        gradient = gradient.index_add(&positions, &of(&grads, &rows)?, 0)?;
        sums.add(&grads)?;
    }
    Ok((outcome, gradient.reshape(hidden.shape())?))
}

/// Rows of logits computed at a time.
fn chunk_rows(head: &Tensor) -> Result<usize> {
    Ok((logits_at_once(head.device()) / head.dim(0)?).max(16))
}

fn positions(chunk: &[Target], hidden: &Tensor) -> Result<Tensor> {
    let positions: Vec<u32> = chunk.iter().map(|target| target.position).collect();
    Tensor::from_vec(positions, chunk.len(), hidden.device())
}

/// Adds the predictions of a chunk to `outcome`. Returns a number that has the gradients of the loss.
fn judge(logits: &Tensor, chunk: &[Target], batch: &Batch<'_>, outcome: &mut PassOutcome) -> Result<Tensor> {
    let tokens: Vec<u32> = chunk.iter().map(|target| target.token).collect();
    let divisors = temperatures(chunk);
    let logits = &if divisors.is_empty() { logits.clone() } else { divided(logits, divisors)? };
    let logs = log_probabilities(logits, &tokens)?;
    let best = logits.detach().argmax(1)?.to_vec1::<u32>()?;
    let with_bonus = batch.objective.entropy_bonus().is_some();
    // Without a bonus, nothing is propagated back through the entropies.
    let logits = if with_bonus { logits.clone() } else { logits.detach() };
    let (mut measured, mut of_entropies) = (None, Vec::new());
    if batch.objective.needs_entropy() {
        let entropies = entropies(&logits)?;
        of_entropies = entropies.to_vec1::<f32>()?;
        measured = Some(entropies);
    }
    let numbers = logs.to_vec1::<f32>()?;
    let predictions = Predictions { log_probabilities: &numbers, best: &best, entropies: &of_entropies };
    let slopes = outcome.take(batch, predictions);
    let whole = weighted(&logs, slopes.log_probabilities)?;
    match measured {
        Some(entropies) if with_bonus => whole + weighted(&entropies, slopes.entropies)?,
        _ => Ok(whole),
    }
}

/// Returns the sum of the numbers, each times its slope: the gradient of a number is its slope.
fn weighted(numbers: &Tensor, slopes: Vec<f32>) -> Result<Tensor> {
    let count = slopes.len();
    (numbers * Tensor::from_vec(slopes, count, numbers.device())?)?.sum_all()
}

/// Divides each row of logits by its temperature.
fn divided(logits: &Tensor, temperatures: Vec<f32>) -> Result<Tensor> {
    let rows = temperatures.len();
    let temperatures = Tensor::from_vec(temperatures, (rows, 1), logits.device())?;
    logits.to_dtype(DType::F32)?.broadcast_div(&temperatures)
}

/// Returns the entropy of the distribution of each row of logits, in nats.
fn entropies(logits: &Tensor) -> Result<Tensor> {
    let wide = logits.to_dtype(DType::F32)?;
    let shifted = wide.broadcast_sub(&wide.detach().max_keepdim(1)?)?;
    let logs = shifted.broadcast_sub(&shifted.exp()?.sum_keepdim(1)?.log()?)?;
    (logs.exp()? * logs)?.sum(1)?.neg()
}

/// Adds gradients up by weight.
struct Sums<'a> {
    student: &'a Student,
    gradients: &'a mut Gradients,
}

impl Sums<'_> {
    fn add(&mut self, grads: &GradStore) -> Result<()> {
        for (name, var) in &self.student.weights {
            let Some(gradient) = grads.get(var) else { continue };
            add(self.gradients, name, gradient.clone())?;
        }
        Ok(())
    }
}
