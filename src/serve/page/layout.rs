//! Where the nodes of a run stand in a drawing: in columns by what they read, in lanes that keep lines short.

use std::collections::BTreeMap;

use searchmill_engine::{NodeId, NodeRun, RunEdge};
use serde::Serialize;

/// Times that the lanes are put in order.
const SWEEPS: usize = 4;

/// A box of the drawing: a node, or all rounds and variants of one.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Box {
    /// The node, without coordinates.
    pub(super) name: String,
    pub(super) operator: String,
    pub(super) state: &'static str,
    /// Number of nodes that it stands for.
    pub(super) nodes: usize,
    /// The first of them.
    pub(super) first: NodeId,
    pub(super) column: usize,
    pub(super) lane: usize,
}

/// A drawing: boxes, and lines between them by their places.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Drawing {
    pub(super) boxes: Vec<Box>,
    pub(super) lines: Vec<(usize, usize)>,
    pub(super) columns: usize,
    pub(super) lanes: usize,
}

/// Draws the nodes of a run. `state` says how a node ended; of several, the one that matters most is shown.
pub(super) fn draw(nodes: &[NodeRun], edges: &[RunEdge], state: impl Fn(&NodeRun) -> &'static str) -> Drawing {
    let mut drawing = Drawing::default();
    let mut box_of: BTreeMap<&str, usize> = BTreeMap::new();
    let mut place_of: BTreeMap<&str, usize> = BTreeMap::new();
    for node in nodes {
        let name = node.node.name();
        let place = *place_of.entry(name).or_insert_with(|| {
            let (name, operator, first) = (name.to_owned(), node.operator.clone(), node.node.clone());
            drawing.boxes.push(Box { name, operator, state: state(node), nodes: 0, first, column: 0, lane: 0 });
            drawing.boxes.len() - 1
        });
        let found = &mut drawing.boxes[place];
        found.nodes += 1;
        if weight(state(node)) > weight(found.state) {
            found.state = state(node);
            found.first.clone_from(&node.node);
        }
        box_of.insert(&node.node, place);
    }
    for edge in edges {
        if let (Some(from), Some(to)) = (box_of.get(edge.from.as_str()), box_of.get(edge.to.as_str()))
            && from != to
            && !drawing.lines.contains(&(*from, *to))
        {
            drawing.lines.push((*from, *to));
        }
    }
    // A round of a loop reads what the round before made: that line leads back, and orders nothing.
    let order: Vec<(usize, usize)> = drawing.lines.iter().copied().filter(|(from, to)| from < to).collect();
    // All lines lead forward, so no path has more steps than there are boxes.
    for _ in 0..drawing.boxes.len() {
        let mut moved = false;
        for (from, to) in &order {
            let column = drawing.boxes[*from].column + 1;
            if drawing.boxes[*to].column < column {
                drawing.boxes[*to].column = column;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    drawing.columns = drawing.boxes.iter().map(|found| found.column + 1).max().unwrap_or(0);
    place_in_lanes(&mut drawing);
    drawing
}

/// Gives each box a lane of its column, near those that it is connected with.
fn place_in_lanes(drawing: &mut Drawing) {
    let mut columns: Vec<Vec<usize>> = vec![Vec::new(); drawing.columns];
    let mut lane = vec![0_usize; drawing.boxes.len()];
    for (place, found) in drawing.boxes.iter().enumerate() {
        lane[place] = columns[found.column].len();
        columns[found.column].push(place);
    }
    for _ in 0..SWEEPS {
        for column in &mut columns {
            // Each box stands as near as it can to the middle of those that it is connected with.
            column.sort_by_key(|place| middle(*place, &drawing.lines, &lane));
            for (at, place) in column.iter().enumerate() {
                lane[*place] = at;
            }
        }
    }
    for (found, lane) in drawing.boxes.iter_mut().zip(&lane) {
        found.lane = *lane;
    }
    drawing.lanes = columns.iter().map(Vec::len).max().unwrap_or(0);
}

/// Returns a hundred times the mean lane of those that a box is connected with, or of its own if there are none.
fn middle(place: usize, lines: &[(usize, usize)], lane: &[usize]) -> usize {
    let (mut sum, mut count) = (0, 0);
    for (from, to) in lines {
        if *from == place {
            sum += lane[*to];
            count += 1;
        } else if *to == place {
            sum += lane[*from];
            count += 1;
        }
    }
    // In hundredths: a mean between two lanes is not rounded to one of them.
    (sum * 100).checked_div(count).unwrap_or(lane[place] * 100)
}

/// Which state of several nodes is shown: the one that asks for a look.
fn weight(state: &str) -> u8 {
    match state {
        "failed" => 6,
        "check failed" => 5,
        "held back" => 4,
        "begun" | "interrupted" => 3,
        "done" => 2,
        "cached" => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use searchmill_engine::NodeOutcome;

    use super::*;

    fn node(name: &str, outcome: NodeOutcome) -> NodeRun {
        let text =
            serde_json::json!({"node": name, "operator": "sql", "outcome": outcome, "seconds": 0.0, "key": null});
        serde_json::from_value(text).unwrap()
    }

    fn edge(from: &str, to: &str) -> RunEdge {
        RunEdge { from: from.into(), output: "rows".to_owned(), to: to.into() }
    }

    #[test]
    fn rounds_are_one_box_and_what_fails_is_seen() {
        let done = NodeOutcome::Finished;
        let nodes = [
            node("start", done),
            node("step@round=0", done),
            node("step@round=1", NodeOutcome::Failed),
            node("end", NodeOutcome::Skipped),
        ];
        let edges = [edge("start", "step@round=0"), edge("step@round=0", "step@round=1"), edge("step@round=1", "end")];
        let drawing = draw(&nodes, &edges, |node| match node.outcome {
            NodeOutcome::Failed => "failed",
            NodeOutcome::Finished => "done",
            _ => "skipped",
        });
        let told: Vec<_> =
            drawing.boxes.iter().map(|b| (b.name.as_str(), b.nodes, b.state, b.column, b.first.as_str())).collect();
        assert_eq!(
            told,
            [
                ("start", 1, "done", 0, "start"),
                ("step", 2, "failed", 1, "step@round=1"),
                ("end", 1, "skipped", 2, "end")
            ]
        );
        assert_eq!((drawing.lines, drawing.columns, drawing.lanes), (vec![(0, 1), (1, 2)], 3, 1));
        assert_eq!(draw(&[], &[], |_| "done"), Drawing::default());
    }
}
