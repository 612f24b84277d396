//! Observations of services beside the endpoint: an equal call is paid once, whatever row, node or model makes it.

use std::time::Duration;

use super::calls::Call;
use super::context::Context;
use crate::endpoint::{Begun, EndpointSession, FailureKind, KeptCall, RowFailure, Usage};

/// Time between the end of a program's connections and of its process.
const ENDING: Duration = Duration::from_millis(100);

/// What a row observes of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed<A> {
    /// The answer, new or remembered.
    Answer(A),
    /// Why there is none. The row meets the same failure again if its run is killed and resumed.
    Failed {
        /// Error message.
        message: String,
        /// Usage of the failed attempts.
        usage: Usage,
    },
}

impl Context {
    /// Returns the remembered answer of a service, or makes the call. `service` is its place in
    /// [`Declaration::observes`](super::Declaration::observes). An answer is remembered by its request alone. A failure
    /// that `told` accepts is an observation, too: it is remembered for this row only, so that a resumed row sees what
    /// it saw, and other rows call again.
    ///
    /// # Errors
    /// Fails if `told` does not accept the failure, the budget is used up, or the run stops.
    pub async fn observe<C: Call>(
        &self,
        service: usize,
        call: &C,
        told: impl Fn(&RowFailure) -> bool,
    ) -> Result<Observed<C::Answer>, RowFailure> {
        // Without a driver, it is a call like others.
        let Some(session) = self.session().observed.get(service).cloned() else {
            return observed(self.call(call).await, told);
        };
        let mut open = None;
        if let Some(failures) = &session.failures {
            match failures.begin(call.request(), &|_| true).await {
                Begun::Known(kept) => {
                    let message = String::from_utf8_lossy(&kept.response).into_owned();
                    return Ok(Observed::Failed { message, usage: kept.usage });
                }
                Begun::Ask(begun) => open = Some(begun),
                Begun::Failed(message) => return Err(RowFailure::new(FailureKind::Cancelled, message)),
            }
        }
        let (limiter, caller, journal) = (session.limiter, session.caller, session.journal);
        let session = EndpointSession { limiter, caller, journal, observed: Vec::new(), ..self.session().clone() };
        let outcome = observed(self.clone().with_session(session).call(call).await, told)?;
        if let Observed::Failed { message, usage } = &outcome {
            // What fails because a service of the node has ended is no observation: the row is neither done nor failed.
            if let Some(alive) = &self.session().services {
                // Its connections end before the process does.
                tokio::time::sleep(ENDING).await;
                if !alive() {
                    return Err(RowFailure::new(FailureKind::Cancelled, "a service of the node has ended"));
                }
            }
            if let Some(open) = &open {
                let usage = usage.at(call.prices());
                open.keep(&KeptCall { response: message.clone().into_bytes(), usage });
            }
        }
        Ok(outcome)
    }
}

fn observed<A>(outcome: Result<A, RowFailure>, told: impl Fn(&RowFailure) -> bool) -> Result<Observed<A>, RowFailure> {
    match outcome {
        Ok(answer) => Ok(Observed::Answer(answer)),
        Err(failure) if !failure.kind.is_postponed() && told(&failure) => {
            Ok(Observed::Failed { message: failure.message, usage: failure.usage })
        }
        Err(failure) => Err(failure),
    }
}
