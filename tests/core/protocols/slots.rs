//! A state machine of slots between processes, searched exhaustively: messages that are slow, lost or reordered,
//! answers that never come, processes that stop, crash and come back, and clocks that count fractions of the store's
//! clock.
//!
//! Time is counted in halves of a millisecond. Each clock shows whole milliseconds, and the clock of each process
//! begins them at another half. All times are relative to now, so that the search has no end of time.

mod state;

use stateright::{Checker, HasDiscoveries, Model, Property};

use state::{Message, Process, State, Step};

/// In halves of a millisecond.
const TICK: u8 = 2;
const STEP: u8 = 4;
const WINDOW: u8 = 6;

const BEYOND: &str = "never more holders than the limit";
const UNCHARGED: &str = "each slot that is held is charged";
const OVERCHARGED: &str = "never more is charged than the limit";
const ROBBED: &str = "no holder that renews in time loses its slot";
const REVIVED: &str = "a slot that is not held any more is never held again";
const TAKEN: &str = "the return of a slot that the store has lost takes no other";
const LEAKED: &str = "a slot that nothing holds is free after one expiry and one step";

/// The code, or a mistake in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Code {
    Right,
    /// The holder's time counts from the answer, not from before the request.
    CountsFromAnswer,
    /// The holder's time counts from the request to renew, whether the store answers or not.
    CountsWithoutAnswer,
    /// The holder's time includes the millisecond after the last.
    HoldsOneMore,
    /// A slot is held again when a renewal is answered after the end of the time that the holder could count on.
    BelievesLateAnswers,
    /// Renews again after a renewal of unknown outcome.
    RenewsAfterUnknown,
    /// Returns the slot after a renewal of unknown outcome.
    ReturnsAfterUnknown,
    /// Returns the slot while a renewal is under way.
    ReturnsDuringRenewal,
    /// Returns a slot that the store did not renew because it is lost.
    ReturnsLost,
    /// Renews a slot that has been returned.
    RenewsAfterReturn,
    /// Sends a return again if there was no answer.
    RetriesReturns,
    /// Renews and returns a renewed slot in the step before the renewal.
    NamesFormerStep,
    /// The store renews a slot that is not charged any more, and charges another unit.
    Revives,
    /// The store renews a slot, and leaves the former step charged.
    RenewsWithoutMoving,
    /// The store releases a slot one window after the begin of the step.
    ReleasesEarly,
    /// The store returns any slot if the step that is named has none.
    ReturnsAny,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Wait,
    Ask(usize),
    Renew(usize),
    Drop(usize),
    GiveUp(usize),
    Crash(usize),
    Arrive(usize),
    Lose(usize),
    /// An operator resets the key.
    Reset,
    /// Only mistakes do these.
    ReturnAgain(usize),
    RenewReturned(usize),
}

struct Slots {
    code: Code,
    limit: u8,
    processes: usize,
    /// The most messages under way.
    messages: usize,
    /// Whether operators reset the key. Then others take slots that are still held, of which holders learn only when
    /// they renew.
    resets: bool,
}

impl Slots {
    /// How much longer a process may count on a slot asked for now: whole milliseconds of the clock of that process.
    fn sure(&self, state: &State, process: usize) -> u8 {
        let begin = u8::try_from(process).unwrap() % TICK;
        let since = (state.now + begin) % TICK;
        match self.code {
            Code::HoldsOneMore => WINDOW - since + TICK,
            _ => WINDOW - since,
        }
    }

    fn arrive(&self, state: &mut State, index: usize) {
        let message = state.messages.remove(index);
        if matches!(message, Message::Take { .. } | Message::Renew { .. }) {
            state.quiet = 0;
        }
        let (by, step) = match message {
            Message::Take { by } => {
                let is_free = state.used() < self.limit;
                (by, is_free.then(|| state.charge(self.code)))
            }
            Message::Renew { by, step } => {
                let renewed = state.renew(step, self.code);
                let renews_in_time = by.is_some_and(|it| state.processes[it].is_held());
                state.has_robbed |= renews_in_time && renewed.is_none();
                (by, renewed)
            }
            Message::RenewReturned { step } => (None, state.renew(step, self.code)),
            Message::Return { step } => return state.give_back(step, self.code),
            Message::ReturnLost { step } => return state.give_back_lost(step, self.code),
            Message::Answer { to, step } => return self.answer(state, to, step),
        };
        if let Some(to) = by {
            state.messages.push(Message::Answer { to, step });
        }
    }

