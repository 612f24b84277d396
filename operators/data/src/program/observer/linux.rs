//! The filter of system calls, and the thread that answers it.

use std::fs;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use libc::{c_int, c_long, c_ulong, c_void, seccomp_data, seccomp_notif, seccomp_notif_resp, sock_filter, sock_fprog};

use super::super::opened::{Asked, Opened};

/// The oldest kernel on which a call can go on after it was observed.
const OLDEST: (u32, u32) = (5, 5);
/// `ioctl`s of a listener (linux/seccomp.h).
const RECEIVE: c_ulong = 0xc050_2100;
const SEND: c_ulong = 0xc018_2101;
const IS_VALID: c_ulong = 0x4008_2102;
/// The answer "go on" (linux/seccomp.h).
const GO_ON: u32 = 1;
/// A call that waits for an answer is interrupted by fatal signals only (linux/seccomp.h, since 5.19).
const WAIT_KILLABLE: c_ulong = 1 << 5;
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
#[cfg(target_arch = "x86_64")]
const CALLS: [c_long; 6] =
    [libc::SYS_openat, libc::SYS_open, libc::SYS_creat, libc::SYS_openat2, libc::SYS_execve, libc::SYS_execveat];
#[cfg(target_arch = "aarch64")]
const CALLS: [c_long; 4] = [libc::SYS_openat, libc::SYS_openat2, libc::SYS_execve, libc::SYS_execveat];
/// Time that a file system has to say what a file is.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest path, and the smallest page of memory.
const LONGEST: usize = 4096;
/// What a path that is not relative to an open folder starts from.
const HERE: u64 = libc::AT_FDCWD as u32 as u64;

/// Adds the filter to a program that is about to start.
///
/// # Errors
/// If filters cannot be used here.
pub(super) fn observe(command: &mut Command, opened: &Arc<Opened>) -> Result<()> {
    static WORKS: OnceLock<bool> = OnceLock::new();
    if !WORKS.get_or_init(|| works().unwrap_or_default()) {
        return Err(ErrorKind::Unsupported.into());
    }
    let ours = filtered(command)?;
    let opened = Arc::clone(opened);
    // The program's first call, which starts it, waits for this thread already.
    thread::Builder::new().name("opened".to_owned()).spawn(move || {
        if let Some(listener) = received(&ours) {
            answer(&listener, &opened);
        }
    })?;
    Ok(())
}

/// Whether a program can be observed: tries it.
fn works() -> Result<bool> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split(|ch: char| !ch.is_ascii_digit()).map(|digits| digits.parse().unwrap_or_default());
    if (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default()) < OLDEST {
        return Ok(false);
    }
    // A folder cannot be run. Without an answer, the call that tries it fails, too.
    let mut command = Command::new("/");
    let ours = filtered(&mut command)?;
    let tried = thread::Builder::new().spawn(move || received(&ours).is_some())?;
    drop(command.spawn());
    // With the last copy of its socket, the wait for a listener ends.
    drop(command);
    Ok(tried.join().unwrap_or_default())
}

/// Adds the filter, and returns the socket on which its listener comes.
///
/// Until it runs the program, the child is a copy of this process and holds its locks. If this process is killed now, a
/// listener that is still on its way would live on in copies of the socket, and the child would wait for an answer for
/// ever. So it dies with this process until the listener has arrived; from then on, the end of this process ends the
/// listener, too.
fn filtered(command: &mut Command) -> Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    let parent = std::process::id();
    let install = move || {
        dies_with_parent(true)?;
        // It may have died before.
        if std::os::unix::process::parent_id() != parent {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if let Some(listener) = listener() {
            passed_on(&theirs, &listener)?;
            drop(listener);
            // Until the listener has arrived; repeats interrupted calls.
            (&theirs).read_exact(&mut [0])?;
        }
        // Later, the thread that started the program may end before it.
        dies_with_parent(false)
    };
    #[expect(unsafe_code, reason = "a filter is installed by the process that it filters")]
    // SAFETY: between fork and exec, `install` makes system calls only: it neither allocates nor locks.
    unsafe {
        command.pre_exec(install);
    }
    Ok(ours)
}

