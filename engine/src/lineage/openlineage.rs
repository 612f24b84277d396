//! Creates OpenLineage run events: one run per node, and one for the pipeline as their parent.
//!
//! Pure translation: run events in, JSON out; sending is not done here. Datasets have stable names
//! (`pipeline.node.port`) and their content digest as version. Specification: OpenLineage 2-0-2, with the facet
//! versions named below (<https://openlineage.io/docs/spec/facets/>).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use arrow::datatypes::{DataType, Field};
use indexmap::IndexMap;
use serde::Serialize;
use serde_json::{Value, json};
use url::Url;

use super::instant::rfc3339;
use super::lookup::table;
use crate::fingerprint::{DIGEST_NAME, Digest, NodeKey, encode, hash_bytes};
use crate::node_id::NodeId;
use crate::spec::OnFailure;
use crate::store::{ArtifactType, CheckOutcome, ColumnLineage, ColumnUse, NodeResult, OutputRecord, Store};

/// The schema of events.
const EVENT: &str = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent";
/// The producer: a stable name, not an address.
const PRODUCER: &str = concat!("urn:searchmill:engine:", env!("CARGO_PKG_VERSION"));
/// Source of tags, job types and data sources.
const SOURCE: &str = "SEARCHMILL";

/// An input of a job: an output of another job.
#[derive(Clone, Debug)]
pub struct JobInput {
    /// The port.
    pub port: String,
    /// The upstream node.
    pub node: NodeId,
    /// The upstream port.
    pub output: String,
}

/// What is known about a node before it runs.
#[derive(Clone, Debug)]
pub struct Job {
    /// Node id.
    pub node: NodeId,
    /// Operator.
    pub operator: String,
    /// The operator's version.
    pub version: u32,
    /// Params that change the result.
    pub params: Value,
    /// Description of the operator.
    pub about: String,
    /// Its inputs.
    pub inputs: Vec<JobInput>,
    /// Paths and URLs that it reads.
    pub sources: Vec<String>,
}

/// A pipeline and its location.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// Its name.
    pub name: String,
    /// Its file.
    pub file: PathBuf,
    /// Base folder of relative paths.
    pub directory: PathBuf,
    /// Namespace of jobs and of datasets in the store.
    pub namespace: String,
    /// Its nodes.
    pub jobs: Vec<Job>,
}

/// How a run or a node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Ending {
    /// Successfully.
    Complete,
    /// With an error.
    Fail,
    /// Stopped.
    Abort,
}

/// Translates the events of one run.
pub struct Emitter {
    store: Store,
    pipeline: Pipeline,
    run: String,
    started: f64,
    /// Outputs of finished nodes.
    outputs: BTreeMap<NodeId, IndexMap<String, OutputRecord>>,
    /// Nodes that started and have not ended.
    open: BTreeSet<NodeId>,
    delivered: BTreeMap<NodeId, Vec<String>>,
    /// Outcomes of checks by node.
    checks: BTreeMap<NodeId, Vec<CheckOutcome>>,
}

impl Emitter {
    /// Prepares for a run.
    pub fn new(store: Store, pipeline: Pipeline) -> Self {
        let (outputs, open, delivered) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        let checks = BTreeMap::new();
        Self { store, pipeline, run: String::new(), started: 0.0, outputs, open, delivered, checks }
    }

    /// Starts the run. Times are Unix times in seconds.
    pub fn run_started(&mut self, run: &str, time: f64) -> Vec<Value> {
        (self.run, self.started) = (run.to_owned(), time);
        vec![self.run_event("START", time, json!({}))]
    }

    /// Ends the run; nodes that have not ended are aborted.
    pub fn run_finished(&mut self, ending: Ending, time: f64) -> Vec<Value> {
        let mut events = Vec::new();
        // Before the run: a parent that has ended has no open children.
        for node in std::mem::take(&mut self.open) {
            events.push(self.node_event(Ending::Abort, &node, None, time, json!({})));
        }
        let failed = json!({"errorMessage": error_message("a node failed")});
        let facets = if ending == Ending::Fail { failed } else { json!({}) };
        events.push(self.run_event(ending, time, facets));
        events
    }

    /// Starts a node; `reasons` say why it runs.
    pub fn node_started(&mut self, node: &str, reasons: &[String], time: f64) -> Vec<Value> {
        self.open.insert(node.into());
        let tags = self.tags(reasons.iter().map(|reason| ("reason", reason.clone())));
        vec![self.node_event("START", node, None, time, json!({"tags": tags}))]
    }

