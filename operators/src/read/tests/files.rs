//! Tests of `read` with `layout: files`: what becomes a document, what a reject, and in which order.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use searchmill_engine::operator::testing::{Harness, Outcome};
use searchmill_schemas::Document;
use serde_json::{Value, json};

use super::*;

const RECIPE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/cookbook/own_documents/documents");

fn harness() -> Harness {
    let mut harness = Harness::new();
    harness.directory = harness.path().join("work");
    std::fs::create_dir_all(&harness.directory).unwrap();
    harness
}

fn put(harness: &Harness, name: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    let path = harness.directory.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

fn read(harness: &Harness, path: &Value, more: Value) -> Result<Outcome, OperatorError> {
    let mut params = json!({"path": path, "as": "document", "layout": "files"});
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    run(harness, params)
}

fn ids(outcome: &Outcome) -> Vec<String> {
    outcome.read::<Document>("rows").into_iter().map(|row| row.id).collect()
}

fn rejected(outcome: &Outcome) -> Vec<(String, String)> {
    outcome.rejects().into_iter().map(|reject| (reject.id, reject.kind)).collect()
}

fn facts(document: &Document) -> Value {
    serde_json::from_str(document.metadata.as_deref().unwrap()).unwrap()
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

#[test]
fn every_type_of_file_is_a_document_with_its_title_and_metadata() {
    let harness = harness();
    let outcome = read(&harness, &json!(RECIPE), json!({})).unwrap();
    assert_eq!(rejected(&outcome), []);
    let rows = outcome.read::<Document>("rows");
    let told: Vec<_> = rows.iter().map(|row| (row.id.as_str(), row.title.as_deref())).collect();
    let wanted = [
        ("urn:uuid:0d1f0000-0000-4000-8000-000000000001", None),
        ("urn:uuid:0d1f0000-0000-4000-8000-000000000002", None),
        ("history.md", Some("The salt pans of Nira")),
        ("minutes.docx", Some("Minutes of the council")),
        ("notes/keeper.txt", Some("keeper")),
        ("report.pdf", Some("The sluice of Nira")),
        ("visitors.html", Some("Visiting the pans")),
    ];
    assert_eq!(told, wanted);
    assert_eq!(rows[1].text, "Der Hafen von Orlo\nDer Hafen wurde 1655 von Tile Harm gebaut.\n");
    let crawled = json!({"crawled": "2026-01-02T03:04:06Z", "encoding": "UTF-8", "language": "deu",
        "media_type": "text/plain", "path": "crawl.warc.wet.gz", "url": "https://orlo.example/hafen"});
    assert_eq!(facts(&rows[1]), crawled);
    assert!(rows[2].text.starts_with("# The salt pans of Nira\n") && !rows[2].text.contains("author:"));
    assert_eq!(facts(&rows[2])["front_matter"], "title: The salt pans of Nira\nauthor: Harbour archive");
    assert_eq!(rows[3].text.lines().next(), Some("# Spring 1688"));
    assert!(rows[4].text.contains("café “Zur Mühle”"));
    let (first, second) = rows[5].text.split_once("\n\nA second gate").unwrap();
    assert!(
        first.ends_with("oak from the forest of Brel.") && second.ends_with("a wheel of bronze."),
        "{}",
        rows[5].text
    );
    let pages = &facts(&rows[5])["page_offsets"];
    assert_eq!(pages, &json!([0, rows[5].text.find("A second gate").unwrap()]));
    assert!(rows[6].text.contains("## How to get there") && !rows[6].text.contains("Imprint"), "{}", rows[6].text);
    assert_eq!(facts(&rows[6])["language"], "en");
    let again = read(&harness, &json!(RECIPE), json!({})).unwrap();
    assert_eq!(outcome.batch("rows"), again.batch("rows"));
    assert_eq!(
        ids(&read(&harness, &json!(RECIPE), json!({"limit": 3, "id_prefix": "a-"})).unwrap())[2],
        "a-history.md"
    );
}

#[test]
fn files_come_in_the_order_of_their_paths_and_ids_stay_unique() {
    let harness = harness();
    for number in 0..100 {
        put(
            &harness,
            format!("many/{number:03}.md"),
            format!("# T{number}\n\n{}", "word ".repeat(number * 37 % 500 + 1)),
        );
    }
    let found = ids(&read(&harness, &json!("many"), json!({})).unwrap());
    assert_eq!(found, (0..100).map(|number| format!("{number:03}.md")).collect::<Vec<_>>());
    for name in
        ["one/a.txt", "one/sub/a.txt", "two/a.txt", "one/.hidden/x.txt", "one/.x.txt", "one/table.csv", "one/n.rst"]
    {
        put(&harness, name, name);
    }
    std::os::unix::fs::symlink("..", harness.directory.join("one/sub/up")).unwrap();
    let of = |path: Value| ids(&read(&harness, &path, json!({})).unwrap());
    assert_eq!(of(json!("one")), ["a.txt", "sub/a.txt"]);
    assert_eq!(of(json!(["one", "two"])), ["a.txt", "sub/a.txt", "a.txt~2"]);
    assert_eq!(of(json!("*/a.txt")), ["one/a.txt", "two/a.txt"]);
    assert_eq!(of(json!("one/*")), ["a.txt", "n.rst", "table.csv"], "a pattern reads what it names");
    assert_eq!(of(json!("one/sub/a.txt")), ["a.txt"]);
}

#[test]
fn one_bad_file_is_one_reject_that_says_what_it_is() {
    let harness = harness();
    put(&harness, "d/a.pdf", "<html><body>404");
    put(&harness, "d/b.txt", b"\x89PNG\r\n\x1a\n\0\0");
    put(&harness, "d/c.md", "");
    put(&harness, "d/d.docx", b"PK\x03\x04 and nothing else");
    put(&harness, "d/e.txt.gz", &gz(b"cut short by a full disk")[..20]);
    put(&harness, "d/f.pdf", b"%PDF-1.7\nnothing");
    put(&harness, "d/g.txt", "good");
    put(&harness, "d/h.warc", "no records");
    put(&harness, Path::new("d").join(std::ffi::OsStr::from_bytes(b"i\xff.txt")), "odd name");
    let outcome = read(&harness, &json!("d"), json!({})).unwrap();
    assert_eq!(ids(&outcome), ["g.txt", "i\u{fffd}.txt"]);
    let kinds: Vec<_> = ["a.pdf", "b.txt", "c.md", "d.docx", "e.txt.gz", "f.pdf", "h.warc@0"]
        .into_iter()
        .zip(["wrong_type", "wrong_type", "damaged", "damaged", "damaged", "damaged", "damaged"])
        .map(|(id, kind)| (id.to_owned(), kind.to_owned()))
        .collect();
    assert_eq!(rejected(&outcome), kinds);
    assert!(outcome.rejects()[0].message.contains("called a PDF file, but its content is an HTML page"));
    put(&harness, "bad/a.txt", "");
    let error = read(&harness, &json!("bad"), json!({})).unwrap_err();
    assert!(
        error.message.contains("none of the 1 files or records could be read; a.txt: the file is empty"),
        "{error}"
    );
    std::fs::create_dir(harness.directory.join("empty")).unwrap();
    let error = read(&harness, &json!("empty"), json!({})).unwrap_err();
    assert!(error.help.unwrap().contains(".txt, .text, .md"), "{}", error.message);
}

#[test]
fn a_huge_page_is_rejected_at_the_limit() {
    let harness = harness();
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(b"<!DOCTYPE html><body>").unwrap();
    for _ in 0..200 {
        packer.write_all(&vec![b'x'; 1 << 20]).unwrap();
    }
    put(&harness, "d/page.html.gz", packer.finish().unwrap());
    put(&harness, "d/small.html", "<html><body><p>One sentence, and another one.</p></body></html>");
    let outcome = read(&harness, &json!("d"), json!({})).unwrap();
    assert_eq!(rejected(&outcome), [("page.html.gz".to_owned(), "too_large".to_owned())]);
    assert!(outcome.rejects()[0].message.contains("more than 67108864 bytes, the limit; raise `max_bytes`"));
    let outcome = read(&harness, &json!("d/small.html"), json!({"max_bytes": 63})).unwrap();
    assert_eq!(ids(&outcome), ["small.html"]);
    assert!(read(&harness, &json!("d/small.html"), json!({"max_bytes": 62})).unwrap_err().message.contains("62 bytes"));
}

#[test]
fn pages_of_a_crawl() {
    let harness = harness();
    let page = "<html lang=\"de\"><head><title>Salz</title></head><body><p>Die Salinen, einst der Stolz der Stadt, ruhen.</p></body></html>";
    let record = |kind: &str, id: &str, uri: &str, body: &str| {
        format!(
            "WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:{id}>\r\nWARC-Target-URI: {uri}\r\n\
             Content-Type: application/http; msgtype=response\r\nContent-Length: {}\r\n\r\n{body}\r\n\r\n",
            body.len()
        )
    };
    let http =
        |status: &str, kind: &str, body: &str| format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n\r\n{body}");
    let records = [
        record("warcinfo", "0", "", "software: x"),
        record("request", "1", "https://a.example/", "GET / HTTP/1.1\r\n\r\n"),
        record("response", "2", "https://a.example/", &http("200 OK", "text/html; charset=utf-8", page)),
        record("response", "3", "https://a.example/x.png", &http("200 OK", "image/png", "x")),
        record("response", "4", "https://a.example/gone", &http("404 Not Found", "text/html", page)),
        record("response", "5", "https://a.example/b.pdf", &http("200 OK", "application/pdf", page)),
        record("response", "6", "https://a.example/none", &http("200 OK", "text/html", "")),
        record("response", "2", "https://a.example/again", &http("200 OK", "text/plain", "the same id")),
    ];
    let members: Vec<u8> = records.iter().flat_map(|record| gz(record.as_bytes())).collect();
    put(&harness, "crawl.warc.gz", &members);
    let outcome = read(&harness, &json!("crawl.warc.gz"), json!({})).unwrap();
    let rows = outcome.read::<Document>("rows");
    assert_eq!(ids(&outcome), ["urn:2", "urn:2~2"]);
    assert_eq!(
        (rows[0].title.as_deref(), rows[0].text.as_str()),
        (Some("Salz"), "Die Salinen, einst der Stolz der Stadt, ruhen.")
    );
    assert_eq!((&facts(&rows[0])["url"], &facts(&rows[0])["language"]), (&json!("https://a.example/"), &json!("de")));
    assert_eq!(outcome.figures["skipped_records"], 5.0);
    let message = &outcome.rejects()[0].message;
    assert_eq!(message, "its headers say that it is a PDF file, but its content is an HTML page");
    let at: usize = records[..5].iter().map(String::len).sum();
    assert_eq!(rejected(&outcome), [(format!("crawl.warc.gz@{at}"), "wrong_type".to_owned())]);
    put(&harness, "cut.warc.gz", &members[..members.len() - 30]);
    let outcome = read(&harness, &json!("cut.warc.gz"), json!({})).unwrap();
    assert_eq!(ids(&outcome), ["urn:2"], "what precedes the break is kept");
    let last = outcome.rejects().pop().unwrap();
    assert!(last.message.contains("damaged or cut short after byte"), "{last:?}");
}

#[test]
fn params_that_do_not_fit_are_told() {
    let told = |params: Value| run(&harness(), params).unwrap_err().to_string();
    let files = |more: Value| {
        let mut params = json!({"path": "d", "as": "document", "layout": "files"});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        told(params)
    };
    assert!(files(json!({"format": "json"})).contains("follows from its name and content"));
    assert!(files(json!({"columns": {"x": "y"}})).contains("columns"));
    assert!(files(json!({"max_bytes": 0})).contains("at least 1"));
    assert!(files(json!({"as": "question"})).contains("document"));
    assert!(told(json!({"path": "d", "as": "document", "max_bytes": 1})).contains("`layout: files` only"));
    let harness = harness();
    put(&harness, "a.pdf", "%PDF-");
    let error = run(&harness, json!({"path": "a.pdf", "as": "document"})).unwrap_err();
    assert!(error.help.unwrap().contains("write `layout: files` for texts"), "{}", error.message);
}