/// Whether the end of the thread that started this process kills it.
fn dies_with_parent(dies: bool) -> Result<()> {
    let signal = if dies { libc::SIGKILL } else { 0 };
    #[expect(unsafe_code, reason = "the standard library does not ask for signals")]
    // SAFETY: the call takes a number.
    let set = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) };
    if set == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// Installs the filter in this process. Returns its listener; `None` where filters are forbidden.
fn listener() -> Option<OwnedFd> {
    let filter = filter();
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    let listening = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // A process without the privilege to filter setuid programs must promise to gain none by them.
    for (flags, promises) in [(WAIT_KILLABLE, false), (0, false), (WAIT_KILLABLE, true), (0, true)] {
        #[expect(unsafe_code, reason = "the standard library has no filters")]
        // SAFETY: the filter outlives both calls; the descriptor is new and owned by nothing else.
        let installed = unsafe {
            if promises {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            }
            let set = libc::SECCOMP_SET_MODE_FILTER;
            let descriptor = libc::syscall(libc::SYS_seccomp, set, listening | flags, &raw const program);
            (descriptor >= 0).then(|| OwnedFd::from_raw_fd(descriptor as RawFd))
        };
        if installed.is_some() {
            return installed;
        }
    }
    None
}

/// Returns the filter: calls that open or run a file ask, all others pass.
fn filter() -> [sock_filter; CALLS.len() + 5] {
    let statement = |code: u32, k: u32| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = |offset: usize| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32);
    let equal = |k: u32, jt: usize, jf: usize| sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: jt as u8,
        jf: jf as u8,
        k,
    };
    let answer = |k: u32| statement(libc::BPF_RET | libc::BPF_K, k);
    let count = CALLS.len();
    let mut filter = [answer(libc::SECCOMP_RET_ALLOW); CALLS.len() + 5];
    filter[0] = load(offset_of!(seccomp_data, arch));
    // Programs of another architecture pass unseen.
    filter[1] = equal(ARCHITECTURE, 0, count + 1);
    filter[2] = load(offset_of!(seccomp_data, nr));
    for (index, call) in CALLS.iter().enumerate() {
        filter[3 + index] = equal(*call as u32, count - index, 0);
    }
    filter[4 + count] = answer(libc::SECCOMP_RET_USER_NOTIF);
    filter
}

/// Room for a control message with one descriptor.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Sends a descriptor over a socket.
fn passed_on(socket: &UnixStream, descriptor: &OwnedFd) -> Result<()> {
    let mut control = Control([0; 64]);
    let mut byte = [0_u8];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    #[expect(unsafe_code, reason = "the standard library passes no descriptors")]
    // SAFETY: all pointers are to locals that outlive the call; the control message fits the room for it.
    let sent = unsafe {
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size_of::<c_int>() as u32) as _;
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as _;
        libc::CMSG_DATA(head).cast::<c_int>().write_unaligned(descriptor.as_raw_fd());
        libc::sendmsg(socket.as_raw_fd(), &raw const message, 0)
    };
    if sent == 1 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// Receives a descriptor; `None` if the socket ends without one.
fn received(mut socket: &UnixStream) -> Option<OwnedFd> {
    let mut control = Control([0; 64]);
    let mut byte = [0_u8];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    #[expect(unsafe_code, reason = "the standard library passes no descriptors")]
    // SAFETY: all pointers are to locals that outlive the call; a received descriptor is owned by nothing else.
    let listener = unsafe {
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len() as _;
        while libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) < 0 {
            if Error::last_os_error().kind() != ErrorKind::Interrupted {
                return None;
            }
        }
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        if head.is_null() || (*head).cmsg_type != libc::SCM_RIGHTS {
            return None;
        }
        OwnedFd::from_raw_fd(libc::CMSG_DATA(head).cast::<c_int>().read_unaligned())
    };
    // The program waits for this word.
    socket.write_all(&[0]).ok()?;
    Some(listener)
}

/// Notes files on a thread of its own. A file system may be one that the observed program itself serves: a call that
/// waits for an answer must not wait for it for ever.
struct Notes {
    asked: Sender<(u64, Asked)>,
    may_see: Receiver<(u64, bool)>,
}

