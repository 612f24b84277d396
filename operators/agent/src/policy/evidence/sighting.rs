//! Detects whether a tool message shows a piece of evidence.

use searchmill_schemas::{Evidence, Message, Role};
use searchmill_text::retrieval_metrics::same_passage;
use searchmill_text::unicode::folded;

use super::super::EvidenceMatch;

/// Minimum words of a telling sentence. A shorter one ("Teen Titans Go!") may occur anywhere, so it counts only
/// together with its document.
const TELLING_WORDS: usize = 5;

/// Whether the message shows the evidence. Only tool messages can.
pub(super) fn shows(message: &Message, evidence: &Evidence, matches: EvidenceMatch) -> bool {
    // A prefill of the protocol has this role, too, and shows no passage.
    if message.role != Role::Tool.name() || message.observations.is_empty() {
        return false;
    }
    let has_document = evidence.document_id.is_some() || evidence.title.is_some();
    match (&evidence.fact, matches) {
        (Some(fact), EvidenceMatch::Fact) => {
            let telling = !has_document || fact.split_whitespace().count() >= TELLING_WORDS;
            shows_fact(message, fact) && (telling || shows_document(message, evidence))
        }
        (Some(fact), EvidenceMatch::Document) if !has_document => shows_fact(message, fact),
        _ => shows_document(message, evidence),
    }
}

/// Whether the text contains the sentence, ignoring case, white space and Unicode form (MultiHop-RAG's rule minds case and form).
fn shows_fact(message: &Message, fact: &str) -> bool {
    let fact = compact(fact);
    !fact.is_empty() && compact(&message.content).contains(&fact)
}

/// Whether a passage of the document was shown: the same id or the same title. Ids derived from texts decide alone.
fn shows_document(message: &Message, evidence: &Evidence) -> bool {
    let id = evidence.document_id.as_deref();
    for seen in &message.observations {
        let by_passage = id.and_then(|id| same_passage(id, &seen.document_id));
        let is_shown = match (by_passage, &seen.title, &evidence.title) {
            (Some(is_same), _, _) => is_same,
            _ if id == Some(seen.document_id.as_str()) => true,
            (None, Some(shown), Some(wanted)) => compact(shown) == compact(wanted),
            _ => false,
        };
        if is_shown {
            return true;
        }
    }
    false
}

fn compact(text: &str) -> String {
    folded(text).chars().filter(|c| !c.is_whitespace()).collect()
}

#[cfg(test)]
mod tests {
    use searchmill_schemas::Observation;

    use super::*;

    fn seen(role: Role) -> Message {
        let mut message = Message::text(role, "[1] Blind Shaft\nBlind Shaft is a\n2003 film about  brutality.");
        message.observations = vec![Observation {
            chunk_id: "7#0".to_owned(),
            document_id: "7".to_owned(),
            title: Some("Blind Shaft".to_owned()),
            score: 3.0,
        }];
        message
    }

    fn evidence(id: Option<&str>, title: Option<&str>, fact: Option<&str>) -> Evidence {
        let own = |text: Option<&str>| text.map(str::to_owned);
        Evidence { document_id: own(id), title: own(title), fact: own(fact) }
    }

    #[test]
    fn facts_count_by_sentence_and_documents_by_id_or_title() {
        let message = seen(Role::Tool);
        let by = |evidence: &Evidence| {
            [EvidenceMatch::Fact, EvidenceMatch::Document].map(|matches| shows(&message, evidence, matches))
        };
        assert_eq!(by(&evidence(None, None, Some("blind shaft is a 2003 film"))), [true, true]);
        assert_eq!(by(&evidence(None, Some("Blind Shaft"), Some("another sentence"))), [false, true]);
        assert_eq!(by(&evidence(Some("7"), None, None)), [true, true]);
        assert_eq!(by(&evidence(Some("8"), Some("blind  shaft"), None)), [true, true]);
        assert_eq!(by(&evidence(Some("8"), Some("Blind"), None)), [false, false]);
        assert_eq!(by(&evidence(None, None, Some(" "))), [false, false]);
        assert_eq!(by(&evidence(None, Some("Brutality"), Some("Blind Shaft"))), [false, false]);
        assert_eq!(by(&evidence(None, Some("Blind Shaft"), Some("2003 film"))), [true, true]);
    }

    #[test]
    fn what_the_model_says_shows_nothing() {
        let evidence = evidence(Some("7"), Some("Blind Shaft"), None);
        assert!(!shows(&seen(Role::Assistant), &evidence, EvidenceMatch::Document));
        assert!(shows(&seen(Role::Tool), &evidence, EvidenceMatch::Document));
    }
}
