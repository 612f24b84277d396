//! `output`: the fields of an answer and their types (in the short form or as JSON Schema), and how an answer is read: as
//! columns of Arrow, or as text for another model.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use jsonschema::Validator;
use searchmill_engine::operator::ParamIssue;
use serde_json::{Map, Value, json};

use super::answer::{object_in, said};

/// Mistakes of an answer that are told to the model.
const TOLD: usize = 5;

/// Depth to which types may be nested.
const DEEPEST: usize = 16;

const TYPES: &str = "write `text`, `int`, `float`, `bool`, `json`, `[text]`, `{name: text}` or `{enum: [yes, no]}`";

/// The columns of an answer.
pub struct Output {
    form: Form,
    explode: Option<String>,
    columns: Arc<Schema>,
}

enum Form {
    /// The whole answer, as text in this column.
    Text(String),
    Object(Box<Object>),
}

struct Object {
    fields: Vec<(String, Typed)>,
    schema: Value,
    validator: Validator,
    described: String,
}

impl Output {
    /// Reads the param.
    ///
    /// # Errors
    /// If it describes no columns, or `explode` names no list.
    pub fn new(written: &Value, explode: Option<&str>) -> Result<Self, ParamIssue> {
        let form = match written {
            Value::String(name) if !name.trim().is_empty() => Ok(Form::Text(name.clone())),
            Value::Object(schema) if is_json_schema(schema) => Object::of_schema(written),
            Value::Object(_) | Value::Array(_) => Object::short(written),
            _ => Err("must be a column's name or a map of fields: `{score: int, reason: text}`".to_owned()),
        };
        let form = form.map_err(|message| ParamIssue::new("output", message))?;
        let columns = form.columns(explode).map_err(|message| ParamIssue::new("explode", message))?;
        Ok(Self { form, explode: explode.map(str::to_owned), columns })
    }

    /// Returns the columns.
    pub fn columns(&self) -> &Arc<Schema> {
        &self.columns
    }

    /// Returns the columns as fields.
    pub fn fields(&self) -> Vec<Field> {
        self.columns.fields().iter().map(|field| field.as_ref().clone()).collect()
    }

    /// Returns what a model is told about the fields.
    pub fn described(&self) -> Option<&str> {
        match &self.form {
            Form::Text(_) => None,
            Form::Object(object) => Some(&object.described),
        }
    }

    /// Returns the field `response_format` of a request. `None` for plain text.
    pub fn response_format(&self) -> Option<Value> {
        let Form::Object(object) = &self.form else { return None };
        // The API demands a name for the schema.
        Some(json!({"type": "json_schema", "json_schema": {"name": "row", "schema": object.schema}}))
    }

    /// Checks an object, and returns it as its columns store it.
    ///
    /// # Errors
    /// What does not fit.
    pub fn fit(&self, object: Map<String, Value>) -> Result<Map<String, Value>, String> {
        match &self.form {
            Form::Text(_) => Ok(object),
            Form::Object(form) => form.fit(object),
        }
    }

    /// Reads an answer as rows: one, or with `explode` any number.
    ///
    /// # Errors
    /// What does not fit, for the model.
    pub fn read(&self, answer: &str) -> Result<Vec<Map<String, Value>>, String> {
        let mut object = match &self.form {
            // Nothing but thoughts, which may be unfinished, is no answer.
            Form::Text(_) if said(answer).is_empty() => return Err("the answer is empty".to_owned()),
            // With its thoughts: only a text for another model is stripped of them (`shown`).
            Form::Text(name) => return Ok(vec![Map::from_iter([(name.clone(), Value::from(answer))])]),
            Form::Object(object) => object.read(answer)?,
        };
        let Some(name) = &self.explode else { return Ok(vec![object]) };
        let Some(Value::Array(elements)) = object.remove(name) else { return Ok(Vec::new()) };
        let mut rows = Vec::with_capacity(elements.len());
        for element in elements {
            let mut row = object.clone();
            match element {
                // Fields of an element become columns; a value alone is the column of the list's name.
                Value::Object(fields) => row.extend(fields),
                other => drop(row.insert(name.clone(), other)),
            }
            rows.push(row);
        }
        Ok(rows)
    }

