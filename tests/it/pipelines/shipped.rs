//! Tests of the shipped pipelines with their default inputs. Public addresses are served by a server on this machine,
//! and the folder contains only the pipelines.

use std::path::Path;

use searchmill_fixtures::test_server::TestServer;
use serde_json::{Value, json};

use crate::harness::project::{Mill, Told, files_in};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const QUESTIONS: usize = 30;

/// Returns a folder with the shipped pipelines and nothing else.
fn clone() -> Mill {
    let mill = Mill::new();
    let mut pending = vec![Path::new(ROOT).join("pipelines")];
    while let Some(folder) = pending.pop() {
        std::fs::create_dir_all(mill.path(&below(&folder))).expect("a folder");
        for path in files_in(&folder) {
            if path.is_dir() {
                pending.push(path);
            } else {
                std::fs::copy(&path, mill.path(&below(&path))).expect("a copy");
            }
        }
    }
    mill
}

fn below(path: &Path) -> String {
    path.strip_prefix(ROOT).expect("below the root").display().to_string()
}

fn title(number: usize) -> String {
    format!("River {number}")
}

fn sentences(number: usize) -> [String; 2] {
    [format!("River {number} flows into lake {number}."), format!(" It is {number} miles long.")]
}

/// Returns a question about a river, with its own paragraph and one of another question.
fn original(number: usize) -> Value {
    let (own, other) = (number, (number + 7) % QUESTIONS);
    json!({
        "_id": format!("q{number}"), "question": format!("How many miles long is river {number}?"), "answer": number.to_string(),
        "type": if number.is_multiple_of(2) { "bridge" } else { "comparison" }, "level": "hard",
        "supporting_facts": [[title(own), 0], [title(own), 1]],
        "context": [[title(own), sentences(own)], [title(other), sentences(other)]],
    })
}

/// Returns the question in FlashRAG's layout; `body` is its name for the sentences.
fn flashrag(number: usize, body: &str) -> Value {
    let (own, other) = (number, (number + 7) % QUESTIONS);
    json!({
        "id": format!("dev_{number}"), "question": format!("Into which lake does river {number} flow?"),
        "golden_answers": [format!("lake {number}")],
        "metadata": {
            "type": "bridge", "level": "hard", "supporting_facts": {"title": [title(own)], "sent_id": [0]},
            "context": {"title": [title(own), title(other)], body: [sentences(own), sentences(other)]},
        },
    })
}

fn lines(row: impl Fn(usize) -> Value) -> String {
    (0..QUESTIONS).map(|number| format!("{}\n", row(number))).collect()
}

fn list(row: impl Fn(usize) -> Value) -> String {
    Value::from((0..QUESTIONS).map(row).collect::<Vec<_>>()).to_string()
}

fn multihop(number: usize) -> Value {
    let fact = |number: usize| json!({"title": title(number), "fact": sentences(number)[1].trim(), "source": "Atlas", "url": "u"});
    json!({
        "query": format!("Is river {number} longer than river {}?", number + 1), "answer": "No", "question_type": "comparison_query",
        "evidence_list": [fact(number), fact(number + 1)],
    })
}

/// Serves bodies by path, with the headers of the Hugging Face Hub.
fn serve(files: impl IntoIterator<Item = (String, String)>) -> TestServer {
    let server = TestServer::new(&[]);
    {
        let mut shelf = server.shelf.lock().expect("a shelf");
        shelf.files = files.into_iter().map(|(path, body)| (path, body.into_bytes())).collect();
        shelf.headers = vec![
            ("x-repo-commit", "c".repeat(40)),
            ("etag", "\"one\"".to_owned()),
            ("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT".to_owned()),
        ];
    }
    server
}

fn call(mill: &Mill, server: &TestServer, args: &[&str]) -> Told {
    let mut command = mill.command(args);
    command
        .env("HF_ENDPOINT", &server.address)
        .env("HF_HOME", mill.path("hub"))
        .env_remove("HF_TOKEN")
        .env_remove("HF_HUB_OFFLINE");
    Told::new(command.output().expect("the program can be started"))
}

/// Returns the param's address without its host, and the same address on the local server.
fn at(server: &TestServer, pipeline: &str, param: &str) -> (String, String) {
    let text = std::fs::read_to_string(Path::new(ROOT).join("pipelines").join(pipeline)).expect("a pipeline");
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with(&format!("{param}: https://")))
        .expect("a public address");
    let path = line.split_once("https://raw.githubusercontent.com").expect("its host").1.trim();
    (path.to_owned(), format!("{param}={}{path}", server.address))
}

#[test]
fn every_shipped_pipeline_is_valid_in_a_clone_by_itself() {
    let mill = clone();
    // Its data are a folder that a person unpacks.
    std::fs::create_dir_all(mill.path("data/longbench")).expect("a folder");
    mill.write("data/longbench/hotpotqa.jsonl", "");
    let mut seen = 0;
    for path in files_in(&mill.path("pipelines")) {
        if path.extension().is_some_and(|extension| extension == "yaml") {
            seen += 1;
            let text = std::fs::read_to_string(&path).expect("a pipeline");
            assert!(text.starts_with('#'), "{} does not say what it makes", path.display());
            let sets: &[&str] = if path.ends_with("longbench.yaml") { &["--set", "sets=[hotpotqa]"] } else { &[] };
            mill.call(&[&["validate", &path.display().to_string()], sets].concat()).exit(0);
        }
    }
    assert!(seen >= 5, "only {seen} pipelines were checked");
}

