//! The tensors of a GGUF file under the names and in the order that Hugging Face's checkpoints have.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;

use candle_core::{Device, Tensor};
use searchmill_engine::operator::OperatorError;

use super::file::{Gguf, plain};
use crate::decoder::{DecoderConfig, Tensors};

/// Parts of names: Hugging Face's and llama.cpp's.
const NAMES: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// A tensor's name in the file.
#[must_use]
pub fn file_name(name: &str) -> Option<String> {
    match name {
        "model.embed_tokens.weight" => return Some("token_embd.weight".to_owned()),
        "model.norm.weight" => return Some("output_norm.weight".to_owned()),
        "lm_head.weight" => return Some("output.weight".to_owned()),
        _ => {}
    }
    let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let (part, kind) = part.rsplit_once('.')?;
    let (_, short) = NAMES.iter().find(|(long, _)| *long == part)?;
    Some(format!("blk.{layer}.{short}.{kind}"))
}

/// All tensors that the configuration asks for, in f32.
pub(super) fn read(gguf: &Gguf, config: &DecoderConfig) -> Result<Tensors, OperatorError> {
    let mut file = open(gguf)?;
    let mut tensors = Tensors::new();
    let mut taken = BTreeSet::from(["rope_freqs.weight".to_owned()]);
    for (name, _) in config.tensors() {
        let short = file_name(&name).ok_or_else(|| OperatorError::engine(format!("`{name}` has no name in GGUF")))?;
        let tensor = tensor(gguf, &mut file, &short)?;
        let tensor = match heads(gguf, config, &name) {
            Some(heads) => apart(&tensor, heads).map_err(|error| gguf.broken(plain(&error)))?,
            None => tensor,
        };
        taken.insert(short);
        tensors.insert(name, tensor);
    }
    let mut all: Vec<&String> = gguf.content.tensor_infos.keys().collect();
    all.sort();
    match all.into_iter().find(|name| !taken.contains(*name)) {
        None => Ok(tensors),
        Some(extra) => Err(gguf.broken(format!("the tensor `{extra}` has no place in the model of its metadata"))),
    }
}

/// The numbers of one tensor.
pub(super) fn numbers(gguf: &Gguf, name: &str) -> Result<Vec<f32>, OperatorError> {
    let tensor = tensor(gguf, &mut open(gguf)?, name)?;
    tensor.flatten_all().and_then(|flat| flat.to_vec1()).map_err(|error| gguf.broken(plain(&error)))
}

fn open(gguf: &Gguf) -> Result<BufReader<File>, OperatorError> {
    Ok(BufReader::new(File::open(&gguf.path)?))
}

fn tensor(gguf: &Gguf, file: &mut BufReader<File>, name: &str) -> Result<Tensor, OperatorError> {
    if !gguf.content.tensor_infos.contains_key(name) {
        return Err(gguf
            .broken(format!("there is no tensor `{name}`"))
            .with_help("is the file complete, and not one of several parts?"));
    }
    let read = gguf.content.tensor(file, name, &Device::Cpu).and_then(|tensor| tensor.dequantize(&Device::Cpu));
    read.map_err(|error| {
        gguf.broken(format!("the tensor `{name}` cannot be read: {}", plain(&error))).with_help("fetch the file again")
    })
}

/// Heads of a map whose rows llama.cpp keeps in another order: those of queries and keys, in its `llama` files alone.
fn heads(gguf: &Gguf, config: &DecoderConfig, name: &str) -> Option<usize> {
    let is = |part: &str| name.contains(part);
    match gguf.architecture.as_str() {
        "llama" if is(".q_proj.") => Some(config.num_attention_heads),
        "llama" if is(".k_proj.") => Some(config.key_value_heads()),
        _ => None,
    }
}

/// Puts the rows of each head from pairs of neighbours back to halves: llama.cpp turns neighbours, Hugging Face's models
/// the halves.
fn apart(tensor: &Tensor, heads: usize) -> candle_core::Result<Tensor> {
    let mut shape = vec![heads, tensor.dim(0)? / heads.max(1) / 2, 2];
    shape.extend(&tensor.dims()[1..]);
    tensor.reshape(shape)?.transpose(1, 2)?.contiguous()?.reshape(tensor.dims())
}
