//! `init`: writes a first pipeline for files of the user.

mod look;
mod text;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use searchmill_engine::{Failure, Session};
use serde_json::json;

use self::text::{Documents, Model, Plan};
use super::target::unwritable;
use crate::args::{Goal, InitArgs};
use crate::display::Terminal;
use crate::exit::OK;

/// File of the schema that editors read, beside the pipeline.
const SCHEMA: &str = "pipeline.schema.json";
/// The teacher that needs no model.
const TEACHER: &str = "evidence";

pub(super) fn init(terminal: &Terminal, session: &Session, args: &InitArgs) -> Result<u8, Failure> {
    let directory = session.directory();
    let file = directory.join(&args.output);
    // Before the questions: otherwise the answers would be lost.
    if file.exists() {
        let failure = Failure::usage(format!("{} is there already", args.output.display()));
        return Err(failure.with_help("name another file: `--output FILE`"));
    }
    let plan = plan(terminal, args, directory)?;
    let text = text::pipeline(&plan);
    write_new(&file, text.as_bytes())?;
    let schema = write_schema(session, &file)?;
    let shown = args.output.display().to_string();
    if terminal.is_json() {
        terminal.json(&json!({"file": shown, "schema": schema.display().to_string()}));
        return Ok(OK);
    }
    terminal.line(&format!("wrote {shown}, and {SCHEMA} for editors"));
    if let Some(model) = &plan.model {
        terminal.line(&format!("its model: {} at {}", model.name, model.base_url));
    }
    terminal.line(&format!(
        "\nsearchmill plan {shown}             # what would run\nsearchmill run {shown} --limit 20   # a trial\nsearchmill ui                        # what it gave"
    ));
    Ok(OK)
}

/// Writes the schema beside a pipeline: the same for all pipelines of the folder, and generated, so a newer one replaces
/// it.
pub(super) fn write_schema(session: &Session, pipeline: &Path) -> Result<PathBuf, Failure> {
    let schema = pipeline.with_file_name(SCHEMA);
    // A link is replaced, not what it leads to.
    match std::fs::remove_file(&schema) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(unwritable(&schema, &error)),
        _ => {}
    }
    write_new(&schema, format!("{:#}\n", session.schema()).as_bytes())?;
    Ok(schema)
}

/// Collects what the pipeline is made of, from the options or by asking.
fn plan(terminal: &Terminal, args: &InitArgs, directory: &Path) -> Result<Plan, Failure> {
    let documents = args.documents.as_ref().or(args.documents_option.as_ref());
    let documents = given(terminal, documents, "Documents to search (a folder or a file)", "DOCUMENTS")?;
    let questions = given(terminal, args.questions.as_ref(), "Questions (a file)", "--questions FILE")?;
    let documents = if directory.join(&documents).is_dir() {
        Documents::Folder(documents)
    } else {
        Documents::File(look::documents(&documents, directory, args)?)
    };
    let questions = look::questions(&questions, directory, args)?;
    let goal = match args.goal {
        Some(goal) => goal,
        None if terminal.is_asking() => {
            let answer = ask(terminal, "Goal: evaluate, training-file or rl", Some("evaluate"))?;
            let goal = Goal::from_str(&answer, false);
            goal.map_err(|_| Failure::usage(format!("`{answer}` is none of evaluate, training-file, rl")))?
        }
        None => Goal::Evaluate,
    };
    let asked = "Model (its name at the server; `evidence`: none)";
    let help = "add `--model NAME`; questions with evidence can do without: `--model evidence`";
    let model = given(terminal, args.model.as_ref(), asked, "--model NAME");
    let model = model.map_err(|failure| failure.with_help(help))?;
    // A file that was not looked at, such as a URL, may have evidence.
    if model == TEACHER && questions.is_known && !questions.has_evidence {
        let failure =
            Failure::usage(format!("the questions of {} have no `evidence`, which the teacher needs", questions.path));
        return Err(failure.with_help("name a model: `--model NAME --base-url URL`"));
    }
    let model = (model != TEACHER).then(|| Model {
        name: model,
        base_url: args.base_url.clone(),
        is_remote: !["//127.", "//localhost", "//[::1]"].iter().any(|here| args.base_url.contains(here)),
    });
    let stem = args.output.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let folder = directory.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = if stem == "pipeline" { folder.unwrap_or(stem) } else { stem };
    // Other signs than those of a pipeline's name become `-`.
    let name = name.replace(|c: char| !c.is_alphanumeric() && !"_-.".contains(c), "-");
    let name = name.trim_matches(['-', '.']);
    let name = if name.is_empty() { "pipeline" } else { name }.to_owned();
    Ok(Plan { name, documents, questions, goal, model })
}

/// Returns what an option says, or asks for it.
fn given(terminal: &Terminal, option: Option<&String>, question: &str, name: &str) -> Result<String, Failure> {
    match option {
        Some(value) => Ok(value.clone()),
        None if terminal.is_asking() => ask(terminal, question, None),
        None => Err(Failure::usage(format!("{name} is missing")).with_help("see `searchmill init --help`")),
    }
}

/// Asks until something is answered; an empty answer is the default.
fn ask(terminal: &Terminal, question: &str, default: Option<&str>) -> Result<String, Failure> {
    loop {
        let shown = default.map_or_else(String::new, |default| format!(" [{default}]"));
        terminal.prompt(&format!("{question}{shown}: "));
        let mut line = String::new();
        // The input has ended: another question would never be answered.
        if std::io::stdin().read_line(&mut line)? == 0 {
            return Err(Failure::usage("the answers ended").with_help("see `searchmill init --help`"));
        }
        let answer = line.trim();
        if !answer.is_empty() {
            return Ok(answer.to_owned());
        }
        if let Some(default) = default {
            return Ok(default.to_owned());
        }
    }
}

/// Writes a file that must not exist, not even as a link.
pub(super) fn write_new(path: &Path, text: &[u8]) -> Result<(), Failure> {
    let created = std::fs::File::create_new(path).and_then(|mut file| file.write_all(text));
    created.map_err(|error| unwritable(path, &error))
}
