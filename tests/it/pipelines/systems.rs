//! The pipelines of published systems run whole without network, weights or server; again, nothing runs; and an audit
//! that repeats every node and every rollout finds all as recorded.

use std::io::{BufRead, BufReader};
use std::path::Path;

use arrow::json::LineDelimitedWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use searchmill_fixtures::openai_server::{OpenAiServer, Step, message};
use serde_json::{Value, json};

use crate::harness::project::Mill;

/// Small sizes: the pipelines' own take minutes each.
const SMALL: [&str; 10] = [
    "--set",
    "train_questions=80",
    "--set",
    "test_questions=6",
    "--set",
    "training.max_steps=2",
    "--set",
    "world={documents: 3000, questions: 3000, lessons: 20, steps: 2}",
    "--set",
    "rl={rounds: 2, questions: 3, samples: 2, validation: 6, keep: {every: 1, last: 1}, tuning: {lora: {rank: 4, alpha: 8, dropout: 0}}, batch_size: 4, learning_rate: 1e-3}",
];

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Runs every line of a page for people who know the system's own commands, with the sizes of the run before: what is
/// computed then is there.
fn page_runs(mill: &Mill, page: &str, more: &[&str]) {
    let text = std::fs::read_to_string(Path::new(ROOT).join("docs/how-to").join(page)).expect("the page");
    let mut lines = 0;
    for block in text.split("```sh\n").skip(1) {
        let block = block.split("```").next().unwrap_or_default().replace("\\\n", " ");
        for line in block.lines() {
            let words = shell_words(line);
            assert_eq!(words.first().map(String::as_str), Some("searchmill"), "{page}: {line}");
            let args: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
            lines += 1;
            match args.first() {
                Some(&"run") => {
                    let args = [&args[..], &["--set", "out=out"], &SMALL[..], more].concat();
                    let told = mill.call(&args).exit(0).stdout;
                    assert!(told.contains(" 0 ran"), "{page}: {line} computes what the whole run did not: {told}");
                }
                Some(&"serve") => serves(mill, &args),
                _ => drop(mill.call(&args).exit(0)),
            }
        }
    }
    assert!(lines > 8, "{page} has {lines} lines");
}

