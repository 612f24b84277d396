//! Subcommands, one file each; `schema` is a line of `dispatch`.

mod attest;
mod audit;
mod bundle;
mod completions;
mod diff;
mod doctor;
mod export;
mod gc;
mod graph;
mod import;
mod index;
mod init;
mod kinds;
mod logs;
mod ops;
mod path;
mod pin;
mod pipeline;
mod plan;
mod quickstart;
mod run;
mod runs;
mod schedule;
mod search;
mod serve;
mod show;
mod status;
mod store;
mod target;
mod test;
mod trace;
mod ui;
mod validate;
mod why;
mod worker;
mod listen;

use searchmill_engine::{Failure, Registry, Session, StorePlace};

use crate::args::{Args, Command};
use crate::display::Terminal;
use crate::exit::OK;

pub(crate) fn dispatch(args: Args, terminal: &Terminal) -> Result<u8, Failure> {
    // First: all relative paths, that of the store too, start at `--directory`.
    if let Some(directory) = &args.directory {
        std::env::set_current_dir(directory).map_err(|error| {
            Failure::usage(format!("cannot use the working directory {}: {error}", directory.display()))
        })?;
    }
    let directory = std::env::current_dir()?;
    let place = StorePlace::new(&args.store, args.store_cache.as_deref(), &directory)?;
    let session = Session::new(
        place,
        directory,
        Registry::new(&searchmill_operators::all()).with_commands(searchmill_data::program::command_sources),
    );
    // The server of the page owns its session; all others look at this one.
    let session = match args.command {
        Command::Ui(args) => return ui::ui(terminal, session, &args),
        _ => &session,
    };
    match args.command {
        Command::Run(args) => run::run(terminal, session, args),
        Command::Plan(args) => plan::plan(terminal, session, &args),
        Command::Validate(args) => Ok(validate::validate(terminal, session, &args)),
        Command::Test(args) => test::test(terminal, session, &args),
        Command::Why(args) => why::why(terminal, session, &args),
        Command::Status(args) => status::status(terminal, session, &args),
        Command::Runs(args) => runs::runs(terminal, session, &args),
        Command::Schedule(args) => schedule::schedule(terminal, session, args),
        Command::Serve(args) => serve::serve(terminal, session, &args),
        Command::Init(args) => init::init(terminal, session, &args),
        Command::Quickstart(args) => quickstart::quickstart(terminal, session, args),
        Command::Search(args) => search::search(terminal, session, &args),
        Command::Show(args) => show::show(terminal, session, &args),
        Command::Path(args) => path::path(terminal, session, &args),
        Command::Ops(args) => ops::ops(terminal, session, &args),
        Command::Kinds(args) => kinds::kinds(terminal, &args),
        Command::Schema => {
            terminal.line(&serde_json::to_string_pretty(&session.schema()).unwrap_or_default());
            Ok(OK)
        }
        Command::Graph(args) => graph::graph(terminal, session, &args),
        Command::Logs(args) => logs::logs(terminal, session, &args),
        Command::Trace(args) => trace::trace(terminal, session, &args),
        Command::Audit(args) => audit::audit(terminal, session, &args),
        Command::Diff(args) => diff::diff(terminal, session, &args),
        Command::Gc(args) => gc::gc(terminal, session, &args),
        Command::Pin(args) => pin::pin(terminal, session, &args),
        Command::Unpin(args) => pin::unpin(terminal, session, &args),
        Command::Export(args) => export::export(terminal, session, &args),
        Command::Import(args) => import::import(terminal, session, &args),
        Command::Attest(args) => attest::attest(terminal, session, &args),
        Command::Completions(args) => Ok(completions::completions(terminal, &args)),
        Command::Doctor => Ok(doctor::doctor(terminal, session)),
        Command::Ui(_) => Ok(OK),
        Command::Worker(args) => worker::worker(session, &args),
    }
}
