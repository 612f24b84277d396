//! HTML pages: their main text as Markdown, without navigation, scripts and links.

use std::borrow::Cow;

use searchmill_text::markdown::{unescaped, without_links};

use super::content::{Content, no_text, wrong_type};
use super::{depth, markdown};
use crate::source::record::Fault;

/// Elements inside each other; browsers nest no deeper than 512. The time that a page takes grows with the square of
/// its depth.
const MAX_DEPTH: usize = 1000;

/// Bytes of a page that its first tag lies in.
const ROOT_WITHIN: usize = 8192;

/// Elements that are empty, or end where the next one begins.
const SHALLOW: [&str; 36] = [
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr", "p",
    "li", "dt", "dd", "tr", "td", "th", "tbody", "thead", "tfoot", "option", "optgroup", "colgroup", "rt", "rp",
    "html", "head", "body", "frame", "basefont", "bgsound", "keygen",
];

/// Reads the main text of a page.
pub(super) fn read(page: &str, url: Option<&str>) -> Result<Content, Fault> {
    // The fast count spares parsing most pages twice.
    if depth_at_most(page) > MAX_DEPTH && depth::exceeds(page, MAX_DEPTH) {
        return Err(wrong_type(format!("its elements are nested more than {MAX_DEPTH} deep, the limit")));
    }
    let url = url.filter(|url| url::Url::parse(url).is_ok());
    let article = legible::parse(&without_class_of_root(page), url, None).map_err(|error| match error {
        legible::Error::NoContent | legible::Error::NoBody => no_text("the page has no main text"),
        other => wrong_type(format!("the page cannot be read: {other}")),
    })?;
    let text = unescaped(&without_links(article.markdown_content.trim()));
    let text = text.trim();
    if text.is_empty() {
        return Err(no_text("the page has no main text"));
    }
    let mut details = serde_json::Map::new();
    let further = [
        ("language", article.lang),
        ("author", article.byline),
        ("site", article.site_name),
        ("date", article.published_time),
    ];
    for (name, value) in further {
        details.extend(value.filter(|value| !value.trim().is_empty()).map(|value| (name.to_owned(), value.into())));
    }
    let heading = markdown::sections(text, &mut details);
    let title = Some(article.title.trim().to_owned()).filter(|title| !title.is_empty()).or(heading);
    Ok(Content { title, text: text.to_owned(), details })
}

/// Hides `class` and `id` of `<html>`: a theme with `sidebar` in its name would cost the whole page, as a sidebar.
fn without_class_of_root(page: &str) -> Cow<'_, str> {
    let start = &page.as_bytes()[..page.len().min(ROOT_WITHIN)];
    let Some(open) = start.windows(6).position(|bytes| bytes.eq_ignore_ascii_case(b"<html ")) else {
        return page.into();
    };
    let Some(length) = memchr::memchr(b'>', &page.as_bytes()[open..]) else { return page.into() };
    let (tag, rest) = page[open..].split_at(length);
    let tag = tag.replace(" class=", " data-class=").replace(" id=", " data-id=");
    format!("{}{tag}{rest}", &page[..open]).into()
}

/// Returns at most how deep the elements of a page are nested: tags in drawings and scripts count, too.
fn depth_at_most(page: &str) -> usize {
    let bytes = page.as_bytes();
    let (mut depth, mut most) = (0_usize, 0);
    for at in memchr::memchr_iter(b'<', bytes) {
        let rest = &bytes[at + 1..];
        let name = rest.strip_prefix(b"/").unwrap_or(rest);
        let length = name.iter().take(16).take_while(|byte| byte.is_ascii_alphanumeric()).count();
        if length == 0 || !name[0].is_ascii_alphabetic() {
            continue;
        }
        if SHALLOW.iter().any(|shallow| shallow.as_bytes().eq_ignore_ascii_case(&name[..length])) {
            continue;
        }
        let ends = name.len() < rest.len();
        depth = if ends { depth.saturating_sub(1) } else { depth + 1 };
        most = most.max(depth);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"<html lang="en"><head><title>Salt pans of Nira</title>
        <meta property="og:site_name" content="Harbour Notes"><style>p {}</style><script>var hidden = 1;</script></head>
        <body><nav><a href="/">Home</a> <a href="/about">About</a></nav><main><h1>Salt pans of Nira</h1>
        <p>The pans were dug in 1687, when the harbour master asked the council for leave to flood the meadow.</p>
        <h2>Decline</h2><p>After the flood of 1740, the pans were given up, and <a href="/x">only the sluice</a> was left.
        </p></main><footer>Imprint, privacy</footer></body></html>"#;

    #[test]
    fn the_main_text_is_kept_and_the_rest_is_not() {
        let made = read(PAGE, Some("https://a.example/b")).unwrap();
        assert_eq!(made.title.as_deref(), Some("Salt pans of Nira"));
        assert!(
            made.text.contains(
                "## Decline\n\nAfter the flood of 1740, the pans were given up, and only the sluice was left."
            )
        );
        for gone in ["About", "hidden", "Imprint", "/x"] {
            assert!(!made.text.contains(gone), "{gone}: {}", made.text);
        }
        assert_eq!(made.details["language"], "en");
        assert_eq!(made.details["site"], "Harbour Notes");
        assert_eq!(made.details["sections"][0]["title"], "Decline");
        assert_eq!(read(PAGE, Some("no url")).unwrap().text, made.text);
        let themed =
            PAGE.replace("<html lang=\"en\">", "<html class=\"light sidebar-visible\" id=\"nav\" lang=\"en\">");
        assert_eq!(read(&themed, None).unwrap(), made, "themes of the whole page are no reason to drop it");
        let names =
            read("<body><p>Call is_it_there and a*b, please! Nothing else is to be done here.</p>", None).unwrap();
        assert_eq!(names.text, "Call is_it_there and a*b, please! Nothing else is to be done here.");
    }

    #[test]
    fn pages_without_text_and_hostile_pages_are_rejects() {
        assert_eq!(read("<html><body><script>x</script></body></html>", None).unwrap_err().kind, "no_text");
        let deep = "<div>".repeat(100_000);
        assert!(read(&deep, None).unwrap_err().message.contains("nested more than 1000 deep"));
        let sentence = "<p>One sentence, and another one.</p>";
        let drawing = format!("<body>{sentence}<svg>{}</svg>", "<path d='M0 0'/>".repeat(2 * MAX_DEPTH));
        let program = format!("<body>{sentence}<script>'{}'</script>", "<div>".repeat(2 * MAX_DEPTH));
        for flat in [drawing, program] {
            assert_eq!(read(&flat, None).unwrap().text, "One sentence, and another one.");
        }
        let nested = "<div>".repeat(MAX_DEPTH) + "One sentence, and another one.";
        assert_eq!(read(&nested, None).unwrap().text, "One sentence, and another one.");
        let flat = format!("<body>{}", "<p>One of many paragraphs, each with a comma.<br>".repeat(3000));
        assert_eq!(depth_at_most(&flat), 0);
        assert_eq!(read(&flat, None).unwrap().text.matches("One of many").count(), 3000);
    }
}
