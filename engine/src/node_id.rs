//! Ids of nodes: `train`, `train@lr=1e-4,rank=64`, `step@seed=1,round=3`. The only place where an id is put together
//! and taken apart.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

/// The key of the coordinate that is the round of a loop.
pub(crate) const ROUND: &str = "round";

/// The id of a node: the name of an entry of `nodes:`, and for a node of a matrix or loop its coordinates there.
///
/// It is kept as its text, because a coordinate's value may be any text.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(String);

/// The number of a round of a loop, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Round(pub usize);

impl NodeId {
    /// Puts an id together from the name and the coordinates as text.
    pub(crate) fn new(name: &str, coordinates: &[(String, String)]) -> Self {
        let mut text = name.to_owned();
        for (position, (key, value)) in coordinates.iter().enumerate() {
            text.push(if position == 0 { '@' } else { ',' });
            text.push_str(key);
            text.push('=');
            text.push_str(value);
        }
        Self(text)
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the node's name in `nodes:`, without coordinates.
    pub fn name(&self) -> &str {
        name(&self.0)
    }

    /// Whether it has coordinates: it is of a matrix or loop.
    pub fn is_variant(&self) -> bool {
        self.0.contains('@')
    }

    /// Returns the number of the round, if it is of a loop.
    pub fn round(&self) -> Option<Round> {
        round(&self.0)
    }

    /// Returns what is the same in all rounds: the name and the other coordinates.
    pub fn without_round(&self) -> String {
        let others: Vec<&str> = coordinates(&self.0).filter(|pair| number_of_round(pair).is_none()).collect();
        if self.is_variant() { format!("{}@{}", self.name(), others.join(",")) } else { self.0.clone() }
    }
}

/// Returns the name in the text of an id.
pub(crate) fn name(id: &str) -> &str {
    id.split_once('@').map_or(id, |(name, _)| name)
}

/// Returns the coordinates (`key=value`) in the text of an id.
pub(crate) fn coordinates(id: &str) -> impl Iterator<Item = &str> {
    let coordinates = id.split_once('@').map(|(_, coordinates)| coordinates);
    coordinates.into_iter().flat_map(|coordinates| coordinates.split(','))
}

/// Returns the round in the text of an id.
pub(crate) fn round(id: &str) -> Option<Round> {
    coordinates(id).find_map(number_of_round)
}

fn number_of_round(coordinate: &str) -> Option<Round> {
    let (key, value) = coordinate.split_once('=')?;
    if key != ROUND {
        return None;
    }
    value.parse().ok().map(Round)
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Deref for NodeId {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for NodeId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&str> for NodeId {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for NodeId {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<NodeId> for String {
    fn from(id: NodeId) -> Self {
        id.0
    }
}

impl PartialEq<str> for NodeId {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for NodeId {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl PartialEq<String> for NodeId {
    fn eq(&self, other: &String) -> bool {
        self.0 == *other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(id: &str) -> (String, Option<usize>, String) {
        let id = NodeId::from(id);
        (id.name().to_owned(), id.round().map(|round| round.0), id.without_round())
    }

    #[test]
    fn an_id_has_a_name_a_round_and_what_is_left_without_it() {
        let of = |name: &str, round, rest: &str| (name.to_owned(), round, rest.to_owned());
        assert_eq!(parts("scores"), of("scores", None, "scores"));
        assert_eq!(parts("scores@round=3"), of("scores", Some(3), "scores@"));
        assert_eq!(parts("step@seed=2,round=11"), of("step", Some(11), "step@seed=2"));
        assert_eq!(parts("step@round=11,seed=2"), of("step", Some(11), "step@seed=2"));
        assert_eq!(parts("step@round=x"), of("step", None, "step@round=x"));
        assert_eq!(parts("step@seed=3"), of("step", None, "step@seed=3"));
        assert_eq!(parts("step@all"), of("step", None, "step@all"));
    }

    #[test]
    fn an_id_is_put_together_from_its_parts() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(NodeId::new("train", &[]), "train");
        assert_eq!(NodeId::new("train", &[pair("lr", "1e-4"), pair("rank", "64")]), "train@lr=1e-4,rank=64");
    }
}
