//! What is looked at now, so that scrolling does not query again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use searchmill_engine::{ArtifactId, Choice, NodeId, Rows, Table};

/// Views that are kept (at most).
const VIEWS: usize = 32;
/// Row numbers that are kept in all views (at most): 8 bytes each.
const NUMBERS: u64 = 8 << 20;

/// A table and its chosen rows.
pub(super) struct View {
    pub(super) artifact: ArtifactId,
    /// Its output.
    pub(super) port: String,
    pub(super) table: Table,
    pub(super) rows: Rows,
    pub(super) choice: Choice,
    /// Nodes that scored the rows.
    pub(super) scorers: Vec<NodeId>,
    /// The one whose scores are shown.
    pub(super) scorer: Option<NodeId>,
}

impl View {
    /// Returns the row numbers that are held.
    pub(super) fn numbers(&self) -> u64 {
        match &self.rows {
            Rows::All(_) => 0,
            Rows::These(numbers) => numbers.len() as u64,
        }
    }
}

/// The last views, newest first.
pub(super) struct Views<V> {
    /// Returns the row numbers that a view holds.
    numbers: fn(&V) -> u64,
    last: Mutex<VecDeque<(String, Arc<V>)>>,
}

impl<V> Views<V> {
    pub(super) fn new(numbers: fn(&V) -> u64) -> Self {
        Self { numbers, last: Mutex::default() }
    }

    /// Returns the view of that name, or keeps the one that is made now.
    pub(super) fn get<E>(&self, name: &str, make: impl FnOnce() -> Result<V, E>) -> Result<Arc<V>, E> {
        let found = {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            let place = last.iter().position(|(known, _)| known == name);
            place.and_then(|place| last.remove(place)).inspect(|found| last.push_front(found.clone()))
        };
        if let Some((_, view)) = found {
            return Ok(view);
        }
        // Not under the lock: a query may take seconds.
        let view = Arc::new(make()?);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // Another request may have made the same view meanwhile: the older copy falls out in time.
        last.push_front((name.to_owned(), Arc::clone(&view)));
        let mut held = 0;
        let mut kept = 0;
        for (_, view) in last.iter() {
            held += (self.numbers)(view);
            // The newest stays, however large: scrolling in it must not query again.
            if kept >= VIEWS || (kept > 0 && held > NUMBERS) {
                break;
            }
            kept += 1;
        }
        last.truncate(kept);
        Ok(view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_views_are_kept_up_to_a_number_of_rows() {
        let views = Views::new(|rows: &u64| *rows);
        let made = std::cell::Cell::new(0);
        let get = |name: &str, rows: u64| {
            let make = || {
                made.set(made.get() + 1);
                Ok::<_, ()>(rows)
            };
            *views.get(name, make).unwrap()
        };
        assert_eq!((get("a", 3), get("a", 4), made.get()), (3, 3, 1));
        for place in 0..VIEWS {
            get(&format!("other {place}"), 1);
        }
        let before = made.get();
        get("a", 3);
        assert_eq!(made.get(), before + 1, "the oldest went");
        get("large", NUMBERS + 1);
        assert_eq!(views.last.lock().unwrap().len(), 1);
    }
}
