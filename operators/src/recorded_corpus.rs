//! `recorded-corpus`: what tools showed in rollouts, as documents.

use indexmap::IndexMap;
use schemars::JsonSchema;
use searchmill_agent::outside::{RecordedCall, calls, content_id};
use searchmill_engine::operator::{
    BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs, ParamIssue, Ports,
};
use searchmill_schemas::{Document, Observation, RecordKind, Trajectory, from_batch};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Turns what tools showed in rollouts into documents, for `chunk` and `index`: a search service becomes a local
/// corpus. A document is one passage that a tool showed, or the whole text of a call if it cannot be split. Equal texts
/// are one document. Its id is derived from title and text. Its metadata say where it was seen first (`tool`,
/// `arguments`, and `source`: the id or address that the tool gave) and in which rollouts (`trajectories`). Failed
/// calls showed nothing.
pub(crate) struct RecordedCorpus;

/// Parameters of `recorded-corpus`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct RecordedCorpusParams {
    /// Names of the tools whose results count (default: all tools).
    pub(crate) tools: Option<Vec<String>>,
}

const PORT: &str = "trajectories";

impl Operator for RecordedCorpus {
    type Params = RecordedCorpusParams;
    const NAME: &'static str = "recorded-corpus";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Turns what tools showed in rollouts into documents.";
    const EXAMPLES: &'static [Example] = &[
        Example { title: "Everything that was seen, as a corpus", yaml: "seen: {op: recorded-corpus, from: rollouts}" },
        Example {
            title: "Only what two tools showed",
            yaml: "seen: {op: recorded-corpus, from: rollouts, with: {tools: [web_search, read_page]}}",
        },
    ];

    fn declare(params: &RecordedCorpusParams) -> Declaration {
        let ports = Ports::new()
            .rows_in(PORT, &[RecordKind::Trajectory], "Rollouts of the protocol `tool_call`.")
            .rows_out("documents", RecordKind::Document, "What was seen, in the order of the rollouts.");
        let is_empty = params.tools.as_ref().is_some_and(Vec::is_empty);
        let issue = ParamIssue::new("tools", "names no tool").with_help("leave it out to take all tools");
        Declaration::pure(ports).issues(is_empty.then_some(issue))
    }

    fn open(params: &RecordedCorpusParams, _: &Inputs, _: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

/// A text that was seen, and where.
struct Seen {
    title: Option<String>,
    text: String,
    metadata: Value,
    trajectories: Vec<String>,
}

impl BlockingKernel for RecordedCorpusParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let mut seen: IndexMap<String, Seen> = IndexMap::new();
        let (mut shown, mut failed) = (0_u64, 0_u64);
        for batch in inputs.rows(PORT)?.batches() {
            context.check_cancelled()?;
            for rollout in from_batch::<Trajectory>(&batch?)? {
                for call in calls(&rollout.messages) {
                    if self.tools.as_ref().is_some_and(|tools| tools.iter().all(|name| name != call.tool)) {
                        continue;
                    }
                    if call.answer.error.is_some() {
                        failed += 1;
                        continue;
                    }
                    shown += 1;
                    take(&call, &rollout.id, &mut seen);
                }
            }
        }
        outputs.figure("calls", shown as f64);
        outputs.figure("failed_calls", failed as f64);
        outputs.figure("documents", seen.len() as f64);
        let mut documents = Vec::with_capacity(seen.len());
        for (id, Seen { title, text, mut metadata, trajectories }) in seen {
            metadata["trajectories"] = json!(trajectories);
            documents.push(Document { id, title, text, metadata: Some(metadata.to_string()) });
        }
        outputs.write_rows("documents", &documents)
    }
}

/// Adds what a call showed.
fn take(call: &RecordedCall<'_>, trajectory: &str, seen: &mut IndexMap<String, Seen>) {
    let observations = &call.answer.observations;
    let whole = call.answer.content.as_str();
    let parts = parts(whole, observations.len()).unwrap_or_else(|| vec![whole]);
    let alone = parts.len() != observations.len();
    for (index, part) in parts.into_iter().enumerate() {
        let observation = observations.get(index).filter(|_| !alone);
        let title = observation.and_then(|one| one.title.clone()).filter(|title| !title.is_empty());
        let text = if alone { part } else { body(part, index + 1, observation) }.trim();
        // Without observations, the tool says nothing of where the text is from.
        if text.is_empty() || observations.is_empty() {
            continue;
        }
        let id = content_id(title.as_deref().unwrap_or_default(), text);
        let found = seen.entry(id).or_insert_with(|| {
            let source = observation.or(observations.first()).map_or("", |one| &one.chunk_id);
            let metadata = json!({"tool": call.tool, "arguments": call.arguments, "source": source});
            Seen { title, text: text.to_owned(), metadata, trajectories: Vec::new() }
        });
        // The calls of a rollout come one after the other, so its id can only be the last one.
        if found.trajectories.last().is_none_or(|last| last != trajectory) {
            found.trajectories.push(trajectory.to_owned());
        }
    }
}

