//! Renders a trajectory as a readable HTML conversation, with gold evidence and golden answers highlighted.

use std::fmt::Write;

use searchmill_agent::grounding::{gold_documents, is_uninformative};
use searchmill_schemas::{Message, Role, Trajectory};
use searchmill_text::normalize::normalize_answer;
use searchmill_text::retrieval_metrics::GoldDocuments;

use super::plot::escape;

/// Character limit of a text; longer texts are cut, with a note of the missing characters.
const SHOWN_CHARACTERS: usize = 6000;

/// Renders one trajectory: question, messages, hits and answer. `facts` are about its outcome, the main one first.
pub(crate) fn render(trajectory: &Trajectory, good: bool, facts: &[String]) -> String {
    let gold = Gold::of(trajectory);
    let verdict = if good { "good" } else { "bad" };
    let (first, further) = facts.split_first().map_or(("", facts), |(first, further)| (first.as_str(), further));
    let mut out = format!(
        r#"<article class="conversation"><header><h4>{}</h4><p class="facts"><b class="{verdict}">{}</b> · {}{} turns · {} tool calls · {} · <code>{}</code></p>"#,
        escape(&cut(&trajectory.question)),
        escape(first),
        further.iter().map(|fact| escape(fact) + " · ").collect::<String>(),
        trajectory.turns,
        trajectory.tool_calls,
        escape(&trajectory.finish_reason),
        escape(&trajectory.id),
    );
    let golden: Vec<_> = trajectory.golden_answers.iter().map(|answer| escape(&cut(answer))).collect();
    let prediction =
        if trajectory.prediction.is_empty() { "(none)".into() } else { escape(&cut(&trajectory.prediction)) };
    let golden = golden.join(" | ");
    write!(out, r#"<p>Golden: <mark>{golden}</mark> · Predicted: <b class="{verdict}">{prediction}</b></p>"#).ok();
    out.push_str(&evidence(trajectory));
    out.push_str("</header>");
    // The question stands in the heading already.
    for message in trajectory.messages.iter().filter(|message| message.role != Role::User.name()) {
        out.push_str(&render_message(message, &gold));
    }
    out.push_str("</article>");
    out
}

/// Texts and documents to highlight.
struct Gold {
    /// Facts, titles and informative answers, longest first.
    texts: Vec<String>,
    documents: GoldDocuments,
}

impl Gold {
    fn of(trajectory: &Trajectory) -> Self {
        let mut texts = Vec::new();
        for gold in &trajectory.evidence {
            texts.extend(gold.fact.iter().chain(&gold.title).map(|text| text.trim().to_owned()));
        }
        for answer in &trajectory.golden_answers {
            // Marks on each `yes` or `no` would hide the others.
            if !is_uninformative(&normalize_answer(answer)) {
                texts.push(answer.trim().to_owned());
            }
        }
        texts.retain(|text| !text.is_empty());
        // Longer texts are marked first, so that a title does not break the fact that contains it.
        texts.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        texts.dedup();
        Self { texts, documents: gold_documents(trajectory) }
    }

    /// Escapes the text and marks every occurrence, longer ones first; marks do not overlap.
    fn highlight(&self, text: &str) -> String {
        let mut spans: Vec<(usize, usize)> = Vec::new();
        for wanted in &self.texts {
            for (start, found) in text.match_indices(wanted.as_str()) {
                let end = start + found.len();
                let before = text[..start].chars().next_back();
                let after = text[end..].chars().next();
                // `in 1843` is no part of `in 18434`.
                let is_whole = !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric);
                if is_whole && spans.iter().all(|(from, to)| end <= *from || start >= *to) {
                    spans.push((start, end));
                }
            }
        }
        spans.sort_unstable();
        let (mut out, mut at) = (String::new(), 0);
        for (start, end) in spans {
            write!(out, "{}<mark>{}</mark>", escape(&text[at..start]), escape(&text[start..end])).ok();
            at = end;
        }
        out + &escape(&text[at..])
    }
}

