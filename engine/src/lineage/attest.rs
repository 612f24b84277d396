//! Attestations: an artifact and its provenance as an in-toto Statement v1 with a SLSA provenance v1 predicate, signed
//! with an Ed25519 key in a DSSE envelope.
//!
//! Sources: <https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md>, <https://slsa.dev/spec/v1.0/provenance>,
//! <https://github.com/secure-systems-lab/dsse/blob/master/protocol.md>.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePrivateKey, DecodePublicKey, EncodePrivateKey, EncodePublicKey, KeypairBytes};
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use rand::TryRngCore;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::archive::Root;
use super::instant::rfc3339;
use crate::fingerprint::{DIGEST_NAME, Digest, NodeKey, Preimage, SourceIdentity, sha256_bytes, sha256_file};
use crate::node_id::NodeId;
use crate::store::{ArtifactId, Damage, IoContext, Makers, NodeResult, Store, StoreError};

const STATEMENT: &str = "https://in-toto.io/Statement/v1";
const PREDICATE: &str = "https://slsa.dev/provenance/v1";
const PAYLOAD: &str = "application/vnd.in-toto+json";
/// Defines the params of the predicate.
const BUILD_TYPE: &str = "urn:searchmill:pipeline:v1";
const BUILDER: &str = "urn:searchmill:engine";
/// Name of an artifact's own digest, over its type and the digests of its files.
const ARTIFACT: &str = "searchmillArtifact";

/// The statement of an attestation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Statement {
    /// Always `https://in-toto.io/Statement/v1`.
    #[serde(rename = "_type")]
    pub statement_type: String,
    /// The artifact, then its files.
    pub subject: Vec<Subject>,
    /// The predicate's type.
    #[serde(rename = "predicateType")]
    pub predicate_type: String,
    /// The provenance.
    pub predicate: Value,
}

/// A subject of an attestation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// `pipeline/node.port`, or a file of it.
    pub name: String,
    /// Digests by algorithm.
    pub digest: BTreeMap<String, String>,
}

/// Why an attestation is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttestError {
    /// It cannot be read.
    #[error("not a DSSE envelope with an in-toto statement: {0}")]
    Unreadable(String),
    /// Unsigned, signed by another key, or changed after it was signed.
    #[error("no signature by this key over this content")]
    Unsigned,
    /// The key cannot be read.
    #[error("not an Ed25519 key in PEM form: {0}")]
    Key(String),
}

fn unreadable(error: impl std::fmt::Display) -> AttestError {
    AttestError::Unreadable(error.to_string())
}

fn bad_key(error: impl std::fmt::Display) -> AttestError {
    AttestError::Key(error.to_string())
}

/// How the store compares with an attestation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Comparison {
    /// Equal to what was attested.
    Same,
    /// Different from what was attested.
    Different,
    /// Not in the store.
    Missing,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload_type: String,
    payload: String,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Serialize, Deserialize)]
struct EnvelopeSignature {
    #[serde(default)]
    keyid: String,
    sig: String,
}

/// A signing key.
pub struct SecretKey(SigningKey);

/// A verification key.
#[derive(Clone, Debug)]
pub struct PublicKey(VerifyingKey);

impl SecretKey {
    /// Generates a key from the operating system's random numbers.
    ///
    /// # Errors
    /// Fails if there are none.
    pub fn generate() -> Result<Self, AttestError> {
        let mut secret = [0; 32];
        rand::rngs::OsRng.try_fill_bytes(&mut secret).map_err(bad_key)?;
        Ok(Self(SigningKey::from_bytes(&secret)))
    }

    /// Parses PKCS #8 PEM, as written by [`SecretKey::to_pem`] or `openssl genpkey -algorithm ed25519`.
    ///
    /// # Errors
    /// Fails on any other format.
    pub fn from_pem(pem: &str) -> Result<Self, AttestError> {
        SigningKey::from_pkcs8_pem(pem).map(Self).map_err(bad_key)
    }

