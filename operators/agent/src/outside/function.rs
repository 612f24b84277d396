//! Python functions of users as services: each different call is made once.

use std::sync::{Arc, Mutex, PoisonError};

use searchmill_data::python::{Called as Answered, Code, Failure, JsonRows, Pool, PythonFunction, Why, Width};
use searchmill_engine::operator::{
    Attempt, Blame, CallFailure, Context, Counts, FailureKind, OperatorError, Prices, RowFailure,
};
use serde_json::{Map, Value, json};

use super::function_params::FunctionParams;
use super::params::ResultPlaces;
use super::results::{self, Layout};
use super::service::{Exchange, Service};
use crate::protocol::OfferedCall;
use crate::tool::{Called, ToolResult};

/// Processes of a function that is no class (at most): each imports the file.
const PROCESSES: usize = 4;

/// An error that fails the node: a process that cannot be started.
pub(super) type Fault = Arc<Mutex<Option<OperatorError>>>;

/// The error of a call that was not answered.
pub(super) const NO_ANSWER: &str = "the call has no answer";

/// Returns the processes of a function that is called with these arguments; calls start them.
pub(super) fn pool(function: PythonFunction, arguments: Vec<String>, context: &Context) -> Pool {
    // One process of a class: its object may hold a model in memory.
    let width = Width { function: context.threads().min(PROCESSES), class: 1 };
    Pool::new(function, arguments, width, context)
}

/// Returns what a call returned, as JSON.
///
/// # Errors
/// Why it failed.
pub(super) fn returned(called: Answered) -> Result<String, Failure> {
    match called {
        Answered::Row(row) => Ok(Value::Object(row).to_string()),
        Answered::Rows(rows) => Ok(json!(rows).to_string()),
        Answered::Failed(failure) => Err(failure),
    }
}

/// A function and its processes.
pub(super) struct FunctionService {
    pool: Arc<Pool>,
    code: Arc<Code>,
    pub(super) service: Service,
    fault: Fault,
}

impl FunctionService {
    /// Opens a function that is called with these arguments. `place` is the service's in the declaration.
    ///
    /// # Errors
    /// Fails if a file of the function cannot be read or is no Python.
    pub(super) fn open(
        function: PythonFunction,
        arguments: Vec<String>,
        place: usize,
        fault: &Fault,
        context: &Context,
    ) -> Result<Self, OperatorError> {
        let code = Arc::new(Code::of(&function, context)?);
        let pool = Arc::new(pool(function, arguments, context));
        // A model is paid before the first call.
        pool.check()?;
        let service = Service { place, prices: Prices::default() };
        Ok(Self { pool, code, service, fault: Arc::clone(fault) })
    }

    /// Returns what a call is remembered by.
    pub(super) fn request(&self, arguments: &Map<String, Value>) -> String {
        json!({"code": self.code.digest(), "arguments": arguments}).to_string()
    }

    /// Calls the function once. Returns what it returned, as JSON, if `fits` accepts that.
    pub(super) async fn attempt(
        &self,
        arguments: &Map<String, Value>,
        context: &Context,
        fits: impl Fn(&str) -> Result<(), String>,
    ) -> Result<String, CallFailure> {
        let (pool, code) = (Arc::clone(&self.pool), Arc::clone(&self.code));
        let rows = JsonRows::of_values(std::slice::from_ref(arguments));
        // On a thread for blocking work: the call waits for its process, and other rows go on.
        // The answer of a function whose files changed is of no use: it is not called.
        let called =
            tokio::task::spawn_blocking(move || if code.holds() { pool.call(&rows).map(Some) } else { Ok(None) }).await;
        let called = called.unwrap_or_else(|_| Err(OperatorError::engine("a call's thread panicked")));
        // Also after the call: a file that changed in the meantime may have given the answer.
        let called = called.map_err(|error| self.failed(error))?.filter(|_| self.code.holds());
        let Some(mut called) = called else {
            let message = "a file of the function changed while it was called".to_owned();
            // As cancelled: the row is left for a run that knows the new files.
            return Err(CallFailure::new(FailureKind::Cancelled, message, None));
        };
        let Some(called) = called.pop() else {
            return Err(CallFailure::new(FailureKind::Data, NO_ANSWER.to_owned(), None));
        };
        let failure = match returned(called) {
            Err(failure) => failure,
            Ok(text) => match fits(&text) {
                Ok(()) => return Ok(text),
                Err(message) => Failure { why: Why::Unfit, message, detail: None },
            },
        };
        // An exception is repeated only if the pipeline asks for it.
        let kind = if context.retry().stated { failure.why.kind() } else { FailureKind::Refused };
        // What these arguments cause says nothing of others: it does not end the calls of the node.
        Err(CallFailure { counts: Counts::Never, ..CallFailure::new(kind, failure.message, failure.detail) })
    }

