//! Maps blocks in parallel and returns results in block order.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, sync_channel};

use searchmill_engine::operator::OperatorError;

/// Whether to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// More blocks are wanted.
    Continue,
    /// No more blocks are wanted.
    Stop,
}

/// Takes blocks from `produce` (on its own thread), maps up to `2 × threads` of them in parallel, and passes the
/// results to `consume` in order. Stops `produce` once `consume` returns [`Flow::Stop`].
///
/// # Errors
/// The first error in block order.
pub fn map_in_order<T: Send, U: Send>(
    threads: usize,
    produce: impl FnOnce(&mut dyn FnMut(T) -> Flow) -> Result<(), OperatorError> + Send,
    work: impl Fn(T) -> Result<U, OperatorError> + Sync,
    mut consume: impl FnMut(U) -> Result<Flow, OperatorError> + Send,
) -> Result<(), OperatorError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|error| OperatorError::machine(format!("cannot start {threads} threads: {error}")))?;
    std::thread::scope(|threads_scope| {
        let (sender, blocks) = sync_channel::<T>(1);
        let producer = threads_scope
            .spawn(move || produce(&mut |block| if sender.send(block).is_ok() { Flow::Continue } else { Flow::Stop }));
        let flow: Result<Flow, OperatorError> = pool.in_place_scope(|scope| {
            let mut pending: VecDeque<Receiver<Result<U, OperatorError>>> = VecDeque::new();
            let mut ended = false;
            loop {
                // Twice as many as threads: while the first one is awaited, the others have work.
                while !ended && pending.len() < 2 * threads {
                    let Ok(block) = blocks.recv() else {
                        ended = true;
                        break;
                    };
                    // Room for the result, so that no thread waits until it is its turn.
                    let (done, result) = sync_channel(1);
                    let work = &work;
                    scope.spawn(move |_| drop(done.send(work(block))));
                    pending.push_back(result);
                }
                let Some(result) = pending.pop_front() else { return Ok(Flow::Continue) };
                let result = result.recv().map_err(|_| OperatorError::engine("a worker thread ended early"))?;
                if consume(result?)? == Flow::Stop {
                    return Ok(Flow::Stop);
                }
            }
        });
        drop(blocks);
        let produced = producer.join().map_err(|_| OperatorError::engine("the reading thread ended early"))?;
        flow?;
        produced
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_production_stops_with_consumption() {
        let mut seen = Vec::new();
        let produce = |push: &mut dyn FnMut(u64) -> Flow| {
            for block in 0.. {
                if push(block) == Flow::Stop {
                    return Ok(());
                }
            }
            Ok(())
        };
        let work = |block: u64| {
            std::thread::sleep(std::time::Duration::from_micros(block * 37 % 500));
            Ok(block * 2)
        };
        let consume = |result| {
            seen.push(result);
            Ok(if seen.len() == 100 { Flow::Stop } else { Flow::Continue })
        };
        map_in_order(3, produce, work, consume).unwrap();
        assert_eq!(seen, (0..100).map(|block| block * 2).collect::<Vec<_>>());
    }

    #[test]
    fn an_error_of_the_producer_comes_after_the_blocks_before_it() {
        let mut seen = 0;
        let produce = |push: &mut dyn FnMut(u64) -> Flow| {
            push(1);
            push(2);
            Err(OperatorError::machine("the disk is gone"))
        };
        let result = map_in_order(2, produce, Ok, |_| {
            seen += 1;
            Ok(Flow::Continue)
        });
        assert_eq!(result.unwrap_err().message, "the disk is gone");
        assert_eq!(seen, 2);
    }
}
