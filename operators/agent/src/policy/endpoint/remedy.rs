//! What to do about a failure of a model server, by the server's own words (vLLM, SGLang, llama.cpp, Ollama, TGI, OpenAI
//! and services that speak its API).

use reqwest::StatusCode;
use searchmill_engine::operator::Counts;

/// How to mend a failure, and how it counts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Remedy {
    pub(super) help: Option<String>,
    pub(super) counts: Counts,
    /// Whether the address or the model's name is wrong: the server's list of models says more.
    pub(super) asks_for_models: bool,
}

/// A failure that servers describe in one of these ways, in lower case and separated by `|`.
struct Known {
    words: &'static str,
    help: &'static str,
    counts: Counts,
}

const KNOWN: [Known; 12] = [
    Known {
        words: "tool-call-parser|enable-auto-tool-choice|tool call parser",
        help: "start vLLM with `--enable-auto-tool-choice --tool-call-parser NAME`, SGLang with `--tool-call-parser NAME` \
               (vLLM: hermes for Qwen, llama3_json for Llama 3, mistral for Mistral; SGLang: qwen25, llama3, mistral)",
        counts: Counts::AtFirst,
    },
    Known { words: "--jinja", help: "start llama-server with `--jinja`", counts: Counts::AtFirst },
    Known {
        words: "does not support tool|does not support function|tool use is not supported|tools are not supported|\
               support tool use|tool calling is not supported",
        help: "choose a model that can call tools (`ollama show MODEL` lists `tools`), or a text protocol, such as \
               `protocol: search-r1`",
        counts: Counts::AtFirst,
    },
    Known {
        words: "default chat template is no longer|provide a chat template|no chat template|template not found",
        help: "start the server with a chat template (vLLM, SGLang, TGI: `--chat-template FILE`), or continue plain text: \
               `api: completions` with a text protocol",
        counts: Counts::AtFirst,
    },
    Known {
        words: "roles must alternate|system role not supported",
        help: "the model's chat template does not take these messages: leave out `system_prompt`, or start the server with \
               another chat template",
        // It depends on the messages, and other rows may have others.
        counts: Counts::InARow,
    },
    Known {
        words: "context length|context_length|context size|context window|max_model_len|input is too long|\
               prompt is too long|input too long|too many tokens|max_new_tokens` must be|maximum number of tokens",
        help: "the row does not fit the model's context: lower `max_tokens`, `max_turns` or the passages of a search, or \
               serve a longer context (vLLM: `--max-model-len`, SGLang: `--context-length`, llama.cpp: `-c`, Ollama: \
               `OLLAMA_CONTEXT_LENGTH`)",
        counts: Counts::Never,
    },
    Known {
        words: "content_filter|content_policy|content management policy|moderation|was flagged",
        help: "the server refuses the content of this row",
        counts: Counts::Never,
    },
    Known {
        // Before "unsupported parameter", which the same message of OpenAI contains: the first match counts.
        words: "max_completion_tokens",
        help: "write `max_tokens: null` and `extra: {max_completion_tokens: 4096}`",
        counts: Counts::AtFirst,
    },
    Known {
        words: "insufficient_quota|exceeded your current quota|insufficient balance|credit balance|out of credits",
        help: "the account has no credit left",
        counts: Counts::AtFirst,
    },
    Known {
        // nginx says this on a port of TLS.
        words: "plain http request was sent to https",
        help: "the server speaks TLS: write `https://` in `base_url`",
        counts: Counts::AtFirst,
    },
    Known {
        words: "not a chat model|only supported in v1/completions",
        help: "continue plain text: `api: completions` with a text protocol, such as `protocol: search-r1`",
        counts: Counts::AtFirst,
    },
    Known {
        words: "unsupported parameter|unsupported value|unsupported_value|unrecognized request argument|\
               extra inputs are not permitted|extra_forbidden|unknown field",
        help: "the server does not take this field: leave it out of `policy.endpoint` (`temperature: null`, `extra`)",
        counts: Counts::InARow,
    },
];

/// What servers say of a model that they do not have, likewise. A text must also name the model.
const NO_MODEL: &str = "not found|not exist|not be found|not a valid model|invalid model|unknown model|no such model|\
    model_not_found|no models loaded|deploymentnotfound|not available";

fn of(help: &str, counts: Counts) -> Remedy {
    Remedy { help: Some(help.to_owned()), counts, asks_for_models: false }
}

