//! Tests of `init`: from files of a newcomer to a pipeline that validates, plans and runs.

use std::io::Write;
use std::process::Stdio;

use crate::harness::project::Mill;

/// A folder of texts, and a CSV of a spreadsheet with two answers in a cell.
fn newcomer() -> Mill {
    let mill = Mill::new();
    std::fs::create_dir(mill.path("texts")).expect("a folder");
    mill.write("texts/varn.txt", "The lighthouse of Varn was built in 1871 by Ida Holm.\n");
    mill.write("texts/holm.md", "# Ida Holm\n\nIda Holm was an engineer from Osterby.\n");
    mill.write("fragen.csv", "Nr;Question;Answer\n1;Who built the lighthouse of Varn?;Ida Holm | Holm\n2;When?;1871\n");
    mill
}

#[test]
fn a_link_in_place_of_the_schema_is_replaced_and_not_followed() {
    let mill = newcomer();
    mill.write("elsewhere.json", "mine");
    std::os::unix::fs::symlink(mill.path("elsewhere.json"), mill.path("pipeline.schema.json")).expect("a link");
    mill.call(&["init", "texts", "--questions", "fragen.csv", "--model", "qwen3-4b"]).exit(0);
    assert_eq!(mill.read("elsewhere.json"), "mine");
    assert!(!mill.path("pipeline.schema.json").is_symlink());
}

#[test]
fn a_pipeline_of_own_files_validates_for_each_goal() {
    for (goal, said) in
        [("evaluate", "out/report"), ("training-file", "out/train.jsonl"), ("rl", "out/rl_train.parquet")]
    {
        let mill = newcomer();
        let told =
            mill.call(&["init", "texts", "--questions", "fragen.csv", "--goal", goal, "--model", "qwen3-4b"]).exit(0);
        assert!(
            told.stdout.contains("wrote pipeline.yaml") && told.stdout.contains("searchmill run pipeline.yaml"),
            "{told:?}"
        );
        let text = mill.read("pipeline.yaml");
        assert!(text.starts_with("# yaml-language-server: $schema=pipeline.schema.json\n"), "{text}");
        for part in [said, "delimiter: \";\"", "golden_answers: Answer", "split: \"|\"", "layout: files", "qwen3-4b"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(mill.read("pipeline.schema.json").contains("\"$schema\""));
        mill.call(&["validate", "pipeline.yaml"]).exit(0);
        mill.call(&["plan", "pipeline.yaml"]).exit(0);
        // The part that needs no model runs.
        mill.call(&["run", "pipeline.yaml", "bm25", "questions"]).exit(0);
        let rows = mill.call(&["show", "questions", "--json"]).exit(0).events();
        assert_eq!(rows[0]["golden_answers"], serde_json::json!(["Ida Holm", "Holm"]));
        assert_eq!(rows[1]["id"], "2");
        // Nothing of the user's is replaced.
        let again = mill.call(&["init", "--documents", "texts", "--questions", "fragen.csv", "--model", "m"]).exit(2);
        assert!(again.stderr.contains("pipeline.yaml is there already"), "{again:?}");
        assert_eq!(mill.read("pipeline.yaml"), text);
    }
}

#[test]
fn a_teacher_without_a_model_gives_a_training_file() {
    let mill = Mill::new();
    mill.write(
        "docs.jsonl",
        "{\"doc_id\": \"varn\", \"headline\": \"Varn\", \"body\": \"The lighthouse of Varn was built by Ida Holm.\"}\n",
    );
    let evidence = "[{\"document_id\": \"varn\", \"fact\": \"The lighthouse of Varn was built by Ida Holm.\"}]";
    mill.write(
        "q.jsonl",
        &format!("{{\"query\": \"Who built it?\", \"gold\": [\"Ida Holm\"], \"evidence\": {evidence}}}\n"),
    );
    mill.call(&[
        "init",
        "docs.jsonl",
        "--questions",
        "q.jsonl",
        "--goal",
        "training-file",
        "--model",
        "evidence",
        "-o",
        "first.yaml",
    ])
    .exit(0);
    mill.call(&["run", "first.yaml"]).exit(0);
    assert!(mill.read("out/train.jsonl").contains("Ida Holm"));
}

#[test]
fn what_is_not_told_is_asked_for_or_missing() {
    let mill = newcomer();
    for (args, said) in [
        (&["init"][..], "DOCUMENTS is missing"),
        (&["init", "texts"], "--questions FILE is missing"),
        (&["init", "texts", "--questions", "fragen.csv"], "--model NAME"),
        (&["init", "texts", "--questions", "nothing.csv", "--model", "m"], "there is no file nothing.csv"),
        (&["init", "texts", "--questions", "fragen.csv", "--model", "evidence"], "have no `evidence`"),
        (
            &["init", "texts", "--questions", "fragen.csv", "--model", "m", "--answer", "Antwort"],
            "has no field `Antwort`",
        ),
    ] {
        let told = mill.call(args).exit(2);
        assert!(told.stderr.contains(said), "{args:?}: {told:?}");
        assert!(!mill.path("pipeline.yaml").exists());
    }
    mill.write("fragen.csv", "Nr;Frage;Antwort\n1;Wer?;Ida\n");
    let told = mill.call(&["init", "texts", "--questions", "fragen.csv", "--model", "m"]).exit(2);
    assert!(told.stderr.contains("add `--question FIELD`: it has `Antwort`, `Frage`, `Nr`"), "{told:?}");
    // A name with every sign stays one scalar.
    mill.write("q.csv", "id,question,answer\n1,Wer?,Ida\n");
    mill.call(&["init", "texts", "--questions", "q.csv", "--model", "a: #b ${x} \"c\""]).exit(0);
    mill.call(&["validate", "pipeline.yaml"]).exit(0);
    let piped = mill.command(&["init"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut piped = piped.expect("the program starts");
    piped.stdin.take().expect("stdin").write_all(b"texts\n").expect("written");
    assert!(!piped.wait().expect("it ends").success(), "only a terminal is asked");
}
