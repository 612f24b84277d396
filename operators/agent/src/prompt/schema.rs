//! Types of the answer's fields: from the short form or JSON Schema to Arrow.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use serde_json::{Map, Value, json};

/// Depth to which types may be nested.
const DEEPEST: usize = 16;

/// The type of a field.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Typed {
    /// Its JSON Schema.
    pub(super) schema: Value,
    pub(super) kind: Kind,
    pub(super) nullable: bool,
    /// Its description for a model.
    pub(super) shown: String,
}

/// A value's shape.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
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
    pub(super) fn fields(written: &Value) -> Result<Self, String> {
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
    pub(super) fn of_schema(schema: &Value) -> Self {
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
    pub(super) fn field(&self, name: &str) -> Field {
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
    pub(super) fn stored(&self, value: Value) -> Result<Value, String> {
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
pub(super) fn stored_fields(
    fields: &[(String, Typed)],
    mut values: Map<String, Value>,
) -> Result<Map<String, Value>, String> {
    let mut stored = Map::new();
    for (name, typed) in fields {
        let value = values.remove(name).unwrap_or(Value::Null);
        stored.insert(name.clone(), typed.stored(value).map_err(|message| format!("`{name}`: {message}"))?);
    }
    Ok(stored)
}

const TYPES: &str = "write `text`, `int`, `float`, `bool`, `json`, `[text]`, `{name: text}` or `{enum: [yes, no]}`";

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
