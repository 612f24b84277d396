//! Tests of the layouts of `read` on small rows in the form of each data set, and of the message about a wrong layout.

use searchmill_engine::operator::entry;
use searchmill_engine::operator::testing::{Harness, batch_input, inputs, rows_input};
use searchmill_schemas::{Document, Evidence, Metric, Question, RecordKind, Role, Score, Trajectory, text_column};
use searchmill_text::retrieval_metrics::GoldDocuments;
use serde_json::{Value, json};

use super::{read_text, shared, shared_rows};
use crate::evaluate::Evaluate;

fn questions(name: &str, text: &str, layout: &str) -> Vec<Question> {
    let outcome = read_text(name, text, json!({"as": "question", "layout": layout})).unwrap();
    assert_eq!(outcome.rejects(), []);
    outcome.read("rows")
}

fn documents(name: &str, text: &str, layout: &str) -> Vec<Document> {
    let outcome = read_text(name, text, json!({"as": "document", "layout": layout})).unwrap();
    assert_eq!(outcome.rejects(), []);
    outcome.read("rows")
}

fn metadata(question: &Question) -> Value {
    serde_json::from_str(question.metadata.as_deref().unwrap()).unwrap()
}

fn page(id: &str, title: &str) -> Evidence {
    Evidence { document_id: Some(id.to_owned()), title: Some(title.to_owned()), fact: None }
}

#[test]
fn triviaqa_official_and_of_the_hub() {
    let official = json!({"Domain": "Web", "Data": [
        {"Question": "Who wrote it?", "QuestionId": "tc_1", "QuestionSource": "s", "EntityPages": [{"Title": "T"}],
         "SearchResults": [{"Url": "u"}], "Answer": {"Value": "Ada", "Aliases": ["A. L.", "Ada"], "Type": "Wikipedia"}},
        {"Question": "And who read it?", "QuestionId": "tc_2", "QuestionSource": "s"}],
        "Split": "dev", "VerifiedEval": false, "Version": 1.0});
    let rows = questions("dev.json", &official.to_string(), "triviaqa");
    assert_eq!((rows[0].id.as_str(), rows[0].question.as_str()), ("tc_1", "Who wrote it?"));
    assert_eq!(rows[0].golden_answers, ["Ada", "A. L."]);
    assert_eq!(metadata(&rows[0]), json!({"QuestionSource": "s"}));
    assert_eq!((rows.len(), rows[1].golden_answers.len()), (2, 0), "the test set has no answers");
    let hub = json!({"question": "Who wrote it?", "question_id": "tc_1", "question_source": "s", "entity_pages": {},
        "search_results": {}, "answer": {"value": "Ada", "aliases": ["A. L.", "Ada"], "type": "Wikipedia"}});
    let hub = questions("dev.jsonl", &hub.to_string(), "triviaqa");
    assert_eq!((&hub[0].id, &hub[0].golden_answers), (&rows[0].id, &rows[0].golden_answers));
    let text = json!({"Domain": "Web", "Rows": []}).to_string();
    let error = read_text("q.json", text, json!({"as": "question", "layout": "triviaqa"})).unwrap_err();
    assert!(error.message.contains("q.json:1: there is no text in `Question` or `question`"), "{error}");
}

#[test]
fn popqa_has_answers_as_json_in_a_cell() {
    let header = "id\tsubj\tprop\tquestion\tpossible_answers\ts_pop";
    let cells = "42\tAda\toccupation\tWhat is Ada's occupation?\t\"[\"\"poet\"\", \"\"\\u00e9crivain\"\"]\"\t7";
    let rows = questions("popQA.tsv", &format!("{header}\n{cells}\n"), "popqa");
    assert_eq!((rows[0].id.as_str(), rows[0].question_type.as_deref()), ("42", Some("occupation")));
    assert_eq!(rows[0].golden_answers, ["poet", "écrivain"]);
    assert_eq!(metadata(&rows[0]), json!({"subj": "Ada", "s_pop": "7"}));
    let broken = format!("{header}\n{cells}\n43\tx\ty\tz?\tpoet\t1\n");
    let outcome = read_text("popQA.tsv", broken, json!({"as": "question", "layout": "popqa"})).unwrap();
    let reject = &outcome.rejects()[0];
    assert_eq!((outcome.read::<Question>("rows").len(), reject.id.as_str()), (1, "popQA.tsv:3"));
    assert!(reject.message.starts_with("`possible_answers` is not a list of texts in JSON: "), "{}", reject.message);
}