    /// Ends a node whose result is stored.
    pub fn node_finished(&mut self, node: &str, key: &NodeKey, time: f64) -> Vec<Value> {
        let result = self.settle(node, Some(key));
        let mut events = self.begin_if_needed(node, time);
        self.open.remove(node);
        let facets = json!({"tags": self.tags([("key", key.to_string())])});
        events.push(self.node_event(Ending::Complete, node, result.as_ref(), time, facets));
        events
    }

    /// Reports a cached node like a run, with a tag, so that a receiver of this run alone sees the whole graph.
    pub fn node_cached(&mut self, node: &str, key: Option<&NodeKey>, time: f64) -> Vec<Value> {
        let result = self.settle(node, key);
        let mut tags = vec![("cached", "true".to_owned())];
        tags.extend(key.map(|key| ("key", key.to_string())));
        let facets = json!({"tags": self.tags(tags)});
        let start = self.node_event("START", node, None, time, facets.clone());
        vec![start, self.node_event(Ending::Complete, node, result.as_ref(), time, facets)]
    }

    /// Reports a failed node, which may not have started.
    pub fn node_failed(&mut self, node: &str, message: &str, time: f64) -> Vec<Value> {
        let mut events = self.begin_if_needed(node, time);
        self.open.remove(node);
        events.push(self.node_event(Ending::Fail, node, None, time, json!({"errorMessage": error_message(message)})));
        events
    }

    /// Reports a skipped or stopped node. A node that never started has no run and no events.
    pub fn node_skipped(&mut self, node: &str, time: f64) -> Vec<Value> {
        if !self.open.remove(node) {
            return Vec::new();
        }
        vec![self.node_event(Ending::Abort, node, None, time, json!({}))]
    }

    /// Records that a node's output was delivered.
    pub fn delivered(&mut self, node: &str, destination: &str) {
        self.delivered.entry(node.into()).or_default().push(destination.to_owned());
    }

    fn begin_if_needed(&mut self, node: &str, time: f64) -> Vec<Value> {
        if self.open.contains(node) { Vec::new() } else { self.node_started(node, &[], time) }
    }

    /// Records a node's outputs as inputs of other nodes.
    fn settle(&mut self, node: &str, key: Option<&NodeKey>) -> Option<NodeResult> {
        // Another process may have collected it since: its outputs are still known.
        let result = key.and_then(|key| self.store.result(key).or_else(|| self.store.tombstone(key)))?;
        self.outputs.insert(node.into(), result.outputs.clone());
        Some(result)
    }

    fn run_event(&self, event: impl Serialize, time: f64, mut facets: Value) -> Value {
        facets["processing_engine"] = processing_engine();
        facets["tags"] = self.tags([]);
        let mut job_facets = json!({"jobType": job_type("PIPELINE")});
        if let Some(url) = file_url(&self.pipeline.directory.join(&self.pipeline.file)) {
            let fields = json!({"type": "file", "url": url});
            job_facets["sourceCodeLocation"] = facet("1-1-0/SourceCodeLocationJobFacet", fields);
        }
        let run = json!({"runId": self.uuid(""), "facets": facets});
        let name = &self.pipeline.name;
        let job = json!({"namespace": self.pipeline.namespace, "name": name, "facets": job_facets});
        made_event(event, time, run, job, [Vec::new(), Vec::new()])
    }

    fn node_event(
        &self,
        event: impl Serialize,
        node: &str,
        result: Option<&NodeResult>,
        time: f64,
        mut facets: Value,
    ) -> Value {
        let parent = json!({
            "run": {"runId": self.uuid("")},
            "job": {"namespace": self.pipeline.namespace, "name": self.pipeline.name},
        });
        facets["parent"] = facet("1-2-0/ParentRunFacet", parent);
        facets["processing_engine"] = processing_engine();
        let job = self.pipeline.jobs.iter().find(|job| job.node == node);
        let inputs = job.map(|job| self.inputs(job, result)).unwrap_or_default();
        let outputs = self.outputs(node, job, result);
        let run = json!({"runId": self.uuid(node), "facets": facets});
        let (name, facets) = (format!("{}.{node}", self.pipeline.name), job.map_or_else(|| json!({}), job_facets));
        let job = json!({"namespace": self.pipeline.namespace, "name": name, "facets": facets});
        made_event(event, time, run, job, [inputs, outputs])
    }

