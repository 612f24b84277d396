//! Tests of the `chunk` operator through the harness.

use arrow::record_batch::RecordBatch;
use searchmill_engine::operator::testing::{Harness, Outcome, inputs, rows_input};
use searchmill_engine::operator::{Blame, OperatorEntry, OperatorError, Source, entry};
use searchmill_fixtures::{minilm, passages, small_bert};
use searchmill_schemas::{Chunk as ChunkRow, Document as DocumentRow};
use serde_json::{Value, json};

use super::Chunk;

fn operator() -> OperatorEntry {
    entry::<Chunk>()
}

fn document(id: &str, title: Option<&str>, text: &str) -> DocumentRow {
    let metadata = Some(format!("{{\"source\":\"{id}\"}}"));
    DocumentRow { id: id.to_owned(), title: title.map(str::to_owned), text: text.to_owned(), metadata }
}

fn run_in(harness: &Harness, documents: &[DocumentRow], params: Value) -> Result<Outcome, OperatorError> {
    harness.run(&operator(), params, &inputs([("documents", rows_input(documents))]))
}

fn run(documents: &[DocumentRow], params: Value) -> Outcome {
    run_in(&Harness::new(), documents, params).expect("chunks")
}

fn fails(params: Value) -> OperatorError {
    run_in(&Harness::new(), &[document("d", None, "text")], params).expect_err("a wrong param")
}

fn concatenated(chunks: &[ChunkRow]) -> String {
    chunks.iter().map(|chunk| chunk.text.as_str()).collect()
}

/// The settings the properties are checked with; `tokenizer` is the path of a tokenizer.json.
fn settings(tokenizer: &str) -> [Value; 6] {
    [
        json!({"size": 20, "count": "words"}),
        json!({"size": 60, "count": "characters", "min_characters": 10}),
        json!({"size": 30, "count": {"tokenizer": tokenizer}}),
        json!({"by": "token", "size": 25, "overlap": 5, "count": {"tokenizer": tokenizer}}),
        json!({"by": "markdown", "size": 20}),
        json!({"by": "sentence", "size": 200, "overlap": 1, "count": "characters", "title_prefix": false}),
    ]
}

fn harness_with_tokenizer() -> Harness {
    let mut harness = Harness::new();
    harness.directory = harness.path().to_owned();
    std::fs::write(harness.path().join("tokenizer.json"), small_bert().to_string()).expect("a file");
    harness
}

#[test]
fn a_chunk_knows_its_place_and_carries_its_title() {
    let text = "First line here.\nSecond line here.\nThird line.";
    let outcome = run(&[document("d7", Some("Title"), text), document("d8", None, "Short.")], json!({"size": 4}));
    let chunks: Vec<ChunkRow> = outcome.read("chunks");
    let ids: Vec<_> = chunks.iter().map(|chunk| chunk.id.as_str()).collect();
    assert_eq!(ids, ["d7#0", "d7#1", "d7#2", "d8#0"]);
    assert_eq!(
        chunks[1],
        ChunkRow {
            id: "d7#1".to_owned(),
            document_id: "d7".to_owned(),
            position: 1,
            document_chunks: 3,
            title: Some("Title".to_owned()),
            text: "Second line here.\n".to_owned(),
            contents: "Title\nSecond line here.\n".to_owned(),
            start: 17,
            end: 35,
            tokens: 3,
            metadata: Some("{\"source\":\"d7\"}".to_owned()),
        }
    );
    assert_eq!((chunks[3].contents.as_str(), chunks[3].document_chunks), ("Short.", 1));
    assert!(outcome.rejects().is_empty());
}

#[test]
fn the_title_prefix_can_be_left_out() {
    let outcome = run(&[document("d", Some("T"), "text")], json!({"title_prefix": false}));
    let chunks: Vec<ChunkRow> = outcome.read("chunks");
    assert_eq!((chunks[0].contents.as_str(), chunks[0].title.as_deref()), ("text", Some("T")));
}

