//! Sizes of groups: shares, caps and rounding.

/// Returns the number of rows for each group, proportional to `weights` and at most its cap.
///
/// With a `total`, groups that cannot fill their share contribute all their rows, and the others share the rest in
/// proportion. Without a total, the result is the largest table with exact proportions (up to rounding). Rounds by
/// the largest remainder; ties go to the earlier group.
pub(crate) fn allot(weights: &[f64], caps: &[u64], total: Option<u64>) -> Vec<u64> {
    let shares: Vec<f64> = if let Some(total) = total {
        filled(weights, caps, total)
    } else {
        // The group that its cap limits most sets the scale of all others.
        let mut factors = Vec::new();
        for (weight, &cap) in weights.iter().zip(caps) {
            if *weight > 0.0 {
                factors.push(cap as f64 / weight);
            }
        }
        let factor = factors.into_iter().reduce(f64::min).unwrap_or(0.0);
        weights.iter().map(|weight| weight * factor).collect()
    };
    whole(&shares, caps)
}

/// Shares of `total`; what capped groups cannot fill goes to the others.
fn filled(weights: &[f64], caps: &[u64], total: u64) -> Vec<f64> {
    // `None`: the group is not capped so far, and has a part of the rest.
    let mut shares: Vec<Option<f64>> = weights.iter().map(|&weight| (weight <= 0.0).then_some(0.0)).collect();
    let mut rest = total as f64;
    loop {
        let mut open = 0.0;
        for (weight, share) in weights.iter().zip(&shares) {
            if share.is_none() {
                open += weight;
            }
        }
        let factor = if open > 0.0 { rest / open } else { 0.0 };
        let mut is_settled = true;
        for ((share, weight), &cap) in shares.iter_mut().zip(weights).zip(caps) {
            if share.is_none() && weight * factor > cap as f64 {
                *share = Some(cap as f64);
                rest -= cap as f64;
                is_settled = false;
            }
        }
        // A group that was just capped leaves more to the others, which may now exceed their caps.
        if is_settled {
            return shares.iter().zip(weights).map(|(share, weight)| share.unwrap_or(weight * factor)).collect();
        }
    }
}

/// Rounds shares to whole numbers with the same sum, by the largest remainder.
fn whole(shares: &[f64], caps: &[u64]) -> Vec<u64> {
    // A share just below a whole number counts as that number: 0.1 · 30 is 3.
    let floors: Vec<u64> = shares.iter().map(|share| (share + 1e-9).floor() as u64).collect();
    let wanted = shares.iter().sum::<f64>().round() as u64;
    let mut counts: Vec<u64> = floors.iter().zip(caps).map(|(&floor, &cap)| floor.min(cap)).collect();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by(|&a, &b| (shares[b] - floors[b] as f64).total_cmp(&(shares[a] - floors[a] as f64)).then(a.cmp(&b)));
    let mut missing = wanted.saturating_sub(counts.iter().sum());
    for group in order {
        // A whole share is complete: only shares that were rounded down may get another row.
        if missing > 0 && shares[group] > floors[group] as f64 && counts[group] < caps[group] {
            counts[group] += 1;
            missing -= 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shares_by_hand() {
        assert_eq!(allot(&[1.0, 1.0, 1.0], &[60, 20, 90], None), [20, 20, 20]);
        assert_eq!(allot(&[1.0, 1.0, 1.0], &[60, 20, 90], Some(100)), [40, 20, 40]);
        assert_eq!(allot(&[1.0, 1.0, 1.0], &[9, 9, 9], Some(10)), [4, 3, 3], "the earlier group gets the odd row");
        assert_eq!(allot(&[3.0, 1.0, 0.0], &[60, 60, 60], None), [60, 20, 0]);
        assert_eq!(allot(&[1.0, 1.0], &[3, 4], Some(100)), [3, 4], "no more than there is");
        assert_eq!(allot(&[0.1, 0.9], &[30, 30], Some(30)), [3, 27]);
        assert_eq!(allot(&[], &[], Some(5)), Vec::<u64>::new());
        assert_eq!(allot(&[0.0], &[5], None), [0]);
    }

    proptest! {
        #[test]
        fn caps_hold_and_totals_are_met(
            groups in prop::collection::vec((0.01_f64..10.0, 0_u64..200), 1..12),
            total in 0_u64..1_000,
        ) {
            let (weights, caps): (Vec<f64>, Vec<u64>) = groups.into_iter().unzip();
            let counts = allot(&weights, &caps, Some(total));
            prop_assert!(counts.iter().zip(&caps).all(|(count, cap)| count <= cap));
            prop_assert_eq!(counts.iter().sum::<u64>(), total.min(caps.iter().sum()));
            let free = allot(&weights, &caps, None);
            prop_assert!(free.iter().zip(&caps).all(|(count, cap)| count <= cap));
        }
    }
}
