//! A service and its Redis servers, event by event. All times are in µs.
//!
//! ```text
//!   request ──▶ process, one core ──▶ line ──▶ call ──▶ half a round trip ──▶ server, one core: all calls that have come
//!                      │                ▲                                              │
//!      answered here: leased, or        └── the next, when a call has returned ◀───────┘
//!      denied a moment ago
//! ```
//!
//! A core does one thing after the other. Not simulated: the bandwidth of the network, lost packets, pauses of a
//! process, the effects of several cores for a process, and the moments before a limit is reached.

use std::collections::HashMap;

use fastrand::Rng;

use crate::{
    costs::Costs,
    events::Events,
    line::{Call, Line, Waiting},
    traffic::{IDENTITIES, Placement, Traffic, Users, is_attacker, place},
};

/// The time for which a refusal is repeated, the maximum of the deny cache.
const REPEATED: f64 = 1e6;
/// The number of checks in a span that make an identity hot, as in `Leases`.
const HOT: u32 = 8;
/// The span of leases: the step of a rule with a window of a minute.
const SPAN: f64 = 1e6;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) processes: usize,
    pub(crate) servers: usize,
    pub(crate) placement: Placement,
    /// The number of calls in flight in each line. With 0, no call is shared.
    pub(crate) in_flight: usize,
    pub(crate) users: Users,
    pub(crate) deny_cache: bool,
    pub(crate) leases: bool,
    pub(crate) load: Load,
    pub(crate) costs: Costs,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    /// Requests a second at random moments, independent of answers.
    Open(f64),
    /// The number of callers. Each asks again as soon as it has an answer.
    Closed(usize),
}

/// The results after the warm-up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Decisions a second.
    pub(crate) rate: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Calls of Redis for each decision.
    pub(crate) calls: f64,
    /// How busy cores are, from 0 to 1: the busiest process, the busiest server, the average server.
    pub(crate) process: f64,
    pub(crate) server: f64,
    pub(crate) servers: f64,
    /// Whether more requests came than were answered.
    pub(crate) is_overloaded: bool,
}

enum Event {
    Arrives,
    Enters { process: usize, waiting: Waiting },
    Reaches(Call),
    HasWorked { server: usize },
    Returns(Call),
    Ends(Call),
}

#[derive(Default)]
struct Process {
    free_at: f64,
    busy: f64,
    /// The times until which attackers are denied here.
    denied: HashMap<u32, f64>,
    hot: HashMap<u32, Hot>,
}

#[derive(Clone, Copy, Default)]
struct Hot {
    span: u64,
    count: u32,
    was_hot: bool,
    is_asked_for: bool,
    leased: Option<u64>,
}

#[derive(Default)]
struct Server {
    pending: Vec<Call>,
    current: Vec<Call>,
    busy: f64,
}

pub(crate) struct Model<'a> {
    setting: &'a Setting,
    traffic: &'a Traffic,
    random: Rng,
    events: Events<Event>,
    processes: Vec<Process>,
    servers: Vec<Server>,
    lines: HashMap<(usize, usize), Line>,
    places: Vec<(usize, usize)>,
    warm_up: f64,
    latencies: Vec<f64>,
    calls: f64,
    open: f64,
}

impl<'a> Model<'a> {
    pub(crate) fn new(setting: &'a Setting, traffic: &'a Traffic) -> Self {
        let identities = 0..IDENTITIES + 1_000;
        let places = identities.map(|identity| place(setting.placement, setting.servers, identity));
        Self {
            setting,
            traffic,
            random: Rng::with_seed(1),
            events: Events::new(),
            processes: (0..setting.processes).map(|_| Process::default()).collect(),
            servers: (0..setting.servers).map(|_| Server::default()).collect(),
            lines: HashMap::new(),
            places: places.collect(),
            warm_up: 0.0,
            latencies: Vec::new(),
            calls: 0.0,
            open: 0.0,
        }
    }

