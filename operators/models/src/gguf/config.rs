//! The metadata of a GGUF file as a decoder's configuration.

use searchmill_engine::operator::OperatorError;
use serde_json::{Value, json};

use super::file::Gguf;
use crate::decoder::{DecoderConfig, LLAMA3, llama3};

/// Supported architectures, by llama.cpp's names.
const KNOWN: [&str; 3] = ["llama", "qwen2", "qwen3"];

pub(super) fn read(gguf: &Gguf) -> Result<DecoderConfig, OperatorError> {
    let architecture = gguf.architecture.as_str();
    if !KNOWN.contains(&architecture)
        || gguf.whole(&format!("{architecture}.expert_count"))?.is_some_and(|count| count > 0)
    {
        let kind = if KNOWN.contains(&architecture) { "with experts " } else { "" };
        return Err(gguf
            .broken(format!("the architecture `{architecture}` {kind}is not supported"))
            .with_help("the model must be a dense decoder of the Qwen2, Qwen2.5, Qwen3 or Llama family"));
    }
    let origin = gguf.path.display().to_string();
    DecoderConfig::parse(fields(gguf)?.to_string().as_bytes(), &origin)
}

fn fields(gguf: &Gguf) -> Result<Value, OperatorError> {
    let (hidden, heads) = (needed(gguf, "embedding_length")?, needed(gguf, "attention.head_count")?);
    let tensors = &gguf.content.tensor_infos;
    let Some(embedding) = tensors.get("token_embd.weight") else {
        return Err(gguf.broken("missing tensor `token_embd.weight`"));
    };
    let mut all = json!({
        "model_type": gguf.architecture,
        // The metadata may count other tokens than the embedding has.
        "vocab_size": embedding.shape.dims().first(),
        "hidden_size": hidden,
        "intermediate_size": needed(gguf, "feed_forward_length")?,
        "num_hidden_layers": needed(gguf, "block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": gguf.whole(&key(gguf, "attention.head_count_kv"))?.unwrap_or(heads),
        "head_dim": gguf.whole(&key(gguf, "attention.key_length"))?.unwrap_or(hidden / heads.max(1)),
        "rms_norm_eps": gguf.number(&key(gguf, "attention.layer_norm_rms_epsilon"))?.map_or(1e-6, shortest),
        "rope_theta": gguf.number(&key(gguf, "rope.freq_base"))?.unwrap_or(10_000.0),
        "tie_word_embeddings": !tensors.contains_key("output.weight"),
        "attention_bias": tensors.contains_key("blk.0.attn_output.bias"),
        "eos_token_id": ends(gguf)?,
    });
    // Null is no number: what is missing is left out.
    if let Some(context) = gguf.whole(&key(gguf, "context_length"))? {
        all["max_position_embeddings"] = json!(context);
    }
    if let Some(scaling) = scaling(gguf)? {
        all["rope_scaling"] = scaling;
    }
    Ok(all)
}

/// Returns a key of the architecture.
fn key(gguf: &Gguf, name: &str) -> String {
    format!("{}.{name}", gguf.architecture)
}

fn needed(gguf: &Gguf, name: &str) -> Result<usize, OperatorError> {
    let key = key(gguf, name);
    match gguf.whole(&key)? {
        Some(number) => Ok(number),
        None => Err(gguf.broken(format!("there is no `{key}`"))),
    }
}

/// Converts an f32 to the f64 with the same shortest decimal form: 1e-6, not 9.999999974752427e-7.
fn shortest(number: f64) -> f64 {
    (number as f32).to_string().parse().unwrap_or(number)
}

/// Returns the tokens that end a text or a turn.
fn ends(gguf: &Gguf) -> Result<Vec<usize>, OperatorError> {
    let mut ends = Vec::new();
    for name in ["eos", "eot"] {
        ends.extend(gguf.whole(&format!("tokenizer.ggml.{name}_token_id"))?);
    }
    Ok(ends)
}

/// Returns the rope scaling: from the metadata, or for Llama 3 from a factor per frequency.
fn scaling(gguf: &Gguf) -> Result<Option<Value>, OperatorError> {
    if gguf.content.tensor_infos.contains_key("rope_freqs.weight") {
        return Ok(Some(restored(gguf)?));
    }
    let kind = gguf.text(&key(gguf, "rope.scaling.type"))?.unwrap_or("none");
    if kind == "none" {
        return Ok(None);
    }
    let mut scaling = json!({"rope_type": kind, "factor": gguf.number(&key(gguf, "rope.scaling.factor"))?});
    if let Some(original) = gguf.whole(&key(gguf, "rope.scaling.original_context_length"))? {
        scaling["original_max_position_embeddings"] = json!(original);
    }
    Ok(Some(scaling))
}

/// Restores Llama 3's scaling from the factors per frequency that llama.cpp writes. The scaling's factor is the highest of
/// them; the others are checked against it.
fn restored(gguf: &Gguf) -> Result<Value, OperatorError> {
    let factors = super::weights::numbers(gguf, "rope_freqs.weight")?;
    let base = gguf.number(&key(gguf, "rope.freq_base"))?.unwrap_or(10_000.0);
    let highest = factors.iter().copied().fold(1.0_f32, f32::max);
    let factor = f64::from(highest);
    for (index, found) in factors.iter().enumerate() {
        let frequency = base.powf(-(index as f64) / factors.len() as f64);
        let wanted = frequency / llama3(frequency, factor, LLAMA3);
        // The factors are stored in f32, computed by another program.
        if (f64::from(*found) - wanted).abs() > 1e-3 * wanted {
            let message = format!(
                "`rope_freqs.weight` has {found} at index {index}; Llama 3's scaling by {factor} gives {wanted:.4}"
            );
            return Err(gguf.broken(message).with_help("only Llama 3's rope scaling is supported"));
        }
    }
    let [low, high, original] = LLAMA3;
    Ok(json!({"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
        "original_max_position_embeddings": original}))
}
