//! Assigns documents to subjects and posts to entities.

use super::draw::{Draws, Permutation};
use super::entity::{ARTISTS, EXECUTIVES, Entity, Kind, MAYORS};
use super::stem::STEMS;

/// Documents per unit of the world: 48 about its 19 entities, and two digests.
pub(crate) const UNIT: u64 = 50;

/// Purposes of random streams. Each use of randomness has its own.
pub(crate) mod purpose {
    // Another number would change all worlds: numbers are only added.
    pub(crate) const PLACE: u64 = 1;
    pub(crate) const STEM: u64 = 2;
    pub(crate) const EXECUTIVE: u64 = 3;
    pub(crate) const MAYOR: u64 = 4;
    pub(crate) const ARTIST: u64 = 5;
    pub(crate) const FOUNDER: u64 = 6;
    pub(crate) const WINNER: u64 = 7;
    pub(crate) const ARTICLE: u64 = 8;
    pub(crate) const QUESTION: u64 = 9;
    pub(crate) const TITLE: u64 = 10;
    pub(crate) const PROVINCE: u64 = 11;
    /// Plus the kind: names and innate properties of an entity.
    pub(crate) const ENTITY: u64 = 100;
    /// Plus the relation: the object of an entity's relation.
    pub(crate) const RELATION: u64 = 200;
    /// Plus the relation: whether and how documents state it.
    pub(crate) const TELLING: u64 = 300;
}

/// Names reserved for questions about people and companies that no document mentions.
pub(crate) const PHANTOMS: u64 = 200_000;

/// The subject of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// One aspect of one entity.
    Aspect(Entity, u64),
    /// News in brief; the number counts the digests.
    Digest(u64),
}

/// A world of a given seed and size.
pub struct World {
    pub seed: u64,
    pub documents: u64,
    pub units: u64,
    pub distractors: u64,
    places: Permutation,
    pub(crate) stems: Permutation,
    pub(crate) executives: Permutation,
    pub(crate) mayors: Permutation,
    pub(crate) artists: Permutation,
    pub(crate) founders: Permutation,
    pub(crate) winners: Permutation,
    pub(crate) provinces: Permutation,
}

impl World {
    /// Creates a world of `documents` documents (at least 100) with up to `distractors` misleading sentences each.
    pub fn new(seed: u64, documents: u64, distractors: u64) -> Self {
        let units = documents / UNIT;
        Self {
            seed,
            documents,
            units,
            distractors,
            // Shuffled: the documents of one entity do not stand together.
            places: Permutation::new(seed, purpose::PLACE, documents),
            stems: Permutation::new(seed, purpose::STEM, STEMS),
            executives: Permutation::new(seed, purpose::EXECUTIVE, units * EXECUTIVES),
            mayors: Permutation::new(seed, purpose::MAYOR, units * MAYORS),
            artists: Permutation::new(seed, purpose::ARTIST, units * ARTISTS),
            founders: Permutation::new(seed, purpose::FOUNDER, units * EXECUTIVES),
            winners: Permutation::new(seed, purpose::WINNER, units * Kind::Work.per_unit()),
            provinces: Permutation::new(seed, purpose::PROVINCE, units),
        }
    }

    /// Returns the number of entities of a kind.
    pub fn count(&self, kind: Kind) -> u64 {
        self.units * kind.per_unit()
    }

    /// Returns the random stream of a purpose and index.
    pub fn draws(&self, purpose: u64, index: u64) -> Draws {
        Draws::new(self.seed, purpose, index)
    }

    /// Returns a random entity of a kind.
    pub(crate) fn any(&self, kind: Kind, draws: &mut Draws) -> Entity {
        Entity { kind, index: draws.below(self.count(kind)) }
    }

    /// Returns the subject of the document at a position.
    pub fn subject(&self, position: u64) -> Subject {
        let slot = self.places.inverse(position);
        let (unit, mut offset) = (slot / UNIT, slot % UNIT);
        if unit >= self.units {
            // The documents behind the last whole unit.
            return Subject::Digest(self.units * Self::digests_per_unit() + slot - self.units * UNIT);
        }
        for kind in Kind::ALL {
            let size = kind.per_unit() * kind.aspects();
            if offset < size {
                let index = unit * kind.per_unit() + offset / kind.aspects();
                return Subject::Aspect(Entity { kind, index }, offset % kind.aspects());
            }
            offset -= size;
        }
        Subject::Digest(unit * Self::digests_per_unit() + offset)
    }

    /// Returns the position of the document about an aspect of an entity.
    pub(crate) fn position(&self, entity: Entity, aspect: u64) -> u64 {
        let before = Kind::ALL.iter().take_while(|kind| **kind != entity.kind);
        let offset: u64 = before.map(|kind| kind.per_unit() * kind.aspects()).sum();
        let (unit, local) = (entity.index / entity.kind.per_unit(), entity.index % entity.kind.per_unit());
        self.places.forward(unit * UNIT + offset + local * entity.kind.aspects() + aspect)
    }

    fn digests_per_unit() -> u64 {
        UNIT - Kind::ALL.iter().map(|kind| kind.per_unit() * kind.aspects()).sum::<u64>()
    }

    /// Returns the number of stems of entities: the first ones.
    pub(crate) fn stems_of_entities(&self) -> u64 {
        Kind::ALL.iter().map(|kind| self.count(*kind)).sum()
    }

    /// Returns the first of the [`PHANTOMS`] stems behind those of entities and digests. Background names have the rest.
    pub(crate) fn first_phantom(&self) -> u64 {
        self.stems_of_entities() + self.documents - self.units * (UNIT - Self::digests_per_unit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_document_has_one_subject_and_every_aspect_one_document() {
        let world = World::new(3, 337, 0);
        let mut digests = Vec::new();
        for position in 0..world.documents {
            match world.subject(position) {
                Subject::Aspect(entity, aspect) => assert_eq!(world.position(entity, aspect), position),
                Subject::Digest(number) => digests.push(number),
            }
        }
        digests.sort_unstable();
        assert_eq!(digests, (0..world.documents - world.units * 48).collect::<Vec<_>>());
    }
}
