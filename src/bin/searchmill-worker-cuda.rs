//! The worker for nodes that want GPUs: the same program, linked with CUDA. It does not start without a driver, which is
//! why it is not `searchmill` itself.

use std::process::ExitCode;

fn main() -> ExitCode {
    searchmill::cli()
}
