//! Services of a node: starts them before its kernel runs, and ends them after it.
//!
//! A service gets a free port of this machine. It is ready once its `ready` path answers with a status of 2xx from a
//! process of its own. Its log is part of the node's log. It ends with the node, and if this process dies.

mod process;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::executor::blocking;
use super::job::NodeJob;
use crate::endpoint::{Alive, with_addresses};
use crate::error::OperatorError;
use crate::execute::settings::device::DeviceLease;
use crate::operator::{BoundOperator, ProgressSink};
use crate::spec::{Serves, ServiceSpec};
use crate::store::{IoContext, Lent, lend};
use process::{Port, Process};

/// Interval between two questions whether a service is ready.
const LOOK: Duration = Duration::from_millis(50);
/// Interval between two looks whether the services still run.
const WATCH: Duration = Duration::from_millis(200);
/// Longest wait for one answer to that question.
const ANSWER: Duration = Duration::from_secs(5);

/// The running services of a node. Dropping them ends them, which may take seconds.
pub(crate) struct Services {
    running: Arc<Mutex<Vec<Process>>>,
    addresses: BTreeMap<String, String>,
    _ports: Vec<Port>,
    _lease: Option<DeviceLease>,
    /// Removed after the processes have ended.
    _lent: Vec<Lent>,
}

impl Services {
    /// Starts the services of a node together and waits until all are ready.
    pub(crate) async fn start(job: &Arc<NodeJob>, progress: &Arc<dyn ProgressSink>) -> Result<Self, OperatorError> {
        let (own, sink) = (Arc::clone(job), Arc::clone(progress));
        let services = blocking(move || launch(&own, &sink)).await?;
        match services.until_ready(job).await {
            Ok(()) => Ok(services),
            Err(error) => {
                services.end().await;
                Err(error)
            }
        }
    }

    /// Returns the node's operator with the addresses of the services in its params.
    pub(crate) fn bind(&self, job: &NodeJob) -> Result<BoundOperator, OperatorError> {
        let node = job.node();
        let mut params = node.operator.params.clone();
        with_addresses(&mut params, &self.addresses);
        (node.entry.bind)(params).map_err(|issue| {
            OperatorError::pipeline(format!("`{}` with the address of a service: {}", issue.path, issue.message))
        })
    }

    /// Returns an error if a service has ended by itself.
    pub(crate) fn fault(&self) -> Option<OperatorError> {
        locked(&self.running).iter_mut().find_map(Process::fault)
    }

    /// Returns a check whether all services run.
    pub(crate) fn alive(&self) -> Alive {
        let running = Arc::clone(&self.running);
        Arc::new(move || locked(&running).iter_mut().all(|process| process.fault().is_none()))
    }

    /// Waits for the kernel. Once a service has ended, the node makes no more calls.
    pub(crate) async fn watched<T>(&self, job: &NodeJob, kernel: impl Future<Output = T>) -> T {
        let mut kernel = std::pin::pin!(kernel);
        loop {
            tokio::select! {
                ran = kernel.as_mut() => return ran,
                () = tokio::time::sleep(WATCH) => {}
            }
            if let Some(error) = self.fault() {
                for limiter in job.session.limiters() {
                    if limiter.is_of_service() {
                        limiter.shut(&error.message);
                    }
                }
                // Not cancelled: answers on their way are paid for, and are awaited and remembered.
                return kernel.await;
            }
        }
    }

    /// Ends the services.
    pub(crate) async fn end(self) {
        // A process may take seconds to end, and a task must not block.
        let ended = blocking(move || {
            locked(&self.running).clear();
            Ok(())
        });
        if let Err(error) = ended.await {
            tracing::warn!("services were not ended: {}", error.message);
        }
    }

    async fn until_ready(&self, job: &NodeJob) -> Result<(), OperatorError> {
        let node = job.node();
        let start = Instant::now();
        // A proxy would answer for it.
        let client = reqwest::Client::builder().no_proxy().build();
        let client = client.map_err(|why| OperatorError::machine(format!("cannot create an HTTP client: {why}")))?;
        for (position, service) in node.spec.services.iter().enumerate() {
            let address = self.addresses.get(&service.name).cloned().unwrap_or_default();
            let question = format!("{address}{}", service.ready);
            loop {
                if let Some(error) = self.fault() {
                    return Err(error);
                }
                if job.run.stop.is_draining() {
                    return Err(OperatorError::cancelled());
                }
                let status = client.get(&question).timeout(ANSWER).send().await.map(|answer| answer.status());
                if status.as_ref().is_ok_and(reqwest::StatusCode::is_success) {
                    // Another program may have bound the port before the service did.
                    if locked(&self.running).get(position).is_some_and(Process::port_is_taken) {
                        let message = format!("another program answers at {address}, the port of `{}`", service.name);
                        return Err(OperatorError::machine(message).with_help("run it again: it gets another port"));
                    }
                    break;
                }
                if start.elapsed() > service.within {
                    let answer = status.map_or("nothing".to_owned(), |status| status.to_string());
                    return Err(Process::late(locked(&self.running).get(position), service, &answer));
                }
                tokio::time::sleep(LOOK).await;
            }
        }
        Ok(())
    }
}

