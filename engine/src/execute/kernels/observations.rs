//! The observations of the services that a node calls beside its endpoint: known ones, new ones, and the failures that
//! its rows were told.

use std::sync::Arc;

use super::call_journal::{RowCalls, read_calls};
use crate::endpoint::{CallJournal, EndpointSession, EndpointUse};
use crate::error::OperatorError;
use crate::fingerprint::{Digest, RowKey};
use crate::operator::{Context, Declaration};
use crate::store::{CallCache, Store, StoreError};

/// The call caches of the services that a node observes, in the order of its declaration.
#[derive(Clone, Default)]
pub(crate) struct Observations {
    caches: Vec<Arc<CallCache>>,
}

impl Observations {
    pub(crate) fn new(caches: Vec<Arc<CallCache>>) -> Self {
        Self { caches }
    }

    /// Returns the remembered observations of an operator, outside a run; `base` is that of the calls to a service.
    pub(crate) fn kept(store: &Store, declaration: &Declaration, base: impl Fn(&EndpointUse) -> Digest) -> Self {
        let services = declaration.observed.iter();
        Self::new(services.map(|service| Arc::new(CallCache::new(store, &base(service)))).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.caches.is_empty()
    }

    pub(crate) fn caches(&self) -> &[Arc<CallCache>] {
        &self.caches
    }

    /// Returns the bases of the memos.
    pub(crate) fn bases(&self) -> Vec<Digest> {
        self.caches.iter().map(|calls| calls.base()).collect()
    }

    /// Adds the journals of a row to a session and returns them; without a row, those of the node before its rows.
    pub(super) fn join(&self, session: &mut EndpointSession, row: Option<&RowKey>, since: u64) -> Vec<Arc<RowCalls>> {
        session.observed.resize_with(self.caches.len(), Default::default);
        let mut journals = Vec::new();
        for (calls, observed) in self.caches.iter().zip(&mut session.observed) {
            // An observation is shared by all rows that ask for it; a failure stays with the row that met it.
            let by_content = Arc::new(RowCalls::by_content(Arc::clone(calls), since));
            let told = Arc::new(RowCalls::told(Arc::clone(calls), row, since));
            observed.journal = Some(Arc::clone(&by_content) as Arc<dyn CallJournal>);
            observed.failures = Some(Arc::clone(&told) as Arc<dyn CallJournal>);
            journals.extend([by_content, told]);
        }
        journals
    }

    /// Returns the context of a node before its rows.
    pub(crate) fn context(&self, context: Context, since: u64) -> Context {
        let mut session = context.session().clone();
        self.join(&mut session, None, since);
        context.with_session(session)
    }

    /// Repairs damage.
    ///
    /// # Errors
    /// Fails as [`read_calls`] does.
    pub(crate) fn read(&self, context: &Context) -> Result<(), OperatorError> {
        self.caches.iter().try_for_each(|calls| read_calls(calls, context))
    }

    /// Reports whether all observations were stored.
    ///
    /// # Errors
    /// Why one was not stored.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.caches.iter().try_for_each(|calls| calls.check())
    }

    /// Flushes to disk, and to the shared store if there is one.
    ///
    /// # Errors
    /// Fails if the disk or the shared store fails.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        self.caches.iter().try_for_each(|calls| calls.sync())
    }
}
