//! Questions about the world, composed from facts, so that answers and evidence are known.

mod comparison;
mod description;
mod draft;
mod inference;
mod missing;
mod temporal;

use std::ops::RangeInclusive;

pub use draft::{Draft, QuestionType};

use super::layout::{World, purpose};

/// Drafts question `number` of a type, with `hops` facts if the type allows so few. Returns `None` if this `attempt`
/// fails.
pub fn draft(world: &World, kind: QuestionType, hops: RangeInclusive<u64>, number: u64, attempt: u64) -> Option<Draft> {
    // The low 16 bits name the purpose: no other use has the same stream.
    let draws = &mut world.draws(purpose::QUESTION + (attempt << 16), number);
    let hops = draws.between(*hops.start(), *hops.end());
    match kind {
        QuestionType::Inference => inference::inference(world, hops, draws),
        QuestionType::Comparison => comparison::comparison(world, hops, draws),
        QuestionType::Temporal => temporal::temporal(world, hops, draws),
        QuestionType::Null => missing::missing(world, hops, draws),
    }
}
