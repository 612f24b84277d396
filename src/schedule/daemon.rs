//! Main loop of the daemon: event → step → save the state → actions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use searchmill_engine::schedule::{Action, Daemon as Whereabouts, Ending, Event, Notice, Outcome, Running, Ticket};
use searchmill_engine::{Failure, ScheduleLease, Schedules, Time};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::child::{self, Launch};
use super::endpoint::{self, Health};
use super::notify;
use super::now;
use super::process::{self, Signal};
use super::served::{Scheduled, Served};
use crate::display::Terminal;

/// Poll interval for switches, requests and files.
const LOOK: Duration = Duration::from_millis(300);
/// Minimum pause between two rounds.
const BREATH: Duration = Duration::from_millis(15);
/// Maximum wait for a lease held by another process: `list` holds it only briefly.
const LEASE_WAIT: Duration = Duration::from_secs(1);

/// Reads the schedule of a pipeline.
pub(crate) type Read<'a> = Box<dyn Fn(&Path) -> Result<Scheduled, Failure> + 'a>;

/// Settings from the command line.
pub(crate) struct Settings<'a> {
    pub(crate) directory: PathBuf,
    pub(crate) schedules: Schedules,
    pub(crate) set: Vec<String>,
    pub(crate) params: Vec<PathBuf>,
    pub(crate) listen: SocketAddr,
    /// Reads the schedule of a pipeline again.
    pub(crate) read: Read<'a>,
}

/// What ended outside of the loop, with the index of its schedule and the ticket.
enum End {
    /// A run.
    Run(usize, u64, Ending),
    /// The delivery of a note, and what failed.
    Note(usize, u64, Vec<String>),
}

struct Daemon<'a> {
    schedules: Schedules,
    launch: Launch,
    read: Read<'a>,
    terminal: &'a Terminal,
    served: Vec<Served>,
    ends: UnboundedSender<End>,
    health: Arc<Health>,
    whereabouts: Whereabouts,
    /// Notes being delivered: index of the schedule and ticket.
    telling: BTreeSet<(usize, u64)>,
    signals: u8,
    trouble: Option<String>,
}

/// Serves schedules until it is stopped.
pub(crate) fn serve(settings: Settings<'_>, scheduled: Vec<Scheduled>, terminal: &Terminal) -> Result<(), Failure> {
    // The loop itself runs on this thread; the workers wait for runs, deliver notes and answer the endpoint.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // First of all: an address in use is reported before a schedule is taken.
    let Settings { directory, schedules, set, params, listen, read } = settings;
    let listener = endpoint::bind(listen)?;
    let address = listener.local_addr()?;
    let (ends, ended) = unbounded_channel();
    // The path of this binary, whatever PATH says: after an upgrade at that path, the next run uses the new one.
    let program = std::env::current_exe()?;
    let (store, cache) = (schedules.store_address(), schedules.store_cache().map(Path::to_owned));
    let launch = Launch { program, directory, store, cache, set, params };
    // All leases before the first round: if another daemon serves one of the schedules, this one starts nothing.
    let mut served = Vec::with_capacity(scheduled.len());
    for scheduled in scheduled {
        let lease = lease(&schedules, &scheduled.name)?;
        // The state is read under the lease: no other daemon changes it from here on.
        served.push(Served::new(scheduled, lease, &schedules));
    }
    let whereabouts = Whereabouts { pid: std::process::id(), address: address.to_string(), since: now() };
    let (health, telling) = (Arc::new(Health::new()), BTreeSet::new());
    let (signals, trouble) = (0, None);
    let mut daemon =
        Daemon { schedules, launch, read, terminal, served, ends, health, whereabouts, telling, signals, trouble };
    let outcome = runtime.block_on(daemon.live(listener, ended));
    // Tasks may wait for runs that go on: they are not waited for.
    runtime.shutdown_background();
    outcome
}

