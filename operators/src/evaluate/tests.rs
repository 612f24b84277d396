//! Runs `evaluate` on real and synthetic rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, Float64Array, StringArray};
use arrow::datatypes::{DataType, Field, SchemaRef};
use searchmill_engine::operator::testing::{Harness, Outcome, batch_input, inputs, rows_input};
use searchmill_engine::operator::{InputArtifact, OperatorEntry, entry};
use searchmill_fixtures::trajectories::{searched, trajectory};
use searchmill_schemas::{Evidence, Message, Metric, Observation, Record, Role, Score};
use serde_json::{Value, json};

use super::*;
use crate::shared::columns::with_columns;

fn operator() -> OperatorEntry {
    entry::<Evaluate>()
}

fn run(params: Value, bound: &[(&str, InputArtifact)]) -> Outcome {
    try_run(params, bound).expect("evaluate runs")
}

fn try_run(params: Value, bound: &[(&str, InputArtifact)]) -> Result<Outcome, OperatorError> {
    let mut harness = Harness::new();
    harness.seed = 42;
    let mut ports = Inputs::new();
    for (port, artifact) in bound {
        ports.bind(port, artifact.clone());
    }
    let mut outcome = harness.run(&operator(), params, &ports)?;
    // The folder is deleted with the harness: read the files first.
    let read = |name: &str| std::fs::read_to_string(outcome.trees["report"].join(name)).unwrap();
    let (page, figures) = (read("report.html"), read("report.json"));
    outcome.trees.clear();
    outcome.trees.insert("html".into(), page.into());
    outcome.trees.insert("json".into(), figures.into());
    Ok(outcome)
}

fn html(outcome: &Outcome) -> &str {
    outcome.trees["html"].to_str().unwrap()
}

fn figures(outcome: &Outcome) -> Value {
    serde_json::from_str(outcome.trees["json"].to_str().unwrap()).unwrap()
}

fn metric(outcome: &Outcome, id: &str) -> Metric {
    let rows = outcome.read::<Metric>("metrics");
    rows.iter().find(|row| row.id == id).unwrap_or_else(|| panic!("no metric {id}")).clone()
}

/// The validation split of MultiHop-RAG, or `None` (with a printed notice) if it is missing.
fn validation_questions() -> Option<Vec<Question>> {
    let text = searchmill_fixtures::shared_text("data/multihop_rag/val_200.jsonl")?;
    Some(text.lines().map(|line| question(&serde_json::from_str(line).unwrap())).collect())
}

fn question(row: &Value) -> Question {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let evidence = row["metadata"]["evidence_list"].as_array().unwrap().iter();
    let gold = |item: &Value| Evidence { document_id: None, title: text(&item["title"]), fact: text(&item["fact"]) };
    Question {
        id: text(&row["id"]).unwrap(),
        question: text(&row["question"]).unwrap(),
        golden_answers: serde_json::from_value(row["golden_answers"].clone()).unwrap(),
        question_type: text(&row["metadata"]["question_type"]),
        evidence: evidence.map(gold).collect(),
        metadata: None,
    }
}

/// Rollout of a real question that answers `prediction` and has seen the first `seen` pieces of its evidence.
fn answer(question: &Question, sample: i32, prediction: &str, seen: usize) -> Trajectory {
    let mut made = trajectory(&question.id, sample, "", prediction);
    made.question.clone_from(&question.question);
    made.messages[1] = Message::text(Role::User, question.question.clone());
    made.golden_answers.clone_from(&question.golden_answers);
    made.question_type.clone_from(&question.question_type);
    made.evidence.clone_from(&question.evidence);
    let shown = question.evidence.iter().take(seen);
    let show = |made: Trajectory, gold: &Evidence| {
        let title = gold.title.clone().unwrap_or_default();
        let mut made = searched(made, &title, &format!("{title}\n{}", gold.fact.clone().unwrap_or_default()));
        let observed = made.messages.iter_mut().rev().find(|message| !message.observations.is_empty()).unwrap();
        observed.observations[0] =
            Observation { chunk_id: "c".into(), document_id: "unknown".into(), title: Some(title), score: 0.5 };
        made
    };
    shown.fold(made, show)
}

