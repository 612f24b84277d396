//! Lets an option be written as its name alone: `kind: bm25` for `kind: {bm25: {}}`, `fusion: rrf` for `{rrf: {}}`.
//!
//! Put `#[serde(deserialize_with = "named_or_tagged")]` and `#[schemars(transform = allow_names)]` on a field whose
//! type is an externally tagged enum. The serialised form (which enters the key) is always the long one.

use std::fmt;
use std::marker::PhantomData;

use schemars::Schema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;

/// Reads an externally tagged enum, or the bare name of a variant (all its options at their defaults).
///
/// # Errors
/// Fails as the enum's own deserialiser does.
pub fn named_or_tagged<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    deserializer.deserialize_any(NamedOrTagged(PhantomData))
}

struct NamedOrTagged<T>(PhantomData<T>);

impl<'de, T: DeserializeOwned> Visitor<'de> for NamedOrTagged<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("the name of an option, or `name: {…}` with its own options")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<T, E> {
        let bare = T::deserialize(Value::from(name));
        // The second error is the one to report: a variant with options fails in the bare form whatever its name.
        bare.or_else(|_| T::deserialize(serde_json::json!({ name: {} }))).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

/// Adds the bare names to the JSON Schema of a field read by [`named_or_tagged`].
pub fn allow_names(schema: &mut Schema) {
    let mut inner = std::mem::take(schema).to_value();
    let mut both = serde_json::Map::new();
    // Both describe the field, whichever way it is written.
    for name in ["description", "default"] {
        if let Some(value) = inner.as_object_mut().and_then(|object| object.remove(name)) {
            both.insert(name.to_owned(), value);
        }
    }
    let names = serde_json::json!({"type": "string", "description": "The option's name, all its own options at their defaults"});
    both.insert("anyOf".to_owned(), Value::Array(vec![inner, names]));
    *schema = Schema::try_from(Value::Object(both)).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "snake_case")]
    enum Choice {
        Plain,
        Tuned {
            #[serde(default)]
            size: u32,
        },
    }

    #[derive(Debug, Deserialize)]
    struct Holder {
        #[serde(deserialize_with = "named_or_tagged")]
        choice: Choice,
    }

    fn read(json: &str) -> Result<Choice, String> {
        serde_json::from_str::<Holder>(json).map(|holder| holder.choice).map_err(|error| error.to_string())
    }

    #[test]
    fn reads_bare_names_and_tagged_options() {
        assert_eq!(read(r#"{"choice": "plain"}"#), Ok(Choice::Plain));
        assert_eq!(read(r#"{"choice": "tuned"}"#), Ok(Choice::Tuned { size: 0 }));
        assert_eq!(read(r#"{"choice": {"tuned": {"size": 3}}}"#), Ok(Choice::Tuned { size: 3 }));
    }

    #[test]
    fn says_what_there_is_when_the_name_is_wrong() {
        assert!(read(r#"{"choice": "tund"}"#).unwrap_err().contains("`plain` or `tuned`"));
        assert!(read(r#"{"choice": {"tuned": {"sise": 3}}}"#).unwrap_err().contains("sise"));
    }
}
