//! `decide`: says after a round of a loop whether the loop ends, and which round it hands on.

mod question;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{Float64Type, Int64Type};
use datafusion::common::TableReference;
use schemars::JsonSchema;
use searchmill_engine::operator::{
    Accept, BlockingKernel, Context, Declaration, ENDED, Example, HANDS_ON, Inputs, Kernel, Operator, OperatorError,
    Outputs, ParamIssue, Ports, RowsInput, Tables, query_session,
};
use searchmill_schemas::{RecordKind, text_value};
use serde::{Deserialize, Serialize};

use super::shared::relation::{ROWS, check_query, check_tables, tables_of};
use question::{Answer, Question, Wants, name_outputs, register};

/// The table of the rounds so far, and the input with those before.
const ROUNDS: &str = "rounds";

/// Decides after a round of a loop (`repeat:`) whether the loop ends, and which round it hands on. The loop puts it after
/// each round if it has `best` or `stop`; nobody has to write it.
///
/// Its inputs are the tables that the queries name, with the rows of this round, and `rounds`, its result of the round
/// before. In the queries, `rounds` has one row for each round so far, with the columns `round` and `best` (in `best` itself:
/// for the rounds before).
///
/// The result has one row for each round so far: `round`, `best`, `holds` (whether all conditions of `watch` hold),
/// `hands_on` (the round that the loop hands on if it ends here) and `ended` (why it ends here; NULL if it goes on).
pub(crate) struct Decide;

/// Parameters of `decide`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct DecideParams {
    /// A query that gives one number. The loop hands on the round with the highest one (of equal ones, the earliest).
    /// Without it, the last round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) best: Option<String>,
    /// A query that gives true or false: true ends the loop. Further columns are told as the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) when: Option<String>,
    /// The loop ends after this many rounds without a higher `best`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) patience: Option<u64>,
    /// Queries that give true or false, by name: conditions that must hold. The first round in which one does not ends the
    /// loop, and is not handed on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) watch: BTreeMap<String, String>,
}