    fn inputs(&self, job: &Job, result: Option<&NodeResult>) -> Vec<Value> {
        let (mut seen, mut inputs) = (BTreeSet::new(), Vec::new());
        for input in &job.inputs {
            // Several ports may read one output.
            if !seen.insert((&input.node, &input.output)) {
                continue;
            }
            let (namespace, name) = self.dataset(&input.node, &input.output);
            let (mut facets, mut own) = (json!({}), json!({}));
            if let Some(output) = self.outputs.get(&input.node).and_then(|outputs| outputs.get(&input.output)) {
                facets = self.dataset_facets(output);
                own["inputStatistics"] = self.statistics("1-0-0/InputStatisticsInputDatasetFacet", output);
            }
            if let Some(assertions) = self.assertions(&input.node, &input.output) {
                own["dataQualityAssertions"] = assertions;
            }
            inputs.push(json!({"namespace": namespace, "name": name, "facets": facets, "inputFacets": own}));
        }
        for source in &job.sources {
            inputs.push(self.source(source, job, result));
        }
        inputs
    }

    /// Remembers the outcomes of a node's checks, for the events of the nodes that read it.
    pub fn checked(&mut self, node: &str, checks: &[CheckOutcome]) {
        self.checks.insert(node.into(), checks.to_vec());
    }

    /// Describes the checks of an output.
    fn assertions(&self, node: &str, port: &str) -> Option<Value> {
        let default = self.outputs.get(node)?.keys().next()?;
        let mut outcomes: Vec<&CheckOutcome> = self.checks.get(node)?.iter().collect();
        outcomes.retain(|outcome| outcome.check.port.as_ref().unwrap_or(default) == port);
        let assertions: Vec<Value> = outcomes.into_iter().map(assertion).collect();
        let fields = json!({"assertions": assertions});
        (!assertions.is_empty()).then(|| facet("1-1-0/DataQualityAssertionsDatasetFacet", fields))
    }

    /// Describes an external file or address; its version is known once it was read.
    fn source(&self, source: &str, job: &Job, result: Option<&NodeResult>) -> Value {
        let (namespace, name, url) = self.external_dataset(source);
        let mut facets = data_source(&namespace, url);
        if let Some(version) = result.and_then(|result| source_version(result, source, job.sources.len() == 1)) {
            facets["version"] = version_facet(&version);
        }
        json!({"namespace": namespace, "name": name, "facets": facets})
    }

    fn outputs(&self, node: &str, job: Option<&Job>, result: Option<&NodeResult>) -> Vec<Value> {
        let Some(result) = result else { return Vec::new() };
        let mut outputs = Vec::new();
        for (port, output) in &result.outputs {
            let (namespace, name) = self.dataset(node, port);
            let mut facets = self.dataset_facets(output);
            if let (Some(lineage), Some(job)) = (result.columns.get(port), job) {
                facets["columnLineage"] = self.column_lineage(lineage, job);
            }
            let statistics = self.statistics("1-0-2/OutputStatisticsOutputDatasetFacet", output);
            outputs.push(json!({
                "namespace": namespace, "name": name, "facets": facets,
                "outputFacets": {"outputStatistics": statistics},
            }));
        }
        for destination in self.delivered.get(node).into_iter().flatten() {
            let (namespace, name, url) = self.external_dataset(destination);
            let facets = data_source(&namespace, url);
            outputs.push(json!({"namespace": namespace, "name": name, "facets": facets}));
        }
        outputs
    }

    fn dataset(&self, node: &str, port: &str) -> (String, String) {
        (self.pipeline.namespace.clone(), format!("{}.{node}.{port}", self.pipeline.name))
    }

    /// Returns namespace, name and URL of an external dataset, by OpenLineage's naming rules.
    fn external_dataset(&self, written: &str) -> (String, String, Option<String>) {
        // A path with a colon parses as a URL too.
        if let Ok(url) = Url::parse(written)
            && url.scheme() != "file"
            && written.contains("://")
        {
            let namespace = format!("{}://{}", url.scheme(), url.host_str().unwrap_or_default());
            let bare = [&namespace, url.path()].concat();
            (namespace, url.path().trim_start_matches('/').to_owned(), Some(bare))
        } else {
            let path = self.pipeline.directory.join(written.strip_prefix("file://").unwrap_or(written));
            ("file".to_owned(), path.display().to_string(), file_url(&path))
        }
    }

