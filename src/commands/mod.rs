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
mod selection;
mod serve;
mod session;
mod show;
mod status;
mod trace;
mod validate;
mod why;
mod worker;

use self::place::Place;
pub(crate) use self::session::Session;
use crate::args::{Args, Command};
use crate::display::Terminal;
use crate::exit::Failure;

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
