//! One file per subcommand.

mod artifact;
mod attest;
mod audit;
mod diff;
mod doctor;
mod export;
mod gc;
mod graph;
mod import;
mod kinds;
mod logs;
mod ops;
mod pin;
mod place;
mod plan;
mod run;
mod runs;
mod schedule;
mod schema;
mod serve;
mod show;
mod status;
mod trace;
mod validate;
mod why;
mod worker;

use std::path::{Path, PathBuf};

use searchmill_engine::plan::{Plan, check_store};
use searchmill_engine::store::Store;

use self::place::Place;
use crate::args::{Args, Command};
use crate::display::Terminal;
use crate::exit::Failure;
use crate::pipeline;

/// What every command may need.
pub(crate) struct Session<'a> {
    pub(crate) terminal: &'a Terminal,
    pub(crate) directory: PathBuf,
    store: Place,
}

impl Session<'_> {
    /// The store, made if it is not there: for commands that write to it.
    pub(crate) fn store(&self) -> Result<Store, Failure> {
        Ok(match &self.store {
            Place::Folder(folder) => Store::open(folder)?,
            Place::Shared { url, cache } => Store::open_shared(url, cache)?,
        })
    }

    /// The store as it is, for commands that only read. Where there is none, that is said, and it is empty.
    pub(crate) fn store_if_any(&self) -> Result<Store, Failure> {
        let store = self.look()?;
        if !store.exists() {
            self.terminal.note(&self.no_store());
        }
        Ok(store)
    }

    /// The store as it is, for commands that make no sense without one.
    pub(crate) fn existing_store(&self) -> Result<Store, Failure> {
        let store = self.look()?;
        if store.exists() {
            // Whoever asks about the store asks about all of it.
            store.fetch_records()?;
            return Ok(store);
        }
        let help = "`searchmill run FILE` makes it; --store names another one, -C another folder";
        Err(Failure::usage(self.no_store()).with_help(help))
    }

    fn look(&self) -> Result<Store, Failure> {
        Ok(match &self.store {
            Place::Folder(folder) => Store::look(folder)?,
            Place::Shared { url, cache } => Store::look_shared(url, cache)?,
        })
    }

    /// The store as it is shown to people.
    fn shown_store(&self) -> String {
        match &self.store {
            Place::Folder(folder) => folder.strip_prefix(&self.directory).unwrap_or(folder).display().to_string(),
            Place::Shared { url, .. } => url.clone(),
        }
    }

    /// Refuses a plan that writes into the store.
    pub(crate) fn check_destinations(&self, plan: &Plan) -> Result<(), Failure> {
        let roots = match &self.store {
            Place::Folder(folder) => vec![folder.as_path()],
            Place::Shared { url, cache } => vec![Path::new(url), cache.as_path()],
        };
        let found: Vec<_> = roots.into_iter().flat_map(|root| check_store(plan, root, &self.directory)).collect();
        if found.is_empty() { Ok(()) } else { Err(Failure::Pipeline(found, Box::new(pipeline::texts(plan)))) }
    }

    fn no_store(&self) -> String {
        format!("there is no store at {} yet", self.shown_store())
    }
}

pub(crate) fn dispatch(args: Args, terminal: &Terminal) -> Result<u8, Failure> {
    if let Some(directory) = &args.directory {
        std::env::set_current_dir(directory)
            .map_err(|error| Failure::usage(format!("cannot work in {}: {error}", directory.display())))?;
    }
    let directory = std::env::current_dir()?;
    let store = Place::new(&args.store, args.store_cache.as_deref(), &directory)?;
    let session = Session { terminal, directory, store };
    match args.command {
        Command::Run(args) => run::run(&session, args),
        Command::Plan(args) => plan::plan(&session, &args),
        Command::Validate(args) => Ok(validate::validate(&session, &args)),
        Command::Why(args) => why::why(&session, &args),
        Command::Status(args) => status::status(&session, &args),
        Command::Runs(args) => runs::runs(&session, &args),
        Command::Schedule(args) => schedule::schedule(&session, args),
        Command::Serve(args) => serve::serve(&session, &args),
        Command::Show(args) => show::show(&session, &args),
        Command::Ops(args) => ops::ops(&session, &args),
        Command::Kinds(args) => kinds::kinds(&session, &args),
        Command::Schema => Ok(schema::schema(&session)),
        Command::Graph(args) => graph::graph(&session, &args),
        Command::Logs(args) => logs::logs(&session, &args),
        Command::Trace(args) => trace::trace(&session, &args),
        Command::Audit(args) => audit::audit(&session, &args),
        Command::Diff(args) => diff::diff(&session, &args),
        Command::Gc(args) => gc::gc(&session, &args),
        Command::Pin(args) => pin::pin(&session, &args),
        Command::Unpin(args) => pin::unpin(&session, &args),
        Command::Export(args) => export::export(&session, &args),
        Command::Import(args) => import::import(&session, &args),
        Command::Attest(args) => attest::attest(&session, &args),
        Command::Doctor => Ok(doctor::doctor(&session)),
        Command::Worker(args) => worker::worker(&args),
    }
}
