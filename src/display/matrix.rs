//! Tables at the end of a run: one for each node with a matrix, with a line for each variant, and one for each loop, with
//! a line for all rounds of a node.

use std::collections::{BTreeMap, BTreeSet};

use searchmill_engine::{Event, NodeId, Plan};

use super::rounds::counted;
use super::style::{DIM, STRONG};
use super::table::{bytes, duration, text_table};

/// Maximum number of variants shown per matrix.
const LINES: usize = 48;
/// Maximum number of figures shown.
const FIGURES: usize = 6;
/// Maximum number of figures shown of a node of a loop.
const ROUND_FIGURES: usize = 3;

/// The nodes of matrices, and what became of them.
#[derive(Default)]
pub(super) struct Matrices {
    families: Vec<Family>,
    loops: Vec<Loop>,
    ends: BTreeMap<NodeId, End>,
    started: BTreeSet<NodeId>,
}

/// All nodes of one matrix.
struct Family {
    name: String,
    keys: Vec<String>,
    /// Ids and coordinates.
    variants: Vec<(NodeId, Vec<String>)>,
}

/// The nodes of a loop.
struct Loop {
    name: String,
    /// Ids without the round, each with the ids of its rounds.
    nodes: Vec<(String, Vec<String>)>,
    ids: BTreeSet<NodeId>,
}

/// The end of a node in this run.
#[derive(Default)]
struct End {
    state: &'static str,
    amount: String,
    rejects: u64,
    calls: u64,
    seconds: Option<f64>,
    figures: BTreeMap<String, f64>,
}

impl Matrices {
    /// Lists the nodes of matrices and loops; with `all`, every round is a variant.
    pub(super) fn of(plan: &Plan, all: bool) -> Self {
        let (mut families, mut loops): (Vec<Family>, Vec<Loop>) = (Vec::new(), Vec::new());
        let nodes = plan.nodes.iter().filter(|node| !node.spec.matrix.is_empty());
        for node in nodes {
            if let Some((name, _)) = node.spec.round().filter(|_| !all) {
                Loop::add(&mut loops, name, node.spec.id_of_rounds(), node.id());
                continue;
            }
            let name = node.id().name();
            let variant = node.spec.matrix.iter().map(|coordinate| coordinate.name.clone()).collect();
            let variant = (node.id().to_owned(), variant);
            if let Some(family) = families.iter_mut().find(|family| family.name == name) {
                family.variants.push(variant);
            } else {
                let keys = node.spec.matrix.iter().map(|coordinate| coordinate.key.clone()).collect();
                families.push(Family { name: name.to_owned(), keys, variants: vec![variant] });
            }
        }
        Self { families, loops, ends: BTreeMap::new(), started: BTreeSet::new() }
    }

    /// Notes what becomes of a node.
    pub(super) fn note(&mut self, event: &Event) {
        let (node, end) = match event {
            Event::NodeCached { node, output, rows, bytes, rejects, figures, .. } => {
                let (amount, figures) = (amount(output, *rows, *bytes), figures.clone());
                (node, End { state: "cached", amount, rejects: *rejects, figures, ..End::default() })
            }
            Event::NodeFinished { node, output, rows, bytes, rejects, figures, calls, seconds, .. } => {
                let (amount, figures) = (amount(output, *rows, *bytes), figures.clone());
                let (rejects, calls, seconds) = (*rejects, *calls, Some(*seconds));
                (node, End { state: "done", amount, rejects, calls, seconds, figures })
            }
            Event::NodeFailed { node, .. } => (node, End { state: "failed", ..End::default() }),
            Event::NodeStarted { node, .. } => {
                self.started.insert(node.clone());
                return;
            }
            Event::NodeSkipped { node } => {
                let state = if self.started.contains(node) { "interrupted" } else { "skipped" };
                (node, End { state, ..End::default() })
            }
            Event::HeldBack { node, .. } => {
                // The node has ended before: only the word for its end changes.
                if let Some(end) = self.ends.get_mut(node) {
                    end.state = "held back";
                }
                return;
            }
            _ => return,
        };
        if self.loops.iter().any(|found| found.ids.contains(node)) || self.families.iter().any(|f| f.holds(node)) {
            self.ends.insert(node.clone(), end);
        }
    }

    /// Formats the tables of the matrices with two or more nodes in this run.
    pub(super) fn tables(&self) -> Vec<String> {
        let families = self.families.iter().filter_map(|family| family.table(&self.ends));
        families.chain(self.loops.iter().filter_map(|repeats| repeats.table(&self.ends))).collect()
    }
}

