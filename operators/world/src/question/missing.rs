//! Null questions: they look like the others, but no document contains the answer.

use super::Draft;
use super::comparison::{MEASURES, pair};
use super::description::{Description, askable, choose, phantom};
use crate::draw::Draws;
use crate::fact::Fact;
use crate::layout::World;
use crate::phrase::fill;

/// Drafts a question that the documents cannot answer.
pub(super) fn missing(world: &World, hops: u64, draws: &mut Draws) -> Option<Draft> {
    match draws.below(4) {
        0 => unknown(world, hops, draws),
        1 => incomparable(world, hops, draws),
        _ => withheld(world, hops, draws),
    }
}

/// The last fact of the chain holds, but no document states it.
fn withheld(world: &World, hops: u64, draws: &mut Draws) -> Option<Draft> {
    // Enough walks: one fact in 16 is withheld (`WITHHELD`).
    for _ in 0..64 {
        let Some(place) = Description::walked(world, hops.max(1) - 1, draws) else { continue };
        let subject = place.entity;
        let withheld =
            askable(subject.kind).filter(|relation| world.is_withheld(Fact { subject, relation: *relation }));
        if let Some(relation) = choose(withheld, draws) {
            return Some(Draft::null("withheld", place.asked(relation.spec().ask)));
        }
    }
    None
}

/// The chain starts with a name that no document mentions.
fn unknown(world: &World, hops: u64, draws: &mut Draws) -> Option<Draft> {
    Some(Draft::null("unknown", phantom(world, hops.max(1) - 1, draws)?))
}

/// One of the two numbers is withheld.
fn incomparable(world: &World, hops: u64, draws: &mut Draws) -> Option<Draft> {
    let measure = draws.pick(&MEASURES);
    let relation = measure.relation;
    let kinds = [relation.spec().subject; 2];
    let [a, b] = (0..64).filter_map(|_| pair(world, kinds, hops, draws)).find(|pair| {
        let [a, b] = pair.each_ref().map(|place| world.is_withheld(Fact { subject: place.entity, relation }));
        // Exactly one: half of what is asked for can be found.
        a != b
    })?;
    let template = draws.word(&[measure.most, measure.least, measure.difference]);
    Some(Draft::null("incomparable", fill(template, &[("a", &a.words), ("b", &b.words)])))
}
