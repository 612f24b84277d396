//! Lists that Python wrote as text: `['a', "b"]`, as pandas leaves them in the cells of CSV files.

/// What a text is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ListText {
    /// A list or tuple of texts and numbers.
    Items(Vec<String>),
    /// It looks like a list and is none.
    Broken,
    /// Any other text.
    Plain,
}

/// Reads a text as a list of Python. JSON lists are not recognised here.
pub(crate) fn list_of(text: &str) -> ListText {
    let text = text.trim();
    let (inside, is_tuple) = if let Some(inside) = inside(text, '[', ']') {
        (inside, false)
    } else if let Some(inside) = inside(text, '(', ')') {
        (inside, true)
    } else {
        // Sets have no order.
        let is_set = matches!(inside(text, '{', '}'), Some(inside) if inside.starts_with(['\'', '"']));
        return if is_set { ListText::Broken } else { ListText::Plain };
    };
    let is_quoted = inside.trim_start().starts_with(['\'', '"']);
    match items(inside) {
        // `("a")` is a text in brackets.
        Some((_, false)) if is_tuple => ListText::Plain,
        Some((items, _)) if is_quoted => ListText::Items(items),
        None if is_quoted && (!is_tuple || inside.contains("', ") || inside.contains("\", ")) => ListText::Broken,
        _ => ListText::Plain,
    }
}

fn inside(text: &str, open: char, close: char) -> Option<&str> {
    text.strip_prefix(open)?.strip_suffix(close)
}

/// Returns the items between the brackets, and whether there was a comma.
fn items(inside: &str) -> Option<(Vec<String>, bool)> {
    let (mut rest, mut found, mut has_comma) = (inside.trim(), Vec::new(), false);
    while !rest.is_empty() {
        let (item, after) = item(rest)?;
        found.push(item);
        rest = after.trim_start();
        if rest.is_empty() {
            break;
        }
        rest = rest.strip_prefix(',')?.trim_start();
        has_comma = true;
    }
    Some((found, has_comma))
}

/// Reads one item. Returns what stands behind it.
fn item(text: &str) -> Option<(String, &str)> {
    let quote = text.chars().next()?;
    if !matches!(quote, '\'' | '"') {
        let end = text.find(',').unwrap_or(text.len());
        let number = text[..end].trim();
        // Rust reads `nan` and `inf` too, which are names in Python.
        return if number.parse::<f64>().ok()?.is_finite() { Some((number.to_owned(), &text[end..])) } else { None };
    }
    let (mut value, mut chars) = (String::new(), text[1..].char_indices());
    while let Some((at, ch)) = chars.next() {
        match ch {
            '\\' => value.push(escaped(&mut chars)?),
            ch if ch == quote => return Some((value, &text[1 + at + 1..])),
            ch => value.push(ch),
        }
    }
    None
}

/// Reads what follows a backslash.
fn escaped(chars: &mut std::str::CharIndices<'_>) -> Option<char> {
    let digits = match chars.next()?.1 {
        'n' => return Some('\n'),
        't' => return Some('\t'),
        'r' => return Some('\r'),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        same @ ('\\' | '\'' | '"') => return Some(same),
        _ => return None,
    };
    let code: String = chars.take(digits).map(|(_, ch)| ch).collect();
    if code.len() == digits { char::from_u32(u32::from_str_radix(&code, 16).ok()?) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(items: &[&str]) -> ListText {
        ListText::Items(items.iter().map(|item| (*item).to_owned()).collect())
    }

    #[test]
    fn lists_and_tuples_of_texts() {
        assert_eq!(list_of("['a', 'b']"), list(&["a", "b"]));
        assert_eq!(
            list_of(r#" ["O'Neil", 'say "x"', 'it\'s', '\xe9\u00e9\n'] "#),
            list(&["O'Neil", "say \"x\"", "it's", "éé\n"])
        );
        assert_eq!(list_of("('a',)"), list(&["a"]));
        assert_eq!(list_of("['a', 1984, ]"), list(&["a", "1984"]));
    }

    #[test]
    fn what_only_looks_like_a_list_is_broken_and_all_else_is_text() {
        for broken in ["['a' 'b']", "['a', b]", "['a\\q']", "['a', None]", "{'a', 'b'}", "['a]"] {
            assert_eq!(list_of(broken), ListText::Broken, "{broken}");
        }
        for plain in ["[Untitled]", "a", "(\"Weird\")", "(I) and (II)", "[1] and ['2'", "", "[]", "('Tis) x ('twas)"] {
            assert_eq!(list_of(plain), ListText::Plain, "{plain}");
        }
    }
}
