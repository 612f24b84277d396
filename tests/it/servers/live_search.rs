//! Tests of live searches: a service answers the searches of protocols in which they are text.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::time::Duration;

use searchmill_fixtures::tool_server::Manner;

use super::tools::{Project, shown};
use crate::harness::project::{Mill, Told, killed_after};

/// Each protocol whose searches are text, as a name of a node and its params.
const PROTOCOLS: [(&str, &str); 7] = [
    ("research", "protocol: research"),
    ("r1", "protocol: r1-searcher"),
    ("search_r1", "protocol: search-r1"),
    ("tags", "protocol: tool-tags"),
    ("searchlm", "protocol: searchlm"),
    ("first", "protocol: {searchlm: {ranking: false, most: 1}}"),
    (
        "own",
        "protocol: {custom: {search: [\"<find>\", \"</find>\"], result: [\"\\n<found>\\n\", \"\\n</found>\\n\"], \
         passages: {each: \"({rank}) {title} | {text} | {id} {score}\"}}}",
    ),
];

const WEB: &str = "http: {name: web, description: Searches the web., url: \"${env:TOOLS}/search\", method: POST, \
                   body: {q: \"{query}\", num: 4}, service: web, parameters: {type: object, properties: {query: {type: \
                   string}}, required: [query]}, results: {list: /organic, id: /link, title: /title, text: /snippet}, \
                   timeout_seconds: 5}";

/// A node with a live search; `with`: more params.
fn node(name: &str, with: &str, tool: &str, from: &str) -> String {
    format!(
        "  {name}:\n    op: rollout\n    from: {{questions: questions{from}}}\n    with:\n      policy: {{evidence: \
         {{wording: plain}}}}\n      {with}\n      search: {{top_k: 3}}\n      tools:\n        - {tool}\n    retry: \
         {{max_attempts: 2, backoff: 10ms}}\n    resources: {{concurrency: 4}}\n"
    )
}

#[test]
fn every_protocol_searches_live_in_its_own_format_and_is_replayed_to_the_byte() {
    let mut nodes = String::new();
    for (name, protocol) in PROTOCOLS {
        nodes += &node(name, protocol, WEB, "");
        nodes += &node(&format!("{name}_again"), protocol, WEB, &format!(", recorded: {name}"));
    }
    let project = Project::new(&nodes, 3, Vec::new());
    let names = PROTOCOLS.map(|(name, _)| name);
    project.call(&[&["run", "pipeline.yaml"], names.as_slice()].concat()).exit(0);
    let mut expected: Vec<String> = (0..3).map(|number| format!("search {number}")).collect();
    expected.sort();
    assert_eq!(project.tools.paid(), expected, "seven protocols ask the same: each search is paid once");
    let text = |number: usize| format!("The capital is named Rome, says result {number} of 0.");
    let titled = |number: usize| format!("0 {number}");
    let starts: BTreeMap<&str, String> = BTreeMap::from([
        ("search_r1", format!("<information>Doc 1(Title: {}) {}", titled(1), text(1))),
        ("tags", format!("<tool_response>\nDoc 1 (Title: {})\n{}", titled(1), text(1))),
        ("own", format!("<found>\n(1) {} | {}\nIt is old. | https://web/0/1 0\n\n(2)", titled(1), text(1))),
        ("first", format!("<SEARCH> [1] Title: {}. Content: {} It is old.", titled(1), text(1))),
    ]);
    for (name, _) in PROTOCOLS {
        let rollouts = project.rollouts(name);
        assert!(rollouts.iter().all(|rollout| rollout.prediction == "Rome"), "{name}: {:?}", rollouts[0].messages);
        let seen = shown(&rollouts[0]);
        let all = rollouts[0].messages.iter().find(|message| message.content.contains("says result 1")).expect("seen");
        if name != "first" {
            assert_eq!(all.observations.len(), 3, "{name}: the first `top_k` of the four");
            assert_eq!(all.observations[1].document_id, "https://web/0/2");
        }
        if let Some(start) = starts.get(name) {
            assert!(seen.iter().any(|text| text.trim_start().starts_with(start)), "{name}: {seen:?}");
        }
    }
    let audit = project.call(&["audit", "latest", "--rollouts"]).exit(0);
    assert!(audit.stdout.contains("taken from the record"), "{}", audit.stdout);
    // Nothing listens there.
    let offline = |args: &[&str]| {
        let mut command = project.command(args);
        Told::new(command.env("TOOLS", "http://127.0.0.1:9").output().expect("a run"))
    };
    offline(&["run", "pipeline.yaml"]).exit(0);
    let ids = project.mill.artifacts();
    for (name, _) in PROTOCOLS {
        let (live, again) = (&ids[&format!("{name}.trajectories")], &ids[&format!("{name}_again.trajectories")]);
        assert_eq!(live, again, "{name}");
    }
    assert_eq!(project.tools.paid(), expected);
    project.call(&["audit", "latest", "--rollouts"]).exit(0);
}

