//! `schedule`: runs the daemon, and controls it.

use std::path::{Path, PathBuf};

use searchmill_engine::schedule::State;
use searchmill_engine::{Cadence, Failure, Overrides, Schedules, Session, Switch};
use serde_json::json;

use crate::args::{ScheduleArgs, ScheduleNextArgs, ScheduleVerb};
use crate::display::Terminal;
use crate::exit::OK;
use crate::schedule::{Scheduled, Settings, now, schedule_json, serve};

pub(super) fn schedule(terminal: &Terminal, session: &Session, args: ScheduleArgs) -> Result<u8, Failure> {
    match &args.verb {
        None => daemon(terminal, session, args),
        Some(ScheduleVerb::List) => list(terminal, session),
        Some(ScheduleVerb::Next(args)) => next(terminal, session, args),
        Some(ScheduleVerb::Pause(args)) => switch(terminal, session, &args.names, true),
        Some(ScheduleVerb::Resume(args)) => switch(terminal, session, &args.names, false),
        Some(ScheduleVerb::Trigger(args)) => trigger(terminal, session, &args.names),
    }
}

fn daemon(terminal: &Terminal, session: &Session, args: ScheduleArgs) -> Result<u8, Failure> {
    let ScheduleArgs { files, set, params, listen, .. } = args;
    let overrides = Overrides { set, params_files: params };
    let mut all: Vec<Scheduled> = Vec::new();
    for given in &files {
        let files = if given.is_dir() { in_folder(given)? } else { vec![given.clone()] };
        let found = files.iter().map(|file| scheduled(session, file, &overrides)).collect::<Result<Vec<_>, _>>()?;
        for new in found {
            if let Some(known) = all.iter().find(|known| known.name == new.name) {
                let (one, other) = (known.file.display(), new.file.display());
                let failure = Failure::usage(format!("{one} and {other} are both called `{}`", new.name));
                return Err(failure.with_help("change the `name:` of one of them"));
            }
            all.push(new);
        }
    }
    let (directory, schedules) = (session.directory().to_owned(), session.store().schedules()?);
    let Overrides { set, params_files: params } = overrides.clone();
    let read = Box::new(|file: &Path| scheduled(session, file, &overrides));
    serve(Settings { directory, schedules, set, params, listen, read }, all, terminal)?;
    Ok(OK)
}

/// Checks the pipeline in a file and returns its schedule.
fn scheduled(session: &Session, file: &Path, overrides: &Overrides) -> Result<Scheduled, Failure> {
    let plan = session.check(file, overrides)?.plan;
    let name = plan.name.clone();
    let Some(schedule) = plan.schedule.clone() else {
        let failure = Failure::usage(format!("{} has no `schedule:`", file.display()));
        return Err(failure.with_help("write `schedule: {cron: \"0 3 * * *\", timezone: Europe/Berlin}`"));
    };
    Ok(Scheduled { name, file: file.to_owned(), schedule })
}

/// Returns the files in a folder that have a schedule.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(folder)?.flatten() {
        let file = entry.path();
        let is_yaml = file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        // Read by line first: a file of another kind in the folder is no error.
        if is_yaml && file.is_file() && has_schedule(&file) {
            files.push(file);
        }
    }
    // A folder has no order: the daemon serves its schedules in the same one each time.
    files.sort();
    if files.is_empty() {
        return Err(Failure::usage(format!("no pipeline in {} has a `schedule:`", folder.display())));
    }
    Ok(files)
}

fn has_schedule(file: &Path) -> bool {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().any(|line| line.starts_with("schedule:") || line.starts_with("\"schedule\":"))
}

/// A schedule known from the store, from a file, or both.
struct Known {
    name: String,
    scheduled: Option<Scheduled>,
    state: Option<State>,
}

impl Known {
    /// Its cadence: from the file, otherwise as the last daemon read it.
    fn cadence(&self) -> Option<Cadence> {
        if let Some(scheduled) = &self.scheduled {
            return Some(scheduled.schedule.cadence.clone());
        }
        let state = self.state.as_ref()?;
        Cadence::recall(&state.cron, &state.timezone)
    }
}

fn known(session: &Session, schedules: &Schedules, names: &[String]) -> Result<Vec<Known>, Failure> {
    let stored = schedules.names();
    let mut found = Vec::with_capacity(names.len());
    for given in names {
        if stored.contains(given) {
            found.push(Known { name: given.clone(), scheduled: None, state: schedules.state(given) });
            continue;
        }
        let file = Path::new(given);
        if !file.is_file() {
            return Err(unknown(given, &stored));
        }
        let scheduled = scheduled(session, file, &Overrides::default())?;
        let name = scheduled.name.clone();
        found.push(Known { state: schedules.state(&name), scheduled: Some(scheduled), name });
    }
    Ok(found)
}

