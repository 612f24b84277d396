//! The relations of the world: their subjects and objects, the sentences that state them, and the questions that ask
//! for them.
//!
//! Sentences use `{s}` (subject), `{o}` (object), `{y}` and `{z}` (years), and `{a}`, `{form}`, `{part}` and
//! `{released}` (of a work: novel, written, published). `noun` and `ask` use `{s}` and `{verb}`.

use serde::Serialize;

use super::entity::Kind;

/// The type of a relation's object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    Entity(Kind),
    Date,
    Year,
    Count,
    Industry,
}

/// How a relation is stated and asked for.
pub(crate) struct Spec {
    /// The kind of the subject.
    pub subject: Kind,
    /// The subject's document that states it.
    pub(crate) aspect: u64,
    /// The type of the object.
    pub object: Object,
    /// Whether some subjects may withhold it (not if another document states it too).
    pub(crate) withholdable: bool,
    /// Sentences that state it.
    pub sentences: [&'static str; 3],
    /// The object as a noun phrase; empty if it is never a bridge.
    pub(crate) noun: &'static str,
    /// The question for the object; empty if it is never asked alone.
    pub ask: &'static str,
}

impl Relation {
    /// Returns how the relation is stated and asked for.
    pub(crate) fn spec(self) -> &'static Spec {
        &SPECS[self as usize]
    }

    /// Returns the relations of a kind.
    pub(crate) fn about(subject: Kind) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |relation| relation.spec().subject == subject)
    }

    /// Returns the relations stated in one document of a kind, in the order of [`Relation::ALL`].
    pub(crate) fn of(subject: Kind, aspect: u64) -> impl Iterator<Item = Self> {
        Self::about(subject).filter(move |relation| relation.spec().aspect == aspect)
    }
}

/// Makes [`Relation`], its list and its table of the lines `name = (subject, aspect, object, withholdable): [sentences]
/// noun, ask`.
macro_rules! relations {
    ($($name:ident = ($subject:ident, $aspect:literal, $object:expr, $withholdable:literal):
        $sentences:tt $noun:literal, $ask:literal;)*) => {
        /// A functional relation: a subject has at most one object.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub(crate) enum Relation {
            $($name,)*
        }

        impl Relation {
            /// All relations.
            pub(crate) const ALL: [Self; SPECS.len()] = [$(Self::$name,)*];
        }

        const SPECS: &[Spec] = &[$(Spec {
            subject: Kind::$subject,
            aspect: $aspect,
            object: $object,
            withholdable: $withholdable,
            sentences: $sentences,
            noun: $noun,
            ask: $ask,
        },)*];
    };
}

