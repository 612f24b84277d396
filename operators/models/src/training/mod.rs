//! Training a decoder: examples, objectives, forward and backward passes, the optimiser, and the loop over steps.
//!
//! `fit` is the loop: steps, checkpoints, evaluation, early stopping. Order, dropout and learning rate are functions of
//! seed and step, so a training resumed from a checkpoint gives the same bits. `step` runs the passes of a step. Two
//! backends compute a pass:
//!
//! - `plain` passes the weights to the loops of `searchmill_kernels::training`, in f32 on the CPU. Layers store what
//!   the backward pass needs, or recompute it with `checkpointing`. Blocks have a fixed size, so no bit depends on the
//!   number of threads.
//! - `tensors` uses tensor operations, for bf16 and GPUs. Trained weights stay in f32 and are cast where they are used;
//!   the frozen base of an adapter has the precision of the computation.
//!
//! A test compares the gradients of the backends; others compare both with torch.
//!
//! An `objective::Objective` sees no logits. For each predicted token it gets the example, the position and the
//! log-probability, and returns the loss and its slope. The example carries all other data. A step returns the
//! log-probabilities of the predicted tokens of each example, in order and unpadded. Logits are held for some tokens at a
//! time, and their slopes are needed before they are freed. Therefore an objective whose loss of a token depends on other
//! tokens (`objective::Coupling`) reads the examples of a step twice: the second time, all slopes are known.
//!
//! `objective::Sft` is supervised fine-tuning. `policy_gradient` is the clipped loss of PPO, GRPO and REINFORCE++; its
//! examples are rollouts with advantages (`rollouts`) and recorded tokens (`recorded`). `preference` is the loss of DPO; its
//! examples are the sides of `pairs`. `scored` computes log-probabilities under a reference model.
//!
//! `train` only turns params into settings and outputs into ports. External trainers (`operators/src/train/outside`)
//! get examples as JSONL, an empty folder and a log for figures. Such a training is `Seeded` by its key but not
//! repeatable, so `audit` checks its record and does not run it again.

pub mod batch;
pub mod example;
pub mod fit;
pub mod learning_rate;
pub mod memory;
pub mod objective;
pub mod optimizer;
pub mod packing;
pub mod pairs;
pub mod policy_gradient;
pub mod preference;
pub mod recorded;
mod plain;
#[cfg(test)]
mod reference_tests;
#[cfg(test)]
mod reference_rl_tests;
pub mod rollouts;
pub mod scored;
pub mod state;
pub mod step;
#[cfg(test)]
mod step_tests;
pub mod student;
pub mod tensors;
pub mod throughput;
