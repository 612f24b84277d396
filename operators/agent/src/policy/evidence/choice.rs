//! The teacher's choice among listed passages: for each piece of evidence, the passage that holds it.

use searchmill_schemas::{Evidence, Message, Role};
use searchmill_text::answer_metrics::rouge_l;

use super::super::EvidenceMatch;
use super::sighting;

/// Returns the numbers (from 1) of the passages that show these pieces, in the order of the pieces. Of several passages,
/// the one most like the piece's sentence by ROUGE-L is chosen, as SearchLM's annotation maps its references
/// (mangopy/SearchLM at 457513a). `request` lists the passages in its last lines.
pub(super) fn chosen<'e>(
    request: &Message,
    pieces: impl Iterator<Item = &'e Evidence>,
    matches: EvidenceMatch,
) -> Vec<usize> {
    // From the end: the text before the list may have any number of lines.
    let mut passages: Vec<Message> =
        request.content.lines().rev().map(|line| Message::text(Role::Tool, line)).collect();
    passages.truncate(request.observations.len());
    passages.reverse();
    for (passage, observation) in passages.iter_mut().zip(&request.observations) {
        passage.observations = vec![observation.clone()];
    }
    let mut numbers = Vec::new();
    for piece in pieces {
        let mut best: Option<(usize, f64)> = None;
        for (index, passage) in passages.iter().enumerate() {
            if !sighting::shows(passage, piece, matches) {
                continue;
            }
            let likeness = piece.fact.as_deref().map_or(0.0, |fact| rouge_l(&passage.content, fact));
            // Of equal ones, the first listed stays.
            if best.is_none_or(|(_, most)| likeness > most) {
                best = Some((index + 1, likeness));
            }
        }
        if let Some((number, _)) = best
            && !numbers.contains(&number)
        {
            numbers.push(number);
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use searchmill_schemas::Observation;

    use super::*;

    #[test]
    fn each_piece_chooses_the_passage_most_like_its_sentence() {
        let listed = [
            ("a", "Rome", "Rome has seven hills."),
            ("b", "Paris", "Paris lies on the Seine."),
            ("c", "Rome", "Rome is the capital city of Italy."),
        ];
        let lines = listed.iter().enumerate().map(|(at, (_, title, text))| format!("[{}] {title} {text}", at + 1));
        let mut request =
            Message::text(Role::User, format!("[9] no passage\n{}", lines.collect::<Vec<_>>().join("\n")));
        let seen = |(id, title, _): (&str, &str, &str)| Observation {
            chunk_id: format!("{id}#0"),
            document_id: id.to_owned(),
            title: Some(title.to_owned()),
            score: 1.0,
        };
        request.observations = listed.map(seen).to_vec();
        let piece = |title: &str, fact: Option<&str>| Evidence {
            document_id: None,
            title: Some(title.to_owned()),
            fact: fact.map(str::to_owned),
        };
        let (rome, paris) = (piece("Rome", Some("Rome is the capital of Italy.")), piece("Paris", None));
        let choose = |pieces: &[&Evidence], matches| chosen(&request, pieces.iter().copied(), matches);
        assert_eq!(choose(&[&paris, &rome, &paris], EvidenceMatch::Document), [2, 3]);
        assert_eq!(choose(&[&rome], EvidenceMatch::Fact), [0_usize; 0], "no passage holds the sentence");
        assert_eq!(choose(&[&piece("Rome", None)], EvidenceMatch::Fact), [1]);
        assert_eq!(choose(&[&piece("Oslo", None)], EvidenceMatch::Document), [0_usize; 0]);
    }
}
