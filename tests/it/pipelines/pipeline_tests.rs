//! `searchmill test`: given rows, a scripted model, expected rows.

use searchmill_engine::{Overrides, Registry, Session};
use searchmill_fixtures::openai_server::{OpenAiServer, Script, Step, message};
use serde_json::Value;

use crate::harness::project::{Mill, Told, files_in};

/// The file does not exist, and the endpoint must never be called.
const PIPELINE: &str = r#"name: judged
params: {threshold: 0.5}
nodes:
  questions: {op: read, with: {path: nosuch.jsonl, as: question}}
  answers:
    op: map
    from: questions
    with:
      prompt: "Answer: {{ question }}"
      output: {text: text, score: float}
      repairs: 1
      policy: {endpoint: {base_url: "ENDPOINT", model: m, api_key: "${secret:NOT_SET_ANYWHERE}"}}
    checks: [{rows: {min: 100}}]
  good: {op: filter, from: answers, with: {where: "score >= ${params.threshold}"}}
  file: {op: write, from: good, with: {path: out/good.jsonl}}
tests:
TESTS"#;

fn project(server: &OpenAiServer, tests: &str) -> Mill {
    let mill = Mill::new();
    mill.write("pipeline.yaml", &PIPELINE.replace("ENDPOINT", &server.base_url()).replace("TESTS", tests));
    mill
}

fn outcome(told: &Told, test: &str) -> Value {
    told.events().into_iter().find(|event| event["test"] == test).unwrap_or_else(|| panic!("{test}: {}", told.stdout))
}

