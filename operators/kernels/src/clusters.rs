//! Clusters of vectors of length 1 by direction: spherical k-means (Dhillon and Modha, Machine Learning 42, 2001).
//!
//! Sums are added in the order of the vectors, so the result does not depend on the number of threads.

use pulp::Arch;
use rayon::prelude::*;

use crate::matrix::{View, multiply};
use crate::vectorized::{fold, sum_of_squares};

/// Vectors per task.
const BLOCK: usize = 128;
/// Centroids multiplied at a time, so that their products with a block stay in the cache.
const TILE: usize = 1024;

/// Returns for each vector the centroid with the largest inner product, the first of equals.
///
/// # Panics
/// When there are vectors but no centroids.
pub fn nearest(vectors: &[f32], centroids: &[f32], dimensions: usize) -> Vec<u32> {
    assert!(vectors.is_empty() || centroids.len() >= dimensions, "there are centroids");
    let blocks = vectors.par_chunks(BLOCK * dimensions);
    blocks.flat_map_iter(|block| nearest_of_block(block, centroids, dimensions)).collect()
}

fn nearest_of_block(block: &[f32], centroids: &[f32], dimensions: usize) -> Vec<u32> {
    let count = block.len() / dimensions;
    let mut best = vec![(f32::NEG_INFINITY, 0u32); count];
    let mut products = vec![0.0; count * TILE];
    for (tile, first) in centroids.chunks(TILE * dimensions).zip((0u32..).step_by(TILE)) {
        let width = tile.len() / dimensions;
        let products = &mut products[..count * width];
        let (left, right) = (View::new(block, count, dimensions), View::new(tile, width, dimensions));
        multiply(products, width, &left, &right.transposed(), 1.0, false);
        for (best, row) in best.iter_mut().zip(products.chunks_exact(width)) {
            let highest = Arch::new().dispatch(|| fold(row, f32::NEG_INFINITY, f32::max, f32::max));
            // Not at equal products: the first centroid of all counts.
            if highest > best.0 {
                let index = row.iter().position(|product| *product >= highest).unwrap_or(0);
                *best = (highest, first + index as u32);
            }
        }
    }
    best.into_iter().map(|(_, centroid)| centroid).collect()
}

/// Returns `count` centroids of length 1 after so many rounds; the first ones are vectors picked at equal distances. A
/// centroid without vectors stays where it is.
///
/// # Panics
/// When `count` is 0 or larger than the number of vectors.
pub fn spherical(vectors: &[f32], dimensions: usize, count: usize, rounds: usize) -> Vec<f32> {
    let all = vectors.len() / dimensions;
    assert!((1..=all).contains(&count), "as many centroids as vectors at most");
    let mut centroids: Vec<f32> = Vec::with_capacity(count * dimensions);
    for number in 0..count {
        let start = number * all / count * dimensions;
        centroids.extend_from_slice(&vectors[start..][..dimensions]);
    }
    for _ in 0..rounds {
        let mut sums = vec![0.0f32; centroids.len()];
        let owners = nearest(vectors, &centroids, dimensions);
        for (vector, owner) in vectors.chunks_exact(dimensions).zip(owners) {
            let sums = &mut sums[owner as usize * dimensions..][..dimensions];
            for (sum, number) in sums.iter_mut().zip(vector) {
                *sum += number;
            }
        }
        for (centroid, sum) in centroids.chunks_exact_mut(dimensions).zip(sums.chunks_exact(dimensions)) {
            // Only the direction counts: a sum grows with its number of vectors.
            let length = sum_of_squares(sum).sqrt();
            if length > 0.0 {
                for (number, sum) in centroid.iter_mut().zip(sum) {
                    *number = sum / length;
                }
            }
        }
    }
    centroids
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unit vectors around a few directions.
    fn around(directions: usize, count: usize, dimensions: usize) -> Vec<f32> {
        let noise = |n: usize| ((n * 7919) % 1013) as f32 / 1013.0 - 0.5;
        (0..count)
            .flat_map(|vector| {
                let number = move |d: usize| f32::from(d == vector % directions) + 0.2 * noise(vector * 131 + d);
                let own: Vec<f32> = (0..dimensions).map(number).collect();
                let length = sum_of_squares(&own).sqrt();
                own.into_iter().map(move |number| number / length)
            })
            .collect()
    }

    #[test]
    fn clusters_find_the_directions() {
        let (dimensions, vectors) = (16, around(5, 1000, 16));
        let centroids = spherical(&vectors, dimensions, 5, 4);
        let owners = nearest(&vectors, &centroids, dimensions);
        let mut names: Vec<u32> = owners[..5].to_vec();
        assert!(owners.iter().zip((0..5).cycle()).all(|(owner, kind)| *owner == names[kind]));
        names.sort_unstable();
        assert_eq!(names, [0, 1, 2, 3, 4]);
        for centroid in centroids.chunks(dimensions) {
            assert!((sum_of_squares(centroid) - 1.0).abs() < 1e-5);
        }
    }

    #[test]
    fn the_nearest_centroid_is_the_first_of_equals_beyond_a_tile_too() {
        let mut centroids = around(7, 2 * TILE + 3, 8);
        let last = centroids.len() - 8;
        let aim = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0];
        centroids[last..].copy_from_slice(&aim);
        assert_eq!(nearest(&aim.repeat(300), &centroids, 8), vec![(2 * TILE + 2) as u32; 300]);
        assert_eq!(nearest(&aim, &aim.repeat(3), 8), [0]);
        assert_eq!(nearest(&[], &[], 8), Vec::<u32>::new());
    }
}
