//! Describes an entity without naming it: "the founder of the company that …".

use crate::draw::Draws;
use crate::entity::{Entity, FORMS, Form, Kind};
use crate::fact::Fact;
use crate::layout::World;
use crate::phrase::fill;
use crate::relation::{Object, Relation};

/// An entity, the words that refer to it, and the facts needed to resolve them.
#[derive(Clone)]
pub(super) struct Description {
    pub(super) words: String,
    pub(super) entity: Entity,
    pub(super) facts: Vec<Fact>,
    /// The form of the work, if the entity is a work.
    form: &'static Form,
}

/// Limit of attempts for a walk.
const TRIES: usize = 48;

impl Description {
    /// Describes the entity by its name.
    pub(super) fn named(world: &World, entity: Entity) -> Self {
        let form = world.form(entity.index);
        let words = mention(entity.kind, &world.name(entity), form);
        Self { words, entity, facts: Vec::new(), form }
    }

    /// Walks `steps` relations from a random entity; `None` if no document states one of them or one leads back.
    pub(super) fn walked(world: &World, steps: u64, draws: &mut Draws) -> Option<Self> {
        let mut place = Self::named(world, world.any(*draws.pick(&Kind::ALL), draws));
        for _ in 0..steps {
            let relation = bridge(place.entity.kind, draws)?;
            let fact = Fact { subject: place.entity, relation };
            let entity = world.stated(fact)?.entity()?;
            if entity == place.entity || place.facts.iter().any(|passed| passed.subject == entity) {
                return None;
            }
            place.words = worded(relation.spec().noun, &place.words, place.form);
            place.facts.push(fact);
            (place.entity, place.form) = (entity, world.form(entity.index));
        }
        Some(place)
    }

    /// Walks `steps` relations from a random entity to one of that kind.
    pub(super) fn of(world: &World, kind: Kind, steps: u64, draws: &mut Draws) -> Option<Self> {
        if steps == 0 {
            return Some(Self::named(world, world.any(kind, draws)));
        }
        let mut walks = (0..TRIES).filter_map(|_| Self::walked(world, steps, draws));
        walks.find(|description| description.entity.kind == kind)
    }

    /// Fills `template` with the description and the words for a work's form.
    pub(super) fn asked(&self, template: &str) -> String {
        worded(template, &self.words, self.form)
    }
}

/// Asks about something that no document mentions, at the end of `steps` relations.
pub(super) fn phantom(world: &World, steps: u64, draws: &mut Draws) -> Option<String> {
    let mut kind = *draws.pick(&Kind::ALL);
    let mut last = None;
    // What does not exist has no form of its own: one is drawn.
    let mut form: &'static Form = draws.pick(&FORMS);
    let mut words = mention(kind, &world.phantom(kind, draws), form);
    for _ in 0..steps {
        let relation = bridge(kind, draws).filter(|next| follows(last, *next))?;
        words = worded(relation.spec().noun, &words, form);
        if let Object::Entity(next) = relation.spec().object {
            kind = next;
        }
        last = Some(relation);
        form = draws.pick(&FORMS);
    }
    let relation = choose(askable(kind), draws).filter(|next| follows(last, *next))?;
    Some(worded(relation.spec().ask, &words, form))
}

/// Whether a relation may follow another. Mayors have no employer, so asking for one would give the question away.
fn follows(last: Option<Relation>, next: Relation) -> bool {
    last != Some(Relation::Mayor) || next != Relation::Employer
}

/// Returns a random relation of that kind that leads to an entity.
fn bridge(kind: Kind, draws: &mut Draws) -> Option<Relation> {
    choose(Relation::about(kind).filter(|relation| !relation.spec().noun.is_empty()), draws)
}

/// Returns a random relation, if there are any.
pub(super) fn choose(relations: impl Iterator<Item = Relation>, draws: &mut Draws) -> Option<Relation> {
    let all: Vec<Relation> = relations.collect();
    if all.is_empty() { None } else { Some(*draws.pick(&all)) }
}

/// Returns the relations of that kind that can end a question.
pub(super) fn askable(kind: Kind) -> impl Iterator<Item = Relation> {
    Relation::about(kind).filter(|relation| !relation.spec().ask.is_empty())
}

/// Fills a question's template for an entity of that form.
fn worded(template: &str, words: &str, form: &Form) -> String {
    fill(template, &[("s", words), ("verb", form.verb), ("released", form.released)])
}

/// Returns how a question names an entity.
fn mention(kind: Kind, name: &str, form: &Form) -> String {
    match kind {
        Kind::Work => format!("the {} {name}", form.noun),
        Kind::Award => format!("the {name}"),
        _ => name.to_owned(),
    }
}
