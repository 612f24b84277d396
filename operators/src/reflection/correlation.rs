//! Correlations between checkpoints: Pearson, Spearman, and partial correlation.

/// Returns Pearson's correlation; `None` for fewer than three pairs, or if one side is constant.
pub(crate) fn pearson(x: &[f64], y: &[f64]) -> Option<f64> {
    if x.len() < 3 {
        return None;
    }
    cosine(&centred(x), &centred(y))
}

/// Returns Spearman's correlation: Pearson's of the ranks, where equal values share their mean rank.
pub(crate) fn spearman(x: &[f64], y: &[f64]) -> Option<f64> {
    pearson(&ranks(x), &ranks(y))
}

/// Returns the partial correlation of x and y: Pearson's of what least squares on the controls (and a constant) leaves
/// of them. `None` with fewer than three pairs more than independent controls, or if nothing is left of one side.
pub(crate) fn partial(x: &[f64], y: &[f64], controls: &[Vec<f64>]) -> Option<f64> {
    let mut basis: Vec<Vec<f64>> = Vec::new();
    for control in controls {
        // A control that follows from the others explains nothing more.
        basis.extend(rest_of(control, &basis));
    }
    if x.len() < 3 + basis.len() {
        return None;
    }
    cosine(&rest_of(x, &basis)?, &rest_of(y, &basis)?)
}

fn centred(values: &[f64]) -> Vec<f64> {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let rest: Vec<f64> = values.iter().map(|value| value - mean).collect();
    // The mean of equal values may differ from them in the last bit.
    if values.windows(2).all(|pair| pair[0] == pair[1]) { vec![0.0; values.len()] } else { rest }
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

/// Returns what is left of the values without their mean and the directions of an orthogonal basis; `None` if it is only
/// rounding errors.
fn rest_of(values: &[f64], basis: &[Vec<f64>]) -> Option<Vec<f64>> {
    let whole = centred(values);
    let mut rest = whole.clone();
    // Each direction twice: once leaves rounding errors behind (Gram-Schmidt).
    for direction in basis.iter().chain(basis) {
        let share = dot(&rest, direction) / dot(direction, direction);
        for (value, part) in rest.iter_mut().zip(direction) {
            *value -= share * part;
        }
    }
    if dot(&rest, &rest) <= 1e-20 * dot(&whole, &whole) { None } else { Some(rest) }
}

/// Returns the cosine between two vectors; `None` if one is zero.
fn cosine(x: &[f64], y: &[f64]) -> Option<f64> {
    let length = (dot(x, x) * dot(y, y)).sqrt();
    // Rounding may put a perfect correlation above 1.
    if length > 0.0 { Some((dot(x, y) / length).clamp(-1.0, 1.0)) } else { None }
}

/// Returns the rank of each value, from 1.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut ranks = Vec::with_capacity(values.len());
    for value in values {
        let below = values.iter().filter(|other| *other < value).count();
        let equal = values.iter().filter(|other| *other == value).count();
        ranks.push(below as f64 + (equal + 1) as f64 / 2.0);
    }
    ranks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn near(found: Option<f64>, wanted: f64) -> bool {
        found.is_some_and(|found| (found - wanted).abs() < 1e-12)
    }

    #[test]
    fn correlations_by_hand() {
        // Deviations (-1.5, -0.5, 0.5, 1.5) and (-2, 0, -1, 3): 8 / sqrt(5 · 14) = 7 / sqrt(70) with sum 7.
        let (x, y) = ([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 6.0]);
        assert!(near(pearson(&x, &y), 7.0 / 70_f64.sqrt()), "{:?}", pearson(&x, &y));
        assert!(near(spearman(&x, &y), 0.8));
        assert!(near(spearman(&x, &[1.0, 10.0, 100.0, 1e6]), 1.0));
        assert_eq!(ranks(&[5.0, 1.0, 5.0, 2.0]), [3.5, 1.0, 3.5, 2.0]);
        assert_eq!(pearson(&x[..2], &y[..2]), None);
        assert_eq!(pearson(&x, &[0.1; 4]), None);
    }

    #[test]
    fn partial_correlation_is_the_formula_of_three_correlations() {
        let (x, y, z) = ([1.0, 4.0, 2.0, 8.0, 5.0], [2.0, 1.0, 5.0, 9.0, 7.0], [1.0, 2.0, 3.0, 4.0, 5.0]);
        let [xy, xz, yz] = [pearson(&x, &y), pearson(&x, &z), pearson(&y, &z)].map(Option::unwrap);
        let formula = (xy - xz * yz) / ((1.0 - xz * xz) * (1.0 - yz * yz)).sqrt();
        assert!(near(partial(&x, &y, &[z.to_vec()]), formula));
        let doubled = z.map(|value| 2.0 * value + 7.0);
        assert!(near(partial(&x, &y, &[z.to_vec(), doubled.to_vec()]), formula), "the second control adds nothing");
        assert_eq!(partial(&z, &y, &[z.to_vec()]), None, "nothing is left of x");
        assert_eq!(partial(&x[..3], &y[..3], &[z[..3].to_vec()]), None, "three pairs, one control");
    }

    proptest! {
        #[test]
        fn correlations_are_bounded_and_symmetric(pairs in proptest::collection::vec((-9.0..9.0_f64, -9.0..9.0_f64), 3..12)) {
            let (x, y): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            for of in [pearson, spearman] {
                prop_assert_eq!(of(&x, &y), of(&y, &x));
                prop_assert!(of(&x, &y).is_none_or(|r| (-1.0..=1.0).contains(&r)));
            }
            prop_assert_eq!(partial(&x, &y, &[]), pearson(&x, &y));
        }
    }
}
