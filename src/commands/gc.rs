//! `gc`: lists or removes results that are no longer needed.

use std::collections::BTreeMap;
use std::time::Duration;

use searchmill_engine::{Failure, Garbage, KeepPolicy, Session, Swept, unix_time};
use serde_json::json;

use crate::args::GcArgs;
use crate::display::{self, Terminal};
use crate::exit::OK;

/// Default minimum age: younger results are kept.
const DEFAULT_AGE: Duration = Duration::from_hours(24);

pub(super) fn gc(terminal: &Terminal, session: &Session, args: &GcArgs) -> Result<u8, Failure> {
    let age = args.older_than.unwrap_or(DEFAULT_AGE);
    let policy =
        KeepPolicy { runs: args.keep_runs, age, memo: args.memo, forget_runs: args.forget_runs, release: args.release };
    let swept = if args.yes {
        session.store().collect(&policy)?
    } else {
        Swept { garbage: session.store().garbage(&policy)?, freed: 0 }
    };
    if terminal.is_json() {
        print_json(terminal, &swept.garbage, args.yes, swept.freed);
    } else {
        print(terminal, &swept.garbage, args.yes, swept.freed);
    }
    Ok(OK)
}

fn print_json(terminal: &Terminal, garbage: &Garbage, removed: bool, freed: u64) {
    for result in &garbage.results {
        terminal.json(&json!({"result": result.key, "name": result.name, "used": result.used, "bytes": result.bytes}));
    }
    for (id, bytes) in &garbage.artifacts {
        terminal.json(&json!({"artifact": id, "bytes": bytes}));
    }
    for (base, bytes) in &garbage.memos {
        terminal.json(&json!({"memo": base, "bytes": bytes}));
    }
    for middle in &garbage.released {
        let name = format!("{}/{}", middle.pipeline, middle.node);
        terminal.json(&json!({"released": middle.artifact, "name": name, "bytes": middle.bytes}));
    }
    for (run, bytes) in &garbage.runs {
        terminal.json(&json!({"run": run, "bytes": bytes}));
    }
    terminal.json(&json!({
        "removed": removed, "in_use": garbage.in_use, "shared": garbage.shared, "bytes": garbage.bytes(),
        "freed": freed, "waiting_artifacts": garbage.waiting.0, "waiting_bytes": garbage.waiting.1,
        "results": garbage.results.len(), "artifacts": garbage.artifacts.len(), "memos": garbage.memos.len(),
        "runs": garbage.runs.len(), "released": garbage.released.len(), "kept_results": garbage.kept_results, "kept_bytes": garbage.kept_bytes,
        "kept_memos": garbage.kept_memos.0, "kept_memo_bytes": garbage.kept_memos.1,
    }));
}

fn print(terminal: &Terminal, garbage: &Garbage, removed: bool, freed: u64) {
    let now = unix_time();
    let mut rows: Vec<Vec<String>> = Vec::new();
    for result in &garbage.results {
        let name = if result.name.is_empty() { "–".to_owned() } else { result.name.clone() };
        // Another machine's clock may be ahead of this one.
        let age = format!("{} ago", display::duration((now - result.used).max(0.0)));
        rows.push(vec![name, result.key.0.short(), age, display::bytes(result.bytes)]);
    }
    for (base, bytes) in &garbage.memos {
        rows.push(vec!["cached rows".to_owned(), base.short(), String::new(), display::bytes(*bytes)]);
    }
    for (run, bytes) in &garbage.runs {
        rows.push(vec!["run record".to_owned(), run.clone(), String::new(), display::bytes(*bytes)]);
    }
    // One line for all rounds of a node.
    let mut groups: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for middle in &garbage.released {
        let base = middle.node.split('@').next().unwrap_or_default();
        let group = groups.entry(format!("{}/{base}", middle.pipeline)).or_default();
        *group = (group.0 + 1, group.1 + middle.bytes);
    }
    for (name, (count, bytes)) in groups {
        let what = "middle rounds: released".to_owned();
        rows.push(vec![name, format!("×{count}"), what, display::bytes(bytes)]);
    }
    if !rows.is_empty() {
        terminal.table(&["what", "key", "last used", "size"], &rows);
    }
    let word = if removed { "removed" } else { "would remove" };
    let released = garbage.released.iter().map(|middle| middle.bytes).sum();
    let bytes = display::bytes(garbage.bytes().saturating_sub(released));
    let (results, artifacts) = (garbage.results.len(), garbage.artifacts.len());
    let kept = format!("{} results and {} are kept", garbage.kept_results, display::bytes(garbage.kept_bytes));
    let line = format!("{word} {results} results and {artifacts} artifacts ({bytes}); {kept}");
    terminal.line(&line);
    if !garbage.released.is_empty() {
        let (count, bytes) = (garbage.released.len(), display::bytes(released));
        let word = if removed { "released" } else { "would release" };
        terminal.line(&format!("{word} {count} folders of middle rounds ({bytes}); their results stay known"));
    }
    let (memos, bytes) = garbage.kept_memos;
    if memos > 0 {
        let word = if memos == 1 { "memo" } else { "memos" };
        let how =
            if garbage.memos.is_empty() { "; `--memo --older-than AGE` removes what no kept result used" } else { "" };
        terminal.line(&format!("{} of rows that were paid for stay in {memos} {word}{how}", display::bytes(bytes)));
    }
    if garbage.in_use {
        let line = "the store is in use: results are removed now, their files by the next `gc` while the store is idle";
        terminal.note(line);
    }
    if garbage.shared && garbage.waiting.0 > 0 {
        let (count, bytes) = garbage.waiting;
        let bytes = display::bytes(bytes);
        terminal.note(&format!("{count} unreferenced artifacts ({bytes}) are too recent to remove"));
    }
    if garbage.shared {
        terminal.note("nothing younger than ten minutes is removed from a shared store, regardless of --older-than");
    }
    if garbage.shared && !garbage.results.is_empty() {
        let line = "other machines may be about to read files of these results: a later `gc` removes them, once the \
                    same time has passed again";
        terminal.note(line);
    }
    if removed {
        terminal.note(&format!("{} freed", display::bytes(freed)));
    } else if !rows.is_empty() || !garbage.artifacts.is_empty() {
        terminal.note("nothing was removed; use --yes to remove the results");
    }
}
