//! GGUF files built from small models of `init-model`, compared with their safetensors.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{Value, write};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use searchmill_engine::operator::entry;
use searchmill_engine::operator::testing::{Harness, inputs, rows_input};
use searchmill_models::decoder::{Decoder, DecoderConfig, Family, Layout};
use searchmill_models::device::Compute;
use searchmill_models::gguf::{Gguf, file_name};
use searchmill_models::inference::{Message, ModelSource, Scorer};
use serde_json::json;

use crate::init_model::InitModel;
use crate::shared::relation::testing::trajectories;

/// A model folder, and the expected content of its `.gguf` file.
struct Made {
    harness: Harness,
    folder: PathBuf,
    decoder: Decoder,
    metadata: Vec<(String, Value)>,
}

fn made(family: &str, more: serde_json::Value) -> Made {
    let harness = Harness::new();
    let swift = entry::<crate::convert_to_swift::ConvertToSwift>();
    let rows = inputs([("trajectories", rows_input(&trajectories(20)))]);
    let corpus = harness.run(&swift, json!({}), &rows).unwrap().batch("examples");
    let corpus = searchmill_engine::operator::testing::batch_input(searchmill_schemas::RecordKind::Example, corpus);
    let mut params = json!({"family": family, "layers": 2, "hidden": 256, "heads": 4, "kv_heads": 2, "intermediate": 256,
        "vocab": 500, "deviation": 0.1, "whole_phrases": 0.9});
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let folder =
        harness.run(&entry::<InitModel>(), params, &inputs([("corpus", corpus)])).unwrap().trees["model"].clone();
    let decoder = Decoder::load(&folder, &Device::Cpu, DType::F32).unwrap();
    let metadata = [shape(family, decoder.config()), vocabulary(&folder)].concat();
    Made { harness, folder, decoder, metadata }
}

/// GGUF metadata of a configuration.
fn shape(family: &str, config: &DecoderConfig) -> Vec<(String, Value)> {
    let counts = [
        ("embedding_length", config.hidden_size),
        ("feed_forward_length", config.intermediate_size),
        ("block_count", config.num_hidden_layers),
        ("attention.head_count", config.num_attention_heads),
        ("attention.head_count_kv", config.key_value_heads()),
        ("attention.key_length", config.head_dimensions()),
        ("context_length", config.max_position_embeddings),
    ];
    let numbers = [("attention.layer_norm_rms_epsilon", config.rms_norm_eps), ("rope.freq_base", config.rope_theta())];
    let counts = counts.map(|(name, count)| (format!("{family}.{name}"), Value::U32(count as u32)));
    let numbers = numbers.map(|(name, number)| (format!("{family}.{name}"), Value::F32(number as f32)));
    let name = ("general.architecture".to_owned(), Value::String(family.to_owned()));
    counts.into_iter().chain(numbers).chain([name]).collect()
}

/// GGUF metadata of a tokenizer and its chat template.
fn vocabulary(folder: &Path) -> Vec<(String, Value)> {
    let read = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap()
    };
    let tokenizer = tokenizers::Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
    let mut tokens: Vec<(String, u32)> = tokenizer.get_vocab(true).into_iter().collect();
    tokens.sort_by_key(|(_, id)| *id);
    let added = read("tokenizer.json")["added_tokens"].clone();
    let kind = |token: &str| {
        let added = added.as_array().unwrap().iter().find(|added| added["content"] == token);
        added.map_or(1, |added| if added["special"] == true { 3 } else { 4 })
    };
    let kinds = tokens.iter().map(|(token, _)| Value::I32(kind(token))).collect();
    let merges = read("tokenizer.json")["model"]["merges"].as_array().unwrap().clone();
    let merge = |merge: &serde_json::Value| match merge.as_array() {
        Some(pair) => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
        None => merge.as_str().unwrap().to_owned(),
    };
    let template = read("tokenizer_config.json")["chat_template"].as_str().unwrap().to_owned();
    let end = tokenizer.token_to_id("<|im_end|>").unwrap();
    let all = [
        ("ggml.model", Value::String("gpt2".to_owned())),
        ("ggml.pre", Value::String("qwen2".to_owned())),
        ("ggml.tokens", Value::Array(tokens.into_iter().map(|(token, _)| Value::String(token)).collect())),
        ("ggml.token_type", Value::Array(kinds)),
        ("ggml.merges", Value::Array(merges.iter().map(|pair| Value::String(merge(pair))).collect())),
        ("ggml.eos_token_id", Value::U32(end)),
        ("chat_template", Value::String(template)),
    ];
    all.map(|(name, value)| (format!("tokenizer.{name}"), value)).into()
}

