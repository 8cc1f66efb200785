//! A state machine of the units of a lease, searched exhaustively: checks that spend, and put back what they spent if
//! another lease has not enough, ends of steps, a reset and the end of the process, each while others are under way.

use stateright::{Checker, Model, Property};

/// The number of units of a lease.
const UNITS: u8 = 2;
/// The number of leases, and of checks.
const MOST: u8 = 2;

/// The code, or a mistake in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Code {
    Right,
    /// Lets a lease end while a check that has spent from it may put units back.
    ClosesUnderCheck,
    /// Does not put back what a check has spent that another lease cannot pay.
    KeepsWhatItSpent,
    /// Returns a lease that a reset has found on its way, or in its place.
    ReturnsAfterReset,
    /// Fetches leases during a reset, and drops them after it.
    FetchesDuringReset,
    /// Begins a fetch, and only then makes it known to the tasks that end leases.
    BeginsUnseen,
    /// Resets while a lease or a return is under way, without waiting.
    ResetsWithoutWaiting,
    /// Ends without waiting for the lease that is being fetched.
    EndsWithoutWaiting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fetch {
    /// Only the mutant stops here.
    Unseen,
    Sent,
    Charged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Before,
    UnderWay,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// The count of the store, and the right count at the end.
    charged: u8,
    spent: u8,
    lease: Option<u8>,
    leases: u8,
    fetch: Option<Fetch>,
    fetch_is_to_be_returned: bool,
    /// Returns that are on their way.
    returns: Vec<u8>,
    /// A check that has spent a unit of the lease with this number, and looks at another lease.
    check: Option<u8>,
    checks: u8,
    reset: Phase,
    reset_is_sent: bool,
    shutdown: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Fetch,
    Send,
    Charge,
    Install,
    Check,
    /// Whether the other lease can pay.
    Finish(bool),
    EndStep,
    Return(usize),
    Reset,
    SendReset,
    Forget,
    Shutdown,
    End,
}

struct Units(Code);

impl State {
    fn close(&mut self) {
        if let Some(unspent) = self.lease.take().filter(|unspent| *unspent > 0) {
            self.returns.push(unspent);
            self.returns.sort_unstable();
        }
    }

    fn revoke(&mut self) {
        self.close();
        let is_seen = self.fetch.is_some_and(|it| it != Fetch::Unseen);
        self.fetch_is_to_be_returned = is_seen;
    }
}

impl Model for Units {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            charged: 0,
            spent: 0,
            lease: None,
            leases: 0,
            fetch: None,
            fetch_is_to_be_returned: false,
            returns: Vec::new(),
            check: None,
            checks: 0,
            reset: Phase::Before,
            reset_is_sent: false,
            shutdown: Phase::Before,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let is_barred = state.reset == Phase::UnderWay && self.0 != Code::FetchesDuringReset;
        let is_running = state.shutdown == Phase::Before;
        let is_idle = state.fetch.is_none() && state.returns.is_empty();
        let has_none = state.fetch.is_none() && state.lease.is_none();
        if is_running && !is_barred && has_none && state.leases < MOST {
            actions.push(Action::Fetch);
        }
        match state.fetch {
            Some(Fetch::Unseen) => actions.push(Action::Send),
            Some(Fetch::Sent) => actions.push(Action::Charge),
            Some(Fetch::Charged) => actions.push(Action::Install),
            None => {}
        }
        // A check holds the lock of the lease that it spends from.
        let may_close = state.check.is_none() || self.0 == Code::ClosesUnderCheck;
        match state.check {
            None if is_running && state.checks < MOST && state.lease.is_some_and(|it| it > 0) => {
                actions.push(Action::Check);
            }
            None => {}
            Some(_) => actions.extend([true, false].map(Action::Finish)),
        }
        if state.lease.is_some() && may_close {
            actions.push(Action::EndStep);
        }
        actions.extend((0..state.returns.len()).map(Action::Return));
        if is_running && state.reset == Phase::Before {
            actions.push(Action::Reset);
        }
        if state.reset == Phase::UnderWay {
            let waits = !matches!(
                self.0,
                Code::ResetsWithoutWaiting | Code::FetchesDuringReset
            );
            if state.reset_is_sent {
                actions.push(Action::Forget);
            } else if may_close && (is_idle || !waits) {
                actions.push(Action::SendReset);
            }
        }
        if is_running && may_close && state.reset != Phase::UnderWay {
            actions.push(Action::Shutdown);
        }
        let waits = self.0 != Code::EndsWithoutWaiting;
        if state.shutdown == Phase::UnderWay && (is_idle || !waits && state.returns.is_empty()) {
            actions.push(Action::End);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Fetch => {
                state.fetch = Some(match self.0 {
                    Code::BeginsUnseen => Fetch::Unseen,
                    _ => Fetch::Sent,
                });
            }
            Action::Send => state.fetch = Some(Fetch::Sent),
            Action::Charge => {
                state.charged += UNITS;
                state.fetch = Some(Fetch::Charged);
            }
            Action::Install => {
                state.fetch = None;
                state.lease = Some(UNITS);
                state.leases += 1;
                if state.fetch_is_to_be_returned {
                    state.close();
                }
                state.fetch_is_to_be_returned = false;
            }
            Action::Check => {
                state.checks += 1;
                state.check = Some(state.leases);
                state.lease = state.lease.map(|unspent| unspent - 1);
            }
            Action::Finish(is_paid) => {
                let lease = state.check.take()?;
                match state.lease {
                    _ if is_paid => state.spent += 1,
                    Some(unspent) if lease == state.leases && self.0 != Code::KeepsWhatItSpent => {
                        state.lease = Some(unspent + 1);
                    }
                    _ => {}
                }
            }
            Action::EndStep => state.close(),
            Action::Return(index) => {
                let units = state.returns.remove(index);
                state.charged = state.charged.saturating_sub(units);
            }
            Action::Reset => state.reset = Phase::UnderWay,
            Action::SendReset => {
                (state.charged, state.spent) = (0, 0);
                state.reset_is_sent = true;
                if self.0 != Code::ReturnsAfterReset {
                    state.lease = None;
                }
            }
            Action::Forget => {
                state.reset = Phase::Done;
                if self.0 == Code::FetchesDuringReset {
                    (state.lease, state.fetch) = (None, None);
                }
            }
            Action::Shutdown => {
                state.revoke();
                state.shutdown = Phase::UnderWay;
            }
            Action::End => state.shutdown = Phase::Done,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("what was spent is charged", |_, state: &State| {
                state.shutdown != Phase::Done || state.charged == state.spent
            }),
            Property::sometimes("units are spent after a reset", |_, state: &State| {
                state.shutdown == Phase::Done && state.reset == Phase::Done && state.spent > 0
            }),
        ]
    }
}

fn search(code: Code) -> impl Checker<Units> {
    Units(code).checker().threads(2).spawn_bfs().join()
}

#[test]
fn at_the_end_the_store_counts_exactly_what_was_spent() {
    let checker = search(Code::Right);
    checker.assert_properties();
    println!("{} states", checker.unique_state_count());
}

#[test]
fn each_known_mutant_loses_units_or_counts_too_few() {
    let mutants = [
        Code::ClosesUnderCheck,
        Code::KeepsWhatItSpent,
        Code::ReturnsAfterReset,
        Code::FetchesDuringReset,
        Code::BeginsUnseen,
        Code::ResetsWithoutWaiting,
        Code::EndsWithoutWaiting,
    ];
    for code in mutants {
        let found = search(code).discovery("what was spent is charged");
        assert!(found.is_some(), "{code:?}");
    }
}
