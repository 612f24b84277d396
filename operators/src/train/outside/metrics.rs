//! Metrics of external trainers as rows of `steps`: JSON lines with the names of ms-swift's `logging.jsonl`, of
//! transformers' trainer, of verl's file logger (`verl/utils/tracking.py`), or of our own table.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use searchmill_models::training::state::Step;
use serde_json::{Map, Value};

use super::super::earned;

/// Names of the same metric, in the order in which they count.
const LOSS: [&str; 3] = ["loss", "actor/pg_loss", "train/loss"];
const LEARNING_RATE: [&str; 2] = ["learning_rate", "actor/lr"];
const GRAD_NORM: [&str; 3] = ["grad_norm", "actor/grad_norm", "train/grad_norm"];
const EPOCH: [&str; 2] = ["epoch", "training/epoch"];
const TOKEN_ACCURACY: [&str; 3] = ["token_accuracy", "token_acc", "mean_token_accuracy"];
const EVAL_TOKEN_ACCURACY: [&str; 3] = ["eval_token_accuracy", "eval_token_acc", "eval_mean_token_accuracy"];
/// The mean reward of a step: ours and TRL's, verl's, ART's.
const REWARD: [&str; 3] = [earned::REWARD, "critic/score/mean", "train/reward"];
/// Columns of `steps` and places in the run, which are no metrics beside them.
const OWN: [&str; 9] = [
    "step",
    "global_step",
    "max_steps",
    "total_steps",
    "tokens",
    "targets",
    "eval_loss",
    "training/global_step",
    "steps",
];
/// Maximum number of columns that a log may add to `steps`.
const MOST_COLUMNS: usize = 500;

/// Metrics of one step, by name.
pub(super) type Named = BTreeMap<String, f64>;

/// Content of a trainer's log.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    /// By step.
    pub(super) steps: Vec<Step>,
    /// Every other number, by step.
    more: BTreeMap<u64, Named>,
    /// Steps of the whole training.
    pub(super) total: Option<u64>,
    /// The last logged step.
    pub(super) at: u64,
    /// Peak memory of a device in GiB.
    pub(super) memory: Option<f64>,
    /// The first step whose loss is not a number.
    pub(super) diverged: Option<u64>,
    /// ms-swift's last line: checkpoints and counts.
    pub(super) summary: Option<Value>,
}

/// Reads a log as far as it is written. A missing log has no steps.
pub(super) fn read(path: &Path) -> Metrics {
    let text = std::fs::read(path).unwrap_or_default();
    parse(&String::from_utf8_lossy(&text))
}

fn parse(text: &str) -> Metrics {
    let mut metrics = Metrics::default();
    let mut steps = BTreeMap::new();
    // The last line may be incomplete.
    for fields in text.lines().filter_map(fields) {
        if fields.contains_key("last_model_checkpoint") {
            metrics.summary = Some(Value::Object(fields));
            continue;
        }
        metrics.take(&fields, &mut steps);
    }
    metrics.steps = steps.into_values().collect();
    metrics
}

/// Returns the fields of a line, if it is JSON.
fn fields(line: &str) -> Option<Map<String, Value>> {
    // Python writes NaN and infinities, which are not valid JSON.
    let mut plain = line.to_owned();
    for word in ["NaN", "-Infinity", "Infinity"] {
        plain = plain.replace(&format!(": {word}"), ": null");
    }
    let mut fields: Map<String, Value> = serde_json::from_str(&plain).ok()?;
    // verl writes {"step": 3, "data": {…}}.
    if let Some(Value::Object(data)) = fields.remove("data") {
        fields.extend(data);
    }
    Some(fields)
}

/// How far a training is.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The last logged step.
    pub(super) at: u64,
    /// Steps of the whole training.
    pub(super) total: Option<u64>,
    /// Bytes of the log that were read.
    read: u64,
}

