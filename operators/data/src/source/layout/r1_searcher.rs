//! Results of R1-Searcher's evaluation (Song et al. 2025, RUCAIBox/R1-Searcher at 631167c): `question, answer, pred_ans,
//! stop_reason_final, gen_text_store`, with a judge's verdict in further fields.

use searchmill_schemas::{Message, Role, Trajectory};
use serde_json::Value;

use super::exchange::row_of;
use super::field::{metadata, need_text, object, take_id, take_texts, text_of};

const QUERY_END: &str = "<|end_of_query|>";
/// What the environment appends begins like this.
const DOCUMENTS: &str = "\n\n<|begin_of_documents|>";
const DOCUMENTS_END: &str = "<|end_of_documents|>";

/// Reads one result. The messages after the question are the pieces of `gen_text_store`: joined, they are that text. The
/// prediction is the one that R1-Searcher stored and scored (`pred_ans`), or follows the last `<answer>`; its blanks stay,
/// since the original compares ` False ` with `no` as it is.
pub(super) fn trajectory(number: u64, record: Value) -> Result<Trajectory, String> {
    let mut fields = object(record)?;
    let question_id = take_id(&mut fields, &["id", "idx"], number);
    let question = need_text(&mut fields, &["question"])?;
    let golden_answers = take_texts(&mut fields, &["answer"])?;
    let text = need_text(&mut fields, &["gen_text_store"])?;
    if text.is_empty() {
        return Err("`gen_text_store` is empty: the row is a question without a rollout".to_owned());
    }
    let stored = text_of(fields.get("pred_ans"));
    let prediction = stored.unwrap_or_else(|| answer(&text).unwrap_or_default().to_owned());
    let stopped = fields.get("stop_reason_final").and_then(Value::as_str);
    // An answer after the last search counts, whatever stopped the rollout.
    let ran_out = stopped == Some("many_retrieve") && answer(&text).is_none();
    let mut messages = vec![Message::text(Role::User, question.clone())];
    messages.extend(pieces(&text));
    let mut row = row_of(question_id, question, messages, prediction);
    row.golden_answers = golden_answers;
    row.protocol = "r1-searcher".into();
    if ran_out {
        row.finish_reason = "max_searches".into();
    }
    row.metadata = metadata(fields);
    Ok(row)
}

/// Splits the text after each query that documents follow, and after the documents with the blank line behind them.
/// Markers that the model wrote elsewhere stay in its text.
fn pieces(text: &str) -> Vec<Message> {
    let mut messages = Vec::new();
    let searched = format!("{QUERY_END}{DOCUMENTS}");
    let mut rest = text;
    while let Some(start) = rest.find(&searched) {
        let (output, shown) = rest.split_at(start + QUERY_END.len());
        // A rollout may be cut inside the documents.
        let end = shown.find(DOCUMENTS_END).map_or(shown.len(), |start| start + DOCUMENTS_END.len());
        let (_, after) = shown.split_at(end);
        let blank = if after.starts_with("\n\n") { 2 } else { 0 };
        let (shown, after) = shown.split_at(end + blank);
        messages.extend([written(output), Message::text(Role::Tool, shown)]);
        rest = after;
    }
    if !rest.is_empty() {
        messages.push(written(rest));
    }
    messages
}

fn written(text: &str) -> Message {
    Message { finish_reason: Some("stop".to_owned()), ..Message::text(Role::Assistant, text) }
}

/// The text after the last `<answer>`, up to the next `</answer>`.
fn answer(text: &str) -> Option<&str> {
    let (_, answer) = text.rsplit_once("<answer>")?;
    // The end may be cut off.
    let (answer, _) = answer.split_once("</answer>").unwrap_or((answer, ""));
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every text of up to five parts: markers in any order, whole and alone.
    #[test]
    fn joined_pieces_are_the_text() {
        let words = ["a ", QUERY_END, DOCUMENTS, DOCUMENTS_END, "\n\n", "<answer>é</answer>", "<|begin_of_query|>"];
        let mut texts = vec![String::new()];
        for _ in 0..5 {
            let longer = texts.iter().flat_map(|text| words.iter().map(move |word| format!("{text}{word}")));
            texts = std::iter::once(String::new()).chain(longer).collect();
        }
        for text in texts {
            let pieces = pieces(&text);
            assert_eq!(pieces.iter().map(|piece| piece.content.as_str()).collect::<String>(), text);
            assert!(pieces.iter().all(|piece| !piece.content.is_empty()), "{text}");
        }
    }

    #[test]
    fn only_documents_behind_a_query_are_the_environments() {
        let text = "I ask <|begin_of_query|> x<|end_of_query|>\n\n<|begin_of_documents|>\n(1)d\n<|end_of_documents|>\n\nSo \
                    <|begin_of_documents|> mine <|end_of_query|> <answer>a</answer> <answer> b </answer>";
        let found = pieces(text);
        let roles: Vec<_> = found.iter().map(|piece| piece.role.as_str()).collect();
        assert_eq!(roles, ["assistant", "tool", "assistant"]);
        assert!(found[0].content.ends_with(QUERY_END) && found[1].content.ends_with("<|end_of_documents|>\n\n"));
        assert_eq!(answer(text), Some(" b "));
        assert_eq!((answer("<answer> cut"), answer("none")), (Some(" cut"), None));
    }
}
