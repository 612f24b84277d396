//! `generate-world`: news about a fictional world, and questions about it that need several documents.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use arrow::array::RecordBatch;
use rayon::prelude::*;
use schemars::JsonSchema;
use searchmill_engine::operator::{
    BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs, ParamIssue, Ports,
};
use searchmill_schemas::{Document, Question, RecordKind, to_batch};
use searchmill_text::answer_metrics::{AnswerScores, answer_scores};
use searchmill_text::baseline::{Baselines, Gold};
use searchmill_world::{Draft, QuestionType, World, draft};
use serde::{Deserialize, Serialize};

/// Documents per batch; one thread generates a batch.
const BLOCK: u64 = 1024;
/// Rows per batch of questions.
const QUESTION_ROWS: usize = 4096;
/// Attempts per question before the world counts as exhausted.
const ATTEMPTS: u64 = 512;

/// Parameters of `generate-world`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Params {
    /// Number of documents, 100 to 1,000,000. A different number gives a different world, not a longer one.
    #[schemars(range(min = 100, max = 1_000_000))]
    pub documents: u64,
    /// Number of questions, 0 to 1,000,000. A larger number does not change the earlier questions.
    #[schemars(range(max = 1_000_000))]
    pub questions: u64,
    /// Shares of the question types; they need not sum to 1.
    pub question_types: TypeShares,
    /// Minimum number of facts needed for an answer, 1 to 4. Comparison and temporal questions need at least two.
    #[schemars(range(min = 1, max = 4))]
    pub min_hops: u64,
    /// Maximum number of facts needed for an answer, 1 to 4.
    #[schemars(range(min = 1, max = 4))]
    pub max_hops: u64,
    /// Misleading sentences per document, 0 to 8: asides about the subject, and others that look like answers.
    #[schemars(range(max = 8))]
    pub distractors: u64,
}

impl Default for Params {
    fn default() -> Self {
        let question_types = TypeShares::default();
        Self { documents: 300, questions: 200, question_types, min_hops: 2, max_hops: 3, distractors: 2 }
    }
}

/// Shares of the question types.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct TypeShares {
    /// Chains of relations: "In which city was the founder of … born?"
    pub inference: f64,
    /// Comparisons of two numbers: which is greater, or by how much.
    pub comparison: f64,
    /// Dated events: which came first, how many years apart, who employed a person at the time.
    pub temporal: f64,
    /// Questions that the documents do not answer: the golden answer is "Insufficient Information", without evidence.
    pub null: f64,
}

impl Default for TypeShares {
    fn default() -> Self {
        Self { inference: 0.35, comparison: 0.3, temporal: 0.25, null: 0.1 }
    }
}

impl TypeShares {
    fn of(&self, kind: QuestionType) -> f64 {
        match kind {
            QuestionType::Inference => self.inference,
            QuestionType::Comparison => self.comparison,
            QuestionType::Temporal => self.temporal,
            QuestionType::Null => self.null,
        }
    }

    fn sum(&self) -> f64 {
        QuestionType::ALL.into_iter().map(|kind| self.of(kind)).sum()
    }

    /// Type of each question in order: at any point, the count of each type is within one of its share.
    fn sequence(&self, questions: u64) -> Vec<QuestionType> {
        let total = self.sum();
        let mut counts = [0_u64; QuestionType::ALL.len()];
        let mut sequence = Vec::new();
        for number in 0..questions {
            // The type that lacks most of its share so far, of equal ones the first.
            let (mut next, mut most) = (0, f64::NEG_INFINITY);
            for (index, kind) in QuestionType::ALL.into_iter().enumerate() {
                let owed = self.of(kind) / total * (number + 1) as f64 - counts[index] as f64;
                if self.of(kind) > 0.0 && owed > most {
                    (next, most) = (index, owed);
                }
            }
            counts[next] += 1;
            sequence.push(QuestionType::ALL[next]);
        }
        sequence
    }
}

