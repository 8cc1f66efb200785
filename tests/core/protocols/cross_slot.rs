//! A state machine of refunds across slots, searched exhaustively. Each check asks two slots at once, and refunds the
//! admission of one if the other does not admit. Messages are slow or lost, answers time out, callers leave, and
//! processes crash. A refund that was surely not sent is on its way for longer.
//!
//! Everything happens within one window, so only refunds release units.

use stateright::{Checker, HasDiscoveries, Model, Property};

/// The limit of each slot. Every check costs one unit in both.
const LIMITS: [u8; 2] = [1, 2];
const CHECKS: usize = 3;

const BEYOND: &str = "never beyond the limit";

/// The code, or a mistake in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Code {
    Right,
    /// Also refunds denied charges.
    ReturnsWhatWasDenied,
    /// Refunds charges that may not have happened.
    ReturnsWhatWasNotAnswered,
    /// Sends a refund again if there was no answer.
    RetriesReturns,
    /// Does not wait for the answer of the other slot.
    AdmitsEarly,
}

/// A message on its way between a check and a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    Request,
    Admitted,
    Denied,
    Return,
}

/// The knowledge of a check about its charge in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Known {
    #[default]
    Asked,
    Admitted,
    Denied,
    GivenUp,
    RolledBack,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Part {
    known: Known,
    message: Option<Message>,
    /// The number of refunds that have arrived.
    returns: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Check {
    parts: [Part; 2],
    /// The check cannot be admitted any more.
    has_failed: bool,
    /// The caller has the answer "admitted".
    is_admitted: bool,
    has_crashed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    charged: [u8; 2],
    /// The maximum number of refunds of one charge.
    most_returns: u8,
    /// Sorted, because their order does not matter.
    checks: Vec<Check>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Arrive(usize, usize),
    Lose(usize, usize),
    GiveUp(usize, usize),
    /// The caller no longer waits.
    Leave(usize),
    Crash(usize),
}

struct CrossSlot(Code);

impl Check {
    fn is_over(&self) -> bool {
        self.has_failed || self.is_admitted || self.has_crashed
    }

    fn fail(&mut self, code: Code) {
        self.has_failed = true;
        for part in &mut self.parts {
            let is_returned = match part.known {
                Known::Admitted => true,
                Known::Denied => code == Code::ReturnsWhatWasDenied,
                Known::GivenUp => code == Code::ReturnsWhatWasNotAnswered && part.message.is_none(),
                _ => false,
            };
            if is_returned {
                part.known = Known::RolledBack;
                part.message = Some(Message::Return);
            }
        }
    }

    /// Drops details that make no difference, to reduce the number of states.
    fn forget(&mut self) {
        for part in &mut self.parts {
            let is_answer = matches!(part.message, Some(Message::Admitted | Message::Denied));
            if self.has_crashed || part.known == Known::GivenUp {
                part.known = Known::GivenUp;
                part.message = part.message.filter(|_| !is_answer);
            }
            if self.has_failed && part.known == Known::Asked && part.message.is_none() {
                part.known = Known::GivenUp;
            }
        }
        let under_way = |it: &Part| it.message.is_some() || it.known == Known::Asked;
        if (self.has_failed || self.has_crashed)
            && !self.is_admitted
            && !self.parts.iter().any(under_way)
        {
            *self = Self {
                has_crashed: true,
                ..Self::default()
            };
            for part in &mut self.parts {
                part.known = Known::GivenUp;
            }
        }
    }

    /// Continues after an answer.
    fn answered(&mut self, slot: usize, known: Known, code: Code) {
        // A check that has given up or crashed ignores the answer.
        if self.has_crashed || self.parts[slot].known != Known::Asked {
            return;
        }
        self.parts[slot].known = known;
        let is_admitted = |it: &Part| it.known == Known::Admitted;
        let all = self.parts.iter().all(is_admitted);
        if known != Known::Admitted || self.has_failed {
            self.fail(code);
        } else if all || code == Code::AdmitsEarly {
            self.is_admitted = true;
        }
    }
}

impl State {
    fn admitted(&self) -> usize {
        self.checks.iter().filter(|it| it.is_admitted).count()
    }

    fn arrive(&mut self, index: usize, slot: usize, code: Code) {
        let check = &mut self.checks[index];
        let part = &mut check.parts[slot];
        match part.message.take() {
            Some(Message::Request) if self.charged[slot] < LIMITS[slot] => {
                self.charged[slot] += 1;
                part.message = Some(Message::Admitted);
            }
            Some(Message::Request) => part.message = Some(Message::Denied),
            Some(Message::Admitted) => check.answered(slot, Known::Admitted, code),
            Some(Message::Denied) => check.answered(slot, Known::Denied, code),
            Some(Message::Return) => {
                self.charged[slot] = self.charged[slot].saturating_sub(1);
                part.returns += 1;
                self.most_returns = self.most_returns.max(part.returns);
                if code == Code::RetriesReturns && part.returns == 1 {
                    part.message = Some(Message::Return);
                }
            }
            None => {}
        }
    }
}

impl Model for CrossSlot {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let asked = Part {
            message: Some(Message::Request),
            ..Part::default()
        };
        let check = Check {
            parts: [asked; 2],
            ..Check::default()
        };
        vec![State {
            charged: [0; 2],
            most_returns: 0,
            checks: vec![check; CHECKS],
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.admitted() > usize::from(LIMITS[0]) {
            return;
        }
        for (index, check) in state.checks.iter().enumerate() {
            for (slot, part) in check.parts.iter().enumerate() {
                if part.known == Known::Asked && !check.has_crashed {
                    actions.push(Action::GiveUp(index, slot));
                }
                if part.message.is_some() {
                    actions.push(Action::Arrive(index, slot));
                    actions.push(Action::Lose(index, slot));
                }
            }
            if !check.is_over() {
                actions.push(Action::Leave(index));
                actions.push(Action::Crash(index));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let code = self.0;
        let mut state = last.clone();
        match action {
            Action::Arrive(index, slot) => state.arrive(index, slot, code),
            Action::Lose(index, slot) => state.checks[index].parts[slot].message = None,
            Action::GiveUp(index, slot) => {
                state.checks[index].answered(slot, Known::GivenUp, code);
            }
            Action::Leave(index) => state.checks[index].fail(code),
            Action::Crash(index) => state.checks[index].has_crashed = true,
        }
        for check in &mut state.checks {
            check.forget();
        }
        state.checks.sort();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(BEYOND, |_, state: &State| {
                state.admitted() <= usize::from(LIMITS[0])
            }),
            Property::always("given back at most once", |_, state: &State| {
                state.most_returns <= 1
            }),
            Property::always("what was admitted stays charged", |_, state: &State| {
                let admitted = state.admitted();
                state.charged.iter().all(|it| usize::from(*it) >= admitted)
            }),
            Property::sometimes("one takes what another gave back", |_, state: &State| {
                state.most_returns > 0 && state.admitted() == 1
            }),
            Property::sometimes("a unit stays charged for nobody", |_, state: &State| {
                let is_over = |it: &Check| it.parts.iter().all(|it| it.message.is_none());
                let all_over = state.checks.iter().all(is_over);
                all_over && state.admitted() == 0 && state.charged[0] > 0
            }),
        ]
    }
}

#[test]
fn nothing_is_admitted_beyond_the_limit_and_nothing_is_given_back_twice() {
    let checker = CrossSlot(Code::Right).checker().threads(2);
    let checker = checker.spawn_bfs().join();
    checker.assert_properties();
    println!("{} states", checker.unique_state_count());
}

#[test]
fn each_known_mutant_admits_too_much() {
    let mutants = [
        Code::ReturnsWhatWasDenied,
        Code::ReturnsWhatWasNotAnswered,
        Code::RetriesReturns,
        Code::AdmitsEarly,
    ];
    for code in mutants {
        let found = HasDiscoveries::AllOf([BEYOND].into());
        let checker = CrossSlot(code).checker().finish_when(found);
        // Depth first: this finds any one of the many failures, and not the shortest.
        let checker = checker.spawn_dfs().join();
        assert!(checker.discovery(BEYOND).is_some(), "{code:?}");
    }
}
