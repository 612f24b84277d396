//! `/seed_session`, `/verify`, `/close_session` and the search tool at its own name: a resources server of NeMo Gym
//! (NVIDIA-NeMo/Gym, `base_resources_server.py`; its `simple_agent` posts each tool call to `/NAME` with the cookies of
//! `/seed_session`). The agent plays the episode; this server searches for it and judges its end.

use std::sync::Arc;

use axum::Json;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use searchmill_agent::episode::{Episode, searches_used_up};
use searchmill_operators::environment::{Environment, PLAYER, Rewarded};
use searchmill_schemas::{Message, Question, Role, ToolCall, Trajectory};
use serde_json::{Map, Value, json};

use super::questions::Wanted;
use crate::serve::env::body::Asked;
use crate::serve::env::problem::Problem;
use crate::serve::env::state::View;

/// Name of the cookie with the episode's id.
const COOKIE: &str = "searchmill_episode";

/// `GET /tasks.jsonl`: the questions as rows of a data set for NeMo Gym, with prompt and tools.
pub(crate) async fn tasks(view: View) -> Result<Response, Problem> {
    let world = view.world()?;
    let protocol = &world.environment.rules.protocol;
    let mut tools = Vec::new();
    for definition in &world.environment.tools() {
        // The Responses API has the fields of the function one level higher.
        let mut tool = definition["function"].clone();
        tool["type"] = "function".into();
        // Required in the Responses API; with `true`, every param would have to be required.
        tool["strict"] = false.into();
        tools.push(tool);
    }
    let mut text = String::new();
    for question in world.questions.iter() {
        let opening = protocol.opening(&question.question).into_iter();
        let input: Value = opening.map(|message| json!({"role": message.role, "content": message.content})).collect();
        let params = json!({"input": input, "tools": tools});
        text.push_str(&format!("{}\n", json!({"question_id": question.id, "responses_create_params": params})));
    }
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], text).into_response())
}

/// Starts a session: a cookie names it. Newer environment servers name it in the body.
pub(crate) async fn seed(view: View, Asked(body): Asked<Map<String, Value>>) -> Result<Response, Problem> {
    let world = view.world()?;
    let named = body.get("resources_session_id").and_then(Value::as_str).map(str::to_owned);
    let mut wanted = wanted(&body);
    wanted.episode_id.clone_from(&named);
    let (_, outcome) = world.reset(&wanted)?;
    let cookie = format!("{COOKIE}={}; Path=/; HttpOnly", outcome.observation.episode_id);
    let answer = named.map_or_else(|| json!({}), |id| json!({"resources_session_id": id}));
    Ok(([(header::SET_COOKIE, cookie)], Json(answer)).into_response())
}

/// Ends a session; one that is not open is no error.
pub(crate) async fn close(
    view: View,
    headers: HeaderMap,
    Asked(body): Asked<Map<String, Value>>,
) -> Result<Json<Value>, Problem> {
    let world = view.world()?;
    let named = body.get("resources_session_id").and_then(Value::as_str);
    if let Some(id) = named.or_else(|| session(&headers)) {
        world.close(id);
    }
    Ok(Json(json!({"resources_session_id": named})))
}

/// Judging needs nothing but the request.
pub(crate) async fn reverify_mode(view: View) -> Result<Json<Value>, Problem> {
    view.world()?;
    Ok(Json(json!("stateless")))
}

/// Takes the tool calls of agents: requests with a session's cookie to the name of the tool. Without a cookie, the same
/// address belongs to a retrieval API.
pub(crate) async fn tools(request: Request, next: Next) -> Response {
    let Some(view) = request.extensions().get::<View>().cloned() else { return next.run(request).await };
    let called =
        view.world().is_ok_and(|world| request.uri().path().strip_prefix('/') == Some(&world.environment.tool));
    let id = match session(request.headers()) {
        Some(id) if called && request.method() == Method::POST => id.to_owned(),
        _ => return next.run(request).await,
    };
    // The door has limited the body.
    let body = to_bytes(request.into_body(), usize::MAX).await.unwrap_or_default();
    let arguments = String::from_utf8_lossy(&body).into_owned();
    tool(&view, &id, arguments).await.unwrap_or_else(IntoResponse::into_response)
}