impl Operator for Decide {
    type Params = DecideParams;
    const NAME: &'static str = "decide";
    const VERSION: u32 = 1;
    const DECIDES: bool = true;
    const ABOUT: &'static str = "Says after a round of a loop whether the loop ends, and which round it hands on.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "What a loop puts after a round: the best F1, and an end once it is 0.8 or answers get too long",
            yaml: "decision: {op: decide, from: {validation: scores, rollouts: rollouts}, with: {best: \"select avg(f1) from validation\", when: \"select avg(f1) >= 0.8 from validation\", watch: {turns: \"select max(turns) < 9 from rollouts\"}}}",
        },
        Example {
            title: "An end after three rounds without progress, or after so many rounds",
            yaml: "decision: {op: decide, from: {rollouts: rollouts, rounds: earlier}, with: {best: \"select -avg(turns) from rollouts\", when: \"select max(round) >= 20 from rounds\", patience: 3, watch: {turns: \"select avg(turns) < 5 from rollouts\"}}}",
        },
    ];

    fn declare(params: &DecideParams) -> Declaration {
        let ports = Ports::new().named_inputs(Accept::AnyRows).optional_inputs();
        let ports = ports.rows_out(ROWS, RecordKind::Table, "a row for each round so far");
        let (named, checked) = (params.clone(), params.clone());
        Declaration::pure(ports)
            .issues(issues(params))
            .checks_inputs(move |inputs| {
                let mut known = inputs.to_vec();
                // Listed last in the help, and there without an input: the first round has none before it.
                known.retain(|input| *input != ROUNDS);
                known.push(ROUNDS);
                let questions = questions(&named).into_iter();
                questions.filter_map(|question| check_tables(&question.path, &question.text, &known)).collect()
            })
            .checks_columns(move |known| column_issues(&checked, known))
            .gives(|_| table(&[]).map(|table| [(ROWS.to_owned(), table.schema())].into()).unwrap_or_default())
    }

    fn open(params: &DecideParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

/// Returns the queries of the params.
fn questions(params: &DecideParams) -> Vec<Question> {
    let mut questions = Vec::new();
    // `best` first: the other queries may read it from the table of the rounds.
    for (path, text, wants) in [("best", &params.best, Wants::Number), ("when", &params.when, Wants::Truth)] {
        if let Some(text) = text {
            questions.push(Question { path: path.to_owned(), text: text.clone(), wants });
        }
    }
    for (name, text) in &params.watch {
        questions.push(Question { path: format!("watch.{name}"), text: text.clone(), wants: Wants::Truth });
    }
    questions
}

fn issues(params: &DecideParams) -> Vec<ParamIssue> {
    let questions = questions(params);
    let mut issues: Vec<ParamIssue> =
        questions.iter().filter_map(|question| check_query(&question.path, &question.text)).collect();
    if params.patience == Some(0) {
        let issue = ParamIssue::new("patience", "`patience` is 0, so no second round would run");
        issues.push(issue.with_help("write 1 or more"));
    }
    if params.patience.is_some() && params.best.is_none() {
        let message = "`patience` counts rounds without a higher `best`, and there is no `best`";
        issues.push(ParamIssue::new("patience", message).with_help("add `best: \"select … from …\"` beside `stop`"));
    }
    if questions.is_empty() && params.patience.is_none() {
        issues.push(ParamIssue::new("", "there is nothing to decide").with_help("write `best`, `when` or `watch`"));
    }
    issues
}

/// Returns what does not fit the known columns: of each query all of whose tables are known.
fn column_issues(params: &DecideParams, known: &Tables) -> Vec<ParamIssue> {
    fn is_known(table: &TableReference, known: &Tables) -> bool {
        let name = match table.schema() {
            Some(schema) => format!("{schema}.{}", table.table()),
            None => table.table().to_owned(),
        };
        name == ROUNDS || known.keys().any(|port| port.eq_ignore_ascii_case(&name))
    }
    let mut questions = questions(params);
    questions.retain(|question| {
        let tables = tables_of(&question.text).unwrap_or_default();
        !tables.is_empty() && tables.iter().all(|table| is_known(table, known))
    });
    // A session costs some milliseconds.
    if questions.is_empty() {
        return Vec::new();
    }
    planned(&questions, known).unwrap_or_else(|error| vec![error]).into_iter().map(ParamIssue::from).collect()
}

/// Plans queries over empty tables; returns what is wrong with them.
fn planned(questions: &[Question], known: &Tables) -> Result<Vec<OperatorError>, OperatorError> {
    let session = query_session()?;
    for (port, schema) in known {
        register(&session, port, &RowsInput::from_batches(RecordKind::Table, Arc::clone(schema), Vec::new()))?;
    }
    // The columns of the rounds are known, whatever they will hold.
    register(&session, ROUNDS, &history(&[])?)?;
    let tables: Vec<String> = known.keys().cloned().collect();
    // Nothing waits here: the tables are empty and in memory.
    futures::executor::block_on(async {
        name_outputs(&session, &tables).await?;
        let mut unfit = Vec::new();
        for question in questions {
            unfit.extend(question.plan(&session, &tables).await.err());
        }
        Ok(unfit)
    })
}

/// A round about which something was decided.
#[derive(Clone, Debug, PartialEq)]
struct Round {
    best: Option<f64>,
    holds: bool,
    hands_on: usize,
    ended: Option<String>,
}

/// Reads the rounds before from the result of the last of them.
fn rounds_before(input: Option<&RowsInput>) -> Result<Vec<Round>, OperatorError> {
    let mut rounds = Vec::new();
    for batch in input.into_iter().flat_map(RowsInput::batches) {
        let batch = batch?;
        let [best, holds, hands_on, ended] =
            ["best", "holds", HANDS_ON, ENDED].map(|name| batch.column_by_name(name).map(AsRef::as_ref));
        let (Some(best), Some(holds), Some(hands_on), Some(ended)) = (
            best.and_then(|column| column.as_primitive_opt::<Float64Type>()),
            holds.and_then(|column| column.as_boolean_opt()),
            hands_on.and_then(|column| column.as_primitive_opt::<Int64Type>()),
            ended.and_then(|column| column.as_string_opt::<i32>()),
        ) else {
            let message = format!("the input `{ROUNDS}` is not a result of `decide`");
            return Err(OperatorError::pipeline(message).with_help("bind it to the decision about the round before"));
        };
        for row in 0..batch.num_rows() {
            rounds.push(Round {
                best: best.is_valid(row).then(|| best.value(row)),
                holds: holds.value(row),
                hands_on: usize::try_from(hands_on.value(row)).unwrap_or_default(),
                ended: text_value(ended, row).map(str::to_owned),
            });
        }
    }
    Ok(rounds)
}

/// Returns the table `rounds` of the queries.
fn history(bests: &[Option<f64>]) -> Result<RowsInput, OperatorError> {
    let numbers: ArrayRef = Arc::new((0..bests.len() as i64).collect::<Int64Array>());
    let bests: ArrayRef = Arc::new(Float64Array::from(bests.to_vec()));
    let batch = RecordBatch::try_from_iter_with_nullable([("round", numbers, false), ("best", bests, true)])?;
    Ok(RowsInput::from_batches(RecordKind::Table, batch.schema(), vec![batch]))
}

/// The answers about one round.
#[derive(Debug, Default)]
struct Answers {
    best: Option<f64>,
    when: Option<Answer>,
    /// By name.
    watch: Vec<(String, Answer)>,
}

impl DecideParams {
    fn ask(&self, inputs: &Inputs, before: &[Round], context: &Context) -> Result<Answers, OperatorError> {
        let session = query_session()?;
        let mut tables = Vec::new();
        for (port, _) in inputs.iter() {
            register(&session, port, inputs.rows(port)?)?;
            tables.push(port.to_owned());
        }
        let mut bests: Vec<Option<f64>> = before.iter().map(|round| round.best).collect();
        register(&session, ROUNDS, &history(&bests)?)?;
        context.block_on(async {
            name_outputs(&session, &tables).await?;
            let mut answers = Answers::default();
            for question in questions(self) {
                context.check_cancelled()?;
                let answer = question.answer(&session, &tables).await?;
                match (question.path.strip_prefix("watch."), question.wants) {
                    (Some(name), _) => answers.watch.push((name.to_owned(), answer)),
                    (None, Wants::Truth) => answers.when = Some(answer),
                    (None, Wants::Number) => answers.best = Some(answer.value),
                }
                // From here on, the table of the rounds has this one too.
                if question.wants == Wants::Number {
                    bests.push(answers.best);
                    register(&session, ROUNDS, &history(&bests)?)?;
                }
            }
            Ok(answers)
        })
    }

    /// Returns what is decided after a round.
    fn decide(&self, before: &[Round], answers: &Answers) -> Result<Round, OperatorError> {
        let number = before.len();
        let failed = answers.watch.iter().filter(|(_, answer)| !answer.holds());
        let broken: Vec<_> = failed.map(|(name, answer)| format!("`{name}` does not hold{}", answer.text())).collect();
        let holds = broken.is_empty();
        let mut good = None;
        let rounds = before.iter().map(|round| (round.holds, round.best)).chain([(holds, answers.best)]);
        for (round, (holds, score)) in rounds.enumerate() {
            match good {
                _ if !holds => {}
                // Of equal rounds, the earliest; without `best`, the last.
                Some((_, highest)) if self.best.is_some() && score <= highest => {}
                _ => good = Some((round, score)),
            }
        }
        let Some((hands_on, score)) = good else {
            let message = format!("there is no round to hand on: after the first round, {}", broken.join(", and "));
            let help = "start from another policy, or change the conditions in `watch`";
            return Err(OperatorError::data(message).with_help(help));
        };
        // A broken condition is the reason, also if the loop would end anyway.
        let ended = match (&answers.when, self.patience) {
            _ if !holds => Some(broken.join(", and ")),
            (Some(answer), _) if answer.holds() => Some(format!("`when` is true{}", answer.text())),
            (_, Some(patience)) if (number - hands_on) as u64 >= patience => {
                let rounds = if patience == 1 { "1 round".to_owned() } else { format!("{patience} rounds") };
                Some(format!("`best` has not risen for {rounds} ({} in round {hands_on})", score.unwrap_or(f64::NAN)))
            }
            _ => None,
        };
        Ok(Round { best: answers.best, holds, hands_on, ended })
    }
}

impl BlockingKernel for DecideParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let mut rounds = rounds_before(inputs.rows_optional(ROUNDS))?;
        let round = self.decide(&rounds, &self.ask(inputs, &rounds, context)?)?;
        if let Some(best) = round.best {
            outputs.figure("best", best);
        }
        outputs.figure(HANDS_ON, round.hands_on as f64);
        rounds.push(round);
        outputs.write(ROWS, &table(&rounds)?)
    }
}

