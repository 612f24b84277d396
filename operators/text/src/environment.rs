//! Texts of the environment inside a model's turn, as text protocols append them.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

/// ReSearch's `<result>`, Search-R1's `<information>`, Qwen's `<tool_response>`, R1-Searcher's documents.
static ENVIRONMENT: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let tags = ["result", "information", "tool_response"].map(|tag| format!("<{tag}>.*?(?:</{tag}>|$)"));
    let documents = r"<\|begin_of_documents\|>.*?(?:<\|end_of_documents\|>|$)";
    // A result has several lines: the dot must match line ends.
    Regex::new(&format!("(?s){}|{documents}", tags.join("|"))).ok()
});

/// Replaces each text of the environment by a line break. Without a closing tag, it extends to the end.
pub fn without_environment(text: &str) -> Cow<'_, str> {
    ENVIRONMENT.as_ref().map_or(Cow::Borrowed(text), |regex| regex.replace_all(text, "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_environment_appended_is_removed() {
        for (text, rest) in [
            ("a <result>\nb</result> c <result> d </result>", "a \n c \n"),
            ("a <information>b <result>c</result></information>d", "a \nd"),
            ("a <|begin_of_documents|>\n(1)b\n<|end_of_documents|>\n\nc", "a \n\n\nc"),
            ("a <tool_response>b, cut off", "a \n"),
            ("</result> a <results>b</results>", "</result> a <results>b</results>"),
            ("", ""),
        ] {
            assert_eq!(without_environment(text), rest, "{text}");
        }
    }
}
