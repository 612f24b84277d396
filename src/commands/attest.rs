//! `attest`: writes signed statements about artifacts and their provenance, creates keys, and verifies statements.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use searchmill_engine::lineage::attest::{AttestError, Comparison, PublicKey, SecretKey};
use searchmill_engine::{Failure, Session};
use serde_json::json;

use super::store::note_if_missing;
use super::target::{self, unwritable};
use crate::args::AttestArgs;
use crate::display::Terminal;
use crate::exit::{FAILED, OK};

pub(super) fn attest(terminal: &Terminal, session: &Session, args: &AttestArgs) -> Result<u8, Failure> {
    if let Some(file) = &args.new_key {
        return new_key(terminal, session, file);
    }
    if let (Some(file), Some(key)) = (&args.verify, &args.public_key) {
        return verify(terminal, session, file, key);
    }
    let (name, statement) =
        session.lineage().statement(args.what.as_deref().unwrap_or_default(), args.run.as_deref())?;
    let text = match &args.key {
        Some(path) => SecretKey::from_pem(&read(session, path)?).and_then(|key| key.sign(&statement)).map_err(wrong)?,
        None => serde_json::to_string_pretty(&statement).unwrap_or_default(),
    };
    let Some(output) = &args.output else {
        terminal.line(&text);
        return Ok(OK);
    };
    let path = target::path_of(session, output)?;
    target::replace(&path, |out| writeln!(out, "{text}"))?;
    let signed = if args.key.is_some() { "signed" } else { "not signed: use --key to sign" };
    let told = json!({"file": output, "signed": args.key.is_some(), "subjects": statement.subject.len()});
    terminal.tell(&told, &format!("{}: {} ({signed})", output.display(), name));
    Ok(OK)
}

fn wrong(error: AttestError) -> Failure {
    Failure::usage(error.to_string())
}

fn read(session: &Session, path: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(session.directory().join(path));
    text.map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))
}

fn new_key(terminal: &Terminal, session: &Session, file: &Path) -> Result<u8, Failure> {
    let path = target::path_of(session, file)?;
    let public_path = PathBuf::from(format!("{}.pub", path.display()));
    let key = SecretKey::generate().map_err(|error| Failure::Other(error.to_string()))?;
    let (secret, public) = (key.to_pem().map_err(wrong)?, key.public().to_pem().map_err(wrong)?);
    // Existing files are never overwritten: a lost key cannot be recovered.
    let mut public_file = File::create_new(&public_path).map_err(|error| unwritable(&public_path, &error))?;
    // Only its owner can read it.
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut secret_file = match options.open(&path) {
        Ok(secret_file) => secret_file,
        Err(error) => {
            std::fs::remove_file(&public_path)?;
            return Err(unwritable(file, &error));
        }
    };
    let written = secret_file.write_all(secret.as_bytes()).and_then(|()| public_file.write_all(public.as_bytes()));
    if let Err(error) = written {
        // Both are new: half a key is of no use, and would be in the way of the next attempt.
        std::fs::remove_file(&path)?;
        std::fs::remove_file(&public_path)?;
        return Err(unwritable(file, &error));
    }
    let id = key.public().id().map_err(wrong)?;
    let text = format!("{0}: private key, keep it secret; {0}.pub: public key (key {id})", file.display());
    terminal.tell(&json!({"key": file, "public_key": format!("{}.pub", file.display()), "id": id}), &text);
    Ok(OK)
}

/// Verifies a signed statement and compares it with the store.
pub(super) fn verify(terminal: &Terminal, session: &Session, file: &Path, key: &Path) -> Result<u8, Failure> {
    let public = PublicKey::from_pem(&read(session, key)?).map_err(wrong)?;
    let statement = match public.verify(read(session, file)?.as_bytes()) {
        Ok(statement) => statement,
        Err(error) => return Err(Failure::Other(format!("{}: {error}", file.display()))),
    };
    note_if_missing(terminal, session)?;
    let compared = session.lineage().compare(&statement)?;
    let different = compared.iter().any(|(_, comparison)| *comparison == Comparison::Different);
    let (mut subjects, mut rows) = (Vec::new(), Vec::new());
    for (name, comparison) in compared {
        subjects.push(json!({"name": name, "here": comparison}));
        rows.push(vec![name, word(comparison).to_owned()]);
    }
    if terminal.is_json() {
        let (key, predicate) = (public.id().map_err(wrong)?, statement.predicate);
        terminal.json(&json!({"signature": "valid", "key": key, "subjects": subjects, "predicate": predicate}));
    } else {
        terminal.line("the signature is right");
        terminal.table(&["subject", "in this store"], &rows);
    }
    Ok(if different { FAILED } else { OK })
}

fn word(comparison: Comparison) -> &'static str {
    match comparison {
        Comparison::Same => "the same",
        Comparison::Different => "different",
        Comparison::Missing => "not there",
    }
}
