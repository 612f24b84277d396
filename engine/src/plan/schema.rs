//! Builds the JSON Schema of pipelines from the operators' types, so that editors complete operator names and params.

use serde_json::{Map, Value, json};

use crate::operator::{OperatorEntry, Registry};

/// Returns the schema of a pipeline file.
pub(crate) fn pipeline_schema(registry: &Registry) -> Value {
    let mut definitions = Map::new();
    let mut branches = Vec::new();
    let mut names = Vec::new();
    for entry in registry.iter() {
        let with = operator_schema(entry, &mut definitions);
        definitions.insert(format!("with.{}", entry.name), with);
        names.push(json!({"const": entry.name, "description": entry.about}));
        let reference = json!({"$ref": format!("#/$defs/with.{}", entry.name)});
        branches.push(json!({
            "if": {"properties": {"op": {"const": entry.name}}, "required": ["op"]},
            "then": {"properties": {"with": reference}},
        }));
    }
    definitions.insert("node".to_owned(), node_schema(&names, &branches));
    let about = "Seconds, or a number with a unit: `500ms`, `1s`, `2m`.";
    definitions.insert("duration".to_owned(), json!({"type": ["string", "number"], "description": about}));
    let mut schema = top();
    schema["$defs"] = Value::Object(definitions);
    schema
}

fn top() -> Value {
    let mut schema = closed(json!({
        "name": {"type": "string", "description": "Name of the pipeline, shown in lists of runs."},
        "description": {"type": "string", "description": "Purpose of the pipeline."},
        "params": {"type": "object", "description": "Values for `${params.name}`; overridden by --set and --params."},
        "include": {"description": "Other files whose nodes and params are included."},
        "nodes": nodes("The nodes, by id."),
        "repeat": {"type": "object", "description": "Loops, by name.", "additionalProperties": repeat_schema()},
        "schedule": schedule_schema(),
        "budget": budget_schema(),
        "on_budget": {
            "enum": ["stop", "finish"],
            "description": "Once a budget is used up: stop, or go on with the rows that are finished; the next run resumes. Default: stop.",
        },
        "tests": tests_schema(),
    }));
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("searchmill pipeline");
    schema["anyOf"] = json!([{"required": ["nodes"]}, {"required": ["include"]}, {"required": ["repeat"]}]);
    schema
}

/// A map that has no other keys.
fn closed(properties: Value) -> Value {
    json!({"type": "object", "additionalProperties": false, "properties": properties})
}

fn described(description: &str, mut schema: Value) -> Value {
    schema["description"] = description.into();
    schema
}

fn whole(description: &str) -> Value {
    json!({"type": ["integer", "string"], "description": description})
}

fn nodes(description: &str) -> Value {
    json!({"type": "object", "description": description, "additionalProperties": {"$ref": "#/$defs/node"}})
}

fn outputs(description: &str) -> Value {
    json!({"type": "object", "description": description, "additionalProperties": {"type": "string"}})
}

fn repeat_schema() -> Value {
    let kept =
        closed(json!({"every": whole("The rounds 0, N, 2 N, …"), "last": whole("The last rounds (default: 1).")}));
    let mut schema = closed(json!({
        "rounds": whole("Number of rounds. `${repeat.round}` counts them from 0."),
        "carry": outputs("What the first round starts from, by name: `node` or `node.port`. Nodes of the loop refer to it by that name."),
        "next": outputs("What the next round starts from, by the same names: outputs of nodes of the loop. `LOOP.NAME` is that of the last round, or of the one that `best` and `stop` choose."),
        "nodes": nodes("The nodes of a round, by id."),
        "include": {"description": "Files with nodes of a round, as for `include` of the pipeline. They have `nodes`, `params` and `include`."},
        "keep": {
            "description": "Of which rounds models, states and other folders stay in the store: `last`, or `{every: 10, last: 2}`. Those of other rounds are released while the loop runs, once all nodes that use them are done. Default: all stay.",
            "anyOf": [{"type": "string", "enum": ["last"]}, kept],
        },
        "matrix": {"type": "object", "description": "Values of `${matrix.KEY}`: one loop for each combination."},
        "best": {"type": "string", "description": "A query that gives one number: the loop hands on the round with the highest one."},
        "stop": stop_schema(),
    }));
    schema["required"] = json!(["rounds", "nodes"]);
    schema
}

fn stop_schema() -> Value {
    let about = "What ends the loop after a round. Queries name nodes of the loop (`step`, `step.steps`), with the rows of this \
         round, and `rounds`.";
    let schema = closed(json!({
        "when": {"type": "string", "description": "A query that gives true or false: true ends the loop."},
        "patience": whole("Rounds without a higher `best`."),
        "watch": outputs("Queries that give true or false, by name: conditions that must hold."),
    }));
    described(about, schema)
}

