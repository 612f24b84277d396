//! What operators with a policy share: its declaration, its input `model`, and its opening.

use std::sync::Arc;

use searchmill_engine::operator::{
    Accept, Arity, Context, Declaration, Inputs, OperatorError, Ports, Source, TreeKind,
};
use serde_json::Value;

use super::endpoint::Endpoint;
use super::evidence::EvidenceTeacher;
use super::model::{LocalModel, ModelParams};
use super::params::{EndpointParams, EvidenceParams, PolicyParams};
use super::{ChatModel, Policy};
use crate::protocol::{PlainChat, Protocol};
use crate::tokens::RewrittenHistory;

impl EndpointParams {
    /// Opens the model for a plain chat.
    pub(crate) fn open_chat(
        &self,
        response_format: Option<Value>,
        context: &Context,
    ) -> Result<Endpoint, OperatorError> {
        let mut params = self.clone();
        if let Some(format) = response_format {
            // As a part of the body it is also a part of what identifies each call.
            params.extra.insert("response_format".to_owned(), format);
        }
        Endpoint::open(&params, Arc::new(PlainChat), None, context)
    }
}

impl PolicyParams {
    /// Declares what the policy reads, fetches and calls, and where its answers are repeatable.
    pub fn declared(&self, declaration: Declaration) -> Declaration {
        let declaration = declaration.repeatability(self.repeatability());
        match self {
            Self::Endpoint(endpoint) => {
                let identity = endpoint.identify_by_url.then(|| Source::Identity(endpoint.address().to_owned()));
                declaration.endpoint(Some(endpoint.endpoint())).reads(move |_| identity.iter().cloned().collect())
            }
            Self::Model(model) => model.source().declared(declaration),
            Self::Evidence(_) => declaration,
        }
    }

    /// Adds the input `model`, if the policy takes one.
    pub fn with_port(&self, ports: Ports) -> Ports {
        let Self::Model(model) = self else { return ports };
        let arity = if model.model.is_some() { Arity::AnyNumber } else { Arity::Many };
        let about = "Policy `model` only: the model and optionally an adapter for it, in any order. Of several whole models, the last.";
        ports.input_of("model", Accept::Tree(TreeKind::Model), arity, about)
    }

    /// Returns the policy with random choices that depend on the seed of the node as well (0: they stay as they are). Calls
    /// to an endpoint are told apart by that seed without it.
    #[must_use]
    pub fn drawn_by(&self, node: u64) -> Self {
        // The factor spreads small seeds over all bits (SplitMix64), so that two seeds seldom add up to the same.
        let spread = node.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut policy = self.clone();
        match &mut policy {
            Self::Model(ModelParams { seed, .. }) | Self::Evidence(EvidenceParams { seed, .. }) => {
                *seed = seed.wrapping_add(spread);
            }
            // A server draws by itself: the node's seed is not added to its param `seed`.
            Self::Endpoint(_) => {}
        }
        policy
    }

    /// Opens the policy; `record`: it records tokens, and this happens to rewritten history.
    ///
    /// # Errors
    /// If a secret is unknown, or the model cannot be loaded.
    pub fn open(
        &self,
        protocol: Arc<dyn Protocol>,
        tool: &str,
        record: Option<RewrittenHistory>,
        inputs: &Inputs,
        context: &Context,
    ) -> Result<Box<dyn Policy>, OperatorError> {
        Ok(match self {
            Self::Endpoint(endpoint) => Box::new(Endpoint::open(endpoint, protocol, record, context)?),
            Self::Evidence(evidence) => Box::new(EvidenceTeacher { params: evidence.clone(), protocol }),
            Self::Model(model) => Box::new(LocalModel::open(model, inputs, protocol, tool, record, context)?),
        })
    }

    /// Opens the model for a plain chat; an endpoint is sent the `response_format`, if there is one.
    ///
    /// # Errors
    /// If a secret is unknown, the model cannot be loaded, or the policy is no model.
    pub fn open_chat(
        &self,
        response_format: Option<Value>,
        inputs: &Inputs,
        context: &Context,
    ) -> Result<Box<dyn ChatModel>, OperatorError> {
        Ok(match self {
            Self::Endpoint(endpoint) => Box::new(endpoint.open_chat(response_format, context)?),
            Self::Model(model) => Box::new(LocalModel::open(model, inputs, Arc::new(PlainChat), "", None, context)?),
            Self::Evidence(_) => return Err(OperatorError::pipeline("the evidence teacher answers no prompts")),
        })
    }
}
