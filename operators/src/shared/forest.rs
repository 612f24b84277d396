//! Connected components by union-find.

/// Rows and the components they belong to.
pub(crate) struct Forest(Vec<u32>);

impl Forest {
    /// Creates that many rows, each a component.
    pub(crate) fn new(rows: u32) -> Self {
        Self((0..rows).collect())
    }

    /// Returns the first row of the component.
    pub(crate) fn root(&mut self, mut row: u32) -> u32 {
        while self.0[row as usize] != row {
            // Path halving: every row on the way now points further up, so that later walks are short.
            let above = self.0[self.0[row as usize] as usize];
            self.0[row as usize] = above;
            row = above;
        }
        row
    }

    /// Joins two components.
    pub(crate) fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.root(a), self.root(b));
        // The smaller number is the root: `dedup` takes the root for the first row of a group.
        self.0[a.max(b) as usize] = a.min(b);
    }
}
