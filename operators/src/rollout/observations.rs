//! `max_observation_tokens`: its unit and its rules.

use searchmill_agent::observation_limit::{ObservationLimit, Starts};
use searchmill_agent::policy::PolicyParams;
use searchmill_engine::operator::{Context, Inputs, OperatorError, ParamIssue};
use searchmill_models::inference::PlainTokenizer;
use searchmill_text::chunking::Memo;

use crate::chunk::Count;

/// Opens the limit: counted by `count`, else by the tokenizer of the policy's model.
pub(super) fn limit(
    most: Option<u32>,
    count: Option<&Count>,
    policy: &PolicyParams,
    inputs: &Inputs,
    context: &Context,
) -> Result<Option<ObservationLimit>, OperatorError> {
    let Some(most) = most else { return Ok(None) };
    let starts: Box<Starts> = match (count, policy) {
        (Some(count), _) => {
            let counter = count.counter(context)?;
            Box::new(move |text: &str| {
                let mut memo = Memo::default();
                let mut tally = counter.tally(&mut memo, text);
                let starts = tally.starts(text);
                tally.fault().map_or(Ok(starts), Err)
            })
        }
        (None, PolicyParams::Model(model)) => {
            let (folder, _) = model.source().folders(&inputs.trees("model"), context)?;
            let tokenizer = PlainTokenizer::open(&folder)?;
            Box::new(move |text: &str| tokenizer.starts(text))
        }
        (None, _) => return Err(OperatorError::pipeline("`max_observation_tokens` needs `count`")),
    };
    Ok(Some(ObservationLimit { most: most as usize, starts }))
}

/// Returns issues of `max_observation_tokens` and `count`.
pub(super) fn issues(most: Option<u32>, count: Option<&Count>, policy: &PolicyParams) -> Vec<ParamIssue> {
    let mut issues: Vec<_> = count.and_then(Count::issues).into_iter().collect();
    match most {
        Some(0) => issues.push(ParamIssue::new("max_observation_tokens", "must be at least 1")),
        Some(_) if count.is_none() && !matches!(policy, PolicyParams::Model(_)) => {
            let issue = ParamIssue::new("max_observation_tokens", "this policy's tokenizer is not known");
            let help = "name it: `count: {tokenizer: PATH}` (or `count: words`)";
            issues.push(issue.with_help(help));
        }
        None if count.is_some() => {
            issues.push(ParamIssue::new("count", "has no effect without `max_observation_tokens`"));
        }
        _ => {}
    }
    issues
}
