//! The models that a server lists (`GET /models`), asked once when it refuses a call: they say whether the address or the
//! model's name is wrong.

use std::time::Duration;

use reqwest::Client;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::words::one_line;

/// Time for a list (at most).
const PATIENCE: Duration = Duration::from_secs(3);
/// Maximum length of a list in bytes.
const MOST_BYTES: usize = 1 << 20;
/// Number of names in a message (at most).
const MOST_NAMES: usize = 8;

/// Paths of single operations that are mistaken for the base URL.
const OPERATIONS: [&str; 9] = [
    "/chat/completions",
    "/completions",
    "/models",
    "/responses",
    "/messages",
    "/embeddings",
    "/api/generate",
    "/api/chat",
    "/api",
];

/// The list of a server's models, once it was asked.
#[derive(Default)]
pub(super) struct Models(OnceCell<Option<Listed>>);

/// A list, and the base URL below which it was found.
#[derive(Clone, Debug, PartialEq)]
struct Listed {
    base: String,
    names: Vec<String>,
}

impl Models {
    /// Returns what is wrong with the address or the name of the model, as far as the server's list says it.
    pub(super) async fn help(
        &self,
        http: &Client,
        base: &str,
        authorization: Option<&HeaderValue>,
        model: &str,
        words: &str,
    ) -> String {
        // Once for a node: otherwise every refused row would ask again.
        let listed = self.0.get_or_init(|| find(http, base, authorization)).await;
        help(listed.as_ref(), base, model, words)
    }
}

/// Looks for the list at the base URL, and where the API may be instead.
async fn find(http: &Client, base: &str, authorization: Option<&HeaderValue>) -> Option<Listed> {
    for base in bases(base) {
        if let Some(names) = list(http, &base, authorization).await {
            return Some(Listed { base, names });
        }
    }
    None
}

async fn list(http: &Client, base: &str, authorization: Option<&HeaderValue>) -> Option<Vec<String>> {
    // It only improves a message: a row that failed must not wait long for it.
    let mut request = http.get(format!("{base}/models")).timeout(PATIENCE);
    if let Some(authorization) = authorization {
        request = request.header(AUTHORIZATION, authorization);
    }
    let mut response = request.send().await.ok().filter(|response| response.status().is_success())?;
    let mut body = Vec::new();
    while let Some(bytes) = response.chunk().await.ok()? {
        body.extend_from_slice(&bytes);
        // A page of any length may stand at a wrong address.
        if body.len() > MOST_BYTES {
            return None;
        }
    }
    let found: Value = serde_json::from_slice(&body).ok()?;
    // Some services send the list alone.
    let found = found.get("data").unwrap_or(&found).as_array()?;
    Some(found.iter().filter_map(|model| model.get("id")?.as_str()).map(str::to_owned).collect())
}

/// Returns the base URLs at which the API may be: the given one first, all on its host.
fn bases(base: &str) -> Vec<String> {
    let base = base.trim_end_matches('/');
    let root = OPERATIONS.iter().find_map(|operation| base.strip_suffix(operation)).unwrap_or(base);
    let mut bases = vec![base.to_owned(), root.to_owned(), root.replace("/v1/v1", "/v1"), format!("{root}/v1")];
    if let Ok(url) = url::Url::parse(root) {
        let host = url.origin().ascii_serialization();
        // OpenRouter's API is below `/api/v1`, those of Groq and Azure below `/openai/v1`.
        bases.extend([format!("{host}/v1"), format!("{host}/api/v1"), format!("{host}/openai/v1")]);
    }
    let mut seen = std::collections::BTreeSet::new();
    bases.retain(|base| seen.insert(base.clone()));
    bases
}

fn help(listed: Option<&Listed>, base: &str, model: &str, words: &str) -> String {
    let model = one_line(model);
    // Ollama says this of a model that was not downloaded.
    if words.contains("try pulling") {
        let names = listed.map(|listed| format!("; {}", names(listed))).unwrap_or_default();
        return format!("run `ollama pull {model}`{names}");
    }
    match listed {
        Some(listed) if listed.base != base.trim_end_matches('/') => {
            format!("the API is at {}: write `base_url: {}`; {}", listed.base, listed.base, names(listed))
        }
        Some(listed) if listed.names.contains(&model) => {
            "the server has this model, but not this API: check `api`, or update the server".to_owned()
        }
        Some(listed) => format!("correct `model`; {}", names(listed)),
        None if words.to_lowercase().contains("model") => "check `model`".to_owned(),
        None => format!("check `base_url`: it ends in `/v1` with most servers, {base} answers no `/models` either"),
    }
}

fn names(listed: &Listed) -> String {
    let shown: Vec<String> = listed.names.iter().take(MOST_NAMES).map(|name| format!("`{}`", one_line(name))).collect();
    let more = listed.names.len().saturating_sub(MOST_NAMES);
    match shown.as_slice() {
        [] => "the server lists no models".to_owned(),
        [only] => format!("the server has the model {only}"),
        _ if more > 0 => format!("the server has the models {} and {more} more", shown.join(", ")),
        _ => format!("the server has the models {}", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_is_looked_for_where_people_mean_it() {
        let second = |base: &str, wanted: &str| {
            let found = bases(base);
            assert!(found[0] == base && found.iter().any(|base| base == wanted), "{base}: {found:?}");
        };
        second("http://h:8000", "http://h:8000/v1");
        second("http://h:8000/v1/v1", "http://h:8000/v1");
        second("http://h/v1/models", "http://h/v1");
        second("http://h/v1/chat/completions/chat/completions", "http://h/v1");
        second("http://h:11434/api/generate", "http://h:11434/v1");
        assert!(bases("no url").len() >= 2);
    }

    #[test]
    fn the_list_says_what_is_wrong() {
        let listed = |base: &str, names: &[&str]| Listed {
            base: base.to_owned(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        let here = listed("http://h/v1", &["a", "b"]);
        assert_eq!(
            help(Some(&here), "http://h/v1/", "nope", "no model"),
            "correct `model`; the server has the models `a`, `b`"
        );
        assert!(
            help(Some(&here), "http://h", "a", "")
                .starts_with("the API is at http://h/v1: write `base_url: http://h/v1`")
        );
        assert!(help(Some(&here), "http://h/v1", "a", "").contains("not this API"));
        assert!(help(None, "http://h/v1", "qwen3", "try pulling it first").starts_with("run `ollama pull qwen3`"));
        assert!(help(None, "http://h", "a", "Not Found").contains("`/v1`"));
    }
}
