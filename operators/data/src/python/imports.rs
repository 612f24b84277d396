//! The modules that a function imports, as Python finds them, remembered with all that the answer depends on.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use searchmill_engine::operator::OperatorError;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::cache::{Cache, hash};
use super::captured::captured;
use super::environment::Interpreter;
use super::function::{PythonFunction, absolute};
use super::seen::{GRAIN, Seen};
use super::signature::{Signature, Wrong};

/// The script that finds the modules.
const SCRIPT: &str = concat!(include_str!("project.py"), include_str!("signature.py"), include_str!("imports.py"));
/// Environment variables that every function gets, beside those of all programs.
const PASSED: [&str; 2] = ["PATH", "HOME"];
/// Timeout of the script.
const PATIENCE: Duration = Duration::from_mins(1);
/// Questions to Python while files change.
const TRIES: u32 = 3;
/// Settings of managers whose `python3` is a script that chooses a version.
const CHOICES: [&str; 4] = [".python-version", ".tool-versions", "mise.toml", ".mise.toml"];
const OWN_CHOICES: [&str; 4] = [".pyenv/version", ".python-version", ".tool-versions", ".config/mise/config.toml"];

/// What Python says of the text of a function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) version: String,
    executable: PathBuf,
    /// The file and the modules of the project, in path order.
    pub(super) files: Vec<PathBuf>,
    /// Paths that would change the answer if they existed.
    absent: Vec<PathBuf>,
    /// Folders of installed packages: some of them extend the search path.
    site: Vec<PathBuf>,
    /// The functions and classes of the file, if it has none of the asked name.
    pub(super) lacking: Option<Vec<String>>,
    pub(super) syntax_error: Option<Wrong>,
    /// Installed packages, if no lock file pins those of a PEP 723 block.
    pub(super) packages: Vec<String>,
    /// What a function that is marked for `map` says of its columns.
    pub(super) signature: Option<Signature>,
    /// The operator of an installed package, if one was asked for.
    pub(super) entry: Option<Entry>,
    /// The words that start the interpreter.
    #[serde(default)]
    pub(super) words: Vec<String>,
}

/// An operator of an installed package.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// All that are installed.
    pub(super) names: Vec<String>,
    /// Why there is none.
    pub(super) wrong: Option<String>,
    pub(super) module: String,
    pub(super) function: String,
    /// `None` if there is none.
    pub(super) file: Option<PathBuf>,
    /// Its package, with a digest of the package's files unless they are sources by themselves.
    pub(super) identity: String,
    /// Files of the package in that digest.
    pub(super) files: Vec<PathBuf>,
    /// Folders of the package, and those in which packages are found.
    folders: Vec<PathBuf>,
}

/// The state of the answer.
pub(super) enum Looked {
    /// It is known.
    Found(Arc<Answer>),
    /// Something must be fetched first, for messages.
    Awaited(String),
    /// Python cannot be asked.
    Failed(OperatorError),
}

/// All that the answer is asked with.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
struct Question {
    words: Vec<String>,
    file: Option<PathBuf>,
    directory: PathBuf,
    function: String,
    packages: bool,
    /// Variables that change the search path.
    variables: Vec<(String, String)>,
    script: u64,
}

/// An answer with what it depends on.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Remembered {
    question: Question,
    seen: Seen,
    answer: Arc<Answer>,
}

static REMEMBERED: Mutex<BTreeMap<Question, Remembered>> = Mutex::new(BTreeMap::new());

/// Returns what starts the Python of a function.
pub(super) fn interpreter(function: &PythonFunction, directory: &Path) -> Interpreter {
    Interpreter::of(function.interpreter.as_deref(), function.path(directory).as_deref())
}

