//! Tiny models as files, the same bytes on every machine: a word tokenizer, a BERT encoder and a decoder.

use std::path::Path;

use serde_json::{Map, Value, json};

const WORDS: [&str; 16] =
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "word", "the", "of", "in", "a", "who", "0", "1", "2", "3", ".", "?"];

/// Writes `words`, `bert`, `decoder` and `colbert` below a folder.
pub(crate) fn write(folder: &Path) {
    let make = |name: &str| {
        let made = folder.join(name);
        std::fs::create_dir_all(&made).expect("a folder");
        made
    };
    let (words, bert, decoder, colbert) = (make("words"), make("bert"), make("decoder"), make("colbert"));
    for place in [&words, &bert, &decoder] {
        std::fs::write(place.join("tokenizer.json"), tokenizer().to_string()).expect("a file");
    }
    encoder(&bert);
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("operators/models/tests/models");
    for file in ["config.json", "tokenizer.json", "model.safetensors", "artifact.metadata"] {
        std::fs::copy(models.join("colbert").join(file), colbert.join(file)).expect("a file");
    }
    let tiny = models.join("qwen3");
    std::fs::copy(tiny.join("model.safetensors"), decoder.join("model.safetensors")).expect("a file");
    let config = std::fs::read(tiny.join("config.json")).expect("a file");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    // Long enough for a conversation.
    config["max_position_embeddings"] = json!(2048);
    std::fs::write(decoder.join("config.json"), config.to_string()).expect("a file");
}

fn tokenizer() -> Value {
    let vocabulary: Map<String, Value> =
        WORDS.iter().enumerate().map(|(id, word)| ((*word).to_owned(), json!(id))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"}, "decoder": null, "post_processor": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    })
}

fn encoder(folder: &Path) {
    let config = json!({
        "vocab_size": WORDS.len(), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 32, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "max_position_embeddings": 32,
        "type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0, "model_type": "bert"
    });
    std::fs::write(folder.join("config.json"), config.to_string()).expect("a file");
    let mut shapes: Vec<(String, Vec<usize>)> = Vec::new();
    for (name, rows) in [("word", WORDS.len()), ("position", 32), ("token_type", 2)] {
        shapes.push((format!("embeddings.{name}_embeddings.weight"), vec![rows, 16]));
    }
    let layer = "encoder.layer.0";
    for norm in
        ["embeddings.LayerNorm", "encoder.layer.0.attention.output.LayerNorm", "encoder.layer.0.output.LayerNorm"]
    {
        shapes.push((format!("{norm}.weight"), vec![16]));
        shapes.push((format!("{norm}.bias"), vec![16]));
    }
    for (part, rows, columns) in [
        ("attention.self.query", 16, 16),
        ("attention.self.key", 16, 16),
        ("attention.self.value", 16, 16),
        ("attention.output.dense", 16, 16),
        ("intermediate.dense", 32, 16),
        ("output.dense", 16, 32),
    ] {
        shapes.push((format!("{layer}.{part}.weight"), vec![rows, columns]));
        shapes.push((format!("{layer}.{part}.bias"), vec![rows]));
    }
    std::fs::write(folder.join("model.safetensors"), safetensors(&shapes)).expect("a file");
}

/// Returns weights between -0.5 and 0.5 from an integer generator (Knuth's MMIX constants).
fn safetensors(shapes: &[(String, Vec<usize>)]) -> Vec<u8> {
    let (mut header, mut data, mut state) = (Map::new(), Vec::new(), 7_u64);
    for (name, shape) in shapes {
        let start = data.len();
        for _ in 0..shape.iter().product::<usize>() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = (state >> 40) as f32 / (1_u64 << 24) as f32 - 0.5;
            data.extend(number.to_le_bytes());
        }
        header.insert(name.clone(), json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]}));
    }
    let header = Value::Object(header).to_string();
    [(header.len() as u64).to_le_bytes().as_slice(), header.as_bytes(), &data].concat()
}