#[test]
fn baselines_of_multihop_rag() {
    let Some(questions) = validation_questions() else { return };
    let alone = run(json!({}), &[("questions", rows_input(&questions))]);
    let constant = metric(&alone, "baseline:best_constant/f1");
    assert_eq!((constant.value, constant.count), (0.3, 200));
    assert_eq!(metric(&alone, "baseline:majority_by_type/em").value, 0.545);
    assert!(figures(&alone)["baselines"]["best_constant"]["answer"].as_str().unwrap().eq_ignore_ascii_case("yes"));
    // An agent that always answers Yes must score exactly the baseline, overall and in every group.
    let rows: Vec<_> = questions.iter().map(|question| answer(question, 0, "Yes", 0)).collect();
    let outcome = run(json!({}), &[("trajectories", rows_input(&rows))]);
    for metric in outcome.read::<Metric>("metrics") {
        let Some(group) = metric.group.strip_prefix("baseline:best_constant") else { continue };
        let own = if group.is_empty() { "all" } else { group.trim() };
        assert_eq!(metric.value, self::metric(&outcome, &format!("{own}/{}", metric.name)).value, "{}", metric.id);
    }
    assert_eq!(metric(&outcome, "all/em").value, 0.3);
    let paired = metric(&outcome, "all/f1_over_best_constant");
    assert_eq!((paired.value, paired.low, paired.high), (0.0, Some(0.0), Some(0.0)));
    assert!(metric(&outcome, "all/f1_over_majority_by_type").high.unwrap() < 0.0, "worse than guessing by type");
    assert_eq!(metric(&outcome, "all/grounded").value, 0.0);
    assert_eq!(metric(&outcome, "baseline:majority_by_type/f1").count, 200);
}

#[test]
fn scores_rows_and_tables_of_real_questions() {
    let Some(questions) = validation_questions() else { return };
    let right = |place: usize| !place.is_multiple_of(3);
    let rows: Vec<_> = questions
        .iter()
        .enumerate()
        .map(|(i, q)| answer(q, 0, if right(i) { &q.golden_answers[0] } else { "nonsense" }, i % 4))
        .collect();
    let outcome = run(json!({"group_by": ["question_type", "tool_calls"]}), &[("trajectories", rows_input(&rows))]);
    let scores = outcome.read::<Score>("scores");
    assert_eq!(
        scores.iter().map(|row| &row.id).collect::<Vec<_>>(),
        rows.iter().map(|row| &row.id).collect::<Vec<_>>()
    );
    let wins = (0..200).filter(|i| right(*i)).count();
    let json = figures(&outcome);
    assert_eq!(json["total"], 200);
    assert_eq!(json["success_count"].as_u64().unwrap() as usize, wins);
    assert_eq!(json["success_em"].as_u64().unwrap() as usize, wins);
    assert_eq!(metric(&outcome, "all/f1").value, wins as f64 / 200.0);
    assert_eq!(metric(&outcome, "all/success").value, outcome.figures["success"]);
    let (low, high) = (metric(&outcome, "all/f1").low.unwrap(), metric(&outcome, "all/f1").high.unwrap());
    assert!((0.58..0.64).contains(&low) && (0.69..0.75).contains(&high), "binomial ± 0.066: {low} {high}");
    for title in [
        "Dataset Summary",
        "Performance Metrics",
        "Conversation Dynamics",
        "Token Usage (Last Turn)",
        "Token Usage (All Turns - Cumulative)",
        "Turn Distribution",
        "Tool Calls Distribution",
        "F1 by question_type",
        "F1 by tool_calls",
    ] {
        assert!(outcome.summary.contains(title), "{title}");
    }
    assert_eq!(
        html(&outcome).matches("<svg").count(),
        7,
        "scores, two groupings, histogram, turns, tool calls, tokens"
    );
}