/// Splits numbered passages, each of which follows a blank line. `None` if the text does not say where they begin: a
/// passage that contains such a line itself could be anything.
fn parts(text: &str, count: usize) -> Option<Vec<&str>> {
    if !text.starts_with("[1]") {
        return (count == 1).then(|| vec![text]);
    }
    let (mut found, mut rest) = (Vec::new(), text);
    for number in 2..=count {
        let mark = format!("\n\n[{number}]");
        let (before, _) = rest.split_once(&mark)?;
        if rest.matches(&mark).count() > 1 {
            return None;
        }
        found.push(before);
        rest = &rest[before.len() + 2..];
    }
    found.push(rest);
    Some(found)
}

/// The text of a passage without its number, id and title.
fn body<'t>(part: &'t str, number: usize, observation: Option<&Observation>) -> &'t str {
    let text = part.strip_prefix(&format!("[{number}]")).unwrap_or(part).trim_start_matches(' ');
    let Some(seen) = observation else { return text };
    let text = text.strip_prefix(&format!("(id {}) ", seen.chunk_id)).unwrap_or(text);
    let title = seen.title.as_deref().unwrap_or_default();
    let (first, below) = text.split_once('\n').unwrap_or((text, ""));
    let address = format!("({})", seen.chunk_id);
    let heading = first.strip_suffix(&address).unwrap_or(first).trim();
    let is_heading = heading == title.trim() && (!title.is_empty() || first.trim() == address || first.is_empty());
    if is_heading { below } else { text }
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::entry;
    use searchmill_engine::operator::testing::{Harness, inputs, rows_input};
    use searchmill_fixtures::trajectories::trajectory;
    use searchmill_schemas::{Message, Role, ToolCall};

    use super::*;

    fn call(messages: &mut Vec<Message>, tool: &str, arguments: &str, content: &str, seen: &[(&str, &str)]) {
        let id = format!("c{}", messages.len());
        let mut asked = Message::text(Role::Assistant, "");
        asked.tool_calls = vec![ToolCall { id: id.clone(), name: tool.to_owned(), arguments: arguments.to_owned() }];
        let mut answer = Message::text(Role::Tool, content);
        answer.tool_call_id = Some(id);
        let observation = |(id, title): &(&str, &str)| Observation {
            chunk_id: (*id).to_owned(),
            document_id: (*id).to_owned(),
            title: (!title.is_empty()).then(|| (*title).to_owned()),
            score: 0.0,
        };
        answer.observations = seen.iter().map(observation).collect();
        messages.extend([asked, answer]);
    }

    fn documents(rollouts: &[Trajectory], params: Value) -> Vec<Document> {
        let bound = inputs([(PORT, rows_input(rollouts))]);
        Harness::new().run(&entry::<RecordedCorpus>(), params, &bound).expect("documents").read("documents")
    }

    #[test]
    fn passages_of_all_tools_become_documents_once() {
        let mut one = trajectory("q1", 0, "Rome", "Rome");
        let web = "[1] Rome (https://r)\nA city.\n\n[2] (https://x)\nNo title.";
        call(&mut one.messages, "web", r#"{"query": "rome"}"#, web, &[("https://r", "Rome"), ("https://x", "")]);
        call(&mut one.messages, "search", r#"{"query": "r"}"#, "[1] (id d#0) Italy\nHas Rome.", &[("d#0", "Italy")]);
        call(&mut one.messages, "fetch", r#"{"url": "u"}"#, "A page.\n\n[2] of a list.", &[("h", "")]);
        let mut two = trajectory("q2", 1, "Rome", "Rome");
        call(
            &mut two.messages,
            "web",
            r#"{"query": "x"}"#,
            "[1] Rome (https://r2)\nA city.",
            &[("https://r2", "Rome")],
        );
        let found = documents(&[one.clone(), two.clone()], json!({}));
        let shown: Vec<_> = found.iter().map(|one| (one.title.as_deref().unwrap_or("-"), one.text.as_str())).collect();
        let expected =
            [("Rome", "A city."), ("-", "No title."), ("Italy", "Has Rome."), ("-", "A page.\n\n[2] of a list.")];
        assert_eq!(shown, expected);
        let metadata: Value = serde_json::from_str(found[0].metadata.as_deref().expect("metadata")).expect("JSON");
        let expected = json!({"tool": "web", "arguments": {"query": "rome"}, "source": "https://r",
            "trajectories": [one.id, two.id]});
        assert_eq!(metadata, expected);
        assert_eq!(documents(&[one, two], json!({"tools": ["fetch"]})).len(), 1);
    }

    #[test]
    fn passages_that_cannot_be_told_apart_stay_one_text_and_errors_are_none() {
        let mut rollout = trajectory("q", 0, "x", "x");
        let text = "[1] A\n\n[2] quoted\n\n[2] B";
        call(&mut rollout.messages, "web", "{}", text, &[("a", ""), ("b", "")]);
        call(&mut rollout.messages, "web", "{}", "No results were found.", &[]);
        call(&mut rollout.messages, "web", "{}", "Error: down.", &[]);
        rollout.messages.last_mut().expect("a message").error = Some("down".to_owned());
        let found = documents(&[rollout], json!({}));
        assert_eq!(found.iter().map(|one| one.text.as_str()).collect::<Vec<_>>(), [text]);
    }
}