fn locked(running: &Mutex<Vec<Process>>) -> MutexGuard<'_, Vec<Process>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the processes.
fn launch(job: &NodeJob, progress: &Arc<dyn ProgressSink>) -> Result<Services, OperatorError> {
    let node = job.node();
    let workers = &job.run.options.asked.workers;
    // GPUs of a node that runs in a worker are leased there.
    let gpus = if node.operator.declaration.pays() { workers.gpus(&node.spec.resources) } else { 0 };
    let lease = match gpus {
        0 => None,
        gpus => Some(DeviceLease::take(&workers.devices, gpus as usize, &job.run.stop)?),
    };
    // Those that have started end if another one cannot.
    let (mut running, mut addresses, mut ports) = (Vec::new(), BTreeMap::new(), Vec::new());
    let mut lent = Vec::new();
    for service in &node.spec.services {
        // A new one for each run of the node: services of concurrent runs must not meet.
        let port = Port::free()?;
        let inputs = service_inputs(job, service)?;
        let words = words(service, &inputs, port.number(), workers.cpu.as_deref())?;
        lent.extend(inputs.into_iter().filter_map(|input| input.lent));
        progress.log(&format!("starts the service `{}`: {}", service.name, words.join(" ")));
        let (directory, visible) = (&job.run.options.directory, lease.as_ref().map(DeviceLease::visible));
        running.push(Process::start(service, &words, directory, port.number(), visible, Arc::clone(progress))?);
        addresses.insert(service.name.clone(), format!("http://127.0.0.1:{}", port.number()));
        ports.push(port);
    }
    let running = Arc::new(Mutex::new(running));
    Ok(Services { running, addresses, _ports: ports, _lease: lease, _lent: lent })
}

/// A folder that a service reads.
struct ServiceInput {
    port: String,
    path: PathBuf,
    /// The copy of a program that the pipeline names; `searchmill serve` reads the store's own files.
    lent: Option<Lent>,
}

/// Returns what a service reads, in the order written.
fn service_inputs(job: &NodeJob, service: &ServiceSpec) -> Result<Vec<ServiceInput>, OperatorError> {
    let store = &job.run.store;
    let mut found = Vec::new();
    for (input, record) in job.node().inputs.iter().zip(&job.inputs) {
        if !service.from.iter().any(|binding| binding.port.as_deref() == Some(&input.port)) {
            continue;
        }
        // Fetches the artifact if it is in a shared store.
        store.open_input(&record.id)?;
        let artifact = store.artifact_folder(&record.id);
        let mut lent = None;
        if matches!(service.serves, Serves::Program(_)) {
            lent = Some(lend(&artifact, &store.temporary()).context("copy", &artifact)?);
        }
        let path = lent.as_ref().map_or(artifact, |lent| lent.folder.clone());
        found.push(ServiceInput { port: input.port.clone(), path, lent });
    }
    Ok(found)
}

/// Returns program and arguments of a service.
fn words(
    service: &ServiceSpec,
    inputs: &[ServiceInput],
    port: u16,
    searchmill: Option<&Path>,
) -> Result<Vec<String>, OperatorError> {
    if let Serves::Program(words) = &service.serves {
        let mut words = words.clone();
        for word in &mut words {
            *word = word.replace("{port}", &port.to_string());
            for input in inputs {
                let name = input.port.rsplit('.').next().unwrap_or_default();
                *word = word.replace(&format!("{{{name}}}"), &input.path.display().to_string());
            }
        }
        return Ok(words);
    }
    let Some(searchmill) = searchmill else {
        let error = OperatorError::machine(format!("no program is known that could serve `{}`", service.name));
        return Err(error.with_help("the embedding program gives the path of `searchmill` as `Workers::cpu`"));
    };
    let what = if service.serves == Serves::Model { "model" } else { "env" };
    let mut words = vec![searchmill.display().to_string(), "serve".to_owned(), what.to_owned()];
    for input in inputs {
        if input.port.ends_with(".adapter") {
            words.push("--adapter".to_owned());
        }
        words.push(input.path.display().to_string());
    }
    words.extend(["--listen".to_owned(), format!("127.0.0.1:{port}")]);
    if service.serves == Serves::Model {
        words.extend(["--name".to_owned(), service.name.clone()]);
    }
    words.extend(service.args.iter().cloned());
    Ok(words)
}
