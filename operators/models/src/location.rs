//! The location of a model: a folder, a `.gguf` file or a repository of the Hub. Both the model's identity and its files are
//! derived from this location only.

use std::path::{Path, PathBuf};

use searchmill_data::hub::{Hub, HubModel};
use searchmill_engine::operator::{Context, OperatorError, Source};

use super::files::on_path;
use super::gguf;

/// The revision of a repository unless another one is given.
pub(crate) fn main_branch() -> String {
    "main".to_owned()
}

/// Location of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelPlace {
    /// A local folder, as written.
    Folder(String),
    /// A local `.gguf` file, as written.
    Gguf(String),
    /// A repository of the Hub at a revision.
    Hub(HubModel),
}

/// Files that a kind of model needs.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Required files.
    pub files: &'static [&'static str],
    /// Whether all files of a local folder identify the model, not only the required ones.
    pub(crate) whole_folder: bool,
    /// Optional files next to a `.gguf` file, or in a folder that is not identified as a whole.
    pub beside: &'static [&'static str],
}

impl ModelPlace {
    /// Resolves a model's name: a `.gguf` file by its extension; a folder by its form (`./m`, `/m`, `a/b/c`, `m`) or because
    /// it exists; else a repository of the Hub (`org/name` at `revision`, or `hf://org/name@revision`).
    pub(crate) fn of(model: &str, revision: &str, directory: &Path) -> Self {
        // A folder that exists counts before a repository of the same name.
        let named = if HubModel::is_meant(model) {
            if model.contains('@') { model.to_owned() } else { format!("{model}@{revision}") }
        } else if gguf::is_meant(model) {
            return Self::Gguf(model.to_owned());
        } else if model.starts_with(['.', '/', '~'])
            || model.matches('/').count() != 1
            || directory.join(model).exists()
        {
            return Self::Folder(model.to_owned());
        } else {
            format!("hf://{model}@{revision}")
        };
        match HubModel::parse(&named) {
            Some(model) => Self::Hub(model),
            None => Self::Folder(model.to_owned()),
        }
    }

    /// Resolves the name of a kind of model that has no GGUF files.
    pub(crate) fn without_gguf(model: &str, revision: &str, directory: &Path) -> Self {
        match Self::of(model, revision, directory) {
            Self::Gguf(file) => Self::Folder(file),
            place => place,
        }
    }

    /// Copies the model's files into `folder`, optional ones if it has them.
    ///
    /// # Errors
    /// When a file is missing, or cannot be downloaded or copied.
    pub(crate) fn keep(&self, needs: Needs, folder: &Path, context: &Context) -> Result<(), OperatorError> {
        let opened = self.open(needs, context)?;
        let mut files = needs.files.to_vec();
        for file in needs.beside {
            if opened.has(file, context)? {
                files.push(file);
            }
        }
        for file in files {
            let (from, to) = (opened.path.join(file), folder.join(file));
            // Some files are in a folder of the model: `1_Dense/config.json`.
            let parent = to.parent().unwrap_or(folder);
            std::fs::create_dir_all(parent).map_err(on_path(parent))?;
            std::fs::copy(&from, &to).map_err(on_path(&to))?;
        }
        Ok(())
    }

    /// Returns the sources that identify the model.
    pub(crate) fn sources(&self, needs: Needs) -> Vec<Source> {
        self.sources_by(needs, &Hub::from_environment())
    }

    fn sources_by(&self, needs: Needs, hub: &Hub) -> Vec<Source> {
        match self {
            Self::Folder(folder) if needs.whole_folder => vec![Source::Path(folder.clone())],
            Self::Folder(folder) => {
                let mut sources = Vec::new();
                for file in needs.files {
                    sources.push(Source::Path(format!("{folder}/{file}")));
                }
                for file in needs.beside {
                    sources.push(Source::Optional(format!("{folder}/{file}")));
                }
                sources
            }
            Self::Gguf(file) => {
                let folder = Path::new(file).parent().unwrap_or(Path::new(""));
                let mut sources = vec![Source::Path(file.clone())];
                for name in needs.beside {
                    sources.push(Source::Optional(folder.join(name).display().to_string()));
                }
                sources
            }
            // A branch is no identity: until its commit is known, the node waits.
            Self::Hub(model) => vec![match hub.commit(model) {
                Some(commit) => Source::Identity(format!("hf:{}@{commit}", model.id)),
                None => Source::Awaited { address: model.to_string() },
            }],
        }
    }

    /// Returns the commit of a repository, if it is known.
    pub(crate) fn commit(&self) -> Option<String> {
        match self {
            Self::Hub(model) => Hub::from_environment().commit(model),
            Self::Folder(_) | Self::Gguf(_) => None,
        }
    }

    /// Resolves the revision to a commit, if it is not known yet.
    ///
    /// # Errors
    /// When the Hub cannot be reached.
    pub(crate) fn fetch(&self, context: &Context) -> Result<(), OperatorError> {
        match self {
            Self::Hub(model) => Hub::from_environment().resolve(model, context).map(drop),
            Self::Folder(_) | Self::Gguf(_) => Ok(()),
        }
    }

