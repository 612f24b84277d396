//! Connected components of rows that share a key.

use std::collections::HashMap;

use crate::shared::forest::Forest;

/// Rows and the keys that link them.
#[derive(Default)]
pub(super) struct Components {
    forest: Forest,
    linked: Vec<bool>,
    first_row: HashMap<String, u32>,
}

impl Components {
    /// Adds the next row with its keys; a row without keys is a separate component.
    pub(super) fn add(&mut self, keys: &[String]) {
        let row = self.forest.add();
        self.linked.push(!keys.is_empty());
        for key in keys {
            let first = *self.first_row.entry(key.clone()).or_insert(row);
            self.forest.join(row, first);
        }
    }

    /// Returns the component of each row, numbered in order of first rows, and whether each component has keys.
    pub(super) fn finish(mut self) -> (Vec<u32>, Vec<bool>) {
        let mut number_of_root: HashMap<u32, u32> = HashMap::new();
        let mut linked = Vec::new();
        let mut components = Vec::with_capacity(self.linked.len());
        for row in 0..self.linked.len() as u32 {
            let root = self.forest.root(row);
            components.push(*number_of_root.entry(root).or_insert_with(|| {
                // A row without keys is alone in its component, so the root speaks for all of its rows.
                linked.push(self.linked[root as usize]);
                linked.len() as u32 - 1
            }));
        }
        (components, linked)
    }
}
