//! Single-threaded products of matrices stored in slices.

/// A matrix stored in a slice.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    data: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> View<'a> {
    /// Views a whole slice, row by row.
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self { data, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// Views the beginning of a slice: rows start `stride` numbers apart.
    pub fn strided(data: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        Self { data, rows, columns, row_stride: stride, column_stride: 1 }
    }

    #[must_use]
    pub fn transposed(self) -> Self {
        let (rows, columns) = (self.columns, self.rows);
        Self { rows, columns, row_stride: self.column_stride, column_stride: self.row_stride, ..self }
    }

    /// Returns the end of the matrix in the slice.
    fn span(&self) -> usize {
        match (self.rows, self.columns) {
            (0, _) | (_, 0) => 0,
            (rows, columns) => (rows - 1) * self.row_stride + (columns - 1) * self.column_stride + 1,
        }
    }
}

/// Writes `left × right × scale` to `out`, or adds it if `add`. Rows of `out` start `stride` numbers apart.
pub fn multiply(out: &mut [f32], stride: usize, left: &View<'_>, right: &View<'_>, scale: f32, add: bool) {
    let (rows, columns, depth) = (left.rows, right.columns, left.columns);
    let reach = View { data: out, rows, columns, row_stride: stride, column_stride: 1 }.span();
    assert!(depth == right.rows && columns <= stride, "the matrices fit");
    assert!(
        reach <= out.len() && left.span() <= left.data.len() && right.span() <= right.data.len(),
        "the matrices are within their slices"
    );
    // SAFETY: all three matrices are within their slices, as checked above; `out` is borrowed mutably, so it does not overlap.
    #[expect(unsafe_code, reason = "the interface of the matrix product library is made of pointers")]
    unsafe {
        gemm::gemm(
            rows,
            columns,
            depth,
            out.as_mut_ptr(),
            1,
            stride as isize,
            add,
            left.data.as_ptr(),
            left.column_stride as isize,
            left.row_stride as isize,
            right.data.as_ptr(),
            right.column_stride as isize,
            right.row_stride as isize,
            1.0,
            scale,
            false,
            false,
            false,
            // The callers split the work among threads.
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_parts_and_transposed_matrices() {
        let left: Vec<f32> = (0..12).map(|n| n as f32).collect();
        let right: Vec<f32> = (0..6).map(|n| n as f32 - 2.0).collect();
        // Columns 1 and 2 of a 3 × 4 matrix, times the transposed 3 × 2 one, into columns 1 to 3 of a 3 × 5 one.
        let part = View::strided(&left[1..], 3, 2, 4);
        let mut out = [1.0; 15];
        multiply(&mut out[1..], 5, &part, &View::new(&right, 3, 2).transposed(), 2.0, true);
        let expected = |row: usize, column: usize| {
            let product: f32 = (0..2).map(|k| left[row * 4 + 1 + k] * right[column * 2 + k]).sum();
            1.0 + 2.0 * product
        };
        for row in 0..3 {
            for column in 0..5 {
                let wanted = if (1..4).contains(&column) { expected(row, column - 1) } else { 1.0 };
                assert_eq!(out[row * 5 + column], wanted);
            }
        }
    }

    #[test]
    #[should_panic(expected = "within their slices")]
    fn a_matrix_beyond_its_slice_is_a_defect() {
        multiply(&mut [0.0; 4], 2, &View::new(&[0.0; 3], 2, 2), &View::new(&[0.0; 4], 2, 2), 1.0, false);
    }
}
