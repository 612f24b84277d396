//! Splits a command into the texts that may name files or programs.

use std::path::{Component, Path, PathBuf};

/// Programs that interpret a word as a script in which `>` writes to a file.
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "busybox"];

/// Longest text that is looked up as a path, in bytes.
pub(super) const LONGEST: usize = 4096;

/// Words that one brace expression may stand for.
const MOST_BRACED: usize = 1024;

/// Returns all texts of a command that may name something: words, values after `=` and behind `-f`, words inside words,
/// and what a shell makes of quotes, `$PWD`, `$HOME` and braces. A text too much names nothing, or enters the key.
pub(super) fn texts(words: &[&str]) -> Vec<String> {
    let shell = words.iter().any(|word| SHELLS.contains(&word.rsplit('/').next().unwrap_or_default()));
    // The words themselves stay side by side: `-m` is followed by a module.
    let mut found: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    for word in words {
        let word = with_variables(word);
        inside(&word, shell, &mut found);
        for plain in unquoted(&word, shell) {
            for meant in braced(&plain) {
                // The folder before the braces of `data/{a,b}.txt` is not read as a whole.
                if meant != plain
                    && let Some((folder, _)) = plain.split_once('{')
                    && folder.ends_with('/')
                {
                    found.retain(|text| text != folder);
                }
                inside(&meant, false, &mut found);
                found.push(meant);
            }
        }
    }
    found.retain(|text| !text.is_empty() && text.len() <= LONGEST && !text.contains(['\0', '\n']));
    found
}

/// Collects the texts inside a word.
fn inside(word: &str, shell: bool, found: &mut Vec<String>) {
    let mut all: Vec<&str> = word.split_once('=').into_iter().map(|(_, value)| value).collect();
    parts(word, shell, &mut all);
    for text in all {
        found.push(text.to_owned());
        // Ends of lists: `[a.txt,b.txt]`. Brackets also stand in patterns, so the whole text counts, too.
        let item = text.trim_start_matches('[').trim_end_matches(']');
        if item != text {
            found.push(item.to_owned());
        }
        // `-fFILE`
        if let Some(option) = text.strip_prefix('-')
            && let Some(file) = option.strip_prefix(|ch: char| ch.is_ascii_alphanumeric())
        {
            found.push(file.to_owned());
        }
    }
}

/// Replaces the variables that every program gets, and the working directory: paths start there.
fn with_variables(word: &str) -> String {
    let home = std::env::var("HOME").unwrap_or_default();
    let mut text = word.to_owned();
    for (name, value) in [("$(pwd)", "."), ("`pwd`", "."), ("${PWD}", "."), ("${HOME}", &home)] {
        text = text.replace(name, value);
    }
    for (name, value) in [("$PWD", "."), ("$HOME", &home)] {
        let mut parts = text.split(name);
        let mut whole = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            // `$PWDX` is another variable.
            let same = !part.starts_with(|ch: char| ch.is_ascii_alphanumeric() || ch == '_');
            whole.push_str(if same { value } else { name });
            whole.push_str(part);
        }
        text = whole;
    }
    text
}

/// Returns the words of a script as a shell reads them, without their quotes, except targets of redirection.
fn unquoted(script: &str, shell: bool) -> Vec<String> {
    let (mut words, mut word, mut quote, mut written) = (Vec::new(), None::<String>, None, false);
    let mut characters = script.chars();
    while let Some(ch) = characters.next() {
        match (ch, quote) {
            (_, Some(mark)) if ch == mark => quote = None,
            ('\\', None | Some('"')) => word.get_or_insert_default().extend(characters.next()),
            ('\'' | '"', None) => {
                quote = Some(ch);
                word.get_or_insert_default();
            }
            (_, None) if ch.is_whitespace() || ";|&()<>".contains(ch) => {
                match word.take() {
                    Some(word) if !written => words.push(word),
                    // The target of a redirection.
                    Some(_) => written = false,
                    None => {}
                }
                // Spaces and `>|` may precede the target of a redirection.
                written = shell && ch == '>' || written && (ch.is_whitespace() || "|&".contains(ch));
            }
            _ => word.get_or_insert_default().push(ch),
        }
    }
    if !written {
        words.extend(word);
    }
    words
}

