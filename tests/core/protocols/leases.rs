//! A state machine of leases between processes, searched exhaustively: messages that are slow, lost or too late,
//! processes that crash, and clocks that count fractions of the store's clock.
//!
//! Time is counted in halves of a millisecond. The store's clock shows whole milliseconds. Processes see the halves,
//! from any start. A rule counts steps of two milliseconds in a window of four.

use stateright::{Checker, Model, Property};

const LIMIT: u8 = 2;
/// In halves of a millisecond.
const TICK: u8 = 2;
const STEP: u8 = 4;
const WINDOW: u8 = 8;
const END: u8 = 19;

/// The code, or a mistake in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Code {
    Right,
    /// Measures from the answer.
    FromAnswer,
    /// Spends until the end of the step by the store's clock, in whole milliseconds.
    WithoutMargin,
    /// Spends as long as the units count in the store.
    UntilRelease,
    /// Returns the unspent units without ending the lease.
    SpendsWhatItReturns,
    /// Sends a return again if there was no answer.
    RetriesReturns,
    /// Returns all leased units.
    ReturnsWhatItSpent,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lease {
    /// The end of the charged step.
    step_end: u8,
    /// The last instant at which units may be spent.
    until: u8,
    units: u8,
    unspent: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Process {
    /// The time of the request for a lease, while the process waits for the answer.
    asked: Option<u8>,
    lease: Option<Lease>,
    /// A return that the mutant may send again.
    again: Option<(u8, u8)>,
    returned: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    /// Charge this number of units.
    Charge { by: u8, units: u8, sent: u8 },
    /// The units were charged at this time of the store's clock.
    Charged { to: u8, units: u8, sent: u8, at: u8 },
    /// Return units of a step.
    Return { step_end: u8, units: u8 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    /// The units of each step, by its end.
    charged: Vec<(u8, u8)>,
    processes: Vec<Process>,
    messages: Vec<Message>,
    /// The times of admissions, by the store's clock.
    admitted: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
    Wait,
    Ask(usize),
    Arrive(usize),
    Lose(usize),
    Spend(usize),
    Return(usize),
    ReturnAgain(usize),
    Crash(usize),
    /// A check without a lease, which the store decides at once.
    Check,
}

struct Leases {
    code: Code,
    processes: usize,
    starts: Vec<u8>,
}

impl State {
    /// The time on the store's clock.
    fn store_now(&self) -> u8 {
        self.now - self.now % TICK
    }

    fn used(&self) -> u8 {
        let now = self.store_now();
        let counting = self.charged.iter().filter(|(end, _)| end + WINDOW > now);
        counting.map(|(_, units)| units).sum()
    }

    fn charge(&mut self, units: u8) -> bool {
        if self.used() + units > LIMIT {
            return false;
        }
        let now = self.store_now();
        let end = now - now % STEP + STEP;
        match self.charged.iter_mut().find(|it| it.0 == end) {
            Some(step) => step.1 += units,
            None => self.charged.push((end, units)),
        }
        true
    }

    fn settle(&mut self, step_end: u8, units: u8) {
        let now = self.store_now();
        let mut steps = self.charged.iter_mut();
        if let Some(step) = steps.find(|it| it.0 == step_end && it.0 + WINDOW > now) {
            step.1 = step.1.saturating_sub(units);
        }
    }

    fn admit(&mut self) {
        self.admitted.push(self.store_now());
    }

    fn admitted(&self) -> u8 {
        u8::try_from(self.admitted.len()).unwrap()
    }

    /// Whether a span of the window holds more than the limit, with the first and last millisecond.
    fn is_beyond(&self) -> bool {
        self.admitted.iter().any(|from| {
            let within = self.admitted.iter();
            let within = within.filter(|it| (*from..=from + WINDOW).contains(*it));
            within.count() > usize::from(LIMIT)
        })
    }

    /// Drops details that make no difference, to reduce the number of states.
    fn forget(&mut self) {
        let now = self.store_now();
        let counts = |end: &u8| end + WINDOW > now;
        self.charged
            .retain(|(end, units)| *units > 0 && counts(end));
        self.messages
            .retain(|it| !matches!(it, Message::Return { step_end, .. } if !counts(step_end)));
    }

    fn send(&mut self, message: Message) {
        self.messages.push(message);
        self.messages.sort();
    }
}

impl Leases {
    fn arrive(&self, state: &mut State, message: usize) {
        match state.messages.remove(message) {
            Message::Charge { by, units, sent } => {
                if state.charge(units) {
                    let (to, at) = (by, state.store_now());
                    state.send(Message::Charged {
                        to,
                        units,
                        sent,
                        at,
                    });
                } else {
                    state.processes[usize::from(by)].asked = None;
                }
            }
            Message::Charged {
                to,
                units,
                sent,
                at,
            } => {
                let now = state.now;
                let process = &mut state.processes[usize::from(to)];
                // A process that has crashed does not know this lease.
                if process.asked != Some(sent) {
                    return;
                }
                process.asked = None;
                let step_end = at - at % STEP + STEP;
                let until = match self.code {
                    Code::FromAnswer => now + step_end - at - TICK,
                    Code::WithoutMargin => sent + step_end - at,
                    Code::UntilRelease => sent + step_end + WINDOW - at - TICK,
                    _ => sent + step_end - at - TICK,
                };
                process.lease = Some(Lease {
                    step_end,
                    until,
                    units,
                    unspent: units,
                });
            }
            Message::Return { step_end, units } => state.settle(step_end, units),
        }
    }
}

impl Model for Leases {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let state = |now: &u8| State {
            now: *now,
            charged: Vec::new(),
            processes: vec![Process::default(); self.processes],
            messages: Vec::new(),
            admitted: Vec::new(),
        };
        self.starts.iter().map(state).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < END {
            actions.push(Action::Wait);
        }
        if state.admitted() > LIMIT {
            return;
        }
        if state.used() < LIMIT {
            actions.push(Action::Check);
        }
        for (index, message) in state.messages.iter().enumerate() {
            actions.push(Action::Arrive(index));
            if !matches!(message, Message::Charge { .. }) {
                actions.push(Action::Lose(index));
            }
        }
        for (index, process) in state.processes.iter().enumerate() {
            match &process.lease {
                None if process.asked.is_none() && !process.returned => {
                    actions.push(Action::Ask(index));
                }
                None => {}
                Some(lease) => {
                    if lease.unspent > 0 && state.now <= lease.until {
                        actions.push(Action::Spend(index));
                    }
                    if lease.unspent > 0 && !process.returned {
                        actions.push(Action::Return(index));
                    }
                    actions.push(Action::Crash(index));
                }
            }
            if process.again.is_some() {
                actions.push(Action::ReturnAgain(index));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Wait => state.now += 1,
            Action::Check => {
                if state.charge(1) {
                    state.admit();
                }
            }
            Action::Ask(index) => {
                state.processes[index].asked = Some(state.now);
                let (by, sent) = (u8::try_from(index).unwrap(), state.now);
                state.send(Message::Charge {
                    by,
                    units: LIMIT,
                    sent,
                });
            }
            Action::Arrive(message) => self.arrive(&mut state, message),
            Action::Lose(message) => {
                state.messages.remove(message);
            }
            Action::Spend(index) => {
                let lease = state.processes[index].lease.as_mut()?;
                lease.unspent -= 1;
                state.admit();
            }
            Action::Return(index) => {
                let process = &mut state.processes[index];
                let lease = process.lease.clone()?;
                let units = match self.code {
                    Code::ReturnsWhatItSpent => lease.units,
                    _ => lease.unspent,
                };
                process.returned = true;
                if self.code != Code::SpendsWhatItReturns {
                    process.lease = None;
                }
                if self.code == Code::RetriesReturns {
                    process.again = Some((lease.step_end, units));
                }
                state.send(Message::Return {
                    step_end: lease.step_end,
                    units,
                });
            }
            Action::ReturnAgain(index) => {
                let (step_end, units) = state.processes[index].again.take()?;
                state.send(Message::Return { step_end, units });
            }
            Action::Crash(index) => state.processes[index] = Process::default(),
        }
        state.forget();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("never beyond the limit", |_, state: &State| {
                !state.is_beyond()
            }),
            Property::sometimes("a unit is spent from a lease", |_, state: &State| {
                let mut leases = state.processes.iter().filter_map(|it| it.lease.as_ref());
                leases.any(|it| it.unspent < it.units)
            }),
            Property::sometimes("others take what was returned", |_, state: &State| {
                let returned = state.processes.iter().any(|it| it.returned);
                returned && state.messages.is_empty() && state.admitted() == LIMIT
            }),
        ]
    }
}

fn search(code: Code, processes: usize) -> impl Checker<Leases> {
    let model = Leases {
        code,
        processes,
        starts: vec![0, 1],
    };
    model.checker().threads(2).spawn_bfs().join()
}

#[test]
fn nothing_is_admitted_beyond_the_limit() {
    let checker = search(Code::Right, 2);
    checker.assert_properties();
    println!("{} states", checker.unique_state_count());
}

#[test]
fn each_known_mutant_admits_too_much() {
    let mutants = [
        Code::FromAnswer,
        Code::WithoutMargin,
        Code::UntilRelease,
        Code::SpendsWhatItReturns,
        Code::RetriesReturns,
        Code::ReturnsWhatItSpent,
    ];
    for code in mutants {
        let checker = search(code, 1);
        let found = checker.discovery("never beyond the limit");
        assert!(found.is_some(), "{code:?}");
    }
}