#[test]
fn sections_of_markdown_carry_the_headings_above_them_and_their_pages() {
    let text = "# Salt\n\nIntro.\n\n## Pans\n\n### Size\n\nThe first pan had ten paces. The second one had twelve.\n\n\
                ```\n# code\n```\n## End\n\nLast.\n";
    let offsets = [0, text.find("The second").unwrap(), text.len()];
    let metadata = json!({"a": 1, "sections": [], "pages": 3, "page_offsets": offsets});
    let salt = DocumentRow { metadata: Some(metadata.to_string()), ..document("d", Some("Salt"), text) };
    let other = DocumentRow { metadata: None, ..document("e", None, "Before.\n\n# One\n\nText.\n") };
    let outcome = run(&[salt, other], json!({"by": "markdown", "size": 9, "min_characters": 1}));
    let chunks: Vec<ChunkRow> = outcome.read("chunks");
    assert_eq!(concatenated(&chunks), [text, "Before.\n\n# One\n\nText.\n"].concat());
    let told: Vec<_> = chunks.iter().map(|chunk| (chunk.title.as_deref(), chunk.text.trim())).collect();
    let wanted = [
        (Some("Salt"), "# Salt\n\nIntro."),
        (Some("Salt > Pans > Size"), "## Pans\n\n### Size"),
        (Some("Salt > Pans > Size"), "The first pan had ten paces."),
        (Some("Salt > Pans > Size"), "The second one had twelve."),
        (Some("Salt > Pans > Size"), "```\n# code\n```"),
        (Some("Salt > End"), "## End\n\nLast."),
        (None, "Before."),
        (Some("One"), "# One\n\nText."),
    ];
    assert_eq!(told, wanted);
    assert!(chunks[5].contents.starts_with("Salt > End\n## End"));
    let facts = |at: usize| serde_json::from_str::<Value>(chunks[at].metadata.as_deref().unwrap()).unwrap();
    assert_eq!(facts(0), json!({"a": 1, "pages": 3, "page": 1, "headings": ["Salt"]}));
    assert_eq!(facts(5), json!({"a": 1, "pages": 3, "page": 2, "headings": ["Salt", "End"]}));
    assert_eq!(chunks[6].metadata, None);
    let help = |params| fails(params).to_string();
    assert!(help(json!({"by": "markdown", "overlap": 1})).contains("do not overlap"));
}

#[test]
fn documents_without_text_are_rejected_or_skipped() {
    let documents = [document("a", Some("Only a title"), ""), document("b", None, " \n"), document("c", None, "x")];
    let outcome = run(&documents, json!({}));
    let rejects = outcome.rejects();
    let found: Vec<_> = rejects.iter().map(|reject| (reject.id.as_str(), reject.kind.as_str())).collect();
    assert_eq!(found, [("a", "empty"), ("b", "empty")]);
    assert_eq!(rejects[0].detail.as_deref(), Some("title: Only a title"));
    assert_eq!(outcome.read::<ChunkRow>("chunks").len(), 1);
    let outcome = run(&documents, json!({"empty": "skip"}));
    assert!(outcome.rejects().is_empty());
    assert_eq!(outcome.read::<ChunkRow>("chunks").len(), 1);
}

#[test]
fn chunks_without_overlap_are_the_document_byte_by_byte() {
    let text = "Línea uno.\r\n\r\nÜber—alles! 中文段落。第二句。 😀 «fin»\r\n ".repeat(40);
    let harness = harness_with_tokenizer();
    for by in ["recursive", "token", "sentence", "markdown"] {
        for count in [json!("words"), json!("characters"), json!({"tokenizer": "."})] {
            let params = json!({"by": by, "size": 17, "count": count});
            let outcome = run_in(&harness, &[document("ü", None, &text)], params.clone()).expect("chunks");
            let chunks: Vec<ChunkRow> = outcome.read("chunks");
            assert_eq!(concatenated(&chunks), text, "{params}");
            for chunk in &chunks {
                assert_eq!(chunk.text, text[chunk.start as usize..chunk.end as usize], "{params}");
                assert!(!chunk.text.is_empty(), "{params}");
            }
        }
    }
}

#[test]
fn batches_do_not_change_the_output_and_repeats_give_the_same() {
    let Some(passages) = passages() else { return };
    let text =
        |at: usize| if at.is_multiple_of(50) { String::new() } else { passages[3 * at..3 * at + 3].join("\n\n") };
    let documents: Vec<_> = (0..300).map(|at| document(&at.to_string(), Some("T"), &text(at))).collect();
    let mut harness = harness_with_tokenizer();
    for params in settings("tokenizer.json") {
        let mut seen: Vec<(RecordBatch, RecordBatch)> = Vec::new();
        for batch_rows in [1, 7, 8192, 8192] {
            harness.batch_rows = batch_rows;
            let outcome = run_in(&harness, &documents, params.clone()).expect("chunks");
            seen.push((outcome.batch("chunks"), outcome.batch("rejects")));
        }
        assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{params}");
        assert_eq!(seen[0].1.num_rows(), 6);
    }
}

