//! Names of runs: dates that sort as the runs began, whatever the clock says.

use crate::store::Store;

/// A moment that comes after all runs of the store: a clock that was set back does not make this run an old one.
pub(super) fn after_all(store: &Store, started: f64) -> f64 {
    let time = |id: &String| {
        let moment = chrono::NaiveDateTime::parse_from_str(id.get(..15)?, "%Y%m%d-%H%M%S").ok()?;
        let fraction = u32::from_str_radix(id.get(16..20)?, 16).ok()?;
        Some(moment.and_utc().timestamp() as f64 + f64::from(fraction) / 65_536.0)
    };
    let newest = store.run_ids().iter().rev().find_map(time);
    newest.map_or(started, |newest| if newest < started { started } else { newest + 2.0 / 65_536.0 })
}

pub(super) fn run_id(started: f64) -> String {
    let moment = chrono::DateTime::from_timestamp(started as i64, 0).unwrap_or_default().format("%Y%m%d-%H%M%S");
    // Ids sort by time within the second too; the process keeps ids of the same moment apart.
    let (fraction, process) = ((started.fract() * 65_536.0) as u32, std::process::id() & 0xffff);
    format!("{moment}-{fraction:04x}{process:04x}")
}

#[cfg(test)]
mod tests {
    use super::run_id;

    #[test]
    fn run_ids_are_dates() {
        assert!(run_id(1_795_180_000.0).starts_with("20261120-"));
        assert!(run_id(1_795_180_000.25) < run_id(1_795_180_000.5));
    }
}