/// Returns what is known of an error status with these words; `has_key`: whether an API key was sent.
pub(super) fn remedy(status: StatusCode, words: &str, has_key: bool) -> Remedy {
    let words = words.to_lowercase();
    // The words before the status: servers report one failure with different statuses.
    if let Some(known) = KNOWN.iter().find(|known| known.words.split('|').any(|word| words.contains(word))) {
        return of(known.help, known.counts);
    }
    let unknown = Remedy { help: None, counts: Counts::AtFirst, asks_for_models: true };
    let names_no_model = words.contains("model") && NO_MODEL.split('|').any(|word| words.contains(word));
    match status {
        StatusCode::UNAUTHORIZED if has_key => {
            of("check the API key in the variable that `api_key` names", Counts::AtFirst)
        }
        StatusCode::UNAUTHORIZED => of("the server wants a key: `api_key: ${secret:NAME}`", Counts::AtFirst),
        StatusCode::PAYMENT_REQUIRED => of("the account has no credit left", Counts::AtFirst),
        StatusCode::FORBIDDEN => of("check what the API key in `api_key` may do, and from where", Counts::InARow),
        StatusCode::PAYLOAD_TOO_LARGE => of("the row's text is too long for the server", Counts::Never),
        StatusCode::TOO_MANY_REQUESTS => of(
            "set `limits: {requests_per_minute: …}` of the endpoint, or raise `retry: {max_attempts: …}`",
            Counts::InARow,
        ),
        // llama-server answers so until it has loaded the weights.
        StatusCode::SERVICE_UNAVAILABLE if words.contains("loading") => {
            of("the server loads the model: wait, or raise `retry: {max_attempts: …, backoff: …}`", Counts::InARow)
        }
        // A wrong path gives 404, or 405 where it takes only GET; vLLM and OpenAI answer 404 for a wrong model, too.
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => unknown,
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY if names_no_model => unknown,
        _ if status.is_redirection() => Remedy { help: None, counts: Counts::AtFirst, asks_for_models: false },
        _ if status.is_server_error() => of("the server's log says more", Counts::InARow),
        _ => Remedy { help: None, counts: Counts::InARow, asks_for_models: false },
    }
}

/// Returns what to do about a connection that fails for this cause; `connects`: whether it was opened.
pub(super) fn of_connection(cause: &str, connects: bool) -> &'static str {
    let cause = cause.to_lowercase();
    // rustls says this of bytes that are no TLS record, such as an answer in plain HTTP.
    if cause.contains("corrupt message") || cause.contains("invalidcontenttype") {
        return "the server speaks no TLS: write `http://` in `base_url`";
    }
    if cause.contains("certificate") {
        return "the server's certificate is not trusted here: install its authority, or check the host in `base_url`";
    }
    if connects { "the server's log says more" } else { "start the server, or check the host and port in `base_url`" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, words: &str) -> Remedy {
        remedy(StatusCode::from_u16(status).expect("a status"), words, true)
    }

    fn helps(status: u16, words: &str, help: &str, counts: Counts) {
        let found = of(status, words);
        assert!(found.help.as_deref().is_some_and(|found| found.contains(help)), "{words}: {found:?}");
        assert_eq!(found.counts, counts, "{words}");
    }

    #[test]
    fn the_words_of_servers_have_a_remedy() {
        let vllm = "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set";
        helps(400, vllm, "--enable-auto-tool-choice --tool-call-parser", Counts::AtFirst);
        helps(500, "tools param requires --jinja flag", "--jinja", Counts::AtFirst);
        let ollama = "registry.ollama.ai/library/gemma:2b does not support tools";
        helps(400, ollama, "can call tools", Counts::AtFirst);
        let openai =
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'";
        helps(400, openai, "max_completion_tokens: 4096", Counts::AtFirst);
        helps(429, "You exceeded your current quota [insufficient_quota]", "no credit", Counts::AtFirst);
        helps(429, "slow down", "requests_per_minute", Counts::InARow);
        helps(503, "Loading model", "max_attempts", Counts::InARow);
        helps(401, "Incorrect API key provided", "api_key", Counts::AtFirst);
        let template = "As of transformers v4.44, default chat template is no longer allowed";
        helps(400, template, "--chat-template", Counts::AtFirst);
        for long in [
            "This model's maximum context length is 2048 tokens. However, you requested 4600 tokens",
            "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
            "the request exceeds the available context size, try increasing it",
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096",
        ] {
            helps(400, long, "max_tokens", Counts::Never);
        }
    }

    #[test]
    fn a_missing_model_or_address_asks_for_the_list() {
        for (status, words) in [
            (404, "The model `nope` does not exist."),
            (404, "model \"nope\" not found, try pulling it first"),
            (404, "Not Found"),
            (405, "Method Not Allowed"),
            (400, "nope is not a valid model ID"),
            (400, "Invalid model name passed in model=nope"),
            (400, "Model Not Exist"),
        ] {
            let found = of(status, words);
            assert!(found.asks_for_models && found.counts == Counts::AtFirst, "{words}: {found:?}");
        }
        let other = of(400, "bad request");
        assert_eq!((other.asks_for_models, other.counts), (false, Counts::InARow));
    }

    #[test]
    fn connections_that_fail_say_what_to_check() {
        assert!(of_connection("received corrupt message of type InvalidContentType", false).contains("http://"));
        assert!(of_connection("Connection refused (os error 111)", false).contains("start the server"));
    }
}
