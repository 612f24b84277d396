//! Grounding: whether the retrieved texts support a trajectory's answer.
//!
//! F1 alone keeps lucky guesses: half of all yes/no questions are answered correctly without a search. A trajectory
//! is *grounded* if a tool result contains gold evidence or the answer itself.

use schemars::JsonSchema;
use searchmill_schemas::{Message, Role, Trajectory};
use searchmill_text::answer_metrics::answer_scores;
use searchmill_text::normalize::{contains_words, normalize_answer, normalize_sought};
use searchmill_text::retrieval_metrics::GoldDocuments;
use searchmill_text::unicode::nfkc;
use serde::{Deserialize, Serialize};

/// Normalised answers that are too general, separated by `|`: finding them in a text proves nothing.
const UNINFORMATIVE: &str = "yes|no|true|false|noanswer|no answer|none|unknown|\
    unanswerable|insufficient|insufficient information|not enough information|cannot be determined|cannot determine";

/// How much of a question's evidence the tool results must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Demand {
    /// All of it: of each piece of evidence the document (any chunk of it) or the fact. A lucky "yes" to a question about two
    /// documents whose search found one of them is not enough.
    All,
    /// The text of each fact, as whole words; of evidence without a fact, the document. A chunk of the right document that
    /// does not hold the fact is not enough.
    Facts,
}

/// Whether the tool results show what is demanded. A question without evidence has none of it to show: it is then the rule of
/// [`grounded`].
pub fn shows_evidence(trajectory: &Trajectory, demand: Demand) -> bool {
    let results: Vec<&Message> = tool_results(trajectory).collect();
    let tagged = trajectory.is_one_text();
    let texts: Vec<String> = results.iter().map(|result| plain_words(&nfkc(&result.content), tagged)).collect();
    let mut demanded = false;
    for gold in &trajectory.evidence {
        // Each piece by itself: in a common set, one document found would stand for all pieces.
        let documents = GoldDocuments::new([(gold.document_id.as_deref(), gold.title.as_deref())]);
        let fact = gold.fact.as_deref().map(normalize_sought).filter(|fact| !is_uninformative(fact));
        // Nothing can show a piece that names neither: demanded, it would rule out every trajectory.
        if documents.is_empty() && fact.is_none() {
            continue;
        }
        demanded = true;
        let stated = fact.as_ref().is_some_and(|fact| texts.iter().any(|text| contains_words(text, fact)));
        let document_is_enough = demand == Demand::All || fact.is_none();
        if !(stated || document_is_enough && shows_document(&documents, &results)) {
            return false;
        }
    }
    demanded || grounded(trajectory)
}

/// Whether the trajectory is grounded.
///
/// Considers only tool results that are not errors. Texts and titles match in any Unicode form. True if any of these holds:
/// - an observation shows a gold document (same id or same title);
/// - a tool result contains a gold fact (both normalised, whole words);
/// - a tool result contains a golden answer as whole words, unless the answer is one like `yes`, `no` or
///   `insufficient information`, which proves nothing;
/// - there is no gold evidence and every golden answer is of that kind (null questions), at least one search
///   succeeded, and the prediction equals a golden answer. A search that correctly finds nothing is the only possible
///   support for such an answer.
pub fn grounded(trajectory: &Trajectory) -> bool {
    let results: Vec<&Message> = tool_results(trajectory).collect();
    if results.is_empty() {
        return false;
    }
    let answers = trajectory.golden_answers.iter().map(|answer| normalize_sought(answer));
    let facts = trajectory.evidence.iter().filter_map(|gold| gold.fact.as_deref()).map(normalize_sought);
    let sought: Vec<String> = answers.chain(facts).filter(|text| !is_uninformative(text)).collect();
    // A null question: that nothing was found is the only support that its answer can have.
    if trajectory.evidence.is_empty() && sought.is_empty() {
        return answer_scores(&trajectory.prediction, &trajectory.golden_answers).em == 1.0;
    }
    let tagged = trajectory.is_one_text();
    shows_document(&gold_documents(trajectory), &results)
        || results.iter().any(|message| shows_any(&nfkc(&message.content), &sought, tagged))
}

