//! Selects the params that enter a key.
//!
//! Params that their schema marks `x-searchmill-key: false` are excluded. Row keys also exclude params marked
//! `x-searchmill-row-key: false`; for example, `samples` does not affect a single sample.

use serde_json::{Map, Value};

/// Marks params that change no bytes.
const KEY: &str = "x-searchmill-key";
/// Marks params that change which rows exist, but not their content.
const ROW_KEY: &str = "x-searchmill-row-key";

/// Returns `params` without the fields that `schema` marks as not changing the bytes (URLs, secrets, timeouts).
pub fn identity_params(schema: &Value, params: &Value) -> Value {
    Filter { root: schema, marks: &[KEY] }.value(schema, params).unwrap_or(Value::Null)
}

/// Returns `params` without the fields that `schema` marks as not changing the result of a single row.
pub fn row_params(schema: &Value, params: &Value) -> Value {
    Filter { root: schema, marks: &[KEY, ROW_KEY] }.value(schema, params).unwrap_or(Value::Null)
}

struct Filter<'a> {
    root: &'a Value,
    marks: &'a [&'a str],
}

impl Filter<'_> {
    fn leaves_out(&self, schema: &Value) -> bool {
        self.marks.iter().any(|mark| schema.get(mark) == Some(&Value::Bool(false)))
    }

    fn value(&self, schema: &Value, value: &Value) -> Option<Value> {
        let schema = resolve(self.root, schema);
        if self.leaves_out(schema) {
            return None;
        }
        match value {
            Value::Object(fields) => {
                let mut entering = Map::new();
                for (key, field) in fields {
                    let property = property(self.root, schema, key, 0).unwrap_or(&Value::Null);
                    // A mark beside `$ref` applies to the use of a type, not to the type.
                    if self.leaves_out(property) {
                        continue;
                    }
                    if let Some(field) = self.value(property, field) {
                        entering.insert(key.clone(), field);
                    }
                }
                Some(Value::Object(entering))
            }
            Value::Array(items) => Some(items.iter().filter_map(|item| self.value(&schema["items"], item)).collect()),
            _ => Some(value.clone()),
        }
    }
}

/// Returns the schema of a key, from whichever alternative of `schema` declares it.
fn property<'a>(root: &'a Value, schema: &'a Value, key: &str, depth: usize) -> Option<&'a Value> {
    let schema = resolve(root, schema);
    // Alternatives may contain themselves.
    if depth > 16 {
        return None;
    }
    if let Some(declared) = schema["properties"].get(key) {
        return Some(declared);
    }
    for word in ["anyOf", "oneOf", "allOf"] {
        for branch in schema[word].as_array().into_iter().flatten() {
            if let Some(declared) = property(root, branch, key, depth + 1) {
                return Some(declared);
            }
        }
    }
    let rest = schema.get("additionalProperties")?;
    rest.is_object().then_some(rest)
}

fn resolve<'a>(root: &'a Value, mut schema: &'a Value) -> &'a Value {
    for _ in 0..16 {
        let Some(reference) = schema["$ref"].as_str() else { break };
        // A mark beside the reference counts: what it refers to lacks it.
        if schema.get(KEY).is_some() {
            break;
        }
        let Some(target) = root.pointer(reference.trim_start_matches('#')) else { break };
        schema = target;
    }
    // `Option<T>` is `anyOf: [T, null]`.
    match schema["anyOf"].as_array().map(Vec::as_slice) {
        Some([one, null]) if null["type"] == "null" && schema.get(KEY).is_none() => resolve(root, one),
        _ => schema,
    }
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde::Serialize;
    use serde_json::json;

    use super::{identity_params, row_params};
    use crate::operator::Secret;

    #[derive(Serialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    #[expect(dead_code, reason = "only its schema is used")]
    enum Policy {
        Endpoint(Endpoint),
        Evidence,
    }

    #[derive(Serialize, JsonSchema)]
    struct Endpoint {
        #[schemars(extend("x-searchmill-key" = false))]
        base_url: String,
        model: String,
        api_key: Option<Secret>,
    }

    #[derive(Serialize, JsonSchema)]
    struct Params {
        policy: Policy,
        #[schemars(extend("x-searchmill-row-key" = false))]
        samples: u32,
    }

    #[test]
    fn marked_fields_are_left_out_at_any_depth() {
        let schema = schemars::schema_for!(Params).to_value();
        let params = Params {
            policy: Policy::Endpoint(Endpoint {
                base_url: "http://a".into(),
                model: "m".into(),
                api_key: Some(Secret::reference("KEY")),
            }),
            samples: 2,
        };
        let params = serde_json::to_value(params).unwrap();
        let kept = identity_params(&schema, &params);
        assert_eq!(row_params(&schema, &params), json!({"policy": {"endpoint": {"model": "m"}}}));
        assert_eq!(kept, json!({"policy": {"endpoint": {"model": "m"}}, "samples": 2}));
    }
}