#[test]
fn the_order_of_rows_changes_no_figure() {
    let Some(questions) = validation_questions() else { return };
    let mut rows: Vec<_> = (0..2)
        .flat_map(|sample| {
            questions.iter().map(move |q| answer(q, sample, ["Yes", "Sam Bankman-Fried"][sample as usize], 1))
        })
        .collect();
    let before = run(json!({}), &[("trajectories", rows_input(&rows))]);
    rows.reverse();
    let after = run(json!({}), &[("trajectories", rows_input(&rows))]);
    assert_eq!(before.read::<Metric>("metrics"), after.read::<Metric>("metrics"));
    assert_eq!(before.trees, after.trees, "report.html and report.json");
    assert_eq!(before.summary, after.summary);
    assert_eq!(metric(&before, "all/pass@2").count, 200);
}

#[test]
fn repeat_gives_the_same_bytes_and_the_seed_moves_the_intervals() {
    let rows: Vec<_> =
        (0..40).map(|i| trajectory(&format!("q{i}"), 0, "x", if i % 3 == 0 { "x" } else { "y" })).collect();
    let bound = inputs([("trajectories", rows_input(&rows))]);
    let mut harness = Harness::new();
    let first = harness.run(&operator(), json!({}), &bound).unwrap();
    let second = harness.run(&operator(), json!({}), &bound).unwrap();
    assert_eq!(first.rows, second.rows);
    harness.seed = 1;
    let third = harness.run(&operator(), json!({}), &bound).unwrap();
    assert_ne!(first.read::<Metric>("metrics"), third.read::<Metric>("metrics"));
    assert_eq!(first.read::<Score>("scores"), third.read::<Score>("scores"));
}

fn hit(question: &str, rank: i32, title: &str, contents: &str) -> Hit {
    Hit {
        id: format!("{question}@{rank}"),
        question_id: question.into(),
        query: "q".into(),
        rank,
        score: 1.0 / f64::from(rank),
        chunk_id: format!("{title}#0"),
        document_id: format!("id of {title}"),
        title: Some(title.to_owned()),
        contents: contents.to_owned(),
        sources: Vec::new(),
    }
}

#[test]
fn retrieval_without_trajectories() {
    let Some(questions) = validation_questions() else { return };
    // A perfect retriever: all evidence in order, then noise.
    let hits: Vec<_> = questions
        .iter()
        .flat_map(|q| {
            let gold = q.evidence.iter().map(|e| (e.title.clone().unwrap(), e.fact.clone().unwrap()));
            let noise = std::iter::repeat_n(("noise".to_owned(), "nothing".to_owned()), 3);
            let ranked = gold.chain(noise).enumerate().collect::<Vec<_>>();
            ranked.into_iter().map(|(i, (title, text))| hit(&q.id, i as i32 + 1, &title, &format!("{title}\n{text}")))
        })
        .collect();
    let outcome = run(json!({}), &[("questions", rows_input(&questions)), ("hits", rows_input(&hits))]);
    for name in ["hits@10", "hits@4", "mrr@10", "recall@5", "all_found@5"] {
        let metric = metric(&outcome, &format!("all/{name}"));
        assert_eq!((metric.value, metric.count), (1.0, 172), "{name}");
    }
    assert!(metric(&outcome, "all/map@10").value < 0.8, "the non-standard MAP: 0.75 at best for two facts");
    assert!(!outcome.rows.contains_key("scores"));
    let json = figures(&outcome);
    assert_eq!(json["retrieval"]["questions_without_evidence"], 28);
    let page = html(&outcome);
    assert!(page.contains("first k hits") && outcome.summary.contains("Retrieval"));
    for absent in ["Exact match", "Best constant", "Success", "no-retrieval", "±", "NaN"] {
        assert!(!page.contains(absent) && !outcome.summary.contains(absent), "{absent} in a report of lists alone");
    }
    assert_eq!(page.matches("class=\"card\"").count(), 4);
    assert!(page.contains("<td>recall@5</td><td>1.000</td><td>1.000</td>"), "a constant has no interval to show");
}