/// Tool messages that are not errors. A protocol's own text before the model's first message is not a result.
pub fn tool_results(trajectory: &Trajectory) -> impl Iterator<Item = &Message> {
    let tool = Role::Tool.name();
    // A prefill (`<think>`) has the role of a result, and stands before it.
    let first = trajectory.messages.iter().position(Message::is_model).unwrap_or(0);
    trajectory.messages[first..].iter().filter(move |message| message.role == tool && message.error.is_none())
}

/// Gold documents of a trajectory's question.
pub fn gold_documents(trajectory: &Trajectory) -> GoldDocuments {
    let evidence = trajectory.evidence.iter();
    GoldDocuments::new(evidence.map(|gold| (gold.document_id.as_deref(), gold.title.as_deref())))
}

/// Whether finding this normalised answer in a text proves nothing.
pub fn is_uninformative(normalized: &str) -> bool {
    normalized.is_empty() || UNINFORMATIVE.split('|').any(|text| text == normalized)
}

/// Whether an observation is of one of these documents.
fn shows_document(gold: &GoldDocuments, results: &[&Message]) -> bool {
    let mut observations = results.iter().flat_map(|message| &message.observations);
    !gold.is_empty() && observations.any(|seen| !gold.found_in(&seen.document_id, seen.title.as_deref()).is_empty())
}

/// Normalises a result. Normalising deletes punctuation; a tag of a text protocol would join the word beside it.
fn plain_words(result: &str, tagged: bool) -> String {
    if tagged { normalize_answer(&result.replace(['<', '>'], " ")) } else { normalize_answer(result) }
}

/// Whether a result contains one of these normalised texts as whole words.
pub(crate) fn shows_any(result: &str, sought: &[String], tagged: bool) -> bool {
    if sought.is_empty() {
        return false;
    }
    let result = plain_words(result, tagged);
    sought.iter().any(|text| contains_words(&result, text))
}

#[cfg(test)]
mod tests {
    use searchmill_fixtures::trajectories::trajectory;
    use searchmill_schemas::{Evidence, Observation};

    use super::*;

    fn searched(golden: &str, prediction: &str, content: &str) -> Trajectory {
        let mut made = trajectory("q", 0, golden, prediction);
        made.messages.push(Message::text(Role::Tool, content));
        made
    }

    #[test]
    fn a_gold_document_by_id_or_title_grounds() {
        let mut made = searched("yes", "yes", "…");
        made.evidence = vec![Evidence { document_id: Some("d7".into()), title: Some("Paris".into()), fact: None }];
        assert!(!grounded(&made));
        let seen = |id: &str, title: &str| Observation {
            chunk_id: format!("{id}#0"),
            document_id: id.to_owned(),
            title: Some(title.to_owned()),
            score: 1.0,
        };
        for (id, title, expected) in [("d7", "x", true), ("d8", "Paris", true), ("d8", "Lyon", false)] {
            made.messages.last_mut().unwrap().observations = vec![seen(id, title)];
            assert_eq!(grounded(&made), expected, "{id} {title}");
        }
    }

    #[test]
    fn a_fact_or_an_answer_in_a_result_grounds() {
        assert!(grounded(&searched("Sam Bankman-Fried", "x", "FTX was led by Sam Bankman-Fried.")));
        assert!(!grounded(&searched("Ada", "Ada", "Canada is a country")), "whole words only");
        assert!(!grounded(&searched("Ada", "Ada", "nothing here")));
        let mut made = searched("yes", "yes", "It rained; the dam broke in May.");
        made.evidence = vec![Evidence { fact: Some("The dam broke in May".into()), ..Evidence::default() }];
        assert!(grounded(&made));
    }

    #[test]
    fn an_answer_grounds_in_any_unicode_form() {
        assert!(grounded(&searched("café", "x", "The cafe\u{301} is open.")));
        assert!(grounded(&searched("1604", "x", "In １６０４ it was the oﬃce.")));
        let mut made = searched("yes", "yes", "…");
        made.evidence = vec![Evidence { title: Some("Zürich".into()), ..Evidence::default() }];
        made.messages.last_mut().unwrap().observations = vec![Observation {
            chunk_id: "1#0".to_owned(),
            document_id: "1".to_owned(),
            title: Some("Zu\u{308}rich".to_owned()),
            score: 1.0,
        }];
        assert!(grounded(&made));
    }

