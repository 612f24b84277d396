//! A search plan that a model wrote for a question: queries, the sentences that they have to find, and what follows.

use std::borrow::Cow;

use searchmill_schemas::{Evidence, Question};
use searchmill_text::answer_metrics::rouge_l;
use serde::Deserialize;
use serde_json::Value;

use super::plan::{Piece, Step};

/// A step as SearchLM's annotation writes it (mangopy/SearchLM at 457513a).
#[derive(Deserialize)]
struct Annotated {
    search: String,
    reference: String,
    keyword: String,
}

/// Returns the pieces to find by the plan in this field of the question's metadata, in its order.
///
/// # Errors
/// Says what is wrong with the plan.
pub(super) fn pieces<'a>(question: &'a Question, field: &str) -> Result<Vec<Piece<'a>>, String> {
    let mut metadata: Value = serde_json::from_str(question.metadata.as_deref().unwrap_or("{}"))
        .map_err(|error| format!("metadata: {error}"))?;
    let Some(plan) = metadata.get_mut(field) else { return Err(format!("metadata has no field `{field}`")) };
    let steps: Vec<Annotated> = serde_json::from_value(plan.take())
        .map_err(|error| format!("`{field}` is not a list of {{search, reference, keyword}}: {error}"))?;
    if let Some(empty) = steps.iter().position(|step| step.search.trim().is_empty()) {
        return Err(format!("step {empty} of `{field}` has an empty `search`"));
    }
    Ok(steps.into_iter().map(|step| piece(question, step)).collect())
}

/// Returns the piece of a step: the question's evidence most like the reference names its document.
fn piece(question: &Question, step: Annotated) -> Piece<'_> {
    let mut best: Option<&Evidence> = None;
    let mut most = 0.0;
    for evidence in &question.evidence {
        let Some(fact) = &evidence.fact else { continue };
        let likeness = rouge_l(fact, &step.reference);
        if likeness > most {
            (best, most) = (Some(evidence), likeness);
        }
    }
    // Without any likeness the piece has no document, and counts by its sentence alone.
    let mut evidence = best.cloned().unwrap_or_default();
    evidence.fact = Some(step.reference);
    let mut piece = Piece::new(Cow::Owned(evidence));
    piece.step = Some(Step { search: step.search.trim().to_owned(), keyword: step.keyword });
    piece
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(metadata: &str) -> Question {
        let evidence = |title: &str, fact: &str| Evidence {
            document_id: None,
            title: Some(title.to_owned()),
            fact: Some(fact.to_owned()),
        };
        Question {
            evidence: vec![evidence("Rome", "Rome is the capital of Italy."), evidence("Paris", "Paris has a river.")],
            metadata: Some(metadata.to_owned()),
            ..Question::default()
        }
    }

    #[test]
    fn references_name_the_document_of_the_sentence_most_like_them() {
        let plan = r#"{"plan": [
            {"search": " river of the French capital ", "reference": "Paris has a river", "keyword": "the Seine"},
            {"search": "x", "reference": "zzz", "keyword": ""}]}"#;
        let question = question(plan);
        let pieces = pieces(&question, "plan").expect("a plan");
        let titles: Vec<_> = pieces.iter().map(|piece| piece.evidence.title.as_deref()).collect();
        assert_eq!(titles, [Some("Paris"), None]);
        assert_eq!(pieces[0].evidence.fact.as_deref(), Some("Paris has a river"));
        assert_eq!(pieces[0].step.as_ref().map(|step| step.search.as_str()), Some("river of the French capital"));
        assert!(!pieces[0].is_due(), "before its own search");
    }

    #[test]
    fn what_is_wrong_with_a_plan_is_named() {
        let problem = |metadata: &str| pieces(&question(metadata), "plan").err().unwrap_or_default();
        assert_eq!(problem("{}"), "metadata has no field `plan`");
        assert!(problem(r#"{"plan": [{"search": "a"}]}"#).contains("missing field `reference`"));
        assert!(problem("[1").starts_with("metadata: "));
        let empty = r#"{"plan": [{"search": " ", "reference": "", "keyword": ""}]}"#;
        assert_eq!(problem(empty), "step 0 of `plan` has an empty `search`");
    }
}
