//! `serve env`: opens the indexes, the questions and the rules of episodes, and serves them.

use std::sync::Arc;
use std::time::Duration;

use searchmill_agent::outside::RankingFunction;
use searchmill_engine::operator::{Context, ContextParts, TreeInput, http_client};
use searchmill_engine::{Failure, Machine, Session};
use searchmill_operators::environment::Environment;
use searchmill_retrieval::{Search, SearchSettings, memory_need};
use searchmill_schemas::Question;

use super::super::index::{index_tree, search_settings};
use crate::args::ServeEnvArgs;
use crate::commands::listen::{entrance, stopped};
use crate::display::Terminal;
use crate::exit::OK;
use crate::serve::env::{self, EpisodeLimits, Journal, Limits, Opened, Questions, Ranking, Served, Setup, World};

pub(super) fn serve(terminal: &Terminal, session: &Session, args: &ServeEnvArgs) -> Result<u8, Failure> {
    // An address in use is reported before a large index is read.
    let entrance = if args.stdio { None } else { Some(entrance(&args.entrance)?) };
    let settings = settings(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let bare = ContextParts::bare(session.directory(), runtime.handle(), http_client()?);
    let context = Context::new(ContextParts { threads: Machine::detect().threads, ..bare });
    let opener = Opener { session, args, settings, context };
    // Before the indexes: wrong rules or questions are reported without loading them.
    let world = opener.world()?;
    let mut journal = None;
    if let Some(file) = &args.journal {
        let opened = Journal::open(&session.directory().join(file));
        let shown = file.display();
        journal = Some(opened.map_err(|error| Failure::usage(format!("cannot write the journal {shown}: {error}")))?);
    }
    let ranking = opener.ranking()?;
    let &ServeEnvArgs { top_k, max_top_k, max_queries, max_documents, queue, .. } = args;
    let max_body = args.max_body_mib.saturating_mul(1 << 20);
    let limits = Limits { top_k, max_top_k, max_queries, max_documents, queue, max_body };
    let setup = Setup { opened: opener.open(&opener.trees()?)?, limits, world, journal, ranking };
    let Some((listener, mut door)) = entrance else {
        runtime.block_on(env::serve_lines(setup, |line| terminal.line(line), stopped()))?;
        return Ok(OK);
    };
    // The address is bound: a client that reads this line can connect, and is answered soon.
    terminal.line(&format!("serving `{}` at http://{}", args.indexes.join(" "), listener.local_addr()?));
    door.bytes = limits.max_body;
    runtime.block_on(env::serve(
        listener,
        setup,
        door,
        |present: &[&str]| opener.reopen(present).map_err(|failure| failure.to_string()),
        stopped(),
    ))?;
    Ok(OK)
}

/// Opens what the command line names.
struct Opener<'a> {
    session: &'a Session,
    args: &'a ServeEnvArgs,
    settings: SearchSettings,
    context: Context,
}