    fn answer(&self, state: &mut State, to: usize, step: Option<Step>) {
        let sure = match (self.code, state.processes[to]) {
            (Code::CountsFromAnswer, _) => self.sure(state, to),
            (_, Process::Asking { asked } | Process::Renewing { asked, .. }) => asked,
            _ => return,
        };
        let believes = self.code == Code::BelievesLateAnswers;
        state.processes[to] = match (state.processes[to], step) {
            (Process::Renewing { step, .. }, None) if self.code == Code::ReturnsLost => {
                state.messages.push(Message::ReturnLost { step });
                Process::Idle
            }
            (_, None) => Process::Idle,
            (Process::Renewing { returned, left, .. }, Some(step))
                if returned || left == 0 && !believes =>
            {
                state.messages.push(Message::Return { step });
                Process::Idle
            }
            (Process::Renewing { left, step, .. }, Some(_))
                if self.code == Code::NamesFormerStep =>
            {
                state.has_revived |= left == 0;
                Process::Held { left: sure, step }
            }
            (former, Some(step)) => {
                let was_lost = matches!(former, Process::Renewing { left: 0, .. });
                state.has_revived |= was_lost && sure > 0;
                Process::Held { left: sure, step }
            }
        };
    }

    fn renew(&self, state: &mut State, process: usize) -> Option<()> {
        let (Process::Held { left, step } | Process::Expiring { left, step }) =
            state.processes[process]
        else {
            return None;
        };
        let asked = self.sure(state, process);
        state.processes[process] = Process::Renewing {
            left: match self.code {
                Code::CountsWithoutAnswer => asked,
                _ => left,
            },
            asked,
            step: self.kept(step),
            returned: false,
        };
        let by = Some(process);
        state.messages.push(Message::Renew { by, step });
        Some(())
    }

    /// Right code needs the former step no more when a renewal has been sent.
    fn kept(&self, step: Step) -> Step {
        match self.code {
            Code::Right => 0,
            _ => step,
        }
    }

    fn drop(&self, state: &mut State, process: usize) {
        let returned = match &mut state.processes[process] {
            Process::Renewing { step, .. } if self.code == Code::ReturnsDuringRenewal => {
                Some(*step)
            }
            Process::Renewing { returned, .. } => {
                *returned = true;
                return;
            }
            Process::Held { step, .. } => Some(*step),
            Process::Expiring { step, .. } => {
                Some(*step).filter(|_| self.code == Code::ReturnsAfterUnknown)
            }
            _ => None,
        };
        state.abandon(process);
        let remembers = matches!(self.code, Code::RetriesReturns | Code::RenewsAfterReturn);
        state.processes[process] = match returned {
            Some(step) if remembers => Process::Returned { step },
            _ => Process::Idle,
        };
        let messages = returned.map(|step| Message::Return { step });
        state.messages.extend(messages);
    }

    fn give_up(state: &mut State, process: usize) {
        state.abandon(process);
        state.processes[process] = match state.processes[process] {
            Process::Renewing {
                left,
                step,
                returned: false,
                ..
            } => Process::Expiring { left, step },
            _ => Process::Idle,
        };
    }
}

impl Slots {
    /// The steps of a process that may send a message.
    fn sends(&self, process: Process, index: usize, actions: &mut Vec<Action>) {
        let may_drop = match process {
            Process::Idle => {
                actions.push(Action::Ask(index));
                false
            }
            Process::Renewing { returned, .. } => !returned,
            Process::Held { .. } | Process::Expiring { .. } => true,
            Process::Asking { .. } | Process::Returned { .. } => false,
        };
        if may_drop {
            actions.push(Action::Drop(index));
        }
        let may_renew = match process {
            Process::Held { left, .. } => left > 0,
            Process::Expiring { .. } => self.code == Code::RenewsAfterUnknown,
            _ => false,
        };
        if may_renew {
            actions.push(Action::Renew(index));
        }
        if matches!(process, Process::Returned { .. }) {
            actions.push(match self.code {
                Code::RetriesReturns => Action::ReturnAgain(index),
                _ => Action::RenewReturned(index),
            });
        }
    }
}

