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

const MAX_HOPS: usize = 16;

impl<'s> Schema<'s> {
    /// The root schema of a document.
    pub(super) fn root(root: &'s Json) -> Self {
        Self::at(root, root)
    }

    fn at(root: &'s Json, outer: &'s Json) -> Self {
        let mut here = outer;
        for _ in 0..MAX_HOPS {
            let Some(pointer) = here.get("$ref").and_then(Json::as_str).and_then(|uri| uri.strip_prefix('#')) else {
                break;
            };
            match root.pointer(pointer) {
                Some(target) => here = target,
                None => break,
            }
        }
        Self { root, outer, here }
    }

    fn sub(&self, schema: &'s Json) -> Self {
        Self::at(self.root, schema)
    }

    /// Returns a keyword's value.
    pub(super) fn keyword(&self, name: &str) -> Option<&'s Json> {
        self.outer.get(name).or_else(|| self.here.get(name))
    }

    /// Returns a keyword's value if it is a number.
    pub(super) fn number(&self, name: &str) -> Option<f64> {
        self.keyword(name).and_then(Json::as_f64)
    }

    /// Returns a keyword's value if it is text.
    pub(super) fn text(&self, name: &str) -> Option<&'s str> {
        self.keyword(name).and_then(Json::as_str)
    }

    /// Returns the first sentence of the description, in one line.
    pub(super) fn about(&self) -> Option<String> {
        let text = self.text("description")?.replace('\n', " ");
        Some(text.find(". ").map_or(text.as_str(), |end| &text[..=end]).to_owned())
    }

    /// Whether the value is a reference to a secret.
    pub(super) fn is_secret(&self) -> bool {
        self.keyword("x-searchmill-secret").and_then(Json::as_bool).unwrap_or(false)
    }

    /// Whether the schema accepts any value.
    pub(super) fn takes_anything(&self) -> bool {
        const SAYING: &[&str] =
            &["type", "const", "enum", "oneOf", "anyOf", "allOf", "properties", "x-searchmill-secret"];
        self.here.as_bool().unwrap_or(false) || SAYING.iter().all(|keyword| self.keyword(keyword).is_none())
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
        match (self.keyword("const"), self.keyword("enum").and_then(Json::as_array)) {
            (Some(word), _) => Some(vec![word]),
            (None, Some(words)) => Some(words.iter().collect()),
            (None, None) => None,
        }
    }

    /// Returns the words and tags of all alternatives, for messages.
    pub(super) fn choices(&self) -> Vec<String> {
        let branches = self.branches().unwrap_or_else(|| vec![*self]);
        let words = |branch: &Self| -> Vec<String> {
            let words = branch.words().unwrap_or_default().into_iter().map(quoted);
            words.chain(branch.tag().map(|tag| format!("`{{{tag}: …}}`"))).collect()
        };
        branches.iter().flat_map(words).collect()
    }

    /// Returns the schema of a map's key; `None` if the key is not allowed.
    pub(super) fn property(&self, name: &str) -> Option<Self> {
        let declared = self.keyword("properties").and_then(|properties| properties.get(name));
        match (declared, self.keyword("additionalProperties")) {
            (Some(schema), _) => Some(self.sub(schema)),
            (None, Some(Json::Bool(false))) => None,
            (None, Some(more)) => Some(self.sub(more)),
            (None, None) if self.keyword("properties").is_none() => Some(self.sub(&Json::Bool(true))),
            (None, None) => None,
        }
    }

    /// Returns all declared keys.
    pub(super) fn property_names(&self) -> Vec<&'s str> {
        let properties = self.keyword("properties").and_then(Json::as_object);
        properties.map(|properties| properties.keys().map(String::as_str).collect()).unwrap_or_default()
    }

    /// Returns the required keys.
    pub(super) fn required(&self) -> Vec<&'s str> {
        let names = self.keyword("required").and_then(Json::as_array);
        names.map(|names| names.iter().filter_map(Json::as_str).collect()).unwrap_or_default()
    }

    /// Returns the schema of a list item.
    pub(super) fn item(&self, position: usize) -> Option<Self> {
        let fixed = self.keyword("prefixItems").and_then(|items| items.get(position));
        fixed.or_else(|| self.keyword("items")).map(|schema| self.sub(schema))
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
            return one_of(words.iter().map(|word| quoted(word)).collect());
        }
        if let Some(branches) = self.branches() {
            let mut all: Vec<_> = branches.iter().filter(|branch| !branch.is_null()).map(Schema::describe).collect();
            all.dedup();
            return one_of(all);
        }
        let types = self.types();
        let named: Vec<_> = types.iter().filter(|name| **name != "null").map(|name| self.type_name(name)).collect();
        one_of(named)
    }

    /// Whether it accepts only `null`.
    pub(super) fn is_null(&self) -> bool {
        self.types() == ["null"]
    }

    fn type_name(&self, name: &str) -> String {
        if let Some(tag) = self.tag().filter(|_| name == "object") {
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
    word.as_str().map_or_else(|| format!("`{word}`"), |word| format!("`{word}`"))
}

fn one_of(mut names: Vec<String>) -> String {
    match names.pop() {
        None => "something else".to_owned(),
        Some(last) if names.is_empty() => last,
        Some(last) => format!("{} or {last}", names.join(", ")),
    }
}