#[test]
fn a_group_without_rows_has_no_figures() {
    let rows: Vec<_> = (0..6).map(|i| trajectory(&format!("q{i}"), 0, "x", "x")).collect();
    let outcome = run(json!({}), &[("trajectories", rows_input(&rows))]);
    let json = figures(&outcome);
    assert_eq!(json["failure_count"], 0);
    assert_eq!(json["metrics"]["f1"]["success"], json!({"mean": 1.0, "stdev": 0.0}));
    for group in [&json["metrics"]["f1"], &json["rounds"], &json["tokens_last_turn"]["prompt"]] {
        assert_eq!(group["failure"], json!({"mean": null, "stdev": null}));
    }
    assert_eq!(json["reasoning"], json!({"mean": null, "stdev": null, "count": 0}));
    let row = outcome.summary.lines().find(|line| line.contains("F1") && line.contains('±')).unwrap();
    assert_eq!(row.split('│').map(str::trim).collect::<Vec<_>>()[1..5], ["F1", "1.000 ± 0.000", "1.000 ± 0.000", "–"]);
    assert!(!outcome.summary.contains("0.000 ± 0.000") && !outcome.summary.contains("1.000 – 1.000"));
    let page = html(&outcome);
    assert!(page.contains("<td>1.000 ± 0.000</td><td>–</td>") && !page.contains("1.000 – 1.000"));
    assert!(!page.contains("c5\"></i>Failure"), "no bars and no legend for a group without rows");
}

#[test]
fn trajectories_give_the_evidence_when_there_is_no_question_table() {
    let mut made = trajectory("q", 0, "x", "x");
    made.evidence = vec![Evidence { title: Some("Paris".into()), ..Evidence::default() }];
    let hits = [hit("q", 1, "Lyon", ""), hit("q", 2, "Paris", "")];
    let outcome = run(json!({"ks": [1, 2]}), &[("trajectories", rows_input(&[made])), ("hits", rows_input(&hits))]);
    assert_eq!(metric(&outcome, "all/recall@1").value, 0.0);
    assert_eq!(metric(&outcome, "all/recall@2").value, 1.0);
    assert!(
        !outcome.read::<Metric>("metrics").iter().any(|metric| metric.name == "map@10"),
        "no facts, no fact metrics"
    );
}

#[test]
fn an_outage_is_no_wrong_answer() {
    let rows = [trajectory("a", 0, "x", "x"), trajectory("b", 0, "x", "x")];
    let mut questions = vec![];
    for id in ["a", "b", "c"] {
        let golden_answers = vec!["x".to_owned()];
        questions.push(Question {
            id: id.into(),
            question: "?".into(),
            golden_answers,
            question_type: None,
            evidence: Vec::new(),
            metadata: None,
        });
    }
    let reject = Reject { id: "c".into(), kind: "timeout".into(), message: "late".into(), attempts: 3, detail: None };
    let bound = [
        ("trajectories", rows_input(&rows)),
        ("questions", rows_input(&questions)),
        ("rejects", rows_input(&[reject])),
    ];
    let outcome = run(json!({}), &bound);
    assert_eq!(metric(&outcome, "all/f1").value, 1.0);
    assert_eq!(metric(&outcome, "baseline:best_constant/f1").count, 2, "the baselines answer the same questions");
    assert_eq!(figures(&outcome)["failed_rollouts"], json!({"total": 1, "by_kind": {"timeout": 1}}));
    assert_eq!(figures(&outcome)["questions_without_trajectory"], 1);
    assert!(outcome.summary.contains("1 failed rollouts are not scored (timeout 1)."), "{}", outcome.summary);
}

fn none<R: Record>() -> InputArtifact {
    rows_input::<R>(&[])
}