impl Progress {
    /// Reads the lines that were added to the log.
    pub(super) fn follow(&mut self, log: &Path) -> std::io::Result<()> {
        let mut added = Vec::new();
        let mut file = File::open(log)?;
        file.seek(SeekFrom::Start(self.read))?;
        file.read_to_end(&mut added)?;
        // The last line may be incomplete.
        added.truncate(added.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
        self.read += added.len() as u64;
        for fields in String::from_utf8_lossy(&added).lines().filter_map(fields) {
            if let (Some(step), total) = place(&fields) {
                self.at = self.at.max(step);
                self.total = total.or(self.total);
            }
        }
        Ok(())
    }
}

impl Metrics {
    fn take(&mut self, fields: &Map<String, Value>, steps: &mut BTreeMap<u64, Step>) {
        let (step, total) = place(fields);
        let Some(step) = step else { return };
        self.total = total.or(self.total);
        self.at = self.at.max(step);
        if let Some(memory) = number(fields, &["memory(GiB)"]) {
            self.memory = Some(self.memory.unwrap_or(memory).max(memory));
        }
        // The last line of transformers sums the run up.
        if !fields.contains_key("train_runtime") {
            self.take_more(step, fields);
        }
        let loss = LOSS.iter().find_map(|name| fields.get(*name));
        if loss.is_none() && !fields.contains_key("eval_loss") {
            return;
        }
        if loss.is_some_and(Value::is_null) {
            self.diverged.get_or_insert(step);
        }
        let row = steps.entry(step).or_insert_with(|| unknown(step));
        let figures: [(&mut f64, &[&str]); 5] = [
            (&mut row.epoch, &EPOCH),
            (&mut row.loss, &LOSS),
            (&mut row.learning_rate, &LEARNING_RATE),
            (&mut row.grad_norm, &GRAD_NORM),
            (&mut row.token_accuracy, &TOKEN_ACCURACY),
        ];
        // A step may have several lines, of training and of evaluation: what a line lacks stays.
        for (figure, names) in figures {
            *figure = number(fields, names).unwrap_or(*figure);
        }
        row.eval_loss = number(fields, &["eval_loss"]).or(row.eval_loss);
        row.eval_token_accuracy = number(fields, &EVAL_TOKEN_ACCURACY).or(row.eval_token_accuracy);
    }

    /// Takes the numbers that are no columns of every training.
    fn take_more(&mut self, step: u64, fields: &Map<String, Value>) {
        let columns =
            [&LOSS[..], &LEARNING_RATE, &GRAD_NORM, &EPOCH, &TOKEN_ACCURACY, &EVAL_TOKEN_ACCURACY, &OWN].concat();
        let mut others = Named::new();
        for (name, value) in fields {
            let Some(number) = value.as_f64() else { continue };
            if !columns.contains(&name.as_str()) {
                others.insert(name.clone(), number);
            }
        }
        // The reward has one name in `steps`, beside the trainer's own.
        if let Some(reward) = number(fields, &REWARD) {
            others.insert(earned::REWARD.to_owned(), reward);
        }
        // A step with no other number gets no row of its own.
        if !others.is_empty() {
            self.more.entry(step).or_default().extend(others);
        }
    }

