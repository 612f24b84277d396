//! What remembered rows and answers cost.

use super::memo::Memo;
use crate::operator::Usage;

impl Memo {
    /// Calls behind everything that is kept here, failed attempts included. Reads every record.
    #[must_use]
    pub fn calls(&self) -> u64 {
        let payloads = self.keys().flat_map(|key| self.payloads(key));
        payloads.filter_map(|payload| usage(&payload)).map(|usage| usage.calls).sum()
    }
}

/// Rows and answers both begin with a line of JSON that holds their usage.
fn usage(payload: &[u8]) -> Option<Usage> {
    let end = payload.iter().position(|byte| *byte == b'\n')?;
    serde_json::from_slice(&payload[..end]).ok()
}
