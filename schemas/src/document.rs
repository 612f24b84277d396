//! `document`: a text with an id and a title.

use serde::{Deserialize, Serialize};

use crate::described::described;

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// A text with an id and a title.
    pub struct Document {
        /// Unique in its table.
        pub id: String,
        /// Title, without markup.
        pub title: Option<String>,
        /// Body, without the title.
        pub text: String,
        /// All other fields of the source, as a JSON object.
        pub metadata: Option<String>,
    }
}
