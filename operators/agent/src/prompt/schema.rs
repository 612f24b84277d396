//! Types of the answer's fields: from the short form or JSON Schema to Arrow.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields};
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
            Value::Object(fields) if is_choice(fields) => Self::choice(&fields["enum"]),
            Value::Object(_) => Self::object(fields_of(written)?, depth),
            other => Err(format!("`{other}` is no type: {TYPES}")),
        }
    }

    fn word(word: &str) -> Result<Self, String> {
        let (name, nullable) = word.strip_suffix('?').map_or((word, false), |name| (name, true));
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
        let words = values.as_array().map(|values| values.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        let words = words.flatten().filter(|words| !words.is_empty());
        let words = words.ok_or("`enum` needs a list of texts: `{enum: [\"yes\", \"no\"]}`")?;
        let shown = words.iter().map(|word| Value::from(*word).to_string()).collect::<Vec<_>>().join(" or ");
        Ok(Self { schema: json!({"enum": words}), kind: Kind::Text, nullable: false, shown })
    }

    fn object(fields: Vec<(String, &Value)>, depth: usize) -> Result<Self, String> {
        let typed = |(name, written): (String, &Value)| {
            let typed = Self::short_at(written, depth + 1).map_err(|message| format!("`{name}`: {message}"))?;
            Ok((name, typed))
        };
        let fields = fields.into_iter().map(typed).collect::<Result<Vec<_>, String>>()?;
        let properties: Map<String, Value> =
            fields.iter().map(|(name, typed)| (name.clone(), typed.schema.clone())).collect();
        let required: Vec<&String> = fields.iter().map(|(name, _)| name).collect();
        let schema = json!({"type": "object", "properties": properties, "required": required});
        let shown = fields.iter().map(|(name, typed)| format!("{}: {}", Value::from(name.as_str()), typed.shown));
        let shown = format!("{{{}}}", shown.collect::<Vec<_>>().join(", "));
        Ok(Self { schema, kind: Kind::Object(fields), nullable: false, shown })
    }

    /// Reads the type of a JSON Schema. What it does not say is any JSON.
    pub(super) fn of_schema(schema: &Value) -> Self {
        Self::of_schema_at(schema, schema, 0)
    }

    fn of_schema_at(schema: &Value, root: &Value, depth: usize) -> Self {
        let any = || Self { schema: schema.clone(), kind: Kind::Json, nullable: true, shown: "any JSON".to_owned() };
        let made = |kind, nullable| Self { schema: schema.clone(), kind, nullable, shown: String::new() };
        if depth > DEEPEST {
            return any();
        }
        if let Some(pointer) = schema.get("$ref").and_then(Value::as_str).and_then(|place| place.strip_prefix('#')) {
            return root.pointer(pointer).map_or_else(any, |found| Self::of_schema_at(found, root, depth + 1));
        }
        for word in ["anyOf", "oneOf"] {
            let Some(choices) = schema.get(word).and_then(Value::as_array) else { continue };
            let is_null = |choice: &&Value| choice.get("type") == Some(&json!("null"));
            let other: Vec<&Value> = choices.iter().filter(|choice| !is_null(choice)).collect();
            return match other.as_slice() {
                [only] => Self { nullable: other.len() < choices.len(), ..Self::of_schema_at(only, root, depth + 1) },
                _ => any(),
            };
        }
        if let Some(values) = schema.get("enum").and_then(Value::as_array) {
            return if values.iter().all(Value::is_string) { made(Kind::Text, false) } else { any() };
        }
        let (name, nullable) = match schema.get("type") {
            Some(Value::String(name)) => (name.as_str(), false),
            Some(Value::Array(names)) => {
                let words: Vec<&str> = names.iter().filter_map(Value::as_str).filter(|name| *name != "null").collect();
                let [only] = words.as_slice() else { return any() };
                (*only, words.len() < names.len())
            }
            _ => return any(),
        };
        match name {
            "string" => made(Kind::Text, nullable),
            "integer" => made(Kind::Int, nullable),
            "number" => made(Kind::Float, nullable),
            "boolean" => made(Kind::Bool, nullable),
            "array" => match schema.get("items") {
                Some(items) => {
                    let item = Self::of_schema_at(items, root, depth + 1);
                    made(Kind::List(Box::new(item)), nullable)
                }
                None => any(),
            },
            "object" => match schema.get("properties").and_then(Value::as_object).filter(|fields| !fields.is_empty()) {
                Some(fields) => {
                    let required = schema.get("required").and_then(Value::as_array);
                    let is_required = |name: &str| required.is_some_and(|names| names.contains(&Value::from(name)));
                    let field = |(name, schema): (&String, &Value)| {
                        let typed = Self::of_schema_at(schema, root, depth + 1);
                        (name.clone(), Self { nullable: typed.nullable || !is_required(name), ..typed })
                    };
                    made(Kind::Object(fields.iter().map(field).collect()), nullable)
                }
                None => any(),
            },
            _ => any(),
        }
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
            Kind::Object(fields) => {
                DataType::Struct(fields.iter().map(|(name, typed)| typed.field(name)).collect::<Fields>())
            }
        }
    }

    /// Returns the value as its column stores it. It fits the JSON Schema.
    ///
    /// # Errors
    /// If Arrow has no place for it.
    pub(super) fn stored(&self, value: Value) -> Result<Value, String> {
        match (&self.kind, value) {
            (Kind::Json, value) => Ok(Value::String(value.to_string())),
            (_, Value::Null) if self.nullable => Ok(Value::Null),
            (Kind::Text, Value::String(text)) => Ok(Value::String(text)),
            (Kind::Bool, Value::Bool(truth)) => Ok(Value::Bool(truth)),
            (Kind::Float, Value::Number(number)) => Ok(Value::Number(number)),
            (Kind::Int, Value::Number(number)) => whole(&number).map(Value::from),
            (Kind::List(item), Value::Array(values)) => {
                values.into_iter().map(|value| item.stored(value)).collect::<Result<Vec<_>, _>>().map(Value::Array)
            }
            (Kind::Object(fields), Value::Object(mut values)) => {
                let field = |(name, typed): &(String, Self)| {
                    let value = values.remove(name).unwrap_or(Value::Null);
                    let stored = typed.stored(value).map_err(|message| format!("`{name}`: {message}"))?;
                    Ok((name.clone(), stored))
                };
                fields.iter().map(field).collect::<Result<Map<_, _>, String>>().map(Value::Object)
            }
            (_, value) => Err(format!("{} is of another type", short_of(&value))),
        }
    }
}

