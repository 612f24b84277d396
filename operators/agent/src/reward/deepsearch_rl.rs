//! DeepSearch-RL's rewards (ninehills/deepsearch-rl): that of its seed (8fc901e) and the later sum (78d7101).
//!
//! **Published**: [`published_seed`] is the SQuAD token F1 of the text between the last `<answer>` and the last
//! `</answer>` of the final message, against the *first* golden answer. [`published`] is the sum of `correct` (2 · F1,
//! the same), `answer_format` (0.5 if there is an answer) and `short_think` (see [`ShortThink`]). Its faults: further
//! golden answers do not count; an `</answer>` that stands first, or one more after the answer, changes what is read;
//! an answer inside thoughts counts.
//!
//! **Mended** ([`mended_seed`], [`mended`]): the same, over all golden answers, for the last answer outside
//! thoughts; an answer of nothing but punctuation and articles is none.

use std::f64::consts::PI;

use searchmill_text::normalize::{normalize_answer, python_trim};

use crate::reward::outcome::Reward;
use crate::reward::pieces::{ANSWER, ANSWER_END, THINK, THINK_END, best_f1, count, final_answer};
use crate::reward::transcript::{Author, Transcript};

/// Returns the seed's published reward.
pub fn published_seed(transcript: &Transcript, golden: &[String]) -> Reward {
    Reward::of("f1", best_f1(Some(published_answer(transcript)), first(golden)))
}

/// Returns the later published reward. `short_think` is the value of [`ShortThink::score`].
pub fn published(transcript: &Transcript, golden: &[String], short_think: f64) -> Reward {
    let answer = published_answer(transcript);
    Reward::of("correct", 2.0 * best_f1(Some(answer), first(golden)))
        .and_if(!python_trim(answer).is_empty(), "answer_format", 0.5)
        .and("short_think", 0.5 * short_think)
}

/// Returns the seed's mended reward.
pub fn mended_seed(transcript: &Transcript, golden: &[String]) -> Reward {
    Reward::of("f1", best_f1(final_answer(transcript), golden))
}

/// Returns the later mended reward. `short_think` is the value of [`ShortThink::score`].
pub fn mended(transcript: &Transcript, golden: &[String], short_think: f64) -> Reward {
    let answer = final_answer(transcript);
    Reward::of("correct", 2.0 * best_f1(answer, golden))
        .and_if(answer.is_some_and(|answer| !normalize_answer(answer).is_empty()), "answer_format", 0.5)
        .and("short_think", 0.5 * short_think)
}

fn first(golden: &[String]) -> &[String] {
    &golden[..golden.len().min(1)]
}

/// Returns what stands in the final text between the last opening and the last closing tag; nothing if one is missing or
/// they are reversed.
fn published_answer(transcript: &Transcript) -> &str {
    let text = transcript.last_word().map_or("", |span| span.text.as_str());
    let start = text.rfind(ANSWER).map(|place| place + ANSWER.len());
    let span = start.zip(text.rfind(ANSWER_END));
    span.and_then(|(start, end)| text.get(start..end)).unwrap_or_default()
}

/// Rewards short thoughts: the mean over the model's turns of a score of the thoughts' length. A turn without exactly
/// one `<think>…</think>` makes the whole score 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortThink {
    /// Shorter thoughts score 0.
    pub least: usize,
    /// Thoughts up to this length score 1.
    pub best: usize,
    /// From here on, thoughts score 0; between `best` and this, half a cosine falls from 1 to 0.
    pub most: usize,
}

impl Default for ShortThink {
    /// The original's lengths, in tokens of the trained model.
    fn default() -> Self {
        Self { least: 10, best: 100, most: 600 }
    }
}

impl ShortThink {
    /// Returns the mean score of the turns, from 0 to 1; 0 without turns. `length` counts a thought, without white
    /// space around it.
    ///
    /// # Errors
    /// Fails as `length` does.
    pub fn score<E>(
        &self,
        transcript: &Transcript,
        mut length: impl FnMut(&str) -> Result<usize, E>,
    ) -> Result<f64, E> {
        let (mut sum, mut turns) = (0.0, 0.0);
        for span in transcript.spans.iter().filter(|span| span.author == Author::Model) {
            let Some(thought) = span.reasoning.as_deref().or_else(|| only_thought(&span.text)) else { return Ok(0.0) };
            sum += self.of(length(python_trim(thought))?);
            turns += 1.0;
        }
        Ok(if turns == 0.0 { 0.0 } else { sum / turns })
    }

    fn of(&self, length: usize) -> f64 {
        if length < self.least || length >= self.most.max(self.best + 1) {
            return 0.0;
        }
        let beyond = length.saturating_sub(self.best) as f64;
        let share = beyond / self.most.saturating_sub(self.best).max(1) as f64;
        f64::midpoint(1.0, (PI * share).cos())
    }
}

fn only_thought(text: &str) -> Option<&str> {
    let once = count(text, THINK) == 1 && count(text, THINK_END) == 1;
    let (_, after) = text.split_once(THINK).filter(|_| once)?;
    Some(after.split_once(THINK_END)?.0)
}
