//! BM25's weights: by a term's rarity and by its frequency in a document.

/// Limit of term frequencies with tabulated factors.
const TABLED: usize = 8;

/// Statistics of a whole index that scores depend on.
pub(crate) struct Statistics {
    documents: u64,
    k1: f32,
    /// Term-frequency factor by frequency (below [`TABLED`]) and length class.
    factors: Vec<[f32; 256]>,
    /// Part of the denominator that depends on the length class.
    norms: [f32; 256],
}

impl Statistics {
    /// Computes the statistics of an index with `documents` documents and `tokens` tokens in total.
    pub(super) fn of(k1: f32, b: f32, documents: u64, tokens: u64) -> Self {
        let average = tokens as f32 / documents.max(1) as f32;
        let norms: [f32; 256] = std::array::from_fn(|class| {
            let length = tantivy::fieldnorm::FieldNormReader::id_to_fieldnorm(class as u8) as f32;
            // Without tokens the average is 0, by which nothing can be divided.
            k1 * (1.0 - b + b * length / average.max(f32::MIN_POSITIVE))
        });
        let factors = (0..TABLED).map(|tf| norms.map(|norm| factor(tf as u32, norm))).collect();
        Self { documents, k1, factors, norms }
    }

    /// BM25's inverse document frequency, ln(1 + (N - n + 0.5) / (n + 0.5)), times k1 + 1.
    pub(super) fn weight(&self, document_frequency: u64) -> f32 {
        let (all, with) = (self.documents as f32, document_frequency as f32);
        (1.0 + (all - with + 0.5) / (with + 0.5)).ln() * (1.0 + self.k1)
    }

    pub(super) fn factor(&self, frequency: u32, class: u8) -> f32 {
        match self.factors.get(frequency as usize) {
            Some(row) => row[class as usize],
            None => factor(frequency, self.norms[class as usize]),
        }
    }
}

fn factor(frequency: u32, norm: f32) -> f32 {
    let frequency = frequency as f32;
    frequency / (frequency + norm)
}