    #[test]
    fn tags_of_a_text_protocol_join_no_words_and_its_prefill_is_no_result() {
        let mut made = searched("Rome", "Rome", "\n\n<information>In Rome</information>\n\n");
        assert!(!grounded(&made), "in a chat, this is content");
        "search-r1".clone_into(&mut made.protocol);
        "[]".clone_into(&mut made.tools);
        assert!(grounded(&made));
        made.messages.clear();
        made.messages.extend([Message::text(Role::Tool, "<think> Rome"), Message::text(Role::Assistant, "Rome")]);
        assert!(!grounded(&made) && tool_results(&made).count() == 0);
    }

    #[test]
    fn yes_in_a_result_proves_nothing() {
        let mut made = searched("yes", "yes", "yes yes yes");
        made.evidence = vec![Evidence { title: Some("Paris".into()), ..Evidence::default() }];
        assert!(!grounded(&made));
    }

    #[test]
    fn null_questions_need_a_search_and_the_right_refusal() {
        let gold = "Insufficient information.";
        assert!(grounded(&searched(gold, "Insufficient Information", "unrelated")));
        assert!(!grounded(&searched(gold, "Google", "unrelated")));
        assert!(!grounded(&trajectory("q", 0, gold, "Insufficient Information")), "never searched");
    }

    #[test]
    fn all_evidence_is_demanded_by_document_or_by_fact() {
        let of = |id: &str, fact: Option<&str>| Evidence {
            document_id: Some(id.to_owned()),
            title: None,
            fact: fact.map(str::to_owned),
        };
        let seen =
            |id: &str| Observation { chunk_id: format!("{id}#0"), document_id: id.to_owned(), title: None, score: 1.0 };
        let judged = |made: &Trajectory| {
            (grounded(made), shows_evidence(made, Demand::All), shows_evidence(made, Demand::Facts))
        };
        // A lucky yes: a chunk of one of two documents.
        let mut made = searched("yes", "yes", "The dam broke in May.");
        made.evidence = vec![of("d1", Some("The dam broke in May")), of("d2", Some("The mill burnt in June"))];
        made.messages.last_mut().unwrap().observations = vec![seen("d1")];
        assert_eq!(judged(&made), (true, false, false));
        // The other document, by a chunk without the fact.
        made.messages.push(Message::text(Role::Tool, "A mill stood here."));
        made.messages.last_mut().unwrap().observations = vec![seen("d2")];
        assert_eq!(judged(&made), (true, true, false));
        // The fact, in a document of another name.
        made.messages.push(Message::text(Role::Tool, "In short: the MILL burnt in June."));
        assert_eq!(judged(&made), (true, true, true));
        // Documents without facts, and an answer that a result holds.
        let mut made = searched("Ida Holm", "Ida Holm", "Built by Ida Holm");
        made.evidence = vec![of("d1", None)];
        assert_eq!(judged(&made), (true, false, false), "it was found elsewhere");
        made.messages.last_mut().unwrap().observations = vec![seen("d1")];
        assert_eq!(judged(&made), (true, true, true));
        made.messages.last_mut().unwrap().error = Some("timeout".into());
        assert_eq!(judged(&made), (false, false, false));
        // Questions without evidence.
        made.evidence = vec![Evidence::default()];
        made.messages.push(Message::text(Role::Tool, "Ida Holm"));
        assert_eq!(judged(&made), (true, true, true));
        let null = searched("Insufficient information.", "Insufficient Information", "unrelated");
        assert_eq!(judged(&null), (true, true, true));
    }

    #[test]
    fn errors_and_the_models_own_words_ground_nothing() {
        let mut made = searched("Ada Lovelace", "Ada Lovelace", "error: Ada Lovelace not reachable");
        made.messages.last_mut().unwrap().error = Some("timeout".into());
        made.messages.push(Message::text(Role::Assistant, "I know it: Ada Lovelace"));
        assert!(!grounded(&made));
    }
}