/// Returns what the braces of a word stand for: `a{1,2}` for `a1` and `a2`, `{1..3}` for three numbers.
fn braced(word: &str) -> Vec<String> {
    let mut done = Vec::new();
    let mut pending = vec![word.to_owned()];
    while let Some(word) = pending.pop() {
        match first_braces(&word) {
            Some((start, end, choices)) if done.len() + pending.len() + choices.len() <= MOST_BRACED => {
                for choice in choices {
                    pending.push(format!("{}{choice}{}", &word[..start], &word[end..]));
                }
            }
            _ => done.push(word),
        }
    }
    done
}

/// Returns the first braces with several choices: where they start and end, and the choices.
fn first_braces(word: &str) -> Option<(usize, usize, Vec<String>)> {
    for (start, _) in word.match_indices('{') {
        let (mut depth, mut cuts) = (0, vec![start]);
        for (at, ch) in word[start..].char_indices() {
            match ch {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => cuts.push(start + at),
                _ => {}
            }
            if depth == 0 {
                cuts.push(start + at);
                break;
            }
        }
        let end = *cuts.last()? + 1;
        if depth > 0 {
            continue;
        }
        let choices: Vec<String> = cuts.windows(2).map(|cut| word[cut[0] + 1..cut[1]].to_owned()).collect();
        let choices = if let [only] = choices.as_slice() { numbers(only) } else { Some(choices) };
        if let Some(choices) = choices {
            return Some((start, end, choices));
        }
    }
    None
}

/// Returns the numbers of `1..3`, filled with zeros as the first one is.
fn numbers(range: &str) -> Option<Vec<String>> {
    let (first, last) = range.split_once("..")?;
    let width = if first.starts_with('0') { first.len() } else { 0 };
    let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
    if last.checked_sub(first)? as usize >= MOST_BRACED {
        return None;
    }
    Some((first..=last).map(|number| format!("{number:0width$}")).collect())
}

/// Collects the words inside a word, including whole quoted texts, except targets of shell redirection (`> log.txt`).
fn parts<'a>(word: &'a str, shell: bool, found: &mut Vec<&'a str>) {
    let (mut rest, mut written) = (word, false);
    while let Some(mark) = rest.chars().next() {
        let end = rest.find(|ch: char| ch.is_whitespace() || "'\"`;|&()<>$={},:@".contains(ch)).unwrap_or(rest.len());
        if end > 0 {
            if !written {
                found.push(&rest[..end]);
            }
            (rest, written) = (&rest[end..], false);
            continue;
        }
        let after = &rest[mark.len_utf8()..];
        if let Some((quoted, behind)) = quoted(mark, after) {
            if !written {
                found.push(quoted);
                // A quoted `>` redirects nothing.
                parts(quoted, false, found);
            }
            (rest, written) = (behind, false);
            continue;
        }
        // Quotes, spaces and a second `>` may precede the redirection target.
        written = shell && mark == '>' || written && (mark.is_whitespace() || "'\"|&".contains(mark));
        rest = after;
    }
}

/// Returns the text up to the closing quote, and the text after it.
fn quoted(mark: char, after: &str) -> Option<(&str, &str)> {
    if !matches!(mark, '\'' | '"') {
        return None;
    }
    // In single quotes, a backslash is a character like others.
    let mut quotes = after.match_indices(mark);
    let (end, _) = quotes.find(|(at, _)| mark == '\'' || !after[..*at].ends_with('\\'))?;
    Some((&after[..end], &after[end + mark.len_utf8()..]))
}

/// Returns the text as a path: without `file://`, and with a leading `~` replaced by the home folder.
pub(super) fn path(text: &str) -> String {
    let text = text.strip_prefix("file://").unwrap_or(text);
    if let Some(rest) = text.strip_prefix("~/")
        && let Some(home) = std::env::var_os("HOME")
    {
        return Path::new(&home).join(rest).to_string_lossy().into_owned();
    }
    text.to_owned()
}

