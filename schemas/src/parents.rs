//! Columns of a kind that hold the ids of parent rows.

use crate::record::RecordKind;

/// A column with ids of parents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParentColumn {
    /// Column name, and field names below it if it is nested (lists are traversed).
    pub path: &'static [&'static str],
    /// Kind of the parents; `None`: the kind of the main input.
    pub kind: Option<RecordKind>,
}

const fn of(path: &'static [&'static str], kind: RecordKind) -> ParentColumn {
    ParentColumn { path, kind: Some(kind) }
}

const DOCUMENT: ParentColumn = of(&["document_id"], RecordKind::Document);
const CHUNK: ParentColumn = of(&["chunk_id"], RecordKind::Chunk);
const QUESTION: ParentColumn = of(&["question_id"], RecordKind::Question);
const TRAJECTORY: ParentColumn = of(&["trajectory_id"], RecordKind::Trajectory);
const CHOSEN: ParentColumn = of(&["chosen_id"], RecordKind::Trajectory);
const REJECTED: ParentColumn = of(&["rejected_id"], RecordKind::Trajectory);
const SHOWN: ParentColumn = of(&["messages", "observations", "chunk_id"], RecordKind::Chunk);

impl RecordKind {
    /// Columns with the ids of the rows that a row of this kind was derived from. Open tables are matched by column
    /// names. A `metric` row depends on all rows of its node's inputs and names none.
    pub fn parents(self) -> &'static [ParentColumn] {
        match self {
            Self::Document | Self::Question | Self::Metric => &[],
            Self::Chunk => &[DOCUMENT],
            Self::Hit => &[QUESTION, CHUNK],
            Self::Trajectory => &[QUESTION, SHOWN],
            Self::Score => &[TRAJECTORY],
            Self::Pair => &[CHOSEN, REJECTED],
            Self::Example => &[TRAJECTORY, QUESTION],
            Self::Reject => &[ParentColumn { path: &["id"], kind: None }],
            Self::Table => &[TRAJECTORY, QUESTION, CHUNK, DOCUMENT],
        }
    }
}

/// Returns the original id of a repeated row: `q1@0` for `q1@0~2`.
pub fn repeated_id(id: &str) -> Option<&str> {
    let (first, number) = id.rsplit_once('~')?;
    // A user's own id may hold a `~`: only digits behind it number a repeat.
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !first.is_empty()).then_some(first)
}

/// Returns the id of a row that was gathered from an input of that name: `q1@0~size=100` for `q1@0`.
pub fn gathered(id: &str, input: &str) -> String {
    format!("{id}~{input}")
}

/// Returns the id that [`gathered`] was given, if `id` was gathered from that input.
pub fn gathered_id<'i>(id: &'i str, input: &str) -> Option<&'i str> {
    id.strip_suffix(input)?.strip_suffix('~').filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::DataType;

    use super::*;

    /// Returns the type at a path, traversing lists.
    fn at(mut data_type: DataType, path: &[&str]) -> Option<DataType> {
        let mut path = path.iter();
        loop {
            data_type = match data_type {
                DataType::List(item) => item.data_type().clone(),
                DataType::Struct(fields) => {
                    let name = path.next()?;
                    fields.iter().find(|field| field.name() == name)?.data_type().clone()
                }
                other => return path.next().is_none().then_some(other),
            };
        }
    }

    #[test]
    fn every_parent_column_is_a_text_column_of_its_kind() {
        for kind in RecordKind::ALL.into_iter().filter(|kind| *kind != RecordKind::Table) {
            let columns = DataType::Struct(kind.schema().fields().clone());
            for parent in kind.parents() {
                assert_eq!(at(columns.clone(), parent.path), Some(DataType::Utf8), "{kind}: {:?}", parent.path);
            }
        }
    }

    #[test]
    fn gathered_rows_know_their_id_in_the_input() {
        let id = gathered("q1@0", "size=100,k=5");
        assert_eq!((id.as_str(), gathered_id(&id, "size=100,k=5")), ("q1@0~size=100,k=5", Some("q1@0")));
        assert_eq!(
            (gathered_id(&id, "k=5"), gathered_id("~k=5", "k=5"), gathered_id("k=5", "k=5")),
            (None, None, None)
        );
    }

    #[test]
    fn repeats_know_their_first() {
        assert_eq!(repeated_id("q1@0~2"), Some("q1@0"));
        assert_eq!(repeated_id("q~1~2"), Some("q~1"));
        assert_eq!(
            (repeated_id("q1@0"), repeated_id("~1"), repeated_id("a~b"), repeated_id("a~")),
            (None, None, None, None)
        );
    }
}