    /// Encodes the key as PKCS #8 PEM (version 1, which every tool reads).
    ///
    /// # Errors
    /// Never in practice: the encoding has a fixed size.
    pub fn to_pem(&self) -> Result<String, AttestError> {
        let pair = KeypairBytes { secret_key: self.0.to_bytes(), public_key: None };
        Ok(pair.to_pkcs8_pem(LineEnding::LF).map_err(bad_key)?.to_string())
    }

    /// Returns the verification key.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// Signs a statement.
    ///
    /// # Errors
    /// Fails if the statement cannot be written as JSON.
    pub fn sign(&self, statement: &Statement) -> Result<String, AttestError> {
        let payload = serde_json::to_vec(statement).map_err(unreadable)?;
        let signature = self.0.sign(&pre_authentication(PAYLOAD, &payload));
        let signature = EnvelopeSignature { keyid: self.public().id()?, sig: STANDARD.encode(signature.to_bytes()) };
        let payload = STANDARD.encode(&payload);
        let envelope = Envelope { payload_type: PAYLOAD.to_owned(), payload, signatures: vec![signature] };
        serde_json::to_string_pretty(&envelope).map_err(unreadable)
    }
}

impl PublicKey {
    /// Parses SPKI PEM (`BEGIN PUBLIC KEY`).
    ///
    /// # Errors
    /// Fails on any other format.
    pub fn from_pem(pem: &str) -> Result<Self, AttestError> {
        VerifyingKey::from_public_key_pem(pem).map(Self).map_err(bad_key)
    }

    /// Encodes the key as SPKI PEM.
    ///
    /// # Errors
    /// Never in practice.
    pub fn to_pem(&self) -> Result<String, AttestError> {
        self.0.to_public_key_pem(LineEnding::LF).map_err(bad_key)
    }

    /// Returns the SHA-256 of the key's DER encoding.
    ///
    /// # Errors
    /// Never in practice.
    pub fn id(&self) -> Result<String, AttestError> {
        Ok(sha256_bytes(self.0.to_public_key_der().map_err(bad_key)?.as_bytes()))
    }

    /// Verifies a DSSE envelope and returns its statement. The payload is parsed only after its signature was verified.
    ///
    /// # Errors
    /// Fails if the envelope cannot be read or has no signature by this key.
    pub fn verify(&self, envelope: &[u8]) -> Result<Statement, AttestError> {
        let envelope: Envelope = serde_json::from_slice(envelope).map_err(unreadable)?;
        let payload = STANDARD.decode(&envelope.payload).map_err(unreadable)?;
        let message = pre_authentication(&envelope.payload_type, &payload);
        let is_signed = envelope.signatures.iter().any(|signature| {
            let bytes = STANDARD.decode(&signature.sig).unwrap_or_default();
            // Strict: another encoding of a signature, or a weak key, verifies nothing.
            Signature::from_slice(&bytes).is_ok_and(|signature| self.0.verify_strict(&message, &signature).is_ok())
        });
        if !is_signed {
            return Err(AttestError::Unsigned);
        }
        if envelope.payload_type != PAYLOAD {
            return Err(unreadable(format!("its payload is `{}`", envelope.payload_type)));
        }
        let statement: Statement = serde_json::from_slice(&payload).map_err(unreadable)?;
        if statement.statement_type != STATEMENT {
            return Err(unreadable(format!("its statement is `{}`", statement.statement_type)));
        }
        Ok(statement)
    }
}

/// Returns the signed bytes: DSSE's pre-authentication encoding.
fn pre_authentication(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    bytes.extend(payload);
    bytes
}

/// Returns the statement about an artifact: its files with digests, and all upstream steps, inputs and sources.
///
/// # Errors
/// Fails if the artifact is missing or damaged.
pub fn statement(store: &Store, root: &Root) -> Result<Statement, StoreError> {
    let makers = Makers::read(store);
    let nodes = root.run.as_ref().map(|run| store.run_nodes(run)).unwrap_or_default();
    let names: BTreeMap<NodeKey, NodeId> = nodes.into_iter().filter_map(|node| Some((node.key?, node.node))).collect();
    let preferred: BTreeSet<NodeKey> = names.keys().copied().collect();
    let start = makers.chosen(root.key, &root.artifact, &preferred);
    let keys = makers.ancestry(&start, &preferred);
    let mut results: Vec<&NodeResult> = keys.iter().filter_map(|key| makers.result(key)).collect();
    // By key where times are equal: equal stores give equal statements.
    results.sort_by(|one, other| one.finished.total_cmp(&other.finished).then(one.key.cmp(&other.key)));
    let maker = start.first().and_then(|key| makers.result(key));
    Ok(Statement {
        statement_type: STATEMENT.to_owned(),
        subject: subjects(store, root)?,
        predicate_type: PREDICATE.to_owned(),
        predicate: predicate(store, root, maker, &results, &names),
    })
}

