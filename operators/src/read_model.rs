//! `read-model`: reads a language model from a folder, a `.gguf` file or the Hugging Face Hub.

use schemars::JsonSchema;
use searchmill_engine::operator::{
    BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs, ParamIssue, Ports,
    TreeKind,
};
use searchmill_models::inference::{ModelSource, check_files, model_files};
use serde::{Deserialize, Serialize};

/// Reads a language model into an artifact, so that `train`, `rollout` and `logprob` can take it from a node. Copies
/// `config.json`, the tokenizer, the chat template, `generation_config.json` and the weights; other files are left
/// out. The store then holds the weights once, and the pipeline needs their source no longer.
pub(crate) struct ReadModel;

/// Parameters of `read-model`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct ReadModelParams {
    /// A folder, a `.gguf` file, or a Hugging Face id (`Qwen/Qwen3-0.6B`) of a Qwen2, Qwen2.5, Qwen3 or Llama model.
    pub(crate) model: String,
    /// Branch, tag or commit of a Hugging Face model. A commit never changes.
    #[serde(default = "main_branch")]
    pub(crate) revision: String,
}

/// Default of the `revision` of a model.
pub(crate) fn main_branch() -> String {
    "main".to_owned()
}

impl ReadModelParams {
    fn source(&self) -> ModelSource {
        ModelSource { model: Some(self.model.clone()), revision: self.revision.clone(), adapter: None }
    }
}

impl Operator for ReadModel {
    type Params = ReadModelParams;
    const NAME: &'static str = "read-model";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Reads a language model from a folder, a `.gguf` file or the Hugging Face Hub.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "A model of the Hub",
            yaml: "base: {op: read-model, with: {model: Qwen/Qwen2.5-3B-Instruct}}",
        },
        Example {
            title: "A commit of it, which never changes",
            yaml: "base: {op: read-model, with: {model: Qwen/Qwen2.5-3B-Instruct, revision: aa8e72537993ba99e69dfaafa59ed015b17504d1}}",
        },
        Example { title: "A folder", yaml: "base: {op: read-model, with: {model: ./models/mine}}" },
    ];

    fn declare(params: &ReadModelParams) -> Declaration {
        let ports = Ports::new().tree_out("model", TreeKind::Model, "The model's files.");
        let is_blank = params.model.trim().is_empty();
        let issue = is_blank.then(|| ParamIssue::new("model", "must name a folder or a Hugging Face id"));
        params.source().declared(Declaration::pure(ports).issues(issue))
    }

    fn open(params: &ReadModelParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

impl BlockingKernel for ReadModelParams {
    fn run(&self, _inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let (source, _) = self.source().folders(&[], context)?;
        let folder = outputs.tree("model")?;
        let mut bytes = 0;
        for file in model_files(&source)? {
            context.check_cancelled()?;
            let name = file.file_name().unwrap_or_default();
            bytes += std::fs::copy(&file, folder.join(name))
                .map_err(|error| OperatorError::machine(format!("cannot copy {}: {error}", file.display())))?;
        }
        // The copy, not the source: what may change is no longer looked at.
        check_files(&folder)?;
        outputs.figure("bytes", bytes as f64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::entry;
    use searchmill_engine::operator::testing::{Harness, inputs};
    use searchmill_fixtures::models::model_folder;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_folder_is_copied_without_what_is_no_part_of_the_model() {
        let made = model_folder(128);
        std::fs::write(made.path().join("notes.txt"), "x").expect("a file");
        std::fs::write(made.path().join("generation_config.json"), "{}").expect("a file");
        let harness = Harness::new();
        let outcome = harness.run(&entry::<ReadModel>(), json!({"model": made.path()}), &inputs([])).expect("runs");
        let copy = &outcome.trees["model"];
        for name in ["config.json", "tokenizer.json", "generation_config.json", "model.safetensors"] {
            let read = |folder: &std::path::Path| std::fs::read(folder.join(name)).expect("a file");
            assert_eq!(read(copy.as_ref()), read(made.path()), "{name}");
        }
        assert!(!AsRef::<std::path::Path>::as_ref(copy).join("notes.txt").exists());
    }

    #[test]
    fn what_is_no_model_is_named() {
        let harness = Harness::new();
        let told = |model: &str| {
            harness.run(&entry::<ReadModel>(), json!({"model": model}), &inputs([])).expect_err("an error").message
        };
        assert_eq!(told(" "), "model: must name a folder or a Hugging Face id");
        assert!(told("./nowhere").contains("nowhere"), "{}", told("./nowhere"));
        let empty = tempfile::tempdir().expect("a folder");
        assert!(told(&empty.path().display().to_string()).contains("config.json"));
        let made = model_folder(128);
        let (weights, config) = (made.path().join("model.safetensors"), made.path().join("config.json"));
        let (whole, settings) = (std::fs::read(&weights).expect("a file"), std::fs::read(&config).expect("a file"));
        for count in [4, 100, whole.len() - 100] {
            std::fs::write(&weights, &whole[..count]).expect("a file");
            let message = told(&made.path().display().to_string());
            assert!(
                message.contains("model.safetensors") && message.contains("cut off") | message.contains("announces"),
                "{message}"
            );
        }
        std::fs::write(&weights, &whole).expect("a file");
        std::fs::write(&config, &settings[..10]).expect("a file");
        assert!(told(&made.path().display().to_string()).contains("config.json"));
        std::fs::write(&config, &settings).expect("a file");
        std::fs::remove_file(weights).expect("a file");
        assert!(told(&made.path().display().to_string()).contains("weights"), "a model without weights");
    }
}