    /// Runs the simulation. Returns the results between `warm_up` and `end`.
    pub(crate) fn run(mut self, warm_up: f64, end: f64) -> Seen {
        self.warm_up = warm_up;
        match self.setting.load {
            Load::Open(_) => self.events.note(0.0, Event::Arrives),
            Load::Closed(callers) => (0..callers).for_each(|_| self.arrive(0.0)),
        }
        // No check may wait for longer than some 20 ms and four round trips.
        let longest = 0.02 + self.setting.costs.round_trip * 4.0 / 1e6;
        let most = match self.setting.load {
            Load::Open(rate) => rate * longest + 1_000.0,
            Load::Closed(_) => f64::MAX,
        };
        let mut is_overloaded = false;
        while let Some((now, event)) = self.events.next() {
            if now >= end {
                break;
            }
            if self.open > most {
                is_overloaded = true;
                break;
            }
            self.happens(now, event);
        }
        self.seen(end - warm_up, is_overloaded)
    }

    fn happens(&mut self, now: f64, event: Event) {
        match event {
            Event::Arrives => {
                self.arrive(now);
                if let Load::Open(rate) = self.setting.load {
                    // Requests of many independent users: the pauses between them are exponential.
                    let pause = -(1.0 - self.random.f64()).ln() * 1e6 / rate;
                    self.events.note(now + pause, Event::Arrives);
                }
            }
            Event::Enters { process, waiting } => self.enter(now, process, waiting),
            Event::Reaches(call) => {
                let server = call.server;
                self.servers[server].pending.push(call);
                if self.servers[server].current.is_empty() {
                    self.work(now, server);
                }
            }
            Event::HasWorked { server } => {
                let back = now + self.setting.costs.round_trip / 2.0;
                for call in std::mem::take(&mut self.servers[server].current) {
                    self.events.note(back, Event::Returns(call));
                }
                if !self.servers[server].pending.is_empty() {
                    self.work(now, server);
                }
            }
            Event::Returns(call) => {
                let read = self.setting.costs.process_operation * call.operations / 2.0;
                let done = self.book(now, call.process, read);
                self.events.note(done, Event::Ends(call));
            }
            Event::Ends(call) => self.end(now, &call),
        }
    }

    fn arrive(&mut self, now: f64) {
        let process = self.random.usize(..self.setting.processes);
        let identity = self.traffic.draw(&mut self.random);
        self.open += 1.0;
        let costs = &self.setting.costs;
        if self.is_answered_here(now, process, identity) {
            let done = self.book(now, process, costs.request);
            self.answered(now, done);
            return;
        }
        let done = self.book(now, process, costs.request + costs.process_check);
        let waiting = Waiting {
            identity,
            arrived: now,
            is_lease: false,
        };
        self.events.note(done, Event::Enters { process, waiting });
    }

    /// Whether the check needs no call. Counts how hot an identity is, and fetches a lease.
    fn is_answered_here(&mut self, now: f64, process: usize, identity: u32) -> bool {
        let state = &mut self.processes[process];
        if is_attacker(identity) {
            let until = state.denied.get(&identity);
            return self.setting.deny_cache && until.is_some_and(|until| now < *until);
        }
        if !self.setting.leases {
            return false;
        }
        let span = span(now);
        let hot = state.hot.entry(identity).or_default();
        if hot.span != span {
            // After a span without checks, an identity has to become hot again.
            hot.was_hot = hot.span + 1 == span && hot.count >= HOT;
            (hot.span, hot.count) = (span, 0);
        }
        hot.count += 1;
        if hot.leased == Some(span) {
            return true;
        }
        if (hot.was_hot || hot.count >= HOT) && !hot.is_asked_for {
            hot.is_asked_for = true;
            let waiting = Waiting {
                identity,
                arrived: now,
                is_lease: true,
            };
            self.events.note(now, Event::Enters { process, waiting });
        }
        false
    }

    fn enter(&mut self, now: f64, process: usize, waiting: Waiting) {
        let (line, server) = self.places[waiting.identity as usize];
        let state = self.lines.entry((process, line)).or_default();
        state.push(waiting);
        let most = match self.setting.in_flight {
            0 => usize::MAX,
            most => most,
        };
        if state.in_flight < most {
            self.begin(now, process, line, server);
        }
    }