#[test]
fn nothing_one_and_unscorable_rows() {
    let empty = run(json!({}), &[("trajectories", none::<Trajectory>())]);
    assert_eq!(figures(&empty)["total"], 0);
    assert!(html(&empty).contains("Nothing was scored") && empty.summary.contains("Dataset Summary"));
    let one = run(json!({}), &[("trajectories", rows_input(&[trajectory("q", 0, "谷歌", "谷歌 & <b>")]))]);
    assert_eq!(metric(&one, "all/acc").value, 1.0);
    assert_eq!((metric(&one, "all/f1").low, metric(&one, "all/pass@1").count), (None, 1));
    assert!(html(&one).contains("谷歌 &amp; &lt;b&gt;"));
    let mut bare = trajectory("q", 0, "x", "x");
    bare.golden_answers.clear();
    let mut untyped = trajectory("r", 0, "x", "");
    untyped.question_type = None;
    let mixed = run(json!({}), &[("trajectories", rows_input(&[bare, untyped]))]);
    assert_eq!(figures(&mixed)["without_golden_answers"], 1);
    assert_eq!(metric(&mixed, "question_type=unknown/f1").value, 0.0);
    assert_eq!(mixed.read::<Score>("scores").len(), 1);
}

#[test]
fn inputs_that_make_no_sense_are_refused() {
    let refused = |bound: &[(&str, InputArtifact)]| try_run(json!({}), bound).unwrap_err();
    assert!(refused(&[]).message.contains("nothing to score"));
    let hits = refused(&[("hits", rows_input(&[hit("q", 1, "x", "x")]))]);
    assert!(
        hits.message.contains("neither `questions` nor `trajectories`") && hits.help.unwrap().contains("questions:")
    );
}

#[test]
fn params_are_checked_at_their_path() {
    let rows = [("trajectories", none::<Trajectory>())];
    for (params, path) in [
        (json!({"success_threshold": 1.5}), "success_threshold"),
        (json!({"confidence": 95}), "confidence"),
        (json!({"ks": [2, 0]}), "ks.1"),
        (json!({"pass_at": [0]}), "pass_at.0"),
        (json!({"group_by": ["turns", "turns"]}), "group_by.1"),
        (json!({"resamples": 2_000_000}), "resamples"),
        (json!({"metrics": ["kilt", "kilt"]}), "metrics.1"),
        (json!({"group_by": ["round"]}), "`group_by`: there is no column `round`"),
        (json!({"group_by": ["turns +"]}), "group_by.0: not an SQL expression"),
        (json!({"measures": {"f1": {"mean": "turns"}}}), "measures.f1: `evaluate` has a figure `f1`"),
        (json!({"measures": {"turns": {"mean": "turns"}}}), "measures.turns: `evaluate` has a figure `turns`"),
        (json!({"measures": {"tool_errors": {"mean": "turns"}}}), "measures.tool_errors: `evaluate` has a figure"),
        (json!({"measures": {"trajectories": {"mean": "turns"}}}), "measures.trajectories: `evaluate` has a figure"),
        (json!({"measures": {"failed_rollouts": {"mean": "turns"}}}), "measures.failed_rollouts: `evaluate` has"),
        (
            json!({"measures": {"baseline_best_constant_f1": {"mean": "turns"}}}),
            "measures.baseline_best_constant_f1: `evaluate`",
        ),
        (json!({"measures": {"question_id": {"mean": "turns"}}}), "measures.question_id: `scores` has a column"),
        (json!({"measures": {"": {"mean": "turns"}}}), "measures.: a measure without a name"),
        (json!({"measures": {"a/b": {"mean": "turns"}}}), "measures.a/b: names with `/` are those of `evaluate`"),
        (json!({"measures": {"m": {"mean": "turns +"}}}), "measures.m.mean: not an SQL expression"),
        (json!({"measures": {"m": {"quantile": {"of": "turns", "at": 9}}}}), "measures.m.quantile.at: must be"),
        (json!({"measures": {"m": {"share": "turns"}}}), "`measures.m.share`: `turns` is Int32, not true or false"),
        (json!({"measures": {"m": {"mean": "question"}}}), "`measures.m.mean`: `question` is Utf8, not a number"),
        (json!({"measures": {"m": {"mean": "rounds"}}}), "`measures.m.mean`: there is no column `rounds`"),
    ] {
        let message = try_run(params, &rows).unwrap_err().message;
        assert!(message.starts_with(path), "{message}");
    }
}