    fn failed(&self, error: OperatorError) -> CallFailure {
        let message = error.message.clone();
        if error.blame == Blame::Cancelled {
            return CallFailure::new(FailureKind::Cancelled, message, None);
        }
        // The first one stays; it fails the node (`Tool::fault`).
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        CallFailure { same_for_all: true, ..CallFailure::new(FailureKind::Refused, message, None) }
    }
}

/// A function as a tool.
pub(super) struct FunctionTool {
    params: FunctionParams,
    function: FunctionService,
    /// Where the results are in a list that the function returned, and in a single one.
    places: [ResultPlaces; 2],
    layout: Layout,
}

impl FunctionTool {
    pub(super) fn open(
        params: &FunctionParams,
        place: usize,
        layout: Layout,
        fault: &Fault,
        context: &Context,
    ) -> Result<Self, OperatorError> {
        // Names of the arguments that the model can give.
        let names = given(&params.parameters, &Value::Null).into_iter().map(|(name, _)| name).collect();
        let function = FunctionService::open(params.function(), names, place, fault, context)?;
        // The empty pointer is the whole answer (RFC 6901, section 5): the list itself.
        let [list, id, title, score] = ["", "/id", "/title", "/score"].map(|place| Some(place.to_owned()));
        let many = ResultPlaces { list, id, title, text: "/text".to_owned(), score };
        let one = ResultPlaces { list: None, ..many.clone() };
        Ok(Self { params: params.clone(), function, places: [many, one], layout })
    }

    /// Runs a call.
    pub(super) async fn call(&self, call: OfferedCall<'_>, context: &Context) -> Result<Called, RowFailure> {
        // An argument that is left out and `null` are the same call: Python gets `None` for both.
        let calling = Calling { tool: self, arguments: given(&self.params.parameters, call.arguments) };
        let request = self.function.request(&calling.arguments);
        self.function.service.call(call.tool, &calling, request, context).await
    }
}

/// Returns the arguments of a call that a tool has by its JSON Schema; those that were left out are null.
pub(super) fn given(schema: &Value, arguments: &Value) -> Map<String, Value> {
    let mut given = Map::new();
    for (name, _) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        given.insert(name.clone(), arguments.get(name).cloned().unwrap_or_default());
    }
    given
}

/// One call with its arguments.
struct Calling<'a> {
    tool: &'a FunctionTool,
    arguments: Map<String, Value>,
}

impl Exchange for Calling<'_> {
    type Answer = ToolResult;

    async fn attempt(&self, context: &Context, _: &Attempt) -> Result<String, CallFailure> {
        self.tool.function.attempt(&self.arguments, context, |text| self.read(text)?.map(drop)).await
    }

    fn read(&self, text: &str) -> Result<ToolResult, String> {
        let answer: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let [many, one] = &self.tool.places;
        let places = if answer.is_array() { many } else { one };
        Ok(results::placed(&answer, places, self.tool.params.max_chars, self.tool.layout))
    }
}
