//! Comparison questions: which of two is greater, by how much, and whether two share something.

use super::description::Description;
use super::{Draft, QuestionType};
use crate::draw::Draws;
use crate::entity::{Entity, Kind};
use crate::fact::Fact;
use crate::layout::World;
use crate::phrase::fill;
use crate::relation::Relation;
use crate::value::{Value, grouped};

/// A quantity to compare.
pub(super) struct Measure {
    pub(super) relation: Relation,
    pub(super) most: &'static str,
    pub(super) least: &'static str,
    /// Asks for the difference; `{a}` has the greater number.
    pub(super) difference: &'static str,
}

pub(super) const MEASURES: [Measure; 4] = [
    Measure {
        relation: Relation::Population,
        most: "Which of the two has more inhabitants: {a} or {b}?",
        least: "Which of the two has fewer inhabitants: {a} or {b}?",
        difference: "How many more inhabitants than {b} does {a} have?",
    },
    Measure {
        relation: Relation::Employees,
        most: "Which of the two employs more people: {a} or {b}?",
        least: "Which of the two employs fewer people: {a} or {b}?",
        difference: "How many more people than {b} does {a} employ?",
    },
    Measure {
        relation: Relation::Students,
        most: "Which of the two has more students: {a} or {b}?",
        least: "Which of the two has fewer students: {a} or {b}?",
        difference: "How many more students than {b} does {a} have?",
    },
    Measure {
        relation: Relation::Area,
        most: "Which of the two covers the larger area: {a} or {b}?",
        least: "Which of the two covers the smaller area: {a} or {b}?",
        difference: "How many square kilometres more than {b} does {a} cover?",
    },
];

/// Returns descriptions of two different entities with `hops - 2` facts in total.
pub(super) fn pair(world: &World, kinds: [Kind; 2], hops: u64, draws: &mut Draws) -> Option<[Description; 2]> {
    // The two compared numbers are facts as well.
    let steps = hops.max(2) - 2;
    let first = draws.below(steps + 1);
    let a = Description::of(world, kinds[0], first, draws)?;
    let b = Description::of(world, kinds[1], steps - first, draws)?;
    // Otherwise a question would compare an entity with itself, or lead to one through the other.
    let apart = a.entity != b.entity && !touches(&a, b.entity) && !touches(&b, a.entity);
    apart.then_some([a, b])
}

/// Whether the description passes through that entity.
fn touches(description: &Description, entity: Entity) -> bool {
    description.facts.iter().any(|fact| fact.subject == entity)
}

/// Drafts a comparison supported by about `hops` facts, at least two.
pub(super) fn comparison(world: &World, hops: u64, draws: &mut Draws) -> Option<Draft> {
    match draws.below(20) {
        0..2 => shared(world, draws),
        2..10 => which(world, hops, draws),
        _ => difference(world, hops, draws),
    }
}

fn measured(world: &World, measure: &Measure, hops: u64, draws: &mut Draws) -> Option<[(Description, u64); 2]> {
    let relation = measure.relation;
    let [a, b] = pair(world, [relation.spec().subject; 2], hops, draws)?;
    let left = world.stated(Fact { subject: a.entity, relation })?.number()?;
    let right = world.stated(Fact { subject: b.entity, relation })?.number()?;
    // Equal numbers have no greater one.
    if left == right { None } else { Some([(a, left), (b, right)]) }
}

/// Returns the facts that describe both entities, and the compared facts.
pub(super) fn all_facts(measured: [(&Description, Relation); 2]) -> Vec<Fact> {
    let mut facts = Vec::new();
    for (description, relation) in measured {
        let last = Fact { subject: description.entity, relation };
        for fact in description.facts.iter().chain([&last]) {
            if !facts.contains(fact) {
                facts.push(*fact);
            }
        }
    }
    facts
}

fn which(world: &World, hops: u64, draws: &mut Draws) -> Option<Draft> {
    let measure = draws.pick(&MEASURES);
    let [(a, left), (b, right)] = measured(world, measure, hops, draws)?;
    let most = draws.one_in(2);
    let winner = if (left > right) == most { &a } else { &b };
    let template = if most { measure.most } else { measure.least };
    let text = fill(template, &[("a", &a.words), ("b", &b.words)]);
    let mut draft = Draft::new(QuestionType::Comparison, "which", text);
    draft.answers = world.answers(Value::Entity(winner.entity));
    draft.options = vec![a.words.clone(), b.words.clone()];
    draft.facts = all_facts([(&a, measure.relation), (&b, measure.relation)]);
    Some(draft)
}

fn difference(world: &World, hops: u64, draws: &mut Draws) -> Option<Draft> {
    let measure = draws.pick(&MEASURES);
    let [mut a, mut b] = measured(world, measure, hops, draws)?;
    if a.1 < b.1 {
        std::mem::swap(&mut a, &mut b);
    }
    let text = fill(measure.difference, &[("a", &a.0.words), ("b", &b.0.words)]);
    let mut draft = Draft::new(QuestionType::Comparison, "difference", text);
    draft.answers = vec![grouped(a.1 - b.1)];
    // Models write thousands with and without a comma.
    draft.answers.extend((a.1 - b.1 >= 1_000).then(|| (a.1 - b.1).to_string()));
    draft.facts = all_facts([(&a.0, measure.relation), (&b.0, measure.relation)]);
    Some(draft)
}

/// Drafts a question answered by yes or no, each with equal probability.
fn shared(world: &World, draws: &mut Draws) -> Option<Draft> {
    let (relation, template) = *draws.pick(&[
        (Relation::Industry, "Are {a} and {b} in the same industry?"),
        (Relation::Province, "Do {a} and {b} lie in the same province?"),
    ]);
    // Drawn first: with random pairs, the answer would mostly be no.
    let wanted = draws.one_in(2);
    let kind = relation.spec().subject;
    let one = world.any(kind, draws);
    let value = world.stated(Fact { subject: one, relation });
    let other = match relation {
        // Neighbours share their province.
        Relation::Province if wanted => Entity { kind, index: one.index ^ 1 },
        _ => (0..64).map(|_| world.any(kind, draws)).find(|other| {
            let others = world.stated(Fact { subject: *other, relation });
            *other != one && others.is_some() && (others == value) == wanted
        })?,
    };
    let (a, b) = (Description::named(world, one), Description::named(world, other));
    value?;
    let mut draft = Draft::new(QuestionType::Comparison, "shared", fill(template, &[("a", &a.words), ("b", &b.words)]));
    draft.answers = vec![if wanted { "Yes" } else { "No" }.to_owned()];
    draft.facts = all_facts([(&a, relation), (&b, relation)]);
    Some(draft)
}
