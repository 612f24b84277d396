//! `include:` of a loop: files with nodes of a round.

use super::coordinate::Coordinate;
use super::field::{self, take};
use super::include::{self, Place, Wanted};
use super::model::NodeSpec;
use super::params::{Over, params};
use super::scope::{Scope, Shared};
use super::value::{Spanned, Value};
use super::{node, syntax};

const KEYS: &[&str] = &["name", "description", "params", "nodes", "include"];

/// Reads the nodes of the files that `include:` names, for each of the loop's coordinates.
pub(super) fn nodes(
    value: Spanned,
    outer: &[Vec<Coordinate>],
    from: &Place,
    scope: &mut Scope<'_>,
    shared: &mut Shared<'_>,
) -> Vec<NodeSpec> {
    let wanted = include::files(value, scope, shared);
    wanted.into_iter().flat_map(|wanted| of_file(wanted, outer, from, shared)).collect()
}

fn of_file(wanted: Wanted, outer: &[Vec<Coordinate>], from: &Place, shared: &mut Shared<'_>) -> Vec<NodeSpec> {
    let Some(place) = include::open(&wanted, from, shared) else { return Vec::new() };
    let text = shared.sources.get(place.file).map(|(_, text)| text.to_owned()).unwrap_or_default();
    let Some(root) = syntax::parse(place.file, &text, &mut shared.problems) else {
        shared.unread += 1;
        return Vec::new();
    };
    let what = "a file that a loop includes";
    if !matches!(root.value, Value::Map(_)) {
        shared.unread += 1;
        shared.report(field::wrong_type(&root, what, "a map"));
        return Vec::new();
    }
    let mut fields = field::fields(root, what, KEYS, &mut shared.problems);
    let raw = params(take(&mut fields, "params"), place.file, Over::Include(wanted.params), shared);
    let mut scope = Scope::new(&raw);
    // For the errors: params that no node uses are checked as well.
    scope.resolve_all(shared);
    let included = take(&mut fields, "include");
    let mut found = included.map(|value| nodes(value, outer, &place, &mut scope, shared)).unwrap_or_default();
    let own = take(&mut fields, "nodes");
    let own = own.and_then(|nodes| field::map(nodes, "`nodes`", &mut shared.problems)).unwrap_or_default();
    found.extend(node::all(own, outer, &mut scope, shared));
    // Files of a loop have no loops of their own.
    include::prefixed(found, Vec::new(), &wanted.prefix).0
}
