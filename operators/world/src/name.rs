//! Invents names of entities, of unmentioned things, and of background people and firms.

use super::draw::Draws;
use super::entity::{Entity, FORMS, Form, Kind, Role};
use super::layout::{PHANTOMS, World, purpose};
use super::stem::{MIDDLES, ONSETS, STEMS, stem};

// Those that are there twice are drawn twice as often.
const VOWELS: [&str; 10] = ["a", "e", "i", "o", "u", "a", "e", "o", "é", "ö"];
const CITY_ENDS: [&str; 4] = ["a", "o", "e", "ia"];
const COMPANY_ENDS: [&str; 8] =
    ["Group", "Works", "Holdings", "Partners", "Industries", "Union", "Brothers", "Associates"];
const SCHOOL_ENDS: [&str; 4] = ["University", "College", "Academy", "Polytechnic"];
const AWARD_ENDS: [&str; 4] = ["Prize", "Medal", "Award", "Laurel"];
const TITLES: [&str; 14] = [
    "The Lanterns of {}",
    "A Winter in {}",
    "The {} Letters",
    "{} Rising",
    "Return to {}",
    "The Last Train to {}",
    "Songs from {}",
    "The Clockmaker of {}",
    "Beneath {}",
    "{} and the Sea",
    "The Orchard at {}",
    "Nine Days in {}",
    "The {} Inheritance",
    "Leaving {}",
];

impl World {
    /// Returns a stem by its number: first those of entities, then those of digests.
    pub(crate) fn stem(&self, number: u64) -> String {
        stem(self.stems.forward(number % STEMS))
    }

    /// Returns the random stream of an entity itself.
    pub(crate) fn innate(&self, entity: Entity) -> Draws {
        self.draws(purpose::ENTITY + entity.kind as u64, entity.index)
    }

    /// Returns the unique word in an entity's name.
    pub(crate) fn stem_of(&self, entity: Entity) -> String {
        // Numbers of stems are unique over all kinds.
        let before = Kind::ALL.iter().take_while(|kind| **kind != entity.kind);
        self.stem(before.map(|kind| self.count(*kind)).sum::<u64>() + entity.index)
    }

    /// Returns the full name.
    pub(crate) fn name(&self, entity: Entity) -> String {
        let mut draws = self.innate(entity);
        compose(entity.kind, &self.stem_of(entity), &mut draws)
    }

    /// Returns a name of that kind that no document mentions.
    pub(crate) fn phantom(&self, kind: Kind, draws: &mut Draws) -> String {
        let stem = self.stem(self.first_phantom() + draws.below(PHANTOMS));
        compose(kind, &stem, draws)
    }

    /// Returns a background name of that kind, which belongs to no entity of the world.
    pub(crate) fn passer_by(&self, kind: Kind, draws: &mut Draws) -> String {
        let first = self.first_phantom() + PHANTOMS;
        let stem = self.stem(first + draws.below(STEMS - first));
        compose(kind, &stem, draws)
    }

    /// Returns the form of a work.
    pub fn form(&self, work: u64) -> &'static Form {
        let number = self.draws(purpose::TITLE, work).below(FORMS.len() as u64);
        &FORMS[number as usize]
    }

    /// Returns a person's trade.
    pub(crate) fn trade(&self, person: u64) -> &'static str {
        const EXECUTIVES: [&str; 5] = ["engineer", "chemist", "economist", "merchant", "designer"];
        const MAYORS: [&str; 4] = ["lawyer", "physician", "surveyor", "teacher"];
        // From the other end of the indices: `form` has streams of the same purpose.
        let mut draws = self.draws(purpose::TITLE, u64::MAX - person);
        match Role::of(person) {
            Role::Executive => draws.word(&EXECUTIVES),
            Role::Mayor => draws.word(&MAYORS),
            Role::Artist => self.form(self.artists.inverse(Role::Artist.ordinal(person))).maker,
        }
    }
}

fn compose(kind: Kind, stem: &str, draws: &mut Draws) -> String {
    match kind {
        Kind::Person => {
            let is_woman = draws.one_in(2);
            let ends =
                if is_woman { ["a", "e", "ia", "ine", "éa", "iel"] } else { ["an", "ik", "or", "us", "el", "em"] };
            let given = [draws.word(&ONSETS), draws.word(&VOWELS), draws.word(&MIDDLES[..20]), draws.word(&ends)];
            format!("{} {stem}", given.concat())
        }
        Kind::Company => format!("{stem} {}", draws.word(&COMPANY_ENDS)),
        Kind::City => format!("{stem}{}", draws.word(&CITY_ENDS)),
        Kind::Province => format!("{stem}ina"),
        Kind::School => format!("{stem} {}", draws.word(&SCHOOL_ENDS)),
        Kind::Work => draws.word(&TITLES).replace("{}", stem),
        Kind::Award => format!("{stem} {}", draws.word(&AWARD_ENDS)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_of_all_kinds_are_distinct_and_phantoms_are_nobody() {
        let world = World::new(11, 2_000, 0);
        let all: Vec<_> = Kind::ALL
            .into_iter()
            .flat_map(|kind| (0..world.count(kind)).map(move |index| Entity { kind, index }))
            .collect();
        let names: BTreeSet<_> = all.iter().map(|entity| world.name(*entity)).collect();
        assert_eq!(names.len(), all.len());
        let mut draws = Draws::new(0, 0, 0);
        for _ in 0..1_000 {
            assert!(!names.contains(&world.phantom(Kind::City, &mut draws)));
            assert!(!names.contains(&world.passer_by(Kind::Person, &mut draws)));
        }
    }
}
