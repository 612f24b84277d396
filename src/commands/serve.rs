//! `serve`: serves a model over an OpenAI-compatible API, or search indexes with the APIs of trainers (`environment`).

mod environment;

use std::path::{Path, PathBuf};

use searchmill_engine::operator::InputArtifact;
use searchmill_engine::{Failure, Machine, Session};
use searchmill_models::device::{Compute, Precision};
use searchmill_models::inference::{Opening, TextModel};

use super::listen::{entrance, stopped};
use crate::args::{DtypeArg, ServeArgs, ServeModelArgs, ServeWhat};
use crate::display::Terminal;
use crate::exit::OK;
use crate::serve::model::serve as answer;

pub(super) fn serve(terminal: &Terminal, session: &Session, args: &ServeArgs) -> Result<u8, Failure> {
    match &args.what {
        ServeWhat::Model(args) => model(terminal, session, args),
        ServeWhat::Env(args) => environment::serve(terminal, session, args),
    }
}

fn model(terminal: &Terminal, session: &Session, args: &ServeModelArgs) -> Result<u8, Failure> {
    // First: an address in use is reported before a model is loaded.
    let (listener, door) = entrance(&args.entrance)?;
    let folder = folder(session, &args.model)?;
    let adapter = args.adapter.as_deref().map(|adapter| self::folder(session, adapter)).transpose()?;
    let threads = args.threads.unwrap_or_else(|| Machine::detect().threads);
    let precision = match args.dtype {
        DtypeArg::F32 => Precision::F32,
        DtypeArg::Bf16 => Precision::Bf16,
    };
    let compute = if args.gpu { Compute::on_gpu(precision)? } else { Compute::on_cpu(precision) };
    let device = if args.gpu || args.dtype != DtypeArg::F32 { format!(" ({})", compute.name()) } else { String::new() };
    let memory = args.memory_mib.map(|mib| mib << 20);
    let opening = Opening { rows: args.rows, context: args.context, threads, memory, compute };
    let model = TextModel::open(&folder, adapter.as_deref(), opening)?;
    let name = args.name.clone().unwrap_or_else(|| args.model.trim_end_matches('/').to_owned());
    let address = listener.local_addr()?;
    terminal.line(&format!("serving `{name}` at http://{address}/v1{device}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(answer(listener, model, name, args.max_tokens, door, stopped()))?;
    Ok(OK)
}

/// Returns a folder or `.gguf` file as given, or the folder of an artifact in the store.
fn folder(session: &Session, what: &str) -> Result<PathBuf, Failure> {
    let path = session.directory().join(what);
    let is_gguf = path.is_file() && path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf"));
    if path.is_dir() || is_gguf {
        return Ok(path);
    }
    if Path::new(what).components().count() > 1 {
        return Err(Failure::usage(format!("there is no folder or file {what}")));
    }
    match session.store().input(what)? {
        InputArtifact::Tree(tree) => Ok(tree.path),
        InputArtifact::Rows(_) => Err(Failure::usage(format!("`{what}` is a table, not a model"))),
    }
}
