//! The facts of the world: the object of each relation, whether documents state it, and the stating sentence.

use super::entity::{Entity, Kind, Role};
use super::layout::{World, purpose};
use super::phrase::{article, fill};
use super::relation::{Object, Relation};
use super::value::{Date, Value};

/// One in this many withholdable facts is withheld; null questions ask for those.
const WITHHELD: u64 = 16;

const INDUSTRIES: [&str; 12] = [
    "shipping",
    "optics",
    "textiles",
    "ceramics",
    "robotics",
    "brewing",
    "paper making",
    "pharmaceuticals",
    "clockmaking",
    "timber",
    "telecommunications",
    "fisheries",
];

/// A relation of a subject: a fact that documents can state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fact {
    pub(crate) subject: Entity,
    pub(crate) relation: Relation,
}

/// A person's employers.
struct Career {
    first: u64,
    joined: u64,
    moved: u64,
    /// `None` for politicians.
    current: Option<u64>,
}

impl World {
    fn relation_draws(&self, relation: Relation, index: u64) -> super::draw::Draws {
        self.draws(purpose::RELATION + relation as u64, index)
    }

    fn any_index(&self, relation: Relation, index: u64, kind: Kind) -> u64 {
        self.relation_draws(relation, index).below(self.count(kind))
    }

    fn birth(&self, person: u64) -> Date {
        let mut draws = self.relation_draws(Relation::BirthDate, person);
        // Every month has 28 days.
        Date { year: draws.between(1938, 1972), month: draws.between(1, 12), day: draws.between(1, 28) }
    }

    /// Returns an older person found within a few tries, if any.
    fn mentor(&self, person: u64) -> Option<u64> {
        let year = self.birth(person).year;
        let mut draws = self.relation_draws(Relation::Mentor, person);
        let mut tries = (0..8).map(|_| draws.below(self.count(Kind::Person)));
        tries.find(|other| self.birth(*other).year + 8 <= year)
    }

    fn founder(&self, company: u64) -> u64 {
        Role::Executive.person(self.founders.forward(company))
    }

    fn founded(&self, company: u64) -> u64 {
        self.birth(self.founder(company)).year + self.relation_draws(Relation::Founded, company).between(22, 33)
    }

    fn career(&self, person: u64) -> Career {
        let mut draws = self.relation_draws(Relation::Employer, person);
        let companies = self.count(Kind::Company);
        let current = match Role::of(person) {
            Role::Executive => Some(self.executives.inverse(Role::Executive.ordinal(person))),
            Role::Mayor => None,
            Role::Artist => Some(draws.below(companies)),
        };
        // The first employer is another one: otherwise nobody would have moved.
        let mut first = draws.below(companies);
        if Some(first) == current {
            first = (first + 1) % companies;
        }
        // Nobody joins a company before it was founded.
        let joined = (self.birth(person).year + draws.between(22, 26)).max(self.founded(first));
        let opened = current.map_or(0, |company| self.founded(company));
        let moved = (joined + draws.between(2, 11)).max(opened + 1);
        Career { first, joined, moved, current }
    }

    /// Returns the other company of a pair. Partnership is symmetric.
    fn partner(&self, company: u64) -> Option<u64> {
        Some(company ^ 1).filter(|partner| *partner < self.count(Kind::Company))
    }

    fn release(&self, work: u64) -> u64 {
        let creator = Role::Artist.person(self.artists.forward(work));
        self.birth(creator).year + self.relation_draws(Relation::Release, work).between(24, 46)
    }

    /// Returns the object of the relation, or `None` if the relation does not hold.
    pub fn value(&self, fact: Fact) -> Option<Value> {
        let (relation, i) = (fact.relation, fact.subject.index);
        match relation.spec().object {
            Object::Entity(kind) => self.target(relation, i, kind).map(|index| Value::Entity(Entity { kind, index })),
            Object::Date => Some(Value::Date(self.birth(i))),
            Object::Year => Some(Value::Year(self.year(relation, i))),
            Object::Count => {
                let (low, high, unit) = match relation {
                    Relation::Population => (180, 9_400, 100),
                    Relation::Students => (130, 4_200, 10),
                    Relation::Area => (210, 9_800, 10),
                    _ => (30, 5_200, 10),
                };
                Some(Value::Count(self.relation_draws(relation, i).between(low, high) * unit))
            }
            Object::Industry => Some(Value::Industry(self.relation_draws(relation, i).word(&INDUSTRIES))),
        }
    }

