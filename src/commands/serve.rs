//! `serve`: serves a model over an OpenAI-compatible API.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use searchmill_engine::operator::InputArtifact;
use searchmill_engine::{Failure, Session};
use searchmill_models::device::{Compute, Precision};
use searchmill_models::inference::{Opening, TextModel};

use crate::args::{DtypeArg, ServeArgs, ServeModelArgs, ServeWhat};
use crate::display::Terminal;
use crate::exit::OK;
use crate::serve::door::Door;
use crate::serve::model::serve as answer;

pub(super) fn serve(terminal: &Terminal, session: &Session, args: &ServeArgs) -> Result<u8, Failure> {
    match &args.what {
        ServeWhat::Model(args) => model(terminal, session, args),
    }
}

fn model(terminal: &Terminal, session: &Session, args: &ServeModelArgs) -> Result<u8, Failure> {
    let listener = TcpListener::bind(args.listen)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|error| Failure::usage(format!("cannot listen on {}: {error}", args.listen)))?;
    let token = args.token.clone().filter(|token| !token.trim().is_empty()).map(|token| token.trim().to_owned());
    let door = Door::new(listener.local_addr()?, token).ok_or_else(|| {
        Failure::usage(format!("{} can be reached from other machines, and there is no token", args.listen))
            .with_help("set SEARCHMILL_TOKEN (requests carry it as `Authorization: Bearer …`), or listen on 127.0.0.1")
    })?;
    let folder = folder(session, &args.model)?;
    let adapter = args.adapter.as_deref().map(|adapter| self::folder(session, adapter)).transpose()?;
    let threads =
        args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let precision = args.dtype.precision();
    let compute = if args.gpu { Compute::on_gpu(precision)? } else { Compute::on_cpu(precision) };
    let device = if args.gpu || args.dtype != DtypeArg::F32 { format!(" ({})", compute.name()) } else { String::new() };
    let memory = args.memory_mib.map(|mib| mib << 20);
    let opening = Opening { rows: args.rows, context: args.context, threads, memory, compute };
    let model = TextModel::open(&folder, adapter.as_deref(), opening)?;
    let name = args.name.clone().unwrap_or_else(|| args.model.trim_end_matches('/').to_owned());
    let address = listener.local_addr()?;
    terminal.line(&format!("serving `{name}` at http://{address}/v1{device}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let until = async {
        super::run::wait().await;
    };
    runtime.block_on(answer(listener, model, name, args.max_tokens, door, until))?;
    Ok(OK)
}

impl DtypeArg {
    fn precision(self) -> Precision {
        match self {
            Self::F32 => Precision::F32,
            Self::Bf16 => Precision::Bf16,
        }
    }
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
    match session.input(what)? {
        InputArtifact::Tree(tree) => Ok(tree.path),
        InputArtifact::Rows(_) => Err(Failure::usage(format!("`{what}` is a table, not a model"))),
    }
}