/// Runs a tool call; the answer is what a model reads in a rollout.
async fn tool(view: &View, id: &str, arguments: String) -> Result<Response, Problem> {
    let world = view.world()?;
    let play = world.find(id)?;
    // Locked until the call is answered: parallel calls of an agent cannot exceed `max_searches` together.
    let mut play = play.lock().await;
    let (environment, served) = (&world.environment, &mut play.served);
    let mut message = Message::text(Role::Assistant, "");
    let call = format!("call_{}", served.messages.len());
    message.tool_calls.push(ToolCall { id: call, name: environment.tool.clone(), arguments });
    let most = environment.rules.limits.max_searches;
    let mut answered = Vec::new();
    for action in environment.rules.protocol.parse(&message) {
        let result = match &action.arguments {
            Err(why) => Err(why.clone()),
            Ok(_) if most.is_some_and(|most| served.searches >= most) => Err(searches_used_up(most.unwrap_or(0))),
            Ok(arguments) => {
                let query = arguments["query"].as_str().unwrap_or_default().to_owned();
                let found = view.search(vec![query], environment.top_k).await?.pop().unwrap_or_default();
                // After the search: one that failed does not use up the limit.
                served.searches += 1;
                Ok(found.into_iter().map(|chunk| chunk.found).collect())
            }
        };
        answered.push((action, result));
    }
    if answered.is_empty() {
        let detail = "the protocol of this server has no tool calls: start it with `protocol: tool_call`";
        return Err(Problem::bad(detail));
    }
    let shown = environment.rules.protocol.render(answered);
    let text = shown.iter().map(|message| message.content.as_str()).collect::<Vec<_>>().join("\n");
    served.messages.extend(shown);
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response())
}

/// Judges the response of a model: the request's fields, and the reward.
pub(crate) async fn verify(
    view: View,
    headers: HeaderMap,
    Asked(mut body): Asked<Map<String, Value>>,
) -> Result<Json<Value>, Problem> {
    let world = view.world()?;
    let environment = &world.environment;
    let (question, seen) = match session(&headers).map(|id| world.find(id)) {
        Some(Ok(play)) => {
            let play = play.lock().await;
            (play.question.clone(), play.served.messages.clone())
        }
        // Without what the session was served, the reward would be another one.
        Some(Err(problem)) => return Err(problem),
        None => (world.questions.choose(&wanted(&body))?, Vec::new()),
    };
    if !environment.rewards() {
        let detail = "this server has no reward: start it with `--reward`, for example `--reward '{sum: [{f1: 1}]}'`";
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    }
    let episode = played(environment, question, &body, &seen)?;
    let rewarded = environment.reward(&episode);
    let Rewarded { value, parts } = rewarded
        .map_err(|why| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, format!("the response has no reward: {why}")))?
        .unwrap_or_default();
    let parts: Map<String, Value> = parts.into_iter().map(|(name, value)| (name, value.into())).collect();
    // The answer has the fields of the request: the trainer reads its own row again.
    body.insert("reward".to_owned(), value.into());
    body.insert("reward_components".to_owned(), parts.into());
    body.insert("prediction".to_owned(), episode.prediction.into());
    body.insert("finish_reason".to_owned(), episode.finish_reason.into());
    // Closed last: after an error, the agent can ask for its reward again.
    if let Some(id) = session(&headers) {
        world.close(id);
    }
    Ok(Json(Value::Object(body)))
}

/// Returns the value of the session's cookie.
fn session(headers: &HeaderMap) -> Option<&str> {
    for header in headers.get_all(header::COOKIE) {
        let Ok(cookies) = header.to_str() else { continue };
        for pair in cookies.split(';') {
            if let Some(id) = pair.trim().strip_prefix(COOKIE).and_then(|rest| rest.strip_prefix('=')) {
                return Some(id);
            }
        }
    }
    None
}

