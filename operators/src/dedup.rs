//! `dedup`: keeps one row per key, or per group of near duplicates.

mod by_vectors;
mod groups;
mod similar;
#[cfg(test)]
mod by_vectors_tests;
#[cfg(test)]
mod similar_tests;

use datafusion::functions::expr_fn::{regexp_replace, trim};
use datafusion::functions_aggregate::expr_fn::{max, min};
use datafusion::logical_expr::{Expr, ident, lit};
use datafusion::prelude::SessionContext;
use futures::FutureExt;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use searchmill_engine::operator::{
    Accept, Arity, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, ParamIssue, Ports,
    QueryInputs, QueryKernel, QueryOutput, TreeKind,
};
use searchmill_schemas::RecordKind;
use serde::{Deserialize, Serialize};

use super::shared::near::{Cosine, Near, Texts};
use super::shared::relation::{
    KEPT, ROW, ROWS, check_keys, columns_checked, folded, keep, key, numbered, register_functions,
};
use by_vectors::{INDEX, SimilarVectors, check_ids};
use groups::{DUPLICATES, Stays};
use similar::Similar;

/// Keeps one row per key (`by`), or per group of rows with similar texts (`near`), in input order, with all its columns.
/// NULL keys are equal to each other. With `near`, rows that are similar to each other, directly or through others, are a
/// group; a row without text is never dropped.
pub(crate) struct Dedup;

/// Parameters of `dedup`: either `by` or `near`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct DedupParams {
    /// Key: column names or SQL expressions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) by: Vec<String>,
    /// Which row of a key or group to keep.
    #[serde(default)]
    pub(crate) keep: Stays,
    /// Compare keys as text, ignoring case, punctuation, repeated spaces and Unicode forms (NFKC): each run of
    /// characters other than letters and digits counts as one space.
    #[serde(default)]
    pub(crate) normalized: bool,
    /// Find near duplicates. The dropped rows are listed in the output `duplicates`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) near: Option<Near>,
}

impl Operator for Dedup {
    type Params = DedupParams;
    const NAME: &'static str = "dedup";
    const VERSION: u32 = 3;
    const ABOUT: &'static str = "Keeps one row per key, or per group of near duplicates.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "One row per question text, ignoring case and punctuation",
            yaml: "unique: {op: dedup, from: train, with: {by: [question], normalized: true}}",
        },
        Example {
            title: "The last rollout of each question",
            yaml: "latest: {op: dedup, from: rollouts, with: {by: [question_id], keep: last}}",
        },
        Example {
            title: "Passages without near duplicates",
            yaml: "unique: {op: dedup, from: passages, with: {near: {minhash: {threshold: 0.8}}}}",
        },
        Example {
            title: "Questions that differ by more than a few words; more bands of fewer rows miss fewer pairs",
            yaml: "unique: {op: dedup, from: train, with: {near: {columns: [question], minhash: {ngram: 2, threshold: 0.6, banding: {bands: 32, rows: 4}, normalized: true}}, keep: last}}",
        },
        Example {
            title: "Passages that say the same, by the vectors of their dense index",
            yaml: "unique: {op: dedup, from: {rows: passages, index: dense}, with: {near: {vectors: {threshold: 0.95}}}}",
        },
    ];

    fn declare(params: &DedupParams) -> Declaration {
        let (ports, issues) = (Ports::new().any_rows_in(ROWS, "rows with repeats"), issues(params));
        let Some(near) = &params.near else {
            let ports = ports.same_out(ROWS, ROWS, "one row per key");
            return Declaration::pure(ports).issues(issues).query(params.clone());
        };
        let duplicates = "The dropped rows: `row` (counted from 1), `id`, `kept_row`, `kept_id`, and `similarity`, the \
            Jaccard similarity to the kept row, or the cosine of both vectors. It may be below the threshold if others \
            link the two.";
        let ports = ports.same_out(ROWS, ROWS, "one row per group").rows_out(DUPLICATES, RecordKind::Table, duplicates);
        if near.vectors.is_some() {
            let ports = ports.input_of(INDEX, Accept::Tree(TreeKind::Index), Arity::One, "A dense index of the rows.");
            return Declaration::pure(ports)
                .issues(issues)
                .checks_variants(INDEX, |kinds| Cosine::kind_issues("near.vectors", kinds))
                .gives_plain_columns()
                .checks_columns(|tables| columns_checked(tables, ROWS, check_ids).into_iter().collect());
        }
        let columns = near.columns.clone();
        Declaration::pure(ports).issues(issues).gives_plain_columns().checks_columns(move |tables| {
            columns_checked(tables, ROWS, |schema| Texts::new(schema, "near.columns", &columns)).into_iter().collect()
        })
    }

    fn open(params: &DedupParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(match &params.near {
            None => Kernel::Query(Box::new(params.clone())),
            Some(Near { vectors: Some(vectors), .. }) => {
                Kernel::Blocking(Box::new(SimilarVectors { threshold: vectors.threshold, keep: params.keep }))
            }
            Some(near) => Kernel::Blocking(Box::new(Similar::new(near, params.keep))),
        })
    }
}

