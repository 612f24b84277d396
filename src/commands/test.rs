//! `test`: runs the tests of a pipeline.

use searchmill_engine::{Failure, NodeId, Overrides, Session, SourceMap, TestCase, Verdict};

use crate::args::TestArgs;
use crate::display::Terminal;
use crate::display::pipeline_test::{self, Trial};
use crate::exit::{FAILED, OK};
use crate::pipeline_test::Player;

pub(super) fn test(terminal: &Terminal, session: &Session, args: &TestArgs) -> Result<u8, Failure> {
    let overrides = Overrides { set: args.set.clone(), params_files: args.params.clone() };
    let checked = session.check_for_tests(&args.file, &overrides)?;
    let tests = checked.plan.tests.clone();
    let file = args.file.display();
    if tests.is_empty() {
        let failure = Failure::usage(format!("{file} has no `tests:`"));
        return Err(failure.with_help("see docs/how-to/test-a-pipeline.md"));
    }
    let chosen: Vec<&TestCase> = match &args.name {
        None => tests.iter().collect(),
        Some(name) => tests.iter().filter(|test| test.name == *name).collect(),
    };
    if chosen.is_empty() {
        let names: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
        let name = args.name.as_deref().unwrap_or_default();
        let failure = Failure::usage(format!("{file} has no test `{name}`"));
        return Err(failure.with_help(searchmill_engine::suggest(name, &names, "tests")));
    }
    let mut failed = 0;
    for test in &chosen {
        let trial = one(session, args, &overrides, test, &checked.sources)?;
        failed += usize::from(!trial.passed());
        pipeline_test::show(terminal, &trial);
    }
    pipeline_test::balance(terminal, chosen.len(), failed);
    Ok(if failed > 0 { FAILED } else { OK })
}

/// Runs one test.
fn one(
    session: &Session,
    args: &TestArgs,
    overrides: &Overrides,
    test: &TestCase,
    read: &SourceMap,
) -> Result<Trial, Failure> {
    let test = session.check_test(&args.file, overrides, test, read)?;
    let name = test.case().name.clone();
    let player = Player::start(test.case().model.clone())?;
    let verdict = match session.try_out(test, &player.base_url()) {
        Ok(verdict) => verdict,
        // The test does not fit the pipeline; the others may.
        Err(Failure::Usage { message, help }) => {
            let help = help.map_or_else(String::new, |help| format!(" ({help})"));
            Verdict { failures: vec![(NodeId::default(), format!("{message}{help}"))], ..Verdict::default() }
        }
        Err(failure) => return Err(failure),
    };
    Ok(Trial { name, verdict, refused: player.refused(), unused: player.unused() })
}
