//! Means, standard deviations, percentile bootstrap over questions, and pass@k.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use searchmill_engine::operator::ParamIssue;
use searchmill_schemas::Metric;
use serde::Serialize;
use serde_json::{Value, json};

use super::html::plot::Estimate;
use super::issues::{refused, unmet};

/// Mean and sample standard deviation; both `None` for no values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// Arithmetic mean.
    pub(crate) mean: Option<f64>,
    /// Sample standard deviation (n − 1); 0 for a single value.
    pub(crate) stdev: Option<f64>,
}

impl Spread {
    /// Computes both from the values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.into_iter().collect();
        if values.is_empty() {
            return Self::default();
        }
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let stdev = if values.len() < 2 { 0.0 } else { (squares / (values.len() - 1) as f64).sqrt() };
        Self { mean: Some(mean), stdev: Some(stdev) }
    }
}

/// A named estimate.
pub(crate) type Measure = (String, Estimate);

/// Returns the estimate with this name.
pub(crate) fn named(measures: &[Measure], name: &str) -> Option<Estimate> {
    measures.iter().find(|(known, _)| known == name).map(|(_, estimate)| *estimate)
}

/// Converts the measures of a group to rows.
pub(crate) fn metric_rows(group: &str, measures: &[Measure]) -> Vec<Metric> {
    let rows = measures.iter().map(|(name, estimate)| Metric {
        id: format!("{group}/{name}"),
        name: name.clone(),
        group: group.to_owned(),
        value: estimate.value,
        low: estimate.low,
        high: estimate.high,
        count: estimate.count as i64,
    });
    rows.collect()
}

/// Converts measures to a JSON object.
pub(crate) fn measures_json(measures: &[Measure]) -> Value {
    measures.iter().map(|(name, estimate)| (name.clone(), json!(estimate))).collect::<serde_json::Map<_, _>>().into()
}

/// Settings of the bootstrap intervals.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bootstrap {
    /// Number of resamples (0 = no intervals).
    pub(crate) resamples: u32,
    /// Coverage, between 0 and 1.
    pub(crate) confidence: f64,
    /// The node's seed.
    pub(crate) seed: u64,
}

/// Measures summed per question. Resampling draws whole questions, because samples of one question are not
/// independent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clusters {
    width: usize,
    cells: Vec<(f64, f64)>,
}

impl Clusters {
    /// Builds clusters from rows sorted by question; adjacent rows of a question form one cluster. `None` marks a
    /// measure that does not apply to a row.
    pub(crate) fn new<'a>(width: usize, rows: impl IntoIterator<Item = (&'a str, Vec<Option<f64>>)>) -> Self {
        let mut clusters = Self { width, cells: Vec::new() };
        let mut last = None;
        for (question, measures) in rows {
            // Rows are sorted by question: another name begins the next cluster.
            if last != Some(question) {
                clusters.cells.resize(clusters.cells.len() + width, (0.0, 0.0));
                last = Some(question);
            }
            let start = clusters.cells.len() - width;
            for (cell, value) in clusters.cells[start..].iter_mut().zip(&measures) {
                if let Some(value) = value {
                    *cell = (cell.0 + value, cell.1 + 1.0);
                }
            }
        }
        clusters
    }

    /// Number of questions.
    pub(crate) fn len(&self) -> usize {
        self.cells.len() / self.width.max(1)
    }

    /// Returns the estimates that have rows; `names` has a name for each measure.
    pub(crate) fn measures(
        &self,
        names: impl IntoIterator<Item = String>,
        bootstrap: &Bootstrap,
        stream: u64,
    ) -> Vec<Measure> {
        let mut measures: Vec<Measure> = names.into_iter().zip(self.estimates(bootstrap, stream)).collect();
        measures.retain(|(_, estimate)| estimate.count > 0);
        measures
    }

    /// Returns the mean of each measure with percentile intervals (Efron 1979). Each group uses its own `stream`. The
    /// same seed and stream draw the same questions on any number of threads.
    pub(crate) fn estimates(&self, bootstrap: &Bootstrap, stream: u64) -> Vec<Estimate> {
        let ends = intervals(self.len(), bootstrap, stream, |drawn| self.means(drawn.iter().copied()));
        let mut estimates = Vec::with_capacity(self.width);
        for (column, (mean, (low, high))) in self.means(0..self.len()).into_iter().zip(ends).enumerate() {
            let weights = self.cells.iter().skip(column).step_by(self.width).map(|cell| cell.1);
            let count = weights.sum::<f64>() as usize;
            estimates.push(Estimate { value: mean.unwrap_or(0.0), low, high, count });
        }
        estimates
    }

    fn means(&self, drawn: impl Iterator<Item = usize>) -> Vec<Option<f64>> {
        let mut sums = vec![(0.0, 0.0); self.width];
        for cluster in drawn {
            let cells = &self.cells[cluster * self.width..(cluster + 1) * self.width];
            for (sum, cell) in sums.iter_mut().zip(cells) {
                *sum = (sum.0 + cell.0, sum.1 + cell.1);
            }
        }
        sums.into_iter().map(|(sum, weight)| (weight > 0.0).then(|| sum / weight)).collect()
    }
}

