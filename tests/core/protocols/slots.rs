//! A state machine of slots between processes, searched exhaustively: messages that come twice, late, reordered or
//! never, processes that stop, crash and come back, and clocks that begin their milliseconds at other times.
//!
//! Time is counted in halves of a millisecond. The store's clock and that of each holder show whole milliseconds, and
//! begin them at different halves.

use std::collections::BTreeMap;

use stateright::{Checker, HasDiscoveries, Model, Property};

/// In halves of a millisecond.
const WINDOW: u8 = 6;
/// How long a holder is sure of a slot: a millisecond less, as the store's may have begun that much earlier.
const SURE: u8 = WINDOW - 2;
/// How long the search goes on.
const END: u8 = 10;
const LIMIT: usize = 1;
/// The most takes of each process, each with another id.
const TAKES: [u8; 2] = [1, 1];

const BEYOND: &str = "never more holders than the limit";
const ROBBED: &str = "no holder that was renewed in time loses its slot";
const REVIVED: &str = "a slot that is not held any more is never held again";
const LEAKED: &str = "a slot is free one window after the last message about it";

/// The code, or a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Code {
    Right,
    /// The holder's time counts from the answer, not from before the message.
    CountsFromAnswer,
    /// The holder's time counts from the renewal, whether the store answers or not.
    CountsWithoutAnswer,
    /// The holder's time includes the millisecond after the last.
    HoldsOneMore,
    /// The holder believes the answer to a renewal after the end of the time.
    BelievesLateAnswers,
    /// The store renews an id without reading the expiry.
    Revives,
    /// A take that comes twice takes again, although the id has expired in between or is held.
    TakesWithoutCounting,
    /// A return frees whichever slot is there.
    ReturnsAny,
    /// The store sets the expiry one window after the end of the millisecond.
    ReleasesLate,
}

type Id = (usize, u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Kind {
    Take,
    Renew,
    Return,
}

/// A message to the store, which may arrive at any time, and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Message {
    kind: Kind,
    id: Id,
    /// The time of the holder when this was sent.
    sent: u8,
}

/// A holder and the end of the time of which it is sure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Holder {
    takes: u8,
    until: u8,
    is_asking: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    holders: Vec<Holder>,
    /// Ids with their expiry, by the store's clock.
    stored: BTreeMap<Id, u8>,
    messages: Vec<Message>,
    /// The answers on their way, and whether the slot was taken or renewed.
    answers: Vec<(Message, bool)>,
    /// When a message arrived last.
    last_message: u8,
    has_robbed: bool,
    has_revived: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Wait,
    Ask(usize),
    Renew(usize),
    /// If the message is lost, the process has crashed.
    Return(usize),
    /// A message arrives, and may arrive again.
    Arrive(usize, bool),
    Lose(usize),
    Answer(usize),
}

struct Slots(Code);

impl Slots {
    /// The whole milliseconds of the store's clock.
    const fn store_time(now: u8) -> u8 {
        now - now % 2
    }

    /// The last beginning of a millisecond of a holder's clock, at another half for each.
    fn time(now: u8, holder: usize) -> u8 {
        let shift = u8::try_from(holder % 2).unwrap();
        now - (now + shift) % 2
    }

    fn is_held(state: &State, holder: usize) -> bool {
        state.now < state.holders[holder].until
    }

    fn arrive(&self, state: &mut State, message: Message) {
        let now = Self::store_time(state.now);
        let late = u8::from(self.0 == Code::ReleasesLate) * 2;
        let held = |stored: &BTreeMap<Id, u8>| stored.values().filter(|it| **it > now).count();
        let expiry = state.stored.get(&message.id);
        let is_held = expiry.is_some_and(|expiry| *expiry > now);
        state.last_message = state.now;
        let done = match message.kind {
            Kind::Take => {
                let fits = is_held || held(&state.stored) < LIMIT;
                let fits = fits || self.0 == Code::TakesWithoutCounting;
                if fits && !is_held {
                    state.stored.insert(message.id, now + WINDOW + late);
                }
                fits
            }
            Kind::Renew => {
                let renews = is_held || self.0 == Code::Revives;
                if renews {
                    state.stored.insert(message.id, now + WINDOW + late);
                }
                let (holder, number) = message.id;
                let is_current = state.holders[holder].takes == number;
                state.has_revived |= renews && !is_held;
                state.has_robbed |= is_current && Self::is_held(state, holder) && !renews;
                renews
            }
            Kind::Return if self.0 == Code::ReturnsAny => {
                state.stored.pop_first();
                return;
            }
            Kind::Return => {
                state.stored.remove(&message.id);
                return;
            }
        };
        state.answers.push((message, done));
    }

