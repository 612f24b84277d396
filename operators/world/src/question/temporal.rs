//! Temporal questions: which event came first, how much time lies between two, what held at the time of one.

use super::comparison::{all_facts, pair};
use super::description::Description;
use super::{Draft, QuestionType};
use crate::draw::Draws;
use crate::entity::{Entity, Kind};
use crate::fact::Fact;
use crate::layout::World;
use crate::phrase::fill;
use crate::relation::Relation;
use crate::value::Value;

/// A dated event in the life of an entity.
struct Event {
    relation: Relation,
    /// The event as a noun phrase.
    noun: &'static str,
    /// The event as a clause.
    clause: &'static str,
}

const EVENTS: [Event; 5] = [
    Event { relation: Relation::Founded, noun: "the foundation of {s}", clause: "{s} was founded" },
    Event { relation: Relation::Release, noun: "the first appearance of {s}", clause: "{s} first appeared" },
    Event { relation: Relation::BirthDate, noun: "the birth of {s}", clause: "{s} was born" },
    Event { relation: Relation::Charter, noun: "the city charter of {s}", clause: "{s} received its city charter" },
    Event { relation: Relation::SchoolFounded, noun: "the establishment of {s}", clause: "{s} was established" },
];
/// The first events of the list can fall into a person's working life.
const RECENT: usize = 2;

impl Event {
    fn kind(&self) -> Kind {
        self.relation.spec().subject
    }

    fn year(&self, world: &World, subject: Entity) -> Option<u64> {
        match world.stated(Fact { subject, relation: self.relation })? {
            Value::Date(date) => Some(date.year),
            value => value.number(),
        }
    }
}

/// Drafts a temporal question supported by about `hops` facts, at least two.
pub(super) fn temporal(world: &World, hops: u64, draws: &mut Draws) -> Option<Draft> {
    match draws.below(10) {
        0..3 => first(world, hops, draws),
        3..6 => employer(world, hops, draws),
        _ => elapsed(world, hops, draws),
    }
}

fn first(world: &World, hops: u64, draws: &mut Draws) -> Option<Draft> {
    let left = draws.pick(&EVENTS);
    // Neither event is always the earlier one.
    let is_recent = EVENTS[..RECENT].iter().any(|event| event.relation == left.relation);
    let right = if is_recent { draws.pick(&EVENTS[..RECENT]) } else { left };
    let [a, b] = pair(world, [left.kind(), right.kind()], hops, draws)?;
    let (a_year, b_year) = (left.year(world, a.entity)?, right.year(world, b.entity)?);
    if a_year == b_year {
        return None;
    }
    let earlier = draws.one_in(2);
    let template = if earlier { "Which came first: {a} or {b}?" } else { "Which came later: {a} or {b}?" };
    let options = [a.asked(left.noun), b.asked(right.noun)];
    let text = fill(template, &[("a", &options[0]), ("b", &options[1])]);
    let mut draft = Draft::new(QuestionType::Temporal, "first", text);
    let (event, winner) = if (a_year < b_year) == earlier { (left, &a) } else { (right, &b) };
    let named = Description::named(world, winner.entity);
    draft.answers = vec![named.asked(event.noun), named.words];
    draft.answers.extend(world.answers(Value::Entity(winner.entity)));
    draft.answers.dedup();
    draft.options = options.to_vec();
    draft.facts = all_facts([(&a, left.relation), (&b, right.relation)]);
    Some(draft)
}

fn elapsed(world: &World, hops: u64, draws: &mut Draws) -> Option<Draft> {
    let (left, right) = (draws.pick(&EVENTS), draws.pick(&EVENTS));
    let [a, b] = pair(world, [left.kind(), right.kind()], hops, draws)?;
    let years = left.year(world, a.entity)?.abs_diff(right.year(world, b.entity)?);
    // With 1, the second answer would read `1 years`.
    if years < 2 {
        return None;
    }
    let template = "Going by calendar years, how many years lie between {a} and {b}?";
    let text = fill(template, &[("a", &a.asked(left.noun)), ("b", &b.asked(right.noun))]);
    let mut draft = Draft::new(QuestionType::Temporal, "elapsed", text);
    draft.answers = vec![years.to_string(), format!("{years} years")];
    draft.facts = all_facts([(&a, left.relation), (&b, right.relation)]);
    Some(draft)
}

/// Asks for a person's employer in the year of an event.
fn employer(world: &World, hops: u64, draws: &mut Draws) -> Option<Draft> {
    let person = Description::named(world, world.any(Kind::Person, draws));
    let event = draws.pick(&EVENTS[..RECENT]);
    let other = Description::of(world, event.kind(), hops.max(2) - 2, draws)?;
    let year = event.year(world, other.entity)?;
    let first = Fact { subject: person.entity, relation: Relation::FirstEmployer };
    let (joined, moved) = world.years(first);
    // In the years of joining and moving, a person has more than one employer, or none.
    let relation = match year {
        year if year > joined && year < moved => Relation::FirstEmployer,
        year if year > moved => Relation::Employer,
        _ => return None,
    };
    let post = Fact { subject: person.entity, relation };
    let value = world.stated(post)?;
    let template = "Which company did {p} work for in the year in which {e}?";
    let text = fill(template, &[("p", &person.words), ("e", &other.asked(event.clause))]);
    let mut draft = Draft::new(QuestionType::Temporal, "employer", text);
    draft.answers = world.answers(value);
    draft.facts = all_facts([(&other, event.relation), (&person, relation)]);
    // The event of the employer itself would name the answer.
    let circular = Some(other.entity) == value.entity() || draft.text.contains(&draft.answers[0]);
    (!circular).then_some(draft)
}