/// Returns percentile intervals of several figures: each resample draws as many of the `units` as there are, and
/// `statistic` computes the figures of the drawn ones. Fewer than two units have no intervals; an end is `None` if no
/// resample has the figure.
pub(crate) fn intervals(
    units: usize,
    bootstrap: &Bootstrap,
    stream: u64,
    statistic: impl Fn(&[usize]) -> Vec<Option<f64>> + Sync,
) -> Vec<(Option<f64>, Option<f64>)> {
    let width = statistic(&[]).len();
    if units < 2 || bootstrap.resamples == 0 {
        return vec![(None, None); width];
    }
    let count = u32::try_from(units).unwrap_or(u32::MAX);
    let resamples = (0..bootstrap.resamples).into_par_iter().map(|resample| {
        // A stream for each resample: its draws do not depend on the thread that computes it.
        let mut rng = ChaCha8Rng::seed_from_u64(bootstrap.seed);
        rng.set_stream((stream << 32) | u64::from(resample));
        statistic(&(0..count).map(|_| rng.random_range(0..count) as usize).collect::<Vec<_>>())
    });
    let drawn: Vec<Vec<Option<f64>>> = resamples.collect();
    let tail = (1.0 - bootstrap.confidence) / 2.0;
    let mut ends = Vec::with_capacity(width);
    for column in 0..width {
        // A resample may lack the figure, for example if none of its questions has it.
        let mut values: Vec<f64> = drawn.iter().filter_map(|figures| *figures.get(column)?).collect();
        values.sort_unstable_by(f64::total_cmp);
        ends.push((quantile(&values, tail), quantile(&values, 1.0 - tail)));
    }
    ends
}

/// Returns the issues of the params of bootstrap intervals.
pub(crate) fn bootstrap_issues(resamples: u32, confidence: f64) -> Vec<ParamIssue> {
    let is_outside = !(confidence > 0.0 && confidence < 1.0);
    let mut issues = refused(&[(is_outside, "confidence", "must be between 0 and 1", "write 0.95 for 95 %")]);
    issues.extend(unmet(&[(resamples <= 1_000_000, "resamples", "must be at most 1,000,000")]));
    issues
}

/// Quantile of sorted values with linear interpolation (type 7 of Hyndman and Fan 1996).
pub(crate) fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let place = share.clamp(0.0, 1.0) * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    Some(below + (above - below) * place.fract())
}

