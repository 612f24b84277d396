//! Worker for nodes that use GPUs: the same program, linked with CUDA. It is separate from `searchmill` because it
//! does not start without a CUDA driver.

use std::process::ExitCode;

/// Training and Arrow allocate and free large buffers frequently. The system allocator would cause a page fault per 4
/// KiB.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    searchmill::cli()
}