fn amount(description: &str) -> Value {
    json!({"type": ["number", "string"], "description": description})
}

fn budget_schema() -> Value {
    let about = "Limits on the calls of one run. Once one is used up, the run stops with exit code 4; the next run resumes. \
         `run --budget` replaces single limits.";
    let schema = closed(json!({
        "calls": amount("Calls to endpoints, retries included."),
        "tokens": amount("Prompt and completion tokens, for example `1.5M`."),
        "cost": amount("Cost in the currency of `prices`."),
        "per_day": {"type": "object", "description": "Limits of all runs of the pipeline from midnight to midnight, in the time zone of `schedule`."},
        "per_month": {"type": "object", "description": "Limits of all runs of the pipeline in a calendar month."},
    }));
    described(about, schema)
}

fn tests_schema() -> Value {
    let rows = json!({"type": "array", "items": {"type": "object"}});
    let expected = json!({"anyOf": [rows, {"type": "object", "required": ["rows"], "properties": {
        "rows": rows, "unordered": {"type": "boolean"}, "tolerance": {"type": "number"},
    }}]});
    let test = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "params": {"type": "object", "description": "Values of params in this test."},
            "given": {"type": "object", "description": "Rows of `node` or `node.port`; the node does not run.", "additionalProperties": rows},
            "model": {"type": "array", "description": "Answers of the scripted model: `{when: TEXT OF THE PROMPT, answer: …}`."},
            "expect": {"type": "object", "description": "Expected rows of `node` or `node.port`; only the columns written here are compared.", "additionalProperties": expected},
        },
    });
    json!({
        "description": "Tests, run by `searchmill test`.",
        "anyOf": [{"type": "array", "items": test}, {"type": "object", "additionalProperties": test}],
    })
}

fn duration(description: &str) -> Value {
    json!({"$ref": "#/$defs/duration", "description": description})
}

fn schedule_schema() -> Value {
    let mut schema = closed(json!({
        "cron": {"type": "string", "description": "`minute hour day month weekday`, or six fields with seconds first: `0 3 * * *` is every night at three."},
        "timezone": {"type": "string", "description": "IANA name: `Europe/Berlin`. Default: UTC."},
        "overlap": {
            "enum": ["skip", "queue", "replace", "allow"],
            "description": "What to do with a tick during a run: skip it, queue it, replace the run, or start a second run. Default: skip.",
        },
        "catchup": {
            // `catchup: null` is read as `none`.
            "enum": ["none", "latest", "all", null],
            "description": "What to do with ticks missed while no daemon ran: run none, the latest, or all in order. Default: latest.",
        },
        "jitter": duration("Longest random delay of each tick, fixed per tick. Default: none."),
        "max_runtime": duration("Longest time of a run; then it finishes the rows in flight and stops. Default: no limit."),
        "grace": duration("Time such a run has to finish. Default: 60 s."),
        "notify": {"description": "Whom to tell how a run ended: `{webhook: URL}` or `{program: [WORD, …]}`, with `on: [failure, held, recovery, budget]`, or a list of these."},
    }));
    schema["required"] = json!(["cron"]);
    described("When `searchmill schedule` runs the pipeline.", schema)
}

fn node_schema(names: &[Value], branches: &[Value]) -> Value {
    let reference = json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]});
    let mut schema = closed(json!({
        "op": {"description": "The operator.", "oneOf": names},
        "from": {
            "description": "Inputs: `node`, `node.port`, a list, or a map of ports.",
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                {"type": "object", "additionalProperties": reference},
            ],
        },
        "with": {"type": "object", "description": "Params of the operator."},
        "matrix": {
            "description": "Values of `${matrix.KEY}`, one node for each combination: lists, maps of named values, or the names of nodes whose values to take.",
            "anyOf": [
                {"type": "string"},
                {"type": "object", "additionalProperties": {"type": ["array", "object", "string"]}},
            ],
        },
        "services": {
            "type": "object",
            "description": "Servers that run while the node runs. `with` refers to the address of one by `${service.NAME}`.",
            "additionalProperties": service_schema(),
        },
        "resources": {
            "type": "object", "description": "Resource limits. They never change the result.",
            "properties": {
                "concurrency": whole("Rows in flight."),
                "threads": whole("CPU threads."),
                "gpus": whole("GPUs."),
                "memory": {"type": ["string", "integer"], "description": "Memory, for example `4GiB`."},
                "fallback": {"enum": ["cpu"], "description": "Compute on the CPU if the GPUs are missing."},
                "isolate": {"type": ["boolean", "string"], "description": "Run in a separate process."},
                "timeout": {"$ref": "#/$defs/duration"},
            },
        },
        "retry": {
            "type": "object", "description": "Retries of external calls.",
            "properties": {
                "max_attempts": whole("Attempts, the first included (3)."),
                "backoff": {"$ref": "#/$defs/duration"},
                "max_backoff": {"$ref": "#/$defs/duration"},
                "stop_after": whole("Failed calls in a row that end the node (8; 0: none do)."),
            },
        },
        "on_error": {"enum": ["fail", "dead_letter", "drop"], "description": "What to do with a failed row."},
        "freeze": {"type": "boolean", "description": "Use the last result, whatever changed since."},
        "seed": {
            "type": ["integer", "string", "array"], "items": {"type": ["integer", "string"]},
            "description": "Seed of all random choices: a whole number, or several, which together make one seed.",
        },
        "checks": {
            "type": "array", "description": "What must hold of the result. Never part of a key.",
            "items": check_schema(),
        },
        "description": {"type": "string", "description": "Purpose of the node."},
    }));
    schema["required"] = json!(["op"]);
    schema["allOf"] = json!(branches);
    schema
}

