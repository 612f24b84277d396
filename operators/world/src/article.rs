//! Renders articles: the facts of one aspect of an entity, as news mixed with colour and misleading asides.

use searchmill_schemas::Document;
use serde_json::json;

use super::draw::Draws;
use super::entity::{Entity, Kind};
use super::fact::Fact;
use super::layout::{Subject, World, purpose};
use super::lexicon::{BACKGROUND, DIGEST, ENDINGS, colour, near_misses, openings, titles};
use super::phrase::{article, capitalised, fill, fill_by};
use super::relation::Relation;

const PAPERS: [&str; 8] = ["Courier", "Gazette", "Herald", "Observer", "Chronicle", "Post", "Mercury", "Review"];
/// Number of newspapers in the world.
const NEWSROOMS: u64 = 32;

/// A kind of sentence in an article.
#[derive(Clone, Copy)]
enum Piece {
    Fact(Fact),
    Colour(&'static str),
    Aside(&'static str),
}

impl World {
    /// Returns the id of the document at a position.
    pub fn document_id(position: u64) -> String {
        format!("doc-{position:07}")
    }

    /// Returns the title of the document at a position, unique in the world.
    pub fn title(&self, position: u64) -> String {
        match self.subject(position) {
            Subject::Aspect(entity, aspect) => {
                let number = entity.kind as u64 * 8 + aspect;
                // Kind and aspect stand above the bits of the purpose: titles of one entity are drawn independently.
                let mut draws = self.draws(purpose::TITLE + (number << 16), entity.index);
                fill(draws.word(titles(entity.kind, aspect)), &[("s", &self.name(entity))])
            }
            Subject::Digest(number) => {
                format!("News in brief from the {} desk", self.stem(self.stems_of_entities() + number))
            }
        }
    }

    /// Returns the document at a position.
    pub fn document(&self, position: u64) -> Document {
        let mut draws = self.draws(purpose::ARTICLE, position);
        let (text, category) = match self.subject(position) {
            Subject::Aspect(entity, aspect) => (self.body(entity, aspect, &mut draws), entity.kind.category()),
            Subject::Digest(_) => (self.digest(&mut draws), "news"),
        };
        let newsroom = draws.below(NEWSROOMS);
        // A newsroom has one name in all articles.
        let mut paper = self.draws(purpose::TITLE, newsroom);
        let stem = self.passer_by(Kind::City, &mut paper);
        let source = format!("The {stem} {}", paper.word(&PAPERS));
        let (year, month, day) = (draws.between(2021, 2025), draws.between(1, 12), draws.between(1, 28));
        let (hour, minute, second) = (draws.between(5, 22), draws.below(60), draws.below(60));
        let metadata = json!({
            "source": source,
            "published_at": format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}+00:00"),
            "category": category,
            "author": self.passer_by(Kind::Person, &mut draws),
            "url": format!("https://paper{newsroom}.example/{year}/{month:02}/{}", Self::document_id(position)),
        });
        let (id, title) = (Self::document_id(position), Some(self.title(position)));
        Document { id, title, text, metadata: Some(metadata.to_string()) }
    }

    fn body(&self, entity: Entity, aspect: u64, draws: &mut Draws) -> String {
        let mut teller = Teller::new(self, entity);
        teller.say(draws.word(openings(entity.kind)), draws);
        let pieces = self.pieces(entity, aspect, draws);
        let half = pieces.len().div_ceil(2);
        for (place, piece) in pieces.into_iter().enumerate() {
            if place == half {
                teller.text.push_str("\n\n");
            }
            teller.tell(piece, draws);
        }
        teller.say(draws.word(ENDINGS), draws);
        teller.text
    }

    /// Returns the sentences between the first and the last, shuffled.
    fn pieces(&self, entity: Entity, aspect: u64, draws: &mut Draws) -> Vec<Piece> {
        let facts = Relation::of(entity.kind, aspect).map(|relation| Piece::Fact(Fact { subject: entity, relation }));
        let mut pieces: Vec<Piece> = facts.collect();
        pieces.extend(several(colour(entity.kind), draws.between(3, 6), draws).map(Piece::Colour));
        pieces.extend(several(near_misses(entity.kind), self.distractors.div_ceil(2), draws).map(Piece::Aside));
        pieces.extend(several(BACKGROUND, self.distractors / 2, draws).map(Piece::Aside));
        draws.shuffle(&mut pieces);
        pieces
    }

    fn digest(&self, draws: &mut Draws) -> String {
        let anybody = self.any(Kind::Person, draws);
        let mut teller = Teller::new(self, anybody);
        for (place, item) in several(DIGEST, draws.between(4, 6), draws).enumerate() {
            if place > 0 {
                teller.text.push_str("\n\n");
            }
            teller.say(item, draws);
        }
        teller.text
    }
}

/// Returns `count` distinct entries, or all.
fn several(list: &[&'static str], count: u64, draws: &mut Draws) -> impl Iterator<Item = &'static str> + use<> {
    let mut chosen = list.to_vec();
    draws.shuffle(&mut chosen);
    chosen.into_iter().take(count as usize)
}

/// Writes sentences and tracks what a pronoun would refer to.
struct Teller<'a> {
    world: &'a World,
    entity: Entity,
    name: String,
    text: String,
    /// Whether the subject was mentioned last.
    in_focus: bool,
}

impl<'a> Teller<'a> {
    fn new(world: &'a World, entity: Entity) -> Self {
        Self { world, entity, name: world.name(entity), text: String::with_capacity(1024), in_focus: false }
    }

    fn tell(&mut self, piece: Piece, draws: &mut Draws) {
        match piece {
            Piece::Fact(fact) => {
                if let Some(sentence) = self.world.sentence(fact) {
                    self.append(&sentence);
                    let object = self.world.stated(fact).and_then(super::value::Value::entity);
                    let is_person = self.entity.kind == Kind::Person;
                    // After a name for which the pronoun could stand as well, it would be ambiguous.
                    self.in_focus = object.is_none_or(|object| (object.kind == Kind::Person) != is_person);
                }
            }
            Piece::Colour(template) => self.say(template, draws),
            Piece::Aside(template) => {
                self.say(template, draws);
                // An aside may end with another name, which a pronoun would then stand for.
                self.in_focus = false;
            }
        }
    }

    fn append(&mut self, sentence: &str) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push(' ');
        }
        self.text.push_str(sentence);
    }

