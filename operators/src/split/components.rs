//! Connected components of rows that share a key, by union-find.

use std::collections::HashMap;

/// Rows and the keys that link them.
#[derive(Default)]
pub(super) struct Components {
    parents: Vec<u32>,
    linked: Vec<bool>,
    first_row: HashMap<String, u32>,
}

impl Components {
    /// Adds the next row with its keys; a row without keys is a separate component.
    pub(super) fn add(&mut self, keys: &[String]) {
        let row = self.parents.len() as u32;
        self.parents.push(row);
        self.linked.push(!keys.is_empty());
        for key in keys {
            let first = *self.first_row.entry(key.clone()).or_insert(row);
            self.join(row, first);
        }
    }

    fn root(&mut self, mut row: u32) -> u32 {
        while self.parents[row as usize] != row {
            let above = self.parents[self.parents[row as usize] as usize];
            self.parents[row as usize] = above;
            row = above;
        }
        row
    }

    /// Joins two components. The earlier root remains the root, so that the first row identifies a component.
    fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.root(a), self.root(b));
        self.parents[a.max(b) as usize] = a.min(b);
    }

    /// Returns the component of each row, numbered in order of first rows, and whether each component has keys.
    pub(super) fn finish(mut self) -> (Vec<u32>, Vec<bool>) {
        let mut number_of_root: HashMap<u32, u32> = HashMap::new();
        let mut linked = Vec::new();
        let rows = self.parents.len() as u32;
        let mut component = |row: u32| {
            let root = self.root(row);
            *number_of_root.entry(root).or_insert_with(|| {
                linked.push(self.linked[root as usize]);
                linked.len() as u32 - 1
            })
        };
        let components = (0..rows).map(&mut component).collect();
        (components, linked)
    }
}
