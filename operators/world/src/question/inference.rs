//! Inference questions: follow a chain of relations to its end.

use super::description::{Description, askable, choose};
use super::{Draft, QuestionType};
use crate::draw::Draws;
use crate::fact::Fact;
use crate::layout::World;

/// Drafts a question over a chain of `hops` facts.
pub(super) fn inference(world: &World, hops: u64, draws: &mut Draws) -> Option<Draft> {
    let place = Description::walked(world, hops.max(1) - 1, draws)?;
    let relation = choose(askable(place.entity.kind), draws)?;
    let last = Fact { subject: place.entity, relation };
    let value = world.stated(last)?;
    let mut draft = Draft::new(QuestionType::Inference, "chain", place.asked(relation.spec().ask));
    draft.answers = world.answers(value);
    draft.facts = place.facts;
    // A chain that returns to its answer, or a question that names it, gives the answer away.
    let returns = draft.facts.iter().any(|fact| Some(fact.subject) == value.entity());
    if returns || draft.text.contains(&draft.answers[0]) {
        return None;
    }
    draft.facts.push(last);
    Some(draft)
}