/// Reads which question a row of a data set asks: by `question_id`, `task_id` or `id`, or by its text and golden
/// answers (`expected_answer`, `golden_answers`), at the top or in `task_data` or `verifier_metadata`.
fn wanted(body: &Map<String, Value>) -> Wanted {
    let mut wanted = Wanted::default();
    let inner = [body.get("task_data"), body.get("verifier_metadata")];
    // The top of the row first: what stands there is about this row.
    for fields in std::iter::once(body).chain(inner.into_iter().flatten().filter_map(Value::as_object)) {
        if wanted.question_id.is_none() {
            wanted.question_id = first_text(fields, &["question_id", "task_id", "id"]);
        }
        if wanted.question.is_none() {
            wanted.question = first_text(fields, &["question"]);
        }
        if wanted.golden_answers.is_none() {
            wanted.golden_answers = match fields.get("golden_answers").or_else(|| fields.get("expected_answer")) {
                Some(Value::Array(items)) => Some(items.iter().filter_map(Value::as_str).map(str::to_owned).collect()),
                Some(Value::String(answer)) => Some(vec![answer.clone()]),
                Some(_) => Some(Vec::new()),
                None => None,
            };
        }
    }
    if wanted.question.is_none() {
        wanted.question = asked(body);
    }
    wanted
}

/// Returns the first of these fields that is a text.
fn first_text(fields: &Map<String, Value>, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| fields.get(*name)?.as_str()).map(str::to_owned)
}

/// Returns the last message of the user in a row's prompt.
fn asked(body: &Map<String, Value>) -> Option<String> {
    let input = body.get("responses_create_params")?.get("input")?;
    if let Some(text) = input.as_str() {
        return Some(text.to_owned());
    }
    let user = input.as_array()?.iter().rev().find(|message| message["role"] == "user")?;
    Some(text_of(&user["content"]))
}

/// Builds the episode from the items of a response. `seen`: tool messages that this server answered.
fn played(
    environment: &Environment,
    question: Question,
    body: &Map<String, Value>,
    seen: &[Message],
) -> Result<Trajectory, Problem> {
    let Some(response) = body.get("response") else { return Err(Problem::bad("the request needs `response`")) };
    let Some(output) = response["output"].as_array() else {
        return Err(Problem::bad("`response` needs `output`, the items of the model's response"));
    };
    let episode = Episode::new(Arc::clone(&environment.rules), &question.question);
    let mut messages = episode.messages().to_vec();
    for item in output {
        add(item, &mut messages, seen);
    }
    let mut trajectory = episode.trajectory(question, 0, PLAYER, response["model"].as_str().map(str::to_owned));
    // A response that ends with a tool call or a tool's result has no answer.
    let last = messages.last().filter(|message| message.is_model() && message.tool_calls.is_empty());
    trajectory.answer = last.map(|message| message.content.clone()).unwrap_or_default();
    trajectory.prediction = environment.rules.protocol.answer(&trajectory.answer).to_owned();
    let cut = response["incomplete_details"]["reason"] == "max_output_tokens";
    let reason = match last {
        _ if !trajectory.prediction.is_empty() => "answered",
        _ if cut => "length",
        None => "max_turns",
        Some(_) => "no_answer",
    };
    reason.clone_into(&mut trajectory.finish_reason);
    // The episode here has played no turn: the agent did, and its items are counted.
    (trajectory.turns, trajectory.tool_calls) = (0, 0);
    for message in messages.iter().filter(|message| message.is_model()) {
        trajectory.turns += 1;
        trajectory.tool_calls += message.tool_calls.len() as i32;
    }
    trajectory.completion_tokens = response["usage"]["output_tokens"].as_i64().unwrap_or(0);
    trajectory.prompt_tokens = response["usage"]["input_tokens"].as_i64().unwrap_or(0);
    if cut && let Some(message) = messages.last_mut() {
        message.finish_reason = Some("length".to_owned());
    }
    trajectory.messages = messages;
    Ok(trajectory)
}