impl Notes {
    fn of(opened: &Arc<Opened>) -> Result<Self> {
        let (asked, questions) = channel::<(u64, Asked)>();
        let (answers, may_see) = channel();
        let opened = Arc::clone(opened);
        thread::Builder::new().name("notes".to_owned()).spawn(move || {
            for (id, asked) in questions {
                if answers.send((id, opened.note(asked))).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { asked, may_see })
    }

    /// Returns whether the program may see a file.
    fn may_see(&self, id: u64, asked: Asked) -> bool {
        let deadline = Instant::now() + PATIENCE;
        if self.asked.send((id, asked)).is_err() {
            return true;
        }
        while let Ok((answered, may_see)) =
            self.may_see.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            if answered == id {
                return may_see;
            }
        }
        true
    }
}

/// Answers the calls of the program and its descendants, until all of them have ended.
fn answer(listener: &OwnedFd, opened: &Arc<Opened>) {
    let listener = listener.as_raw_fd();
    let Ok(notes) = Notes::of(opened) else { return };
    loop {
        let mut waits = libc::pollfd { fd: listener, events: libc::POLLIN, revents: 0 };
        #[expect(unsafe_code, reason = "the standard library has neither filters nor poll")]
        // SAFETY: the structures are plain data, and live as long as the calls.
        let call = unsafe {
            libc::poll(&raw mut waits, 1, -1);
            if waits.revents & libc::POLLIN == 0 && waits.revents != 0 {
                return;
            }
            let mut call: seccomp_notif = zeroed();
            (libc::ioctl(listener, RECEIVE as _, &raw mut call) == 0).then_some(call)
        };
        // A call whose process was killed meanwhile is gone.
        let Some(call) = call else { continue };
        let asked = asked(&call).filter(|asked| opened.concerns(asked) && is_valid(listener, call.id));
        let hidden = asked.is_some_and(|asked| !notes.may_see(call.id, asked));
        let error = if hidden { -libc::ENOENT } else { 0 };
        let mut answer = seccomp_notif_resp { id: call.id, val: 0, error, flags: if hidden { 0 } else { GO_ON } };
        #[expect(unsafe_code, reason = "the standard library has no filters")]
        // SAFETY: the answer is plain data, and lives as long as the call.
        unsafe {
            libc::ioctl(listener, SEND as _, &raw mut answer);
        }
    }
}

/// Whether the process still waits for the answer: what was read of its memory is then its own.
fn is_valid(listener: RawFd, id: u64) -> bool {
    #[expect(unsafe_code, reason = "the standard library has no filters")]
    // SAFETY: the number lives as long as the call.
    unsafe {
        libc::ioctl(listener, IS_VALID as _, &raw const id) == 0
    }
}

/// Returns what a call opens; `None` if that cannot be read.
fn asked(call: &seccomp_notif) -> Option<Asked> {
    let [first, second, third, ..] = call.data.args;
    let run = libc::O_RDONLY;
    #[cfg(target_arch = "x86_64")]
    let create = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
    let (folder, path, flags) = match c_long::from(call.data.nr) {
        libc::SYS_openat => (first, second, third as c_int),
        libc::SYS_openat2 => {
            let how = memory(call.pid, third, 8)?;
            (first, second, u64::from_ne_bytes(how.try_into().ok()?) as c_int)
        }
        libc::SYS_execve => (HERE, first, run),
        libc::SYS_execveat => (first, second, run),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => (HERE, first, second as c_int),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_creat => (HERE, first, create),
        _ => return None,
    };
    let path = PathBuf::from(std::ffi::OsString::from_vec(text(call.pid, path)?));
    if path.is_absolute() {
        return Some(Asked { path: led(path, call.pid), flags, process: Some(call.pid) });
    }
    if path.as_os_str().is_empty() {
        return None;
    }
    let folder = match folder & 0xffff_ffff {
        HERE => format!("/proc/{}/cwd", call.pid),
        folder => format!("/proc/{}/fd/{folder}", call.pid),
    };
    Some(Asked { path: fs::read_link(folder).ok()?.join(path), flags, process: Some(call.pid) })
}

/// Follows the links of `/proc` by which a process can name its folders: `/proc/self/cwd`, `/proc/PID/root`.
fn led(path: PathBuf, process: u32) -> PathBuf {
    let parts: Vec<_> = path.iter().collect();
    let [_, proc, whose, link, below @ ..] = parts.as_slice() else { return path };
    if *proc != "proc" || !(*link == "cwd" || *link == "root") {
        return path;
    }
    let whose =
        if *whose == "self" || *whose == "thread-self" { process.to_string().into() } else { (*whose).to_owned() };
    let Ok(folder) = fs::read_link(Path::new("/proc").join(whose).join(link)) else { return path };
    folder.join(below.iter().collect::<PathBuf>())
}

/// Reads a text that ends with a zero from the memory of a process.
fn text(process: u32, address: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    while text.len() < LONGEST {
        // The next page may not be there.
        let at = address.checked_add(text.len() as u64)?;
        let part = memory(process, at, LONGEST - (at as usize % LONGEST))?;
        if let Some(end) = part.iter().position(|byte| *byte == 0) {
            text.extend(&part[..end]);
            return Some(text);
        }
        text.extend(part);
    }
    None
}

/// Reads the memory of a process.
fn memory(process: u32, address: u64, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0_u8; length];
    let into = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: length };
    let from = libc::iovec { iov_base: address as *mut c_void, iov_len: length };
    #[expect(unsafe_code, reason = "the standard library reads no other process")]
    // SAFETY: the kernel writes at most `length` bytes to the buffer, and checks the other process's addresses.
    let read = unsafe { libc::process_vm_readv(process as libc::pid_t, &raw const into, 1, &raw const from, 1, 0) };
    (usize::try_from(read).ok()? == length).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set in the process that this test starts and kills.
    const STARTS: &str = "SEARCHMILL_TEST_STARTS_A_PROGRAM";

    /// The moment between the child's start and the arrival of its listener is short: here the listener is never taken.
    #[test]
    fn a_child_that_is_not_yet_its_program_dies_with_its_parent() {
        if std::env::var_os(STARTS).is_some() {
            let (mut one, mut other) = (Command::new("/bin/true"), Command::new("/bin/true"));
            // Each child has copies of both sockets.
            let sockets = (filtered(&mut one).unwrap(), filtered(&mut other).unwrap());
            thread::scope(|threads| {
                threads.spawn(|| drop(one.spawn()));
                threads.spawn(|| drop(other.spawn()));
            });
            drop(sockets);
            return;
        }
        let mut parent = Command::new(std::env::current_exe().unwrap());
        parent.args([
            "--exact",
            "program::observer::linux::tests::a_child_that_is_not_yet_its_program_dies_with_its_parent",
        ]);
        let mut parent = parent.env(STARTS, "1").stdout(std::process::Stdio::null()).spawn().unwrap();
        let children = within(|| Some(children(parent.id())).filter(|found| found.len() == 2));
        thread::sleep(Duration::from_millis(100));
        parent.kill().unwrap();
        parent.wait().unwrap();
        for child in children.expect("two children") {
            let is_gone = within(|| has_ended(child).then_some(())).is_some();
            // Otherwise it holds the output of this test open.
            drop(Command::new("kill").args(["-9", &child.to_string()]).stderr(std::process::Stdio::null()).status());
            assert!(is_gone, "process {child} waits for ever");
        }
    }

    /// Whether a process has ended, also if nobody has asked how.
    fn has_ended(process: u32) -> bool {
        fs::read_to_string(format!("/proc/{process}/stat")).map_or(true, |state| state.contains(") Z "))
    }

    /// Waits at most some seconds.
    fn within<T>(look: impl Fn() -> Option<T>) -> Option<T> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) {
            if let Some(found) = look() {
                return Some(found);
            }
            thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Returns the children of all threads of a process.
    fn children(process: u32) -> Vec<u32> {
        let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().filter_map(Result::ok);
        let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        lists.flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<u32>>()).collect()
    }
}
