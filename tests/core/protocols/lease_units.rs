//! A state machine of the units of a lease, searched exhaustively: claims of checks with other charges for the store,
//! ends of steps, a reset and the end of the process, each while others are under way.
//!
//! A check charges a shared identity, which is leased, and a second identity, which the store counts.

use stateright::{Checker, Model, Property};

/// The number of units of a lease.
const UNITS: u8 = 2;
/// The number of leases, and of checks.
const MOST: u8 = 2;

/// The code, or a mistake in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Code {
    Right,
    /// Takes units before the rest is decided, and puts them back if their lease still exists.
    TakesEarly,
    /// Does not refund the rest if the lease has ended and the whole check is denied.
    KeepsTheRest,
    /// Drops a check when the caller leaves.
    LeavesWithTheCaller,
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

/// A check with a claim of the lease with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Check {
    Sent { lease: u8 },
    Decided { lease: u8, is_admitted: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Before,
    UnderWay,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// The counts of the store, and the right counts at the end.
    shared: u8,
    own: u8,
    spent: u8,
    own_spent: u8,
    lease: Option<u8>,
    leases: u8,
    fetch: Option<Fetch>,
    fetch_is_to_be_returned: bool,
    /// Returns that are on their way.
    returns: Vec<u8>,
    check: Option<Check>,
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
    DecideRest(bool),
    /// The rest has been decided. If the lease has ended, the store decides the whole check in this way.
    Finish(bool),
    Leave,
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

    fn has_lease(&self, number: u8) -> bool {
        self.lease.is_some() && self.leases == number
    }

    fn spend(&mut self) {
        self.spent += 1;
        self.own_spent += 1;
    }
}

impl Units {
    fn finish(&self, state: &mut State, lease: u8, is_admitted: bool, is_whole_admitted: bool) {
        let took_early = self.0 == Code::TakesEarly;
        let unspent = state.lease.filter(|_| state.has_lease(lease));
        match (is_admitted, unspent) {
            (true, _) if took_early => state.spend(),
            (true, Some(unspent)) => {
                state.lease = Some(unspent - 1);
                state.spend();
            }
            (true, None) => {
                if is_whole_admitted {
                    state.shared += 1;
                    state.spend();
                } else if self.0 != Code::KeepsTheRest {
                    state.own -= 1;
                }
            }
            (false, Some(unspent)) if took_early => state.lease = Some(unspent + 1),
            (false, _) => {}
        }
    }
}

impl Model for Units {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            shared: 0,
            own: 0,
            spent: 0,
            own_spent: 0,
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
        match state.check {
            None if is_running && state.checks < MOST && state.lease.is_some_and(|it| it > 0) => {
                actions.push(Action::Check);
            }
            None => {}
            Some(Check::Sent { .. }) => {
                actions.extend([true, false].map(Action::DecideRest));
            }
            Some(Check::Decided { .. }) => actions.extend([true, false].map(Action::Finish)),
        }
        if state.check.is_some() && self.0 == Code::LeavesWithTheCaller {
            actions.push(Action::Leave);
        }
        if state.lease.is_some() {
            actions.push(Action::EndStep);
        }
        actions.extend((0..state.returns.len()).map(Action::Return));
        if is_running && state.reset == Phase::Before {
            actions.push(Action::Reset);
        }
        if state.reset == Phase::UnderWay {
            let may_send = is_idle || self.0 == Code::ResetsWithoutWaiting;
            actions.push(match state.reset_is_sent {
                true => Action::Forget,
                false if may_send || self.0 == Code::FetchesDuringReset => Action::SendReset,
                false => return,
            });
        }
        if is_running && state.check.is_none() && state.reset != Phase::UnderWay {
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
                state.shared += UNITS;
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
                state.check = Some(Check::Sent {
                    lease: state.leases,
                });
                if self.0 == Code::TakesEarly {
                    state.lease = state.lease.map(|unspent| unspent - 1);
                }
            }
            Action::DecideRest(is_admitted) => {
                let Check::Sent { lease } = state.check? else {
                    return None;
                };
                state.own += u8::from(is_admitted);
                state.check = Some(Check::Decided { lease, is_admitted });
            }
            Action::Finish(is_whole_admitted) => {
                let Check::Decided { lease, is_admitted } = state.check.take()? else {
                    return None;
                };
                self.finish(&mut state, lease, is_admitted, is_whole_admitted);
            }
            Action::Leave => state.check = None,
            Action::EndStep => state.close(),
            Action::Return(index) => {
                let units = state.returns.remove(index);
                state.shared = state.shared.saturating_sub(units);
            }
            Action::Reset => {
                state.revoke();
                state.reset = Phase::UnderWay;
            }
            Action::SendReset => {
                (state.shared, state.spent) = (0, 0);
                state.reset_is_sent = true;
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
                let is_exact = state.shared == state.spent && state.own == state.own_spent;
                state.shutdown != Phase::Done || is_exact
            }),
            Property::sometimes("a lease ends under a check", |_, state: &State| {
                let is_admitted = matches!(state.check, Some(Check::Decided { is_admitted: true, lease })
                        if !state.has_lease(lease));
                is_admitted && state.reset == Phase::UnderWay
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
        Code::TakesEarly,
        Code::KeepsTheRest,
        Code::LeavesWithTheCaller,
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