relations! {
    BirthPlace = (Person, 0, Object::Entity(Kind::City), true):
        ["{s} was born in {o}.", "{s} is a native of {o}.", "It was in {o} that {s} was born."]
        "the birthplace of {s}", "In which city was {s} born?";
    BirthDate = (Person, 0, Object::Date, true):
        ["The date of birth of {s} is recorded as {o}.", "{s} was born on {o}.",
         "Official records give {o} as the date of birth of {s}."]
        "", "On which date was {s} born?";
    School = (Person, 1, Object::Entity(Kind::School), true):
        ["{s} studied at {o}.", "{s} is a graduate of {o}.", "{s} took a degree at {o}."]
        "the alma mater of {s}", "At which school did {s} study?";
    Mentor = (Person, 1, Object::Entity(Kind::Person), true):
        ["{s} names {o} as the mentor who mattered most.", "The mentor of {s} was {o}.",
         "{s} learned the craft from a mentor, {o}."]
        "the mentor of {s}", "Who was the mentor of {s}?";
    FirstEmployer = (Person, 2, Object::Entity(Kind::Company), false):
        ["{s} worked for {o} from {y} to {z}.", "From {y} to {z}, {s} was on the staff of {o}.",
         "{s} spent the years from {y} to {z} at {o}."]
        "", "";
    Employer = (Person, 2, Object::Entity(Kind::Company), false):
        ["{s} has worked for {o} since {y}.", "Since {y}, {s} has been on the payroll of {o}.",
         "{s} moved to {o} in {y} and works there to this day."]
        "the present employer of {s}", "Which company does {s} work for today?";
    Founder = (Company, 0, Object::Entity(Kind::Person), true):
        ["{s} was founded by {o}.", "It was {o} who founded {s}.", "The founder of {s} is {o}."]
        "the founder of {s}", "Who founded {s}?";
    Founded = (Company, 0, Object::Year, true):
        ["{s} was founded in {o}.", "{s} opened for business in {o}, the year of its foundation.",
         "The foundation of {s} dates from {o}."]
        "", "In which year was {s} founded?";
    Headquarters = (Company, 1, Object::Entity(Kind::City), true):
        ["{s} has its headquarters in {o}.", "The headquarters of {s} stand in {o}.",
         "{s} is run from its headquarters in {o}."]
        "the headquarters city of {s}", "In which city does {s} have its headquarters?";
    Employees = (Company, 1, Object::Count, true):
        ["{s} employs {o} people.", "The workforce of {s} numbers {o} people.",
         "At the last count, {s} had {o} employees."]
        "", "How many people does {s} employ?";
    Industry = (Company, 1, Object::Industry, true):
        ["{s} makes its money in {o}.", "{s} belongs to the {o} industry.", "The business of {s} is {o}."]
        "", "";
    Partner = (Company, 2, Object::Entity(Kind::Company), false):
        ["{s} merged its research arm with that of {o} in {y}.", "In {y}, {s} and {o} merged their research arms.",
         "The research arm of {s} has been merged with that of {o} since {y}."]
        "the research partner of {s}", "Which company merged its research arm with that of {s}?";
    ChiefExecutive = (Company, 2, Object::Entity(Kind::Person), false):
        ["The chief executive of {s} is {o}.", "{s} is led by its chief executive, {o}.",
         "{o} is the chief executive of {s}."]
        "the chief executive of {s}", "Who is the chief executive of {s}?";
    Province = (City, 0, Object::Entity(Kind::Province), false):
        ["{s} lies in the province of {o}.", "{s} belongs to the province of {o}.",
         "{s} is a city in the province of {o}."]
        "the home province of {s}", "In which province does {s} lie?";
    Population = (City, 0, Object::Count, true):
        ["{s} has {o} inhabitants.", "The last census counted {o} inhabitants in {s}.",
         "{s} is home to {o} inhabitants."]
        "", "How many inhabitants does {s} have?";
    Mayor = (City, 1, Object::Entity(Kind::Person), false):
        ["The mayor of {s} is {o}.", "{o} is the mayor of {s}.", "{s} is governed by its mayor, {o}."]
        "the mayor of {s}", "Who is the mayor of {s}?";
    Twin = (City, 1, Object::Entity(Kind::City), false):
        ["{s} is twinned with {o}.", "The twin city of {s} is {o}.", "{s} and {o} are twin cities."]
        "the twin city of {s}", "Which city is twinned with {s}?";
    Charter = (City, 1, Object::Year, true):
        ["{s} received its city charter in {o}.", "The city charter of {s} was granted in {o}.",
         "{s} has held a city charter since {o}."]
        "", "In which year did {s} receive its city charter?";
    Capital = (Province, 0, Object::Entity(Kind::City), false):
        ["The capital of {s} is {o}.", "{s} is governed from its capital, {o}.", "{o} is the capital of {s}."]
        "the capital of {s}", "Which city is the capital of {s}?";
    Area = (Province, 0, Object::Count, true):
        ["{s} covers {o} square kilometres.", "The area of {s} is {o} square kilometres.",
         "{s} extends over {o} square kilometres."]
        "", "How many square kilometres does {s} cover?";
    SchoolCity = (School, 0, Object::Entity(Kind::City), true):
        ["{s} has its campus in {o}.", "The campus of {s} is in {o}.", "{s} teaches at a single campus, in {o}."]
        "the campus city of {s}", "In which city does {s} have its campus?";
    SchoolFounded = (School, 0, Object::Year, true):
        ["{s} was established in {o}.", "{s} was established by charter in {o}.",
         "{s} has taught since {o}, when it was established."]
        "", "In which year was {s} established?";
    Patron = (School, 1, Object::Entity(Kind::Person), false):
        ["The honorary patron of {s} is {o}.", "{s} chose {o} as its honorary patron.",
         "{o} is the honorary patron of {s}."]
        "the honorary patron of {s}", "Who is the honorary patron of {s}?";
    Students = (School, 1, Object::Count, true):
        ["{s} has {o} students.", "There are {o} students at {s}.", "{s} enrols {o} students."]
        "", "How many students does {s} have?";
    Creator = (Work, 0, Object::Entity(Kind::Person), false):
        ["The {form} {s} was {part} by {o}.", "{s}, {a} {form}, was {part} by {o}.",
         "It was {o} who {verb} the {form} {s}."]
        "the person who {verb} {s}", "Who {verb} {s}?";
    Release = (Work, 0, Object::Year, true):
        ["{s} was {released} in {o}.", "The {form} {s} was {released} in {o}.",
         "{s} dates from {o}, when it was {released}."]
        "", "In which year was {s} {released}?";
    Rights = (Work, 1, Object::Entity(Kind::Company), true):
        ["The rights to {s} are held by {o}.", "{o} holds the rights to {s}.",
         "The rights to the {form} {s} belong to {o}."]
        "the company that holds the rights to {s}", "Which company holds the rights to {s}?";
    Setting = (Work, 1, Object::Entity(Kind::City), true):
        ["{s} takes most of its inspiration from the city of {o}.", "The city of {o} is the inspiration behind {s}.",
         "The {form} {s} was inspired by the city of {o}."]
        "the city that inspired {s}", "Which city inspired {s}?";
    Sponsor = (Award, 0, Object::Entity(Kind::Company), true):
        ["The {s} is sponsored by {o}.", "The sponsor of the {s} is {o}.", "{o} sponsors the {s}."]
        "the sponsor of {s}", "Which company sponsors {s}?";
    Ceremony = (Award, 0, Object::Entity(Kind::City), true):
        ["The {s} is presented in {o}.", "The {s} is handed over at a ceremony in {o}.",
         "{o} hosts the ceremony of the {s}."]
        "the host city of {s}", "Which city hosts the ceremony of {s}?";
    Winner = (Award, 1, Object::Entity(Kind::Work), false):
        ["The {form} {o} won the {s} in {y}.", "In {y} the {s} went to the {form} {o}.",
         "The jury gave the {s} of {y} to the {form} {o}."]
        "the winner of {s}", "Which work won {s}?";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_relation_has_its_place_and_its_words() {
        for (place, relation) in Relation::ALL.into_iter().enumerate() {
            assert_eq!(relation as usize, place);
            let spec = relation.spec();
            assert!(spec.aspect < spec.subject.aspects());
            assert!(spec.sentences.iter().all(|s| s.contains("{s}") && s.contains("{o}") && s.ends_with('.')));
            assert!(spec.noun.is_empty() || matches!(spec.object, Object::Entity(_)) && spec.noun.contains("{s}"));
            assert!(spec.ask.is_empty() || spec.ask.ends_with('?') && spec.ask.contains("{s}"));
        }
        for kind in Kind::ALL {
            assert!((0..kind.aspects()).all(|aspect| Relation::of(kind, aspect).count() >= 1));
        }
    }
}