#[test]
fn no_shipped_file_reads_beside_the_checkout() {
    for folder in
        ["pipelines", "pipelines/params", "examples", "examples/grpo", "examples/nightly", "examples/python-operator"]
    {
        for path in files_in(&Path::new(ROOT).join(folder)) {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(!text.contains("../shared"), "{}", path.display());
        }
    }
}

#[test]
fn hotpotqa_runs_from_public_addresses_and_is_read_once() {
    let mill = clone();
    let empty = serve([]);
    let [(distractor, _), (fullwiki, _)] = ["distractor", "fullwiki"].map(|param| at(&empty, "hotpotqa.yaml", param));
    let files = [(distractor, list(original)), (fullwiki, lines(|number| flashrag(number, "sentences")))];
    let server = serve(files);
    let [one, other] = ["distractor", "fullwiki"].map(|param| at(&server, "hotpotqa.yaml", param).1);
    let args = ["run", "pipelines/hotpotqa.yaml", "--json", "--set", &one, "--set", &other];
    call(&mill, &server, &args).exit(0);
    assert!(mill.read("out/hotpotqa/recall.csv").contains("rrf,recall@2"));
    assert!(mill.read("out/hotpotqa/train.jsonl").lines().count() > 10);
    let asked = server.requests().len();
    assert_eq!(call(&mill, &server, &args).exit(0).ran(), "");
    assert_eq!(server.requests().len(), asked, "a remote source is identified by its address");
}

#[test]
fn two_wiki_runs_from_public_addresses() {
    let mill = clone();
    let empty = serve([]);
    let [(dev, _), (corpus, _)] = ["dev", "corpus"].map(|param| at(&empty, "2wikimultihopqa.yaml", param));
    let passage = |number: usize| json!({"title": format!("Lake {number}"), "text": format!("Lake {number} is deep.")});
    let files = [(dev, lines(|number| flashrag(number, "content"))), (corpus, list(passage))];
    let server = serve(files);
    let [one, other] = ["dev", "corpus"].map(|param| at(&server, "2wikimultihopqa.yaml", param).1);
    call(&mill, &server, &["run", "pipelines/2wikimultihopqa.yaml", "--json", "--set", &one, "--set", &other]).exit(0);
    assert!(mill.read("out/2wikimultihopqa/recall.csv").contains("bm25,recall@2"));
}

#[test]
fn multihop_rag_comes_from_the_hub() {
    let mill = clone();
    let path = "/datasets/yixuantt/MultiHopRAG/resolve/main/MultiHopRAG.json";
    let server = serve([(path.to_owned(), list(multihop))]);
    call(&mill, &server, &["run", "pipelines/multihop_rag_sample.yaml", "--json"]).exit(0);
    assert_eq!(mill.read("out/multihop_rag_sample/corpus.jsonl").lines().count(), QUESTIONS + 1);
    assert_eq!(server.requests(), [format!("GET {path}")]);
    // The data set's corpus instead of the articles: the ids of val are those of the data set.
    let mut split = "place,id,part\n".to_owned();
    let val = [14, 9, 4, 1];
    let rest = (0..QUESTIONS).rev().filter(|id| !val.contains(id));
    for (place, id) in val.into_iter().chain(rest).enumerate() {
        split += &format!("{},{id},{}\n", place + 1, if place < 4 { "val" } else { "train" });
    }
    mill.write("pipelines/deepsearch_rl/split.csv", &split);
    let params = "pipelines/params/multihop_rag_sample.yaml";
    let few = ["--set", "policy=evidence", "--set", "training.max_steps=2"];
    let args = [&["run", "pipelines/deepsearch_rl.yaml", "--json", "--params", params][..], &few].concat();
    call(&mill, &server, &args).exit(0);
    assert!(mill.read("out/deepsearch_rl_sample/train.jsonl").lines().count() > 5);
    assert!(mill.read("out/deepsearch_rl_sample/before_after.csv").contains("\nall,4,"));
    let first = mill.call(&["show", "test", "--format", "jsonl", "-n", "1"]).exit(0).stdout;
    assert!(first.contains("\"id\":\"14\""), "the order of the split: {first}");
    let adapter = mill.call(&["show", "student"]).exit(0).stdout;
    assert!(adapter.contains("adapter_model.safetensors"), "{adapter}");
}

/// Checks that the files named by the params for tests have the sizes of the public ones.
#[test]
fn the_files_beside_a_checkout_are_those_of_the_public_addresses() {
    let Some(data) = searchmill_fixtures::shared("data") else { return };
    for (file, bytes) in [
        ("hotpotqa/train_100.original.json", 810_836),
        ("hotpotqa/dev_200.jsonl", 1_298_448),
        ("2wikimultihopqa/dev_200.jsonl", 851_274),
        ("2wikimultihopqa/corpus_6119.json", 3_083_943),
    ] {
        assert_eq!(data.join(file).metadata().expect("a file").len(), bytes, "{file}");
    }
    let params = files_in(&Path::new(ROOT).join("tests/params"));
    assert_eq!(params.len(), 3);
    for (pipeline, params) in
        [("hotpotqa", "hotpotqa"), ("2wikimultihopqa", "2wikimultihopqa"), ("multihop_rag_sample", "multihop_rag")]
    {
        let mill = Mill::new();
        let (file, params) = (format!("pipelines/{pipeline}.yaml"), format!("tests/params/{params}.yaml"));
        let mut command = mill.command(&["validate", &file, "--params", &params]);
        Told::new(command.current_dir(ROOT).output().expect("the program can be started")).exit(0);
    }
}