    fn answer(&self, state: &mut State, (message, done): (Message, bool)) {
        let (holder, number) = message.id;
        if state.holders[holder].takes != number || !state.holders[holder].is_asking {
            return;
        }
        let was_held = Self::is_held(state, holder);
        state.holders[holder].is_asking = false;
        let believes = match message.kind {
            Kind::Take => true,
            _ => was_held || self.0 == Code::BelievesLateAnswers,
        };
        let until = match self.0 {
            Code::CountsFromAnswer => state.now + SURE,
            Code::HoldsOneMore => message.sent + WINDOW,
            _ => message.sent + SURE,
        };
        if done && believes {
            state.has_revived |= message.kind == Kind::Renew && !was_held;
            state.holders[holder].until = until.max(state.holders[holder].until);
        } else {
            state.holders[holder].until = 0;
            self.send(state, Kind::Return, message.id);
        }
    }

    fn send(&self, state: &mut State, kind: Kind, id: Id) {
        let sent = Self::time(state.now, id.0);
        state.messages.push(Message { kind, id, sent });
        state.messages.sort();
        if kind == Kind::Renew && self.0 == Code::CountsWithoutAnswer {
            state.holders[id.0].until = sent + SURE;
        }
    }
}

impl Model for Slots {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 1,
            holders: vec![Holder::default(); 2],
            stored: BTreeMap::new(),
            messages: Vec::new(),
            answers: Vec::new(),
            last_message: 1,
            has_robbed: false,
            has_revived: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < END {
            actions.push(Action::Wait);
        }
        let has_room = state.messages.len() < 2;
        for (place, holder) in state.holders.iter().enumerate() {
            let is_held = Self::is_held(state, place);
            if has_room && !is_held && !holder.is_asking && holder.takes < TAKES[place] {
                actions.push(Action::Ask(place));
            }
            if has_room && is_held && !holder.is_asking {
                actions.push(Action::Renew(place));
            }
            if has_room && (is_held || holder.is_asking) {
                actions.push(Action::Return(place));
            }
        }
        for message in 0..state.messages.len() {
            actions.push(Action::Arrive(message, false));
            actions.push(Action::Arrive(message, true));
            actions.push(Action::Lose(message));
        }
        actions.extend((0..state.answers.len()).map(Action::Answer));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Wait => state.now += 1,
            Action::Ask(holder) => {
                state.holders[holder].takes += 1;
                state.holders[holder].is_asking = true;
                state.holders[holder].until = 0;
                let id = (holder, state.holders[holder].takes);
                self.send(&mut state, Kind::Take, id);
            }
            Action::Renew(holder) => {
                state.holders[holder].is_asking = true;
                let id = (holder, state.holders[holder].takes);
                self.send(&mut state, Kind::Renew, id);
            }
            Action::Return(holder) => {
                state.holders[holder].until = 0;
                state.holders[holder].is_asking = false;
                let id = (holder, state.holders[holder].takes);
                self.send(&mut state, Kind::Return, id);
            }
            Action::Arrive(place, again) => {
                let message = match again {
                    true => state.messages[place],
                    false => state.messages.remove(place),
                };
                self.arrive(&mut state, message);
            }
            Action::Lose(place) => drop(state.messages.remove(place)),
            Action::Answer(place) => {
                let answer = state.answers.remove(place);
                self.answer(&mut state, answer);
            }
        }
        state.answers.sort();
        state.answers.dedup();
        (state.answers.len() <= 1).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(BEYOND, |_, state: &State| {
                let held = (0..2).filter(|holder| Self::is_held(state, *holder));
                held.count() <= LIMIT
            }),
            Property::always(ROBBED, |_, state: &State| !state.has_robbed),
            Property::always(REVIVED, |_, state: &State| !state.has_revived),
            Property::always(LEAKED, |_, state: &State| {
                let mut expiries = state.stored.values();
                expiries.all(|expiry| *expiry <= state.last_message + WINDOW)
            }),
        ]
    }
}

fn found(code: Code) -> Vec<&'static str> {
    let checker = Slots(code).checker();
    let checker = checker.finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_dfs().join();
    checker.discoveries().into_keys().collect()
}

#[test]
fn never_more_holders_than_the_limit_and_no_slot_is_taken_from_its_holder() {
    assert_eq!(found(Code::Right), Vec::<&str>::new());
}

#[test]
fn each_known_mutant_fails() {
    let breaks = [
        (Code::CountsFromAnswer, ROBBED),
        (Code::CountsWithoutAnswer, ROBBED),
        (Code::HoldsOneMore, BEYOND),
        (Code::BelievesLateAnswers, REVIVED),
        (Code::Revives, REVIVED),
        (Code::TakesWithoutCounting, BEYOND),
        (Code::ReturnsAny, ROBBED),
        (Code::ReleasesLate, LEAKED),
    ];
    assert_eq!(breaks.map(|(code, _)| (code, found(code)[0])), breaks);
}
