//! `compare`: compares systems that answered the same questions, with paired intervals and tests.

mod apart;
mod figures;
mod matched;
mod output;
mod page;
mod params;
mod shown;
mod side;
mod sign_flip;
#[cfg(test)]
mod tests;

use searchmill_engine::operator::{
    Accept, BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs, Ports,
    TreeKind,
};
use searchmill_schemas::RecordKind;

use super::shared::statistics::Bootstrap;
pub use apart::{ComparedTables, compared_page};
use figures::{Comparison, corrected};
use matched::Matching;
use page::Page;
use params::{CompareParams, METRICS, QUESTIONS, REPORT};
use side::Side;

/// Compares systems that answered the same questions: tables of trajectories, of scores, or any tables with a question and
/// a number. Several samples of a question are averaged first. A system wins a question if its mean is better than that of
/// the baseline. Means have paired percentile bootstrap intervals over questions (Efron 1979). The test is a two-sided
/// paired permutation test, which flips the signs of the differences (Fisher 1935): exact for up to 20 questions that
/// differ, with random signs for more. Questions that only one of two systems answered are reported, not compared.
pub(crate) struct Compare;

impl Operator for Compare {
    type Params = CompareParams;
    const NAME: &'static str = "compare";
    const VERSION: u32 = 3;
    const ABOUT: &'static str = "Compares systems on the same questions: wins, differences with paired intervals and tests, regressions side by side.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "Two sets of rollouts by F1",
            yaml: "compared: {op: compare, from: {base: rollouts_before, new: rollouts_after}}",
        },
        Example {
            title: "Three systems by F1 and by tokens, where fewer are better, for each type of question",
            yaml: "compared:\n  op: compare\n  from: {search_r1: a, research: b, ours: c}\n  with: {base: search_r1, by: [f1, prompt_tokens asc], group_by: [question_type], examples: 10}",
        },
        Example {
            title: "Rows of all systems in one table, with a column that names the system",
            yaml: "compared: {op: compare, from: {rows: scores}, with: {system: model, base: small, by: [em], on: question, resamples: 5000, permutations: 0}}",
        },
    ];

    fn declare(params: &CompareParams) -> Declaration {
        let questions = "A row for each question, system and metric: `question_id`, `system`, `metric`, `base_value`, \
            `value`, `delta`, `outcome` (`win`, `loss`, `tie`, `unmatched`), `base_samples`, `samples`.";
        let metrics = "Mean differences with intervals, and the columns `system`, `metric`, `base_value`, `system_value`, \
            `wins`, `losses`, `ties`, `p_value`, `p_holm` (corrected over all tests of a grouping) and `exact`.";
        let ports = Ports::new()
            .named_inputs(Accept::AnyRows)
            .rows_out(QUESTIONS, RecordKind::Table, questions)
            .rows_out(METRICS, RecordKind::Metric, metrics)
            .tree_out(REPORT, TreeKind::Report, "`report.html`: figures, and what regressed first; `report.json`.");
        let (named, checked) = (params.clone(), params.clone());
        Declaration::seeded(ports)
            .issues(params.issues())
            .checks_inputs(move |inputs| named.input_issues(inputs).into_iter().collect())
            .checks_columns(move |tables| {
                let unknown = checked.column_issues(tables);
                // Types are checked once all columns exist; else an unknown column would be reported twice.
                if unknown.is_empty() { side::issues(&checked, tables) } else { unknown }
            })
            .gives(|_| output::columns().unwrap_or_default())
    }

    fn open(params: &CompareParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

impl BlockingKernel for CompareParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        self.compare(&[], inputs, outputs, context)
    }
}

impl CompareParams {
    /// Compares the inputs; the report begins with the lines of `about`.
    fn compare(
        &self,
        about: &[String],
        inputs: &Inputs,
        outputs: &mut Outputs,
        context: &Context,
    ) -> Result<(), OperatorError> {
        let by = self.by();
        let mut sides = side::read(self, inputs, outputs, context)?;
        let base = self.baseline(&mut sides)?;
        let bootstrap = Bootstrap { resamples: self.resamples, confidence: self.confidence, seed: context.seed() };
        let mut comparisons = Vec::new();
        for side in &sides {
            context.check_cancelled()?;
            let matching = Matching::of(&base, side);
            let rows = output::rows(&base, side, &matching);
            // In parts of the size of a batch: with many systems and metrics, the whole table may be large.
            for rows in rows.chunks(8192) {
                outputs.write(QUESTIONS, &output::questions(&side.name, rows, &by)?)?;
            }
            // Later nodes may refer to the columns.
            if rows.is_empty() {
                outputs.write(QUESTIONS, &output::questions(&side.name, &[], &by)?)?;
            }
            comparisons.push(Comparison::new(self, &base, side, matching, &bootstrap, comparisons.len())?);
        }
        // The correction needs the p-values of all systems, so it follows the last comparison.
        corrected(&mut comparisons, self.group_by.len());
        outputs.write(METRICS, &output::metrics(self, &comparisons)?)?;
        let shown = &shown::choose(self, &base, &sides, &comparisons);
        let (rows, comparisons) = (&shown::rows(inputs, shown, context)?, &comparisons);
        let page = Page { params: self, about, by: &by, base: &base, sides: &sides, comparisons, shown, rows };
        page.publish(&bootstrap, outputs)
    }

    /// Takes the baseline out of the sides.
    fn baseline(&self, sides: &mut Vec<Side>) -> Result<Side, OperatorError> {
        let of = self.system.as_deref().unwrap_or_default();
        let message = match sides.iter().position(|side| side.name == self.base) {
            Some(index) if sides.len() > 1 => return Ok(sides.remove(index)),
            Some(_) => format!("`system`: `{of}` is the same in all rows: there is nothing to compare with"),
            None => format!("`base`: `{of}` is never `{}`", self.base),
        };
        let names: Vec<String> = sides.iter().map(|side| format!("`{}`", side.name)).collect();
        Err(OperatorError::pipeline(message).with_help(format!("its values: {}", names.join(", "))))
    }
}
