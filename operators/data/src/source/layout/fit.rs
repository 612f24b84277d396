//! Which layouts fit given records: for the message about a file whose layout is wrong.

use searchmill_schemas::RecordKind;
use serde_json::Value;

use super::Layout;

/// Sets of fields, as JSON pointers; a record in a layout has all fields of one set.
type Typical = &'static [&'static [&'static str]];

impl Layout {
    /// All layouts of records, in the order of the reference, with their typical fields: those of questions, or of all
    /// kinds, then those of the other kind if it has others.
    const TYPICAL: [(Self, Typical, Typical); 24] = [
        (Self::Hotpotqa, &[&["/question", "/context", "/level"], &["/question", "/metadata/context/sentences"]], &[]),
        (
            Self::TwoWikiMultihopqa,
            &[&["/question", "/context", "/evidences"], &["/question", "/metadata/context/content"]],
            &[],
        ),
        (Self::Musique, &[&["/question", "/paragraphs"], &["/question", "/metadata/question_decomposition"]], &[]),
        (Self::Bamboogle, &[&["/idx", "/question", "/answer"], &["/Question", "/Answer"]], &[]),
        (
            Self::R1Searcher,
            &[&["/idx", "/question", "/answer", "/gen_text_store"], &["/idx", "/pred_anses"]],
            &[&["/question", "/answer", "/gen_text_store"]],
        ),
        (Self::DeepsearchRl, &[&["/messages", "/question", "/golden_answers", "/pred"]], &[]),
        (Self::Atif, &[&["/schema_version", "/agent", "/steps"]], &[]),
        (Self::Inspect, &[&["/id", "/epoch", "/input", "/messages"]], &[]),
        (Self::Verifiers, &[&["/task", "/ok", "/traces"], &["/task", "/agent", "/nodes"]], &[]),
        (Self::NemoGym, &[&["/responses_create_params/input", "/response/output"]], &[]),
        (Self::SearchLm, &[&["/messages", "/query_id", "/pred"], &["/messages", "/prob"]], &[]),
        (Self::NqOpen, &[&["/question", "/answer"]], &[]),
        (Self::Triviaqa, &[&["/Question", "/Answer/Value"], &["/question", "/answer/value"]], &[]),
        (Self::Popqa, &[&["/question", "/possible_answers"]], &[]),
        (Self::Longbench, &[&["/input", "/context", "/answers", "/dataset"]], &[]),
        (Self::Kilt, &[&["/input", "/output"]], &[&["/wikipedia_id", "/wikipedia_title", "/text"]]),
        (Self::BrowsecompPlus, &[&["/query_id", "/query", "/answer"]], &[&["/docid", "/text"]]),
        (Self::Dpr, &[&["/id", "/text", "/title"]], &[]),
        (Self::Colbert, &[&["/pid", "/passage"]], &[]),
        (Self::Flashrag, &[&["/question", "/golden_answers"]], &[&["/contents"]]),
        (
            Self::MultihopRag,
            &[&["/query", "/evidence_list"], &["/question", "/golden_answers", "/metadata/evidence_list"]],
            &[&["/title", "/body"]],
        ),
        (Self::Beir, &[&["/_id", "/text"]], &[&["/_id", "/text", "/title"]]),
        (Self::Hipporag, &[&["/title", "/text"]], &[]),
        // Any member whose value is a list is a passage.
        (Self::TitleSentences, &[], &[]),
    ];

    /// Returns the layouts that produce rows of this kind.
    pub fn of_kind(kind: RecordKind) -> impl Iterator<Item = Self> {
        let all = Self::TYPICAL.into_iter().map(|(layout, ..)| layout);
        all.filter(move |layout| layout.kinds().contains(&kind))
    }

    /// Returns its name in YAML.
    pub fn name(self) -> String {
        match serde_json::to_value(self) {
            Ok(Value::String(name)) => name,
            _ => String::new(),
        }
    }

    /// Returns how many typical fields of the layout the record has (0: it is not in this layout, or the layout is none of
    /// [`Layout::of_kind`]). `record` is the record on `line` as [`Layout::cut`] cuts it.
    pub fn fit(self, kind: RecordKind, line: u64, record: &Value) -> usize {
        let Some((_, first, second)) = Self::TYPICAL.into_iter().find(|(layout, ..)| *layout == self) else { return 0 };
        let sets = if kind == RecordKind::Question || second.is_empty() { first } else { second };
        let mut most = 0;
        for fields in sets {
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
        assert_eq!(names, Layout::TYPICAL.into_iter().map(|(layout, ..)| layout.name()).collect());
    }
}
