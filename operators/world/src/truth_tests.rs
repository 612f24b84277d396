//! Reads the documents back and finds every statement by its wording, to prove that each question has one answer.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;

use super::entity::{FORMS, Kind};
use super::layout::World;
use super::question::{QuestionType, draft};
use super::relation::Relation;

/// Statements of the documents: objects by relation and subject.
type Statements = BTreeMap<(Relation, String), BTreeSet<String>>;

/// Returns the wordings of a relation as patterns.
fn patterns(relation: Relation) -> Vec<Regex> {
    let spec = relation.spec();
    let any = |words: Vec<&str>| format!("(?:{})", words.join("|"));
    let wordings = spec.sentences.iter().map(|sentence| {
        let mut pattern = regex::escape(sentence);
        let words = [
            ("s", "(?P<s>.+?)".to_owned()),
            ("o", "(?P<o>.+?)".to_owned()),
            ("y", r"\d{4}".to_owned()),
            ("z", r"\d{4}".to_owned()),
            ("a", "an?".to_owned()),
            ("form", any(FORMS.iter().map(|form| form.noun).collect())),
            ("verb", any(FORMS.iter().map(|form| form.verb).collect())),
            ("part", any(FORMS.iter().map(|form| form.participle).collect())),
            ("released", any(FORMS.iter().map(|form| form.released).collect())),
        ];
        for (key, replacement) in words {
            pattern = pattern.replace(&format!(r"\{{{key}\}}"), &replacement);
        }
        Regex::new(&format!("^{pattern}$")).unwrap()
    });
    wordings.collect()
}

/// Returns the sentences of a text (no name or number contains a full stop).
fn sentences(text: &str) -> impl Iterator<Item = String> {
    text.split(['.', '\n']).map(|sentence| format!("{}.", sentence.trim()))
}

fn statements(world: &World) -> Statements {
    let names: BTreeMap<Kind, BTreeSet<String>> = Kind::ALL
        .into_iter()
        .map(|kind| {
            (kind, (0..world.count(kind)).map(|i| world.name(super::entity::Entity { kind, index: i })).collect())
        })
        .collect();
    let patterns: Vec<_> =
        Relation::ALL.into_iter().flat_map(|one| patterns(one).into_iter().map(move |p| (one, p))).collect();
    let mut found = Statements::new();
    for position in 0..world.documents {
        for sentence in sentences(&world.document(position).text) {
            for (relation, pattern) in &patterns {
                let Some(parts) = pattern.captures(&sentence) else { continue };
                let (subject, object) = (parts["s"].to_owned(), parts["o"].to_owned());
                // Asides about people and firms of no entity have the wording of facts.
                if names[&relation.spec().subject].contains(&subject) {
                    found.entry((*relation, subject)).or_default().insert(object);
                }
            }
        }
    }
    found
}

#[test]
fn the_documents_state_each_fact_once_and_withhold_the_answers_of_null_questions() {
    let world = World::new(21, 1_000, 8);
    let said = statements(&world);
    let mut checked = 0;
    for kind in Kind::ALL {
        for index in 0..world.count(kind) {
            let subject = super::entity::Entity { kind, index };
            for relation in Relation::about(kind) {
                let fact = super::fact::Fact { subject, relation };
                let wanted: Vec<String> = world.stated(fact).map(|value| world.written(value)).into_iter().collect();
                let empty = BTreeSet::new();
                let found = said.get(&(relation, world.name(subject))).unwrap_or(&empty);
                let fitting: Vec<String> = match world.value(fact).and_then(super::value::Value::entity) {
                    Some(object) => {
                        let all = (0..world.count(object.kind)).map(|index| super::entity::Entity { index, ..object });
                        all.map(|one| world.name(one)).filter(|name| found.contains(name)).collect()
                    }
                    None => found.iter().cloned().collect(),
                };
                assert_eq!(fitting, wanted, "{relation:?} of {}", world.name(subject));
                checked += 1;
            }
        }
    }
    assert!(checked > 1_000);
}

#[test]
fn chains_followed_through_the_documents_end_at_the_golden_answer() {
    let world = World::new(4, 1_000, 4);
    let said = statements(&world);
    let drafts = (0..400).filter_map(|number| draft(&world, QuestionType::Inference, 1..=4, number, 0));
    let mut followed = 0;
    for draft in drafts {
        let mut place = world.name(draft.facts[0].subject);
        assert!(draft.text.contains(&place), "{place} in {}", draft.text);
        for fact in &draft.facts {
            let objects = &said[&(fact.relation, place.clone())];
            let kept: Vec<_> = objects.iter().filter(|object| !object.contains(',')).collect();
            place = match kept.as_slice() {
                [one] => (*one).clone(),
                _ => objects.iter().next().unwrap().clone(),
            };
        }
        assert_eq!(place, draft.answers[0], "{}", draft.text);
        followed += 1;
    }
    assert!(followed > 100, "{followed}");
}

#[test]
fn null_questions_look_like_the_others() {
    let world = World::new(4, 1_000, 4);
    let texts = |kind| (0..300).filter_map(|number| draft(&world, kind, 2..=3, number, 0)).collect::<Vec<_>>();
    let null = texts(QuestionType::Null);
    let opening = |text: &str| text.split(' ').take(3).collect::<Vec<_>>().join(" ");
    let others = [QuestionType::Inference, QuestionType::Comparison].into_iter().flat_map(texts);
    let openings: BTreeSet<_> = others.map(|draft| opening(&draft.text)).collect();
    assert!(null.len() > 150, "{}", null.len());
    let odd: Vec<_> = null.iter().filter(|draft| !openings.contains(&opening(&draft.text))).collect();
    assert!(odd.len() * 50 < null.len(), "{:?}", odd.iter().map(|draft| &draft.text).collect::<Vec<_>>());
    assert!(null.iter().all(|draft| !draft.text.contains("employer of the mayor")));
}

#[test]
fn articles_have_no_gaps_and_no_wrong_articles() {
    let world = World::new(8, 3_000, 6);
    for position in 0..world.documents {
        let document = world.document(position);
        let text = document.text;
        for fault in ["  ", "{", "}", " .", " ,", " a o", " a a", "..", "\n "] {
            assert!(!text.contains(fault), "{fault:?} in {text}");
        }
        assert!(text.split("\n\n").all(|part| part.ends_with('.')), "{text}");
        assert!(text.len() > 200, "{text}");
        serde_json::from_str::<serde_json::Value>(document.metadata.as_deref().unwrap()).unwrap();
    }
}