impl Loop {
    fn add(loops: &mut Vec<Self>, name: &str, id: String, round: &str) {
        let at = loops.iter().position(|found| found.name == name).unwrap_or(loops.len());
        if at == loops.len() {
            loops.push(Self { name: name.to_owned(), nodes: Vec::new(), ids: BTreeSet::new() });
        }
        let found = &mut loops[at];
        found.ids.insert(round.into());
        match found.nodes.iter_mut().find(|(known, _)| *known == id) {
            Some((_, rounds)) => rounds.push(round.to_owned()),
            None => found.nodes.push((id, vec![round.to_owned()])),
        }
    }

    /// Formats one line for all rounds of a node: how many are cached, done, …, and the figures of the first and last one.
    fn table(&self, ends: &BTreeMap<NodeId, End>) -> Option<String> {
        let mut lines = Vec::new();
        for (id, rounds) in &self.nodes {
            let ended: Vec<&End> = rounds.iter().filter_map(|round| ends.get(round.as_str())).collect();
            let (Some(first), Some(end)) = (ended.first(), ended.last()) else { continue };
            // A round that failed or was skipped has no figures: the last that has some is shown.
            let last = ended.iter().rfind(|end| !end.figures.is_empty()).unwrap_or(end);
            let seconds: Vec<f64> = ended.iter().filter_map(|end| end.seconds).collect();
            let time = if seconds.is_empty() { String::new() } else { duration(seconds.iter().sum()) };
            let mut shown = Vec::new();
            for name in figures(&[first, last]) {
                if let (Some(from), Some(to)) = (first.figures.get(name), last.figures.get(name))
                    && shown.len() < ROUND_FIGURES
                {
                    let (from, to) = (figure(*from), figure(*to));
                    shown.push(if from == to { format!("{name} {to}") } else { format!("{name} {from} → {to}") });
                }
            }
            let states = counted(ended.iter().map(|end| end.state));
            lines.push(vec![format!("{id} ×{}", ended.len()), states, time, last.amount.clone(), shown.join(", ")]);
        }
        if lines.is_empty() {
            return None;
        }
        let header = ["node", "state", "time", "last", "first → last round"];
        Some(format!("\n{STRONG}{}{STRONG:#}\n{}", self.name, text_table(&header, &lines, None)))
    }
}

impl Family {
    fn holds(&self, node: &str) -> bool {
        // With the `@`: `read` is not the family of `read_all@…`.
        node.strip_prefix(&self.name).is_some_and(|rest| rest.starts_with('@'))
    }

    fn table(&self, ends: &BTreeMap<NodeId, End>) -> Option<String> {
        let (mut names, mut ended) = (Vec::new(), Vec::new());
        for (id, coordinates) in &self.variants {
            if let Some(end) = ends.get(id) {
                names.push(coordinates);
                ended.push(end);
            }
        }
        if ended.len() < 2 {
            return None;
        }
        let figures = figures(&ended);
        let has_rejects = ended.iter().any(|end| end.rejects > 0);
        let has_calls = ended.iter().any(|end| end.calls > 0);
        let mut header: Vec<&str> = self.keys.iter().map(String::as_str).collect();
        header.extend(["state", "rows", "time"]);
        // Columns of zeros would push the figures out of sight.
        if has_rejects {
            header.push("rejects");
        }
        if has_calls {
            header.push("calls");
        }
        header.extend(&figures);
        let mut lines = Vec::new();
        for (names, end) in names.into_iter().zip(&ended).take(LINES) {
            let mut cells = names.clone();
            cells.extend([end.state.to_owned(), end.amount.clone(), end.seconds.map(duration).unwrap_or_default()]);
            if has_rejects {
                cells.push(end.rejects.to_string());
            }
            if has_calls {
                cells.push(end.calls.to_string());
            }
            let values = figures.iter().map(|name| end.figures.get(*name));
            cells.extend(values.map(|value| value.map(|value| figure(*value)).unwrap_or_default()));
            lines.push(cells);
        }
        let mut shown = format!("\n{STRONG}{}{STRONG:#}\n{}", self.name, text_table(&header, &lines, None));
        if ended.len() > LINES {
            let (more, name) = (ended.len() - LINES, &self.name);
            shown.push_str(&format!("\n{DIM}… {more} more of {name}@…: searchmill status FILE{DIM:#}"));
        }
        Some(shown)
    }
}

/// Formats the number of rows, or the size of a folder.
fn amount(output: &str, rows: u64, size: u64) -> String {
    if output.ends_with("rows") { rows.to_string() } else { bytes(size) }
}

