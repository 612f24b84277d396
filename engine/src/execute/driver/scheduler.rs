//! Decides which node runs next. No clock, I/O or threads: every decision is a function of the events so far.

use std::collections::{BTreeSet, VecDeque};

use crate::execute::settings::resources::{Demand, Pool};
use crate::plan::NodeIndex;

/// A change in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The node has a result.
    Succeeded(NodeIndex),
    /// The node failed.
    Failed(NodeIndex),
    /// Start no further nodes.
    Stop,
}

/// An instruction to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Start the node.
    Launch(NodeIndex),
    /// The node will not run.
    Skip(NodeIndex),
}

/// A node as the scheduler sees it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Task {
    pub(crate) dependents: Vec<NodeIndex>,
    pub(crate) dependencies: usize,
    pub(crate) demand: Demand,
}

/// State of the scheduler.
pub(super) struct Scheduler {
    tasks: Vec<Task>,
    waiting: Vec<usize>,
    ready: BTreeSet<NodeIndex>,
    running: BTreeSet<NodeIndex>,
    settled: Vec<bool>,
    pool: Pool,
    keep_going: bool,
    stopping: bool,
}

impl Scheduler {
    pub(crate) fn new(tasks: Vec<Task>, pool: Pool, keep_going: bool) -> Self {
        let waiting: Vec<usize> = tasks.iter().map(|task| task.dependencies).collect();
        let ready = (0..tasks.len()).filter(|node| waiting[*node] == 0).map(NodeIndex::new).collect();
        let settled = vec![false; tasks.len()];
        Self { tasks, waiting, ready, running: BTreeSet::new(), settled, pool, keep_going, stopping: false }
    }

    /// Returns the commands that follow from an event.
    pub(crate) fn step(&mut self, event: Event) -> Vec<Command> {
        let mut commands = Vec::new();
        match event {
            Event::Succeeded(node) => {
                self.settle(node);
                for next in &self.tasks[node.index()].dependents {
                    self.waiting[next.index()] -= 1;
                    // It was skipped when the run began to stop, while this one still ran.
                    if self.waiting[next.index()] == 0 && !self.settled[next.index()] {
                        self.ready.insert(*next);
                    }
                }
            }
            Event::Failed(node) => {
                self.settle(node);
                self.skip_dependents(node, &mut commands);
                self.stopping |= !self.keep_going;
            }
            Event::Stop => self.stopping = true,
        }
        if !self.stopping {
            commands.extend(self.launch());
            return commands;
        }
        self.ready.clear();
        for node in (0..self.tasks.len()).map(NodeIndex::new) {
            if !self.settled[node.index()] && !self.running.contains(&node) {
                self.settled[node.index()] = true;
                commands.push(Command::Skip(node));
            }
        }
        commands
    }

    /// Whether all nodes are settled.
    pub(super) fn is_done(&self) -> bool {
        self.running.is_empty() && self.ready.is_empty()
    }

    fn settle(&mut self, node: NodeIndex) {
        if self.running.remove(&node) {
            self.pool.give_back(&self.tasks[node.index()].demand);
        }
        self.settled[node.index()] = true;
    }

    /// Launches ready nodes in plan order; a node that does not fit now does not block smaller ones.
    pub(super) fn launch(&mut self) -> Vec<Command> {
        let mut commands = Vec::new();
        let candidates: Vec<NodeIndex> = self.ready.iter().copied().take(1024).collect();
        for node in candidates {
            if self.pool.is_full() {
                break;
            }
            if self.pool.take(&self.tasks[node.index()].demand) {
                self.ready.remove(&node);
                self.running.insert(node);
                commands.push(Command::Launch(node));
            }
        }
        commands
    }

    fn skip_dependents(&mut self, node: NodeIndex, commands: &mut Vec<Command>) {
        let mut pending: VecDeque<NodeIndex> = self.tasks[node.index()].dependents.iter().copied().collect();
        while let Some(next) = pending.pop_front() {
            if !self.settled[next.index()] {
                self.settled[next.index()] = true;
                self.ready.remove(&next);
                commands.push(Command::Skip(next));
                pending.extend(self.tasks[next.index()].dependents.iter().copied());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execute::settings::resources::Machine;

    fn launch(node: usize) -> Command {
        Command::Launch(NodeIndex::new(node))
    }

    fn skip(node: usize) -> Command {
        Command::Skip(NodeIndex::new(node))
    }

    fn succeeded(node: usize) -> Event {
        Event::Succeeded(NodeIndex::new(node))
    }

    fn failed(node: usize) -> Event {
        Event::Failed(NodeIndex::new(node))
    }

    /// A diamond: 0 → 1 → 3 and 0 → 2 → 3.
    fn diamond(jobs: usize, keep_going: bool) -> Scheduler {
        let task = |dependents: &[usize], dependencies| Task {
            dependents: dependents.iter().map(|node| NodeIndex::new(*node)).collect(),
            dependencies,
            demand: Demand::default(),
        };
        let tasks = vec![task(&[1, 2], 0), task(&[3], 1), task(&[3], 1), task(&[], 2)];
        Scheduler::new(tasks, Pool::new(jobs, &Machine::default()), keep_going)
    }

    #[test]
    fn a_node_starts_when_all_before_it_are_done_and_a_job_is_free() {
        let mut scheduler = diamond(1, false);
        assert_eq!(scheduler.launch(), [launch(0)]);
        assert_eq!(scheduler.step(succeeded(0)), [launch(1)]);
        assert_eq!(scheduler.step(succeeded(1)), [launch(2)]);
        assert_eq!(scheduler.step(succeeded(2)), [launch(3)]);
        assert!(scheduler.step(succeeded(3)).is_empty());
        assert!(scheduler.is_done());
    }

    #[test]
    fn a_failure_skips_what_needs_it_and_keep_going_runs_the_rest() {
        let mut scheduler = diamond(4, true);
        scheduler.launch();
        assert_eq!(scheduler.step(succeeded(0)), [launch(1), launch(2)]);
        assert_eq!(scheduler.step(failed(1)), [skip(3)]);
        assert!(!scheduler.is_done());
        assert!(scheduler.step(succeeded(2)).is_empty());
        assert!(scheduler.is_done());
    }

    #[test]
    fn stop_starts_nothing_new_and_waits_for_what_runs() {
        let mut scheduler = diamond(1, false);
        scheduler.launch();
        assert_eq!(scheduler.step(Event::Stop), [skip(1), skip(2), skip(3)]);
        assert!(!scheduler.is_done());
        assert!(scheduler.step(succeeded(0)).is_empty());
        assert!(scheduler.is_done());
    }
}