    /// Returns the folder (or `.gguf` file) with the required files. Downloads files of the Hub.
    ///
    /// # Errors
    /// When a file is missing or cannot be downloaded.
    pub(crate) fn open(&self, needs: Needs, context: &Context) -> Result<Opened, OperatorError> {
        match self {
            Self::Folder(folder) => {
                let folder = context.resolve(folder);
                Ok(Opened { path: local_folder(folder, needs)?, hub: None })
            }
            Self::Gguf(file) => {
                let file = context.resolve(file);
                if !file.is_file() {
                    return Err(OperatorError::machine(format!("there is no file {}", file.display()))
                        .with_help("a `.gguf` file must be on this machine"));
                }
                Ok(Opened { path: file, hub: None })
            }
            Self::Hub(model) => Self::open_by(model, needs, Hub::from_environment(), context),
        }
    }

    fn open_by(model: &HubModel, needs: Needs, hub: Hub, context: &Context) -> Result<Opened, OperatorError> {
        let commit = hub.resolve(model, context)?;
        let path = hub.folder(model, &commit, needs.files, context)?;
        Ok(Opened { path, hub: Some((hub, model.clone(), commit)) })
    }
}

/// A model's files, and access to optional ones.
pub struct Opened {
    /// The folder or the `.gguf` file.
    pub path: PathBuf,
    hub: Option<(Hub, HubModel, String)>,
}

impl Opened {
    /// Whether the model has a file. Downloads the file of a repository.
    ///
    /// # Errors
    /// When the Hub cannot be reached.
    pub fn has(&self, file: &str, context: &Context) -> Result<bool, OperatorError> {
        match &self.hub {
            Some((hub, model, commit)) => hub.has(model, commit, file, context),
            None => Ok(self.path.join(file).is_file()),
        }
    }
}

fn local_folder(folder: PathBuf, needs: Needs) -> Result<PathBuf, OperatorError> {
    // Encoders have no GGUF files; a folder of a decoder may hold one alone.
    if needs.whole_folder
        && let Some(file) = gguf::file_of(&folder)?
    {
        return Ok(file);
    }
    match needs.files.iter().find(|file| !folder.join(file).is_file()) {
        None => Ok(folder),
        Some(file) => Err(OperatorError::machine(format!("the model folder {} has no {file}", folder.display()))
            .with_help(format!("a model folder holds {}", needs.files.join(", ")))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use searchmill_engine::operator::testing::Harness;
    use searchmill_fixtures::hub::{COMMIT, Served};

    use super::*;

    const NEEDS: Needs = Needs { files: &["config.json"], whole_folder: true, beside: &["tokenizer.json"] };

    #[test]
    fn a_name_means_one_place() {
        let folder = tempfile::tempdir().unwrap();
        let of = |model: &str| ModelPlace::of(model, "v1", folder.path());
        let local = |model: &str| ModelPlace::Folder(model.to_owned());
        assert_eq!(
            ["./m", "/m", "a/b/c", "m", "hf://a/b@"].map(of),
            ["./m", "/m", "a/b/c", "m", "hf://a/b@"].map(local)
        );
        let ModelPlace::Hub(model) = of("models/m") else { panic!("not there: a repository") };
        assert_eq!(model.to_string(), "hf://models/m@v1");
        assert_eq!(of("hf://models/m@v2"), ModelPlace::Hub(HubModel::parse("hf://models/m@v2").unwrap()));
        std::fs::create_dir_all(folder.path().join("models/m")).unwrap();
        assert_eq!(of("models/m"), local("models/m"), "it is there: a folder, and known by its content");
        assert_eq!(of("models/m").sources(NEEDS), [Source::Path("models/m".to_owned())]);
        assert_eq!(of("models/m.gguf"), ModelPlace::Gguf("models/m.gguf".to_owned()));
        let beside = Source::Optional("models/tokenizer.json".to_owned());
        assert_eq!(of("models/m.gguf").sources(NEEDS), [Source::Path("models/m.gguf".to_owned()), beside]);
    }

    #[test]
    fn a_repository_is_known_by_its_commit() {
        let harness = Harness::new();
        let files = [("config.json", b"{}".to_vec()), ("template", b"t".to_vec())];
        let failing = Arc::new(vec!["chat_template.jinja"]);
        let served = Served { files: Arc::new(files.into()), failing, ..Served::default() };
        let context = harness.context();
        let endpoint = context.block_on(served.serve());
        let server = || Hub::new(&endpoint, harness.path().join("cache"), Some("open-sesame".to_owned()));
        let place = ModelPlace::of("org/model", "main", harness.path());
        let ModelPlace::Hub(model) = &place else { panic!("a repository") };
        let address = "hf://org/model@main".to_owned();
        assert_eq!(place.sources_by(NEEDS, &server()), [Source::Awaited { address }]);
        let opened = ModelPlace::open_by(model, NEEDS, server(), &context).unwrap();
        assert!(opened.path.join("config.json").is_file());
        assert_eq!(place.sources_by(NEEDS, &server()), [Source::Identity(format!("hf:org/model@{COMMIT}"))]);
        let has = |file| opened.has(file, &context);
        assert!(has("template").unwrap() && !has("none").unwrap());
        assert!(has("chat_template.jinja").unwrap_err().message.contains("503"), "a failure is not a no");
    }
}