fn subjects(store: &Store, root: &Root) -> Result<Vec<Subject>, StoreError> {
    let id = root.artifact;
    let found = store.verify(&id).and_then(|()| store.artifact(&id).ok_or(Damage::Missing));
    let artifact = found.map_err(|damage| match store.release_of(&id) {
        Some(note) => StoreError::ReleasedUnattested(id, note.words()),
        None => StoreError::NotAttested(id, damage),
    })?;
    let folder = store.artifact_folder(&id);
    let digest = BTreeMap::from([(ARTIFACT.to_owned(), id.to_string())]);
    let mut subjects = vec![Subject { name: root.name.clone(), digest }];
    for part in &artifact.parts {
        let path = folder.join(&part.name);
        let sha256 = sha256_file(&path).context("read", &path)?;
        let digest = BTreeMap::from([(DIGEST_NAME.to_owned(), part.digest.hex()), ("sha256".to_owned(), sha256)]);
        subjects.push(Subject { name: format!("{}/{}", root.name, part.name), digest });
    }
    Ok(subjects)
}

fn predicate(
    store: &Store,
    root: &Root,
    maker: Option<&NodeResult>,
    results: &[&NodeResult],
    names: &BTreeMap<NodeKey, NodeId>,
) -> Value {
    let run = root.run.clone().or_else(|| maker.map(|result| result.run.clone())).and_then(|run| store.run(&run));
    let started = maker.map(|result| rfc3339(result.finished - result.seconds));
    let others = results.iter().flat_map(|result| result.outputs.values()).map(|output| output.id);
    let others: BTreeSet<ArtifactId> = others.filter(|id| *id != root.artifact).collect();
    let byproducts: Vec<Value> = others.iter().map(|id| json!({"digest": {ARTIFACT: id.to_string()}})).collect();
    json!({
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "target": root.name,
                "pipeline": run.as_ref().map(|run| &run.pipeline),
                "file": run.as_ref().map(|run| &run.file),
                "params": run.as_ref().map(|run| &run.params),
            },
            "internalParameters": {"steps": results.iter().map(|result| step(result, names)).collect::<Vec<_>>()},
            "resolvedDependencies": dependencies(results),
        },
        "runDetails": {
            "builder": {
                "id": BUILDER,
                "version": {"searchmill": maker.map_or(env!("CARGO_PKG_VERSION"), |result| result.searchmill.as_str())},
            },
            "metadata": {
                "invocationId": maker.map(|result| &result.run),
                "startedOn": started,
                "finishedOn": maker.map(|result| rfc3339(result.finished)),
            },
            "byproducts": byproducts,
        },
    })
}

/// Describes one result: its operator, inputs and outputs.
fn step(result: &NodeResult, names: &BTreeMap<NodeKey, NodeId>) -> Value {
    let outputs: BTreeMap<&String, String> =
        result.outputs.iter().map(|(port, output)| (port, output.id.to_string())).collect();
    json!({
        "node": names.get(&result.key),
        "key": result.key,
        "preimage": result.preimage,
        "outputs": outputs,
        "searchmill": result.searchmill,
        "run": result.run,
        "finishedOn": rfc3339(result.finished),
    })
}

/// Returns external files of all steps: those with a digest, and those identified by address.
fn dependencies(results: &[&NodeResult]) -> Vec<Value> {
    let mut seen = BTreeSet::new();
    let mut dependencies = Vec::new();
    let sources = results.iter().flat_map(|result| Preimage::read(&result.preimage).sources);
    for SourceIdentity { name, content, .. } in sources {
        // Several steps may read one file.
        if !seen.insert((name.clone(), content.clone())) {
            continue;
        }
        if Digest::parse(&content).is_some() {
            dependencies.push(json!({"name": name, "digest": {DIGEST_NAME: content}}));
        } else if content.contains("://") {
            dependencies.push(json!({"name": name, "uri": content}));
        }
    }
    dependencies
}