/// The operator `generate-world`.
pub struct GenerateWorld;

impl Operator for GenerateWorld {
    type Params = Params;
    const NAME: &'static str = "generate-world";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Invents a world of people, companies, cities, schools, works and awards, writes news \
        about it, and asks multi-hop questions whose answers and evidence are known. All names are made up, so no model \
        has read about them: answers must be retrieved. Data for tests, load tests and training, of any size, offline.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "A small world with a question set",
            yaml: "world: {op: generate-world, with: {documents: 300, questions: 200}}",
        },
        Example {
            title: "A hard world: chains of three and four facts, many misleading sentences, no comparison",
            yaml: "world: {op: generate-world, with: {documents: 20000, questions: 1000, min_hops: 3, max_hops: 4, \
                   distractors: 6, question_types: {inference: 0.6, comparison: 0, temporal: 0.3, \"null\": 0.1}}}",
        },
        Example {
            title: "A million documents for a load test",
            yaml: "world: {op: generate-world, with: {documents: 1000000, questions: 0}}",
        },
    ];

    fn declare(params: &Params) -> Declaration {
        let about = "questions with golden answers and the sentences that support them";
        let ports = Ports::new().rows_out("documents", RecordKind::Document, "the news, in random order");
        let ports = ports.rows_out("questions", RecordKind::Question, about);
        Declaration::seeded(ports).issues(issues(params)).gives_plain_columns()
    }

    fn open(params: &Params, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

fn issues(params: &Params) -> Vec<ParamIssue> {
    let checks = [
        ((100..=1_000_000).contains(&params.documents), "documents", "must be from 100 to 1,000,000"),
        (params.questions <= 1_000_000, "questions", "must be at most 1,000,000"),
        ((1..=4).contains(&params.min_hops), "min_hops", "must be from 1 to 4"),
        ((1..=4).contains(&params.max_hops), "max_hops", "must be from 1 to 4"),
        (params.min_hops <= params.max_hops, "min_hops", "must not be greater than `max_hops`"),
        (params.distractors <= 8, "distractors", "must be at most 8"),
    ];
    let failed = checks.into_iter().filter(|(holds, ..)| !holds);
    let mut issues: Vec<_> = failed.map(|(_, path, message)| ParamIssue::new(path, message)).collect();
    for kind in QuestionType::ALL {
        let share = params.question_types.of(kind);
        if !share.is_finite() || share < 0.0 {
            issues.push(ParamIssue::new(format!("question_types.{}", kind.name()), "must be a number from 0 up"));
        }
    }
    let has_types = params.question_types.sum() > 0.0;
    if !has_types {
        issues.push(ParamIssue::new("question_types", "one of the shares must be greater than 0"));
    }
    issues
}

impl BlockingKernel for Params {
    fn run(&self, _inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let world = World::new(context.seed(), self.documents, self.distractors);
        // Not the global pool, which has a thread per core: the node may have leased fewer.
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(context.threads())
            .build()
            .map_err(|error| OperatorError::machine(format!("cannot start threads: {error}")))?;
        // Before anything is written: a world may be too small for the questions.
        let drafts = self.drafts(&world, context)?;
        // Four blocks a thread, so that documents are written while memory holds only a part of them.
        let window = BLOCK * 4 * context.threads() as u64;
        for start in (0..world.documents).step_by(window as usize) {
            context.check_cancelled()?;
            let blocks: Vec<u64> = (start..world.documents.min(start + window)).step_by(BLOCK as usize).collect();
            let batches: Vec<_> = pool.install(|| blocks.par_iter().map(|block| block_of(&world, *block)).collect());
            for batch in batches {
                outputs.write("documents", &batch?)?;
            }
            context.progress().set(world.documents.min(start + window), world.documents, "documents");
        }
        report(&drafts, self, outputs);
        write_questions(drafts, &world, outputs)
    }
}

impl Params {
    /// Returns questions without duplicates, no answer too frequent.
    fn drafts(&self, world: &World, context: &Context) -> Result<Vec<Draft>, OperatorError> {
        let mut drafts = Vec::new();
        let (mut asked, mut answered) = (BTreeSet::new(), BTreeMap::<(QuestionType, String), usize>::new());
        for (number, kind) in self.question_types.sequence(self.questions).into_iter().enumerate() {
            context.check_cancelled()?;
            let hops = self.min_hops..=self.max_hops;
            // A frequent answer would raise the scores that are possible without reading a document: it has at most two
            // uses plus 1 % of the questions so far.
            let most = 2 + drafts.len() / 100;
            let mut attempts =
                (0..ATTEMPTS).filter_map(|attempt| draft(world, kind, hops.clone(), number as u64, attempt));
            let found = attempts.find(|draft| {
                let uses = answered.get(&(draft.kind, draft.answers[0].clone())).copied().unwrap_or(0);
                // All null questions have the same answer.
                !asked.contains(&draft.text) && (draft.kind == QuestionType::Null || uses < most)
            });
            let Some(draft) = found else {
                let (documents, kind) = (self.documents, kind.name());
                let message =
                    format!("a world of {documents} documents has no further {kind} question after {number} questions");
                let help = "ask for more `documents` or fewer `questions`, or widen `min_hops` to `max_hops`";
                return Err(OperatorError::pipeline(message).with_help(help));
            };
            asked.insert(draft.text.clone());
            *answered.entry((draft.kind, draft.answers[0].clone())).or_default() += 1;
            drafts.push(draft);
        }
        Ok(drafts)
    }
}

/// Builds one batch of documents.
fn block_of(world: &World, start: u64) -> Result<RecordBatch, OperatorError> {
    let end = world.documents.min(start + BLOCK);
    let documents: Vec<Document> = (start..end).map(|position| world.document(position)).collect();
    Ok(to_batch(&documents)?)
}

fn write_questions(drafts: Vec<Draft>, world: &World, outputs: &mut Outputs) -> Result<(), OperatorError> {
    let mut rows: Vec<Question> = Vec::new();
    for (number, draft) in drafts.into_iter().enumerate() {
        rows.push(draft.row(format!("q-{number:06}"), world));
        if rows.len() == QUESTION_ROWS {
            outputs.write_rows("questions", &rows)?;
            rows.clear();
        }
    }
    outputs.write_rows("questions", &rows)
}

/// A policy without retrieval, with its mean scores over all questions: one of `evaluate`'s baselines, or one that chooses
/// from the alternatives in the question.
#[derive(Clone, Debug, PartialEq)]
struct Unread {
    name: &'static str,
    /// Description of its answers.
    about: &'static str,
    /// Exact match, from 0 to 1.
    em: f64,
    /// Token F1, from 0 to 1.
    f1: f64,
}

impl Unread {
    fn new(name: &'static str, about: &'static str, scores: &[AnswerScores]) -> Self {
        let count = scores.len().max(1) as f64;
        let (em, f1) = (scores.iter().map(|scores| scores.em), scores.iter().map(|scores| scores.f1));
        Self { name, about, em: em.sum::<f64>() / count, f1: f1.sum::<f64>() / count }
    }

    /// Scores the three policies on these questions.
    fn all(drafts: &[Draft]) -> [Self; 3] {
        let mut golds = BTreeMap::new();
        for (number, draft) in drafts.iter().enumerate() {
            let gold = Gold { answers: draft.answers.clone(), question_type: draft.kind.name().to_owned() };
            // With zeros, so that the order of the keys is that of the questions.
            golds.insert(format!("{number:07}"), gold);
        }
        let (mut constant, mut majority, mut first) = (Vec::new(), Vec::new(), Vec::new());
        for (draft, scores) in drafts.iter().zip(Baselines::of(&golds).scores.values()) {
            constant.push(scores[0]);
            majority.push(scores[1]);
            first.push(draft.options.first().map_or(scores[1], |option| answer_scores(option, &draft.answers)));
        }
        [
            Self::new("constant", "the best single answer", &constant),
            Self::new("type_majority", "the most frequent answer of each question type", &majority),
            Self::new("first_option", "the same, but the first of two alternatives offered", &first),
        ]
    }
}

/// Reports the scores that are possible without retrieval, as figures and text.
fn report(drafts: &[Draft], params: &Params, outputs: &mut Outputs) {
    if drafts.is_empty() {
        return;
    }
    let mut text = format!("{} questions about {} documents\n", drafts.len(), params.documents);
    for kind in QuestionType::ALL {
        let count = drafts.iter().filter(|draft| draft.kind == kind).count();
        outputs.figure(&format!("questions_{}", kind.name()), count as f64);
        let _infallible = writeln!(text, "  {:<11} {count:>7}", kind.name());
    }
    text.push_str("without retrieval        em      f1\n");
    for Unread { name, about, em, f1 } in Unread::all(drafts) {
        outputs.figure(&format!("baseline_{name}_em"), em);
        outputs.figure(&format!("baseline_{name}_f1"), f1);
        let _infallible = writeln!(text, "  {name:<16} {:>6.1}% {:>6.1}%  {about}", em * 100.0, f1 * 100.0);
    }
    outputs.summary(&text);
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::testing::{Harness, Outcome};
    use searchmill_engine::operator::{Inputs, entry};
    use serde_json::{Value, json};

    use super::*;

    fn made(seed: u64, params: Value) -> Outcome {
        let mut harness = Harness::new();
        harness.seed = seed;
        harness.run(&entry::<GenerateWorld>(), params, &Inputs::new()).unwrap()
    }

    fn refused(params: Value) -> String {
        let failure = Harness::new().run(&entry::<GenerateWorld>(), params, &Inputs::new());
        failure.unwrap_err().message
    }

    /// Asserts that its documents contain every evidence sentence, and that the sentences state the chain of facts.
    fn assert_supported(documents: &BTreeMap<String, Document>, question: &Question) {
        let metadata: Value = serde_json::from_str(question.metadata.as_deref().unwrap()).unwrap();
        let chain = metadata["chain"].as_array().unwrap();
        assert_eq!(chain.len(), question.evidence.len());
        for (evidence, told) in question.evidence.iter().zip(chain) {
            let document = &documents[evidence.document_id.as_deref().unwrap()];
            let fact = evidence.fact.as_deref().unwrap();
            assert_eq!(document.title, evidence.title);
            assert_eq!(document.text.matches(fact).count(), 1, "{fact} in {}", document.text);
            let [subject, object] = [0, 2].map(|place| told[place].as_str().unwrap());
            assert!(fact.contains(subject) && fact.contains(object), "{told} in {fact}");
        }
    }

    fn by_id(outcome: &Outcome) -> BTreeMap<String, Document> {
        outcome.read::<Document>("documents").into_iter().map(|document| (document.id.clone(), document)).collect()
    }

    #[test]
    fn facts_stand_verbatim_in_their_documents_and_titles_are_unique() {
        for (documents, questions, hops) in [(100, 120, 1), (300, 200, 2), (20_000, 1_000, 4)] {
            let params = json!({"documents": documents, "questions": questions, "min_hops": hops, "max_hops": hops});
            let outcome = made(5, params);
            let corpus = by_id(&outcome);
            let titles: BTreeSet<_> = corpus.values().map(|document| document.title.clone()).collect();
            assert_eq!((corpus.len(), titles.len()), (documents, documents));
            let asked = outcome.read::<Question>("questions");
            assert_eq!(asked.len(), questions);
            for question in &asked {
                assert_supported(&corpus, question);
            }
            let deep = asked.iter().filter(|question| question.evidence.len() == hops).count();
            assert!(deep * 10 > questions * 3, "{deep} of {questions} questions have {hops} facts");
        }
    }

    #[test]
    fn question_types_keep_their_shares_and_null_has_no_evidence() {
        let shares = json!({"inference": 2, "comparison": 1, "temporal": 1, "null": 1});
        let outcome = made(1, json!({"questions": 100, "question_types": shares}));
        let asked = outcome.read::<Question>("questions");
        let count = |name: &str| asked.iter().filter(|one| one.question_type.as_deref() == Some(name)).count();
        assert_eq!(["inference", "comparison", "temporal", "null"].map(count), [40, 20, 20, 20]);
        for question in &asked {
            let null = question.question_type.as_deref() == Some("null");
            assert_eq!(null, question.golden_answers == ["Insufficient Information"]);
            assert_eq!(null, question.evidence.is_empty());
        }
        assert_eq!(asked.iter().map(|one| &one.question).collect::<BTreeSet<_>>().len(), 100);
    }

    #[test]
    fn little_is_scored_without_retrieval() {
        for documents in [100, 300, 5_000] {
            let outcome = made(2, json!({"documents": documents, "questions": 300}));
            let figure = |name: &str| outcome.figures[name];
            assert!(figure("baseline_constant_em") <= 0.11, "{:?}", outcome.figures);
            assert!(figure("baseline_type_majority_em") < 0.15, "{:?}", outcome.figures);
            assert!(figure("baseline_first_option_em") < 0.25, "{:?}", outcome.figures);
            assert!(figure("baseline_constant_f1") <= 0.15, "{:?}", outcome.figures);
            assert!(figure("baseline_type_majority_f1") < 0.2, "{:?}", outcome.figures);
            assert!(figure("baseline_first_option_f1") < 0.35, "{:?}", outcome.figures);
            assert!(outcome.summary.contains("without retrieval"));
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes_whatever_the_threads_and_another_seed_another_world() {
        let rows = |seed| {
            let outcome = made(seed, json!({"documents": 3_000, "questions": 50}));
            (outcome.batch("documents"), outcome.batch("questions"))
        };
        let first = rows(9);
        assert_eq!(first, rows(9));
        assert_ne!(first, rows(10));
        let world = World::new(9, 3_000, Params::default().distractors);
        let alone: Vec<RecordBatch> = (0..3_000).step_by(1024).map(|start| block_of(&world, start).unwrap()).collect();
        assert_eq!(first.0, arrow::compute::concat_batches(&alone[0].schema(), &alone).unwrap());
    }

    #[test]
    fn more_questions_leave_the_earlier_ones_as_they_are() {
        let asked = |questions: usize| made(6, json!({"questions": questions})).read::<Question>("questions");
        assert_eq!(asked(40), asked(400)[..40]);
    }

    #[test]
    fn distractors_lengthen_the_documents() {
        let bytes = |distractors: u64| {
            let outcome = made(3, json!({"questions": 0, "distractors": distractors}));
            outcome.read::<Document>("documents").iter().map(|document| document.text.len()).sum::<usize>()
        };
        let (none, many) = (bytes(0), bytes(8));
        assert!(many > none * 3 / 2, "{none} and {many} bytes");
    }

    #[test]
    fn impossible_params_are_refused_with_their_place() {
        assert!(refused(json!({"documents": 99})).starts_with("documents: must be from 100"));
        assert!(refused(json!({"min_hops": 3, "max_hops": 2})).starts_with("min_hops"));
        assert!(refused(json!({"question_types": {"null": -1.0}})).starts_with("question_types.null"));
        let none = json!({"inference": 0, "comparison": 0, "temporal": 0, "null": 0});
        assert!(refused(json!({"question_types": none})).starts_with("question_types"));
        assert!(refused(json!({"documents": 100, "questions": 100_000})).contains("no further"));
    }
}