#[test]
fn longbench_and_longbench_e() {
    let row = json!({"input": "Who?", "context": "Passage 1:\nAda\nAda wrote.\n\nPassage 2:\nBob\nBob read.\n",
        "answers": ["Ada"], "length": 4500, "dataset": "hotpotqa", "language": "en", "all_classes": null, "_id": "x1"});
    let rows = questions("hotpotqa_e.jsonl", &row.to_string(), "longbench-e");
    assert_eq!((rows[0].id.as_str(), rows[0].question_type.as_deref()), ("x1", Some("hotpotqa")));
    assert_eq!(metadata(&rows[0]), json!({"language": "en", "length": 4500, "length_bucket": "4-8k"}));
    let plain = questions("hotpotqa.jsonl", &row.to_string(), "longbench");
    assert_eq!(
        (&plain[0].golden_answers, metadata(&plain[0])),
        (&rows[0].golden_answers, json!({"language": "en", "length": 4500}))
    );
    let rows = documents("hotpotqa.jsonl", &format!("{row}\n{row}\n"), "longbench");
    let found: Vec<_> = rows.iter().map(|row| (row.id.as_str(), row.text.as_str())).collect();
    assert_eq!(found, [("Ada", "Ada wrote."), ("Bob", "Bob read.")], "passages of both rows, once");
    let summary = json!({"input": "", "context": "…", "answers": ["s"], "length": 1, "dataset": "gov_report"});
    let error =
        read_text("g.jsonl", summary.to_string(), json!({"as": "question", "layout": "longbench"})).unwrap_err();
    assert!(error.message.contains("g.jsonl:1: `input` is empty"), "{error}");
}