    fn say(&mut self, template: &str, draws: &mut Draws) {
        let sentence = fill_by(template, |key| self.word(key, draws).into());
        self.append(&capitalised(&sentence));
    }

    fn word(&mut self, key: &str, draws: &mut Draws) -> String {
        match key {
            "s" | "They" | "they" | "their" => {
                let word = match key {
                    "s" => self.name.clone(),
                    "their" => self.pronoun(["its", "her", "his"], "'s"),
                    _ => self.pronoun(["it", "she", "he"], ""),
                };
                self.in_focus = true;
                word
            }
            "trade" => self.world.trade(self.entity.index).to_owned(),
            "a" => article(self.world.trade(self.entity.index)).to_owned(),
            "form" => self.world.form(self.entity.index).noun.to_owned(),
            "n" => draws.between(3, 40).to_string(),
            "passer" => self.world.passer_by(Kind::Person, draws),
            "firm" => self.world.passer_by(Kind::Company, draws),
            "person" => self.other(Kind::Person, draws),
            "company" => self.other(Kind::Company, draws),
            "city" => self.other(Kind::City, draws),
            "school" => self.other(Kind::School, draws),
            "work" => self.other(Kind::Work, draws),
            _ => self.other(Kind::Award, draws),
        }
    }

    /// Returns the name of a random entity of the kind other than the subject.
    fn other(&self, kind: Kind, draws: &mut Draws) -> String {
        let mut entity = self.world.any(kind, draws);
        if entity == self.entity {
            entity.index = (entity.index + 1) % self.world.count(kind);
        }
        self.world.name(entity)
    }

    /// Returns the pronoun for a thing, a woman or a man. Where it would be ambiguous, returns a name with an ending: the
    /// family name of a person, else the full name.
    fn pronoun(&self, [thing, woman, man]: [&str; 3], ending: &str) -> String {
        match (self.in_focus, self.entity.kind) {
            (false, Kind::Person) => self.world.stem_of(self.entity) + ending,
            (false, Kind::Award) => format!("the {}{ending}", self.name),
            (false, _) => format!("{}{ending}", self.name),
            // The first draw of a person's name.
            (true, Kind::Person) => if self.world.innate(self.entity).one_in(2) { woman } else { man }.to_owned(),
            (true, _) => thing.to_owned(),
        }
    }
}
