//! Splits a command into the texts that may name files or programs.

use std::path::{Path, PathBuf};

/// Programs that interpret a word as a script in which `>` writes to a file.
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "busybox"];

/// Longest text that is looked up as a path, in bytes.
const LONGEST: usize = 4096;

/// Returns all texts of a command that may name something: words, values after `=`, and words inside words.
pub(super) fn texts<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let name = |word: &str| word.rsplit('/').next().is_some_and(|name| SHELLS.contains(&name));
    let shell = words.iter().any(|word| name(word));
    let mut found = Vec::new();
    for word in words {
        found.push(*word);
        found.extend(word.split_once('=').map(|(_, value)| value));
        parts(word, shell, &mut found);
    }
    found.retain(|text| !text.is_empty() && text.len() <= LONGEST && !text.contains(['\0', '\n']));
    found
}

/// Collects the words inside a word, including whole quoted texts, except targets of shell redirection (`> log.txt`).
fn parts<'a>(word: &'a str, shell: bool, found: &mut Vec<&'a str>) {
    let (mut rest, mut written) = (word, false);
    let ends = |ch: char| ch.is_whitespace() || "'\"`;|&()<>$={},:@".contains(ch);
    while let Some(mark) = rest.chars().next() {
        let end = rest.find(ends).unwrap_or(rest.len());
        if end > 0 {
            found.extend(Some(&rest[..end]).filter(|_| !written));
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
    let closes = |at: &usize| mark == '\'' || !after[..*at].ends_with('\\');
    let is_quote = matches!(mark, '\'' | '"');
    let end = after.match_indices(mark).map(|(at, _)| at).filter(|_| is_quote).find(closes)?;
    Some((&after[..end], &after[end + mark.len_utf8()..]))
}

/// Returns the text as a path, with a leading `~` replaced by the home folder.
pub(super) fn path(text: &str) -> String {
    let home = || std::env::var_os("HOME").map(PathBuf::from);
    match text.strip_prefix("~/").and_then(|rest| Some(home()?.join(rest))) {
        Some(path) => path.to_string_lossy().into_owned(),
        None => text.to_owned(),
    }
}

/// Returns files and folders of the modules that `-m` names (`python3 -m pkg.mod`).
pub(super) fn modules(texts: &[&str]) -> Vec<String> {
    let behind = texts.windows(2).filter(|pair| pair[0] == "-m").map(|pair| pair[1]);
    let joined = texts.iter().filter_map(|text| text.strip_prefix("-m").filter(|module| !module.is_empty()));
    let is_module = |module: &&str| module.chars().all(|ch| ch.is_alphanumeric() || "_.".contains(ch));
    let places = |module: &str| {
        let package = module.split('.').next().unwrap_or_default().to_owned();
        [format!("{}.py", module.replace('.', "/")), format!("{package}.py"), package]
    };
    behind.chain(joined).filter(is_module).flat_map(places).collect()
}

/// Removes `.` and `..` from a path without file access.
pub(crate) fn plain(path: &Path) -> PathBuf {
    use std::path::Component;
    path.components().fold(PathBuf::new(), |mut plain, part| {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(plain.components().next_back(), Some(Component::Normal(_))) => {
                plain.pop();
            }
            part => plain.push(part),
        }
        plain
    })
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
        assert!(!texts(&["env", "/bin/sh", "-c", "a > b.txt"]).contains(&"b.txt"));
        assert!(texts(&["awk", "a > b.txt"]).contains(&"b.txt"), "no shell");
    }

    #[test]
    fn modules_are_files_and_packages() {
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
