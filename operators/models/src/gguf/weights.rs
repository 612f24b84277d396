//! The tensors of a GGUF file with the names and the row order of Hugging Face's checkpoints.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;

use candle_core::{Device, Tensor};
use searchmill_engine::operator::OperatorError;

use super::file::{Gguf, plain};
use crate::decoder::{DecoderConfig, Tensors};
use crate::files::on_path;

/// Parts of names: Hugging Face's, then llama.cpp's.
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

/// Returns a tensor's name in the file.
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

/// Loads all tensors of the configuration, in f32.
pub(super) fn read(gguf: &Gguf, config: &DecoderConfig) -> Result<Tensors, OperatorError> {
    let mut file = open(gguf)?;
    let mut tensors = Tensors::new();
    // Llama 3's frequency factors are no weight of the network: `config` turns them into its rope scaling.
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
    // The index is a hash map: the first name in order is the same in every run.
    let extra = gguf.content.tensor_infos.keys().filter(|name| !taken.contains(*name)).min();
    match extra {
        None => Ok(tensors),
        Some(extra) => Err(gguf.broken(format!("unexpected tensor `{extra}`: its metadata describe another model"))),
    }
}

/// Reads the numbers of a tensor.
pub(super) fn numbers(gguf: &Gguf, name: &str) -> Result<Vec<f32>, OperatorError> {
    let tensor = tensor(gguf, &mut open(gguf)?, name)?;
    tensor.flatten_all().and_then(|flat| flat.to_vec1()).map_err(|error| gguf.broken(plain(&error)))
}

fn open(gguf: &Gguf) -> Result<BufReader<File>, OperatorError> {
    Ok(BufReader::new(File::open(&gguf.path).map_err(on_path(&gguf.path))?))
}

fn tensor(gguf: &Gguf, file: &mut BufReader<File>, name: &str) -> Result<Tensor, OperatorError> {
    if !gguf.content.tensor_infos.contains_key(name) {
        return Err(gguf
            .broken(format!("missing tensor `{name}`"))
            .with_help("check that the file is complete, and not one of several parts"));
    }
    // Dequantised on the CPU: a device need not know the kinds of blocks.
    let read = gguf.content.tensor(file, name, &Device::Cpu).and_then(|tensor| tensor.dequantize(&Device::Cpu));
    read.map_err(|error| {
        gguf.broken(format!("cannot read tensor `{name}`: {}", plain(&error))).with_help("download the file again")
    })
}

/// Returns the number of heads of a layer whose rows llama.cpp reorders: queries and keys of `llama` files.
fn heads(gguf: &Gguf, config: &DecoderConfig, name: &str) -> Option<usize> {
    if gguf.architecture != "llama" {
        None
    } else if name.contains(".q_proj.") {
        Some(config.num_attention_heads)
    } else if name.contains(".k_proj.") {
        Some(config.key_value_heads())
    } else {
        None
    }
}

/// Restores the row order of each head: llama.cpp rotates neighbouring rows, Hugging Face's models rotate the two halves.
fn apart(tensor: &Tensor, heads: usize) -> candle_core::Result<Tensor> {
    let mut shape = vec![heads, tensor.dim(0)? / heads.max(1) / 2, 2];
    shape.extend(&tensor.dims()[1..]);
    tensor.reshape(shape)?.transpose(1, 2)?.contiguous()?.reshape(tensor.dims())
}
