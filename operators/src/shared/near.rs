//! Near duplicates: what `dedup` and `decontaminate` share.

use arrow::array::{AsArray, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, SchemaRef};
use schemars::JsonSchema;
use searchmill_engine::operator::{OperatorError, ParamIssue};
use searchmill_schemas::text_value;
use searchmill_text::minhash::{self, Bands, Permutations};
use searchmill_text::words::Words;
use serde::{Deserialize, Serialize};

use super::relation::{Keys, check_keys};

/// Which texts to compare, and how.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Near {
    /// Text columns or SQL expressions; several are compared as one text (`[text]`).
    #[serde(default = "text_column")]
    pub(crate) columns: Vec<String>,
    /// MinHash with banding.
    #[serde(default)]
    pub(crate) minhash: Minhash,
    /// Compare the vectors of the input `index` instead of words: finds texts that say the same in other words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) vectors: Option<Cosine>,
}

/// Comparison of the vectors of a dense index.
///
/// All pairs are compared, exactly. The index must have `factory: Flat`; the id of a row is that of a chunk in it, or of a
/// document with one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cosine {
    /// Minimum cosine of the two vectors, above 0 and at most 1 (0.9). What is similar differs between encoders.
    #[serde(default = "likely_same")]
    pub(crate) threshold: f64,
}

fn likely_same() -> f64 {
    0.9
}

impl Cosine {
    /// Returns the issues of the params, which stand at this path.
    pub(crate) fn issues(self, path: &str) -> Vec<ParamIssue> {
        threshold_issue(path, self.threshold).into_iter().collect()
    }

    /// Returns the issues of the kinds of indexes bound to an input, `None` while they are unknown.
    pub(crate) fn kind_issues(path: &str, kinds: &[Option<&str>]) -> Vec<ParamIssue> {
        let Some(kind) = kinds.iter().flatten().find(|kind| **kind != "dense") else { return Vec::new() };
        let issue = ParamIssue::new(path, format!("an index of the kind `{kind}` has no vectors of texts"));
        vec![issue.with_help("name an index with `kind: {dense: …}`")]
    }
}

fn threshold_issue(path: &str, threshold: f64) -> Option<ParamIssue> {
    // NaN is outside of the range too.
    if threshold > 0.0 && threshold <= 1.0 {
        return None;
    }
    let message = format!("must be above 0 and at most 1, found {threshold}");
    Some(ParamIssue::new(format!("{path}.threshold"), message))
}

/// MinHash with banding, over sets of word n-grams.
///
/// Signatures are those of datasketch 2 (`MinHash`), bands and rows those of its `MinHashLSH` with equal weights:
/// Broder 1997, On the resemblance and containment of documents; Leskovec, Rajaraman and Ullman, Mining of Massive
/// Datasets, chapter 3. Two texts are candidates if their signatures agree in all rows of a band: for a similarity s, with
/// the probability 1 - (1 - s^rows)^bands. The node's summary shows that probability at the threshold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct Minhash {
    /// Words per n-gram (5). A text with fewer words has one n-gram: all its words. A text without words is similar to
    /// no other.
    pub(crate) ngram: usize,
    /// Minimum Jaccard similarity of the two sets of n-grams, above 0 and at most 1 (0.8).
    pub(crate) threshold: f64,
    /// Number of permutations: values per signature, from 2 to 1024 (128).
    pub(crate) permutations: usize,
    /// Number of bands and of rows per band. Default: for the threshold, the numbers with the smallest sum of false
    /// positives and false negatives (9 bands of 13 rows for 0.8 and 128 permutations). More bands of fewer rows miss
    /// fewer pairs and compare more.
    pub(crate) banding: Option<Banding>,
    /// Seed of the permutations (1).
    pub(crate) seed: u32,
    /// Compare lower-case words without punctuation: a word is a run of letters, marks and digits, or one ideograph, kana
    /// or Hangul syllable. Unicode forms of a word are equal (NFKC, soft hyphens removed). datatrove's MinHash does the same, and also removes accents and replaces numbers; Data-Juicer's
    /// lower-cases. `false`: words are separated by white space and compared as they are.
    pub(crate) normalized: bool,
    /// Compare the sets of n-grams of candidates. `false`: all candidates count as similar.
    pub(crate) verify: bool,
}

/// Shape of the bands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Banding {
    /// Number of bands.
    pub(crate) bands: usize,
    /// Rows per band. `bands` times `rows` is at most `permutations`.
    pub(crate) rows: usize,
}

impl Near {
    /// Returns the issues of the params, which stand at this path.
    pub(crate) fn issues(&self, path: &str) -> Vec<ParamIssue> {
        let mut issues = column_issues(&format!("{path}.columns"), &self.columns);
        issues.extend(self.minhash.issues(&format!("{path}.minhash")));
        let Some(vectors) = &self.vectors else { return issues };
        issues.extend(vectors.issues(&format!("{path}.vectors")));
        // Defaults are filled in, so only another value shows that `minhash` was written.
        if self.minhash != Minhash::default() {
            let issue = ParamIssue::new(format!("{path}.minhash"), "belongs to words, but `vectors` are compared");
            issues.push(issue.with_help("remove one of the two, or use two nodes"));
        }
        issues
    }
}