fn evidence(trajectory: &Trajectory) -> String {
    if trajectory.evidence.is_empty() {
        return "<p class=\"facts\">No gold evidence.</p>".to_owned();
    }
    let mut out = String::from("<details><summary>Gold evidence</summary><ul>");
    for gold in &trajectory.evidence {
        let title = gold.title.as_deref().or(gold.document_id.as_deref()).unwrap_or("");
        let fact = gold.fact.as_deref().unwrap_or("");
        write!(out, "<li><b>{}</b> {}</li>", escape(title), escape(&cut(fact))).ok();
    }
    out + "</ul></details>"
}

fn render_message(message: &Message, gold: &Gold) -> String {
    let (role, class) = match message.role.as_str() {
        "assistant" => ("assistant", "assistant"),
        "tool" => ("tool", "tool"),
        role => (role, "system"),
    };
    let mut body = String::new();
    if let Some(reasoning) = message.reasoning.as_deref().filter(|text| !text.is_empty()) {
        let text = escape(&cut(reasoning));
        write!(body, "<details><summary>Reasoning</summary><pre>{text}</pre></details>").ok();
    }
    if let Some(error) = &message.error {
        write!(body, r#"<p class="bad">Error told to the model: {}</p>"#, escape(error)).ok();
    }
    if !message.content.is_empty() {
        write!(body, "<pre>{}</pre>", gold.highlight(&cut(&message.content))).ok();
    }
    for call in &message.tool_calls {
        write!(body, r#"<p class="call">{}({})</p>"#, escape(&call.name), escape(&cut(&call.arguments))).ok();
    }
    body.push_str(&observations(message, gold));
    if class == "system" {
        body = format!("<details><summary>Instructions</summary>{body}</details>");
    }
    format!(r#"<section class="turn {class}"><h5>{}</h5>{body}</section>"#, escape(role))
}

fn observations(message: &Message, gold: &Gold) -> String {
    if message.observations.is_empty() {
        return String::new();
    }
    let mut out = String::from(r#"<p class="chips">"#);
    for seen in &message.observations {
        let title = escape(seen.title.as_deref().unwrap_or(&seen.document_id));
        let is_gold = !gold.documents.found_in(&seen.document_id, seen.title.as_deref()).is_empty();
        let class = if is_gold { "chip gold" } else { "chip" };
        let (id, score) = (escape(&seen.chunk_id), seen.score);
        write!(out, r#"<span class="{class}" title="{id}, score {score:.4}">{title}</span>"#).ok();
    }
    out + "</p>"
}

fn cut(text: &str) -> String {
    let Some((end, _)) = text.char_indices().nth(SHOWN_CHARACTERS) else { return text.to_owned() };
    format!("{}… ({} more characters)", &text[..end], text[end..].chars().count())
}

#[cfg(test)]
mod tests {
    use searchmill_fixtures::trajectories::{searched, trajectory};
    use searchmill_schemas::Evidence;

    use super::*;

    fn rendered(content: &str) -> String {
        let mut made = searched(trajectory("q", 0, "Ada <Lovelace>", "x"), "d1", content);
        let evidence = |fact: &str| Evidence { document_id: Some("d1".into()), title: None, fact: Some(fact.into()) };
        made.evidence = vec![evidence("Ada <Lovelace> wrote notes"), evidence("in 1843")];
        render(&made, true, &["F1 1.000".to_owned(), "EM <1>".to_owned()])
    }

    #[test]
    fn facts_and_answers_are_marked_once_and_escaped() {
        let html = rendered("It is said that Ada <Lovelace> wrote notes in 1843, in 18434. Ada <Lovelace>!");
        assert!(
            html.contains(
                "that <mark>Ada &lt;Lovelace&gt; wrote notes</mark> <mark>in 1843</mark>, in 18434. <mark>Ada"
            )
        );
        assert!(
            !html.contains("<Lovelace>") && html.contains(r#"<b class="good">F1 1.000</b> · EM &lt;1&gt; · 2 turns"#)
        );
        assert!(html.contains("chip gold"));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = "ü".repeat(SHOWN_CHARACTERS + 5);
        assert!(cut(&text).ends_with("ü… (5 more characters)"));
        assert_eq!(cut("short"), "short");
    }
}
