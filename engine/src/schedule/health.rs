//! Whether a schedule works, and what is worth a note: both follow from the runs that have ended.

use serde::Serialize;

use super::state::{Ended, Note, Outcome, State};
use crate::spec::{Occasion, Time};

/// A schedule whose last run failed, or whose outputs are held back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failing {
    /// End of the first of these runs.
    pub since: Time,
    /// Number of such runs in a row.
    pub runs: usize,
    /// Outcome of the last one.
    pub outcome: Outcome,
    /// Its run in the store, if one was recorded.
    pub run: Option<String>,
    /// The error.
    pub message: Option<String>,
}

/// What a run says about its schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Good,
    Held,
    Failed,
    /// Nothing: it was stopped, or its budget was used up.
    Open,
}

fn mark(ended: &Ended) -> Mark {
    match ended.outcome {
        Outcome::Failed | Outcome::Overran | Outcome::Lost => Mark::Failed,
        // Whatever ended it, readers of its outputs got nothing new.
        _ if ended.ending.held > 0 => Mark::Held,
        Outcome::Succeeded | Outcome::DeadLetters => Mark::Good,
        Outcome::BudgetSpent | Outcome::Replaced | Outcome::Stopped => Mark::Open,
    }
}

/// Returns why the schedule fails, if its last run that says anything failed or held outputs back.
pub fn failing(ended: &[Ended]) -> Option<Failing> {
    // A run that says nothing neither ends the row nor belongs to it.
    let telling = ended.iter().rev().filter(|ended| mark(ended) != Mark::Open);
    let row: Vec<&Ended> = telling.take_while(|ended| mark(ended) != Mark::Good).collect();
    let (last, first) = (row.first()?, row.last()?);
    let (run, message) = (last.ending.run.clone(), last.ending.message.clone());
    Some(Failing { since: first.ended, runs: row.len(), outcome: last.outcome, run, message })
}

/// Returns the note about the last run, if it is worth one.
pub(super) fn note(state: &State) -> Option<Note> {
    let (last, before) = state.ended.split_last()?;
    let earlier = failing(before);
    let occasion = match mark(last) {
        Mark::Failed => Occasion::Failure,
        Mark::Held => Occasion::Held,
        Mark::Good => earlier.as_ref().map(|_| Occasion::Recovery)?,
        Mark::Open if last.outcome == Outcome::BudgetSpent => Occasion::Budget,
        Mark::Open => return None,
    };
    let since = earlier.map_or(last.ended, |earlier| earlier.since);
    Some(Note { id: last.ticket.id, occasion, since })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Cause, Ending, Ticket};

    fn state(outcomes: &[(Outcome, u64)]) -> State {
        let ended = |(place, (outcome, held)): (usize, &(Outcome, u64))| {
            let at = Time::from_timestamp(1000 * (place as i64 + 1), 0).unwrap();
            let ticket = Ticket { id: place as u64 + 1, tick: at, cause: Cause::Tick };
            let ending = Ending { held: *held, message: Some(format!("of {place}")), ..Ending::default() };
            Ended { ticket, began: at, ended: at, outcome: *outcome, ending }
        };
        State { ended: outcomes.iter().enumerate().map(ended).collect(), ..State::new("s") }
    }

    fn told(outcomes: &[(Outcome, u64)]) -> Option<(Occasion, i64)> {
        note(&state(outcomes)).map(|note| (note.occasion, note.since.timestamp()))
    }

    #[test]
    fn failures_held_outputs_and_the_first_success_after_them_are_told() {
        use Outcome::{BudgetSpent, DeadLetters, Failed, Lost, Stopped, Succeeded};
        assert_eq!(told(&[(Succeeded, 0)]), None);
        assert_eq!(told(&[(Succeeded, 0), (Failed, 0)]), Some((Occasion::Failure, 2000)));
        assert_eq!(told(&[(Failed, 0), (Lost, 0)]), Some((Occasion::Failure, 1000)));
        assert_eq!(told(&[(Failed, 0), (Stopped, 0), (Succeeded, 0)]), Some((Occasion::Recovery, 1000)));
        assert_eq!(told(&[(Failed, 0), (Succeeded, 0), (Succeeded, 0)]), None);
        assert_eq!(told(&[(DeadLetters, 0)]), None, "rejected rows alone");
        assert_eq!(told(&[(DeadLetters, 1)]), Some((Occasion::Held, 1000)));
        assert_eq!(told(&[(DeadLetters, 1), (DeadLetters, 0)]), Some((Occasion::Recovery, 1000)));
        assert_eq!(told(&[(Failed, 0), (BudgetSpent, 0)]), Some((Occasion::Budget, 1000)));
        assert_eq!(told(&[(Failed, 0), (Stopped, 0)]), None);
    }

    #[test]
    fn a_schedule_fails_until_a_run_succeeds() {
        use Outcome::{Failed, Overran, Stopped, Succeeded};
        let found = failing(&state(&[(Succeeded, 0), (Failed, 0), (Overran, 0), (Stopped, 0)]).ended).unwrap();
        assert_eq!((found.since.timestamp(), found.runs, found.outcome), (2000, 2, Overran));
        assert_eq!(found.message.as_deref(), Some("of 2"));
        assert_eq!(failing(&state(&[(Failed, 0), (Succeeded, 0), (Stopped, 0)]).ended), None);
    }
}
