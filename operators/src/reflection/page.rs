//! The report: page, JSON, summary tables and rows.

use searchmill_schemas::Metric;
use serde_json::{Value, json};

use super::measure::{Group, Length, names};
use super::params::ReflectionParams;
use crate::shared::html::plot::{Plot, Series, Unit};
use crate::shared::html::table::{NOTHING, Table, estimate_cells, percent, value_cell};
use crate::shared::html::{self, Card, list};
use crate::shared::statistics::{Measure, measures_json, metric_rows, named};

/// Phrases listed in the report.
const PHRASES: usize = 20;

/// Content of the report.
pub(crate) struct Report<'a> {
    pub(crate) params: &'a ReflectionParams,
    pub(crate) seed: u64,
    /// Digest of the lexicon.
    pub(crate) lexicon: String,
    pub(crate) length: Length,
    pub(crate) checkpoints: Vec<Group>,
    /// All checkpoints together.
    pub(crate) all: Group,
    pub(crate) correlations: Vec<Measure>,
    /// Matched phrases with the number of responses that contain them, most frequent first.
    pub(crate) phrases: Vec<(String, usize)>,
    pub(crate) responses: usize,
    /// Responses without golden answers.
    pub(crate) unscored: usize,
}

impl Report<'_> {
    fn names(&self) -> [String; 9] {
        names(self.length, self.params.score)
    }

    /// Returns a row for every figure.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let mut rows = Vec::new();
        for group in &self.checkpoints {
            rows.extend(metric_rows(&format!("checkpoint={}", group.name), &group.measures));
        }
        rows.extend(metric_rows("all", &self.all.measures));
        rows.extend(metric_rows("all", &self.correlations));
        rows
    }

    /// Returns the content of `report.json`.
    pub(crate) fn json(&self) -> Value {
        let checkpoints = self.checkpoints.iter().map(
            |Group { name, step, measures }| json!({"name": name, "step": step, "measures": measures_json(measures)}),
        );
        let phrases = self.phrases.iter().map(|(text, count)| json!({"text": text, "responses": count}));
        json!({
            "title": self.params.title,
            "lexicon": {"digest": self.lexicon, "expressions": self.params.expressions()},
            "length": self.length.name(),
            "score": self.params.score.name(),
            "confidence": self.params.confidence,
            "resamples": self.params.resamples,
            "seed": self.seed,
            "responses": self.responses,
            "responses_without_golden_answers": self.unscored,
            "checkpoints": checkpoints.collect::<Vec<_>>(),
            "all": measures_json(&self.all.measures),
            "correlations": measures_json(&self.correlations),
            "phrases": phrases.collect::<Vec<_>>(),
        })
    }

    /// Returns the tables for the terminal.
    pub(crate) fn summary(&self) -> String {
        let mut out = format!("{}\n\n{}\n\n", self.params.title, self.notes().join("\n"));
        for table in self.tables() {
            out += &(table.render() + "\n");
        }
        out
    }

    /// Returns the text of `report.html`.
    pub(crate) fn page(&self) -> String {
        let mut out = html::cards(&self.cards());
        out += &list(&self.notes());
        if !self.checkpoints.is_empty() {
            let [rpr, density, _, score, _, _, with, without, _] = self.names();
            let trend = vec![self.series(&rpr, "Reflection ratio", "c1"), self.series(&score, &score, "c4")];
            let phrases = format!("Phrases per 1,000 {}", self.length.name());
            let mut kinds = vec![self.series(&with, "Reflective", "c1"), self.series(&without, "Unreflective", "c2")];
            kinds.retain(|series| !series.is_empty());
            let plots = [
                self.plot("Reflection ratio and score by checkpoint", trend, Unit::Score).lines(),
                self.plot(&phrases, vec![self.series(&density, &phrases, "c1")], Unit::Number).bars(),
                self.plot("Score of responses to the same questions", kinds, Unit::Score).bars(),
            ];
            out += &format!("<div class=\"plots\">{}</div>", plots.concat());
        }
        out += "<h2>Tables</h2><div class=\"tables\">";
        out.extend(self.tables().iter().map(Table::html));
        out += "</div><h2>How to read this</h2>";
        out += &list(&self.method());
        html::page(&self.params.title, &out)
    }

    fn cards(&self) -> Vec<Card> {
        let [rpr, .., difference] = self.names();
        // Steps are known for some inputs alone; the correlation that removes more is the better one.
        let (partial, controls) = match named(&self.correlations, "partial_given_step_and_length") {
            Some(estimate) => (Some(estimate), "given step and length"),
            None => (named(&self.correlations, "partial_given_length"), "given length"),
        };
        let figures = [
            ("Reflection ratio", self.all.measure(&rpr), "all responses"),
            ("Pearson", named(&self.correlations, "pearson"), "ratio and score"),
            ("Spearman", named(&self.correlations, "spearman"), "ratio and score"),
            ("Partial", partial, controls),
            ("Matched difference", self.all.measure(&difference), "reflective − unreflective"),
        ];
        let count = format!("{} checkpoints", self.checkpoints.len());
        let mut cards = vec![Card("Responses".to_owned(), self.responses.to_string(), count)];
        for (title, estimate, detail) in figures {
            if let Some(estimate) = estimate {
                let range = estimate.interval().map(|interval| format!(": {interval}")).unwrap_or_default();
                cards.push(Card(title.to_owned(), format!("{:.3}", estimate.value), format!("{detail}{range}")));
            }
        }
        cards
    }

    /// What the figures exclude, and why.
    fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!("Lexicon {}, {} expressions.", self.lexicon, self.params.expressions().len())];
        if self.length == Length::Words {
            notes.push("Not every response records its completion tokens: length is counted in words.".to_owned());
        }
        if self.unscored > 0 {
            let lack = "have no golden answers (or only punctuation and articles) and no score";
            notes.push(format!("{} responses {lack}.", self.unscored));
        }
        if self.checkpoints.len() < 3 {
            notes.push("Correlations need at least 3 checkpoints; partial ones, one more for each control.".to_owned());
        }
        notes
    }

    fn series(&self, name: &str, title: &str, class: &'static str) -> Series {
        let values = self.checkpoints.iter().map(|group| group.measure(name)).collect();
        Series { name: title.to_owned(), class, values }
    }

    fn plot(&self, title: &str, series: Vec<Series>, unit: Unit) -> Plot {
        let x_title = format!("checkpoint ({} intervals)", percent(self.params.confidence));
        let categories = self.checkpoints.iter().map(|group| group.name.clone()).collect();
        Plot { title: title.to_owned(), categories, series, unit, x_title }
    }

    fn tables(&self) -> Vec<Table> {
        let mut tables = vec![self.by_checkpoint(), self.by_kind()];
        let interval = format!("{} interval", percent(self.params.confidence));
        let mut table =
            Table::new("Reflection Ratio and Score, between Checkpoints", &["Correlation", "Value", &interval]);
        for (name, estimate) in &self.correlations {
            let [value, range] = estimate_cells(Some(*estimate));
            table.row([name.replace('_', " "), value, range]);
        }
        if !self.correlations.is_empty() {
            tables.push(table);
        }
        let mut table = Table::new("Most Frequent Phrases", &["Phrase", "Responses"]);
        for (text, count) in self.phrases.iter().take(PHRASES) {
            table.row([text.clone(), count.to_string()]);
        }
        tables.push(table);
        tables
    }

    fn by_checkpoint(&self) -> Table {
        let [rpr, density, length, score, ..] = self.names();
        let header = ["Checkpoint", "Step", "Responses", "Ratio", "Interval", &density, &length, &score, "Interval"];
        let mut table = Table::new("Reflection by Checkpoint", &header);
        for group in self.checkpoints.iter().chain([&self.all]) {
            // The ratio counts every response; the score leaves out those without golden answers.
            let responses = group.measure(&rpr).map_or(0, |estimate| estimate.count);
            let step = group.step.map_or_else(|| NOTHING.to_owned(), |step| step.to_string());
            let [ratio, range] = estimate_cells(group.measure(&rpr));
            let [scored, scored_range] = estimate_cells(group.measure(&score));
            let [density, length] = [&density, &length].map(|name| value_cell(group.measure(name)));
            let named = [group.name.clone(), step, responses.to_string()];
            table.row(named.into_iter().chain([ratio, range, density, length, scored, scored_range]));
        }
        table
    }

    fn by_kind(&self) -> Table {
        let [_, _, _, _, reflective, unreflective, with, without, difference] = self.names();
        let (yes, no) = ("Reflective", "Unreflective");
        let header = ["Checkpoint", yes, no, "Matched Questions", yes, no, "Difference", "Interval"];
        let mut table = Table::new(&format!("Score ({}) by Kind of Response", self.params.score.name()), &header);
        for group in self.checkpoints.iter().chain([&self.all]) {
            let matched = group.measure(&difference).map_or(0, |estimate| estimate.count).to_string();
            let [reflective, unreflective, with, without] =
                [&reflective, &unreflective, &with, &without].map(|name| value_cell(group.measure(name)));
            let [value, range] = estimate_cells(group.measure(&difference));
            table.row([group.name.clone(), reflective, unreflective, matched, with, without, value, range]);
        }
        table
    }

    /// Describes how the figures were computed.
    fn method(&self) -> Vec<String> {
        let (length, score) = (self.length.name(), self.params.score.name());
        vec![
            "A response is reflective if a phrase of the lexicon occurs in what the model wrote: its text and its \
             reasoning, without prompts, tool results and documents."
                .to_owned(),
            format!("Ratio: share of reflective responses. Density: phrases per 1,000 {length}. Score: {score}."),
            format!(
                "Intervals of checkpoints: percentile bootstrap over questions; of correlations: over checkpoints. {} \
                 resamples, {}, seed {}.",
                self.params.resamples,
                percent(self.params.confidence),
                self.seed
            ),
            "Ratio and score usually both rise in training: read the partial correlations, which remove what training \
             step and response length explain, before the others."
                .to_owned(),
            "Matched: only questions with reflective and unreflective responses at the same checkpoint, each counting \
             the same. It removes that reflection may come with harder questions."
                .to_owned(),
        ]
    }
}