impl Default for Minhash {
    fn default() -> Self {
        Self { ngram: 5, threshold: 0.8, permutations: 128, banding: None, seed: 1, normalized: true, verify: true }
    }
}

impl Minhash {
    /// Returns the issues of the params, which stand at this path.
    pub(crate) fn issues(&self, path: &str) -> Vec<ParamIssue> {
        let mut issues = Vec::new();
        if self.ngram == 0 {
            issues.push(ParamIssue::new(format!("{path}.ngram"), "must be at least 1"));
        }
        issues.extend(threshold_issue(path, self.threshold));
        if !(2..=1024).contains(&self.permutations) {
            issues.push(ParamIssue::new(format!("{path}.permutations"), "must be from 2 to 1024"));
        }
        if let Some(Banding { bands, rows }) = self.banding {
            let (values, limit) = (bands.saturating_mul(rows), self.permutations);
            if values == 0 || values > limit {
                let message =
                    format!("`bands` times `rows` must be from 1 to {limit} (`permutations`), found {values}");
                issues.push(ParamIssue::new(format!("{path}.banding"), message));
            }
        }
        issues
    }
}

/// Sets of n-grams and their signatures.
pub(crate) struct Sketcher {
    params: Minhash,
    permutations: Permutations,
    banding: Banding,
}

impl Sketcher {
    pub(crate) fn new(params: &Minhash) -> Self {
        let banding = params.banding.unwrap_or_else(|| {
            let (bands, rows) = minhash::banding(params.threshold, params.permutations);
            Banding { bands, rows }
        });
        let permutations = Permutations::new(params.permutations, params.seed);
        Self { params: params.clone(), permutations, banding }
    }

    /// Returns the n-grams of a text; none for a text without words.
    pub(crate) fn set(&self, text: &str) -> Box<[u64]> {
        let words = if self.params.normalized { Words::folded(text) } else { Words::plain(text) };
        minhash::set(words.grams(self.params.ngram))
    }

    /// Returns the signature of a set; none for an empty set.
    pub(crate) fn signature(&self, set: &[u64]) -> Option<Vec<u32>> {
        (!set.is_empty()).then(|| self.permutations.signature(set))
    }

    /// Returns bands without signatures.
    pub(crate) fn bands(&self) -> Bands {
        Bands::new(self.banding.bands, self.banding.rows)
    }

    /// Whether two candidates count as similar.
    pub(crate) fn accepts(&self, a: &[u64], b: &[u64]) -> bool {
        !self.params.verify || minhash::jaccard(a, b) >= self.params.threshold
    }

    /// Describes the bands, for the node's summary.
    pub(crate) fn describe(&self) -> String {
        let (Banding { bands, rows }, least) = (self.banding, self.params.threshold);
        let found = 1.0 - (1.0 - least.powi(rows as i32)).powi(bands as i32);
        format!("{bands} bands of {rows} rows: a pair with similarity {least} is found with probability {found:.2}.\n")
    }
}

/// Text columns or SQL expressions, bound to the schema of the batches.
pub(crate) struct Texts(Keys);

impl Texts {
    /// Binds columns, which the user wrote in `param`.
    pub(crate) fn new(schema: &SchemaRef, param: &str, columns: &[String]) -> Result<Self, OperatorError> {
        let texts = Self(Keys::new(schema, param, columns)?);
        let values = texts.0.values(&RecordBatch::new_empty(SchemaRef::clone(schema)))?;
        for (column, values) in columns.iter().zip(&values) {
            let kind = values.data_type();
            // A column of nulls has the type Null until something fixes it.
            if !kind.is_string() && !kind.is_null() {
                let help = "name a text column, or an SQL expression such as `array_to_string(golden_answers, ' ')`";
                let message = format!("`{param}`: `{column}` is not text but {kind}");
                return Err(OperatorError::pipeline(message).with_help(help));
            }
        }
        Ok(texts)
    }

    /// Returns the text of each row: its columns, a line each, without nulls.
    pub(crate) fn of(&self, batch: &RecordBatch) -> Result<Vec<String>, OperatorError> {
        let mut columns: Vec<StringArray> = Vec::new();
        for values in self.0.values(batch)? {
            columns.push(cast(&values, &DataType::Utf8)?.as_string().clone());
        }
        let mut texts = Vec::with_capacity(batch.num_rows());
        for row in 0..batch.num_rows() {
            let lines: Vec<&str> = columns.iter().filter_map(|column| text_value(column, row)).collect();
            texts.push(lines.join("\n"));
        }
        Ok(texts)
    }
}

/// Returns the issues of a list of text columns.
pub(crate) fn column_issues(path: &str, columns: &[String]) -> Vec<ParamIssue> {
    if columns.is_empty() {
        return vec![ParamIssue::new(path, "name at least one column")];
    }
    check_keys(path, columns)
}

/// The default of the columns to compare.
pub(crate) fn text_column() -> Vec<String> {
    vec!["text".to_owned()]
}