fn lease(schedules: &Schedules, name: &str) -> Result<ScheduleLease, Failure> {
    let start = std::time::Instant::now();
    loop {
        if let Some(lease) = schedules.try_lease(name)? {
            return Ok(lease);
        }
        if start.elapsed() > LEASE_WAIT {
            let by = match schedules.state(name).and_then(|state| state.daemon) {
                Some(daemon) => format!(" (process {})", daemon.pid),
                None => String::new(),
            };
            return Err(Failure::Busy(format!("another daemon{by} serves the schedule `{name}` in this store")));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Daemon<'_> {
    async fn live(&mut self, listener: TcpListener, mut ended: UnboundedReceiver<End>) -> Result<(), Failure> {
        let mut signals = signals()?;
        tokio::spawn(endpoint::answer(listener, Arc::clone(&self.health)));
        self.say("", &self.beginning());
        self.boot();
        while !self.is_done() {
            tokio::select! {
                Some(end) = ended.recv() => self.end(end),
                Some(()) = signals.recv() => self.told_to_stop(),
                () = tokio::time::sleep(self.pause()) => self.look(),
            }
            self.beat();
        }
        self.say("", &json!({"event": "daemon_stopped"}));
        Ok(())
    }

    fn is_done(&self) -> bool {
        // Notes that are not delivered are left to the next daemon.
        let told = self.telling.is_empty() || self.signals > 1;
        // The first signal waits for the runs, the second one stops them, the third one leaves them alone.
        let idle = told && self.served.iter().all(|served| served.state.running.is_empty() && served.is_saved());
        (self.signals > 0 && idle) || self.signals > 2
    }

    fn boot(&mut self) {
        for place in 0..self.served.len() {
            let schedules = self.schedules.clone();
            let served = &mut self.served[place];
            served.state.daemon = Some(self.whereabouts.clone());
            let found = served.found(&schedules);
            let resumed = if served.switch.paused { None } else { served.switch.since };
            self.feed(place, Event::Boot { found, resumed });
            for running in self.served[place].state.running.clone() {
                // Those that the boot has just started are waited for already.
                if running.began < self.whereabouts.since {
                    self.adopt(place, running);
                }
            }
        }
        self.beat();
    }

    /// Waits for a run started by an earlier daemon.
    fn adopt(&self, place: usize, running: Running) {
        let (schedules, ends, name) = (self.schedules.clone(), self.ends.clone(), self.served[place].name.clone());
        tokio::spawn(async move {
            let id = running.ticket.id;
            let ending = child::outlive(&schedules, &name, id, running.process.as_ref()).await;
            deliver(&ends, End::Run(place, id, ending));
        });
    }

    /// Time until the next round.
    fn pause(&self) -> Duration {
        // While the daemon stops, no tick starts a run.
        if self.signals > 0 {
            return LOOK;
        }
        let next = self.served.iter().filter_map(Served::next_wake).min();
        // A tick that is over is due now.
        let until = next.map_or(LOOK, |next| (next - now()).to_std().unwrap_or_default());
        // At least BREATH: a wake time in the past would make the loop spin.
        until.clamp(BREATH, LOOK)
    }

    fn look(&mut self) {
        for place in 0..self.served.len() {
            let served = &mut self.served[place];
            served.switch = self.schedules.switch(&served.name);
            if served.file_changed() {
                self.read_again(place);
            }
            self.feed(place, Event::Wake);
            self.answer_questions(place);
        }
    }

    fn answer_questions(&mut self, place: usize) {
        // The requests stay in the store, for the next daemon.
        if self.signals > 0 {
            return;
        }
        for asked in self.schedules.asked_runs(&self.served[place].name) {
            // A request that cannot be removed is found again in the next round.
            if self.served[place].answered.insert(asked.clone()) {
                self.feed(place, Event::Trigger);
            }
            match self.schedules.answer(&asked) {
                Ok(()) => drop(self.served[place].answered.remove(&asked)),
                Err(error) => self.trouble = Some(error.to_string()),
            }
        }
    }

    /// Applies a changed `schedule:`. A broken file changes nothing; the next run reports the error.
    fn read_again(&mut self, place: usize) {
        let served = &mut self.served[place];
        let problem = match (self.read)(&served.file) {
            Ok(new) if new.name == served.name => {
                served.schedule = new.schedule;
                return;
            }
            // Lease, state and logs belong to the name: a running daemon cannot take over another one.
            Ok(new) => format!("is now named `{}`: restart the daemon", new.name),
            Err(_) => "is invalid: the previous schedule stays in effect; see `searchmill validate`".to_owned(),
        };
        let (name, problem) = (served.name.clone(), format!("{} {problem}", served.file.display()));
        self.say(&name, &json!({"event": "problem", "message": problem}));
    }

    /// Performs steps and their actions until no event is left.
    fn feed(&mut self, place: usize, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let draining = self.signals > 0;
            self.served[place].step(now(), draining, event);
            // Before the actions: a daemon that is killed in between must not start a run twice.
            self.save(place);
            while let Some(action) = self.served[place].next_action() {
                // What an action causes (`Began`, `Ended`) is stepped and saved like an event from outside.
                events.extend(self.act(place, action));
            }
        }
        self.send_notes(place);
    }

    fn end(&mut self, end: End) {
        match end {
            End::Run(place, id, ending) => self.feed(place, Event::Ended(id, ending)),
            End::Note(place, id, problems) => {
                self.telling.remove(&(place, id));
                let name = self.served[place].name.clone();
                for message in problems {
                    self.say(&name, &json!({"event": "problem", "message": message}));
                }
                self.feed(place, Event::Told(id));
            }
        }
    }

    /// Starts to deliver the notes of a schedule, once they are saved: a daemon that is killed meanwhile leaves them to
    /// the next one.
    fn send_notes(&mut self, place: usize) {
        let served = &self.served[place];
        if !served.is_saved() || self.signals > 1 {
            return;
        }
        for (id, body, receivers) in served.notes() {
            if !self.telling.insert((place, id)) {
                continue;
            }
            let (ends, directory) = (self.ends.clone(), self.launch.directory.clone());
            tokio::spawn(async move {
                let problems = notify::send(&receivers, &body, &directory).await;
                deliver(&ends, End::Note(place, id, problems));
            });
        }
    }

    fn save(&mut self, place: usize) {
        let problem = self.served[place].save(&self.schedules).err().map(|error| error.to_string());
        // Said once, not in every round.
        if let Some(problem) = &problem
            && self.trouble.as_ref() != Some(problem)
        {
            let message = format!("no run starts until the state can be saved: {problem}");
            let name = self.served[place].name.clone();
            self.say(&name, &json!({"event": "problem", "message": message}));
        }
        self.trouble = problem;
    }

    fn act(&mut self, place: usize, action: Action) -> Option<Event> {
        match action {
            Action::Start(ticket) => return Some(self.start(place, &ticket)),
            Action::Terminate(id) => self.signal(place, id, Signal::Terminate),
            Action::Kill(id) => self.signal(place, id, Signal::Kill),
            Action::Tell(notice) => self.tell(place, &notice),
        }
        None
    }

    fn tell(&self, place: usize, notice: &Notice) {
        let name = &self.served[place].name;
        let Ok(mut line) = serde_json::to_value(notice) else { return };
        if let Notice::Ended { id, outcome, .. } = notice
            && *outcome != Outcome::Succeeded
        {
            line["log"] = self.schedules.run_log(name, *id).display().to_string().into();
        }
        self.say(name, &line);
    }

    fn start(&mut self, place: usize, ticket: &Ticket) -> Event {
        let (name, id) = (self.served[place].name.clone(), ticket.id);
        // The log first: its lock shows later daemons that the run is alive, from the first moment of the process.
        let started = match self.schedules.open_run_log(&name, id) {
            Ok(log) => {
                let path = self.schedules.run_log(&name, id);
                let started = self.launch.start(&self.served[place].file, ticket.tick, log, &path);
                started.map_err(|error| format!("cannot start {}: {error}", self.launch.program.display()))
            }
            Err(error) => Err(error.to_string()),
        };
        let mut child = match started {
            Ok(child) => child,
            // As a run that failed: the next tick tries again.
            Err(message) => return Event::Ended(id, Ending { message: Some(message), ..Ending::default() }),
        };
        // Before the task below waits for the child: until it is reaped, no other process gets its number.
        let process = process::identify(child.id().unwrap_or_default());
        let (schedules, ends) = (self.schedules.clone(), self.ends.clone());
        tokio::spawn(async move {
            let status = child.wait().await;
            let ending = child::ended(&schedules, &name, id, status);
            deliver(&ends, End::Run(place, id, ending));
        });
        Event::Began(id, process)
    }

    fn signal(&self, place: usize, id: u64, signal: Signal) {
        let served = &self.served[place];
        let Some(running) = served.state.running.iter().find(|running| running.ticket.id == id) else { return };
        let told = match &running.process {
            Some(process) => process::signal(process, signal),
            None => Err("the daemon that started it was killed before it saved the process".to_owned()),
        };
        if let Err(problem) = told {
            let message = format!("cannot stop run {id}: {problem}");
            self.say(&served.name, &json!({"event": "problem", "message": message}));
        }
    }

    fn told_to_stop(&mut self) {
        self.signals = self.signals.saturating_add(1);
        let running: usize = self.served.iter().map(|served| served.state.running.len()).sum();
        self.say("", &json!({"event": "stopping", "signal": self.signals, "running": running}));
        if self.signals == 2 {
            for place in 0..self.served.len() {
                self.feed(place, Event::Stop);
            }
        }
    }

    fn beat(&self) {
        // Copied in every round: the endpoint answers from the copy and never touches the state of the loop.
        let schedules: Vec<Value> = self.served.iter().map(Served::status).collect();
        let status = json!({
            "daemon": self.whereabouts,
            "store": self.schedules.store_address(),
            "stopping": self.signals > 0,
            "trouble": self.trouble,
            "time": now(),
            "schedules": schedules,
        });
        let failing = self.served.iter().filter_map(Served::failing).collect();
        self.health.beat(self.trouble.clone(), failing, status);
    }

    fn beginning(&self) -> Value {
        let mut next: BTreeMap<&str, Option<Time>> = BTreeMap::new();
        for served in &self.served {
            next.insert(&served.name, served.schedule.cadence.after(now()));
        }
        let (pid, address) = (self.whereabouts.pid, &self.whereabouts.address);
        json!({"event": "daemon_started", "pid": pid, "address": address, "next": next})
    }

    fn say(&self, schedule: &str, notice: &Value) {
        self.terminal.journal(now(), schedule, notice);
    }
}

fn deliver(ends: &UnboundedSender<End>, end: End) {
    if ends.send(end).is_err() {
        tracing::debug!("a run ended after the daemon");
    }
}

/// Receives one message per SIGTERM or Ctrl-C.
fn signals() -> Result<UnboundedReceiver<()>, Failure> {
    let (sender, receiver) = unbounded_channel();
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let (mut signals, sender) = (signal(kind)?, sender.clone());
        tokio::spawn(async move { while signals.recv().await.is_some() && sender.send(()).is_ok() {} });
    }
    Ok(receiver)
}
