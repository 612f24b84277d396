//! The worker for nodes that want GPUs: the same program, linked with CUDA. It does not start without a driver, which is
//! why it is not `searchmill` itself.

use std::process::ExitCode;

/// Training and Arrow take and give back large buffers all the time: with the system's allocator each of them is a page
/// fault per 4 KiB.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    searchmill::cli()
}
