//! Addresses of servers in params. `${service.NAME}` stands for the address of a service, which is known when its node
//! runs.

use std::collections::BTreeMap;

use serde_json::Value;

/// Begins a reference to a service; the name and `}` follow.
const BEGIN: &str = "${service.";

/// Returns the names of the services that a text refers to.
pub(crate) fn services_in(text: &str) -> impl Iterator<Item = &str> {
    text.split(BEGIN).skip(1).filter_map(|rest| Some(rest.split_once('}')?.0))
}

/// Whether a text refers to a service.
pub(crate) fn refers_to_service(text: &str) -> bool {
    services_in(text).next().is_some()
}

/// Replaces the references in all strings of a value by the addresses of the services.
pub(crate) fn with_addresses(value: &mut Value, addresses: &BTreeMap<String, String>) {
    match value {
        Value::String(text) if refers_to_service(text) => {
            for (name, address) in addresses {
                *text = text.replace(&format!("{BEGIN}{name}}}"), address);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| with_addresses(item, addresses)),
        Value::Object(fields) => fields.iter_mut().for_each(|(_, value)| with_addresses(value, addresses)),
        _ => {}
    }
}

/// Whether a text is an `http` or `https` URL, or begins with the address of a service (`${service.NAME}/v1`).
pub fn is_web_address(text: &str) -> bool {
    let mut address = text.to_owned();
    if let Some((_, path)) = text.strip_prefix(BEGIN).and_then(|rest| rest.split_once('}'))
        && (path.is_empty() || path.starts_with('/'))
    {
        // The service gets its port when it runs: for the syntax, any port does.
        address = format!("http://127.0.0.1:1{path}");
    }
    url::Url::parse(&address).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
}

#[cfg(test)]
mod tests {
    use super::is_web_address;

    #[test]
    fn services_have_addresses() {
        for text in ["http://h/v1", "https://h", "${service.judge}", "${service.judge}/v1"] {
            assert!(is_web_address(text), "{text}");
        }
        for text in ["", "localhost", "file:///x", "${service.judge", "${service.judge}0/v1", "x${service.judge}"] {
            assert!(!is_web_address(text), "{text}");
        }
    }
}