#[test]
fn other_families_stand_apart() {
    let rows =
        [trajectory("a", 0, "Jay Z", "Jay-Z"), trajectory("b", 0, "U.S.", "the US"), trajectory("c", 0, "x", "")];
    let plain = run(json!({}), &[("trajectories", rows_input(&rows))]);
    assert_eq!(plain.trees, run(json!({"metrics": ["flashrag"]}), &[("trajectories", rows_input(&rows))]).trees);
    let all = ["flashrag", "kilt", "longbench", "hotpot", "musique", "r1-searcher"];
    let outcome = run(json!({"metrics": all}), &[("trajectories", rows_input(&rows))]);
    for (name, thirds) in
        [("em", 1.0), ("kilt/em", 1.0), ("musique/f1", 1.0), ("r1-searcher/em", 1.0), ("kilt/accuracy", 0.0)]
    {
        assert_eq!(metric(&outcome, &format!("all/{name}")).value, thirds / 3.0, "{name}");
    }
    assert_eq!(metric(&outcome, "question_type=bridge/r1-searcher/cover_em_1").count, 3);
    let of = |outcome: &Outcome| {
        let rows = outcome.read::<Metric>("metrics").into_iter();
        rows.filter(|metric| !metric.name.contains('/')).collect::<Vec<_>>()
    };
    assert_eq!(of(&outcome), plain.read::<Metric>("metrics"), "FlashRAG's figures and all intervals stay");
    for title in ["KILT (SQuAD's normaliser; accuracy and ROUGE-L without)", "R1-Searcher (its own normaliser)"] {
        assert!(outcome.summary.contains(title) && !plain.summary.contains(title), "{title}");
        assert!(html(&outcome).contains(&title.replace('\'', "&#39;")), "{title}");
    }
    assert_eq!(figures(&outcome)["groups"][0]["measures"]["hotpot/em"]["count"], 3);
}

/// The published ACC_R of R1-Searcher (Qwen-2.5-7B) on Bamboogle, and its EM and F1, from its own result file.
#[test]
fn published_figures_of_r1_searcher() {
    let Some(text) = searchmill_fixtures::shared_text("data/r1_searcher/eval_bamboogle_qwen.jsonl") else { return };
    let read = |(place, line): (usize, &str)| {
        let row: Value = serde_json::from_str(line).unwrap();
        trajectory(&format!("q{place:03}"), 0, row["answer"].as_str().unwrap(), row["pred_ans"].as_str().unwrap())
    };
    let rows: Vec<_> = text.lines().enumerate().map(read).collect();
    let outcome = run(json!({"metrics": ["r1-searcher"]}), &[("trajectories", rows_input(&rows))]);
    let rounded = |name: &str| format!("{:.3}", metric(&outcome, &format!("all/r1-searcher/{name}")).value);
    assert_eq!(["cover_em_1", "em", "f1"].map(rounded), ["0.528", "0.456", "0.577"]);
}

#[test]
fn the_page_is_one_file_without_scripts() {
    let made =
        searched(trajectory("q", 0, "Ada", "</script><script>alert(1)</script>"), "d", "<img src=x onerror=y> Ada");
    let outcome = run(json!({"title": "<T&>"}), &[("trajectories", rows_input(&[made]))]);
    let page = html(&outcome);
    assert!(!page.contains("<script") && !page.contains("<img") && !page.contains("href=") && !page.contains("src=\""));
    assert!(page.contains("prefers-color-scheme:dark") && page.contains("&lt;T&amp;&gt;"));
}

