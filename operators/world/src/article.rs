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
            Subject::Digest(number) => format!("News in brief from the {} desk", self.digest_name(number)),
        }
    }

    /// Returns the document at a position.
    pub fn document(&self, position: u64) -> Document {
        let mut draws = self.draws(purpose::ARTICLE, position);
        let (text, category) = match self.subject(position) {
            Subject::Aspect(entity, aspect) => (self.body(entity, aspect, &mut draws), entity.kind.category()),
            Subject::Digest(_) => (self.digest(&mut draws), "news"),
        };
        let metadata = self.imprint(position, category, &mut draws);
        Document { id: Self::document_id(position), title: Some(self.title(position)), text, metadata: Some(metadata) }
    }

    fn imprint(&self, position: u64, category: &str, draws: &mut Draws) -> String {
        let newsroom = draws.below(NEWSROOMS);
        // A newsroom has one name in all articles.
        let mut paper = self.draws(purpose::TITLE, newsroom);
        let stem = self.passer_by(Kind::City, &mut paper);
        let source = format!("The {stem} {}", paper.word(&PAPERS));
        let (year, month, day) = (draws.between(2021, 2025), draws.between(1, 12), draws.between(1, 28));
        let (hour, minute, second) = (draws.between(5, 22), draws.below(60), draws.below(60));
        json!({
            "source": source,
            "published_at": format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}+00:00"),
            "category": category,
            "author": self.passer_by(Kind::Person, draws),
            "url": format!("https://paper{newsroom}.example/{year}/{month:02}/{}", Self::document_id(position)),
        })
        .to_string()
    }

    fn body(&self, entity: Entity, aspect: u64, draws: &mut Draws) -> String {
        let mut teller = Teller::new(self, entity);
        let opening = draws.word(openings(entity.kind));
        teller.say(opening, draws);
        let pieces = self.pieces(entity, aspect, draws);
        let half = pieces.len().div_ceil(2);
        for (place, piece) in pieces.into_iter().enumerate() {
            if place == half {
                teller.new_paragraph();
            }
            teller.tell(piece, draws);
        }
        let ending = draws.word(ENDINGS);
        teller.say(ending, draws);
        teller.text
    }

    /// Returns the sentences between the first and the last, shuffled.
    fn pieces(&self, entity: Entity, aspect: u64, draws: &mut Draws) -> Vec<Piece> {
        let facts = Relation::of(entity.kind, aspect).map(|relation| Piece::Fact(Fact { subject: entity, relation }));
        let mut pieces: Vec<Piece> = facts.collect();
        let plain = draws.between(3, 6) as usize;
        pieces.extend(several(colour(entity.kind), plain, draws).map(Piece::Colour));
        let near = self.distractors.div_ceil(2) as usize;
        pieces.extend(several(near_misses(entity.kind), near, draws).map(Piece::Aside));
        let far = (self.distractors / 2) as usize;
        pieces.extend(several(BACKGROUND, far, draws).map(Piece::Aside));
        draws.shuffle(&mut pieces);
        pieces
    }

    fn digest(&self, draws: &mut Draws) -> String {
        let anybody = self.any(Kind::Person, draws);
        let mut teller = Teller::new(self, anybody);
        let items = draws.between(4, 6) as usize;
        for (place, item) in several(DIGEST, items, draws).enumerate() {
            if place > 0 {
                teller.new_paragraph();
            }
            teller.say(item, draws);
        }
        teller.text
    }
}

/// Returns `count` distinct entries, or all.
fn several(list: &[&'static str], count: usize, draws: &mut Draws) -> impl Iterator<Item = &'static str> + use<> {
    let mut chosen = list.to_vec();
    draws.shuffle(&mut chosen);
    chosen.into_iter().take(count)
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

    fn new_paragraph(&mut self) {
        self.text.push_str("\n\n");
    }

    fn tell(&mut self, piece: Piece, draws: &mut Draws) {
        match piece {
            Piece::Fact(fact) => {
                if let Some(sentence) = self.world.sentence(fact) {
                    self.append(&sentence);
                    let object = self.world.stated(fact).and_then(super::value::Value::entity);
                    // After a name of the same kind, a pronoun would be ambiguous.
                    self.in_focus = object.is_none_or(|object| !self.is_alike(object.kind));
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

    /// Whether a pronoun for the subject could refer to that kind.
    fn is_alike(&self, kind: Kind) -> bool {
        (kind == Kind::Person) == (self.entity.kind == Kind::Person)
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

    /// The name used where a pronoun would be ambiguous: the family name for a person, else the full name.
    fn short_name(&self) -> String {
        match self.entity.kind {
            Kind::Person => self.world.stem_of(self.entity),
            Kind::Award => format!("the {}", self.name),
            _ => self.name.clone(),
        }
    }

    /// Returns the pronoun for a thing, a woman or a man, or the short name with an ending where it would be ambiguous.
    fn pronoun(&self, [thing, woman, man]: [&str; 3], ending: &str) -> String {
        match (self.in_focus, self.entity.kind == Kind::Person) {
            (false, _) => self.short_name() + ending,
            (true, false) => thing.to_owned(),
            (true, true) => if self.world.is_woman(self.entity.index) { woman } else { man }.to_owned(),
        }
    }
}
