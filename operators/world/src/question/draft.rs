//! A question before it becomes a row: its type, text, answers and supporting facts.

use schemars::JsonSchema;
use searchmill_schemas::{Evidence, Question};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::fact::Fact;
use crate::layout::World;

/// The type of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QuestionType {
    /// Follows a chain of relations to its end.
    Inference,
    /// Compares two numbers.
    Comparison,
    /// Orders dated events, or asks for the time between them.
    Temporal,
    /// Cannot be answered from the documents.
    Null,
}

/// The golden answer of a null question, as in MultiHop-RAG.
const INSUFFICIENT: &str = "Insufficient Information";

impl QuestionType {
    /// All types.
    pub const ALL: [Self; 4] = [Self::Inference, Self::Comparison, Self::Temporal, Self::Null];

    /// Returns the name used in question rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inference => "inference",
            Self::Comparison => "comparison",
            Self::Temporal => "temporal",
            Self::Null => "null",
        }
    }
}

/// A question before it becomes a row.
pub struct Draft {
    pub kind: QuestionType,
    /// The form of the question: `chain`, `which`, `difference`, …
    pub form: &'static str,
    pub text: String,
    pub answers: Vec<String>,
    /// Facts that support the answer.
    pub facts: Vec<Fact>,
    /// Alternatives that the question offers, in text order; empty if none.
    pub options: Vec<String>,
}

impl Draft {
    pub(super) fn new(kind: QuestionType, form: &'static str, text: String) -> Self {
        Self { kind, form, text, answers: Vec::new(), facts: Vec::new(), options: Vec::new() }
    }

    pub(super) fn null(form: &'static str, text: String) -> Self {
        let answers = vec![INSUFFICIENT.to_owned()];
        Self { answers, ..Self::new(QuestionType::Null, form, text) }
    }

    /// Returns the question row.
    pub fn row(self, id: String, world: &World) -> Question {
        let (mut chain, mut evidence) = (Vec::new(), Vec::new());
        for fact in &self.facts {
            // Subject, relation and object.
            let object = world.value(*fact).map_or_else(String::new, |value| world.written(value));
            chain.push(json!([world.name(fact.subject), fact.relation, object]));
            let position = world.source_of(*fact);
            let (document_id, title) = (Some(World::document_id(position)), Some(world.title(position)));
            evidence.push(Evidence { document_id, title, fact: world.sentence(*fact) });
        }
        let metadata = json!({"form": self.form, "hops": self.facts.len(), "chain": chain});
        Question {
            id,
            question: self.text,
            golden_answers: self.answers,
            question_type: Some(self.kind.name().to_owned()),
            evidence,
            metadata: Some(metadata.to_string()),
        }
    }
}
