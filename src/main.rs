//! The `searchmill` command.

use std::process::ExitCode;

/// Training and Arrow allocate and free large buffers frequently. The system allocator would cause a page fault per 4
/// KiB.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs before the constructors of the C++ libraries: the vector index has some that need a newer CPU, and would end an
/// older one with "Illegal instruction".
#[cfg(target_os = "linux")]
#[used]
#[expect(unsafe_code, reason = "nothing else runs before constructors")]
// SAFETY: the section has addresses of functions that the loader calls, and this one needs nothing that is set up later.
#[unsafe(link_section = ".preinit_array")]
static FIRST: extern "C" fn() = searchmill::check_machine;

fn main() -> ExitCode {
    searchmill::cli()
}