/// Adds an item of the Responses API: what the model says until the next result is one message.
fn add(item: &Value, messages: &mut Vec<Message>, seen: &[Message]) {
    if item["type"] == "function_call_output" {
        let content = text_of(&item["output"]);
        // The message that was served has what the text lacks: its observations.
        let mut message = match seen.iter().find(|message| message.content == content) {
            Some(served) => served.clone(),
            None => Message::text(Role::Tool, content),
        };
        message.tool_call_id = Some(field(item, "call_id"));
        return messages.push(message);
    }
    let is_model = matches!(item["type"].as_str(), Some("reasoning" | "function_call"))
        || (item["type"].as_str().unwrap_or("message") == "message" && item["role"] == Role::Assistant.name());
    if !is_model {
        return;
    }
    if !messages.last().is_some_and(Message::is_model) {
        messages.push(Message::text(Role::Assistant, ""));
    }
    let Some(message) = messages.last_mut() else { return };
    match item["type"].as_str() {
        Some("reasoning") => {
            let said = [text_of(&item["summary"]), text_of(&item["content"])].concat();
            message.reasoning = Some(message.reasoning.take().unwrap_or_default() + &said);
        }
        Some("function_call") => {
            let (id, name, arguments) = (field(item, "call_id"), field(item, "name"), field(item, "arguments"));
            message.tool_calls.push(ToolCall { id, name, arguments });
        }
        _ => message.content.push_str(&text_of(&item["content"])),
    }
}

/// Returns a field that is a text; empty if it is not there.
fn field(item: &Value, name: &str) -> String {
    item[name].as_str().unwrap_or_default().to_owned()
}

/// Returns a text, or the texts of a list of parts.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::testing::Harness;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(map) = value else { unreachable!("an object") };
        map
    }

    #[test]
    fn a_row_names_its_question() {
        let read = |value| wanted(&object(value));
        let by_id = read(json!({"id": "a", "question_id": "q", "task_data": {"question": "Where?"}}));
        assert_eq!((by_id.question_id.as_deref(), by_id.question.as_deref()), (Some("q"), Some("Where?")));
        let input = json!([{"role": "system", "content": "x"}, {"role": "user", "content": [{"text": "Who?"}]}]);
        let by_text = read(json!({"responses_create_params": {"input": input}, "expected_answer": "Ann"}));
        assert_eq!(by_text.question.as_deref(), Some("Who?"));
        assert_eq!(by_text.golden_answers, Some(vec!["Ann".to_owned()]));
    }

    #[test]
    fn cookies_are_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, "a=b; searchmill_episode=x1; c=d".parse().unwrap());
        assert_eq!(session(&headers), Some("x1"));
        assert_eq!(session(&HeaderMap::new()), None);
    }

    #[test]
    fn a_response_becomes_an_episode() {
        let context = Harness::new().context();
        let settings = object(json!({"reward": {"sum": [{"f1": 1}]}}));
        let environment = Environment::open(settings, &context).expect("an environment");
        let question =
            Question { golden_answers: vec!["Rome".into()], question: "Where?".into(), ..Question::default() };
        let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "search", "arguments": "{}"});
        let output = json!([
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I search."}]}, call("a"), call("b"),
            {"type": "function_call_output", "call_id": "a", "output": "No passages were found."},
            {"type": "function_call_output", "call_id": "b", "output": "[1] <answer>Paris</answer>"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "<answer>Rome</answer>"}]}]);
        let body = object(json!({"response": {"output": output, "model": "m", "usage": {"output_tokens": 9}}}));
        let made = played(&environment, question.clone(), &body, &[]).expect("an episode");
        let roles: Vec<_> = made.messages.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "tool", "assistant"]);
        assert_eq!((made.prediction.as_str(), made.finish_reason.as_str(), made.turns), ("Rome", "answered", 2));
        assert_eq!((made.tool_calls, made.completion_tokens), (2, 9));
        assert_eq!(environment.reward(&made), Ok(Some(Rewarded { value: 1.0, parts: vec![("f1".to_owned(), 1.0)] })));
        // A tool's text answers nothing.
        let cut = json!({"response": {"output": output.as_array().unwrap()[..5], "model": "m"}});
        let made = played(&environment, question, &object(cut), &[]).expect("an episode");
        assert_eq!((made.prediction.as_str(), made.finish_reason.as_str()), ("", "max_turns"));
    }
}