    /// Sends the waiting checks, if there are any.
    fn begin(&mut self, now: f64, process: usize, line: usize, server: usize) {
        let costs = &self.setting.costs;
        let state = self.lines.entry((process, line)).or_default();
        let Some((waiting, operations, work)) = state.gather(self.setting.in_flight, costs) else {
            return;
        };
        state.in_flight += 1;
        let write = costs.process_operation * operations / 2.0;
        let way = costs.round_trip / 2.0;
        let sent = self.book(now, process, write);
        let call = Call {
            process,
            line,
            server,
            sent,
            waiting,
            operations,
            work,
        };
        self.events.note(sent + way, Event::Reaches(call));
    }

    /// The server takes all calls that have arrived, and answers them together.
    fn work(&mut self, now: f64, server: usize) {
        let costs = &self.setting.costs;
        let state = &mut self.servers[server];
        state.current = std::mem::take(&mut state.pending);
        let mut connections: Vec<usize> = state.current.iter().map(|call| call.process).collect();
        connections.sort_unstable();
        connections.dedup();
        let calls: f64 = state.current.iter().map(|call| call.work).sum();
        let work = calls + connections.len() as f64 * costs.server_read;
        if now >= self.warm_up {
            state.busy += work;
            self.calls += state.current.len() as f64;
        }
        self.events.note(now + work, Event::HasWorked { server });
    }

    /// Sends the next call, and then answers the checks of this one.
    fn end(&mut self, now: f64, call: &Call) {
        if let Some(line) = self.lines.get_mut(&(call.process, call.line)) {
            line.in_flight -= 1;
        }
        self.begin(now, call.process, call.line, call.server);
        for waiting in &call.waiting {
            let process = &mut self.processes[call.process];
            if waiting.is_lease {
                let hot = process.hot.entry(waiting.identity).or_default();
                (hot.is_asked_for, hot.leased) = (false, Some(span(call.sent)));
                continue;
            }
            if is_attacker(waiting.identity) {
                process
                    .denied
                    .insert(waiting.identity, call.sent + REPEATED);
            }
            self.answered(waiting.arrived, now);
            // A caller asks again when it has its answer.
            if let Load::Closed(_) = self.setting.load {
                self.arrive(now);
            }
        }
    }

    fn answered(&mut self, arrived: f64, now: f64) {
        self.open -= 1.0;
        if arrived >= self.warm_up {
            self.latencies.push(now - arrived);
        }
    }

    /// Books work of a process from the moment when the process is free. Returns the time when the work is done.
    fn book(&mut self, now: f64, process: usize, work: f64) -> f64 {
        let state = &mut self.processes[process];
        state.free_at = state.free_at.max(now) + work;
        if now >= self.warm_up {
            state.busy += work;
        }
        state.free_at
    }

    fn seen(mut self, time: f64, is_overloaded: bool) -> Seen {
        let answered = self.latencies.len() as f64;
        if self.latencies.is_empty() {
            return Seen {
                is_overloaded: true,
                ..Seen::default()
            };
        }
        let busy = self.servers.iter().map(|server| server.busy / time);
        Seen {
            rate: answered * 1e6 / time,
            calls: self.calls / answered,
            process: most(self.processes.iter().map(|process| process.busy / time)),
            server: most(busy.clone()),
            servers: busy.sum::<f64>() / self.servers.len() as f64,
            is_overloaded,
            p50: percentile(&mut self.latencies, 50),
            p99: percentile(&mut self.latencies, 99),
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "some seconds"
)]
fn span(now: f64) -> u64 {
    (now / SPAN) as u64
}

fn most(figures: impl Iterator<Item = f64>) -> f64 {
    figures.fold(0.0, f64::max)
}

fn percentile(latencies: &mut [f64], percent: usize) -> f64 {
    let place = (latencies.len() - 1) * percent / 100;
    *latencies.select_nth_unstable_by(place, f64::total_cmp).1
}