/// Returns what Python says of a function. Starts Python only if the answer is not known, or something that it depends on
/// has changed.
pub(super) fn look(function: &PythonFunction, directory: &Path) -> Looked {
    let directory = absolute(directory);
    let (words, packages) = match interpreter(function, &directory) {
        Interpreter::Words(words) => (words, false),
        Interpreter::Script(script) => match script.python() {
            Some(python) => (vec![python.to_string_lossy().into_owned()], !script.is_locked()),
            None => return Looked::Awaited(script.address()),
        },
    };
    let mut variables = Vec::new();
    for name in &function.environment {
        if name.starts_with("PYTHON")
            && let Ok(value) = std::env::var(name)
        {
            variables.push((name.clone(), value));
        }
    }
    let (file, name, script) = (function.path(&directory), function.function.clone(), hash(&SCRIPT));
    let question = Question { words, file, directory, function: name, packages, variables, script };
    let cache = Cache::of(&question);
    let mut known = REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner).get(&question).cloned();
    if !known.as_ref().is_some_and(|known| known.seen.holds()) {
        // Another process may have asked. The name of the file is a hash: two questions may share it.
        known = cache.read().filter(|known: &Remembered| known.question == question && known.seen.holds());
    }
    let remembered = match known {
        Some(known) => known,
        None => match ask(function, question, &cache) {
            Ok(remembered) => remembered,
            Err(error) => return Looked::Failed(error),
        },
    };
    let answer = Arc::clone(&remembered.answer);
    REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner).insert(remembered.question.clone(), remembered);
    Looked::Found(answer)
}

/// Asks Python, again if a file that matters has changed meanwhile.
fn ask(function: &PythonFunction, mut question: Question, cache: &Cache) -> Result<Remembered, OperatorError> {
    let mut tries = 0;
    loop {
        let start = SystemTime::now();
        let answer = Arc::new(asked(function, &question)?);
        let seen = depends(&question, &answer);
        tries += 1;
        let still = seen.is_before(start) && !answer.absent.iter().any(|path| path.exists());
        let remembered = Remembered { question, seen, answer };
        if still {
            cache.write(&remembered);
        }
        // Time stamps may lie in the future, by the clock of another machine.
        if still || tries == TRIES {
            return Ok(remembered);
        }
        question = remembered.question;
        std::thread::sleep(2 * GRAIN);
    }
}

fn asked(function: &PythonFunction, question: &Question) -> Result<Answer, OperatorError> {
    let Question { words, file, directory, function: name, packages, .. } = question;
    let asked = json!({"file": file, "directory": directory, "function": name, "packages": packages});
    let mut command = words.clone();
    command.extend(["-c".to_owned(), SCRIPT.to_owned(), asked.to_string()]);
    let passed = PASSED.into_iter().chain(function.environment.iter().map(String::as_str));
    let found = captured(&command, passed, directory, PATIENCE, |_| ())?;
    let reason = if found.status.success() {
        match serde_json::from_slice::<Answer>(&found.stdout) {
            Ok(answer) => return Ok(Answer { words: words.clone(), ..answer }),
            Err(error) => format!(": {error}"),
        }
    } else {
        found.last_output
    };
    let message = format!("`{}` cannot list the imports of {}{reason}", words.join(" "), function.written());
    Err(OperatorError::machine(message).with_help("`interpreter` must start Python 3.9 or later"))
}

/// Returns the state of everything that an answer depends on.
fn depends(question: &Question, answer: &Answer) -> Seen {
    let mut paths = BTreeSet::from([answer.executable.clone()]);
    paths.extend(question.file.clone());
    if let Some(entry) = &answer.entry {
        paths.extend(entry.file.iter().chain(&entry.files).chain(&entry.folders).cloned());
    }
    paths.extend(answer.files.iter().chain(&answer.absent).chain(&answer.site).cloned());
    if let Some(word) = question.words.first()
        && let Some(program) = crate::program::located(word, &question.directory)
    {
        let mut start = [0; 2];
        let read = std::fs::File::open(&program).and_then(|mut file| file.read_exact(&mut start));
        // A script of a manager, which chooses the interpreter by these files.
        if read.is_ok() && start == *b"#!" {
            for folder in question.directory.ancestors() {
                paths.extend(CHOICES.map(|name| folder.join(name)));
            }
            if let Some(home) = std::env::home_dir() {
                paths.extend(OWN_CHOICES.map(|name| home.join(name)));
            }
        }
        paths.insert(program);
    }
    Seen::at(paths)
}
