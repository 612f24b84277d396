//! `reflection`: measures how often models reconsider what they said, and whether that goes with better answers.

mod checkpoints;
mod correlation;
mod measure;
mod page;
mod params;
mod response;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};
use arrow::datatypes::{DataType, Field};
use searchmill_engine::fingerprint::hash_bytes;
use searchmill_engine::operator::{
    Accept, Arity, BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs,
    Ports, TreeKind,
};
use searchmill_schemas::{RecordKind, to_batch};
use searchmill_text::lexicon::Lexicon;

use super::shared::columns::with_columns;
use super::shared::html::{write, write_json};
use super::shared::statistics::Bootstrap;
use checkpoints::{Responses, Row, TRAJECTORIES};
use measure::{Length, correlations, groups};
use page::Report;
use params::ReflectionParams;

/// Counts phrases of reflection ("wait,", "let me verify", "think again") in what models wrote, over the checkpoints
/// of a training: the share of responses with a phrase, phrases per 1,000 tokens, their correlation with the score
/// (also given training step and response length), and the scores of reflective and unreflective responses to the same
/// questions. After the analysis in Seungyoun's reproduction of Search-R1, whose definitions are not published.
pub(crate) struct Reflection;

const METRICS: &str = "Every figure with its interval, and the digest of the lexicon in the column `lexicon`. Groups: \
    `checkpoint=<name>`, `all`. Names, with EM as score and tokens as length: rpr (share of responses with a phrase), \
    hits_per_1000_tokens, tokens (mean length), em, em_reflective, em_unreflective, matched_em_reflective, \
    matched_em_unreflective, matched_em_difference (questions with both kinds of responses at a checkpoint); between \
    checkpoints, in the group `all`: pearson, spearman, partial_given_length, partial_given_step, \
    partial_given_step_and_length.";

impl Operator for Reflection {
    type Params = ReflectionParams;
    const NAME: &'static str = "reflection";
    const VERSION: u32 = 3;
    const ABOUT: &'static str =
        "Measures how often models reconsider what they said, and whether that goes with better answers.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "Compare the models of a table of rollouts",
            yaml: "mirror: {op: reflection, from: rollouts}",
        },
        Example {
            title: "Rollouts of several checkpoints, one input each",
            yaml: "mirror:\n  op: reflection\n  from: {trajectories: [base, early, late]}\n  with: {checkpoints: [{name: base, step: 0}, {name: early, step: 200}, {name: late, step: 1000}]}",
        },
        Example {
            title: "Steps from the model's name, data sets with equal weight, a lexicon of its own",
            yaml: "mirror:\n  op: reflection\n  from: rollouts\n  with:\n    by: [model]\n    step: \"CAST(regexp_replace(model, '.*-', '') AS INT)\"\n    dataset: question_type\n    score: f1\n    lexicon: [\"wait,\", \"let me (?:check|verify)\"]",
        },
    ];

    fn declare(params: &ReflectionParams) -> Declaration {
        let rollouts = Accept::Rows(vec![RecordKind::Trajectory]);
        let ports = Ports::new()
            .input_of(TRAJECTORIES, rollouts, Arity::Many, "Rollouts of one or several checkpoints.")
            .rows_out("metrics", RecordKind::Metric, METRICS)
            .tree_out("report", TreeKind::Report, "`report.html` (a single page without scripts) and `report.json`.");
        Declaration::seeded(ports).issues(params.issues())
    }

    fn open(params: &ReflectionParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

impl BlockingKernel for ReflectionParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let expressions = self.expressions();
        let lexicon = Lexicon::new(&expressions)
            .map_err(|(place, message)| OperatorError::pipeline(format!("lexicon.{place}: {message}")))?;
        let all = Responses::read(self, &lexicon, inputs, context)?;
        context.check_cancelled()?;
        let bootstrap = Bootstrap { resamples: self.resamples, confidence: self.confidence, seed: context.seed() };
        // One unit for all checkpoints: figures in different units cannot be compared.
        let length = Length::of(&all.rows);
        let (checkpoints, together) = groups(&all, length, self.score, &bootstrap);
        let report = Report {
            params: self,
            seed: context.seed(),
            lexicon: hash_bytes(expressions.join("\n").as_bytes()).to_string(),
            length,
            correlations: correlations(&checkpoints, length, self.score, &bootstrap),
            checkpoints,
            all: together,
            phrases: phrases(&all.rows),
            responses: all.rows.len(),
            unscored: all.rows.iter().filter(|row| row.response.score.is_none()).count(),
        };
        let rows = report.metrics();
        if !rows.is_empty() {
            // Figures of different lexicons cannot be compared, so each row names its own.
            let digests: ArrayRef = Arc::new(StringArray::from_iter_values(rows.iter().map(|_| &report.lexicon)));
            let lexicon = (Field::new("lexicon", DataType::Utf8, false), digests);
            outputs.write("metrics", &with_columns(&to_batch(&rows)?, vec![lexicon])?)?;
        }
        let folder = outputs.tree("report")?;
        write(&folder.join("report.html"), &report.page())?;
        write_json(&folder.join("report.json"), &report.json())?;
        outputs.summary(&report.summary());
        for row in rows.iter().filter(|row| row.group == "all") {
            outputs.figure(&row.name, row.value);
        }
        Ok(())
    }
}

/// Counts the responses that contain each matched phrase.
fn phrases(rows: &[Row]) -> Vec<(String, usize)> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows {
        // A response counts once for each phrase, however often it has it.
        for phrase in row.response.hits.iter().collect::<BTreeSet<_>>() {
            *counts.entry(phrase).or_default() += 1;
        }
    }
    let mut counts: Vec<_> = counts.into_iter().map(|(phrase, count)| (phrase.to_owned(), count)).collect();
    // Stable: phrases with the same count stay in the order of the alphabet.
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}