#[test]
fn kilt_questions_and_pages() {
    let row = json!({"id": "k1", "input": "Who?", "meta": {}, "output": [
        {"answer": " Ada ", "provenance": [{"wikipedia_id": "7", "title": "Ada", "start_paragraph_id": 1}]},
        {"answer": "Ada"},
        {"provenance": [{"wikipedia_id": "7", "title": "Ada"}, {"wikipedia_id": "8", "title": "Bob"}]}]});
    let rows = questions("nq-dev-kilt.jsonl", &row.to_string(), "kilt");
    assert_eq!(rows[0].golden_answers, ["Ada"]);
    assert_eq!(rows[0].evidence, [page("7", "Ada"), page("8", "Bob")]);
    let source = json!({"_id": "7", "wikipedia_id": "7", "wikipedia_title": "Ada",
        "text": ["Ada\n", "Ada wrote.\n", "Section::::Life.\n", "BULLET::::- born 1815\n"],
        "anchors": [], "history": {}, "categories": "poets"});
    let rows = documents("kilt_knowledgesource.json", &source.to_string(), "kilt");
    assert_eq!((rows[0].id.as_str(), rows[0].title.as_deref()), ("7", Some("Ada")));
    assert_eq!(rows[0].text, "Ada wrote.\nLife.\n- born 1815");
    assert_eq!(rows[0].metadata.as_deref(), Some(r#"{"categories":"poets"}"#));
}

#[test]
fn dpr_passages_are_quoted_and_colbert_collections_are_not() {
    let psgs = "id\ttext\ttitle\n1\t\"He said \"\"no\"\".\"\tAda\n2\tPlain\t\n";
    let rows = documents("psgs_w100.tsv", psgs, "dpr");
    assert_eq!(
        (rows[0].id.as_str(), rows[0].text.as_str(), rows[0].title.as_deref()),
        ("1", "He said \"no\".", Some("Ada"))
    );
    assert_eq!(rows[1].title, None);
    let rows = documents("collection.tsv", "0\t\"A\" is first\n1\tB \"is\n", "colbert");
    assert_eq!((rows[0].text.as_str(), rows[1].text.as_str(), &rows[1].title), ("\"A\" is first", "B \"is", &None));
    let rows = documents("collection.tsv", "id\ttext\ttitle\n1\tbody\tAda\n", "colbert");
    let found = (rows[0].id.as_str(), rows[0].title.as_deref(), rows[0].text.as_str());
    assert_eq!((rows.len(), found), (1, ("1", Some("Ada"), "Ada | body")), "DPR's header is line 0");
    let outcome = read_text("c.tsv", "0\ta\n2\tb\nx\tc\n", json!({"as": "document", "layout": "colbert"})).unwrap();
    let told: Vec<_> = outcome.rejects().into_iter().map(|reject| (reject.id, reject.message)).collect();
    assert_eq!(told[0], ("c.tsv:2".to_owned(), "`pid` is `2`, but must be the index of the line, 1".to_owned()));
    assert_eq!(told.len(), 2);
}

#[test]
fn r1_searcher_questions() {
    let row = json!({"idx": 7, "question": "Who?", "answer": "Ada", "pred_anses": ["", "Ada"], "gen_text_store": ""});
    let rows = questions("stage_1.jsonl", &row.to_string(), "r1-searcher");
    assert_eq!((rows[0].id.as_str(), &rows[0].golden_answers[..]), ("7", &["Ada".to_owned()][..]));
    assert_eq!(metadata(&rows[0]), json!({"pred_anses": ["", "Ada"]}));
    let Some(rows) = shared_rows::<Question>("r1_searcher/stage_1.jsonl", "question", "r1-searcher") else { return };
    assert_eq!((rows.len(), metadata(&rows[0])["pred_anses"].as_array().unwrap().len()), (350, 10));
}

#[test]
fn browsecomp_plus_decrypted_and_its_corpus() {
    let row = json!({"query_id": "769", "query": "Which bridge fell?", "answer": "Tay",
        "evidence_docs": [{"docid": "5", "text": "long"}, {"docid": "6", "text": "long"}],
        "gold_docs": [{"docid": "6", "text": "long"}], "negative_docs": [{"docid": "9", "text": "long"}]});
    let rows = questions("decrypted.jsonl", &row.to_string(), "browsecomp-plus");
    let ids: Vec<_> = rows[0].evidence.iter().map(|gold| gold.document_id.as_deref().unwrap()).collect();
    assert_eq!((rows[0].id.as_str(), ids), ("769", vec!["5", "6"]));
    assert_eq!(metadata(&rows[0]), json!({"gold_docs": ["6"], "negative_docs": ["9"]}));
    let encrypted =
        json!({"query_id": "769", "query": "cEQZkv2vON1wV9G1t9Q2ob9Xncc+9JJgavFsppbWgl5FSQ6d", "answer": "cV0Z"});
    let params = json!({"as": "question", "layout": "browsecomp-plus"});
    let error = read_text("test.jsonl", encrypted.to_string(), params).unwrap_err();
    assert!(error.message.contains("test.jsonl:1: `query` is encrypted"), "{error}");
    let corpus = json!({"docid": "5", "text": "---\ntitle: Tay Bridge\ndate: 1879\n---\nIt fell.", "url": "u"});
    let rows = documents("corpus.jsonl", &corpus.to_string(), "browsecomp-plus");
    assert_eq!((rows[0].id.as_str(), rows[0].title.as_deref()), ("5", Some("Tay Bridge")));
    assert!(rows[0].text.starts_with("---\n") && rows[0].metadata.as_deref() == Some(r#"{"url":"u"}"#));
}

/// Gold documents of a question, as grounding and the retrieval metrics match them.
fn gold(question: &Question) -> GoldDocuments {
    GoldDocuments::new(question.evidence.iter().map(|gold| (gold.document_id.as_deref(), gold.title.as_deref())))
}

#[test]
fn a_gold_paragraph_of_musique_is_found_by_its_text() {
    let paragraph =
        |title: &str, text: &str, gold: bool| json!({"title": title, "paragraph_text": text, "is_supporting": gold});
    let row = json!({"id": "2hop__1_2", "question": "Who?", "answer": "Ada", "paragraphs": [
        paragraph("Green", "Green is a colour.", false), paragraph("Green", " Green is an album. ", true)]});
    let question = &questions("dev.jsonl", &row.to_string(), "musique")[0];
    let corpus = documents("dev.jsonl", &row.to_string(), "musique");
    let found = |document: &Document| gold(question).found_in(&document.id, document.title.as_deref());
    assert_eq!(corpus.iter().map(found).collect::<Vec<_>>(), [vec![], vec![0]], "both have the title");
    let other =
        json!([{"title": "Green", "text": "Green is an album."}, {"title": "Green", "text": "Green is a fee."}]);
    let other = documents("musique_corpus.json", &other.to_string(), "musique");
    assert_eq!(other.iter().map(found).collect::<Vec<_>>(), [vec![0], vec![]]);
    assert_eq!((corpus[1].id.as_str(), other[0].id.as_str()), ("Green#97b9cbfda5a2d9fa", "Green#97b9cbfda5a2d9fa"));
}

#[test]
fn every_gold_paragraph_of_musique_is_in_the_corpus_once() {
    let Some(rows) = shared_rows::<Question>("musique/dev_200.jsonl", "question", "musique") else { return };
    let corpus = shared_rows::<Document>("musique/dev_200.jsonl", "document", "musique").unwrap();
    for question in &rows {
        let gold = gold(question);
        let found: Vec<_> = corpus.iter().flat_map(|row| gold.found_in(&row.id, row.title.as_deref())).collect();
        assert_eq!(found.len(), question.evidence.len(), "{}: one paragraph for each piece of evidence", question.id);
    }
}

#[test]
fn an_error_names_the_layout_that_fits() {
    let help = |name: &str, text: &str, kind: &str, layout: &str| {
        let error = read_text(name, text, json!({"as": kind, "layout": layout})).unwrap_err();
        assert!(error.message.contains(&format!("; {name}:")), "{error}");
        (error.message.clone(), error.help.unwrap())
    };
    let popqa = "id\tprop\tquestion\tpossible_answers\n1\tp\tq?\t\"[\"\"a\"\"]\"\n";
    let (message, advice) = help("popQA.tsv", popqa, "question", "kilt");
    let told = "popQA.tsv:2: there is no text in `input`; the record has `possible_answers`, `prop`, `question`";
    assert!(message.ends_with(told), "{message}");
    assert!(advice.ends_with("its fields are those of `layout: popqa`"), "{advice}");
    let (_, advice) = help("c.tsv", "0\tfirst\tTitle\n1\tsecond\tTitle\n", "document", "dpr");
    assert!(advice.ends_with("`layout: colbert`"), "{advice}");
    let data = r#"{"Data": [{"Question": "q?", "Answer": {"Value": "a"}}]}"#;
    assert!(help("t.json", data, "question", "longbench").1.ends_with("`layout: triviaqa`"));
    let nothing = help("x.jsonl", "{\"a\": 1}", "question", "kilt").1;
    assert!(nothing.contains("see `columns:`"), "{nothing}");
}

#[test]
fn real_files_under_a_wrong_layout() {
    let fits = [
        ("hotpotqa/dev_200.jsonl", "kilt", "hotpotqa"),
        ("2wikimultihopqa/dev_200.jsonl", "longbench", "2wikimultihopqa"),
        ("musique/dev_200.jsonl", "popqa", "musique"),
        ("nq_open/NQ-open.dev.jsonl", "kilt", "nq-open"),
        ("r1_searcher/stage_2.jsonl", "kilt", "r1-searcher"),
        ("multihop_rag/val_200.jsonl", "browsecomp-plus", "multihop-rag"),
    ];
    for (name, wrong, right) in fits {
        let Some(path) = shared(name) else { return };
        let text = std::fs::read(path).unwrap();
        let error = read_text("f.jsonl", text, json!({"as": "question", "layout": wrong})).unwrap_err();
        let advice = error.help.unwrap();
        assert!(advice.contains(&format!("`layout: {right}`")), "{name}: {advice}");
    }
}

#[test]
fn results_of_r1_searcher_are_trajectories() {
    let name = "r1_searcher/eval_bamboogle_qwen.jsonl";
    let Some(rows) = shared_rows::<Trajectory>(name, "trajectory", "r1-searcher") else { return };
    let text = std::fs::read_to_string(shared(name).unwrap()).unwrap();
    let sources: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((rows.len(), sources.len()), (125, 125));
    for (row, source) in rows.iter().zip(&sources) {
        let joined: String = row.messages[1..].iter().map(|message| message.content.as_str()).collect();
        assert_eq!(joined, source["gen_text_store"].as_str().unwrap(), "{}", row.id);
    }
    assert_eq!(rows.iter().map(|row| row.tool_calls).sum::<i32>(), 248, "1.98 searches a question");
    let row = &rows[2];
    assert_eq!((row.id.as_str(), row.protocol.as_str(), row.prediction.as_str()), ("2@0", "r1-searcher", " i "));
    let roles: Vec<_> = row.messages.iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
    assert!(row.messages[1].content.ends_with("<|end_of_query|>"));
    let kept: Value = serde_json::from_str(row.metadata.as_deref().unwrap()).unwrap();
    assert_eq!(kept, json!({"gpt4o_output": "False", "pred_ans": " i ", "stop_reason_final": "finished"}));
    let scored = Harness::new().run(
        &entry::<Evaluate>(),
        json!({"resamples": 0}),
        &inputs([("trajectories", rows_input(&rows))]),
    );
    let scores = scored.unwrap().read::<Score>("scores");
    let mean = |of: fn(&Score) -> f64| scores.iter().map(of).sum::<f64>() / scores.len() as f64;
    assert_eq!((scores.len(), mean(|score| score.em)), (125, 0.456));
    // FlashRAG's F1; with R1-Searcher's normalisation, which puts spaces for punctuation, it is 0.577.
    assert!((mean(|score| score.f1) - 0.573_133_333).abs() < 1e-9);
}

/// The original compares the stored prediction as it is: only `False` without blanks is `no`.
#[test]
fn predictions_of_r1_searcher_keep_their_blanks() {
    let row = |stored: &str| {
        let text = format!("I think so. <answer>{stored}</answer>");
        json!({"question": format!("Is it {stored}?"), "answer": "no", "pred_ans": stored, "gen_text_store": text})
            .to_string()
    };
    let text = ["False", " False ", " "].map(row).join("\n");
    let params = json!({"as": "trajectory", "layout": "r1-searcher"});
    let rows = read_text("eval.jsonl", text, params).unwrap().read::<Trajectory>("rows");
    assert_eq!((rows[1].prediction.as_str(), rows[2].finish_reason.as_str()), (" False ", "no_answer"));
    let bound = inputs([("trajectories", rows_input(&rows))]);
    let params = json!({"metrics": ["r1-searcher"], "resamples": 0});
    let outcome = Harness::new().run(&entry::<Evaluate>(), params, &bound).unwrap();
    let metrics = outcome.read::<Metric>("metrics");
    let em = metrics.iter().find(|row| row.id == "all/r1-searcher/em").unwrap().value;
    assert!((em - 1.0 / 3.0).abs() < 1e-9, "{em}");
}

/// The published figures of the file: ACC_R 0.528 and, by the stored verdicts of its judge, ACC_L 0.544.
#[test]
fn stored_verdicts_give_the_published_acc_l() {
    let Some(path) = shared("r1_searcher/eval_bamboogle_qwen.jsonl") else { return };
    let text = std::fs::read_to_string(path).unwrap();
    let params = json!({"as": "trajectory", "layout": "r1-searcher", "columns": {"stored": "gpt4o_output"}});
    let rows = read_text("eval.jsonl", text, params).unwrap().batch("rows");
    let params = json!({"metrics": ["flashrag", "r1-searcher"], "verdicts": ["stored"], "resamples": 0});
    let bound = inputs([("trajectories", batch_input(RecordKind::Trajectory, rows))]);
    let outcome = Harness::new().run(&entry::<Evaluate>(), params, &bound).unwrap();
    let metrics = outcome.read::<Metric>("metrics");
    let of = |name: &str| format!("{:.3}", metrics.iter().find(|row| row.id == format!("all/{name}")).unwrap().value);
    let names = ["r1-searcher/cover_em_1", "verdict/stored", "em", "r1-searcher/f1"];
    assert_eq!(names.map(of), ["0.528", "0.544", "0.456", "0.577"]);
    assert_eq!(outcome.figures["verdict/stored"], 0.544);
}

#[test]
fn columns_beside_a_layout_are_texts() {
    let row =
        json!({"id": "1", "question": "Who?", "golden_answers": ["Ada"], "level": "hard", "n": 3, "meta": {"a": [1]}});
    let params = |columns: Value| json!({"as": "question", "layout": "flashrag", "columns": columns});
    let text = format!("{row}\n{}\n", json!({"id": "2", "question": "Why?", "golden_answers": [], "n": null}));
    let columns = json!({"level": "level", "number": "n", "deep": "/meta/a", "both": "{question} {id}"});
    let outcome = read_text("q.jsonl", &text, params(columns)).unwrap();
    let batch = outcome.batch("rows");
    let column = |name: &str| -> Vec<Option<String>> {
        let texts = text_column(&batch, name).unwrap();
        texts.iter().map(|text| text.map(str::to_owned)).collect()
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!((column("level"), column("number")), (vec![some("hard"), None], vec![some("3"), None]));
    assert_eq!((column("deep"), column("both")), (vec![some("[1]"), None], vec![some("Who? 1"), some("Why? 2")]));
    let error = read_text("q.jsonl", &text, params(json!({"question": "q"}))).unwrap_err();
    assert!(error.message.contains("columns.question: the layout reads the column `question` itself"), "{error}");
    let error = read_text("q.jsonl", &text, params(json!({"level": "levle"}))).unwrap_err();
    assert!(error.message.contains("no record has the field `levle`"), "{error}");
    let documents = json!({"as": "document", "layout": "longbench", "columns": {"set": "dataset"}});
    let two = json!({"context": "Passage 1:\nA\na\n\nPassage 2:\nB\nb", "dataset": "x"});
    let outcome = read_text("l.jsonl", two.to_string(), documents).unwrap();
    let batch = outcome.batch("rows");
    assert_eq!(
        text_column(&batch, "set").unwrap().iter().flatten().collect::<Vec<_>>(),
        ["x", "x"],
        "one per document"
    );
}

#[test]
fn trajectories_of_deepsearch_rl() {
    let result =
        json!({"type": "text", "text": "[{\"chunk\": \"Title A\\nBody\", \"chunk_id\": \"55\", \"score\": 0.5}]"});
    let row = json!({"id": "7", "question": "Who?", "golden_answers": ["Ada"], "answer": "So <answer>Ada</answer>",
        "pred": "Ada", "error": "", "rounds": 3, "metric_score": {"em": 1.0},
        "tools": [{"type": "function", "function": {"name": "retrieve"}}],
        "request_meta": {"model": "m", "temperature": 0.7}, "response_meta": {"usage": {"prompt_tokens": 9, "completion_tokens": 4}},
        "all_turns_tokens": {"prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28},
        "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Who?"},
            {"role": "assistant", "content": null, "reasoning_content": "R", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "retrieve", "arguments": "{\"query\": \"x\"}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": result.to_string()},
            {"role": "assistant", "content": "So <answer>Ada</answer>"}]});
    let read = |row: &Value| {
        read_text("trajectory.jsonl", row.to_string(), json!({"as": "trajectory", "layout": "deepsearch-rl"}))
    };
    let rows = read(&row).unwrap().read::<Trajectory>("rows");
    let made = &rows[0];
    assert_eq!((made.id.as_str(), made.prediction.as_str(), made.turns, made.tool_calls), ("7@0", "Ada", 3, 1));
    assert_eq!((made.prompt_tokens, made.last_completion_tokens, made.model.as_deref()), (20, 4, Some("m")));
    assert_eq!((made.protocol.as_str(), made.finish_reason.as_str()), ("tool_call", "answered"));
    assert_eq!(made.messages[2].tool_calls[0].arguments, "{\"query\": \"x\"}");
    assert_eq!(made.messages[2].reasoning.as_deref(), Some("R"));
    let seen = &made.messages[3].observations[0];
    assert_eq!((made.messages[3].role.as_str(), seen.title.as_deref()), (Role::Tool.name(), Some("Title A")));
    let kept: Value = serde_json::from_str(made.metadata.as_deref().unwrap()).unwrap();
    assert_eq!((&kept["metric_score"]["em"], kept.get("answer")), (&json!(1.0), None));
    let mut broken = row.clone();
    broken["messages"][1]["role"] = json!("human");
    let error = read(&broken).unwrap_err();
    assert!(error.message.contains("trajectory.jsonl:1: `messages.1.role` is `human`"), "{error}");
}

#[test]
fn explorations_and_training_rows_of_searchlm() {
    let prompt = "Rules with <QUERY>.\n\n<USER QUERY> Who built it?\nYour Output:";
    let said = |role: &str, content: &str| json!({"role": role, "content": content});
    let messages = vec![
        said("user", prompt),
        said("assistant", "<QUERY> builder of it"),
        said("user", "<SEARCH> [2] Title: It. Content: By Ada."),
        said("assistant", "<FACT> Ada\n<FINAL>"),
        said("user", "please give the final answer to the input question: Who built it?"),
        said("assistant", "Ada"),
    ];
    let ranking = json!({"messages": [said("user", "[1] a\n[2] b"), said("assistant", "[2]")]});
    let row = json!({"query_id": 7, "answer": "Ada L.", "pred": "Ada", "messages": messages, "rank": [ranking]});
    let read = |text: &str| read_text("epo1.json", text, json!({"as": "trajectory", "layout": "searchlm"})).unwrap();
    let file = json!({"score": {"em": 0.0}, "output": [row], "config": {"left": 0}});
    let made = read(&file.to_string()).read::<Trajectory>("rows").remove(0);
    let roles: Vec<_> = made.messages.iter().map(|message| (message.role.as_str(), message.is_aside())).collect();
    let (user, model) = (Role::User.name(), Role::Assistant.name());
    let aside = [(user, true), (model, true), (Role::Tool.name(), false)];
    assert_eq!(
        roles,
        [&[(user, false), (model, false)][..], &aside, &[(model, false), (user, false), (model, false)]].concat()
    );
    assert_eq!((made.id.as_str(), made.question.as_str(), made.prediction.as_str()), ("7@0", "Who built it?", "Ada"));
    assert_eq!((made.turns, made.tool_calls, made.golden_answers[0].as_str()), (3, 1, "Ada L."));
    let told: Vec<_> = made.conversation().iter().map(|message| message.content.clone()).collect();
    assert_eq!(told, messages.iter().map(|message| message["content"].as_str().unwrap()).collect::<Vec<_>>());
    assert_eq!(made.asides().map(|aside| aside[1].content.clone()).collect::<Vec<_>>(), ["[2]"]);

    let rows = json!([{"messages": messages, "prob": 0.5}, {"messages": ranking["messages"], "prob": 0.5}]);
    let outcome = read(&rows.to_string());
    let made = outcome.read::<Trajectory>("rows").remove(0);
    assert_eq!((made.golden_answers[0].as_str(), made.metadata.as_deref()), ("Ada", Some("{\"prob\":0.5}")));
    assert!(outcome.rejects()[0].message.contains("a ranking is no rollout"), "{:?}", outcome.rejects());
}