    /// Reads an answer as text for another model: plain text without thoughts, or JSON with the fields in their order.
    ///
    /// # Errors
    /// What does not fit, for the model that answered.
    pub fn shown(&self, answer: &str) -> Result<String, String> {
        let Form::Object(form) = &self.form else {
            let said = said(answer);
            return if said.is_empty() { Err("the answer is empty".to_owned()) } else { Ok(said) };
        };
        let object = form.read(answer)?;
        let mut fields = Vec::with_capacity(form.fields.len());
        for (name, typed) in &form.fields {
            let value = match object.get(name) {
                // It is kept as text, and is JSON already.
                Some(Value::String(json)) if typed.kind == Kind::Json => json.clone(),
                value => value.unwrap_or(&Value::Null).to_string(),
            };
            fields.push(format!("{}: {value}", Value::from(name.as_str())));
        }
        Ok(format!("{{{}}}", fields.join(", ")))
    }
}

/// A short form has no field `type` with such a value.
fn is_json_schema(written: &Map<String, Value>) -> bool {
    written.get("type") == Some(&json!("object")) || written.contains_key("$schema") || written.contains_key("$ref")
}

impl Form {
    fn columns(&self, explode: Option<&str>) -> Result<Arc<Schema>, String> {
        let object = match self {
            Self::Text(name) if explode.is_none() => {
                return Ok(Arc::new(Schema::new(vec![Field::new(name, DataType::Utf8, false)])));
            }
            Self::Text(_) => return Err("`output` is plain text: it has no list".to_owned()),
            Self::Object(object) => object,
        };
        let mut fields = Vec::new();
        for (name, typed) in &object.fields {
            match &typed.kind {
                Kind::List(item) if explode == Some(name) => match &item.kind {
                    Kind::Object(inner) => fields.extend(inner.iter().map(|(name, typed)| typed.field(name))),
                    _ => fields.push(item.field(name)),
                },
                _ if explode == Some(name) => return Err(format!("`{name}` is no list")),
                _ => fields.push(typed.field(name)),
            }
        }
        if let Some(name) = explode
            && object.fields.iter().all(|(known, _)| known != name)
        {
            return Err(format!("`output` has no field `{name}`"));
        }
        let mut names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
        names.sort_unstable();
        if let Some([twice, _]) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("there would be two columns `{twice}`"));
        }
        Ok(Arc::new(Schema::new(fields)))
    }
}

impl Object {
    fn short(written: &Value) -> Result<Form, String> {
        let Typed { kind, schema, shown, .. } = Typed::fields(written)?;
        let Kind::Object(fields) = kind else { return Err("names no field".to_owned()) };
        let described = format!("Reply with one JSON object and nothing else, with these fields: {shown}");
        Self::form(fields, schema, described)
    }

    fn of_schema(schema: &Value) -> Result<Form, String> {
        let Kind::Object(fields) = Typed::of_schema(schema).kind else {
            return Err("must be the JSON Schema of an object with `properties`".to_owned());
        };
        let described = format!("Reply with one JSON object and nothing else, that fits this JSON Schema: {schema}");
        Self::form(fields, schema.clone(), described)
    }

    fn form(fields: Vec<(String, Typed)>, schema: Value, described: String) -> Result<Form, String> {
        let validator = jsonschema::validator_for(&schema).map_err(|error| format!("is no JSON Schema: {error}"))?;
        Ok(Form::Object(Box::new(Self { fields, schema, validator, described })))
    }

    fn read(&self, answer: &str) -> Result<Map<String, Value>, String> {
        self.fit(object_in(answer)?)
    }

    fn fit(&self, object: Map<String, Value>) -> Result<Map<String, Value>, String> {
        let value = Value::Object(object);
        if let Err(errors) = self.validator.validate(&value) {
            return Err(errors.take(TOLD).map(|error| shown(&error)).collect::<Vec<_>>().join("; "));
        }
        let Value::Object(object) = value else { return Ok(Map::new()) };
        stored_fields(&self.fields, object)
    }
}

fn shown(error: &jsonschema::ValidationError<'_>) -> String {
    match error.instance_path.to_string().as_str() {
        "" => error.to_string(),
        place => format!("`{}`: {error}", place.trim_start_matches('/').replace('/', ".")),
    }
}