/// Unbiased estimate of the probability that at least one of `k` samples succeeds, from `n` samples with `c`
/// successes: 1 − C(n−c, k) / C(n, k). Source: Chen et al. 2021, arXiv 2107.03374, §2.1. `None` for fewer than `k`
/// samples.
pub(crate) fn pass_at_k(samples: usize, successes: usize, k: usize) -> Option<f64> {
    if k == 0 || samples < k {
        return None;
    }
    let failures = samples - successes;
    if failures < k {
        return Some(1.0);
    }
    // A product of ratios: the binomial coefficients themselves overflow.
    let all_fail: f64 = (failures + 1..=samples).map(|i| 1.0 - k as f64 / i as f64).product();
    Some(1.0 - all_fail)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOOTSTRAP: Bootstrap = Bootstrap { resamples: 1000, confidence: 0.95, seed: 7 };

    fn coin(heads: usize, all: usize) -> Clusters {
        let names: Vec<String> = (0..all).map(|i| format!("{i:04}")).collect();
        Clusters::new(
            1,
            names.iter().enumerate().map(|(i, n)| (n.as_str(), vec![Some(f64::from(u8::from(i < heads)))])),
        )
    }

    #[test]
    fn spread_is_the_sample_standard_deviation() {
        let spread = Spread::of([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!(spread.mean, Some(5.0));
        assert!((spread.stdev.unwrap() - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(Spread::of([3.0]), Spread { mean: Some(3.0), stdev: Some(0.0) });
        assert_eq!(serde_json::json!(Spread::of([])), serde_json::json!({"mean": null, "stdev": null}));
    }

    #[test]
    fn interval_of_a_proportion_is_near_the_binomial_one() {
        // p = 0.7, n = 200: ± 1.96·sqrt(0.21/200) = ± 0.0635.
        let estimate = coin(140, 200).estimates(&BOOTSTRAP, 0)[0];
        assert_eq!((estimate.value, estimate.count), (0.7, 200));
        assert!((estimate.low.unwrap() - 0.6365).abs() < 0.012, "{estimate:?}");
        assert!((estimate.high.unwrap() - 0.7635).abs() < 0.012, "{estimate:?}");
    }

    #[test]
    fn samples_of_one_question_do_not_narrow_the_interval() {
        let names: Vec<String> = (0..50).map(|i| format!("{i:04}")).collect();
        let rows = |samples: usize| {
            let row = |i: usize| (names[i].as_str(), vec![Some(f64::from(u8::from(i < 25)))]);
            Clusters::new(1, (0..50).flat_map(|i| std::iter::repeat_n(i, samples)).map(row))
        };
        let (one, eight) = (rows(1).estimates(&BOOTSTRAP, 0)[0], rows(8).estimates(&BOOTSTRAP, 0)[0]);
        assert_eq!((one.low, one.high), (eight.low, eight.high));
        assert_eq!(eight.count, 400);
    }

    #[test]
    fn seeds_and_streams_decide_the_draws() {
        let clusters = coin(30, 100);
        assert_eq!(clusters.estimates(&BOOTSTRAP, 1), clusters.estimates(&BOOTSTRAP, 1));
        let other = Bootstrap { seed: BOOTSTRAP.seed + 1, ..BOOTSTRAP };
        // The sum of the numbers of the drawn questions: coins would give the same share by chance.
        let drawn = |bootstrap: &Bootstrap, stream| {
            intervals(1000, bootstrap, stream, |drawn| vec![Some(drawn.iter().map(|place| *place as f64).sum())])
        };
        assert_ne!(drawn(&BOOTSTRAP, 1), drawn(&other, 1));
        assert_ne!(drawn(&BOOTSTRAP, 1), drawn(&BOOTSTRAP, 2));
    }

    #[test]
    fn one_question_or_none_has_no_interval() {
        assert_eq!(coin(1, 1).estimates(&BOOTSTRAP, 0)[0], Estimate { value: 1.0, low: None, high: None, count: 1 });
        assert_eq!(coin(0, 0).estimates(&BOOTSTRAP, 0)[0], Estimate::default());
    }

    #[test]
    fn intervals_of_any_statistic() {
        let values: Vec<f64> = (0..200).map(|i| f64::from(u8::from(i < 140))).collect();
        let mean = |drawn: &[usize]| {
            let sum: f64 = drawn.iter().map(|place| values[*place]).sum();
            vec![(!drawn.is_empty()).then(|| sum / drawn.len() as f64), None]
        };
        let found = intervals(200, &BOOTSTRAP, 3, mean);
        let names: Vec<String> = (0..200).map(|i| format!("{i:04}")).collect();
        let rows = names.iter().zip(&values).map(|(name, value)| (name.as_str(), vec![Some(*value)]));
        let estimate = Clusters::new(1, rows).estimates(&BOOTSTRAP, 3)[0];
        assert_eq!(found, [(estimate.low, estimate.high), (None, None)], "the same draws as for means of clusters");
        assert_eq!(intervals(1, &BOOTSTRAP, 3, mean), [(None, None); 2]);
    }

    #[test]
    fn pass_at_k_by_hand() {
        assert_eq!(pass_at_k(4, 2, 1), Some(0.5));
        assert!((pass_at_k(4, 2, 2).unwrap() - 5.0 / 6.0).abs() < 1e-12);
        assert_eq!(pass_at_k(4, 2, 3), Some(1.0));
        assert_eq!(pass_at_k(4, 0, 4), Some(0.0));
        assert_eq!(pass_at_k(1, 1, 2), None);
    }

    proptest! {
        #[test]
        fn pass_at_k_is_a_probability_and_grows(n in 1_usize..20, c in 0_usize..20, k in 1_usize..19) {
            prop_assume!(c <= n && k < n);
            let (one, more) = (pass_at_k(n, c, k).unwrap(), pass_at_k(n, c, k + 1).unwrap());
            prop_assert!((0.0..=1.0).contains(&one) && one <= more + 1e-12);
        }

        #[test]
        fn intervals_are_ordered_and_inside_the_range(values in proptest::collection::vec(0.0..1.0_f64, 2..30)) {
            let names: Vec<String> = (0..values.len()).map(|i| format!("{i:04}")).collect();
            let clusters = Clusters::new(1, names.iter().zip(&values).map(|(n, v)| (n.as_str(), vec![Some(*v)])));
            let estimate = clusters.estimates(&Bootstrap { resamples: 50, ..BOOTSTRAP }, 0)[0];
            let (low, high) = (estimate.low.unwrap(), estimate.high.unwrap());
            prop_assert!(0.0 <= low && low <= high && high <= 1.0);
        }
    }
}