/// Splits a line at spaces outside quotation marks.
fn shell_words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (place, part) in line.split('"').enumerate() {
        if place % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// Starts a server at a free port, and stops it once it answers.
fn serves(mill: &Mill, args: &[&str]) {
    let place = args.iter().position(|word| *word == "--listen").expect("an address");
    let args = [&args[..place], &["--listen", "127.0.0.1:0"], &args[place + 2..]].concat();
    let mut server = mill.command(&args).stdout(std::process::Stdio::piped()).spawn().expect("a server");
    let mut line = String::new();
    let mut stdout = BufReader::new(server.stdout.take().expect("its output"));
    stdout.read_line(&mut line).expect("a line");
    server.kill().expect("a running server");
    server.wait().expect("a server");
    assert!(line.contains("serving `"), "{args:?}: {line}");
}

/// A folder with the pipelines, and a judge that learns for two steps in place of sixty.
fn project() -> (Mill, String) {
    let mill = Mill::new();
    std::os::unix::fs::symlink(Path::new(ROOT).join("pipelines"), mill.path("pipelines")).expect("a link");
    let part = mill.read("pipelines/parts/judge_here.yaml");
    assert!(part.contains("max_steps: 60"), "{part}");
    mill.write("judge.yaml", &part.replace("max_steps: 60", "max_steps: 2"));
    let judging = format!("judging={}", mill.path("judge.yaml").display());
    (mill, judging)
}

fn runs_whole(mill: &Mill, pipeline: &str, more: &[&str], format: &str) {
    let (file, params) = (format!("pipelines/{pipeline}"), "pipelines/params/offline.yaml".to_owned());
    let args = [&["run", &file, "--params", &params, "--set", "out=out"], &SMALL[..], more].concat();
    let first = mill.call(&args).exit(0);
    assert!(first.stdout.contains("\ndone in "), "{}", first.stdout);
    let again = mill.call(&args).exit(0);
    assert!(again.stdout.contains(" cached · 0 ran"), "{}", again.stdout);
    let audit = mill.call(&["audit", "latest", "--replay", "--rollouts"]).exit(0);
    assert!(audit.stdout.contains("everything checked is as recorded"), "{}", audit.stdout);
    let shown = mill.call(&["show", "mended", "-n", "1"]).exit(0).stdout;
    assert!(shown.contains("{\"reward\":"), "the columns that a node added are shown: {shown}");
    let rows = mill.read("out/train.jsonl");
    assert!(rows.lines().count() > 20 && rows.lines().all(|row| row.contains(format)), "{}", rows.lines().count());
    if pipeline != "deepsearch_rl.yaml" {
        let judged = mill.call(&["show", "judged_scores.metrics", "--format", "jsonl", "-n", "0"]).exit(0).stdout;
        assert!(judged.contains("agreement/judged/equal"), "{judged}");
    }
    let rounds = mill.call(&["show", "rl_rounds", "--format", "jsonl", "-n", "0"]).exit(0).stdout;
    assert_eq!(rounds.lines().filter(|line| line.contains("\"f1\":")).count(), 2, "{rounds}");
    for page in ["curve/plot.html", "gain/report.html"] {
        assert!(mill.path(&format!("out/rl/{page}")).is_file(), "{page}");
    }
    if pipeline != "deepsearch_rl.yaml" {
        let table = mill.read("out/benchmarks.csv");
        let sets = if pipeline == "search_r1.yaml" { 7 } else { 4 };
        let of = |metric: &str| table.lines().filter(|line| line.contains(&format!(",{metric},"))).count();
        assert_eq!((of("em"), of("f1")), (sets + 1, sets + 1), "each set, and the mean: {table}");
        assert_eq!(table.contains("mean,r1-searcher/cover_em_1,"), pipeline == "r1_searcher.yaml", "{table}");
    }
    assert!(mill.path("out/rl/reflection/report.html").is_file());
    let rewards = mill.read("out/rewards.csv");
    // The published rule of Search-R1 takes the first answer of another prompt than its own for the prompt's example.
    let right = if format == "<information>" { "0.0,1.0," } else { "1.0,1.0," };
    assert!(rewards.starts_with("published,mended,rollouts\n") && rewards.contains(right), "{rewards}");
}

#[test]
fn deepsearch_rl_runs_offline() {
    let checkpoints = "checkpoints={step_1: student.checkpoint_1, last: student}";
    let more = ["--set", checkpoints, "--set", "training.checkpoints=[1]"];
    let (mill, _) = project();
    runs_whole(&mill, "deepsearch_rl.yaml", &more, "tool_response");
    let steps = mill.read("out/checkpoints.csv");
    assert_eq!(steps.lines().count(), 3, "{steps}");
    assert!(steps.contains("\nlast,") && steps.contains("\nstep_1,"), "{steps}");
    let pairs = mill.read("out/before_after.csv");
    let mut lines = pairs.lines();
    assert_eq!(lines.next(), Some("questions,count,before,after,change,low,high,better,worse"));
    assert!(lines.next().is_some_and(|line| line.starts_with("all,6,")), "{pairs}");
    page_runs(&mill, "from-deepsearch-rl.md", &more);
}

#[test]
fn research_runs_offline() {
    let (mill, judging) = project();
    let more = ["--set", &judging];
    runs_whole(&mill, "research.yaml", &more, "\\\\boxed{");
    assert_eq!(delivered(&mill, "out/validation.parquet").len(), 6);
    page_runs(&mill, "from-research.md", &more);
}

/// Returns the rows of a delivered Parquet file as JSON.
fn delivered(mill: &Mill, file: &str) -> Vec<Value> {
    let file = std::fs::File::open(mill.path(file)).expect("a delivered file");
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet").build().expect("rows");
    let mut lines = Vec::new();
    let mut writer = LineDelimitedWriter::new(&mut lines);
    reader.for_each(|batch| writer.write(&batch.expect("rows")).expect("JSON"));
    writer.finish().expect("JSON");
    String::from_utf8(lines).expect("text").lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn r1_searcher_runs_offline() {
    let stage_1 = "stage_1_rl={rounds: 1, questions: 3, samples: 2, validation: 6, keep: {every: 1, last: 1}, tuning: \
                   {lora: {rank: 4, alpha: 8, dropout: 0}}, batch_size: 4, learning_rate: 1e-3}";
    let (mill, judging) = project();
    let more = ["--set", "stage_1=here", "--set", "rl_start=stage_1_rl.policy", "--set", stage_1, "--set", &judging];
    runs_whole(&mill, "r1_searcher.yaml", &more, "<|begin_of_query|>");
    assert!(mill.path("out/stage_1/rl/curve/plot.html").is_file());
    let acc_l = mill.read("out/acc_l.csv");
    assert_eq!(acc_l.lines().count(), 1 + 4 + 1, "each set, and all: {acc_l}");
    page_runs(&mill, "from-r1-searcher.md", &more);
    let rows = delivered(&mill, "out/rl.parquet");
    assert_eq!(rows.len(), 80);
    for row in rows {
        assert_eq!(row["data_source"], "r1-searcher", "questions of two data sets");
        assert_eq!((&row["prompt"][0]["role"], &row["prompt"][1]["role"]), (&json!("system"), &json!("user")));
        assert!(row["prompt"][0]["content"].as_str().is_some_and(|text| text.contains("<|begin_of_query|>")), "{row}");
        assert!(!row["prompt"].to_string().contains("<search>"), "Search-R1's: {row}");
    }
}

#[test]
fn search_r1_runs_offline() {
    let (mill, judging) = project();
    let more = ["--set", &judging];
    runs_whole(&mill, "search_r1.yaml", &more, "<information>");
    let rows = delivered(&mill, "out/rl.parquet");
    assert!(rows.iter().all(|row| row["data_source"] == "nq" && row.get("agent_name").is_none()));
    page_runs(&mill, "from-search-r1.md", &more);
}

#[test]
fn the_reproduction_of_search_r1_runs_offline() {
    let (mill, judging) = project();
    let more =
        ["--set", "protocol=tool-tags", "--set", "system=search-r1-verl", "--set", "rl_layout=verl", "--set", &judging];
    runs_whole(&mill, "search_r1.yaml", &more, "<tool_response>");
    let rows = delivered(&mill, "out/rl.parquet");
    assert_eq!(rows.len(), 80);
    assert!(rows.iter().all(|row| row["agent_name"] == "tool_agent"), "without it, verl calls no tools");
}

/// The rows, the base model and a retriever go to a program, and what it leaves is tested like the loop's policy.
#[test]
fn the_rl_step_may_be_another_program() {
    let mill = Mill::new();
    mill.write(
        "train_rl.py",
        r#"import json, os, shutil, sys, urllib.request
rows, model, output, metrics, retriever = sys.argv[1:]
shutil.copytree(model, output, dirs_exist_ok=True)
asked = urllib.request.Request(retriever + "/retrieve", json.dumps({"queries": ["founded"], "topk": 2, "return_scores": True}).encode(),
                               {"content-type": "application/json"})
found = json.load(urllib.request.urlopen(asked))["result"][0]
with open(metrics, "w") as file:
    file.write(json.dumps({"step": 1, "loss": 0.5, "reward": len(found), "rows": os.path.getsize(rows)}) + "\n")
"#,
    );
    let place = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines").join(name).display().to_string();
    let (file, params) = (place("search_r1.yaml"), place("params/offline.yaml"));
    let external = r#"external={program: [python3], arguments: [train_rl.py, "{rows}", "{model}", "{output}", "{metrics}", "${service.retriever}"]}"#;
    let more = ["--set", "out=out", "--set", "trainer=external", "--set", external];
    let args = [&["run", &file, "rl_gain_page", "rl_file", "--params", &params], &SMALL[..], &more].concat();
    mill.call(&args).exit(0);
    let steps = mill.call(&["show", "rl_training@round=0.steps", "--format", "jsonl", "-n", "0"]).exit(0).stdout;
    assert!(steps.contains("\"reward\":2.0"), "the program searched: {steps}");
    assert!(mill.path("out/rl/gain/report.html").is_file() && mill.path("out/rl.parquet").is_file());
    assert!(mill.call(&args).exit(0).stdout.contains(" cached · 0 ran"), "the program runs once");
}

#[test]
fn searchlm_runs_two_iterations_offline() {
    let mill = Mill::new();
    std::os::unix::fs::symlink(Path::new(ROOT).join("pipelines"), mill.path("pipelines")).expect("a link");
    let (file, params) = ("pipelines/searchlm.yaml", "pipelines/params/offline.yaml");
    let args = [&["run", file, "--params", params, "--set", "out=out"], &SMALL[..]].concat();
    mill.call(&args).exit(0);
    let again = mill.call(&args).exit(0);
    assert!(again.stdout.contains(" cached · 0 ran"), "{}", again.stdout);
    let audit = mill.call(&["audit", "latest", "--replay", "--rollouts"]).exit(0);
    assert!(audit.stdout.contains("everything checked is as recorded"), "{}", audit.stdout);
    let rows = mill.read("out/warmup.jsonl");
    let (rollouts, choices): (Vec<_>, Vec<_>) = rows.lines().partition(|row| row.contains("<FINAL>"));
    assert!(rollouts.len() > 20 && choices.len() > 20, "{} {}", rollouts.len(), choices.len());
    assert!(choices.iter().all(|row| row.contains("Search query: ")), "{}", choices[0]);
    let weighted = delivered(&mill, "out/weighted.parquet");
    assert_eq!(weighted.len(), mill.read("out/train.jsonl").lines().count());
    let is_weighted = |row: &Value| row["weight"].as_f64().is_some_and(|weight| (0.01..=1.0).contains(&weight));
    assert!(weighted.iter().all(is_weighted) && weighted[0]["messages"].is_array(), "{}", weighted[0]);
    let weights = mill.read("out/weights.csv");
    let columns = "round,is_right,question_softmax,documented,branch_main,branch_v1,rollouts,without_answer\n";
    assert!(weights.starts_with(columns), "{weights}");
    assert_eq!(mill.call(&["show", "iterations", "--format", "jsonl", "-n", "0"]).exit(0).stdout.lines().count(), 2);
    assert!(mill.read("out/paired.csv").starts_with("before,after,questions\n"));
    page_runs(&mill, "from-searchlm.md", &[]);
}

#[test]
fn searchlms_annotation_by_a_model_becomes_rollouts() {
    let steps = |steps: Value| vec![Step::Say(message(&json!({"steps": steps}).to_string()))];
    let hops = json!([
        {"search": "director of Polish-Russian War", "reference": "Polish-Russian War was directed by Xawery Żuławski",
         "keyword": "It was made by Żuławski"},
        {"search": "mother of Xawery Żuławski", "reference": "He is the son of actress Małgorzata Braunek.",
         "keyword": "his mother is Braunek"},
    ]);
    let script = [
        ("Question: Who is the mother of the director of Polish-Russian War?".to_owned(), steps(hops)),
        ("Question: Who is blank?".to_owned(), steps(json!([{"search": " ", "reference": "", "keyword": ""}]))),
    ];
    let server = OpenAiServer::start_by_turn(script.into());
    let mill = Mill::new();
    let part = Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines/parts/annotate_by_model.yaml");
    let pipeline = format!(
        r#"name: annotated
include:
- path: "{}"
  params: {{annotator: {{endpoint: {{base_url: "{}", model: m}}}}, top_k: 3}}
nodes:
  documents: {{op: read, with: {{path: documents.jsonl, as: document}}}}
  passages: {{op: chunk, from: documents, with: {{size: 100, count: words}}}}
  index: {{op: index, from: passages, with: {{kind: bm25}}}}
  train: {{op: read, with: {{path: questions.jsonl, as: question}}}}
  halves: {{op: split, from: train, with: {{parts: {{warm: 2}}}}, seed: 1}}
"#,
        part.display(),
        server.base_url()
    );
    mill.write("pipeline.yaml", &pipeline);
    let document =
        |id: &str, title: &str, text: &str| json!({"id": id, "title": title, "text": text}).to_string() + "\n";
    let film = document(
        "p1",
        "Polish-Russian War",
        "Polish-Russian War is a film of 2009. It was directed by Xawery Żuławski.",
    );
    let man = document(
        "p2",
        "Xawery Żuławski",
        "Xawery Żuławski is a director. He is the son of actress Małgorzata Braunek.",
    );
    mill.write("documents.jsonl", &(film + &man + &document("p3", "Rome", "Rome is a city in Italy.")));
    let fact = |title: &str, fact: &str| json!({"document_id": null, "title": title, "fact": fact});
    let evidence = [
        fact("Xawery Żuławski", "He is the son of actress Małgorzata Braunek."),
        fact("Polish-Russian War", "It was directed by Xawery Żuławski."),
    ];
    let question = |id: &str, text: &str| {
        let row = json!({"id": id, "question": text, "golden_answers": ["Małgorzata Braunek"], "question_type": null,
                         "evidence": evidence, "metadata": null});
        row.to_string() + "\n"
    };
    let asked = question("q1", "Who is the mother of the director of Polish-Russian War?");
    mill.write("questions.jsonl", &(asked + &question("q2", "Who is blank?")));
    mill.run(&[]).exit(3);
    let rejects = mill.call(&["show", "annotated.rejects", "--format", "jsonl"]).exit(0).stdout;
    assert!(rejects.contains("step 0 of `steps` has an empty `search`") && rejects.lines().count() == 1, "{rejects}");
    let row = mill.call(&["show", "annotated", "--format", "jsonl"]).exit(0).stdout;
    let row: Value = serde_json::from_str(row.lines().next().expect("a rollout")).expect("JSON");
    let said: Vec<&str> = row["messages"]
        .as_array()
        .expect("messages")
        .iter()
        .filter(|message| message["role"] == "assistant")
        .filter_map(|message| message["content"].as_str())
        .collect();
    let all = said.join("\n");
    let order = [
        "<QUERY> director of Polish-Russian War",
        "<FACT> It was made by Żuławski",
        "<QUERY> mother of Xawery Żuławski",
        "<FACT> his mother is Braunek",
        "<FINAL>",
        "Małgorzata Braunek",
    ];
    let places: Vec<_> = order.iter().map(|text| all.find(text)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}\n{all}");
    let audit = mill.call(&["audit", "latest", "--replay", "--rollouts"]).exit(0);
    assert!(audit.stdout.contains("everything checked is as recorded"), "{}", audit.stdout);
}

#[test]
fn longbench_prints_its_table() {
    let mill = Mill::new();
    std::fs::create_dir_all(mill.path("data")).expect("a folder");
    mill.write("corpus.jsonl", "{\"id\": \"0\", \"contents\": \"\\\"Rome\\\"\\nRome is in Italy.\"}\n");
    let sets = ["hotpotqa", "hotpotqa_e", "2wikimqa", "2wikimqa_e", "musique", "multifieldqa_en", "multifieldqa_en_e"];
    for set in sets.into_iter().chain(["narrativeqa"]) {
        let row = json!({"input": "In which country is Rome?", "context": "Passage 1:\nMilan\nA city.", "answers": ["Italy"],
            "length": 5, "dataset": set, "language": "en", "all_classes": null, "_id": set});
        mill.write(&format!("data/{set}.jsonl"), &format!("{row}\n"));
    }
    let said = "<think> I know. </think>\n<answer> The final answer is \\[ \\boxed{Italy} \\] </answer>";
    let server = OpenAiServer::start([("Rome".to_owned(), vec![Step::Say(message(said)); 8])].into());
    let file = Path::new(ROOT).join("pipelines/longbench.yaml").display().to_string();
    let endpoint = format!("policy.endpoint.base_url={}", server.base_url());
    let sets = ["--set", "data=data", "--set", "corpus=corpus.jsonl", "--set", "index=bm25", "--set", &endpoint];
    mill.call(&[&["run", &file], &sets[..]].concat()).exit(0);
    let table = mill.read("out/longbench/table.csv");
    let mut lines = table.lines();
    assert_eq!(lines.next(), Some("set,questions,em,f1,accuracy,precision,recall"));
    assert_eq!(lines.filter(|line| line.ends_with(",1,1.0,1.0,1.0,1.0,1.0")).count(), 8, "{table}");
}