const TYPES: &str = "write `text`, `int`, `float`, `bool`, `json`, `[text]`, `{name: text}` or `{enum: [yes, no]}`";

/// Returns the fields of a map, or of a list of maps with one field each, which keeps their order.
///
/// # Errors
/// If there are none, or a name is there twice.
fn fields_of(written: &Value) -> Result<Vec<(String, &Value)>, String> {
    let maps: Vec<&Value> = match written {
        Value::Array(maps) => maps.iter().collect(),
        other => vec![other],
    };
    let mut fields: Vec<(String, &Value)> = Vec::new();
    for map in maps {
        let map = map.as_object().ok_or("a list of fields holds maps: `[{reason: text}, {score: int}]`")?;
        for (name, written) in map {
            if name.is_empty() || fields.iter().any(|(known, _)| known == name) {
                return Err(format!("the field `{name}` has no name or is there twice"));
            }
            fields.push((name.clone(), written));
        }
    }
    if fields.is_empty() { Err("names no field".to_owned()) } else { Ok(fields) }
}

fn is_choice(fields: &Map<String, Value>) -> bool {
    fields.len() == 1 && fields.get("enum").is_some_and(Value::is_array)
}

fn whole(number: &serde_json::Number) -> Result<i64, String> {
    let of_float = || number.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < 9.0e15).map(|n| n as i64);
    number.as_i64().or_else(of_float).ok_or_else(|| format!("{number} is not within 64 bits"))
}

fn short_of(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("`{}…`", &text[..end]),
        None => format!("`{text}`"),
    }
}