    fn dataset_facets(&self, output: &OutputRecord) -> Value {
        let mut facets = data_source("searchmill", file_url(&self.store.artifact_folder(&output.id)));
        facets["version"] = version_facet(&output.id.to_string());
        let (dataset, kind) = match &output.artifact_type {
            ArtifactType::Rows { kind, .. } => ("TABLE", kind),
            ArtifactType::Tree { kind } => ("FILE", kind),
        };
        let kind = json!({"datasetType": dataset, "subType": kind.to_uppercase()});
        facets["datasetType"] = facet("1-0-1/DatasetTypeDatasetFacet", kind);
        if let Some(rows) = table(&self.store, &output.id) {
            let fields = json!({"fields": fields(rows.schema.fields().iter().map(AsRef::as_ref))});
            facets["schema"] = facet("1-2-0/SchemaDatasetFacet", fields);
        }
        facets
    }

    fn statistics(&self, name: &str, output: &OutputRecord) -> Value {
        let mut fields = json!({"size": output.bytes});
        if let Some(artifact) = self.store.artifact(&output.id) {
            fields["fileCount"] = json!(artifact.parts.len());
        }
        if matches!(output.artifact_type, ArtifactType::Rows { .. }) {
            fields["rowCount"] = json!(output.rows);
        }
        facet(name, fields)
    }

    fn column_lineage(&self, lineage: &ColumnLineage, job: &Job) -> Value {
        let mut facet_fields = json!({"fields": {}});
        for (column, uses) in &lineage.fields {
            facet_fields["fields"][column] = json!({"inputFields": self.input_fields(uses, job)});
        }
        if !lineage.rows.is_empty() {
            facet_fields["dataset"] = json!(self.input_fields(&lineage.rows, job));
        }
        facet("1-2-0/ColumnLineageDatasetFacet", facet_fields)
    }

    /// Returns input columns with all their transformations.
    fn input_fields(&self, uses: &BTreeSet<ColumnUse>, job: &Job) -> Vec<Value> {
        let mut ways: BTreeMap<(&str, &str), Vec<Value>> = BTreeMap::new();
        for found in uses {
            let kind = if found.how.is_direct() { "DIRECT" } else { "INDIRECT" };
            let subtype = json!(found.how).as_str().map(str::to_uppercase);
            let way = json!({"type": kind, "subtype": subtype, "masking": false});
            ways.entry((&found.port, &found.column)).or_default().push(way);
        }
        let mut fields = Vec::new();
        for ((port, column), ways) in ways {
            let Some(input) = job.inputs.iter().find(|input| input.port == port) else { continue };
            let (namespace, name) = self.dataset(&input.node, &input.output);
            fields.push(json!({"namespace": namespace, "name": name, "field": column, "transformations": ways}));
        }
        fields
    }

    fn tags<'a>(&self, more: impl IntoIterator<Item = (&'a str, String)>) -> Value {
        let mut tags = Vec::new();
        for (key, value) in [("run", self.run.clone())].into_iter().chain(more) {
            tags.push(json!({"key": key, "value": value, "source": SOURCE}));
        }
        facet("1-0-0/TagsRunFacet", json!({"tags": tags}))
    }

    /// Returns the id of a node's run, or of the whole run: a UUID version 7 (RFC 9562) whose random part is a digest,
    /// so that a run always has the same ids.
    fn uuid(&self, node: &str) -> String {
        let millis = (self.started * 1000.0) as u64;
        let digest = hash_bytes(&encode(&json!(["openlineage", self.pipeline.namespace, self.run, node])));
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
        bytes[6..].copy_from_slice(&digest.as_bytes()[..10]);
        bytes[6] = 0x70 | (bytes[6] & 0x0f);
        bytes[8] = 0x80 | (bytes[8] & 0x3f);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }
}

fn made_event(event: impl Serialize, time: f64, run: Value, job: Value, data: [Vec<Value>; 2]) -> Value {
    let [inputs, outputs] = data;
    json!({
        "eventType": event,
        "eventTime": rfc3339(time),
        "producer": PRODUCER,
        "schemaURL": EVENT,
        "run": run,
        "job": job,
        "inputs": inputs,
        "outputs": outputs,
    })
}