#[test]
fn judges_are_compared_and_their_failures_stay_in_sight() {
    let rows: Vec<Trajectory> = (0..6).map(|place| trajectory(&format!("q{place}"), 0, "x", "x")).collect();
    let judged = BooleanArray::from(vec![true, true, true, false, false, true]);
    let stored =
        StringArray::from(vec![Some("True"), Some("True"), Some("False"), Some("False"), None, Some("timeout")]);
    let columns: [(&str, ArrayRef); 2] = [("judged", Arc::new(judged)), ("stored", Arc::new(stored))];
    let columns = columns.map(|(name, array)| (Field::new(name, array.data_type().clone(), true), array));
    let batch = with_columns(&searchmill_schemas::to_batch(&rows).unwrap(), columns.into()).unwrap();
    let failed = Reject {
        id: "q9@0".to_owned(),
        kind: "bad_response".to_owned(),
        message: "the judge wrote no JSON object".to_owned(),
        attempts: 1,
        detail: None,
    };
    let bound =
        [("trajectories", batch_input(RecordKind::Trajectory, batch.clone())), ("rejects", rows_input(&[failed]))];
    let outcome = run(json!({"verdicts": ["judged", "stored"], "resamples": 100}), &bound);
    let of = |name: &str| metric(&outcome, &format!("all/{name}"));
    assert_eq!((of("verdict/judged").value, of("verdict/judged").count), (4.0 / 6.0, 6));
    assert_eq!((of("verdict/stored").value, of("verdict/stored").count), (0.5, 4));
    assert_eq!((of("agreement/judged/stored").value, of("agreement/judged/stored").count), (0.75, 4));
    // Of four: 3 and 2 right, so 0.5 by chance.
    assert_eq!((of("kappa/judged/stored").value, of("kappa/judged/stored").count), (0.5, 4));
    assert!(of("kappa/judged/stored").low.is_some());
    let page = html(&outcome);
    assert!(page.contains("1 failed rollouts and judgements are not scored (bad_response 1)."), "{page}");
    assert!(page.contains("2 rows have no verdict in `stored`; its figures omit them."));
    assert!(page.contains("<td>kappa/judged/stored</td>") && page.contains("Kappa (Cohen 1960)"));
    assert_eq!(figures(&outcome)["without_verdict"], json!({"judged": 0, "stored": 2}));
    let error = |params: Value| try_run(params, &bound[..1]).unwrap_err();
    let missing = error(json!({"verdicts": ["verdict"]}));
    assert!(missing.message.contains("no column `verdict`") && missing.help.unwrap().contains("`judged`"));
    let useless = error(json!({"verdicts": ["question"]}));
    assert!(useless.message.contains("no row has a verdict in the column `question`"), "{useless}");
    let twice = error(json!({"verdicts": ["judged", "judged"]}));
    assert!(twice.message.starts_with("verdicts.1: is listed twice"), "{twice}");
}

#[test]
fn golden_answers_of_nothing_are_told() {
    let rows = [trajectory("a", 0, "x", "x"), trajectory("b", 0, "The", "")];
    let outcome = run(json!({"resamples": 0}), &[("trajectories", rows_input(&rows))]);
    assert!(html(&outcome).contains("1 rows have golden answers of nothing but punctuation and articles"));
    assert_eq!(metric(&outcome, "all/em").value, 1.0, "FlashRAG's rule");
}

/// Four rollouts of three questions with columns of their own.
fn rows_with_columns() -> InputArtifact {
    let mut rows = [("a", 0, "x"), ("a", 1, "y"), ("b", 0, "x"), ("c", 0, "y")]
        .map(|(id, sample, p)| trajectory(id, sample, "x", p));
    rows[1].turns = 9;
    rows[3].golden_answers.clear();
    let costs: ArrayRef = Arc::new(Float64Array::from(vec![Some(1.0), Some(2.0), None, Some(9.0)]));
    let sources: ArrayRef = Arc::new(StringArray::from(vec![Some("web"), Some("web"), None, Some("book")]));
    let columns = vec![
        (Field::new("cost", DataType::Float64, true), costs),
        (Field::new("source", DataType::Utf8, true), sources),
    ];
    let batch = with_columns(&searchmill_schemas::to_batch(&rows).unwrap(), columns).unwrap();
    batch_input(RecordKind::Trajectory, batch)
}

