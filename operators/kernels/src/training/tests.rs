//! Gradients against finite differences of a weighted sum of the outputs, along a random direction.

use super::*;
use crate::attention::{Attention, Heads, Span};
use crate::loops::Turns;

const HIDDEN: usize = 12;
const SIZE: usize = 4;
const HEADS: usize = 4;
const SHARED: usize = 2;
const WIDE: usize = 20;
const COLUMNS: usize = 9;
const ROWS: usize = 2;
const RANK: usize = 3;

fn random(count: usize, seed: u32, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * scale
    };
    (0..count).map(|_| next()).collect()
}

/// Inputs and outputs of each map.
const SHAPES: [(usize, usize); MAPS] = [
    (HIDDEN, HEADS * SIZE),
    (HIDDEN, SHARED * SIZE),
    (HIDDEN, SHARED * SIZE),
    (HEADS * SIZE, HIDDEN),
    (HIDDEN, WIDE),
    (HIDDEN, WIDE),
    (WIDE, HIDDEN),
];

/// Returns random weights of a layer, in the shape of their gradients.
fn numbers(seed: u32, scale: f32) -> LayerGradients {
    let norm = |count: usize, seed: u32| random(count, seed, scale).into_iter().map(|n| n + 1.0).collect();
    let mut maps: [MapGradients; MAPS] = Default::default();
    for (place, (map, (inputs, outputs))) in maps.iter_mut().zip(SHAPES).enumerate() {
        let seed = seed + 10 * place as u32;
        map.weight = random(inputs * outputs, seed, scale);
        map.bias = random(outputs, seed + 1, scale);
        map.a = random(RANK * inputs, seed + 2, scale);
        map.b = random(outputs * RANK, seed + 3, scale);
    }
    LayerGradients {
        input_norm: norm(HIDDEN, seed + 100),
        feed_norm: norm(HIDDEN, seed + 101),
        query_norm: norm(SIZE, seed + 102),
        key_norm: norm(SIZE, seed + 103),
        maps,
    }
}

fn slots(numbers: &mut LayerGradients) -> Vec<&mut Vec<f32>> {
    let LayerGradients { input_norm, feed_norm, query_norm, key_norm, maps } = numbers;
    let mut all = vec![input_norm, feed_norm, query_norm, key_norm];
    for MapGradients { weight, bias, a, b } in maps {
        all.extend([weight, bias, a, b]);
    }
    all
}

struct World {
    masks: Vec<Mask>,
    spans: Vec<Span>,
    cosines: Vec<f32>,
    sines: Vec<f32>,
}

impl World {
    fn new() -> Self {
        let spans = (0..ROWS * COLUMNS).map(|token| token % COLUMNS);
        // Two texts per row; the second starts at column 5.
        let span = |at: usize| Span { start: if at < 5 { 0 } else { 5 }, end: at as u32 + 1 };
        let angles = random(ROWS * COLUMNS * SIZE / 2, 7, 3.0);
        Self {
            masks: SHAPES.iter().map(|(inputs, _)| Mask::draw([7; 32], 0, 0.2, ROWS * COLUMNS * inputs)).collect(),
            spans: spans.map(span).collect(),
            cosines: angles.iter().map(|angle| angle.cos()).collect(),
            sines: angles.iter().map(|angle| angle.sin()).collect(),
        }
    }

    fn place(&self) -> Place<'_> {
        let shape = Heads { rows: ROWS, columns: COLUMNS, heads: HEADS, size: SIZE, keys: COLUMNS, shared: SHARED };
        let turns = Turns { cosines: &self.cosines, sines: &self.sines, half: SIZE / 2 };
        Place { attention: Attention { spans: &self.spans, shape }, turns }
    }

    fn layer<'a>(&'a self, numbers: &'a LayerGradients) -> Layer<'a> {
        let map = |place: usize| {
            let (map, (inputs, _)) = (&numbers.maps[place], SHAPES[place]);
            let mask = Some(self.masks[place].clone());
            let low_rank = Some(LowRank { a: &map.a, b: &map.b, scale: 0.7, mask });
            Map { weight: &map.weight, bias: Some(&map.bias), inputs, low_rank }
        };
        Layer {
            input_norm: &numbers.input_norm,
            feed_norm: &numbers.feed_norm,
            head_norms: Some((&numbers.query_norm, &numbers.key_norm)),
            maps: std::array::from_fn(map),
            sizes: Sizes { queries: HEADS * SIZE, keys: SHARED * SIZE, eps: 1e-6 },
        }
    }
}