/// Returns the names of the figures to show: those that differ first, by name.
fn figures<'e>(ended: &[&'e End]) -> Vec<&'e str> {
    // The first value of each figure, and whether another one differs. By bits: NaN equals itself.
    let mut figures: BTreeMap<&str, (u64, bool)> = BTreeMap::new();
    for end in ended {
        for (name, value) in &end.figures {
            let (first, differs) = figures.entry(name).or_insert((value.to_bits(), false));
            *differs |= *first != value.to_bits();
        }
    }
    let (mut names, mut same) = (Vec::new(), Vec::new());
    for (name, (_, differs)) in figures {
        if differs { names.push(name) } else { same.push(name) }
    }
    names.extend(same);
    names.truncate(FIGURES);
    names
}

/// Formats a figure: a whole number, or three significant digits or more.
fn figure(value: f64) -> String {
    match value.abs() {
        _ if value.fract().abs() < f64::EPSILON => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 0.001 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    fn family(sizes: usize) -> Matrices {
        let variants = (0..sizes).map(|size| (format!("hits@size={size}").into(), vec![size.to_string()])).collect();
        let family = Family { name: "hits".to_owned(), keys: vec!["size".to_owned()], variants };
        Matrices { families: vec![family], ..Matrices::default() }
    }

    fn cached(node: &str, figures: &[(&str, f64)]) -> Event {
        Event::NodeCached {
            node: node.into(),
            operator: "retrieve".to_owned(),
            output: "hit rows".to_owned(),
            rows: 40,
            bytes: 7,
            rejects: 0,
            key: None,
            figures: figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        }
    }

    #[test]
    fn a_line_for_each_variant_in_the_order_of_the_matrix() {
        let mut matrices = family(4);
        let cut_off = "hits@size=2".to_owned();
        matrices.note(&Event::NodeStarted {
            node: cut_off.as_str().into(),
            operator: "retrieve".to_owned(),
            reasons: Vec::new(),
            time: 0.0,
        });
        matrices.note(&Event::NodeSkipped { node: cut_off.into() });
        matrices.note(&Event::NodeSkipped { node: "hits@size=3".into() });
        matrices.note(&cached("hits@size=1", &[("same", 2.0), ("varied", 0.25)]));
        matrices.note(&cached("hits@size=0", &[("same", 2.0), ("varied", 0.5)]));
        matrices.note(&cached("hits2@size=0", &[]));
        let told: Vec<String> = matrices.tables().iter().map(|text| plain(text)).collect();
        let wanted = "\nhits\n\
                      size  state        rows  time  varied  same\n\
                      0     cached       40          0.500   2\n\
                      1     cached       40          0.250   2\n\
                      2     interrupted\n\
                      3     skipped";
        assert_eq!(told, [wanted]);
        matrices.note(&Event::HeldBack { node: "hits@size=0".into(), destinations: Vec::new(), reason: String::new() });
        assert!(plain(&matrices.tables()[0]).contains("0     held back"));
    }

    #[test]
    fn the_rounds_of_a_node_are_one_line() {
        let mut matrices = Matrices::default();
        for round in 0..40 {
            Loop::add(&mut matrices.loops, "rl", "step".to_owned(), &format!("step@round={round}"));
            Loop::add(&mut matrices.loops, "rl", "rewards".to_owned(), &format!("rewards@round={round}"));
        }
        assert!(matrices.tables().is_empty());
        for round in 0..38 {
            matrices.note(&cached(&format!("step@round={round}"), &[("kl", f64::from(round) / 100.0), ("lr", 1.0)]));
        }
        matrices.note(&Event::NodeFailed {
            node: "step@round=38".into(),
            operator: "train".to_owned(),
            message: String::new(),
            help: None,
        });
        matrices.note(&Event::NodeSkipped { node: "step@round=39".into() });
        let told = plain(&matrices.tables()[0]);
        assert!(told.starts_with("\nrl\nnode") && told.contains("step ×40  38 cached, 1 failed, 1 skipped"), "{told}");
        assert!(!told.contains("rewards"), "{told}");
    }

    #[test]
    fn one_variant_needs_no_table_and_many_are_cut() {
        let mut matrices = family(100);
        matrices.note(&cached("hits@size=7", &[]));
        assert!(matrices.tables().is_empty());
        (0..100).for_each(|size| matrices.note(&cached(&format!("hits@size={size}"), &[])));
        let told = plain(&matrices.tables()[0]);
        assert!(told.ends_with("… 52 more of hits@…: searchmill status FILE"), "{told}");
        assert_eq!(told.lines().count(), LINES + 4);
    }

    #[test]
    fn figures_keep_their_digits() {
        assert_eq!(
            [figure(3.0), figure(0.12345), figure(1234.56), figure(0.000_012)],
            ["3", "0.123", "1234.6", "1.20e-5"]
        );
    }
}
