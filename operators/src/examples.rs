//! Tests that every operator's examples are valid: the YAML is one node, and the operator accepts its params.

use serde_json::Value;

#[test]
fn every_example_binds() {
    for operator in crate::all() {
        assert!(operator.examples.len() >= 2, "`EXAMPLES` of `{}`: two at least", operator.name);
        for example in operator.examples {
            let nodes: Value = serde_yaml::from_str(example.yaml).expect(example.yaml);
            for node in nodes.as_object().expect("a mapping").values() {
                assert_eq!(node["op"], operator.name, "{}", example.yaml);
                let params = node.get("with").cloned().unwrap_or_else(|| serde_json::json!({}));
                let bound = (operator.bind)(params).map_err(|issue| format!("{}: {}", issue.path, issue.message));
                let bound = bound.expect(example.yaml);
                assert_eq!(bound.declaration.issues, [], "{}", example.yaml);
                let again = (operator.bind)(bound.params.clone()).map_err(|issue| issue.message);
                assert_eq!(bound.params, again.expect(example.yaml).params, "defaults written out read back");
            }
        }
    }
}