/// Compares the subjects of an attestation with a store, by name.
pub fn compare(store: &Store, statement: &Statement) -> Vec<(String, Comparison)> {
    let artifact = statement.subject.iter().find_map(|subject| ArtifactId::parse(subject.digest.get(ARTIFACT)?));
    let subjects = statement.subject.iter();
    subjects.map(|one| (one.name.clone(), compare_one(store, artifact.as_ref(), one, statement))).collect()
}

fn compare_one(store: &Store, artifact: Option<&ArtifactId>, subject: &Subject, statement: &Statement) -> Comparison {
    let Some(id) = artifact else { return Comparison::Missing };
    if subject.digest.contains_key(ARTIFACT) {
        return match store.verify(id) {
            Ok(()) => Comparison::Same,
            Err(Damage::Missing | Damage::Released) => Comparison::Missing,
            Err(Damage::Corrupt) => Comparison::Different,
        };
    }
    let root = statement.subject.iter().find(|subject| subject.digest.contains_key(ARTIFACT));
    let name = root.and_then(|root| subject.name.strip_prefix(&root.name)?.strip_prefix('/'));
    // Only files that belong to the artifact are opened.
    let artifact = store.artifact(id);
    let mut parts = artifact.iter().flat_map(|artifact| &artifact.parts);
    let Some(part) = parts.find(|part| Some(part.name.as_str()) == name) else { return Comparison::Missing };
    match sha256_file(&store.artifact_folder(id).join(&part.name)) {
        Ok(found) if Some(&found) == subject.digest.get("sha256") => Comparison::Same,
        Ok(_) => Comparison::Different,
        Err(_) => Comparison::Missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement() -> Statement {
        Statement {
            statement_type: STATEMENT.to_owned(),
            subject: vec![Subject { name: "a".to_owned(), digest: BTreeMap::new() }],
            predicate_type: PREDICATE.to_owned(),
            predicate: json!({"x": 1}),
        }
    }

    #[test]
    fn the_pre_authentication_encoding_is_that_of_the_protocol() {
        // The example in DSSE's protocol.md.
        let encoded = pre_authentication("http://example.com/HelloWorld", b"hello world");
        assert_eq!(encoded, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
    }

    #[test]
    fn only_what_this_key_signed_is_believed() {
        let key = SecretKey::generate().unwrap();
        let envelope = key.sign(&statement()).unwrap();
        let public = PublicKey::from_pem(&key.public().to_pem().unwrap()).unwrap();
        assert_eq!(public.verify(envelope.as_bytes()).unwrap(), statement());
        let again = SecretKey::from_pem(&key.to_pem().unwrap()).unwrap();
        assert_eq!(again.sign(&statement()).unwrap(), envelope, "Ed25519 signatures are deterministic");
        let other = SecretKey::generate().unwrap().public();
        assert_eq!(other.verify(envelope.as_bytes()), Err(AttestError::Unsigned));
        let changed = Statement { predicate: json!({"x": 2}), ..statement() };
        let mut forged: Value = serde_json::from_str(&envelope).unwrap();
        forged["payload"] = json!(STANDARD.encode(serde_json::to_vec(&changed).unwrap()));
        assert_eq!(public.verify(forged.to_string().as_bytes()), Err(AttestError::Unsigned));
        assert!(matches!(public.verify(b"{}"), Err(AttestError::Unreadable(_))));
    }

    #[test]
    fn the_test_vector_of_the_rfc_is_signed_alike() {
        // RFC 8032, section 7.1, test 1: the empty message.
        let bytes = |hex: &str| -> Vec<u8> {
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
        };
        let secret = bytes("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
        let key = SigningKey::from_bytes(secret.as_slice().try_into().unwrap());
        let signature = "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b\
                         d25bf5f0595bbe24655141438e7a100b";
        assert_eq!(key.sign(b"").to_bytes().to_vec(), bytes(signature));
    }
}
