//! Dropout (Srivastava et al. 2014): masks of random bits, and their products with rows.
//!
//! The bits come from the stream cipher ChaCha with 8 rounds (Bernstein 2008) and are those of `ChaCha8Rng`, but computed in
//! vectors, on all threads and optimised in every profile.
#![expect(clippy::inline_always, reason = "only what is inlined is compiled for the vector unit of the loop it is in")]

use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;

/// Blocks of the cipher computed at a time.
const LANES: usize = 8;
/// Words of a block.
const WORDS: usize = 16;
/// Numbers per block: two words each, so that the bits of a block are a byte.
const NUMBERS: usize = 8;
/// Blocks per task.
const TASK: usize = 1 << 11;
/// First words of every block: "expand 32-byte k".
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

type Row = [u32; LANES];
type Blocks = [Row; WORDS];

/// Which of some numbers are kept. A kept one is multiplied by 1 / (1 − share), another one by 0.
#[derive(Clone, Debug)]
pub struct Mask {
    /// One bit per number, lowest first.
    bits: Vec<u8>,
    scale: f32,
}

impl Mask {
    /// Draws the mask of `count` numbers, of which a share is dropped. Number `n` is dropped if the 53 highest bits of
    /// the stream's 64-bit word `n` are below the share of 2^53.
    pub fn draw(key: [u8; 32], stream: u64, share: f64, count: usize) -> Self {
        let limit = ((share * (1_u64 << 53) as f64).ceil() as u64) << 11;
        let words = key.as_chunks::<4>().0;
        let key: [u32; 8] = std::array::from_fn(|word| u32::from_le_bytes(words[word]));
        let mut bits = vec![0; count.div_ceil(NUMBERS)];
        // The cipher's blocks are numbered: a task starts at any of them, with any number of threads.
        bits.par_chunks_mut(TASK).enumerate().for_each(|(task, bits)| {
            Arch::new().dispatch(Part { key: &key, stream, first: (task * TASK) as u64, limit, bits });
        });
        Self { bits, scale: (1.0 / (1.0 - share)) as f32 }
    }

    /// Returns the factors of `count` numbers.
    pub fn factors(&self, count: usize) -> Vec<f32> {
        let mut factors = vec![1.0; count];
        self.each(&mut factors, |number, factor| *number = factor);
        factors
    }

    /// Returns the products of the numbers with their factors.
    pub(super) fn times(&self, numbers: &[f32]) -> Vec<f32> {
        let mut out = numbers.to_vec();
        self.each(&mut out, |number, factor| *number *= factor);
        out
    }

    /// Adds the products of the numbers with their factors to `sums`.
    pub(super) fn add_times(&self, sums: &mut [f32], mut numbers: Vec<f32>) {
        self.each(&mut numbers, |number, factor| *number *= factor);
        let part = TASK * NUMBERS;
        sums.par_chunks_mut(part).zip(numbers.par_chunks(part)).for_each(|(sums, more)| super::add(sums, more));
    }

    fn each(&self, numbers: &mut [f32], step: impl Fn(&mut f32, f32) + Sync) {
        numbers.par_chunks_mut(TASK * NUMBERS).zip(self.bits.par_chunks(TASK)).for_each(|(numbers, bits)| {
            Arch::new().dispatch(|| {
                for (numbers, bits) in numbers.chunks_mut(NUMBERS).zip(bits) {
                    for (place, number) in numbers.iter_mut().enumerate() {
                        step(number, if bits >> place & 1 == 1 { self.scale } else { 0.0 });
                    }
                }
            });
        });
    }
}

/// The bits of a task. A closure of this size would not be compiled for the vector unit.
struct Part<'a> {
    key: &'a [u32; 8],
    stream: u64,
    /// Number of the first block.
    first: u64,
    limit: u64,
    bits: &'a mut [u8],
}

impl NullaryFnOnce for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (index, bits) in self.bits.chunks_mut(LANES).enumerate() {
            let words = blocks(self.key, self.stream, self.first + (index * LANES) as u64);
            let drawn = at_least(&words, self.limit);
            bits.copy_from_slice(&drawn[..bits.len()]);
        }
    }
}

/// Returns a byte for each block: a bit for each number that is at least `limit`.
#[inline(always)]
fn at_least(words: &Blocks, limit: u64) -> [u8; LANES] {
    let mut bits = [0; LANES];
    for (number, [low, high]) in words.as_chunks::<2>().0.iter().enumerate() {
        for ((bits, low), high) in bits.iter_mut().zip(low).zip(high) {
            let drawn = u64::from(*high) << 32 | u64::from(*low);
            *bits |= u8::from(drawn >= limit) << number;
        }
    }
    bits
}

/// Computes blocks of the cipher from number `first` on, in columns.
#[inline(always)]
fn blocks(key: &[u32; 8], stream: u64, first: u64) -> Blocks {
    let mut start = [[0; LANES]; WORDS];
    for (row, word) in start.iter_mut().zip(CONSTANTS.iter().chain(key)) {
        *row = [*word; LANES];
    }
    let (mut low, mut high) = ([0; LANES], [0; LANES]);
    for (lane, (low, high)) in low.iter_mut().zip(&mut high).enumerate() {
        let number = first + lane as u64;
        (*low, *high) = (number as u32, (number >> 32) as u32);
    }
    (start[12], start[13]) = (low, high);
    (start[14], start[15]) = ([stream as u32; LANES], [(stream >> 32) as u32; LANES]);
    let mut state = start;
    // Four double rounds: columns, then diagonals.
    for _ in 0..4 {
        quarter::<0, 4, 8, 12>(&mut state);
        quarter::<1, 5, 9, 13>(&mut state);
        quarter::<2, 6, 10, 14>(&mut state);
        quarter::<3, 7, 11, 15>(&mut state);
        quarter::<0, 5, 10, 15>(&mut state);
        quarter::<1, 6, 11, 12>(&mut state);
        quarter::<2, 7, 8, 13>(&mut state);
        quarter::<3, 4, 9, 14>(&mut state);
    }
    for (word, start) in state.iter_mut().zip(&start) {
        *word = sum(*word, *start);
    }
    state
}

/// The cipher's quarter round.
#[inline(always)]
fn quarter<const A: usize, const B: usize, const C: usize, const D: usize>(state: &mut Blocks) {
    let [mut a, mut b, mut c, mut d] = [state[A], state[B], state[C], state[D]];
    a = sum(a, b);
    d = turned::<16>(d, a);
    c = sum(c, d);
    b = turned::<12>(b, c);
    a = sum(a, b);
    d = turned::<8>(d, a);
    c = sum(c, d);
    b = turned::<7>(b, c);
    (state[A], state[B], state[C], state[D]) = (a, b, c, d);
}

#[inline(always)]
fn sum(mut one: Row, other: Row) -> Row {
    for (word, other) in one.iter_mut().zip(&other) {
        *word = word.wrapping_add(*other);
    }
    one
}

#[inline(always)]
fn turned<const LEFT: u32>(mut one: Row, other: Row) -> Row {
    for (word, other) in one.iter_mut().zip(&other) {
        *word = (*word ^ *other).rotate_left(LEFT);
    }
    one
}