    fn target(&self, relation: Relation, i: u64, kind: Kind) -> Option<u64> {
        match relation {
            Relation::Mentor => self.mentor(i),
            Relation::FirstEmployer => Some(self.career(i).first),
            Relation::Employer => self.career(i).current,
            Relation::Founder => Some(self.founder(i)),
            Relation::Partner => self.partner(i),
            Relation::ChiefExecutive => Some(Role::Executive.person(self.executives.forward(i))),
            Relation::Mayor => Some(Role::Mayor.person(self.mayors.forward(i))),
            // The number of cities is even: each has a twin.
            Relation::Twin => Some(i ^ 1),
            // The cities of one unit share a province, which `Capital` finds by the inverse.
            Relation::Province => Some(self.provinces.forward(i / Kind::City.per_unit())),
            Relation::Capital => {
                let cities = Kind::City.per_unit();
                Some(self.provinces.inverse(i) * cities + self.relation_draws(relation, i).below(cities))
            }
            // There are as many artists as works.
            Relation::Patron => Some(Role::Artist.person(self.any_index(relation, i, Kind::Work))),
            Relation::Creator => Some(Role::Artist.person(self.artists.forward(i))),
            Relation::Winner => Some(self.winners.forward(i)),
            _ => Some(self.any_index(relation, i, kind)),
        }
    }

    fn year(&self, relation: Relation, i: u64) -> u64 {
        match relation {
            Relation::Founded => self.founded(i),
            Relation::Release => self.release(i),
            Relation::Charter => self.relation_draws(relation, i).between(1180, 1790),
            _ => self.relation_draws(relation, i).between(1790, 1935),
        }
    }

    /// Returns the years in a fact's sentence: when it began or happened, and when it ended. 0 if there is none.
    pub fn years(&self, fact: Fact) -> (u64, u64) {
        let i = fact.subject.index;
        match fact.relation {
            Relation::FirstEmployer => {
                let career = self.career(i);
                (career.joined, career.moved)
            }
            Relation::Employer => (self.career(i).moved, 0),
            Relation::Partner => {
                // The year is that of the pair: both partners have the stream `i / 2`.
                let youngest = self.founded(i).max(self.partner(i).map_or(0, |partner| self.founded(partner)));
                (youngest + self.relation_draws(Relation::Partner, i / 2).between(2, 11), 0)
            }
            Relation::Winner => {
                let waited = self.relation_draws(Relation::Winner, i).between(1, 2);
                (self.release(self.winners.forward(i)) + waited, 0)
            }
            _ => (0, 0),
        }
    }

    /// Whether the fact holds but no document states it.
    pub(crate) fn is_withheld(&self, fact: Fact) -> bool {
        let mut draws = self.draws(purpose::TELLING + fact.relation as u64, fact.subject.index);
        // The draw first: it rules out most facts without their values.
        draws.one_in(WITHHELD) && fact.relation.spec().withholdable && self.value(fact).is_some()
    }

    /// Returns the value if a document states it.
    pub(crate) fn stated(&self, fact: Fact) -> Option<Value> {
        if self.is_withheld(fact) { None } else { self.value(fact) }
    }

    /// Returns the sentence that states the fact in its document, or `None` if no document states it.
    pub fn sentence(&self, fact: Fact) -> Option<String> {
        let value = self.stated(fact)?;
        // The complement of the index, so that the wording does not depend on the draw of `is_withheld`.
        let mut draws = self.draws(purpose::TELLING + fact.relation as u64, !fact.subject.index);
        let template = draws.word(&fact.relation.spec().sentences);
        let (first, second) = self.years(fact);
        // The form of the work that the sentence is about; any if it is about none.
        let object = value.entity().filter(|object| object.kind == Kind::Work);
        let form = self.form(object.unwrap_or(fact.subject).index);
        Some(fill(
            template,
            &[
                ("s", &self.name(fact.subject)),
                ("o", &self.written(value)),
                ("y", &first.to_string()),
                ("z", &second.to_string()),
                ("a", article(form.noun)),
                ("form", form.noun),
                ("verb", form.verb),
                ("part", form.participle),
                ("released", form.released),
            ],
        ))
    }

    /// Returns the position of the document that states a fact.
    pub(crate) fn source_of(&self, fact: Fact) -> u64 {
        self.position(fact.subject, fact.relation.spec().aspect)
    }
}