fn unknown(given: &str, stored: &[String]) -> Failure {
    let failure = Failure::usage(format!("there is no schedule and no file `{given}`"));
    if stored.is_empty() {
        return failure.with_help("no daemon has served this store yet: `searchmill schedule FILE`");
    }
    failure.with_help(format!("schedules: {}", stored.join(", ")))
}

fn list(terminal: &Terminal, session: &Session) -> Result<u8, Failure> {
    let schedules = session.store().schedules()?;
    let mut rows = Vec::new();
    for name in schedules.names() {
        if terminal.is_json() {
            if let Some(schedule) = schedule_json(&schedules, &name) {
                terminal.json(&schedule);
            }
            continue;
        }
        let Some(state) = schedules.state(&name) else { continue };
        let (served, switch) = (schedules.is_served(&name), schedules.switch(&name));
        let cadence = Cadence::recall(&state.cron, &state.timezone);
        let next = cadence.as_ref().and_then(|cadence| Some(cadence.local(cadence.after(now())?))).unwrap_or_default();
        let last = match (state.ended.last(), &cadence) {
            (Some(last), Some(cadence)) => format!("{} {}", last.outcome.name(), cadence.local(last.ended)),
            (Some(last), None) => format!("{} ", last.outcome.name()),
            (None, _) => String::new(),
        };
        rows.push(vec![name, mood(&state, served, &switch), next, last, state.cron, state.file]);
    }
    if !terminal.is_json() {
        terminal.table(&["schedule", "now", "next tick", "last run", "cron", "file"], &rows);
    }
    Ok(OK)
}

fn mood(state: &State, served: bool, switch: &Switch) -> String {
    let mut words = Vec::new();
    if !served {
        words.push("no daemon".to_owned());
    }
    if switch.paused {
        words.push("paused".to_owned());
    }
    if served && !state.running.is_empty() {
        words.push(format!("running {}", state.running.len()));
    }
    if !state.waiting.is_empty() {
        words.push(format!("{} waiting", state.waiting.len()));
    }
    if words.is_empty() { "idle".to_owned() } else { words.join(", ") }
}

fn next(terminal: &Terminal, session: &Session, args: &ScheduleNextArgs) -> Result<u8, Failure> {
    let schedules = session.store().schedules()?;
    let names = if args.names.is_empty() { schedules.names() } else { args.names.clone() };
    let mut rows = Vec::new();
    for known in known(session, &schedules, &names)? {
        let Some(cadence) = known.cadence() else { continue };
        let ticks = std::iter::successors(cadence.after(now()), |tick| cadence.after(*tick));
        for tick in ticks.take(args.count) {
            if terminal.is_json() {
                let local = cadence.local(tick);
                terminal.json(&json!({"name": known.name, "tick": tick, "local": local}));
            }
            rows.push(vec![known.name.clone(), tick.format("%Y-%m-%dT%H:%M:%SZ").to_string(), cadence.local(tick)]);
        }
    }
    if !terminal.is_json() {
        terminal.table(&["schedule", "tick (UTC)", "local time"], &rows);
    }
    Ok(OK)
}

fn switch(terminal: &Terminal, session: &Session, names: &[String], paused: bool) -> Result<u8, Failure> {
    let schedules = session.store().schedules()?;
    for known in known(session, &schedules, names)? {
        let was = schedules.switch(&known.name);
        // A second `resume` would move the date from which missed ticks count.
        if was.paused != paused {
            schedules.set_switch(&known.name, &Switch { paused, since: Some(now()) })?;
        }
        terminal.note(&format!("{} is {}", known.name, if paused { "paused" } else { "not paused" }));
    }
    Ok(OK)
}

fn trigger(terminal: &Terminal, session: &Session, names: &[String]) -> Result<u8, Failure> {
    let schedules = session.store().schedules()?;
    let known = known(session, &schedules, names)?;
    for known in &known {
        // All are checked first: if one has no daemon, no run is requested at all.
        if !schedules.is_served(&known.name) {
            let file = known.state.as_ref().map(|state| state.file.clone());
            let file = file.or_else(|| known.scheduled.as_ref().map(|scheduled| scheduled.file.display().to_string()));
            let failure = Failure::usage(format!("no daemon serves `{}`", known.name));
            return Err(failure.with_help(format!("run it by hand: `searchmill run {}`", file.unwrap_or_default())));
        }
    }
    for known in &known {
        schedules.ask_for_run(&known.name, now())?;
        terminal.note(&format!("{}: run requested", known.name));
    }
    Ok(OK)
}