/// The type of a field.
#[derive(Clone, Debug, PartialEq)]
struct Typed {
    /// Its JSON Schema.
    schema: Value,
    kind: Kind,
    nullable: bool,
    /// Its description for a model.
    shown: String,
}

/// A value's shape.
#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Text,
    Int,
    Float,
    Bool,
    /// Any JSON, kept as text.
    Json,
    List(Box<Typed>),
    Object(Vec<(String, Typed)>),
}

impl Typed {
    /// Reads the fields of an answer: a map, or a list of maps with one field each, which keeps their order.
    ///
    /// # Errors
    /// If there are none, or one is of no type.
    fn fields(written: &Value) -> Result<Self, String> {
        Self::object(fields_of(written)?, 0)
    }

    fn short_at(written: &Value, depth: usize) -> Result<Self, String> {
        if depth > DEEPEST {
            return Err(format!("types are nested deeper than {DEEPEST} levels"));
        }
        match written {
            Value::String(word) => Self::word(word),
            Value::Array(items) if items.len() == 1 => {
                let item = Self::short_at(&items[0], depth + 1)?;
                let schema = json!({"type": "array", "items": item.schema});
                let shown = format!("[{}, …]", item.shown);
                Ok(Self { schema, kind: Kind::List(Box::new(item)), nullable: false, shown })
            }
            Value::Object(fields) if fields.len() == 1 && written["enum"].is_array() => Self::choice(&written["enum"]),
            Value::Object(_) => Self::object(fields_of(written)?, depth),
            other => Err(format!("`{other}` is no type: {TYPES}")),
        }
    }

    fn word(word: &str) -> Result<Self, String> {
        let name = word.strip_suffix('?').unwrap_or(word);
        let nullable = name != word;
        let (kind, json_type, shown) = match name {
            "text" => (Kind::Text, "string", "string"),
            "int" => (Kind::Int, "integer", "integer"),
            "float" => (Kind::Float, "number", "number"),
            "bool" => (Kind::Bool, "boolean", "true or false"),
            "json" => {
                return Ok(Self { schema: json!({}), kind: Kind::Json, nullable: true, shown: "any JSON".to_owned() });
            }
            _ => return Err(format!("`{word}` is no type: {TYPES}")),
        };
        let schema = if nullable { json!({"type": [json_type, "null"]}) } else { json!({"type": json_type}) };
        let shown = if nullable { format!("{shown} or null") } else { shown.to_owned() };
        Ok(Self { schema, kind, nullable, shown })
    }

    fn choice(values: &Value) -> Result<Self, String> {
        let words: Option<Vec<&str>> = match values {
            Value::Array(values) if !values.is_empty() => values.iter().map(Value::as_str).collect(),
            _ => None,
        };
        let Some(words) = words else {
            return Err("`enum` needs a list of texts: `{enum: [\"yes\", \"no\"]}`".to_owned());
        };
        let shown = words.iter().map(|word| Value::from(*word).to_string()).collect::<Vec<_>>().join(" or ");
        Ok(Self { schema: json!({"enum": words}), kind: Kind::Text, nullable: false, shown })
    }

    fn object(fields: Vec<(String, &Value)>, depth: usize) -> Result<Self, String> {
        let (mut typed, mut properties, mut required, mut shown) = (Vec::new(), Map::new(), Vec::new(), Vec::new());
        for (name, written) in fields {
            let field = Self::short_at(written, depth + 1).map_err(|message| format!("`{name}`: {message}"))?;
            properties.insert(name.clone(), field.schema.clone());
            required.push(name.clone());
            shown.push(format!("{}: {}", Value::from(name.as_str()), field.shown));
            typed.push((name, field));
        }
        let schema = json!({"type": "object", "properties": properties, "required": required});
        let shown = format!("{{{}}}", shown.join(", "));
        Ok(Self { schema, kind: Kind::Object(typed), nullable: false, shown })
    }

    /// Reads the type of a JSON Schema. What it does not say is any JSON.
    fn of_schema(schema: &Value) -> Self {
        Self::of_schema_at(schema, schema, 0)
    }