#[test]
fn an_mcp_tool_and_a_function_answer_searches_and_long_results_are_cut() {
    let mcp = "mcp: {url: \"${env:TOOLS}/mcp\", service: fixture}";
    let function = "python: {name: find, description: Finds., function: \"find.py:find\", parameters: {type: object, \
                    properties: {q: {type: string}}, required: [q]}}";
    let nodes = node("one", "protocol: search-r1", mcp, "")
        + &node("two", "protocol: research\n      max_observation_tokens: 30\n      count: words", function, "")
        + &node(
            "two_again",
            "protocol: research\n      max_observation_tokens: 30\n      count: words",
            function,
            ", recorded: two",
        )
        + &node("three", "protocol: searchlm\n      rerank: {python: \"find.py:last\", keep: 2}", function, "");
    let project = Project::new(&nodes, 2, Vec::new());
    let code = "def find(q):\n    text = 'The capital is named Rome, and this is a long text. ' * 3\n    return [{'id': \
                str(n), 'title': f'{q} {n}', 'text': text} for n in range(5)]\n\n\ndef last(query, documents):\n    \
                return {'scores': list(range(len(documents)))}\n";
    project.mill.write("find.py", code);
    project.call(&["run", "pipeline.yaml"]).exit(0);
    assert!(project.tools.paid().iter().all(|call| call.starts_with("lookup ")), "{:?}", project.tools.paid());
    for name in ["one", "two", "three"] {
        let rollouts = project.rollouts(name);
        assert!(shown(&rollouts[0]).iter().any(|text| text.contains("Rome") || name == "one"), "{name}");
    }
    let two = project.rollouts("two");
    let seen = shown(&two[0]).into_iter().find(|text| text.contains("<result>")).expect("a result");
    assert!(seen.split(' ').count() <= 30 && seen.trim_end().ends_with("</result>"), "{seen}");
    let three = project.rollouts("three");
    let asked = three[0].messages.iter().find(|message| !message.observations.is_empty()).expect("a request");
    let order: Vec<&str> = asked.observations.iter().map(|one| one.chunk_id.as_str()).collect();
    assert_eq!(order, ["2", "1"], "the last two of the first three");
    let audit = project.call(&["audit", "latest", "--rollouts", "--allow-programs"]).exit(0);
    assert!(audit.stdout.contains("taken from the record"), "{}", audit.stdout);
}

#[test]
fn a_search_that_fails_is_told_counted_and_replayed() {
    let nodes = node("one", "protocol: search-r1\n      max_turns: 2", WEB, "")
        + &node("again", "protocol: search-r1\n      max_turns: 2", WEB, ", recorded: one");
    let project = Project::new(&nodes, 2, Vec::new());
    project.tools.seen().manner = Manner::Garbage;
    let told = project.call(&["run", "pipeline.yaml", "one"]).exit(0);
    let told = told.stdout + &told.stderr;
    assert!(told.contains("calls of `search` failed: "), "{told}");
    let failed = project.rollouts("one");
    assert!(
        shown(&failed[0])[0].contains("Error: `search` failed: its answer is not JSON"),
        "{:?}",
        failed[0].messages
    );
    project.call(&["run", "pipeline.yaml"]).exit(0);
    let ids = project.mill.artifacts();
    assert_eq!(ids["one.trajectories"], ids["again.trajectories"]);
    project.call(&["audit", "latest", "--rollouts"]).exit(0);
}

#[test]
fn a_live_search_killed_and_resumed_is_paid_once() {
    const QUESTIONS: usize = 24;
    let project = Project::new(&node("one", "protocol: searchlm", WEB, ""), QUESTIONS, Vec::new());
    project.tools.seen().delay = Duration::from_millis(80);
    let mut kills = 0;
    for round in 0..8_u64 {
        let wait = Duration::from_millis(200 + 97 * round % 700);
        kills += usize::from(killed_after(&mut project.command(&["run", "pipeline.yaml", "--json"]), wait));
    }
    assert!(kills >= 2, "only {kills} runs were killed");
    project.call(&["run", "pipeline.yaml"]).exit(0);
    let paid = project.tools.paid();
    let different: BTreeSet<&String> = paid.iter().collect();
    assert_eq!(different.len(), QUESTIONS);
    assert!(paid.len() - QUESTIONS <= kills * 4, "{paid:?} after {kills} kills with 4 rows in flight");
    assert!(project.rollouts("one").iter().all(|rollout| rollout.prediction == "Rome"));
}