fn dot(one: &[f32], other: &[f32]) -> f64 {
    one.iter().zip(other).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

#[test]
fn gradients_of_a_layer_are_its_slopes() {
    let (world, mut layer) = (World::new(), numbers(1, 0.5));
    let input = random(ROWS * COLUMNS * HIDDEN, 5, 1.0);
    let weights = random(input.len(), 6, 1.0);
    let mut sums = numbers(1, 0.0);
    for slot in slots(&mut sums) {
        slot.fill(0.0);
    }
    let (_, kept) = world.layer(&layer).forward(input.clone(), world.place());
    let of_input = world.layer(&layer).backward(&kept, world.place(), weights.clone(), &mut sums);

    let value = |numbers: &LayerGradients, input: &[f32]| {
        dot(&world.layer(numbers).forward(input.to_vec(), world.place()).0, &weights)
    };
    let step = 1e-2_f32;
    let check = |name: &str, slope: f64, higher: f64, lower: f64| {
        let found = (higher - lower) / f64::from(2.0 * step);
        assert!((found - slope).abs() < 0.02 * slope.abs().max(1.0), "{name}: {found} against {slope}");
    };
    let direction = random(input.len(), 11, 1.0);
    let moved = |by: f32| -> Vec<f32> { input.iter().zip(&direction).map(|(n, d)| n + by * d).collect() };
    check("input", dot(&of_input, &direction), value(&layer, &moved(step)), value(&layer, &moved(-step)));

    let slots_count = slots(&mut layer).len();
    for place in 0..slots_count {
        let direction = random(slots(&mut layer)[place].len(), 20 + place as u32, 1.0);
        let slope = dot(slots(&mut sums)[place], &direction);
        let mut at = |by: f32| {
            slots(&mut layer)[place].iter_mut().zip(&direction).for_each(|(number, d)| *number += by * d);
            let found = value(&layer, &input);
            slots(&mut layer)[place].iter_mut().zip(&direction).for_each(|(number, d)| *number -= by * d);
            found
        };
        check(&format!("weights {place}"), slope, at(step), at(-step));
    }
}

#[test]
fn gradients_of_the_head_match_finite_differences() {
    let temperatures: Vec<f32> = (0..70).map(|row| [1.0, 0.5, 2.0][row % 3]).collect();
    for with_entropies in [false, true] {
        check_head(&[], with_entropies);
        check_head(&temperatures, with_entropies);
    }
}

/// Checks the head with these temperatures, and with a value that depends on the entropies too.
fn check_head(temperatures: &[f32], with_entropies: bool) {
    let (width, vocabulary, rows) = (HIDDEN, 50, 70);
    let (vectors, weight) = (random(rows * width, 1, 1.0), random(vocabulary * width, 2, 1.0));
    let tokens: Vec<u32> = (0..rows as u32).map(|row| row * 7 % 50).collect();
    let slopes: Vec<f32> = (0..rows).map(|row| if row % 3 == 0 { 0.0 } else { -3.0 }).collect();
    let of_entropies: Vec<f32> = (0..rows).map(|row| if row % 4 == 0 { 0.0 } else { 5.0 }).collect();
    let of_entropies = if with_entropies { of_entropies } else { Vec::new() };
    let forward = |rows: &[f32], weight: &[f32], at_once: usize| {
        let (mut logs, mut best, mut entropies) = (Vec::new(), Vec::new(), Vec::new());
        Head { rows, weight, width, tokens: &tokens, temperatures, entropies: true, at_once }.forward(|found| {
            entropies.extend_from_slice(found.entropies);
            logs.extend_from_slice(found.log_probabilities);
            best.extend_from_slice(found.best);
        });
        (logs, best, entropies)
    };
    let (logs, best, entropies) = forward(&vectors, &weight, 1000);
    let (mut of_weight, mut seen) = (vec![0.0; weight.len()], (Vec::new(), Vec::new()));
    let head = Head {
        rows: &vectors,
        weight: &weight,
        width,
        tokens: &tokens,
        temperatures,
        entropies: with_entropies,
        at_once: 16,
    };
    let of_rows = head.backward(&mut of_weight, |found| {
        assert_eq!(found.entropies.is_empty(), !with_entropies, "only if asked for");
        let first = seen.0.len();
        seen.0.extend_from_slice(found.log_probabilities);
        seen.1.extend_from_slice(found.best);
        let entropies = if with_entropies { of_entropies[first..seen.0.len()].to_vec() } else { Vec::new() };
        Slopes { log_probabilities: slopes[first..seen.0.len()].to_vec(), entropies }
    });
    assert_eq!(seen, (logs.clone(), best.clone()));
    for row in 0..rows {
        let vector = &vectors[row * width..][..width];
        let temperature = f64::from(temperatures.get(row).copied().unwrap_or(1.0));
        let logits: Vec<f64> = weight.chunks(width).map(|weight| dot(vector, weight) / temperature).collect();
        let whole = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        assert!((f64::from(logs[row]) - (logits[tokens[row] as usize] - whole)).abs() < 1e-4, "row {row}");
        assert!(logits.iter().all(|logit| *logit <= logits[best[row] as usize] + 1e-4), "row {row}");
    }
    for (row, found) in entropies.iter().enumerate() {
        let temperature = f64::from(temperatures.get(row).copied().unwrap_or(1.0));
        let vector = &vectors[row * width..][..width];
        let logits: Vec<f64> = weight.chunks(width).map(|weight| dot(vector, weight) / temperature).collect();
        let whole = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        let wanted: f64 = logits.iter().map(|logit| -(logit - whole).exp() * (logit - whole)).sum();
        assert!((f64::from(*found) - wanted).abs() < 1e-4, "row {row}: {found} {wanted}");
    }
    for (numbers, gradient, is_weight) in [(&vectors, &of_rows, false), (&weight, &of_weight, true)] {
        let direction = random(numbers.len(), 3, 1.0);
        let value = |by: f32| {
            let moved: Vec<f32> = numbers.iter().zip(&direction).map(|(n, d)| n + by * d).collect();
            let (vectors, weight) = if is_weight { (&vectors, &moved) } else { (&moved, &weight) };
            let (logs, _, entropies) = forward(vectors, weight, 1000);
            dot(&logs, &slopes) + dot(&entropies, &of_entropies)
        };
        let found = (value(0.01) - value(-0.01)) / 0.02;
        assert!(
            (found - dot(gradient, &direction)).abs() < 0.01 * found.abs(),
            "{found} {}",
            dot(gradient, &direction)
        );
    }
}
