//! Run ids: dates that sort in the order in which runs started, even if the clock is set back.

use crate::store::{Store, run_time};

/// Returns a start time after all runs of the store, so that a clock set back does not make this run look old. Imported
/// runs do not count: they used another clock.
pub(super) fn after_all(store: &Store, started: f64) -> f64 {
    let ids = store.run_ids();
    let newest = ids.iter().rev().filter(|id| !store.is_imported(id)).find_map(|id| run_time(id));
    newest.map_or(started, |newest| if newest < started { started } else { newest + 2.0 / 65_536.0 })
}

pub(super) fn run_id(started: f64) -> String {
    let moment = chrono::DateTime::from_timestamp(started as i64, 0).unwrap_or_default().format("%Y%m%d-%H%M%S");
    // Ids also sort within a second. The random number separates ids of the same moment: two containers can have the
    // same process id.
    let (fraction, random) = ((started.fract() * 65_536.0) as u32, rand::random::<u16>());
    format!("{moment}-{fraction:04x}{random:04x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ids_are_dates() {
        assert!(run_id(1_795_180_000.0).starts_with("20261120-"));
        assert!(run_id(1_795_180_000.25) < run_id(1_795_180_000.5));
        assert_eq!(run_time(&run_id(1_795_180_000.25)), Some(1_795_180_000.25));
    }

    #[test]
    fn ids_of_one_moment_differ_in_one_process_too() {
        let ids: std::collections::BTreeSet<String> = (0..16).map(|_| run_id(1_795_180_000.25)).collect();
        assert!(ids.len() > 1, "{ids:?}");
    }

    #[test]
    fn imported_runs_do_not_shift_later_ones() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let run = |id: &str| {
            let folder = store.root().join("runs").join(id);
            std::fs::create_dir_all(&folder).unwrap();
            folder
        };
        let mark = run("20991120-131502-00000000").join("imported");
        std::fs::write(&mark, "").unwrap();
        run("20261120-131502-00000000");
        let (now, after) = (1_795_190_000.0, |now: f64| after_all(&store, now) - now);
        assert!(after(now) < 1.0);
        std::fs::remove_file(mark).unwrap();
        assert!(after(now) > 1e9);
    }
}