#[test]
fn many_threads_share_one_kernel() {
    let Some(passages) = passages() else { return };
    let documents: Vec<_> = passages.iter().take(400).map(|text| document("d", None, text)).collect();
    let harness = harness_with_tokenizer();
    let bound = (operator().bind)(settings("tokenizer.json")[2].clone()).expect("params");
    let bound_inputs = inputs([("documents", rows_input(&documents))]);
    let opened = bound.open(&bound_inputs, &harness.context()).expect("a kernel");
    let super::Kernel::Map(kernel) = opened else { panic!("chunk is a map") };
    let batch = bound_inputs.rows("documents").unwrap().batches().next().unwrap().unwrap();
    let map = || {
        let mut output = super::MapOutput::default();
        kernel.map(&batch, &mut output).map(|()| output.batches)
    };
    let alone = map().expect("chunks");
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(map)).collect();
        for thread in threads {
            assert_eq!(thread.join().expect("no panic").expect("chunks"), alone);
        }
    });
}

#[test]
fn a_large_document_and_a_giant_word_pass() {
    let sentence = "A sentence of eight words, no more. ";
    let large = sentence.repeat(10_000_000 / sentence.len());
    let giant = "x".repeat(2_000_000);
    let documents = [document("large", None, &large), document("giant", None, &giant)];
    let outcome = run(&documents, json!({"size": 1000, "count": "characters"}));
    let chunks: Vec<ChunkRow> = outcome.read("chunks");
    let (large_chunks, giant_chunks): (Vec<_>, Vec<_>) =
        chunks.into_iter().partition(|chunk| chunk.document_id == "large");
    assert_eq!(concatenated(&large_chunks), large);
    assert!(large_chunks.iter().all(|chunk| chunk.tokens <= 1000));
    assert_eq!((giant_chunks.len(), concatenated(&giant_chunks)), (2000, giant));
}

#[test]
fn minilm_chunks_are_below_their_size() {
    let (Some(folder), Some(passages)) = (minilm(), passages()) else { return };
    let documents: Vec<_> =
        passages.chunks(20).take(100).map(|group| document("d", None, &group.join("\n\n"))).collect();
    let outcome = run(&documents, json!({"size": 200, "count": {"tokenizer": folder}}));
    let chunks: Vec<ChunkRow> = outcome.read("chunks");
    assert!(chunks.len() > 500);
    assert!(chunks.iter().all(|chunk| chunk.tokens <= 200), "the file's truncation to 128 tokens is off");
    assert!(chunks.iter().any(|chunk| chunk.tokens > 128));
}

#[test]
fn wrong_params_say_where_and_why() {
    let cases = [
        (json!({"size": 0}), "size: "),
        (json!({"overlap": 3}), "overlap: recursive chunks do not overlap"),
        (json!({"by": "token", "size": 8, "overlap": 8}), "overlap: an overlap of 8 leaves no room in windows of 8"),
        (json!({"by": "sentence", "min_characters": 5}), "min_characters: "),
        (json!({"min_characters": 0}), "min_characters: must be at least 1"),
        (json!({"count": {"tokenizer": ""}}), "count.tokenizer: the path is empty"),
        (json!({"count": {"tokenizer": "hf://a/b/c"}}), "count.tokenizer: `hf://a/b/c` names no model of the Hub"),
        (json!({"count": "letters"}), "count: unknown variant"),
        (json!({"chunk_size": 5}), "unknown field `chunk_size`"),
        (json!({"size": -1}), "size: "),
    ];
    for (params, message) in cases {
        let error = fails(params.clone());
        assert_eq!(error.blame, Blame::Pipeline);
        assert!(error.message.contains(message), "{params}: {}", error.message);
    }
}

#[test]
fn a_missing_tokenizer_says_how_to_mend_it() {
    let error = fails(json!({"count": {"tokenizer": "intfloat/e5-base-v2"}}));
    assert!(error.message.contains("intfloat/e5-base-v2/tokenizer.json"), "{}", error.message);
    assert!(error.help.expect("help").contains("`hf://ORG/NAME`"));
}

#[test]
fn only_the_tokenizer_file_is_a_source() {
    let sources =
        |params: Value| (operator().bind)(params).expect("params").declaration.sources(std::path::Path::new(""));
    assert!(sources(json!({})).is_empty());
    let wanted = [Source::Path("models/e5/tokenizer.json".to_owned())];
    assert_eq!(sources(json!({"count": {"tokenizer": "models/e5"}})), wanted);
}