fn issues(params: &DedupParams) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    if let Some(near) = &params.near {
        if !params.by.is_empty() {
            let issue = ParamIssue::new("near", "the node has two keys: `by` and `near`");
            issues.push(issue.with_help("remove one, or use two nodes"));
        }
        if params.normalized {
            let issue = ParamIssue::new("normalized", "belongs to `by`");
            issues.push(issue.with_help("write `near: {minhash: {normalized: true}}`"));
        }
        issues.extend(near.issues("near"));
        // With `near`, the list itself is an issue: its entries are not looked at.
        return issues;
    }
    if params.by.is_empty() {
        issues.push(ParamIssue::new("by", "name at least one column"));
    }
    issues.extend(check_keys("by", &params.by));
    issues
}

impl QueryKernel for DedupParams {
    fn plan<'a>(
        &'a self,
        session: &'a SessionContext,
        _inputs: &'a QueryInputs,
    ) -> BoxFuture<'a, Result<Vec<QueryOutput>, OperatorError>> {
        async move {
            register_functions(session);
            let rows = session.table(ROWS).await?;
            let mut keys = Vec::with_capacity(self.by.len());
            for text in &self.by {
                let expression = key(session, rows.schema(), "by", text)?;
                keys.push(if self.normalized { normalized(expression) } else { expression });
            }
            let row = match self.keep {
                Stays::First => min(ident(ROW)),
                Stays::Last => max(ident(ROW)),
            };
            let kept = numbered(rows.clone())?.aggregate(keys, vec![row.alias(KEPT)])?.select(vec![ident(KEPT)])?;
            Ok(vec![QueryOutput { port: ROWS.to_owned(), frame: keep(rows, kept)? }])
        }
        .boxed()
    }

    fn restores_order(&self) -> bool {
        // Aggregation leaves the rows in the order of its hash table.
        true
    }
}

/// The text of an expression, in one Unicode form, lower case, with punctuation and repeated spaces replaced by one space.
fn normalized(expression: Expr) -> Expr {
    let text = datafusion::logical_expr::cast(expression, arrow::datatypes::DataType::Utf8);
    // `\p{M}`: a combining mark, such as an Indic vowel sign, belongs to its word.
    trim(vec![regexp_replace(folded().call(vec![text]), lit(r"[^\p{L}\p{M}\p{N}]+"), lit(" "), Some(lit("g")))])
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::entry;
    use searchmill_engine::operator::testing::{Harness, inputs, rows_input};
    use searchmill_schemas::Trajectory;
    use serde_json::{Value, json};

    use super::*;
    use crate::shared::relation::testing::{ids, trajectories};

    fn run(rows: &[Trajectory], params: Value) -> Result<Vec<Trajectory>, OperatorError> {
        let outcome = Harness::new().run(&entry::<Dedup>(), params, &inputs([("rows", rows_input(rows))]))?;
        Ok(outcome.read("rows"))
    }

    #[test]
    fn the_first_or_the_last_of_each_key_stays_in_order() {
        let rows = trajectories(9_000);
        let first = run(&rows, json!({"by": ["tool_calls", "question_type"]})).expect("runs");
        assert_eq!(first, rows.iter().filter(|row| first_of(&rows, row)).cloned().collect::<Vec<_>>());
        let last = run(&rows, json!({"by": ["tool_calls"], "keep": "last"})).expect("runs");
        assert_eq!(ids(&last), ["q8997@0", "q8998@0", "q8999@0"]);
    }

    fn first_of(rows: &[Trajectory], row: &Trajectory) -> bool {
        let same = |other: &&Trajectory| other.tool_calls == row.tool_calls && other.question_type == row.question_type;
        rows.iter().find(same).is_some_and(|first| first.id == row.id)
    }

    #[test]
    fn normalized_text_ignores_case_punctuation_and_space() {
        let mut rows = trajectories(5);
        let questions = ["Who is  Zoë?", "who is zoe\u{308}", "ＷHO—IS «ZOË» !", "whois zoë", "Who is Zoe?"];
        for (row, question) in rows.iter_mut().zip(questions) {
            question.clone_into(&mut row.question);
        }
        let params = json!({"by": ["question"], "normalized": true});
        assert_eq!(ids(&run(&rows, params).expect("runs")), ["q0@0", "q3@0", "q4@0"]);
        assert_eq!(run(&rows, json!({"by": ["question"]})).expect("runs").len(), 5);
    }

    #[test]
    fn null_keys_are_one_group_and_nested_keys_compare() {
        let mut rows = trajectories(4);
        for row in &mut rows {
            row.question_type = None;
        }
        assert_eq!(ids(&run(&rows, json!({"by": ["question_type"]})).expect("runs")), ["q0@0"]);
        rows[3].golden_answers = rows[0].golden_answers.clone();
        let by_list = run(&rows, json!({"by": ["golden_answers"]})).expect("runs");
        assert_eq!(ids(&by_list), ["q0@0", "q1@0", "q2@0"]);
        assert_eq!(run(&rows, json!({"by": ["length(question_id)"]})).expect("runs").len(), 1);
    }

    #[test]
    fn empty_input_and_wrong_params() {
        assert!(run(&[], json!({"by": ["id"]})).expect("runs").is_empty());
        assert_eq!(run(&[], json!({"by": []})).expect_err("no key").message, "by: name at least one column");
        let error = run(&trajectories(1), json!({"by": ["questoin"]})).expect_err("no such column");
        assert_eq!(error.message, "`by`: there is no column `questoin`");
        assert!(error.help.expect("help").starts_with("did you mean `question`?"));
    }
}