    fn of_schema_at(schema: &Value, root: &Value, depth: usize) -> Self {
        match Self::known(schema, root, depth) {
            Some(typed) => typed,
            None => Self { schema: schema.clone(), kind: Kind::Json, nullable: true, shown: "any JSON".to_owned() },
        }
    }

    /// Returns the type of a JSON Schema, if it says one that Arrow has.
    fn known(schema: &Value, root: &Value, depth: usize) -> Option<Self> {
        // A schema may refer to itself.
        if depth > DEEPEST {
            return None;
        }
        if let Some(pointer) = schema.get("$ref").and_then(Value::as_str).and_then(|place| place.strip_prefix('#')) {
            return Some(Self::of_schema_at(root.pointer(pointer)?, root, depth + 1));
        }
        // Pydantic writes an optional field as `anyOf` of its type and `null`.
        for word in ["anyOf", "oneOf"] {
            let Some(Value::Array(choices)) = schema.get(word) else { continue };
            let other: Vec<&Value> =
                choices.iter().filter(|choice| choice.get("type") != Some(&json!("null"))).collect();
            let [only] = other.as_slice() else { return None };
            return Some(Self { nullable: other.len() < choices.len(), ..Self::of_schema_at(only, root, depth + 1) });
        }
        let (name, nullable) = match (schema.get("enum"), schema.get("type")) {
            (Some(Value::Array(values)), _) if values.iter().all(Value::is_string) => ("string", false),
            (Some(Value::Array(_)), _) => return None,
            (_, Some(Value::String(name))) => (name.as_str(), false),
            (_, Some(Value::Array(names))) => {
                let words: Vec<&str> = names.iter().filter_map(Value::as_str).filter(|name| *name != "null").collect();
                let [only] = words.as_slice() else { return None };
                (*only, words.len() < names.len())
            }
            _ => return None,
        };
        let kind = match name {
            "string" => Kind::Text,
            "integer" => Kind::Int,
            "number" => Kind::Float,
            "boolean" => Kind::Bool,
            "array" => Kind::List(Box::new(Self::of_schema_at(schema.get("items")?, root, depth + 1))),
            "object" => {
                let required = schema.get("required").and_then(Value::as_array);
                let mut fields = Vec::new();
                for (name, schema) in schema.get("properties")?.as_object()? {
                    let mut typed = Self::of_schema_at(schema, root, depth + 1);
                    let is_required = required.is_some_and(|names| names.contains(&Value::from(name.as_str())));
                    // A field that may be missing is null in its column.
                    typed.nullable |= !is_required;
                    fields.push((name.clone(), typed));
                }
                // Parquet has no struct without fields.
                if fields.is_empty() {
                    return None;
                }
                Kind::Object(fields)
            }
            _ => return None,
        };
        Some(Self { schema: schema.clone(), kind, nullable, shown: String::new() })
    }

    /// Returns the field of that name.
    fn field(&self, name: &str) -> Field {
        Field::new(name, self.data_type(), self.nullable)
    }

    fn data_type(&self) -> DataType {
        match &self.kind {
            Kind::Text | Kind::Json => DataType::Utf8,
            Kind::Int => DataType::Int64,
            Kind::Float => DataType::Float64,
            Kind::Bool => DataType::Boolean,
            Kind::List(item) => DataType::List(Arc::new(Field::new_list_field(item.data_type(), true))),
            Kind::Object(fields) => DataType::Struct(fields.iter().map(|(name, typed)| typed.field(name)).collect()),
        }
    }

    /// Returns the value as its column stores it. It fits the JSON Schema.
    ///
    /// # Errors
    /// If Arrow has no place for it.
    fn stored(&self, value: Value) -> Result<Value, String> {
        match (&self.kind, value) {
            // Before `null`, which is JSON as well: its text is stored.
            (Kind::Json, value) => Ok(Value::String(value.to_string())),
            (_, Value::Null) if self.nullable => Ok(Value::Null),
            (Kind::Text, Value::String(text)) => Ok(Value::String(text)),
            (Kind::Bool, Value::Bool(truth)) => Ok(Value::Bool(truth)),
            (Kind::Float, Value::Number(number)) => Ok(Value::Number(number)),
            (Kind::Int, Value::Number(number)) => Ok(Value::from(whole(&number)?)),
            (Kind::List(item), Value::Array(values)) => values.into_iter().map(|value| item.stored(value)).collect(),
            (Kind::Object(fields), Value::Object(values)) => Ok(Value::Object(stored_fields(fields, values)?)),
            (_, value) => Err(format!("{} is of another type", short_of(&value))),
        }
    }
}

