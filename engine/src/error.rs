//! Operator errors, and who can fix them.

use searchmill_schemas::SchemaError;
use serde::{Deserialize, Serialize};

/// Who can fix the error; decides the exit code and the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// The YAML asks for something impossible.
    Pipeline,
    /// The input data is invalid.
    Data,
    /// Disk, network, memory, a missing program.
    Machine,
    /// A bug in searchmill.
    Engine,
    /// Not an error: the run was stopped.
    Cancelled,
    /// A source changed while it was read: nothing is recorded, and the node runs again.
    Changed,
}

/// The error of an operator.
#[derive(Clone, Debug, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct OperatorError {
    /// Who can fix it.
    pub blame: Blame,
    /// What happened, for the user.
    pub message: String,
    /// How to fix it.
    pub help: Option<String>,
}

impl OperatorError {
    fn new(blame: Blame, message: impl Into<String>) -> Self {
        Self { blame, message: message.into(), help: None }
    }

    /// An error in the YAML.
    pub fn pipeline(message: impl Into<String>) -> Self {
        Self::new(Blame::Pipeline, message)
    }

    /// An error in the data.
    pub fn data(message: impl Into<String>) -> Self {
        Self::new(Blame::Data, message)
    }

    /// An error of the machine.
    pub fn machine(message: impl Into<String>) -> Self {
        Self::new(Blame::Machine, message)
    }

    /// A bug in searchmill.
    pub fn engine(message: impl Into<String>) -> Self {
        Self::new(Blame::Engine, message)
    }

    /// The run was stopped.
    pub fn cancelled() -> Self {
        Self::new(Blame::Cancelled, "interrupted")
    }

    /// A source changed while it was read.
    pub fn changed(what: &str) -> Self {
        Self::new(Blame::Changed, format!("`{what}` changed while it was read"))
    }

    /// Returns the message with its help, for one line.
    pub fn text(&self) -> String {
        self.help.as_ref().map_or_else(|| self.message.clone(), |help| format!("{} ({help})", self.message))
    }

    /// Adds help.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl From<SchemaError> for OperatorError {
    fn from(error: SchemaError) -> Self {
        Self::data(error.0)
    }
}

impl From<std::io::Error> for OperatorError {
    fn from(error: std::io::Error) -> Self {
        Self::machine(error.to_string())
    }
}

impl From<arrow::error::ArrowError> for OperatorError {
    fn from(error: arrow::error::ArrowError) -> Self {
        Self::data(error.to_string())
    }
}

impl From<parquet::errors::ParquetError> for OperatorError {
    fn from(error: parquet::errors::ParquetError) -> Self {
        // I/O errors are the machine's, whatever the files contain.
        let io = matches!(&error, parquet::errors::ParquetError::External(cause) if cause.is::<std::io::Error>());
        Self::new(if io { Blame::Machine } else { Blame::Data }, error.to_string())
    }
}

impl From<datafusion::error::DataFusionError> for OperatorError {
    fn from(error: datafusion::error::DataFusionError) -> Self {
        use datafusion::error::DataFusionError as Cause;
        let blame = match error.find_root() {
            Cause::ResourcesExhausted(_) => {
                let help = "set more in the node's `resources: {memory: …}` (512 MiB unless set)";
                return Self::machine("the query needs more memory than it may use").with_help(help);
            }
            Cause::IoError(_) | Cause::ObjectStore(_) => Blame::Machine,
            Cause::ArrowError(..) | Cause::ParquetError(_) | Cause::Execution(_) => Blame::Data,
            _ => Blame::Pipeline,
        };
        Self::new(blame, error.strip_backtrace())
    }
}

/// Returns the innermost cause of an error; the outer ones often repeat the address.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Returns the message for missing credentials. Without credentials, cloud clients query the metadata service of a
/// virtual machine. Elsewhere that fails with an address that explains nothing.
pub fn missing_credentials(told: &str) -> Option<&'static str> {
    let metadata = ["169.254.169.254", "metadata.google.internal"];
    metadata.iter().any(|address| told.contains(address)).then_some(
        "no credentials are set: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (s3://), \
         GOOGLE_APPLICATION_CREDENTIALS (gs://), or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (az://) in \
         the environment",
    )
}

#[cfg(test)]
mod tests {
    use super::missing_credentials;

    #[test]
    fn a_metadata_service_that_is_not_there_means_missing_credentials() {
        let told = "Generic S3 error: error sending request for url (http://169.254.169.254/latest/api/token)";
        assert!(missing_credentials(told).is_some_and(|said| said.contains("AWS_ACCESS_KEY_ID")));
        assert_eq!(missing_credentials("connection refused"), None);
    }
}
