//! Products of rows with a matrix. A row's result does not depend on the other rows, to the last bit.
//!
//! Each number of the result is one dot product, summed lane by lane in the order of the inputs, for any number of rows and
//! outputs. A token's logits are therefore the same alone and in any batch, for any chunking and any number of threads.
//! (Matrix product libraries choose the order by the sizes of the matrices.)
#![expect(clippy::inline_always, reason = "only what is inlined is compiled for the vector unit of the loop it is in")]

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

/// Outputs per task, if the work is split by outputs.
const OUTPUTS: usize = 64;
/// Minimum number of rows to split the work by rows.
const MANY_ROWS: usize = 48;

/// A matrix of outputs × inputs, row by row.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    pub numbers: &'a [f32],
    pub inputs: usize,
}

impl Matrix<'_> {
    fn outputs(&self) -> usize {
        self.numbers.len() / self.inputs
    }

    fn part(&self, first: usize, count: usize) -> Self {
        Self { numbers: &self.numbers[first * self.inputs..(first + count) * self.inputs], inputs: self.inputs }
    }
}

/// Computes rows × inputs to rows × outputs on the current thread pool.
pub fn project(rows: &[f32], matrix: Matrix<'_>, out: &mut Vec<f32>) {
    let (count, outputs) = (rows.len() / matrix.inputs, matrix.outputs());
    out.clear();
    out.resize(count * outputs, 0.0);
    if out.is_empty() {
        return;
    }
    // One row is split by outputs without a copy: its parts lie behind each other.
    if count == 1 {
        out.par_chunks_mut(OUTPUTS).enumerate().for_each(|(number, out)| {
            multiply(rows, matrix.part(number * OUTPUTS, out.len()), out, out.len());
        });
    } else if count >= MANY_ROWS {
        // Two tasks a thread even out their times; four rows are multiplied together.
        let share = count.div_ceil(rayon::current_num_threads() * 2).next_multiple_of(4);
        out.par_chunks_mut(share * outputs).zip(rows.par_chunks(share * matrix.inputs)).for_each(|(out, rows)| {
            multiply(rows, matrix, out, outputs);
        });
    } else {
        project_few(rows, matrix, count, out);
    }
}

/// Splits the work by outputs, then joins the parts.
fn project_few(rows: &[f32], matrix: Matrix<'_>, count: usize, out: &mut [f32]) {
    let outputs = matrix.outputs();
    let mut parts = vec![0.0; out.len()];
    parts.par_chunks_mut(OUTPUTS * count).enumerate().for_each(|(number, part)| {
        let width = part.len() / count;
        multiply(rows, matrix.part(number * OUTPUTS, width), part, width);
    });
    for (number, part) in parts.chunks(OUTPUTS * count).enumerate() {
        let width = part.len() / count;
        for (row, part) in part.chunks_exact(width).enumerate() {
            out[row * outputs + number * OUTPUTS..][..width].copy_from_slice(part);
        }
    }
}

/// Computes the product on one thread; rows of the result start `stride` numbers apart.
pub fn multiply(rows: &[f32], matrix: Matrix<'_>, out: &mut [f32], stride: usize) {
    Arch::new().dispatch(Multiply { rows, matrix, out, stride });
}

struct Multiply<'a> {
    rows: &'a [f32],
    matrix: Matrix<'a>,
    out: &'a mut [f32],
    stride: usize,
}

impl WithSimd for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let rows = self.rows.len() / self.matrix.inputs;
        let outputs = self.matrix.outputs();
        // A block of outputs stays in the L1 cache for all rows.
        for first in (0..outputs).step_by(OUTPUTS) {
            let end = (first + OUTPUTS).min(outputs);
            let mut row = 0;
            while row + 4 <= rows {
                self.strip::<S, 4>(simd, row, first, end);
                row += 4;
            }
            match rows - row {
                1 => self.strip::<S, 1>(simd, row, first, end),
                2 => self.strip::<S, 2>(simd, row, first, end),
                3 => self.strip::<S, 3>(simd, row, first, end),
                _ => {}
            }
        }
    }
}

impl Multiply<'_> {
    /// Multiplies `R` rows with the outputs `first..end`.
    #[inline(always)]
    fn strip<S: Simd, const R: usize>(&mut self, simd: S, row: usize, first: usize, end: usize) {
        let mut output = first;
        // The sums of a tile and the numbers that meet in them fit the registers; the tile changes no result.
        if S::REGISTER_COUNT >= 32 {
            output = self.tiles::<S, R, 4>(simd, row, output, end);
        } else {
            output = self.tiles::<S, R, 3>(simd, row, output, end);
        }
        while output < end {
            self.tile::<S, R, 1>(simd, row, output);
            output += 1;
        }
    }

    /// Multiplies `R` rows with `O` outputs at a time. Returns the first output that is left.
    #[inline(always)]
    fn tiles<S: Simd, const R: usize, const O: usize>(
        &mut self,
        simd: S,
        row: usize,
        first: usize,
        end: usize,
    ) -> usize {
        let mut output = first;
        while output + O <= end {
            self.tile::<S, R, O>(simd, row, output);
            output += O;
        }
        output
    }

    /// Multiplies `R` rows with `O` outputs.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "rows and outputs index four arrays at once")]
    fn tile<S: Simd, const R: usize, const O: usize>(&mut self, simd: S, row: usize, output: usize) {
        let inputs = self.matrix.inputs;
        let left: [_; R] = std::array::from_fn(|r| S::as_simd_f32s(&self.rows[(row + r) * inputs..][..inputs]));
        let right: [_; O] =
            std::array::from_fn(|o| S::as_simd_f32s(&self.matrix.numbers[(output + o) * inputs..][..inputs]));
        let whole = inputs / S::F32_LANES;
        let left_whole: [_; R] = std::array::from_fn(|r| &left[r].0[..whole]);
        let right_whole: [_; O] = std::array::from_fn(|o| &right[o].0[..whole]);
        let mut sums = [[simd.splat_f32s(0.0); O]; R];
        for at in 0..whole {
            for r in 0..R {
                for o in 0..O {
                    sums[r][o] = simd.mul_add_e_f32s(left_whole[r][at], right_whole[o][at], sums[r][o]);
                }
            }
        }
        // The numbers that fill no register are added last, for any tile.
        for r in 0..R {
            for o in 0..O {
                let rest = left[r].1.iter().zip(right[o].1).fold(0.0, |sum, (left, right)| sum + left * right);
                self.out[(row + r) * self.stride + output + o] = simd.reduce_sum_f32s(sums[r][o]) + rest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|n| ((n * 7919 + seed * 104_729) % 1013) as f32 / 500.0 - 1.0).collect()
    }

    #[test]
    fn a_row_is_the_same_in_any_company() {
        for (inputs, outputs) in [(64, 130), (37, 5), (5, 67)] {
            let (rows, weights) = (numbers(101 * inputs, 1), numbers(outputs * inputs, 2));
            let matrix = Matrix { numbers: &weights, inputs };
            let mut alone = Vec::new();
            for row in rows.chunks(inputs) {
                let mut out = Vec::new();
                project(row, matrix, &mut out);
                alone.extend(out);
            }
            for company in [2, 3, 5, 47, 48, 101] {
                let mut out = Vec::new();
                project(&rows[..company * inputs], matrix, &mut out);
                assert_eq!(out, alone[..company * outputs], "{company} rows");
            }
            let expected: f64 = (0..inputs).map(|i| f64::from(rows[i]) * f64::from(weights[i])).sum();
            assert!((f64::from(alone[0]) - expected).abs() < 1e-4);
        }
    }
}
