//! Retrieval figures over ranked lists: MultiHop-RAG's fact metrics and recall of supporting documents by k.

use std::collections::BTreeMap;

use searchmill_schemas::{Evidence, Hit};
use searchmill_text::retrieval_metrics::{FactScores, GoldDocuments, GoldFacts};

use super::scored::QUESTION_TYPE;
use crate::shared::statistics::{Bootstrap, Clusters, Measure};

/// Gold evidence of one question, and the hits that contain it.
struct Lookup {
    question_type: String,
    facts: GoldFacts,
    documents: GoldDocuments,
    hits: Vec<Found>,
}

/// One hit: its rank, and the gold facts and documents it contains.
struct Found {
    rank: i32,
    facts: Vec<usize>,
    documents: Vec<usize>,
}

/// Collects hits; stores what each contains, not its text.
#[derive(Default)]
pub(crate) struct Retrieval {
    questions: BTreeMap<String, Lookup>,
    without_evidence: usize,
    strangers: usize,
}

/// Retrieval figures of one group of questions.
pub(crate) struct RetrievalGroup {
    /// `all` or `question_type=…`.
    pub(crate) name: String,
    /// `hits@4`, `map@10`, `recall@5`, `all_found@5`, …
    pub(crate) measures: Vec<Measure>,
}

/// Retrieval figures.
pub(crate) struct RetrievalFigures {
    /// The group `all` is first.
    pub(crate) groups: Vec<RetrievalGroup>,
    /// Recall, and share of questions with all documents found, at k = 1, 2, …
    pub(crate) curve: Vec<[f64; 2]>,
    /// Number of questions evaluated.
    pub(crate) questions: usize,
    /// Number of questions skipped because they have no evidence (null questions).
    pub(crate) without_evidence: usize,
    /// Number of questions with evidence but without hits; they score 0.
    pub(crate) without_hits: usize,
    /// Number of hits whose question is not in the question table; ignored.
    pub(crate) strangers: usize,
}

impl Retrieval {
    /// Adds a question, before its hits.
    pub(crate) fn expect(&mut self, id: &str, question_type: &str, evidence: &[Evidence]) {
        let facts = GoldFacts::new(evidence.iter().filter_map(|gold| gold.fact.as_deref()));
        let documents = evidence.iter().map(|gold| (gold.document_id.as_deref(), gold.title.as_deref()));
        let (question_type, documents) = (question_type.to_owned(), GoldDocuments::new(documents));
        self.questions.insert(id.to_owned(), Lookup { question_type, facts, documents, hits: Vec::new() });
    }

    /// Adds one hit, in any order.
    pub(crate) fn add(&mut self, hit: &Hit) {
        let Some(question) = self.questions.get_mut(&hit.question_id) else {
            self.strangers += 1;
            return;
        };
        // MultiHop-RAG's metrics end at rank 10, and looking for facts in a text is slow.
        let facts = if hit.rank <= 10 { question.facts.found_in(&hit.contents) } else { Vec::new() };
        let documents = question.documents.found_in(&hit.document_id, hit.title.as_deref());
        question.hits.push(Found { rank: hit.rank, facts, documents });
    }

    /// Computes the figures, with recall at each of `ks`.
    pub(crate) fn finish(mut self, ks: &[u32], bootstrap: &Bootstrap) -> RetrievalFigures {
        let before = self.questions.len();
        self.questions.retain(|_, lookup| !lookup.facts.is_empty() || !lookup.documents.is_empty());
        self.without_evidence = before - self.questions.len();
        let rows: Vec<Row> = self.questions.iter_mut().map(|(id, lookup)| Row::of(id, lookup)).collect();
        let mut by_type: BTreeMap<String, Vec<&Row>> = BTreeMap::new();
        for row in &rows {
            by_type.entry(format!("{QUESTION_TYPE}={}", row.question_type)).or_default().push(row);
        }
        let mut names: Vec<String> = FactScores::NAMES.map(str::to_owned).to_vec();
        for k in ks {
            names.extend([format!("recall@{k}"), format!("all_found@{k}")]);
        }
        let all = ("all".to_owned(), rows.iter().collect());
        let mut groups = Vec::new();
        for (index, (name, rows)) in std::iter::once(all).chain(by_type).enumerate() {
            let clusters = Clusters::new(names.len(), rows.iter().map(|row| (row.id, row.values(ks))));
            // The fourth of a group's streams: see `measure`.
            let measures = clusters.measures(names.iter().cloned(), bootstrap, index as u64 * 4 + 3);
            groups.push(RetrievalGroup { name, measures });
        }
        RetrievalFigures {
            groups,
            curve: curve(&rows, ks),
            questions: rows.len(),
            without_evidence: self.without_evidence,
            without_hits: rows.iter().filter(|row| row.documents.is_empty()).count(),
            strangers: self.strangers,
        }
    }
}