#[test]
fn columns_of_the_rows_ride_along_and_group() {
    let outcome = run(json!({"group_by": ["source", "turns > 5"]}), &[("trajectories", rows_with_columns())]);
    let scores = outcome.batch("scores");
    let names: Vec<_> = scores.schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names[names.len() - 3..], ["grounded", "cost", "source"]);
    assert_eq!(scores.num_rows(), 3, "rows without golden answers are not scored");
    assert_eq!(outcome.read::<Score>("scores").len(), 3);
    let count = |id: &str| metric(&outcome, id).count;
    assert_eq!((count("source=web/f1"), count("source=unknown/f1"), count("turns > 5=true/f1")), (2, 1, 1));
    assert!(html(&outcome).contains("F1 by turns &gt; 5"));
    let known = own::output_schema(&rows_with_columns_schema(), &OwnMeasures::new());
    assert_eq!(known, scores.schema());
}

fn rows_with_columns_schema() -> SchemaRef {
    match rows_with_columns() {
        InputArtifact::Rows(rows) => rows.schema,
        InputArtifact::Tree(_) => unreachable!("rows"),
    }
}

#[test]
fn measures_of_the_user_have_values_and_intervals() {
    let measures = json!({
        "mean_cost": {"mean": "cost"}, "long": {"share": "turns > 5 OR f1 < 0.5"}, "most": {"quantile": {"of": "turns", "at": 1.0}},
        "half": {"quantile": {"of": "f1 * 2", "at": 0.5}},
    });
    let outcome = run(json!({"measures": measures, "group_by": ["source"]}), &[("trajectories", rows_with_columns())]);
    let found = |id: &str| {
        let Metric { value, low, high, count, .. } = metric(&outcome, id);
        assert_eq!(low.is_some(), high.is_some());
        assert!(low.is_none_or(|low| low <= value) && high.is_none_or(|high| value <= high), "{id}");
        (value, count, low.is_some())
    };
    assert_eq!(found("all/mean_cost"), (1.5, 2, true));
    assert_eq!((found("all/long").0 * 3.0).round(), 1.0);
    assert_eq!((found("all/most"), found("all/half")), ((9.0, 3, true), (2.0, 3, true)));
    assert_eq!(found("source=unknown/most"), (1.0, 1, false));
    let scores = outcome.batch("scores");
    let column = scores.column_by_name("long").unwrap().as_primitive::<arrow::datatypes::Float64Type>();
    assert_eq!(column.values(), &[0.0, 1.0, 0.0]);
    assert!(scores.column_by_name("mean_cost").unwrap().is_null(2));
    assert!(
        html(&outcome).contains("<td>1 quantile of turns</td>")
            && outcome.summary.contains("share of turns > 5 OR f1 < 0.5")
    );
    assert_eq!(outcome.figures["most"], 9.0);
    assert_eq!(figures(&outcome)["groups"][0]["measures"]["mean_cost"]["value"], 1.5);
}

#[test]
fn the_plan_checks_groups_measures_and_verdicts() {
    let params =
        json!({"group_by": ["source", "f1 > 0.5"], "measures": {"m": {"mean": "costs"}}, "verdicts": ["judged"]});
    let params: EvaluateParams = serde_json::from_value(params).unwrap();
    let tables = Tables::from([("trajectories".to_owned(), RecordKind::Trajectory.schema())]);
    let issues = params.column_issues(&tables);
    let paths: Vec<_> = issues.iter().map(|issue| issue.path.as_str()).collect();
    assert_eq!(paths, ["group_by.0", "measures.m.mean", "verdicts.0"]);
    let tables = Tables::from([("trajectories".to_owned(), rows_with_columns_schema())]);
    let found = params.column_issues(&tables);
    assert_eq!(found[0].help.as_deref().unwrap().split('?').next(), Some("did you mean `cost`"));
    assert_eq!(found.len(), 2);
}

#[test]
fn a_column_with_too_many_values_is_refused() {
    let rows: Vec<_> = (0..1001).map(|place| trajectory(&format!("q{place}"), 0, "x", "x")).collect();
    let error = try_run(json!({"group_by": ["question_id"], "resamples": 0}), &[("trajectories", rows_input(&rows))]);
    assert_eq!(error.unwrap_err().message, "`group_by.0`: `question_id` has more than 1000 values");
}