/// Returns the result.
fn table(rounds: &[Round]) -> Result<RecordBatch, OperatorError> {
    let holds: Vec<bool> = rounds.iter().map(|round| round.holds).collect();
    let columns: [(&str, ArrayRef, bool); 5] = [
        ("round", Arc::new((0..rounds.len() as i64).collect::<Int64Array>()), false),
        ("best", Arc::new(rounds.iter().map(|round| round.best).collect::<Float64Array>()), true),
        ("holds", Arc::new(BooleanArray::from(holds)), false),
        (HANDS_ON, Arc::new(rounds.iter().map(|round| round.hands_on as i64).collect::<Int64Array>()), false),
        (ENDED, Arc::new(rounds.iter().map(|round| round.ended.as_deref()).collect::<StringArray>()), true),
    ];
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::InputArtifact;
    use searchmill_engine::operator::entry;
    use searchmill_engine::operator::testing::{Harness, batch_input, inputs};
    use serde_json::{Value, json};

    use super::*;

    /// The scores of a round: F1 and KL by row.
    fn scores(rows: &[(f64, f64)]) -> InputArtifact {
        let column = |values: Vec<f64>| Arc::new(Float64Array::from(values)) as ArrayRef;
        let columns = vec![
            ("f1", column(rows.iter().map(|row| row.0).collect())),
            ("kl", column(rows.iter().map(|row| row.1).collect())),
        ];
        batch_input(RecordKind::Table, RecordBatch::try_from_iter(columns).expect("a table"))
    }

    fn before(rounds: &[Round]) -> InputArtifact {
        batch_input(RecordKind::Table, table(rounds).expect("a table"))
    }

    fn decided(params: &Value, rows: &[(f64, f64)], rounds: &[Round]) -> Result<Vec<Round>, OperatorError> {
        let mut bound = inputs([("v", scores(rows))]);
        if !rounds.is_empty() {
            bound.bind(ROUNDS, before(rounds));
        }
        let outcome = Harness::new().run(&entry::<Decide>(), params.clone(), &bound)?;
        let batch = outcome.batch(ROWS);
        rounds_before(Some(&RowsInput::from_batches(RecordKind::Table, batch.schema(), vec![batch])))
    }

    /// Decides about rounds with these scores, one after another, until the loop ends.
    fn all(params: &Value, rounds: &[&[(f64, f64)]]) -> Vec<Round> {
        let mut known = Vec::new();
        for rows in rounds {
            known = decided(params, rows, &known).expect("decides");
            if known.last().is_some_and(|round| round.ended.is_some()) {
                break;
            }
        }
        known
    }

    fn end(rounds: &[Round]) -> (usize, usize, Option<&str>) {
        let last = rounds.last().expect("a round");
        (rounds.len() - 1, last.hands_on, last.ended.as_deref())
    }

    #[test]
    fn the_highest_number_is_handed_on_and_of_equal_ones_the_earliest() {
        let params = json!({"best": "select max(f1) from v"});
        let found = all(&params, &[&[(0.5, 0.0)], &[(0.7, 0.0)], &[(0.7, 0.0)], &[(0.6, 0.0)]]);
        assert_eq!(found.iter().map(|round| round.hands_on).collect::<Vec<_>>(), [0, 1, 1, 1]);
        assert_eq!(
            found.iter().map(|round| round.best).collect::<Vec<_>>(),
            [Some(0.5), Some(0.7), Some(0.7), Some(0.6)]
        );
        assert_eq!(end(&found).2, None);
    }

    #[test]
    fn true_ends_the_loop_and_what_was_compared_is_told() {
        let params = json!({"when": "select max(f1) >= 0.8 from v"});
        let found = all(&params, &[&[(0.5, 0.0)], &[(0.75, 0.0), (0.875, 0.0)], &[(1.0, 0.0)]]);
        assert_eq!(end(&found), (1, 1, Some("`when` is true (max(f1) is 0.875)")));
        let several =
            json!({"when": "select count(*) > 1 and max(best) < 1, max(round) as n from rounds", "best": "select 0.5"});
        assert_eq!(
            end(&all(&several, &[&[], &[], &[]])),
            (1, 0, Some("`when` is true (n is 1, count(*) is 2, max(best) is 0.5)"))
        );
    }

    #[test]
    fn rounds_without_progress_end_it() {
        let params = json!({"best": "select max(f1) from v", "patience": 2});
        let found = all(&params, &[&[(0.5, 0.0)], &[(0.7, 0.0)], &[(0.7, 0.0)], &[(0.1, 0.0)], &[(0.9, 0.0)]]);
        assert_eq!(end(&found), (3, 1, Some("`best` has not risen for 2 rounds (0.7 in round 1)")));
    }

    #[test]
    fn what_must_hold_ends_it_and_the_last_good_round_is_handed_on() {
        let params = json!({"watch": {"kl": "select max(kl) < 0.5 from v", "any": "select count(*) > 0 as ok, count(*) as n from v"}});
        let found = all(&params, &[&[(0.5, 0.1)], &[(0.9, 0.2)], &[(0.9, 0.75)]]);
        assert_eq!(end(&found), (2, 1, Some("`kl` does not hold (max(kl) is 0.75)")));
        let best = json!({"best": "select max(f1) from v", "watch": {"kl": "select max(kl) < 0.5 from v"}});
        let found = all(&best, &[&[(0.6, 0.1)], &[(0.5, 0.2)], &[(0.9, 0.75)]]);
        assert_eq!(end(&found).1, 0, "the best of those that hold");
        let error = decided(&params, &[(0.5, 0.5)], &[]).expect_err("nothing to hand on");
        assert_eq!(
            error.message,
            "there is no round to hand on: after the first round, `kl` does not hold (max(kl) is 0.5)"
        );
    }

    #[test]
    fn answers_that_say_nothing_are_errors() {
        let message = |params: Value| decided(&params, &[(0.5, 0.1), (0.25, 0.1)], &[]).expect_err("no answer").message;
        assert_eq!(message(json!({"best": "select f1 from v"})), "`best` gives 2 rows, and must give one");
        assert_eq!(message(json!({"best": "select f1 from v where f1 > 1"})), "`best` gives 0 rows, and must give one");
        assert_eq!(message(json!({"best": "select max(f1) from v where f1 > 1"})), "`best` gives NULL");
        assert_eq!(message(json!({"best": "select 'NaN'::double"})), "`best` gives NaN");
        assert_eq!(
            message(json!({"best": "select 'much' from v limit 1"})),
            "`best`: a number is needed, and the query gives Utf8"
        );
        assert_eq!(
            message(json!({"best": "select f1, kl from v limit 1"})),
            "`best`: one number is needed, and the query gives 2 columns"
        );
        assert_eq!(
            message(json!({"when": "select f1 from v limit 1"})),
            "`when`: true or false is needed, and the query gives Float64"
        );
        assert_eq!(message(json!({"watch": {"x": "select max(f1) > 1 from v where f1 > 1"}})), "`watch.x` gives NULL");
        assert_eq!(message(json!({"best": "select f2 from v"})), "`best`: there is no column `f2`");
    }

    #[test]
    fn wrong_params_are_named() {
        let issues = |params: Value| {
            let bound = (entry::<Decide>().bind)(params).expect("binds");
            let own = bound.declaration.issues.iter().map(|issue| issue.path.clone());
            own.chain(bound.declaration.input_issues(&["v"]).into_iter().map(|issue| issue.path)).collect::<Vec<_>>()
        };
        assert_eq!(issues(json!({"best": "select 1 from v join rounds on true"})), Vec::<String>::new());
        assert_eq!(issues(json!({"best": "select 1 from w", "watch": {"a": "selec"}})), ["watch.a", "best"]);
        assert_eq!(issues(json!({"patience": 1})), ["patience"]);
        assert_eq!(issues(json!({"best": "select 1", "patience": 0})), ["patience"]);
        assert_eq!(issues(json!({})), [""]);
    }

    #[test]
    fn other_outputs_of_a_node_are_tables_of_a_schema() {
        let bound = inputs([("step.steps", scores(&[(0.5, 0.25)]))]);
        let params = json!({"when": "select max(kl) > 0.1 from step.steps"});
        let outcome = Harness::new().run(&entry::<Decide>(), params, &bound).expect("runs");
        let ended = outcome.batch(ROWS).column_by_name(ENDED).expect("ended").as_string::<i32>().value(0).to_owned();
        assert_eq!(ended, "`when` is true (max(kl) is 0.25)");
    }
}