impl Model for Slots {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            processes: vec![Process::Idle; self.processes],
            ..State::default()
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Wait);
        if self.resets && state.used() > 0 {
            actions.push(Action::Reset);
        }
        for index in 0..state.messages.len() {
            actions.extend([Action::Arrive(index), Action::Lose(index)]);
        }
        for (index, process) in state.processes.iter().enumerate() {
            if process.waits() {
                actions.push(Action::GiveUp(index));
            }
            if process.is_held() {
                actions.push(Action::Crash(index));
            }
            if state.messages.len() < self.messages {
                self.sends(*process, index, actions);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Wait => state.pass(),
            Action::Reset => state.charged.clear(),
            Action::Ask(index) => {
                let asked = self.sure(&state, index);
                state.processes[index] = Process::Asking { asked };
                state.messages.push(Message::Take { by: Some(index) });
            }
            Action::Renew(index) => self.renew(&mut state, index)?,
            Action::Drop(index) => self.drop(&mut state, index),
            Action::GiveUp(index) => Self::give_up(&mut state, index),
            Action::Crash(index) => {
                state.abandon(index);
                state.processes[index] = Process::Idle;
            }
            Action::Arrive(index) => self.arrive(&mut state, index),
            Action::Lose(index) => {
                state.messages.remove(index);
            }
            Action::ReturnAgain(index) | Action::RenewReturned(index) => {
                let Process::Returned { step } = state.processes[index] else {
                    return None;
                };
                state.processes[index] = Process::Idle;
                state.messages.push(match action {
                    Action::ReturnAgain(_) => Message::Return { step },
                    _ => Message::RenewReturned { step },
                });
            }
        }
        state.forget(self.code);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        if self.resets {
            return vec![
                Property::always(TAKEN, |_, state: &State| !state.has_taken),
                Property::sometimes("a reset slot is held", |_, state: &State| {
                    state.held() > state.used()
                }),
            ];
        }
        vec![
            Property::always(BEYOND, |model, state: &State| state.held() <= model.limit),
            Property::always(UNCHARGED, |_, state: &State| state.held() <= state.used()),
            Property::always(OVERCHARGED, |model, state: &State| {
                state.used() <= model.limit
            }),
            Property::always(ROBBED, |_, state: &State| !state.has_robbed),
            Property::always(REVIVED, |_, state: &State| !state.has_revived),
            Property::always(LEAKED, |_, state: &State| {
                state.quiet < WINDOW + STEP || state.used() == 0
            }),
            Property::sometimes("all slots are held", |model, state: &State| {
                state.held() == model.limit
            }),
            Property::sometimes(
                "a slot stays charged that nothing holds",
                |_, state: &State| state.quiet > WINDOW && state.used() > 0,
            ),
            Property::sometimes(
                "a slot is renewed whose holder has given up",
                |_, state: &State| {
                    let released = state.charged.iter().map(|(step, _)| *step).max();
                    let is_new = released == Some(WINDOW + STEP - state.now);
                    let is_old =
                        |it: &Process| matches!(it, Process::Expiring { left, .. } if *left < STEP);
                    is_new && state.messages.is_empty() && state.processes.iter().any(is_old)
                },
            ),
            Property::sometimes(
                "an answer comes after the slot is lost",
                |_, state: &State| {
                    let is_late = |it: &Message| {
                        matches!(it, Message::Answer { to, step: Some(_) }
                    if matches!(state.processes[*to], Process::Renewing { left: 0, .. }))
                    };
                    state.messages.iter().any(is_late)
                },
            ),
        ]
    }
}

/// Two processes. Two slots make many states, of which fewer messages leave enough.
fn model(code: Code, limit: u8) -> Slots {
    Slots {
        code,
        limit,
        processes: 2,
        messages: if limit == 1 { 3 } else { 2 },
        resets: false,
    }
}

fn with_resets(code: Code) -> Slots {
    Slots {
        resets: true,
        ..model(code, 1)
    }
}

#[test]
fn never_more_holders_than_the_limit_and_no_slot_is_taken_from_its_holder() {
    for limit in [1, 2] {
        let checker = model(Code::Right, limit).checker().threads(2);
        let checker = checker.spawn_bfs().join();
        checker.assert_properties();
        println!("{} states", checker.unique_state_count());
    }
}

#[test]
fn after_a_reset_a_holder_that_learns_of_it_moves_nothing() {
    let checker = with_resets(Code::Right).checker().threads(2);
    checker.spawn_bfs().join().assert_properties();
    let found = HasDiscoveries::AllOf([TAKEN].into());
    let checker = with_resets(Code::ReturnsLost).checker().finish_when(found);
    assert!(checker.spawn_bfs().join().discovery(TAKEN).is_some());
}

#[test]
fn each_known_mutant_fails() {
    let mutants = [
        (Code::CountsFromAnswer, 1, BEYOND),
        (Code::CountsWithoutAnswer, 1, BEYOND),
        (Code::HoldsOneMore, 1, BEYOND),
        (Code::BelievesLateAnswers, 1, REVIVED),
        (Code::RenewsAfterUnknown, 2, ROBBED),
        (Code::ReturnsAfterUnknown, 2, ROBBED),
        (Code::ReturnsDuringRenewal, 2, ROBBED),
        (Code::RenewsAfterReturn, 1, LEAKED),
        (Code::RenewsAfterReturn, 2, ROBBED),
        (Code::RetriesReturns, 1, BEYOND),
        (Code::NamesFormerStep, 2, ROBBED),
        (Code::Revives, 1, OVERCHARGED),
        (Code::RenewsWithoutMoving, 1, OVERCHARGED),
        (Code::ReleasesEarly, 1, BEYOND),
        (Code::ReturnsAny, 1, BEYOND),
    ];
    for (code, limit, failure) in mutants {
        let found = HasDiscoveries::AllOf([failure].into());
        let checker = model(code, limit).checker().threads(2).finish_when(found);
        let checker = checker.spawn_bfs().join();
        println!("{code:?} {}", checker.unique_state_count());
        assert!(checker.discovery(failure).is_some(), "{code:?}: {failure}");
    }
}