/// Returns the fields of an object as their columns store them.
///
/// # Errors
/// If Arrow has no place for one.
fn stored_fields(fields: &[(String, Typed)], mut values: Map<String, Value>) -> Result<Map<String, Value>, String> {
    let mut stored = Map::new();
    for (name, typed) in fields {
        let value = values.remove(name).unwrap_or(Value::Null);
        stored.insert(name.clone(), typed.stored(value).map_err(|message| format!("`{name}`: {message}"))?);
    }
    Ok(stored)
}

/// Returns the fields of a map, or of a list of maps with one field each, which keeps their order.
///
/// # Errors
/// If there are none, or a name is there twice.
fn fields_of(written: &Value) -> Result<Vec<(String, &Value)>, String> {
    let maps = match written {
        Value::Array(maps) => maps.as_slice(),
        other => std::slice::from_ref(other),
    };
    let mut fields: Vec<(String, &Value)> = Vec::new();
    for map in maps {
        let Value::Object(map) = map else {
            return Err("a list of fields holds maps: `[{reason: text}, {score: int}]`".to_owned());
        };
        for (name, written) in map {
            if name.is_empty() || fields.iter().any(|(known, _)| known == name) {
                return Err(format!("the field `{name}` has no name or is there twice"));
            }
            fields.push((name.clone(), written));
        }
    }
    if fields.is_empty() { Err("names no field".to_owned()) } else { Ok(fields) }
}

fn whole(number: &serde_json::Number) -> Result<i64, String> {
    if let Some(whole) = number.as_i64() {
        return Ok(whole);
    }
    // Below 2^53 (9.007e15) a float is exact to the unit.
    match number.as_f64() {
        Some(float) if float.fract() == 0.0 && float.abs() < 9.0e15 => Ok(float as i64),
        _ => Err(format!("{number} is not within 64 bits")),
    }
}

