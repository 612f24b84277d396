//! What a service answered, as the passages that the model reads and the record keeps.

use searchmill_engine::fingerprint::hash_bytes;
use searchmill_retrieval::Found;
use serde_json::Value;

use super::params::ResultPlaces;
use crate::tool::plain;

/// Digits of an id that is derived from a text.
const ID_DIGITS: usize = 16;

/// Returns the id of a text that has none: the beginning of its digest.
pub fn content_id(title: &str, text: &str) -> String {
    let mut id = hash_bytes(format!("{title}\0{text}").as_bytes()).to_string();
    id.truncate(ID_DIGITS);
    id
}

/// How the results of a service read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// `[1] Title (id)`, the text below: the model reads them as they are.
    Numbered,
    /// Title and text, as a search tool returns passages: the protocol shows them.
    Passages,
}

/// One result of a service.
#[derive(Debug, Default, PartialEq)]
struct One {
    id: Option<String>,
    title: String,
    text: String,
    score: f64,
}

/// Returns a whole text as one passage, and nothing for an empty one.
pub(super) fn whole(text: &str, max_chars: usize) -> Vec<Found> {
    let text = text.trim().to_owned();
    let one = One { text: text.clone(), ..One::default() };
    if text.is_empty() { Vec::new() } else { vec![passage(text, one, max_chars)] }
}

/// Returns the passages of a JSON answer.
///
/// # Errors
/// Says for the model what the answer lacks.
pub(super) fn placed(
    answer: &Value,
    places: &ResultPlaces,
    max_chars: usize,
    layout: Layout,
) -> Result<Vec<Found>, String> {
    let Some(list) = &places.list else {
        let one = one(answer, places)?;
        let title = if one.title.is_empty() { String::new() } else { format!("{}\n", one.title) };
        return Ok(vec![passage(format!("{title}{}", one.text.trim()), one, max_chars)]);
    };
    let items = match answer.pointer(list) {
        Some(Value::Array(items)) => items,
        // Some serialisers write an empty list as `null` (Go's, for a nil slice).
        Some(Value::Null) => return Ok(Vec::new()),
        _ => return Err(format!("the answer has no list of results at `{list}`")),
    };
    let (mut shown, mut left) = (Vec::new(), max_chars);
    for (place, item) in items.iter().enumerate() {
        let mut one = one(item, places)?;
        if layout == Layout::Passages {
            // The first line of a passage is its title.
            one.title = one.title.split_whitespace().collect::<Vec<_>>().join(" ");
        }
        // A blank line stands between two results, and nowhere else: a record can be split again.
        let text = one_line_ends(&one.text);
        let title = one_line_ends(&one.title);
        let contents = match layout {
            Layout::Passages if title.is_empty() => text,
            Layout::Passages => format!("{title}\n{text}"),
            Layout::Numbered => {
                let title = if title.is_empty() { title } else { format!(" {title}") };
                let id = one.id.as_ref().map(|id| format!(" ({id})")).unwrap_or_default();
                format!("[{}]{title}{id}\n{text}", place + 1)
            }
        };
        let passage = passage(contents, one, left);
        left = left.saturating_sub(passage.contents.chars().count());
        shown.push(passage);
        if left == 0 {
            break;
        }
    }
    Ok(shown)
}

/// Text without blank lines.
fn one_line_ends(text: &str) -> String {
    text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

fn one(item: &Value, places: &ResultPlaces) -> Result<One, String> {
    let (id, title) = (optional(item, places.id.as_deref()), optional(item, places.title.as_deref()));
    let text = item.pointer(&places.text).map(plain);
    if text.is_none() && title.is_none() {
        return Err(format!("a result of the answer has no text at `{}`", places.text));
    }
    let score = places.score.as_ref().and_then(|place| item.pointer(place)?.as_f64()).unwrap_or_default();
    let score = if score.is_finite() { score } else { 0.0 };
    let title = title.unwrap_or_default().trim().to_owned();
    Ok(One { id, title, text: text.unwrap_or_default(), score })
}

/// The text at a place of a result, if there is a place, and a text that is not empty.
fn optional(item: &Value, place: Option<&str>) -> Option<String> {
    let text = plain(item.pointer(place?)?);
    if text.is_empty() { None } else { Some(text) }
}

/// A passage that shows `contents`, at most so many characters of it.
fn passage(mut contents: String, one: One, max_chars: usize) -> Found {
    let id = one.id.unwrap_or_else(|| content_id(&one.title, &one.text));
    if let Some((end, _)) = contents.char_indices().nth(max_chars) {
        contents.truncate(end);
        contents.push_str("… (cut)");
    }
    let title = if one.title.is_empty() { None } else { Some(one.title) };
    Found { chunk_id: id.clone(), document_id: id, title, contents, score: one.score, sources: Vec::new() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn places(list: Option<&str>) -> ResultPlaces {
        let place = |place: &str| Some(place.to_owned());
        let text = "/snippet".to_owned();
        ResultPlaces {
            list: list.and_then(place),
            id: place("/link"),
            title: place("/title"),
            text,
            score: place("/s"),
        }
    }

    #[test]
    fn results_are_read_from_their_places() {
        let answer = json!({"organic": [
            {"title": "Rome", "link": "https://r", "snippet": "A city.\n\nOld.", "s": 0.5}, {"snippet": "Plain."}]});
        let found = placed(&answer, &places(Some("/organic")), 100, Layout::Numbered).expect("results");
        assert_eq!(found[0].contents, "[1] Rome (https://r)\nA city.\nOld.");
        assert_eq!(
            (found[0].document_id.as_str(), found[0].title.as_deref(), found[0].score),
            ("https://r", Some("Rome"), 0.5)
        );
        assert_eq!((found[1].contents.as_str(), found[1].chunk_id.len()), ("[2]\nPlain.", ID_DIGITS));
        assert_eq!(placed(&json!({"organic": []}), &places(Some("/organic")), 9, Layout::Numbered), Ok(Vec::new()));
    }

    #[test]
    fn a_protocol_numbers_passages_itself() {
        let answer =
            json!({"organic": [{"title": "Rome,\n Italy", "link": "r", "snippet": "A.\n\nB."}, {"snippet": "C"}]});
        let found = placed(&answer, &places(Some("/organic")), 100, Layout::Passages).expect("results");
        let shown: Vec<_> = found.iter().map(|one| (one.contents.as_str(), one.parts())).collect();
        assert_eq!(shown, [("Rome, Italy\nA.\nB.", ("Rome, Italy", "A.\nB.")), ("C", ("", "C"))]);
    }

    #[test]
    fn an_answer_without_results_is_an_error_and_never_nothing() {
        for answer in [json!({"error": "quota"}), json!({"organic": "x"}), json!([]), json!({"organic": [{}]})] {
            assert!(placed(&answer, &places(Some("/organic")), 9, Layout::Numbered).is_err(), "{answer}");
        }
    }

    #[test]
    fn long_answers_are_cut_at_characters() {
        assert_eq!(whole("  äöü ", 2)[0].contents, "äö… (cut)");
        assert_eq!(whole("äöü", 3)[0].contents, "äöü");
        assert!(whole(" \n", 3).is_empty());
        let one =
            placed(&json!({"snippet": "Text.", "title": "T"}), &places(None), 100, Layout::Numbered).expect("a result");
        assert_eq!(one[0].contents, "T\nText.");
        let answer = json!({"o": [{"snippet": "abc"}, {"snippet": "abc"}, {"snippet": "abc"}]});
        assert_eq!(placed(&answer, &places(Some("/o")), 9, Layout::Numbered).expect("results").len(), 2);
    }
}
