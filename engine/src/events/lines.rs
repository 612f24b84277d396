//! A run as lines of text.

use super::event::{Event, Reporter};

/// Gives a line to a callback for every node that ends and for every file that is written.
///
/// `Lines(|line: &str| println!("{line}"))` prints them.
pub struct Lines<F>(pub F);

impl<F: Fn(&str) + Send + Sync> Reporter for Lines<F> {
    fn event(&self, event: &Event) {
        if let Some(line) = line(event) {
            (self.0)(&line);
        }
    }
}

fn line(event: &Event) -> Option<String> {
    match event {
        Event::NodeCached { node, rows, .. } => Some(format!("cached {node}: {rows} rows")),
        Event::NodeFinished { node, rows, rejects, .. } => {
            Some(format!("ran    {node}: {rows} rows, {rejects} rejects"))
        }
        Event::NodeFailed { node, message, .. } => Some(format!("failed {node}: {message}")),
        Event::NodeChecked { node, checks } => {
            let failed: Vec<String> = checks.iter().filter(|check| !check.passed).map(ToString::to_string).collect();
            (!failed.is_empty()).then(|| format!("check  {node}: {}", failed.join("; ")))
        }
        Event::HeldBack { node, reason, .. } => Some(format!("held   {node}: {reason}")),
        Event::Delivered { node, destination } => Some(format!("wrote  {node}: {destination}")),
        _ => None,
    }
}
