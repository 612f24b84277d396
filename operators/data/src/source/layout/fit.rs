//! Which layouts fit given records: for the message about a file whose layout is wrong.

use searchmill_schemas::RecordKind;
use serde_json::Value;

use super::Layout;

impl Layout {
    /// All layouts of records, in the order of the reference.
    const ALL: [Self; 24] = [
        Self::Hotpotqa,
        Self::TwoWikiMultihopqa,
        Self::Musique,
        Self::Bamboogle,
        Self::R1Searcher,
        Self::DeepsearchRl,
        Self::Atif,
        Self::Inspect,
        Self::Verifiers,
        Self::NemoGym,
        Self::SearchLm,
        Self::NqOpen,
        Self::Triviaqa,
        Self::Popqa,
        Self::Longbench,
        Self::Kilt,
        Self::BrowsecompPlus,
        Self::Dpr,
        Self::Colbert,
        Self::Flashrag,
        Self::MultihopRag,
        Self::Beir,
        Self::Hipporag,
        Self::TitleSentences,
    ];

    /// Returns the layouts that produce rows of this kind.
    pub fn of_kind(kind: RecordKind) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |layout| layout.kinds().contains(&kind))
    }

    /// Returns its name in YAML.
    pub fn name(self) -> String {
        match serde_json::to_value(self) {
            Ok(Value::String(name)) => name,
            _ => String::new(),
        }
    }

    /// Returns how many typical fields of the layout the record has (0: it is not in this layout). `record` is the record
    /// on `line` as [`Layout::cut`] cuts it.
    pub fn fit(self, kind: RecordKind, line: u64, record: &Value) -> usize {
        let mut most = 0;
        for fields in self.typical(kind) {
            if fields.iter().all(|field| !matches!(record.pointer(field), None | Some(Value::Null))) {
                most = most.max(fields.len());
            }
        }
        if most == 0 {
            return 0;
        }
        // Other records may have the same names with other content.
        let is_read = match kind {
            RecordKind::Question => self.question(0, record.clone()).is_ok(),
            RecordKind::Trajectory => self.trajectory(0, record.clone()).is_ok(),
            _ => self.documents(0, line, record.clone()).is_ok_and(|rows| !rows.is_empty() || line == 1),
        };
        if is_read { most } else { 0 }
    }

    /// Returns sets of fields, as JSON pointers; a record in this layout has all fields of one set.
    fn typical(self, kind: RecordKind) -> &'static [&'static [&'static str]] {
        let question = kind == RecordKind::Question;
        match self {
            Self::Hotpotqa => &[&["/question", "/context", "/level"], &["/question", "/metadata/context/sentences"]],
            Self::TwoWikiMultihopqa => {
                &[&["/question", "/context", "/evidences"], &["/question", "/metadata/context/content"]]
            }
            Self::Musique => &[&["/question", "/paragraphs"], &["/question", "/metadata/question_decomposition"]],
            Self::Bamboogle => &[&["/idx", "/question", "/answer"], &["/Question", "/Answer"]],
            Self::DeepsearchRl => &[&["/messages", "/question", "/golden_answers", "/pred"]],
            Self::Atif => &[&["/schema_version", "/agent", "/steps"]],
            Self::Inspect => &[&["/id", "/epoch", "/input", "/messages"]],
            Self::Verifiers => &[&["/task", "/ok", "/traces"], &["/task", "/agent", "/nodes"]],
            Self::NemoGym => &[&["/responses_create_params/input", "/response/output"]],
            Self::SearchLm => &[&["/messages", "/query_id", "/pred"], &["/messages", "/prob"]],
            Self::R1Searcher if kind == RecordKind::Trajectory => &[&["/question", "/answer", "/gen_text_store"]],
            Self::R1Searcher => &[&["/idx", "/question", "/answer", "/gen_text_store"], &["/idx", "/pred_anses"]],
            Self::NqOpen => &[&["/question", "/answer"]],
            Self::Triviaqa => &[&["/Question", "/Answer/Value"], &["/question", "/answer/value"]],
            Self::Popqa => &[&["/question", "/possible_answers"]],
            Self::Longbench | Self::LongbenchE => &[&["/input", "/context", "/answers", "/dataset"]],
            Self::Kilt if question => &[&["/input", "/output"]],
            Self::Kilt => &[&["/wikipedia_id", "/wikipedia_title", "/text"]],
            Self::BrowsecompPlus if question => &[&["/query_id", "/query", "/answer"]],
            Self::BrowsecompPlus => &[&["/docid", "/text"]],
            Self::Dpr => &[&["/id", "/text", "/title"]],
            Self::Colbert => &[&["/pid", "/passage"]],
            Self::Flashrag if question => &[&["/question", "/golden_answers"]],
            Self::Flashrag => &[&["/contents"]],
            Self::MultihopRag if question => {
                &[&["/query", "/evidence_list"], &["/question", "/golden_answers", "/metadata/evidence_list"]]
            }
            Self::MultihopRag => &[&["/title", "/body"]],
            Self::Beir if question => &[&["/_id", "/text"]],
            Self::Beir => &[&["/_id", "/text", "/title"]],
            Self::Hipporag => &[&["/title", "/text"]],
            // Any member whose value is a list is a passage.
            Self::TitleSentences | Self::Files => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_layout_is_tried() {
        let schema = serde_json::to_value(schemars::schema_for!(Layout)).unwrap();
        let names = schema["oneOf"].as_array().unwrap().iter().map(|one| one["const"].as_str().unwrap().to_owned());
        let mut names: BTreeSet<String> = names.collect();
        assert!(names.remove("longbench-e"), "it has the fields of `longbench`");
        assert!(names.remove("files"), "it has no records");
        assert_eq!(names, Layout::ALL.into_iter().map(Layout::name).collect());
    }
}
