//! A JSON Schema as written by schemars, with references followed.

use serde_json::Value as Json;

/// One schema of a document.
#[derive(Clone, Copy)]
pub(super) struct Schema<'s> {
    root: &'s Json,
    /// The schema as written, including annotations beside a `$ref`.
    outer: &'s Json,
    /// The schema after following references.
    here: &'s Json,
}

/// References followed in a row, at most: a schema may refer to itself.
const MAX_HOPS: usize = 16;

impl<'s> Schema<'s> {
    /// The root schema of a document.
    pub(super) fn root(root: &'s Json) -> Self {
        Self::at(root, root)
    }

    fn at(root: &'s Json, outer: &'s Json) -> Self {
        let mut here = outer;
        for _ in 0..MAX_HOPS {
            let Some(pointer) = here["$ref"].as_str().and_then(|uri| uri.strip_prefix('#')) else { break };
            let Some(target) = root.pointer(pointer) else { break };
            here = target;
        }
        Self { root, outer, here }
    }

    fn sub(&self, schema: &'s Json) -> Self {
        Self::at(self.root, schema)
    }

    /// Returns a keyword's value.
    pub(super) fn keyword(&self, name: &str) -> Option<&'s Json> {
        // What stands beside a `$ref`, such as a description, is about this use of the schema.
        self.outer.get(name).or_else(|| self.here.get(name))
    }

    /// Returns a keyword's value if it is a number.
    pub(super) fn number(&self, name: &str) -> Option<f64> {
        self.keyword(name)?.as_f64()
    }

    /// Returns a keyword's value if it is text.
    pub(super) fn text(&self, name: &str) -> Option<&'s str> {
        self.keyword(name)?.as_str()
    }

    /// Returns the first sentence of the description, in one line.
    pub(super) fn about(&self) -> Option<String> {
        let text = self.text("description")?.replace('\n', " ");
        match text.find(". ") {
            Some(end) => Some(text[..=end].to_owned()),
            None => Some(text),
        }
    }

    /// Whether the value is a reference to a secret.
    pub(super) fn is_secret(&self) -> bool {
        self.keyword("x-searchmill-secret") == Some(&Json::Bool(true))
    }

    /// Whether the schema accepts any value.
    pub(super) fn takes_anything(&self) -> bool {
        const SAYING: &[&str] =
            &["type", "const", "enum", "oneOf", "anyOf", "allOf", "properties", "x-searchmill-secret"];
        *self.here == Json::Bool(true) || SAYING.iter().all(|keyword| self.keyword(keyword).is_none())
    }

    /// Returns the named types; empty if there are none.
    pub(super) fn types(&self) -> Vec<&'s str> {
        match self.keyword("type") {
            Some(Json::String(one)) => vec![one],
            Some(Json::Array(several)) => several.iter().filter_map(Json::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether the value may have that type.
    pub(super) fn allows(&self, name: &str) -> bool {
        let types = self.types();
        // In JSON Schema, a whole number is a number, too.
        let numeric = name == "integer" && types.contains(&"number");
        let implied = types.is_empty() && (name != "object" || self.keyword("properties").is_some());
        numeric || implied || types.contains(&name)
    }

    /// Returns the alternatives. A single `allOf` is one alternative.
    pub(super) fn branches(&self) -> Option<Vec<Self>> {
        let list = ["oneOf", "anyOf", "allOf"].iter().find_map(|keyword| self.keyword(keyword)?.as_array())?;
        Some(list.iter().map(|schema| self.sub(schema)).collect())
    }

    /// Returns the allowed words (`const`, `enum`).
    pub(super) fn words(&self) -> Option<Vec<&'s Json>> {
        if let Some(word) = self.keyword("const") {
            return Some(vec![word]);
        }
        Some(self.keyword("enum")?.as_array()?.iter().collect())
    }

    /// Returns the words and tags of all alternatives, for messages.
    pub(super) fn choices(&self) -> Vec<String> {
        let mut choices = Vec::new();
        for branch in self.branches().unwrap_or_else(|| vec![*self]) {
            choices.extend(branch.words().into_iter().flatten().map(quoted));
            choices.extend(branch.tag().map(|tag| format!("`{{{tag}: …}}`")));
        }
        choices
    }

    /// Returns the schema of a map's key; `None` if the key is not allowed.
    pub(super) fn property(&self, name: &str) -> Option<Self> {
        let properties = self.keyword("properties");
        if let Some(schema) = properties.and_then(|properties| properties.get(name)) {
            return Some(self.sub(schema));
        }
        match self.keyword("additionalProperties") {
            Some(Json::Bool(false)) => None,
            Some(more) => Some(self.sub(more)),
            // A struct has only its fields, even without `deny_unknown_fields`; a map without declared keys takes any.
            None if properties.is_none() => Some(self.sub(&Json::Bool(true))),
            None => None,
        }
    }

    /// Returns all declared keys.
    pub(super) fn property_names(&self) -> Vec<&'s str> {
        match self.keyword("properties") {
            Some(Json::Object(properties)) => properties.keys().map(String::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the required keys.
    pub(super) fn required(&self) -> Vec<&'s str> {
        match self.keyword("required") {
            Some(Json::Array(names)) => names.iter().filter_map(Json::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the schema of a list item.
    pub(super) fn item(&self, position: usize) -> Option<Self> {
        let fixed = self.keyword("prefixItems").and_then(|items| items.get(position));
        Some(self.sub(fixed.or_else(|| self.keyword("items"))?))
    }

    /// Returns the key whose presence selects this alternative (`{endpoint: {…}}`).
    pub(super) fn tag(&self) -> Option<&'s str> {
        match self.required().as_slice() {
            [only] if self.property_names() == [*only] => Some(only),
            _ => None,
        }
    }

    /// Describes the expected value, for messages.
    pub(super) fn describe(&self) -> String {
        if self.is_secret() {
            return "a secret".to_owned();
        }
        if let Some(words) = self.words() {
            return one_of(words.into_iter().map(quoted).collect());
        }
        // An optional param is described like a required one.
        let mut kinds = Vec::new();
        if let Some(branches) = self.branches() {
            kinds.extend(branches.iter().filter(|branch| !branch.is_null()).map(Schema::describe));
            // Alternatives of one type differ in their keys.
            kinds.dedup();
        } else {
            kinds.extend(self.types().iter().filter(|name| **name != "null").map(|name| self.type_name(name)));
        }
        one_of(kinds)
    }

    /// Whether it accepts only `null`.
    pub(super) fn is_null(&self) -> bool {
        self.types() == ["null"]
    }

    fn type_name(&self, name: &str) -> String {
        if name == "object"
            && let Some(tag) = self.tag()
        {
            return format!("`{tag}: …`");
        }
        let name = match name {
            "string" => "a string",
            "integer" => "a whole number",
            "number" => "a number",
            "boolean" => "`true` or `false`",
            "array" => "a list",
            "object" => "a map",
            other => other,
        };
        name.to_owned()
    }
}

/// Quotes a word for messages.
pub(super) fn quoted(word: &Json) -> String {
    match word {
        Json::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    }
}

fn one_of(mut names: Vec<String>) -> String {
    match names.pop() {
        None => "something else".to_owned(),
        Some(last) if names.is_empty() => last,
        Some(last) => format!("{} or {last}", names.join(", ")),
    }
}
