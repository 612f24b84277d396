//! Contexts of multi-hop questions: passages with titles and sentences, and the supporting facts.

use searchmill_schemas::{Document, Evidence};
use serde_json::{Map, Value};

use super::field::{as_text, items, text_of};

/// One passage of a question's context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Passage {
    pub title: String,
    pub sentences: Vec<String>,
}

impl Passage {
    /// Returns the passage as a document. Its id is its title until duplicates are resolved.
    pub(super) fn document(self) -> Document {
        let text = join(&self.sentences);
        Document { id: self.title.clone(), title: Some(self.title), text, metadata: None }
    }
}

/// Joins sentences, with a space where neither side has one (HotpotQA's have spaces, 2Wiki's do not).
pub(super) fn join(sentences: &[String]) -> String {
    let mut text = String::new();
    for sentence in sentences {
        let apart = text.is_empty() || text.ends_with(char::is_whitespace) || sentence.starts_with(char::is_whitespace);
        if !apart && !sentence.is_empty() {
            text.push(' ');
        }
        text.push_str(sentence);
    }
    text.trim().to_owned()
}

/// Reads passages from `[[title, [sentence, …]], …]` or `{title: […], sentences or content: [[…], …]}`.
pub(super) fn passages(context: Option<&Value>) -> Result<Vec<Passage>, String> {
    match context {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(pairs)) => pairs.iter().map(pair).collect(),
        Some(Value::Object(columns)) => by_column(columns),
        Some(_) => Err("`context` is neither a list nor an object".to_owned()),
    }
}

fn pair(entry: &Value) -> Result<Passage, String> {
    match (text_of(entry.get(0)), entry.get(1)) {
        (Some(title), Some(body)) => Ok(Passage { title, sentences: texts(body) }),
        _ => Err("an entry of `context` is not `[title, [sentence, …]]`".to_owned()),
    }
}

fn by_column(columns: &Map<String, Value>) -> Result<Vec<Passage>, String> {
    let Some(Value::Array(bodies)) = columns.get("sentences").or(columns.get("content")) else {
        return Err("`context` has no list `sentences` or `content`".to_owned());
    };
    let titles = columns.get("title").map(texts).unwrap_or_default();
    // Pairing them all the same would give passages the titles of others.
    if titles.len() != bodies.len() {
        return Err(format!("`context` has {} titles and {} passages", titles.len(), bodies.len()));
    }
    Ok(titles.into_iter().zip(bodies).map(|(title, body)| Passage { title, sentences: texts(body) }).collect())
}

fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(items) => items.iter().filter_map(as_text).collect(),
        value => as_text(value).into_iter().collect(),
    }
}

/// Reads supporting facts from `[[title, sentence number], …]` or `{title: […], sent_id: […]}`. Adds the sentence if
/// the context has it (HotpotQA refers to some missing sentences).
pub(super) fn evidence(facts: Option<&Value>, passages: &[Passage]) -> Vec<Evidence> {
    match facts {
        Some(Value::Array(pairs)) => pairs.iter().filter_map(|pair| fact(pair.get(0), pair.get(1), passages)).collect(),
        Some(Value::Object(columns)) => {
            let numbers = items(columns.get("sent_id"));
            let titles = items(columns.get("title")).iter().enumerate();
            titles.filter_map(|(position, title)| fact(Some(title), numbers.get(position), passages)).collect()
        }
        _ => Vec::new(),
    }
}

fn fact(title: Option<&Value>, number: Option<&Value>, passages: &[Passage]) -> Option<Evidence> {
    let title = text_of(title)?;
    let mut fact = None;
    if let Some(number) = number.and_then(Value::as_u64)
        && let Ok(number) = usize::try_from(number)
        && let Some(passage) = passages.iter().find(|passage| passage.title == title)
        && let Some(sentence) = passage.sentences.get(number)
        && !sentence.trim().is_empty()
    {
        fact = Some(sentence.trim().to_owned());
    }
    Some(Evidence { document_id: None, title: Some(title), fact })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_shapes_of_a_context_are_the_same() {
        let pairs = json!([["A", ["One.", " Two."]], ["B", ["Three."]]]);
        let columns = json!({"title": ["A", "B"], "sentences": [["One.", " Two."], ["Three."]]});
        let content = json!({"title": ["A", "B"], "content": [["One.", " Two."], ["Three."]]});
        let expected = passages(Some(&pairs)).unwrap();
        assert_eq!(passages(Some(&columns)).unwrap(), expected);
        assert_eq!(passages(Some(&content)).unwrap(), expected);
        assert_eq!(expected[0].clone().document().text, "One. Two.");
        assert!(passages(Some(&json!({"title": ["A"], "content": []}))).is_err());
    }

    #[test]
    fn sentences_are_joined_with_one_space() {
        let join = |parts: &[&str]| super::join(&parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>());
        assert_eq!(join(&["One.", "Two.", ""]), "One. Two.");
        assert_eq!(join(&["One. ", " Two."]), "One.  Two.");
    }

    #[test]
    fn facts_beyond_the_passage_keep_their_title() {
        let passages = passages(Some(&json!([["A", ["One."]]]))).unwrap();
        let found = evidence(Some(&json!([["A", 0], ["A", 7], ["B", 0]])), &passages);
        assert_eq!(found[0].fact.as_deref(), Some("One."));
        assert_eq!((found[1].title.as_deref(), found[1].fact.as_deref()), (Some("A"), None));
        assert_eq!(found[2].title.as_deref(), Some("B"));
    }
}