impl Made {
    /// The tensors by their names in the file; matrices are quantised.
    fn tensors(&self, kind: GgmlDType) -> Vec<(String, QTensor)> {
        let config = self.decoder.config();
        let named = self.decoder.parameters().into_iter().map(|(name, tensor)| {
            let heads = match config.model_type {
                Family::Llama if name.contains("q_proj") => Some(config.num_attention_heads),
                Family::Llama if name.contains("k_proj") => Some(config.key_value_heads()),
                _ => None,
            };
            let tensor = heads.map_or(tensor.clone(), |heads| neighbours(&tensor, heads));
            let kind = if tensor.rank() == 2 { kind } else { GgmlDType::F32 };
            (file_name(&name).unwrap(), QTensor::quantize(&tensor, kind).unwrap())
        });
        named.collect()
    }

    /// Writes a file into a separate folder.
    fn file(&self, name: &str, metadata: &[(String, Value)], tensors: &[(String, QTensor)]) -> PathBuf {
        let folder = self.harness.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("model.gguf");
        let metadata: Vec<_> = metadata.iter().map(|(name, value)| (name.as_str(), value)).collect();
        let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        write(&mut BufWriter::new(File::create(&path).unwrap()), &metadata, &tensors).unwrap();
        path
    }

    fn written(&self, name: &str, kind: GgmlDType) -> PathBuf {
        self.file(name, &self.metadata, &self.tensors(kind))
    }

    fn text(&self, name: &str, metadata: &[(String, Value)], tensors: &[(String, QTensor)]) -> String {
        let opened = Gguf::open(self.file(name, metadata, tensors));
        opened.and_then(|gguf| gguf.decoder(&Compute::cpu()).map(drop)).unwrap_err().message
    }
}

/// Rows of queries and keys in the order that llama.cpp's converter writes.
fn neighbours(tensor: &Tensor, heads: usize) -> Tensor {
    let mut shape = vec![heads, 2, tensor.dim(0).unwrap() / heads / 2];
    shape.extend(&tensor.dims()[1..]);
    tensor.reshape(shape).unwrap().transpose(1, 2).unwrap().contiguous().unwrap().reshape(tensor.dims()).unwrap()
}