    /// Returns a row for every step of the log, and all its other numbers by step.
    pub(super) fn everything(&self) -> (Vec<Step>, BTreeMap<u64, Named>) {
        let mut steps: BTreeMap<u64, Step> = self.more.keys().map(|step| (*step, unknown(*step))).collect();
        steps.extend(self.steps.iter().map(|step| (step.step, step.clone())));
        let names: BTreeSet<&String> = self.more.values().flat_map(Named::keys).collect();
        let columns: BTreeSet<&String> = names.into_iter().take(MOST_COLUMNS).collect();
        let mut more = self.more.clone();
        for named in more.values_mut() {
            named.retain(|name, _| columns.contains(name));
        }
        (steps.into_values().collect(), more)
    }
}

/// Returns a step without metrics.
fn unknown(step: u64) -> Step {
    Step {
        step,
        epoch: f64::NAN,
        loss: f64::NAN,
        learning_rate: f64::NAN,
        grad_norm: f64::NAN,
        tokens: 0,
        targets: 0,
        token_accuracy: f64::NAN,
        eval_loss: None,
        eval_token_accuracy: None,
        policy: None,
        preference: None,
    }
}

/// Returns the step and the number of steps. ms-swift writes `"global_step/max_steps": "3/34"`.
fn place(fields: &Map<String, Value>) -> (Option<u64>, Option<u64>) {
    let both = fields.get("global_step/max_steps").and_then(Value::as_str).and_then(|text| text.split_once('/'));
    if let Some((step, total)) = both {
        return (step.trim().parse().ok(), total.trim().parse().ok());
    }
    (count(fields, &["step", "global_step"]), count(fields, &["max_steps", "total_steps"]))
}

fn count(fields: &Map<String, Value>, names: &[&str]) -> Option<u64> {
    names.iter().find_map(|name| fields.get(*name)?.as_u64())
}

fn number(fields: &Map<String, Value>, names: &[&str]) -> Option<f64> {
    names.iter().find_map(|name| fields.get(*name)?.as_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as ms-swift 3.8.3 wrote them.
    const SWIFT: &str = r#"{"loss": 6.3920126, "grad_norm": 0.08011143, "learning_rate": 0.0001, "token_acc": 0.01054217, "epoch": 0.5, "global_step/max_steps": "1/2", "percentage": "50.00%", "elapsed_time": "3s", "remaining_time": "3s", "memory(GiB)": 1.5, "train_speed(iter/s)": 0.278634}
{"eval_loss": 6.3944931, "eval_runtime": 0.4214, "eval_samples_per_second": 18.986, "eval_steps_per_second": 18.986, "eval_token_acc": 0.00947568, "epoch": 0.5, "global_step/max_steps": "1/2", "percentage": "50.00%", "elapsed_time": "4s", "remaining_time": "4s", "memory(GiB)": 0, "train_speed(iter/s)": 0.249295}
{"loss": 6.39811325, "grad_norm": 0.07788248, "learning_rate": 0.0, "token_acc": 0.00870511, "epoch": 1.0, "global_step/max_steps": "2/2", "percentage": "100.00%", "elapsed_time": "4s", "remaining_time": "0s", "memory(GiB)": 0, "train_speed(iter/s)": 0.410239}
{"train_runtime": 6.3465, "train_samples_per_second": 1.261, "train_steps_per_second": 0.315, "total_flos": 670012800.0, "train_loss": 6.39506292, "epoch": 1.0, "global_step/max_steps": "2/2", "percentage": "100.00%", "elapsed_time": "6s", "remaining_time": "0s", "memory(GiB)": 0, "train_speed(iter/s)": 0.315293}
{"train_dataset": "614.375000±257.566951, min=333.000000, max=1147.000000, size=8", "last_model_checkpoint": "/o/checkpoint-2", "best_model_checkpoint": "/o/checkpoint-1", "best_metric": 6.39433432, "global_step": 2, "log_history": [{"loss": 6.39, "step": 1}], "memory": 0}
{"loss": 6."#;

    #[test]
    fn measurements_stand_in_the_row_of_their_step() {
        let metrics = parse(SWIFT);
        let [one, two] = &metrics.steps[..] else { panic!("{metrics:?}") };
        assert_eq!((one.step, one.epoch, one.loss, one.learning_rate), (1, 0.5, 6.392_012_6, 0.0001));
        assert_eq!((one.eval_loss, one.eval_token_accuracy), (Some(6.394_493_1), Some(0.009_475_68)));
        assert_eq!((one.grad_norm, one.token_accuracy), (0.080_111_43, 0.010_542_17));
        assert_eq!((two.step, two.loss, two.eval_loss), (2, 6.398_113_25, None));
        assert_eq!((metrics.total, metrics.at, metrics.memory, metrics.diverged), (Some(2), 2, Some(1.5), None));
        assert_eq!(metrics.summary.unwrap()["best_model_checkpoint"], "/o/checkpoint-1");
    }

    /// Lines as ms-swift 4.6.0 wrote them on the CPU: `swift sft`, and `swift rlhf --rlhf_type grpo` (shortened).
    #[test]
    fn the_log_of_swift_4_is_read() {
        let sft = r#"{"loss": 9.66008472, "grad_norm": 8.25824642, "learning_rate": 9.045e-05, "token_acc": 0.0, "epoch": 0.8, "global_step/max_steps": "2/6", "elapsed_time": "7s", "remaining_time": "14s", "train_speed(s/it)": 3.621269}
{"eval_loss": 9.34278107, "eval_runtime": 0.3685, "eval_samples_per_second": 10.854, "eval_steps_per_second": 10.854, "eval_token_acc": 0.0, "epoch": 0.8, "global_step/max_steps": "2/6", "elapsed_time": "8s", "remaining_time": "15s", "train_speed(s/it)": 3.806078}
{"train_runtime": 19.7283, "train_samples_per_second": 2.028, "train_steps_per_second": 0.304, "total_flos": 673294878720.0, "train_loss": 9.24373897, "epoch": 2.0, "global_step/max_steps": "6/6", "elapsed_time": "20s", "remaining_time": "0s", "train_speed(s/it)": 3.287901}
{"train_dataset": "…", "model_parameter_info": "…", "last_model_checkpoint": "/o/checkpoint-6", "best_model_checkpoint": "/o/checkpoint-6", "best_metric": 8.74178886, "global_step": 6, "log_history": []}"#;
        let metrics = parse(sft);
        let [step] = &metrics.steps[..] else { panic!("{metrics:?}") };
        assert_eq!((step.step, step.loss, step.eval_loss), (2, 9.660_084_72, Some(9.342_781_07)));
        assert_eq!((metrics.total, metrics.at, metrics.memory), (Some(6), 6, None));
        assert_eq!(metrics.summary.unwrap()["last_model_checkpoint"], "/o/checkpoint-6");
        let grpo = r#"{"loss": -6e-08, "grad_norm": 4.94591999, "learning_rate": 5e-05, "completions/mean_length": 16.0, "reward": 0.5, "reward_std": 0.18442778, "rewards/F/mean": 0.5, "kl": 0.0, "epoch": 0.0625, "global_step/max_steps": "1/2", "elapsed_time": "1s"}
{"train_runtime": 1.181, "train_loss": 0.00024591, "epoch": 0.125, "global_step/max_steps": "2/2"}"#;
        let (steps, more) = parse(grpo).everything();
        let [step] = &steps[..] else { panic!("{steps:?}") };
        assert_eq!((step.step, step.learning_rate, step.epoch), (1, 5e-5, 0.0625));
        let names: Vec<&str> = more[&1].keys().map(String::as_str).collect();
        assert_eq!(names, ["completions/mean_length", "kl", "reward", "reward_std", "rewards/F/mean"]);
    }

    /// Lines of verl's file logger, shortened.
    #[test]
    fn numbers_of_an_rl_trainer_are_kept_by_their_names() {
        let log = concat!(
            r#"{"step":1,"data":{"actor/pg_loss":0.25,"actor/lr":1e-06,"critic/score/mean":0.5,"response_length/mean":90.5}}"#,
            "\n",
            r#"{"step":2,"data":{"critic/score/mean":0.75,"val-core/hotpotqa/reward/mean@1":0.4,"note":"text"}}"#,
            "\n",
        );
        let metrics = parse(log);
        assert_eq!(metrics.steps.len(), 1, "step 2 has no loss");
        let (steps, more) = metrics.everything();
        assert_eq!((steps.len(), steps[0].loss, steps[0].learning_rate), (2, 0.25, 1e-6));
        assert!(steps[1].loss.is_nan());
        let of = |step: u64| more[&step].iter().map(|(name, number)| (name.as_str(), *number)).collect::<Vec<_>>();
        assert_eq!(of(1), [("critic/score/mean", 0.5), ("response_length/mean", 90.5), ("reward", 0.5)]);
        let core = ("val-core/hotpotqa/reward/mean@1", 0.4);
        assert_eq!(of(2), [("critic/score/mean", 0.75), ("reward", 0.75), core]);
    }

    #[test]
    fn a_growing_log_is_read_line_by_line() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut progress = Progress::default();
        assert!(progress.follow(&log).is_err(), "there is no log yet");
        for (text, at) in [("", 0), (r#"{"step": 1, "max_steps": 9}"#, 0), ("\n{\"step\": 2", 1), ("}\nnoise\n", 2)] {
            let mut file = File::options().create(true).append(true).open(&log).unwrap();
            std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
            progress.follow(&log).unwrap();
            assert_eq!((progress.at, progress.total), (at, (at > 0).then_some(9)), "{text}");
        }
        assert_eq!(progress.read, std::fs::metadata(&log).unwrap().len());
    }

    #[test]
    fn other_trainers_names_are_known_and_a_loss_that_is_no_number_is_noticed() {
        let metrics = parse(
            "{\"step\": 7, \"max_steps\": 9, \"loss\": NaN}\nnoise\n{\"global_step\": 8, \"eval_loss\": 1, \"eval_mean_token_accuracy\": 0.5}\n",
        );
        assert_eq!((metrics.diverged, metrics.total, metrics.steps.len()), (Some(7), Some(9), 2));
        assert_eq!(metrics.steps[1].eval_token_accuracy, Some(0.5));
        assert!(metrics.steps[0].loss.is_nan());
    }
}