/// One text or a list of texts.
fn texts(description: &str) -> Value {
    json!({"description": description, "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
}

fn limits(description: &str, keys: &[&str]) -> Value {
    let mut properties = Map::new();
    for key in keys {
        properties.insert((*key).to_owned(), json!({"type": ["number", "string"]}));
    }
    described(description, closed(Value::Object(properties)))
}

fn check_schema() -> Value {
    let mut range = limits("Range of a column's values; nulls are passed over.", &["min", "max"]);
    range["properties"]["column"] = json!({"type": "string"});
    closed(json!({
        "rows": limits("Number of rows.", &["min", "max"]),
        "rejects": limits("Share of rows that the node rejected or dropped, from 0 to 1.", &["max"]),
        "unique": texts("Columns in which no two rows have the same values."),
        "not_null": texts("Columns without nulls."),
        "range": range,
        "sql": {"type": "string", "description": "A predicate that is true for every row, or a query over `rows` that returns no row."},
        "port": {"type": "string", "description": "The checked output. Default: the first one."},
        "on_failure": {
            "enum": ["fail", "hold", "warn"],
            "description": "fail: nothing after the node runs. hold: nothing after it is written outside the store. warn: the run reports it. Default: fail.",
        },
    }))
}

fn service_schema() -> Value {
    closed(json!({
        "model": {"type": "string", "description": "The model that `searchmill serve model` serves under the name of the service: `node` or `node.port`."},
        "adapter": {"type": "string", "description": "A LoRA adapter for `model`."},
        "search": texts("The indexes that `searchmill serve env` serves."),
        "program": texts("Another server: its words. `{port}` is its port, `{NAME}` the path of an input in `from`."),
        "from": outputs("Inputs of `program`, by name."),
        "args": texts("Further arguments of `searchmill serve`, for example `[--context, \"4096\"]`."),
        "env": texts("Environment variables passed on, beside PATH, HOME, TMPDIR and LD_LIBRARY_PATH."),
        "ready": {"type": "string", "description": "Path that answers with a status of 2xx once it is ready. Required with `program`."},
        "within": duration("Longest time until it is ready. Default: 10 minutes."),
    }))
}

/// Returns the params' schema, with its definitions moved to the top and `${…}` allowed for every value.
fn operator_schema(entry: &OperatorEntry, definitions: &mut Map<String, Value>) -> Value {
    let mut schema = (entry.schema)();
    // References are resolved from the root of the whole schema.
    let own = schema.as_object_mut().and_then(|map| map.remove("$defs"));
    if let Some(map) = schema.as_object_mut() {
        // A dialect is stated once, at the root of the whole schema.
        map.remove("$schema");
    }
    // Operators may have different types of one name.
    if let Some(Value::Object(own)) = own {
        for (name, mut definition) in own {
            adapt(&mut definition, entry.name);
            definitions.insert(format!("{}.{name}", entry.name), definition);
        }
    }
    adapt(&mut schema, entry.name);
    schema
}

fn adapt(schema: &mut Value, operator: &str) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get_mut("$ref")
                && let Some(name) = reference.strip_prefix("#/$defs/")
            {
                *reference = format!("#/$defs/{operator}.{name}");
            }
            for (_, value) in map.iter_mut() {
                adapt(value, operator);
            }
            if let Some(Value::Object(properties)) = map.get_mut("properties") {
                for (_, property) in properties.iter_mut() {
                    *property = with_template(property.take());
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                adapt(item, operator);
            }
        }
        _ => {}
    }
}

/// Allows the property or a `${…}` reference.
fn with_template(property: Value) -> Value {
    // A free text may be a reference anyway.
    if property.get("type") == Some(&json!("string")) && property.get("enum").is_none() {
        return property;
    }
    // Editors show the description of the property, not those of its alternatives.
    let description = property.get("description").cloned();
    let mut either = json!({"anyOf": [property, {"type": "string", "pattern": "^\\$\\{.+\\}$"}]});
    if let Some(description) = description {
        either["description"] = description;
    }
    either
}