/// Returns the beginning of a value, for a message.
pub fn short_of(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("`{}…`", &text[..end]),
        None => format!("`{text}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(written: Value) -> Output {
        Output::new(&written, None).unwrap()
    }

    fn refused(written: Value, explode: Option<&str>) -> String {
        let issue = Output::new(&written, explode).err().unwrap();
        format!("{}: {}", issue.path, issue.message)
    }

    #[test]
    fn the_short_form_becomes_columns_in_its_order() {
        let made = output(json!([{"reason": "text"}, {"score": "int"}, {"tags": ["text"]}, {"sure": "float?"},
            {"verdict": {"enum": ["yes", "no"]}}, {"more": "json"}, {"by": {"name": "text", "age": "int?"}}]));
        let names: Vec<_> = made.columns().fields().iter().map(|field| field.name().clone()).collect();
        assert_eq!(names, ["reason", "score", "tags", "sure", "verdict", "more", "by"]);
        assert_eq!(made.columns().field(1).data_type(), &DataType::Int64);
        assert!(!made.columns().field(1).is_nullable() && made.columns().field(3).is_nullable());
        let described = made.described().unwrap();
        assert!(
            described.contains(r#"{"reason": string, "score": integer, "tags": [string, …], "sure": number or null, "#)
        );
        assert!(described.contains(r#""verdict": "yes" or "no""#), "{described}");
        let answer = r#"Sure! {"reason": "r", "score": 3.0, "tags": [], "sure": null, "verdict": "no", "more": {"a": [1]},
            "by": {"name": "n", "age": null}, "extra": 1}"#;
        let row = made.read(answer).unwrap().remove(0);
        assert_eq!(row["score"], 3);
        assert_eq!(row["more"], r#"{"a":[1]}"#);
        assert!(!row.contains_key("extra"));
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let made = output(json!({"score": "int", "by": {"name": "text"}}));
        let told = |answer: &str| made.read(answer).unwrap_err();
        let both = told(r#"{"score": "3", "by": {}}"#);
        assert!(both.contains("`score`: ") && both.contains("\"name\" is a required property"), "{both}");
        assert!(told("I think 3").contains("no JSON object"), "{}", told("I think 3"));
        assert!(told(r#"{"score": 1e30, "by": {"name": ""}}"#).contains("64 bits"));
        assert!(output(json!("draft")).read(" ").is_err());
    }

    #[test]
    fn a_json_schema_is_as_good() {
        let schema = json!({"type": "object", "required": ["score"], "properties": {
            "score": {"type": "integer", "minimum": 1, "maximum": 5},
            "why": {"anyOf": [{"$ref": "#/$defs/why"}, {"type": "null"}]},
            "free": {}}, "$defs": {"why": {"type": "string"}}});
        let made = output(schema.clone());
        let types: Vec<_> =
            made.columns().fields().iter().map(|field| (field.name().as_str(), field.is_nullable())).collect();
        assert_eq!(types, [("free", true), ("score", false), ("why", true)]);
        assert!(made.read(r#"{"score": 9}"#).unwrap_err().contains("maximum"));
        assert_eq!(made.read(r#"{"score": 2, "why": "x"}"#).unwrap()[0]["why"], "x");
        assert_eq!(made.response_format().unwrap()["json_schema"]["schema"], schema);
        assert!(refused(json!({"type": "object"}), None).contains("with `properties`"));
        assert!(
            refused(json!({"type": "object", "properties": {"a": {"type": "nothing"}}}), None).contains("JSON Schema")
        );
    }

    #[test]
    fn lists_become_rows() {
        let written = json!([{"topic": "text"}, {"made": [{"question": "text", "golden_answers": ["text"]}]}]);
        let made = Output::new(&written, Some("made")).unwrap();
        let names: Vec<_> = made.columns().fields().iter().map(|field| field.name().clone()).collect();
        assert_eq!(names, ["topic", "golden_answers", "question"]);
        let answer = r#"{"topic": "t", "made": [{"question": "a", "golden_answers": ["1"]}, {"question": "b", "golden_answers": []}]}"#;
        let rows = made.read(answer).unwrap();
        assert_eq!(rows.iter().map(|row| row["question"].as_str().unwrap()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(made.read(r#"{"topic": "t", "made": []}"#).unwrap().is_empty());
        let words = Output::new(&json!({"words": ["text"]}), Some("words")).unwrap();
        assert_eq!(words.read(r#"{"words": ["x", "y"]}"#).unwrap()[1]["words"], "y");
        assert!(refused(json!({"a": "text"}), Some("a")).starts_with("explode: `a` is no list"));
        assert!(refused(json!({"a": "text"}), Some("b")).starts_with("explode: `output` has no field `b`"));
        assert!(refused(json!({"a": "text", "b": [{"a": "int"}]}), Some("b")).contains("two columns `a`"));
    }

    #[test]
    fn what_is_no_type_is_refused() {
        assert!(refused(json!({"a": "integer"}), None).contains("`a`: `integer` is no type"));
        assert!(refused(json!({}), None).contains("names no field"));
        assert!(refused(json!([{"a": "int"}, {"a": "int"}]), None).contains("twice"));
        assert!(refused(json!(3), None).contains("a column's name or a map"));
        let deep = (0..40).fold(json!("int"), |inner, _| json!([inner]));
        assert!(refused(json!({"a": deep}), None).contains("deeper"));
    }

    #[test]
    fn another_model_is_shown_text_or_fields_in_their_order() {
        let text = output(json!("answer"));
        assert_eq!(text.shown("<think>Hm.</think>\n The Tiber.\n"), Ok("The Tiber.".to_owned()));
        assert!(text.shown("<think>Hm.").is_err() && text.shown(" ").is_err());
        let fields = output(json!([{"sure": "bool"}, {"more": "json"}, {"answer": "text?"}]));
        let shown = fields.shown(r#"So: {"answer": null, "more": {"a": ["é"]}, "sure": true, "other": 1}"#);
        assert_eq!(shown, Ok(r#"{"sure": true, "more": {"a":["é"]}, "answer": null}"#.to_owned()));
        assert!(fields.shown(r#"{"sure": "yes"}"#).unwrap_err().contains("`sure`"));
    }
}