const GIVEN: &str = "    given:
      questions:
      - {id: a, question: \"capital of France?\"}
      - {question: \"capital of Italy?\"}
    model:
    - {when: France, answer: {text: Paris, score: 0.9}}
    - {when: Italy, answers: ['no JSON', '{\"text\": \"Rome\", \"score\": 0.1}']}
";

#[test]
fn a_test_gives_rows_plays_the_model_and_compares_rows() {
    let server = OpenAiServer::start(Script::new());
    let tests = format!(
        "  - name: threshold\n{GIVEN}    expect:\n      answers: [{{id: a, text: Paris, score: 0.9}}, {{id: row-2, text: \
         Rome}}]\n      good: [{{question: \"capital of France?\", score: 0.90000001}}]\n  - name: all\n    params: \
         {{threshold: 0}}\n{GIVEN}    expect:\n      good: {{unordered: true, rows: [{{text: Rome}}, {{text: \
         Paris}}]}}\n      answers.rejects: []\n"
    );
    let mill = project(&server, &tests);
    let told = mill.call(&["test", "pipeline.yaml"]).exit(0);
    assert!(told.stdout.contains("passed threshold") && told.stdout.contains("2 of 2 tests passed"), "{}", told.stdout);
    assert_eq!(mill.call(&["test", "pipeline.yaml", "all", "--json"]).exit(0).events().len(), 1);
    assert_eq!(server.count(), 0, "the real endpoint is never called");
    assert!(!mill.store_path().exists() && !mill.path("out").exists(), "a test leaves nothing behind");
    let told = mill.call(&["test", "pipeline.yaml", "--set", "threshold=0.95", "--json"]).exit(1);
    assert_eq!(outcome(&told, "threshold")["passed"], false, "{}", told.stdout);
    assert_eq!(outcome(&told, "all")["passed"], true, "the params of a test come last");
}

#[test]
fn a_misspelt_column_of_a_given_row_is_an_error() {
    let server = OpenAiServer::start(Script::new());
    let tests =
        format!("  a:\n{}    expect:\n      good: []\n", GIVEN.replacen("{id: a, question:", "{id: a, quesion:", 1));
    let told = project(&server, &tests).call(&["test", "pipeline.yaml"]);
    let all = format!("{}{}", told.stdout, told.stderr);
    assert!(told.code != 0 && all.contains("`quesion`") && all.contains("did you mean `question`?"), "{all}");
}

#[test]
fn what_differs_is_named_by_row_and_column() {
    let server = OpenAiServer::start(Script::new());
    let tests = format!(
        "  wrong:\n{GIVEN}    expect:\n      answers: [{{id: b, text: Paris}}, {{text: Rome}}, {{text: London}}]\n      \
         good: {{unordered: true, rows: [{{text: London}}]}}\n  column:\n{GIVEN}    expect: {{good: [{{txt: x}}]}}\n"
    );
    let mill = project(&server, &tests);
    let told = mill.call(&["test", "pipeline.yaml"]).exit(1).stdout;
    for line in [
        "failed wrong",
        "  answers: expected 3 rows, found 2",
        "  answers row 1, id: expected \"b\", found \"a\"",
        "  answers: expected row 3 is missing: {\"text\":\"London\"}",
        "  good: expected row 1 is missing: {\"text\":\"London\"}",
        "  good row 1 is not expected: {\"text\":\"Paris\"}",
        "  good: there is no column `txt` (did you mean `text`?",
        "0 of 2 tests passed, 2 failed",
    ] {
        assert!(told.contains(line), "{line}\n{told}");
    }
    let json = mill.call(&["test", "pipeline.yaml", "wrong", "--json"]).exit(1);
    let mismatches = outcome(&json, "wrong")["mismatches"].clone();
    assert_eq!(mismatches[1]["mismatch"], "value", "{mismatches}");
    assert_eq!((&mismatches[1]["row"], &mismatches[1]["found"]), (&1.into(), &"a".into()));
}

#[test]
fn a_call_that_is_not_scripted_fails_the_test_and_is_shown() {
    let server = OpenAiServer::start(Script::new());
    let tests = "  - name: unscripted\n    given: {questions: [{question: \"capital of Peru?\"}]}\n    model: [{when: \
                 France, answer: x}]\n    expect: {good: []}\n";
    let mill = project(&server, tests);
    let told = mill.call(&["test", "pipeline.yaml"]).exit(1).stdout;
    assert!(told.contains("the script has no answer") && told.contains("Answer: capital of Peru?"), "{told}");
    assert_eq!(server.count(), 0);
}

#[test]
fn an_answer_that_does_not_fit_is_the_reason_that_is_shown() {
    let server = OpenAiServer::start(Script::new());
    let tests = "  - name: unfit\n    given: {questions: [{id: a, question: \"capital of Peru?\"}]}\n    model: [{when: Peru, \
                 answer: {text: Lima, score: high}}]\n    expect: {good: [{text: Lima}]}\n";
    let mill = project(&server, tests);
    let told = mill.call(&["test", "pipeline.yaml"]).exit(1).stdout;
    for line in ["no further answer", "Answer: capital of Peru?", "after 1 answer of the script:", "`answers: [FIRST"] {
        assert!(told.contains(line), "{line}\n{told}");
    }
    assert!(told.contains("score") && !told.contains("TEXT OF THE PROMPT"), "{told}");
    let json = mill.call(&["test", "pipeline.yaml", "--json"]).exit(1);
    assert_eq!(outcome(&json, "unfit")["refused"][0]["answers"], 1);
    // Without a second question, the row is rejected.
    mill.write("pipeline.yaml", &mill.read("pipeline.yaml").replace("repairs: 1", "repairs: 0"));
    let told = mill.call(&["test", "pipeline.yaml"]).exit(1).stdout;
    assert!(
        told.contains("answers: rejected 1 row, the first: `a`: bad_response: ") && told.contains("score"),
        "{told}"
    );
    assert!(told.contains("good: expected row 1 is missing"), "{told}");
}

#[test]
fn params_of_a_test_may_change_the_variants_that_it_names() {
    let mill = Mill::new();
    let tests = "tests:
  default:
    given: {q: [{id: a, question: x}]}
    expect: {last: [{id: a~size=1}, {id: a~size=2}], few@size=2: [{id: a}]}
  other:
    params: {sizes: [3]}
    given: {q: [{id: a, question: x}]}
    expect: {last: [{id: a~size=3, size: 3}], few@size=3: [{id: a}]}
  twice:
    given: {q: [{id: a, question: x}, {id: a, question: y}]}
    expect: {last: []}
  unknown:
    params: {sizes: [3]}
    expect: {few@size=4: []}
";
    let nodes = "name: t\nparams: {sizes: [1, 2]}\nnodes:\n  q: {op: read, with: {path: nosuch.jsonl, as: question}}\n  few: {op: \
                 sample, from: q, matrix: {size: \"${params.sizes}\"}, with: {n: 5}}\n  last: {op: filter, from: few@all, with: \
                 {where: \"true\"}}\n";
    mill.write("pipeline.yaml", &format!("{nodes}{tests}"));
    mill.call(&["test", "pipeline.yaml", "default"]).exit(0);
    mill.call(&["test", "pipeline.yaml", "other"]).exit(0);
    let told = mill.call(&["test", "pipeline.yaml", "twice"]).exit(1).stdout;
    assert!(told.contains("failed twice") && told.contains("given rows of `q`: two question rows"), "{told}");
    let told = mill.call(&["test", "pipeline.yaml", "unknown"]).exit(2).stderr;
    assert!(told.contains("there is no node `few@size=4`") && told.contains("pipeline.yaml:"), "{told}");
}

#[test]
fn a_wrong_param_of_a_test_is_told_where_it_is_written() {
    let server = OpenAiServer::start(Script::new());
    for (params, word, message) in [
        ("{threshold: 0.5, treshold: 0.1}", "treshold:", "unknown param `treshold`"),
        ("{threshold: \"a b\"}", "", "not an SQL expression"),
    ] {
        let tests = format!("  - name: wrong\n    params: {params}\n    expect: {{good: []}}\n");
        let mill = project(&server, &tests);
        mill.write("nosuch.jsonl", "{\"id\": \"a\", \"question\": \"b?\"}\n");
        for command in ["test", "validate"] {
            let told = mill.call(&[command, "pipeline.yaml"]).exit(2).stderr;
            assert!(told.contains(message) && !told.contains("--set"), "{told}");
            if !word.is_empty() {
                let text = mill.read("pipeline.yaml");
                let line = text.lines().position(|line| line.contains(word)).expect("a line");
                let column = text.lines().nth(line).and_then(|line| line.find(word)).expect("a column");
                assert!(told.contains(&format!("pipeline.yaml:{}:{}", line + 1, column + 1)), "{told}");
            }
        }
    }
}

#[test]
fn an_answer_that_is_not_asked_for_fails_the_test() {
    let server = OpenAiServer::start(Script::new());
    let good = "{text: one, score: 1}";
    let test = |model: &str| {
        format!(
            "  - name: unused\n    given: {{questions: [{{question: a}}]}}\n    model: {model}\n    expect: {{good: [{{text: one}}]}}\n"
        )
    };
    let mill = project(
        &server,
        &test(&format!("[{{when: a, answers: [{good}, {good}]}}, {{when: Chad, answer: x}}, {{answer: y}}]")),
    );
    let told = mill.call(&["test", "pipeline.yaml"]).exit(1).stdout;
    for line in [
        "failed unused",
        "  answer 2 of 2 to `when: a` was never asked for",
        "  the answer to `when: Chad` was never asked for",
        "  the answer at place 3 of `model` was never asked for",
        "remove it from `model:`",
    ] {
        assert!(told.contains(line), "{line}\n{told}");
    }
    let json = mill.call(&["test", "pipeline.yaml", "--json"]).exit(1);
    assert_eq!(outcome(&json, "unused")["unused"].as_array().map(Vec::len), Some(3), "{}", json.stdout);
    project(&server, &test(&format!("[{{when: a, answer: {good}}}]"))).call(&["test", "pipeline.yaml"]).exit(0);
}

#[test]
fn answers_without_a_prompt_are_given_in_order() {
    let server = OpenAiServer::start(Script::new());
    let tests = "  - name: order\n    given: {questions: [{question: a}, {question: b}]}\n    model: [{answer: {text: \
                 one, score: 1}}, {answer: {text: two, score: 1}}]\n    expect: {good: [{text: one}, {text: two}]}\n";
    let mill = project(&server, tests);
    mill.call(&["test", "pipeline.yaml"]).exit(0);
}

#[test]
fn wrong_tests_are_refused_with_their_place() {
    let server = OpenAiServer::start(Script::new());
    let broken = [
        ("  - name: a\n    given: {nosuch: []}\n    expect: {good: []}\n", "there is no node `nosuch`"),
        ("  - name: a\n    expect: {good.nosuch: []}\n", "`good` has no output `nosuch`"),
        ("  - name: a\n    expect: {good: 3}\n", "must be a list of rows"),
        ("  - name: a\n    given: {questions: [{question: q}]}\n", "expects nothing"),
        ("  - name: a\n    expectt: {good: []}\n", "has no key `expectt`"),
        ("  - name: a\n    model: [{when: x}]\n    expect: {good: []}\n", "has no text"),
        (
            "  - name: a\n    model: [{answer: x, answers: [y]}]\n    expect: {good: []}\n",
            "both `answer` and `answers`",
        ),
        ("  - name: a\n    expect: {good: []}\n  - name: a\n    expect: {good: []}\n", "two tests are called `a`"),
    ];
    for (tests, message) in broken {
        let mill = project(&server, tests);
        let told = mill.call(&["test", "pipeline.yaml"]).exit(2).stderr;
        assert!(told.contains(message) && told.contains("pipeline.yaml:"), "{message}\n{told}");
    }
    let mill = project(&server, "  - name: a\n    expect: {good: []}\n");
    let told = mill.call(&["test", "pipeline.yaml", "b"]).exit(2).stderr;
    assert!(told.contains("has no test `b`"), "{told}");
    let told = mill.call(&["test", "pipeline.yaml"]).exit(1).stdout;
    assert!(told.contains("nosuch.jsonl"), "a file that no test gives is needed: {told}");
}

#[test]
fn the_tests_of_the_shipped_pipelines_pass() {
    let mill = Mill::new();
    let folder = format!("{}/pipelines", env!("CARGO_MANIFEST_DIR"));
    let files = crate::harness::project::files_in(std::path::Path::new(&folder));
    let files: Vec<_> = files.iter().filter(|file| file.extension().is_some_and(|end| end == "yaml")).collect();
    assert!(files.len() >= 9, "{files:?}");
    for file in files {
        let (name, file) = (file.display(), file.display().to_string());
        let told = mill.call(&["test", &file, "--json"]).exit(0);
        assert!(told.events().iter().any(|event| event["passed"] == true), "{name}: {}", told.stdout);
    }
}

#[test]
fn params_of_a_test_merge_with_the_options_of_the_pipeline() {
    let mill = Mill::new();
    mill.write(
        "pipeline.yaml",
        r#"name: options
params: {cut: {by_words: {size: 3, overlap: 1}}, many: {rows: {count: 1}}, words: "${params.cut.by_words.size} ${params.cut.by_words.overlap}"}
nodes:
  rows: {op: read, with: {path: nosuch.jsonl, as: table}}
  told: {op: sql, from: {r: rows}, with: {query: "SELECT '${params.words}' AS words, ${params.many.rows.count} AS count FROM r"}}
tests:
- name: merged
  params: {cut: {by_words: {size: 9}}, many: {rows: {count: 2}}}
  given: {rows: [{a: 1}]}
  expect: {told: [{words: "9 1", count: 2}]}
- name: unknown
  params: {cut: {by_words: {sise: 9}}}
  given: {rows: [{a: 1}]}
  expect: {told: []}
"#,
    );
    mill.call(&["test", "pipeline.yaml", "merged"]).exit(0);
    let told = mill.call(&["test", "pipeline.yaml", "unknown"]);
    assert!(told.code != 0 && format!("{}{}", told.stdout, told.stderr).contains("cut.by_words.sise"), "{told:?}");
}

/// Rows that need no file and no model.
fn rows_alone(expect: &str) -> Mill {
    let mill = Mill::new();
    mill.write(
        "pipeline.yaml",
        &format!(
            "name: alone\nnodes:\n  rows: {{op: read, with: {{path: nosuch.jsonl, as: table}}}}\n  same: {{op: filter, \
             from: rows, with: {{where: \"a > 0\"}}}}\ntests:\n  a:\n    given: {{rows: [{{a: 1, b: 2, x: 0.68}}, {{a: 1, b: 3, \
             x: 1000.5}}]}}\n    expect: {{same: {expect}}}\n"
        ),
    );
    mill
}

#[test]
fn rows_in_any_order_are_paired_even_if_several_fit() {
    let told = |expect: &str, code: i32| {
        let mill = rows_alone(&format!("{{unordered: true, rows: [{expect}]}}"));
        mill.call(&["test", "pipeline.yaml"]).exit(code).stdout
    };
    told("{a: 1}, {a: 1, b: 2}", 0);
    told("{a: 1}, {a: 1, b: 3}", 0);
    told("{a: 1, b: 3}, {a: 1}", 0);
    let wrong = told("{a: 1}, {a: 1, b: 2}, {b: 2}", 1);
    assert!(wrong.contains("expected 3 rows, found 2") && wrong.contains("row 3 is missing: {\"b\":2}"), "{wrong}");
    let wrong = told("{b: 2}, {b: 2}", 1);
    assert!(
        wrong.contains("row 2 is missing: {\"b\":2}") && wrong.contains("row 2 is not expected: {\"b\":3}"),
        "{wrong}"
    );
}

#[test]
fn the_tolerance_is_the_largest_difference() {
    for (tolerance, rows, code) in [
        ("1", "{b: 3}, {b: 2}", 0),
        ("0.5", "{b: 3}, {b: 2}", 1),
        ("0.01", "{x: 0.67}, {x: 1000.5}", 0),
        ("0.01", "{x: 0.68}, {x: 1000.4}", 1),
        ("0.1", "{x: 0.68}, {x: 1000.4}", 0),
        ("0.1", "{b: 2.1}, {b: 2.9}", 0),
        ("0", "{x: 0.68}, {x: 1000.5}", 0),
        ("0", "{x: 0.6800000001}, {}", 1),
    ] {
        let mill = rows_alone(&format!("{{tolerance: {tolerance}, rows: [{rows}]}}"));
        let told = mill.call(&["test", "pipeline.yaml"]);
        assert_eq!(told.code, code, "{tolerance}: {rows}: {}", told.stdout);
    }
}

#[test]
fn a_test_that_expects_nothing_is_reported_beside_other_mistakes() {
    let server = OpenAiServer::start(Script::new());
    let tests = "  - name: a\n    expectt: {good: []}\n    given: {questions: [{question: q}]}\n  - name: b\n    given: \
                 {questions: [{question: q}]}\n";
    let told = project(&server, tests).call(&["test", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("has no key `expectt`") && told.contains("`b` expects nothing"), "{told}");
}

/// Returns all files below a folder.
fn all_files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let below = |path: std::path::PathBuf| if path.is_dir() { all_files(&path) } else { vec![path] };
    files_in(folder).into_iter().flat_map(below).collect()
}

#[test]
fn an_embedding_program_that_tests_a_pipeline_leaves_its_own_store_alone() {
    let real = OpenAiServer::start(Script::new());
    let tests =
        format!("  - name: all\n    params: {{threshold: 0}}\n{GIVEN}    expect: {{good: [{{text: Paris}}, {{}}]}}\n");
    let mill = project(&real, &tests.replace("'no JSON', ", ""));
    let script: Script = [("Answer: capital of France?", "Paris", 0.9), ("Answer: capital of Italy?", "Rome", 0.1)]
        .map(|(prompt, text, score)| {
            let reply = format!("{{\"text\": \"{text}\", \"score\": {score}}}");
            (prompt.to_owned(), vec![Step::Say(message(&reply))])
        })
        .into();
    let player = OpenAiServer::start(script);
    let session = Session::open(mill.path("."), Registry::new(&searchmill_operators::all())).expect("a session");
    let (file, overrides) = (mill.path("pipeline.yaml"), Overrides::default());
    let pipeline = session.check_for_tests(&file, &overrides).expect("a pipeline");
    let tests = &pipeline.plan.tests;
    let before = all_files(&mill.store_path());
    let test = session.check_test(&file, &overrides, &tests[0], &pipeline.sources).expect("a test");
    assert_eq!(test.case().model.len(), 2);
    let verdict = session.try_out(test, &player.base_url()).expect("a verdict");
    assert!(verdict.failures.is_empty() && verdict.mismatches.is_empty(), "{verdict:?}");
    assert_eq!((player.count(), real.count()), (2, 0));
    assert_eq!(all_files(&mill.store_path()), before, "the store of the session has no scripted answer");
}
