//! Tests of signed statements about artifacts, and of their rejection when anything differs.

use serde_json::Value;

use crate::harness::project::Mill;

fn ran() -> Mill {
    let mill = Mill::new();
    let line =
        |number| format!("{}\n", serde_json::json!({"id": format!("d{number}"), "text": "some words ".repeat(30)}));
    mill.write("documents.jsonl", &(0..20).map(line).collect::<String>());
    let pipeline = "\
name: attested
params: {size: 6}
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  chunks: {op: chunk, from: corpus, with: {size: \"${params.size}\", count: words}}
  few:    {op: sample, from: chunks, with: {n: 5}, seed: 3}
";
    mill.write("pipeline.yaml", pipeline);
    mill.run(&[]).exit(0);
    mill.call(&["attest", "--new-key", "key.pem"]).exit(0);
    mill
}

fn verify(mill: &Mill, key: &str) -> crate::harness::project::Told {
    mill.call(&["attest", "--verify", "few.intoto.json", "--public-key", key, "--json"])
}

#[test]
fn a_statement_names_files_steps_and_sources_and_its_signature_holds() {
    let mill = ran();
    mill.call(&["attest", "few", "--key", "key.pem", "-o", "few.intoto.json"]).exit(0);
    let told = verify(&mill, "key.pem.pub").exit(0).events().pop().expect("an answer");
    assert_eq!(told["signature"], "valid");
    let subjects = told["subjects"].as_array().expect("subjects");
    assert!(subjects.iter().all(|subject| subject["here"] == "same"), "{subjects:?}");
    assert_eq!(subjects[1]["name"], "attested/few.rows/part-00000.parquet");
    let predicate = &told["predicate"];
    let steps = predicate["buildDefinition"]["internalParameters"]["steps"].as_array().expect("steps");
    let names: Vec<&str> = steps.iter().filter_map(|step| step["node"].as_str()).collect();
    assert_eq!(names, ["corpus", "chunks", "few"], "in the order they were produced");
    assert_eq!(steps[1]["preimage"]["params"]["size"], 6);
    assert_eq!(predicate["buildDefinition"]["externalParameters"]["params"]["size"], 6);
    let source = &predicate["buildDefinition"]["resolvedDependencies"][0];
    let digest = searchmill_engine::fingerprint::hash_bytes(mill.read("documents.jsonl").as_bytes()).hex();
    assert_eq!((&source["name"], &source["digest"]["blake3"]), (&"documents.jsonl".into(), &digest.into()));
    assert_eq!(predicate["runDetails"]["metadata"]["invocationId"], mill.store().run_ids()[0].as_str());

    // Without a key, the same statement is written unsigned.
    let open: Value = serde_json::from_str(&mill.call(&["attest", "few"]).exit(0).stdout).expect("JSON");
    assert_eq!((&open["_type"], &open["predicate"]), (&"https://in-toto.io/Statement/v1".into(), predicate));
    let part = mill.artifact_folder("few", "rows").join("part-00000.parquet");
    let sha256 = std::process::Command::new("sha256sum").arg(&part).output().expect("sha256sum");
    let sha256 = String::from_utf8_lossy(&sha256.stdout)[..64].to_owned();
    assert_eq!(open["subject"][1]["digest"]["sha256"], sha256, "as other tools compute it");
}

#[test]
fn an_audit_checks_a_signature_too() {
    let mill = ran();
    mill.call(&["attest", "few", "--key", "key.pem", "-o", "few.intoto.json"]).exit(0);
    let audit =
        |mill: &Mill| mill.call(&["audit", "few", "--signature", "few.intoto.json", "--public-key", "key.pem.pub"]);
    let told = audit(&mill).exit(0);
    assert!(told.stdout.contains("the signature is right"), "{}", told.stdout);
    mill.write(
        "few.intoto.json",
        &mill.read("few.intoto.json").replacen("payload\": \"ey", "payload\": \"eY", 1).replacen(
            "payload\":\"ey",
            "payload\":\"eY",
            1,
        ),
    );
    audit(&mill).exit(1);
    let told = mill.call(&["audit", "few", "--signature", "few.intoto.json"]).exit(2);
    assert!(told.stderr.contains("--public-key"), "{}", told.stderr);
}

#[test]
fn what_was_changed_or_signed_by_others_is_not_believed() {
    let mill = ran();
    mill.call(&["attest", "few", "--key", "key.pem", "-o", "few.intoto.json"]).exit(0);
    mill.call(&["attest", "--new-key", "other.pem"]).exit(0);
    let told = verify(&mill, "other.pem.pub").exit(1);
    assert!(told.stderr.contains("no signature"), "{}", told.stderr);
    let good = mill.read("few.intoto.json");
    let mut envelope: Value = serde_json::from_str(&good).expect("JSON");
    let payload = envelope["payload"].as_str().expect("a payload").to_owned();
    for (place, letter) in payload.char_indices().step_by(97) {
        let other = if letter == 'A' { "B" } else { "A" };
        envelope["payload"] = format!("{}{other}{}", &payload[..place], &payload[place + 1..]).into();
        mill.write("few.intoto.json", &envelope.to_string());
        verify(&mill, "key.pem.pub").exit(1);
    }
    mill.write("few.intoto.json", "{}");
    verify(&mill, "key.pem.pub").exit(1);
    mill.write("few.intoto.json", &good);
    verify(&mill, "key.pem.pub").exit(0);
    verify(&mill, "key.pem").exit(2);
    verify(&mill, "nothing").exit(2);
    mill.call(&["attest", "few", "--key", "key.pem.pub"]).exit(2);
    mill.call(&["attest"]).exit(2);
    mill.call(&["attest", "--verify", "few.intoto.json"]).exit(2);
}

#[test]
fn a_right_signature_over_something_else_than_what_is_here_is_told() {
    let mill = ran();
    mill.call(&["attest", "few", "--key", "key.pem", "-o", "few.intoto.json"]).exit(0);
    let part = mill.artifact_folder("few", "rows").join("part-00000.parquet");
    let mut bytes = std::fs::read(&part).expect("a part");
    bytes[20] ^= 1;
    std::fs::write(&part, bytes).expect("a part");
    let told = verify(&mill, "key.pem.pub").exit(1).events().pop().expect("an answer");
    assert_eq!(
        (&told["subjects"][0]["here"], &told["subjects"][1]["here"]),
        (&"different".into(), &"different".into())
    );
    // A damaged artifact cannot be attested.
    let refused = mill.call(&["attest", "few", "--key", "key.pem", "-o", "again.json"]).exit(5);
    assert!(refused.stderr.contains("cannot be attested") && !mill.path("again.json").exists(), "{}", refused.stderr);
    std::fs::remove_dir_all(mill.artifact_folder("few", "rows")).expect("a folder");
    let told = verify(&mill, "key.pem.pub").exit(0).events().pop().expect("an answer");
    assert_eq!(told["subjects"][0]["here"], "missing");
}

#[cfg(unix)]
#[test]
fn a_key_is_its_owners_and_is_never_written_over() {
    use std::os::unix::fs::PermissionsExt;
    let mill = ran();
    let mode = std::fs::metadata(mill.path("key.pem")).expect("a key").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let before = (mill.read("key.pem"), mill.read("key.pem.pub"));
    mill.call(&["attest", "--new-key", "key.pem"]).exit(2);
    assert_eq!((mill.read("key.pem"), mill.read("key.pem.pub")), before);
    mill.write("half.pem", "mine");
    mill.call(&["attest", "--new-key", "half.pem"]).exit(2);
    assert!(mill.read("half.pem") == "mine" && !mill.path("half.pem.pub").exists());
}

#[test]
fn openssl_reads_the_keys_and_agrees_about_signatures() {
    let mill = ran();
    let openssl = |args: &[&str]| std::process::Command::new("openssl").args(args).current_dir(mill.path("")).output();
    let Ok(version) = openssl(&["version"]) else {
        crate::say("skipped: there is no openssl here");
        return;
    };
    assert!(version.status.success());
    let public = openssl(&["pkey", "-in", "key.pem", "-pubout"]).expect("openssl");
    assert_eq!(String::from_utf8_lossy(&public.stdout).trim(), mill.read("key.pem.pub").trim(), "{public:?}");
    // A key made by openssl can sign.
    let made = openssl(&["genpkey", "-algorithm", "ed25519", "-out", "theirs.pem"]).expect("openssl");
    assert!(made.status.success(), "{made:?}");
    openssl(&["pkey", "-in", "theirs.pem", "-pubout", "-out", "theirs.pub"]).expect("openssl");
    mill.call(&["attest", "few", "--key", "theirs.pem", "-o", "few.intoto.json"]).exit(0);
    verify(&mill, "theirs.pub").exit(0);
}