/// A search engine that ends with the test.
struct Engine(std::process::Child);

impl Drop for Engine {
    fn drop(&mut self) {
        self.0.kill().expect("a server");
        self.0.wait().expect("a server");
    }
}

#[test]
fn the_example_runs_over_a_local_engine_and_without_it() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/live_search");
    let mill = Mill::new();
    for entry in std::fs::read_dir(&folder).expect("the example") {
        let entry = entry.expect("a file");
        std::fs::copy(entry.path(), mill.path(&entry.file_name().to_string_lossy())).expect("a copy");
    }
    let mut engine = Engine(
        std::process::Command::new("python3")
            .args(["server.py", "0"])
            .current_dir(mill.path(""))
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("Python"),
    );
    let mut lines = BufReader::new(engine.0.stdout.take().expect("its output")).lines();
    let address = lines.next().expect("a line").expect("an address");
    let run = |args: &[&str]| {
        let mut command = mill.command(args);
        Told::new(command.env("SEARCH_ENGINE", &address).output().expect("a run"))
    };
    run(&["run", "pipeline.yaml"]).exit(0);
    run(&["audit", "latest", "--rollouts", "--allow-programs"]).exit(0);
    assert!(mill.path("out/report/report.html").is_file() || mill.path("out/report").is_dir());
    drop(engine);
    let asked = lines.map_while(Result::ok).collect::<Vec<_>>();
    let of = |path: &str| asked.iter().filter(|line| line.starts_with(path)).count();
    assert!(of("/api?") >= 3 && of("/page?") >= 3, "{asked:?}");
    let different: BTreeSet<&String> = asked.iter().collect();
    assert_eq!(different.len(), asked.len(), "each search is paid once: {asked:?}");
    // Another number of passages needs no engine.
    run(&["run", "pipeline.yaml", "--set", "top_k=2"]).exit(0);
    let shown = run(&["show", "searchlm", "--format", "jsonl"]).exit(0).stdout;
    assert!(shown.contains("https://example.org/varn") && shown.contains("\"prediction\":\"Ida Holm\""), "{shown}");
}

#[test]
fn what_cannot_answer_a_search_is_an_error_at_its_place() {
    let check = |nodes: &str| {
        let project = Project::new(nodes, 1, Vec::new());
        let told = project.call(&["validate", "pipeline.yaml"]).exit(2);
        told.stdout + &told.stderr
    };
    let two = format!("{WEB}\n        - {}", WEB.replace("name: web", "name: other"));
    assert!(check(&node("one", "protocol: research", &two, "")).contains("the protocol has one search"));
    let open = check(&node("one", "protocol: search-r1", "open: {}", ", documents: questions"));
    assert!(open.contains("opens what a call names"), "{open}");
    let number = WEB.replace("{query: {type: string}}", "{query: {type: integer}}");
    assert!(check(&node("one", "protocol: searchlm", &number, "")).contains("an argument for the query"));
    let index = "  chunks: {op: read, with: {path: questions.jsonl, as: chunk}}\n  bm25: {op: index, from: chunks, with: \
                 {kind: bm25}}\n";
    let both = format!("{index}{}", node("one", "protocol: tool-tags", WEB, ", search: bm25"));
    assert!(check(&both).contains("would both answer the searches"), "{}", check(&both));
    // Records of another protocol do not hold what this one shows.
    let nodes =
        node("one", "protocol: research", WEB, "") + &node("again", "protocol: search-r1", WEB, ", recorded: one");
    let project = Project::new(&nodes, 1, Vec::new());
    let told = project.call(&["run", "pipeline.yaml"]);
    assert!(told.stderr.contains("is of the protocol `research`, not `search-r1`"), "{}", told.stderr);
    // A server with several tools that take a query.
    let mcp = node("one", "protocol: research", "mcp: {url: \"${env:TOOLS}/mcp\", service: fixture}", "");
    Project::new(&mcp, 1, Vec::new()).call(&["run", "pipeline.yaml"]).exit(0);
}