/// The list of one question, best hit first.
struct Row<'a> {
    id: &'a str,
    question_type: &'a str,
    scores: Option<FactScores>,
    gold: &'a GoldDocuments,
    documents: Vec<Vec<usize>>,
}

impl<'a> Row<'a> {
    fn of(id: &'a str, lookup: &'a mut Lookup) -> Self {
        lookup.hits.sort_by_key(|hit| hit.rank);
        let facts: Vec<_> = lookup.hits.iter_mut().map(|hit| std::mem::take(&mut hit.facts)).collect();
        let documents = lookup.hits.iter_mut().map(|hit| std::mem::take(&mut hit.documents)).collect();
        // A question with gold documents alone has no fact metrics; scores of 0 would lower the means.
        let scores = (!lookup.facts.is_empty()).then(|| lookup.facts.score(&facts));
        Self { id, question_type: &lookup.question_type, scores, gold: &lookup.documents, documents }
    }

    fn values(&self, ks: &[u32]) -> Vec<Option<f64>> {
        let mut values = self.scores.map_or(vec![None; 4], |scores| scores.values().map(Some).to_vec());
        for &k in ks {
            // A question with facts alone has no documents to recall.
            if self.gold.is_empty() {
                values.extend([None, None]);
                continue;
            }
            let found = self.gold.recall(&self.documents, k as usize);
            values.extend([Some(found.recall), Some(found.all_found)]);
        }
        values
    }
}

/// Maximum number of points in the curve.
const CURVE_POINTS: u32 = 50;

fn curve(rows: &[Row], ks: &[u32]) -> Vec<[f64; 2]> {
    let rows: Vec<_> = rows.iter().filter(|row| !row.gold.is_empty()).collect();
    let deepest = if rows.is_empty() { 0 } else { ks.iter().copied().max().unwrap_or(0).min(CURVE_POINTS) };
    let mut points = Vec::new();
    for k in 1..=deepest as usize {
        let mut sums = [0.0; 2];
        for row in &rows {
            let found = row.gold.recall(&row.documents, k);
            sums = [sums[0] + found.recall, sums[1] + found.all_found];
        }
        points.push(sums.map(|sum| sum / rows.len() as f64));
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(question: &str, rank: i32, document: &str, contents: &str) -> Hit {
        Hit {
            id: format!("{question}@{rank}"),
            question_id: question.into(),
            query: "q".into(),
            rank,
            score: 1.0,
            chunk_id: format!("{document}#0"),
            document_id: document.into(),
            title: None,
            contents: contents.into(),
            sources: Vec::new(),
        }
    }

    fn gold(document: &str, fact: &str) -> Evidence {
        Evidence { document_id: Some(document.into()), title: None, fact: Some(fact.into()) }
    }

    fn value(figures: &RetrievalFigures, group: usize, name: &str) -> f64 {
        crate::shared::statistics::named(&figures.groups[group].measures, name).unwrap().value
    }

    #[test]
    fn lists_in_any_order_give_the_figures_of_their_ranks() {
        let mut retrieval = Retrieval::default();
        retrieval.expect("a", "bridge", &[gold("d1", "one"), gold("d2", "two")]);
        retrieval.expect("b", "bridge", &[gold("d3", "three")]);
        retrieval.expect("c", "null", &[]);
        let hits = [
            hit("a", 2, "d2", "it is two"),
            hit("a", 1, "d1", "on e"),
            hit("x", 1, "d1", "one"),
            hit("c", 1, "d1", ""),
        ];
        for hit in &hits {
            retrieval.add(hit);
        }
        let figures = retrieval.finish(&[1, 2], &Bootstrap { resamples: 10, confidence: 0.95, seed: 0 });
        assert_eq!(
            (figures.questions, figures.without_evidence, figures.without_hits, figures.strangers),
            (2, 1, 1, 1)
        );
        assert_eq!(value(&figures, 0, "map@10"), 0.375, "0.75 for a, 0 for b");
        assert_eq!(value(&figures, 0, "recall@1"), 0.25);
        assert_eq!(value(&figures, 0, "all_found@2"), 0.5);
        assert_eq!(figures.groups[1].name, "question_type=bridge");
        assert_eq!(figures.curve, [[0.25, 0.0], [0.5, 0.5]]);
    }

    #[test]
    fn nothing_expected_gives_nothing() {
        let figures = Retrieval::default().finish(&[2], &Bootstrap { resamples: 10, confidence: 0.95, seed: 0 });
        assert!(figures.groups[0].measures.is_empty() && figures.curve.is_empty());
    }
}