fn logits(decoder: &Decoder) -> Vec<f32> {
    let tokens = Tensor::new(&[[5_u32, 200, 17, 9, 250, 41]], &Device::Cpu).unwrap();
    let hidden = decoder.hidden(&tokens, &Layout::whole(1, 6)).unwrap();
    decoder.logits(&hidden).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The greatest difference, relative to the greatest logit.
fn apart(one: &[f32], two: &[f32]) -> f32 {
    let scale = one.iter().fold(0.0_f32, |most, number| most.max(number.abs()));
    one.iter().zip(two).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / scale
}

#[test]
fn logits_are_those_of_the_safetensors() {
    for (family, tied) in [("qwen3", true), ("qwen2", false), ("llama", false)] {
        let made = made(family, json!({"tie_embeddings": tied}));
        let expected = logits(&made.decoder);
        for (kind, bound) in
            [(GgmlDType::F32, 0.0), (GgmlDType::F16, 2e-3), (GgmlDType::Q8_0, 5e-2), (GgmlDType::Q4K, 0.5)]
        {
            let gguf = Gguf::open(made.written(&format!("{kind:?}"), kind)).unwrap();
            let difference = apart(&expected, &logits(&gguf.decoder(&Compute::cpu()).unwrap()));
            assert!(difference <= bound, "{family} {kind:?}: {difference}");
            assert!(kind == GgmlDType::F32 || difference > 0.0, "{family} {kind:?}: nothing was quantised");
        }
    }
}

#[test]
fn the_tokenizer_and_the_template_of_the_file_are_the_folders() {
    let made = made("qwen3", json!({}));
    let path = made.written("alone", GgmlDType::F32);
    let tokenizer = Gguf::open(path.clone()).unwrap().tokenizer().unwrap();
    let expected = tokenizers::Tokenizer::from_file(made.folder.join("tokenizer.json")).unwrap();
    for text in
        ["Question 7, naïve? 東京 12345\n\n  x", "<|im_start|>user\nAnswer 3 stands here.<|im_end|>", "a <tool_call> b"]
    {
        let ids = |tokenizer: &tokenizers::Tokenizer| tokenizer.encode(text, false).unwrap().get_ids().to_vec();
        assert_eq!(ids(&tokenizer), ids(&expected), "{text}");
        assert_eq!(tokenizer.decode(&ids(&tokenizer), false).unwrap(), text);
    }
    let [one, two] = [&made.folder, &path].map(|place| Scorer::open(place, None, None, None, &Compute::cpu()).unwrap());
    let user =
        Message { role: "user".to_owned(), content: "Who?".to_owned(), reasoning: None, calls: vec![], call_id: None };
    let prompt =
        |scorer: &Scorer| scorer.template().prompt(std::slice::from_ref(&user), &[], &BTreeMap::new()).unwrap();
    assert_eq!(prompt(&one), prompt(&two));
    let mut text = prompt(&one);
    text.push("<answer>Answer 3</answer>", one.control());
    let part = text.text.find("Answer").unwrap()..text.text.len();
    assert_eq!(one.score(&text, part.clone()), two.score(&text, part), "to the bit");
}

#[test]
fn a_file_or_its_folder_is_a_source_of_a_model() {
    let made = made("qwen3", json!({}));
    let path = made.written("alone", GgmlDType::Q8_0);
    let of = |model: &Path| ModelSource { model: Some(model.display().to_string()), ..ModelSource::default() };
    let context = made.harness.context();
    for place in [path.as_path(), path.parent().unwrap()] {
        assert_eq!(of(place).folders(&[], &context).unwrap(), (path.clone(), None));
    }
    let sources = |source: &ModelSource| source.sources(Path::new(""));
    let beside = path.with_file_name("tokenizer.json").display().to_string();
    let beside = searchmill_engine::operator::Source::Optional(beside);
    assert!(sources(&of(&path)).contains(&beside), "a tokenizer beside it decides tokens too");
    let failure = of(Path::new("models/none.gguf")).folders(&[], &context).unwrap_err();
    assert!(failure.message.contains("there is no file"), "{failure}");
    std::fs::copy(&path, path.with_file_name("other.gguf")).unwrap();
    let failure = of(path.parent().unwrap()).folders(&[], &context).unwrap_err();
    assert!(failure.message.contains("has 2 .gguf files"), "{failure}");
}

#[test]
fn llama_3_scaling_is_read_from_its_factors() {
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    let made = made("llama", json!({}));
    let path = made.folder.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["rope_scaling"] = scaling;
    config["rope_theta"] = json!(500_000.0);
    std::fs::write(&path, config.to_string()).unwrap();
    let expected = Decoder::load(&made.folder, &Device::Cpu, DType::F32).unwrap();
    let factor = |place: usize| {
        let wave = 2.0 * std::f64::consts::PI * 500_000_f64.powf(place as f64 / 32.0);
        let smooth = ((8192.0 / wave - 1.0) / 3.0).clamp(0.0, 1.0);
        (1.0 / ((1.0 - smooth) / 8.0 + smooth)) as f32
    };
    let factors: Vec<f32> = (0..32).map(factor).collect();
    assert!(factors[0] == 1.0 && factors[31] == 8.0 && factors.iter().any(|factor| *factor > 1.5 && *factor < 7.0));
    let write = |name: &str, factors: Vec<f32>| {
        let tensor = Tensor::from_vec(factors, 32, &Device::Cpu).unwrap();
        let mut tensors = made.tensors(GgmlDType::F32);
        tensors.push(("rope_freqs.weight".to_owned(), QTensor::quantize(&tensor, GgmlDType::F32).unwrap()));
        let mut metadata = made.metadata.clone();
        metadata.retain(|(name, _)| name != "llama.rope.freq_base");
        metadata.push(("llama.rope.freq_base".to_owned(), Value::F32(500_000.0)));
        Gguf::open(made.file(name, &metadata, &tensors)).unwrap().decoder(&Compute::cpu())
    };
    let gguf = write("scaled", factors.clone()).unwrap();
    assert!(apart(&logits(&expected), &logits(&gguf)) < 1e-6);
    let mut strange = factors;
    strange[3] = 2.0;
    let failure = write("strange", strange).err().expect("refused");
    assert!(failure.message.contains("`rope_freqs.weight` has 2 at index 3"), "{failure}");
}

#[test]
fn what_is_broken_is_told() {
    let made = made("qwen3", json!({}));
    let (metadata, path) = (&made.metadata, made.written("whole", GgmlDType::Q8_0));
    let bytes = std::fs::read(&path).unwrap();
    let open = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Gguf::open(path.clone()).and_then(|gguf| gguf.decoder(&Compute::cpu()).map(drop)).unwrap_err().message
    };
    for (cut, told) in [
        (3, "not a complete GGUF file"),
        (100, "not a complete GGUF file"),
        (bytes.len() - 40_000, "cannot read tensor"),
    ] {
        let message = open(&bytes[..cut]);
        assert!(message.contains(told) && message.contains("model.gguf"), "{message}");
    }
    assert!(open(b"PK\x03\x04 something else").contains("not a complete GGUF file"));
    let with = |key: &str, value: Value| {
        let mut changed: Vec<_> = metadata.iter().filter(|(name, _)| name != key).cloned().collect();
        changed.push((key.to_owned(), value));
        made.text("changed", &changed, &made.tensors(GgmlDType::F32))
    };
    let text = |text: &str| Value::String(text.to_owned());
    assert!(with("general.architecture", text("gemma3")).contains("the architecture `gemma3` is not supported"));
    assert!(with("qwen3.expert_count", Value::U32(8)).contains("`qwen3` with experts is not supported"));
    assert!(with("qwen3.block_count", text("two")).contains("`qwen3.block_count` is not an integer"));
    assert!(with("qwen3.block_count", Value::U32(3)).contains("missing tensor `blk.2."));
    assert!(with("qwen3.block_count", Value::U32(1)).contains("its metadata describe another model"));
    assert!(with("qwen3.embedding_length", Value::U32(128)).contains("has the shape"));
    let without = |key: &str| {
        let less: Vec<_> = metadata.iter().filter(|(name, _)| name != key).cloned().collect();
        made.text("less", &less, &made.tensors(GgmlDType::F32))
    };
    assert!(without("qwen3.attention.head_count").contains("there is no `qwen3.attention.head_count`"));
    let mut tokenless: Vec<_> = metadata.iter().filter(|(name, _)| name != "tokenizer.ggml.pre").cloned().collect();
    tokenless.push(("tokenizer.ggml.pre".to_owned(), text("tekken")));
    let gguf = Gguf::open(made.file("strange", &tokenless, &made.tensors(GgmlDType::F32))).unwrap();
    let failure = gguf.tokenizer().map(drop).unwrap_err();
    assert!(failure.message.contains("`tekken` is not supported") && failure.help.unwrap().contains("tokenizer.json"));
}