/// The facets of a dataset at that address, if it has one.
fn data_source(name: &str, url: Option<String>) -> Value {
    let Some(url) = url else { return json!({}) };
    json!({"dataSource": facet("1-0-1/DatasourceDatasetFacet", json!({"name": name, "uri": url}))})
}

fn assertion(outcome: &CheckOutcome) -> Value {
    let check = &outcome.check;
    let severity = if check.on_failure == OnFailure::Warn { "warn" } else { "error" };
    let mut fields = json!({
        "assertion": check.rule.name(), "success": outcome.passed, "severity": severity, "description": check.to_string(),
    });
    if let Some(column) = check.rule.column() {
        fields["column"] = json!(column);
    }
    if !outcome.found.is_empty() {
        fields["actual"] = json!(outcome.found);
    }
    fields
}

/// A facet with its schema; `name` is `version/Name`.
fn facet(name: &str, mut fields: Value) -> Value {
    let definition = name.rsplit('/').next().unwrap_or(name);
    fields["_producer"] = json!(PRODUCER);
    fields["_schemaURL"] = json!(format!("https://openlineage.io/spec/facets/{name}.json#/$defs/{definition}"));
    fields
}

fn processing_engine() -> Value {
    let version = env!("CARGO_PKG_VERSION");
    let fields = json!({"name": "searchmill", "version": version, "openlineageAdapterVersion": version});
    facet("1-1-1/ProcessingEngineRunFacet", fields)
}

fn error_message(message: &str) -> Value {
    facet("1-0-1/ErrorMessageRunFacet", json!({"message": message, "programmingLanguage": "RUST"}))
}

fn version_facet(version: &str) -> Value {
    facet("1-0-1/DatasetVersionDatasetFacet", json!({"datasetVersion": format!("{DIGEST_NAME}:{version}")}))
}

fn job_type(kind: &str) -> Value {
    facet("2-0-4/JobTypeJobFacet", json!({"processingType": "BATCH", "integration": SOURCE, "jobType": kind}))
}

fn job_facets(job: &Job) -> Value {
    let code = json!({"op": job.operator, "version": job.version, "with": job.params});
    let code = json!({"language": "JSON", "sourceCode": code.to_string()});
    json!({
        "jobType": job_type("NODE"),
        "sourceCode": facet("1-0-1/SourceCodeJobFacet", code),
        "documentation": facet("1-1-0/DocumentationJobFacet", json!({"description": job.about})),
    })
}

fn file_url(path: &Path) -> Option<String> {
    Url::from_file_path(path).ok().map(String::from)
}

/// Returns the digest of a source's content: its only file's, or one over all its files.
fn source_version(result: &NodeResult, source: &str, only: bool) -> Option<String> {
    let rows = result.preimage["sources"].as_array()?;
    let (mut files, mut digests) = (Vec::new(), Vec::new());
    for row in rows {
        let name = row[0].as_str().unwrap_or_default();
        if let Some(digest) = row[1].as_str().and_then(Digest::parse)
            && (only || Path::new(source).ends_with(name))
        {
            files.push(row);
            digests.push(digest);
        }
    }
    match digests.as_slice() {
        [] => None,
        [one] => Some(one.hex()),
        _ => Some(hash_bytes(&encode(&json!(files))).hex()),
    }
}

/// Returns columns in the form of the schema facet, nested ones below.
fn fields<'a>(columns: impl Iterator<Item = &'a Field>) -> Vec<Value> {
    let mut fields = Vec::new();
    for column in columns {
        let (name, kind) = (column.name(), type_name(column.data_type()));
        let mut field = json!({"name": name, "type": kind, "ordinal_position": fields.len() + 1});
        let nested = nested(column.data_type());
        if !nested.is_empty() {
            field["fields"] = json!(nested);
        }
        fields.push(field);
    }
    fields
}

fn nested(data_type: &DataType) -> Vec<Value> {
    match data_type {
        DataType::Struct(columns) => fields(columns.iter().map(AsRef::as_ref)),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => nested(item.data_type()),
        DataType::Map(entry, _) => nested(entry.data_type()),
        _ => Vec::new(),
    }
}

fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Struct(_) => "struct".to_owned(),
        DataType::List(item) | DataType::LargeList(item) => format!("list<{}>", type_name(item.data_type())),
        DataType::FixedSizeList(item, size) => format!("list<{}>[{size}]", type_name(item.data_type())),
        DataType::Map(..) => "map".to_owned(),
        other => other.to_string(),
    }
}