impl Opener<'_> {
    fn trees(&self) -> Result<Vec<TreeInput>, Failure> {
        self.args.indexes.iter().map(|index| index_tree(self.session, index)).collect()
    }

    /// Opens indexes, if they fit into memory.
    fn open(&self, trees: &[TreeInput]) -> Result<Opened, Failure> {
        let trees: Vec<&TreeInput> = trees.iter().collect();
        let need = memory_need(&trees)?;
        let room = match (self.args.memory_mib, Machine::detect().memory) {
            (Some(mib), _) => mib << 20,
            // Unknown on this system: the attempt will show.
            (None, 0) => u64::MAX,
            (None, free) => free,
        };
        if need > room {
            let (need, room) = (need.div_ceil(1 << 20), room >> 20);
            let help = "stop other programs, build a smaller index (a `factory` such as `SQ8`), or set `--memory-mib`";
            let message = format!("the indexes need about {need} MiB of memory, available are {room} MiB");
            return Err(Failure::usage(message).with_help(help));
        }
        let search = Search::open(&trees, &self.settings, &self.context)?;
        let mut indexes = Vec::with_capacity(trees.len());
        for ((name, tree), chunks) in self.args.indexes.iter().zip(trees).zip(search.sizes()) {
            indexes.push(Served { name: name.clone(), digest: tree.digest.clone(), chunks });
        }
        Ok(Opened { search, indexes })
    }

    /// Opens the indexes again, unless their digests are the present ones.
    fn reopen(&self, present: &[&str]) -> Result<Option<Opened>, Failure> {
        let trees = self.trees()?;
        if trees.iter().map(|tree| tree.digest.as_str()).eq(present.iter().copied()) {
            return Ok(None);
        }
        self.open(&trees).map(Some)
    }

    /// Opens the reranker, if there is one.
    fn ranking(&self) -> Result<Option<Ranking>, Failure> {
        let Some(name) = &self.args.rerank else { return Ok(None) };
        let function = Arc::new(RankingFunction::open(name, &self.context)?);
        Ok(Some(Ranking { function, pool: self.args.fusion.pool }))
    }

    /// Opens the environment of episodes, if an option asks for it.
    fn world(&self) -> Result<Option<World>, Failure> {
        let args = self.args;
        let asked = [args.episodes.is_some(), args.protocol.is_some(), args.reward.is_some(), args.questions.is_some()];
        if !asked.contains(&true) {
            return Ok(None);
        }
        if args.max_episodes == 0 || args.episode_idle == 0 {
            return Err(Failure::usage("`--max-episodes` and `--episode-idle` must be at least 1"));
        }
        let environment = self.environment()?;
        let questions = match &args.questions {
            Some(what) => Questions::new(self.session.rows(what)?.read_all::<Question>()?),
            None => Questions::default(),
        };
        let limits = EpisodeLimits { most: args.max_episodes, idle: Duration::from_secs(args.episode_idle) };
        match World::new(environment, questions, limits) {
            Ok(world) => Ok(Some(world)),
            Err(why) => {
                let help = "map columns to `question` and `golden_answers` in `read`; without `--reward`, questions are enough";
                let failure = Failure::usage(format!("no question can be played, for example: {why}"));
                Err(failure.with_help(help))
            }
        }
    }

    /// Opens the environment: the rules of the file, then those of the options.
    fn environment(&self) -> Result<Environment, Failure> {
        let file = self.args.episodes.as_deref();
        let file = file.map(|file| self.session.settings(file, &Environment::schema(), "serve env")).transpose()?;
        let mut rules = file.as_ref().and_then(|file| file.values.as_object()).cloned().unwrap_or_default();
        let options = [("protocol", &self.args.protocol), ("reward", &self.args.reward)];
        for (name, given) in options {
            let Some(text) = given else { continue };
            let value = serde_yaml::from_str(text)
                .map_err(|error| Failure::usage(format!("`--{name} {text}` is not valid YAML: {error}")))?;
            rules.insert(name.to_owned(), value);
        }
        Environment::open(rules, &self.context).map_err(|issue| {
            let name = issue.path.split('.').next().unwrap_or_default();
            // An option replaces the rule of the file: the error is not in the file then.
            let is_option = options.iter().any(|(option, given)| *option == name && given.is_some());
            if let Some(file) = file.filter(|_| !is_option) {
                return file.refuse(issue);
            }
            let error = Failure::usage(format!("rules of the episodes: `{}`: {}", issue.path, issue.message));
            match issue.help {
                Some(help) => error.with_help(help),
                None => error,
            }
        })
    }
}

/// Checks the options that concern the search.
fn settings(args: &ServeEnvArgs) -> Result<SearchSettings, Failure> {
    let numbers = [
        ("top-k", args.top_k.unwrap_or(1)),
        ("max-top-k", args.max_top_k),
        ("max-queries", args.max_queries),
        ("max-documents", args.max_documents),
    ];
    if let Some((name, _)) = numbers.iter().find(|(_, number)| *number == 0) {
        return Err(Failure::usage(format!("`--{name}` must be at least 1")));
    }
    if args.top_k.is_some_and(|top_k| top_k > args.max_top_k) {
        return Err(Failure::usage(format!("`--top-k` is above `--max-top-k` ({})", args.max_top_k)));
    }
    // Requests say how many documents they want.
    search_settings(&args.fusion, searchmill_retrieval::default_top_k())
}
