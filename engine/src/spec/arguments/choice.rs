//! Alternatives (`oneOf`, `anyOf`): selects the intended one, so that errors are reported inside it.

use serde_json::Value as Json;

use super::schema::Schema;
use super::{Place, Reader};
use crate::spec::suggest;
use crate::spec::value::{Spanned, Value};

impl Reader<'_> {
    /// Reads one of several alternatives.
    pub(super) fn choose(
        &mut self,
        value: &Spanned,
        whole: Schema<'_>,
        branches: &[Schema<'_>],
        place: &Place,
    ) -> Json {
        // A branch without a type (`{}`) allows null as it allows anything.
        let nullable = branches.iter().any(|branch| branch.allows("null") && !branch.types().is_empty());
        if value.value == Value::Null && nullable {
            return Json::Null;
        }
        let real: Vec<_> = branches.iter().copied().filter(|branch| !branch.is_null()).collect();
        if let [only] = real.as_slice() {
            return self.read(value, *only, place);
        }
        let (mut is_any_tagged, mut are_others_excluded) = (false, true);
        for branch in &real {
            if branch.words().is_some() || branch.tag().is_some() {
                is_any_tagged = true;
            } else {
                // Among other kinds of values, a map can only be one of the tagged options.
                are_others_excluded &= matches!(value.value, Value::Map(_)) && !branch.allows("object");
            }
        }
        if is_any_tagged && are_others_excluded {
            return self.tagged(value, whole, &real, place);
        }
        // The key with one fixed word in each alternative (`#[serde(tag = "kind")]`).
        let mut keys = real.first().into_iter().flat_map(Schema::property_names);
        match keys.find(|key| real.iter().all(|branch| tag_word(*branch, key).is_some())) {
            Some(key) => self.internally_tagged(value, whole, &real, key, place),
            None => self.untagged(value, whole, &real, place),
        }
    }

    /// Reads words and `{word: options}`: an enum in serde's format.
    fn tagged(&mut self, value: &Spanned, whole: Schema<'_>, branches: &[Schema<'_>], place: &Place) -> Json {
        let words: Vec<_> = branches.iter().filter_map(Schema::words).flatten().collect();
        let tags: Vec<_> = branches.iter().filter_map(Schema::tag).collect();
        match &value.value {
            // With one key, it was meant as an option with settings.
            Value::Map(entries) if !tags.is_empty() || entries.len() == 1 => {
                match branches.iter().find(|branch| branch.tag().is_some_and(|tag| value.get(tag).is_some())) {
                    Some(branch) => self.read(value, *branch, place),
                    None => self.unknown_tag(value, &words, &tags, place),
                }
            }
            Value::Map(_) | Value::List(_) | Value::Null => self.mismatch(value, whole, place),
            _ => self.word_or_tag(value, &words, &tags, place),
        }
    }

    fn unknown_tag(&mut self, value: &Spanned, words: &[&Json], tags: &[&str], place: &Place) -> Json {
        let Some((key, _)) = value.entries().first() else {
            let message = format!("{} is an empty map", self.name(place));
            return self.report("missing-key", message, value.span, place, suggest::listing(tags));
        };
        let is_word = words.iter().any(|word| word.as_str() == Some(&key.text));
        let help = if is_word {
            Some(format!("`{}` takes no options: write it alone", key.text))
        } else {
            suggest::advice(&key.text, &all(words, tags))
        };
        let message = format!("{} cannot be `{}: …`", self.name(place), key.text);
        self.report("unknown-key", message, key.span, place, help)
    }

    fn word_or_tag(&mut self, value: &Spanned, words: &[&Json], tags: &[&str], place: &Place) -> Json {
        let text = value.scalar_text().unwrap_or_default();
        let is_word = words.iter().any(|word| word.as_str() == Some(&text));
        // A tag that may be written without options is a word, too.
        let help = if words.is_empty() || (tags.contains(&text.as_str()) && !is_word) {
            match suggest::closest(&text, tags.iter().copied()) {
                Some(tag) => Some(format!("`{tag}` needs options: write `{tag}: {{…}}`")),
                None => suggest::listing(tags),
            }
        } else if is_word || tags.is_empty() || words.contains(&&value.to_json()) {
            return self.word(value, words, place);
        } else {
            suggest::advice(&text, &all(words, tags))
        };
        self.report("bad-value", format!("{} cannot be `{text}`", self.name(place)), value.span, place, help)
    }

    fn internally_tagged(
        &mut self,
        value: &Spanned,
        whole: Schema<'_>,
        branches: &[Schema<'_>],
        key: &str,
        place: &Place,
    ) -> Json {
        let Value::Map(_) = value.value else { return self.mismatch(value, whole, place) };
        let Some(tag) = value.get(key) else {
            let words = tag_words(branches, key);
            let message = format!("{} has no `{key}`", self.name(place));
            return self.report("missing-key", message, place.name, place, suggest::listing(&words));
        };
        let text = tag.scalar_text().unwrap_or_default();
        let branch = branches.iter().find(|branch| tag_word(**branch, key) == Some(&text));
        if let Some(branch) = branch {
            return self.read(value, *branch, place);
        }
        let help = suggest::advice(&text, &tag_words(branches, key));
        let below = place.below(key, tag.span, tag);
        let message = format!("{} cannot be `{text}`", self.name(&below));
        self.report("bad-value", message, tag.span, &below, help)
    }

    /// Returns the first alternative that fits; a number with a decimal point is a whole number only if none else does.
    /// Otherwise reports the errors of the only one with the right shape, or a
    /// single error for all.
    fn untagged(&mut self, value: &Spanned, whole: Schema<'_>, branches: &[Schema<'_>], place: &Place) -> Json {
        let (mut fitting, mut close) = (None, Vec::new());
        // `1.0` may be a share where `1` is a count.
        let has_point =
            matches!(value.value, Value::Float(_)) && value.text.as_ref().is_none_or(|text| text.contains('.'));
        for branch in branches {
            // Errors of an alternative count only if it turns out to be the intended one.
            let mut reader = Reader { operator: self.operator, problems: Vec::new(), broken: false };
            let typed = reader.read(value, *branch, place);
            if !reader.problems.is_empty() {
                if has_shape_of(value, *branch) {
                    close.push(reader.problems);
                }
            } else if typed.is_f64() || !has_point {
                self.broken |= reader.broken;
                return typed;
            } else if fitting.is_none() {
                fitting = Some((typed, reader.broken));
            }
        }
        if let Some((typed, broken)) = fitting {
            self.broken |= broken;
            return typed;
        }
        match close.as_mut_slice() {
            [problems] => self.problems.append(problems),
            _ => drop(self.mismatch(value, whole, place)),
        }
        Json::Null
    }
}

/// Whether a value may be meant as this alternative, so that its errors help.
fn has_shape_of(value: &Spanned, branch: Schema<'_>) -> bool {
    match value.value {
        Value::Map(_) => branch.allows("object") && branch.words().is_none(),
        Value::List(_) => branch.allows("array") && branch.words().is_none(),
        _ => {
            // A branch of words alone names no type of its own.
            let words = branch.branches().is_some_and(|all| all.iter().all(|word| word.words().is_some()));
            words || !branch.types().iter().all(|name| matches!(*name, "object" | "array"))
        }
    }
}

fn all<'w>(words: &[&'w Json], tags: &[&'w str]) -> Vec<&'w str> {
    words.iter().filter_map(|word| word.as_str()).chain(tags.iter().copied()).collect()
}

fn tag_word<'s>(branch: Schema<'s>, key: &str) -> Option<&'s str> {
    // Where other keys are allowed, every key has a schema: it must be declared.
    if !branch.property_names().contains(&key) {
        return None;
    }
    branch.property(key)?.keyword("const")?.as_str()
}

fn tag_words<'s>(branches: &[Schema<'s>], key: &str) -> Vec<&'s str> {
    branches.iter().filter_map(|branch| tag_word(*branch, key)).collect()
}