/// Returns files and folders of the modules that `-m` names (`python3 -m pkg.mod`).
pub(super) fn modules(texts: &[String]) -> Vec<String> {
    let mut paths = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let module = match text.strip_prefix("-m") {
            Some("") => texts.get(index + 1).map(String::as_str),
            joined => joined,
        };
        if let Some(module) = module
            && module.chars().all(|ch| ch.is_alphanumeric() || "_.".contains(ch))
        {
            let package = module.split('.').next().unwrap_or_default();
            paths.extend([format!("{}.py", module.replace('.', "/")), format!("{package}.py"), package.to_owned()]);
        }
    }
    paths
}

/// Removes `.` and `..` from a path without file access.
pub(crate) fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(plain.components().next_back(), Some(Component::Normal(_))) => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(word: &str, shell: bool) -> Vec<&str> {
        let mut found = Vec::new();
        parts(word, shell, &mut found);
        found.retain(|text| text.ends_with("txt"));
        found
    }

    #[test]
    fn quotes_are_whole_and_a_mark_in_them_writes_to_nothing() {
        assert_eq!(of("grep -q '</answer>' a.txt", true), ["a.txt"]);
        assert_eq!(of("grep -q '>' a.txt > b.txt", true), ["a.txt"]);
        assert_eq!(of("cat 'my file.txt' > \"my log.txt\"; x", true), ["my file.txt", "file.txt"]);
        assert_eq!(of("echo it's > log.txt; cat a.txt", true), ["a.txt"], "no quote closes");
        assert_eq!(of(r#"grep "a \" > b" c.txt; "#, true), ["c.txt"]);
        assert_eq!(of("a >>log.txt 2>&1 <in.txt", true), ["in.txt"]);
        assert_eq!(of("$1 > limit.txt", false), ["limit.txt"]);
        let has = |words: &[&str], wanted: &str| texts(words).iter().any(|text| text == wanted);
        assert!(!has(&["env", "/bin/sh", "-c", "a > b.txt"], "b.txt"));
        assert!(!has(&["sh", "-c", "a > 'b c'.txt; d >>\"e\""], "b c.txt"));
        assert!(has(&["awk", "a > b.txt"], "b.txt"), "no shell");
    }

    #[test]
    fn forms_of_trainers_and_shells_name_files() {
        for (words, wanted) in [
            (&["data.train_files=[a.txt,b.txt]"][..], &["a.txt", "b.txt"][..]),
            (&["+data.files=['a.txt', \"b c.txt\"]"], &["a.txt", "b c.txt"]),
            (&["-fa.txt"], &["a.txt"]),
            (
                &["sh", "-c", "cat $PWD/a.txt ${PWD}/b.txt $(pwd)/c.txt \"$PWD\"/d.txt"],
                &["./a.txt", "./b.txt", "./c.txt", "./d.txt"],
            ),
            (
                &["sh", "-c", "cat data/{a,b/{c,d}}.txt x{08..10}.txt"],
                &["data/a.txt", "data/b/c.txt", "data/b/d.txt", "x08.txt", "x10.txt"],
            ),
            (&["sh", "-c", r"cat a\ b.txt 'c 'd.txt"], &["a b.txt", "c d.txt"]),
            (&["--data=~/a.txt", "x@b.txt"], &["~/a.txt", "b.txt"]),
        ] {
            let found = texts(words);
            for wanted in wanted {
                assert!(found.iter().any(|text| text == wanted), "{words:?}: no {wanted} in {found:?}");
            }
        }
        assert_eq!(path("file:///a/b.txt"), "/a/b.txt");
        assert!(texts(&["$PWDX/a", "{a", "{1..999999999}", "{}{,}{{,}}"]).len() < 100);
    }

    #[test]
    fn modules_are_files_and_packages() {
        let modules = |words: &[&str]| modules(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(modules(&["python3", "-m", "pkg.mod"]), ["pkg/mod.py", "pkg.py", "pkg"]);
        assert_eq!(modules(&["-mtool"]), ["tool.py", "tool.py", "tool"]);
        assert!(modules(&["-m", "a b", "--mode"]).is_empty());
    }

    #[test]
    fn paths_are_compared_without_dots() {
        for (path, wanted) in [("./a/../b", "b"), ("/a/./b/..", "/a"), ("../x", "../x"), (".", "")] {
            assert_eq!(plain(Path::new(path)), Path::new(wanted), "{path}");
        }
        assert!(!path("~/x").starts_with('~') && path("~x") == "~x");
    }
}
