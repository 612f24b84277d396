//! The questions of episodes: which one a reset chooses.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::StatusCode;
use schemars::JsonSchema;
use searchmill_schemas::Question;
use serde::Deserialize;

use crate::serve::env::problem::Problem;

/// What a client may say about the next episode. Other fields (the columns of a trainer's data set) are ignored.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct Wanted {
    /// Id of the episode (default: a random one). An open episode with this id is replaced.
    pub(crate) episode_id: Option<String>,
    /// Id of the question.
    pub(crate) question_id: Option<String>,
    /// Text of the question: one of the served questions, or with `golden_answers` any.
    pub(crate) question: Option<String>,
    /// Golden answers of a question that is not served.
    pub(crate) golden_answers: Option<Vec<String>>,
    /// Number that chooses the question: number modulo the count of questions that can be judged.
    pub(crate) seed: Option<u64>,
}

/// The served questions.
#[derive(Default)]
pub(crate) struct Questions {
    all: Vec<Question>,
    ids: BTreeMap<String, usize>,
    texts: BTreeMap<String, usize>,
    /// Places of those that a reset may choose by itself.
    playable: Vec<usize>,
    next: AtomicUsize,
}

impl Questions {
    pub(crate) fn new(all: Vec<Question>) -> Self {
        let (mut ids, mut texts) = (BTreeMap::new(), BTreeMap::new());
        for (place, question) in all.iter().enumerate() {
            ids.entry(question.id.clone()).or_insert(place);
            texts.entry(normalized(&question.question)).or_insert(place);
        }
        let playable = (0..all.len()).collect();
        Self { all, ids, texts, playable, next: AtomicUsize::new(0) }
    }

    /// Leaves out questions that a reset may not choose by itself; returns how many are left.
    pub(crate) fn retain(&mut self, fits: impl Fn(&Question) -> bool) -> usize {
        self.playable.retain(|place| fits(&self.all[*place]));
        self.playable.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Question> {
        self.all.iter()
    }

    /// Returns the question with this text; white space may differ. Of several, the first.
    pub(super) fn with_text(&self, text: &str) -> Option<&Question> {
        self.texts.get(&normalized(text)).map(|place| &self.all[*place])
    }

    /// Returns the question that is wanted; without a wish the next playable one, in the order of the table, then from the
    /// first.
    ///
    /// # Errors
    /// Fails if there is no such question.
    pub(crate) fn choose(&self, wanted: &Wanted) -> Result<Question, Problem> {
        if let Some(id) = &wanted.question_id
            && let Some(place) = self.ids.get(id)
        {
            return Ok(self.all[*place].clone());
        }
        // An unknown id may be one of the trainer's own data set: a text beside it still names the question.
        if let Some(text) = wanted.question.as_deref().filter(|text| !text.trim().is_empty()) {
            return self.given(text, wanted);
        }
        if let Some(id) = &wanted.question_id {
            return Err(Problem::new(StatusCode::NOT_FOUND, format!("there is no question `{id}`")));
        }
        let count = self.playable.len();
        if count == 0 {
            let detail = "there are no questions: send `question` and `golden_answers`, or start the server with \
                          `--questions`";
            return Err(Problem::bad(detail));
        }
        let place = match wanted.seed {
            Some(seed) => (seed % count as u64) as usize,
            None => self.next.fetch_add(1, Ordering::Relaxed) % count,
        };
        Ok(self.all[self.playable[place]].clone())
    }

    fn given(&self, text: &str, wanted: &Wanted) -> Result<Question, Problem> {
        match (&wanted.golden_answers, self.with_text(text)) {
            // Answers that the client sends outweigh those of a served question with the same text.
            (Some(answers), _) => {
                let (question, golden_answers) = (text.to_owned(), answers.clone());
                let id = wanted.question_id.as_ref().unwrap_or(&question).clone();
                Ok(Question { id, question, golden_answers, ..Question::default() })
            }
            (None, Some(known)) => Ok(known.clone()),
            (None, None) => {
                let detail = "the question is not one of the served ones; send its `golden_answers` too";
                Err(Problem::new(StatusCode::NOT_FOUND, detail))
            }
        }
    }
}

fn normalized(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_chooses_its_question() {
        let question = |id: &str, text: &str| Question { id: id.into(), question: text.into(), ..Question::default() };
        let questions = Questions::new(vec![question("a", "Who  wrote it?"), question("b", "Where?")]);
        let chosen = |wanted: &Wanted| questions.choose(wanted).map(|question| question.id).map_err(|no| no.status());
        let none = Wanted::default();
        assert_eq!([chosen(&none), chosen(&none), chosen(&none)], [Ok("a".into()), Ok("b".into()), Ok("a".into())]);
        assert_eq!(chosen(&Wanted { seed: Some(7), ..Wanted::default() }), Ok("b".into()));
        assert_eq!(chosen(&Wanted { question_id: Some("b".into()), ..Wanted::default() }), Ok("b".into()));
        let text = |text: &str| Wanted { question: Some(text.into()), ..Wanted::default() };
        assert_eq!(chosen(&text(" Who wrote it? ")), Ok("a".into()));
        assert_eq!(chosen(&text("When?")), Err(StatusCode::NOT_FOUND));
        let own = Wanted { golden_answers: Some(vec!["1999".into()]), question_id: Some("x".into()), ..text("When?") };
        assert_eq!(chosen(&own), Ok("x".into()));
        assert_eq!(chosen(&Wanted { question_id: Some("x".into()), ..Wanted::default() }), Err(StatusCode::NOT_FOUND));
        let mut questions = questions;
        assert_eq!(questions.retain(|question| question.id == "b"), 1);
        assert_eq!(questions.choose(&none).map(|question| question.id).ok().as_deref(), Some("b"));
        assert!(Questions::default().choose(&none).is_err());
    }
}
