//! Data of a step over many rows on a device, computed once and used by every layer.

use candle_core::{DType, Device, Result, Tensor};

use super::device_cache::DeviceCache;
use super::network::Piece;
use super::shape::Shape;
use crate::decoder::Rope;

/// Attention scores held in memory at a time.
const SCORES: usize = 1 << 27;
/// Bias of keys that a token does not see; no score can outweigh it.
const HIDDEN: f64 = 1e30;

/// Places, angles and masks of a step. The tokens of all pieces are concatenated.
pub(super) struct StepPlan {
    /// Tokens × half a head.
    pub(super) cosines: Tensor,
    pub(super) sines: Tensor,
    /// Indexes of the tokens' heads in the cache: (tokens · key heads) × size.
    pub(super) written: Tensor,
    pub(super) singles: Option<Singles>,
    pub(super) texts: Vec<Text>,
    /// Permutation from the order of `singles` and `texts` to that of the tokens (`None`: equal).
    pub(super) order: Option<Tensor>,
}

/// Rows that read one token. They are computed together with the rows between them, which is cheaper than a copy.
pub(super) struct Singles {
    /// First place, and the number of places up to the last one.
    pub(super) first: usize,
    pub(super) places: usize,
    /// Token of each place, arbitrary for places between (`None`: in order).
    pub(super) spread: Option<Tensor>,
    /// Place of each token (`None`: in order).
    pub(super) back: Option<Tensor>,
    /// Keys of the longest row.
    pub(super) longest: usize,
    /// Places × 1 × 1 × longest.
    pub(super) bias: Tensor,
}

/// A row that reads several tokens.
pub(super) struct Text {
    /// First token and count.
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) place: usize,
    pub(super) blocks: Vec<TextBlock>,
}

/// A block of its tokens; `bias` is tokens × keys.
pub(super) struct TextBlock {
    pub(super) first: usize,
    pub(super) bias: Tensor,
}

/// A piece: first token, count, place in the cache, and the number of tokens read before.
#[derive(Clone, Copy)]
struct Part {
    first: usize,
    count: usize,
    place: usize,
    seen: usize,
}

impl StepPlan {
    pub(super) fn new(pieces: &[Piece<'_>], shape: &Shape, rope: &Rope, cache: &DeviceCache) -> Result<Self> {
        let (mut parts, mut first) = (Vec::new(), 0);
        for piece in pieces {
            let (count, seen) = (piece.tokens.len(), piece.slot.tokens.len());
            parts.push(Part { first, count, place: piece.slot.place()?, seen });
            first += count;
        }
        let (device, dtype) = (&cache.device, cache.dtype);
        let (mut positions, mut written) = (Vec::new(), Vec::new());
        for part in &parts {
            for at in part.seen..part.seen + part.count {
                positions.push(at as u32);
                written.push((part.place, at));
            }
        }
        let (cosines, sines) = rope.angles(&positions).tables(device, dtype)?;
        let written = cache.addresses(written.into_iter())?;
        let (alone, texts): (Vec<Part>, Vec<Part>) = parts.into_iter().partition(|part| part.count == 1);
        let order: Vec<usize> =
            alone.iter().chain(&texts).flat_map(|part| part.first..part.first + part.count).collect();
        let order = if order.is_sorted() { None } else { Some(inverse(&order, device)?) };
        let singles = if alone.is_empty() { None } else { Some(Singles::new(&alone, texts.is_empty(), device)?) };
        let texts = texts.iter().map(|part| Text::new(part, shape, device)).collect::<Result<_>>()?;
        Ok(Self { cosines, sines, written, singles, texts, order })
    }
}

/// Inverts a permutation.
fn inverse(order: &[usize], device: &Device) -> Result<Tensor> {
    let mut positions = vec![0_u32; order.len()];
    for (position, number) in order.iter().enumerate() {
        positions[*number] = position as u32;
    }
    Tensor::new(positions, device)
}

impl Singles {
    fn new(alone: &[Part], are_all: bool, device: &Device) -> Result<Self> {
        let first = alone.iter().map(|part| part.place).min().unwrap_or(0);
        let places = alone.iter().map(|part| part.place + 1 - first).max().unwrap_or(0);
        let longest = alone.iter().map(|part| part.seen + 1).max().unwrap_or(1);
        // Places between those of these rows compute something that nothing reads: one key suffices, without it the
        // softmax would be of nothing.
        let (mut spread, mut ends) = (vec![alone[0].first as u32; places], vec![1_u32; places]);
        for part in alone {
            spread[part.place - first] = part.first as u32;
            ends[part.place - first] = part.seen as u32 + 1;
        }
        let back: Vec<u32> = alone.iter().map(|part| (part.place - first) as u32).collect();
        let whole = places == alone.len();
        let bias = bias(ends, longest, device)?.reshape((places, 1, 1, longest))?;
        // In the usual case, when all rows write, nothing is copied.
        let is_spread = whole && are_all && is_counting(&spread);
        let spread = if is_spread { None } else { Some(Tensor::new(spread, device)?) };
        let back = if whole && is_counting(&back) { None } else { Some(Tensor::new(back, device)?) };
        Ok(Self { first, places, spread, back, longest, bias })
    }
}

/// Whether these are 0, 1, 2, ….
fn is_counting(numbers: &[u32]) -> bool {
    numbers.iter().enumerate().all(|(at, number)| at as u32 == *number)
}

impl Text {
    fn new(part: &Part, shape: &Shape, device: &Device) -> Result<Self> {
        let keys = part.seen + part.count;
        let step = (SCORES / (shape.heads * keys)).max(1);
        let mut blocks = Vec::new();
        for first in (0..part.count).step_by(step) {
            let count = step.min(part.count - first);
            // A token sees itself and all tokens before it.
            let ends = (0..count).map(|token| (part.seen + first + token + 1) as u32).collect();
            blocks.push(TextBlock { first, bias: bias(ends, part.seen + first + count, device)? });
        }
        Ok(Self { first: part.first, count: part.count, place: part.place, blocks })
    }
}

/// Returns the mask, tokens × keys: 0 for the keys before each token's end, else the bias that hides them.
fn bias(ends: Vec<u32>, keys: usize, device: &Device) -> Result<Tensor> {
    let count = ends.len();
    let keys = Tensor::arange(0, keys as u32, device)?.unsqueeze(0)?;
    let sees = keys.broadcast_lt(&Tensor::from_vec(ends, (count, 1), device)?)?;
    sees.to_dtype(DType::F32)?.affine(HIDDEN, -HIDDEN)
}
