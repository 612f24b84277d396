//! `audit`: verifies that the store matches its records, and that results can be recomputed.

use searchmill_engine::{AuditOptions, Failure, Session};

use super::show::run_chosen;
use super::target;
use crate::args::AuditArgs;
use crate::display::{Terminal, audit as page};
use crate::exit::{FAILED, NOT_CHECKED, OK};

pub(super) fn audit(terminal: &Terminal, session: &Session, args: &AuditArgs) -> Result<u8, Failure> {
    let run = run_chosen(session, args.run.as_deref(), args.file.as_deref())?;
    let &AuditArgs { replay, rollouts, sample, seed, allow_programs, strict, .. } = args;
    // Before the audit, which may take an hour.
    let file = args.report.as_ref().map(|file| target::path_of(session, file)).transpose()?;
    let options = AuditOptions { run, replay, rollouts, sample, seed, allow_programs, strict };
    let notes = terminal.clone();
    let audit = session.lineage().audit(&args.what, &options, move |node: &str| {
        notes.note(&format!("checking {node}"));
    })?;
    // Its error is returned at the end: the report is written and printed in any case.
    let signature = match (&args.signature, &args.public_key) {
        (Some(file), Some(key)) => super::attest::verify(terminal, session, file, key),
        _ => Ok(OK),
    };
    let report = &audit.report;
    let page = page::Page { target: audit.target.clone(), seed: audit.seed, report };
    if let Some(path) = file {
        let is_html = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("html"));
        let text = if is_html { page.html() } else { page.markdown() };
        target::replace(&path, |out| out.write_all(text.as_bytes()))?;
    }
    terminal.tell(&page.json(), page.text().trim_end());
    Ok(match signature? {
        _ if report.differences() > 0 => FAILED,
        OK if report.unchecked.is_empty() => OK,
        OK if strict => FAILED,
        OK => NOT_CHECKED,
        failed => failed,
    })
}
