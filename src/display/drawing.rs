//! Drawings of graphs as text for Mermaid and Graphviz.

/// Nodes (name and description) and named edges of a graph.
pub(crate) struct Drawing {
    pub(crate) title: &'static str,
    /// Quote around the names of edges in Mermaid.
    pub(crate) quote: &'static str,
    pub(crate) nodes: Vec<(String, String)>,
    pub(crate) edges: Vec<(usize, usize, String)>,
}

impl Drawing {
    pub(crate) fn mermaid(&self) -> String {
        let mut text = "flowchart TD\n".to_owned();
        for (place, (name, about)) in self.nodes.iter().enumerate() {
            let (name, about) = (mermaid_label(name), mermaid_label(about));
            text.push_str(&format!("  n{place}[\"{name}<br/><small>{about}</small>\"]\n"));
        }
        let quote = self.quote;
        for (from, to, name) in &self.edges {
            let name = if name.is_empty() { String::new() } else { format!("|{quote}{}{quote}|", mermaid_label(name)) };
            text.push_str(&format!("  n{from} -->{name} n{to}\n"));
        }
        text
    }

    pub(crate) fn dot(&self) -> String {
        let mut text = format!("digraph {} {{\n  node [shape=box, fontname=\"sans-serif\"];\n", self.title);
        for (place, (name, about)) in self.nodes.iter().enumerate() {
            text.push_str(&format!("  n{place} [label=\"{}\\n{}\"];\n", dot_label(name), dot_label(about)));
        }
        for (from, to, name) in &self.edges {
            text.push_str(&format!("  n{from} -> n{to} [label=\"{}\"];\n", dot_label(name)));
        }
        text.push_str("}\n");
        text
    }
}

fn mermaid_label(text: &str) -> String {
    // A label stands in quotation marks, and Mermaid reads HTML in it.
    text.replace('"', "'").replace('<', "&lt;")
}

fn dot_label(text: &str) -> String {
    // A backslash begins an escape in labels of Graphviz (`\l`, `\N`).
    text.replace('\\', "\\\\").replace('"', "'")
}
