//! Two processes with a deny cache each, in front of one server: every order of questions, answers, refunds, losses,
//! crashes and ticks of the clock. The model uses the real code for times, and finds each known mistake in it.
//!
//! The promises:
//!
//! - A process refuses no request that the server would admit, except after a refund elsewhere, or a refund without a
//!   waiting caller, less than [`MAX_AGE`] ago.
//! - A client that comes back after exactly the given delay is admitted, if no other client came first.

use std::time::Duration;

use stateright::{Checker, HasDiscoveries, Model, Property};

use validity::{MAX_AGE, Validity};

#[path = "../../../src/limiter/refusals/validity.rs"]
#[allow(dead_code, reason = "the cache uses the rest")]
mod validity;

/// The code, or a mistake in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    AsItIs,
    /// The time of a denial begins with the answer, and not with the question.
    FromTheAnswer,
    WithoutOneMillisecond,
    WithoutMaxAge,
    /// The delay shrinks from the question on, and not from the answer on.
    ToldFromTheQuestion,
    /// Refunds through this process are not recorded.
    WithoutNotes,
    /// The last refund is read with the answer, and not before the question.
    NotesReadLate,
    /// Refunds are recorded before the question to the server, and not after its answer.
    NotedEarly,
}

/// One identity with a limit of one unit, and steps of a millisecond.
#[derive(Clone, Debug)]
struct Protocol {
    rule: Rule,
    tick: Duration,
    window_ms: u64,
    ticks: u32,
}

/// The clocks of the processes differ from the server's clock, which counts whole milliseconds.
const AHEAD: [Duration; 2] = [Duration::from_micros(7_300), Duration::ZERO];

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct State {
    ticks: u32,
    /// The phase of the server's clock, in quarters of a millisecond.
    phase: u32,
    /// The time of the charge, by the server's clock.
    charged_ms: Option<u64>,
    admissions: u8,
    /// The number of questions and refunds that were sent.
    sent: u8,
    /// The number of losses, crashes and callers that left.
    faults: u8,
    /// The messages on their way; sorted.
    messages: Vec<Message>,
    processes: [Process; 2],
}

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct Process {
    remembered: Option<Denied>,
    /// The number of refunds through this process.
    given_back: u8,
    /// The admission that this process can refund.
    admitted_ms: Option<u64>,
    /// The last tick with a refund that this process did not learn of.
    unknown_at: Option<u32>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct Denied {
    asked: Duration,
    answered: Duration,
    denied_for_ms: u64,
    given_back: u8,
    admissions: u8,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    process: usize,
    /// Whether a caller waits for the answer.
    is_awaited: bool,
    body: Body,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
enum Body {
    Check {
        asked: Duration,
        given_back: u8,
    },
    Admitted {
        at_ms: u64,
    },
    Denied {
        asked: Duration,
        given_back: u8,
        denied_for_ms: u64,
        admissions: u8,
    },
    /// The charge to refund.
    GiveBack {
        at_ms: u64,
    },
    GivenBack,
}

impl Body {
    const fn is_question(&self) -> bool {
        matches!(self, Self::Check { .. } | Self::GiveBack { .. })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Tick,
    Ask(usize),
    GiveBack(usize),
    /// A message reaches the server, or its process.
    Deliver(usize),
    /// A message is lost, and the caller gives up.
    Lose(usize),
    /// The caller no longer waits for the answer to a message.
    Leave(usize),
    Crash(usize),
    /// The server loses its data.
    Forget,
}

impl Action {
    /// At most one of these happens, so that the search ends. It happens at every possible place.
    const fn is_fault(self) -> bool {
        matches!(
            self,
            Self::Lose(_) | Self::Leave(_) | Self::Crash(_) | Self::Forget
        )
    }
}

impl State {
    fn ask(&mut self, process: usize, body: Body) {
        let is_awaited = true;
        self.messages.push(Message {
            process,
            is_awaited,
            body,
        });
    }
}

impl Protocol {
    /// The time of the server's clock.
    fn server_ms(&self, state: &State) -> u64 {
        Self::server_ms_at(state, self.tick * state.ticks)
    }

    fn server_ms_at(state: &State, time: Duration) -> u64 {
        let now = time + Duration::from_micros(250) * state.phase;
        now.as_millis().try_into().unwrap()
    }

    /// The time of a process's clock.
    fn now(&self, state: &State, process: usize) -> Duration {
        self.tick * state.ticks + AHEAD[process]
    }

    /// The delay of a denial by the server.
    fn denied_for_ms(&self, state: &State) -> Option<u64> {
        let release_ms = state.charged_ms? + 1 + self.window_ms;
        let rest_ms = release_ms.checked_sub(self.server_ms(state));
        rest_ms.filter(|ms| *ms > 0)
    }

    /// The refusal that a process would repeat now.
    fn repeated<'a>(&self, state: &'a State, process: usize) -> Option<&'a Denied> {
        let own = &state.processes[process];
        let now = self.now(state, process);
        let holds = |it: &&Denied| it.given_back == own.given_back && self.holds(it, now);
        own.remembered.as_ref().filter(holds)
    }

    fn validity(&self, denied: &Denied) -> Validity {
        let (asked, answered) = (denied.asked, denied.answered);
        let span = Duration::from_millis(denied.denied_for_ms);
        let tick = Duration::from_millis(1);
        match self.rule {
            Rule::FromTheAnswer => Validity::new(answered, answered, Some(span)),
            Rule::WithoutOneMillisecond => Validity::new(asked, answered, Some(span + tick)),
            _ => Validity::new(asked, answered, Some(span)),
        }
    }

    fn holds(&self, denied: &Denied, now: Duration) -> bool {
        match self.rule {
            Rule::WithoutMaxAge => {
                now < denied.asked + Duration::from_millis(denied.denied_for_ms - 1)
            }
            _ => self.validity(denied).holds(now),
        }
    }

    /// The delay that a client gets from the cache.
    fn told(&self, denied: &Denied, now: Duration) -> Duration {
        let since = match self.rule {
            Rule::ToldFromTheQuestion => denied.asked,
            _ => denied.answered,
        };
        let age_ms = Validity::new(denied.asked, since, None).age_ms(now);
        Duration::from_millis(denied.denied_for_ms.saturating_sub(age_ms))
    }

    /// The server executes a message.
    fn serve(&self, state: &mut State, message: &Message) -> Body {
        match message.body {
            Body::Check { asked, given_back } => match self.denied_for_ms(state) {
                Some(denied_for_ms) => Body::Denied {
                    asked,
                    given_back,
                    denied_for_ms,
                    admissions: state.admissions,
                },
                None => {
                    let at_ms = self.server_ms(state);
                    state.charged_ms = Some(at_ms);
                    state.admissions += 1;
                    Body::Admitted { at_ms }
                }
            },
            Body::GiveBack { at_ms } => {
                if state.charged_ms == Some(at_ms) {
                    state.charged_ms = None;
                    for (process, own) in state.processes.iter_mut().enumerate() {
                        if process != message.process || !message.is_awaited {
                            own.unknown_at = Some(state.ticks);
                        }
                    }
                }
                Body::GivenBack
            }
            _ => unreachable!("it is an answer"),
        }
    }

    /// A process receives an answer.
    fn hear(&self, state: &mut State, message: &Message) {
        let now = self.now(state, message.process);
        let own = &mut state.processes[message.process];
        match message.body {
            Body::Admitted { at_ms } => own.admitted_ms = Some(at_ms),
            Body::Denied {
                asked,
                given_back,
                denied_for_ms,
                admissions,
            } => {
                let is_late = self.rule == Rule::NotesReadLate;
                own.remembered = Some(Denied {
                    asked,
                    answered: now,
                    denied_for_ms,
                    given_back: if is_late { own.given_back } else { given_back },
                    admissions,
                });
            }
            Body::GivenBack => self.note(own, false),
            Body::Check { .. } | Body::GiveBack { .. } => unreachable!("it is no answer"),
        }
    }

    fn note(&self, process: &mut Process, is_sent: bool) {
        let notes = match self.rule {
            Rule::WithoutNotes => false,
            Rule::NotedEarly => is_sent,
            _ => !is_sent,
        };
        process.given_back += u8::from(notes);
    }

    /// The caller no longer waits.
    fn leave(&self, state: &mut State, message: &Message) {
        if matches!(message.body, Body::GiveBack { .. } | Body::GivenBack) {
            self.note(&mut state.processes[message.process], false);
        }
    }

    fn never_refuses_later_than_the_server(&self, state: &State) -> bool {
        let admits = self.denied_for_ms(state).is_none();
        (0..2).all(|process| {
            let is_excused = self.is_excused(state.processes[process].unknown_at, state.ticks);
            // The caller does not know of the refund yet: its question is on its way.
            let tells = |it: &Message| it.is_awaited && it.body == Body::GivenBack;
            let mut own = state.messages.iter().filter(|it| it.process == process);
            let is_telling = own.any(tells);
            !admits || is_excused || is_telling || self.repeated(state, process).is_none()
        })
    }

    /// A client that comes back in time is admitted, unless another client was admitted since the server's answer.
    fn admits_who_obeys(&self, state: &State) -> bool {
        (0..2).all(|process| {
            let Some(denied) = self.repeated(state, process) else {
                return true;
            };
            let now = self.now(state, process);
            let back_at = now + self.told(denied, now);
            let server_ms = Self::server_ms_at(state, back_at - AHEAD[process]);
            let release_ms = state.charged_ms.map(|ms| ms + 1 + self.window_ms);
            denied.admissions != state.admissions
                || (release_ms.is_none_or(|it| it <= server_ms) && !self.holds(denied, back_at))
        })
    }

    /// Drops details that make no difference, to reduce the number of states.
    fn tidy(&self, state: &mut State) {
        if self.denied_for_ms(state).is_none() {
            state.charged_ms = None;
        }
        for process in 0..2 {
            if self.repeated(state, process).is_none() {
                state.processes[process].remembered = None;
            }
            let own = &mut state.processes[process];
            if own.admitted_ms != state.charged_ms {
                own.admitted_ms = None;
            }
            if !self.is_excused(own.unknown_at, state.ticks) {
                own.unknown_at = None;
            }
        }
        state.messages.sort();
    }

    /// Whether a refund elsewhere excuses a late refusal.
    fn is_excused(&self, unknown_at: Option<u32>, ticks: u32) -> bool {
        unknown_at.is_some_and(|at| self.tick * (ticks - at) < MAX_AGE)
    }
}

/// An admission, a denial, and one refund or question in between.
const MAX_SENT: u8 = 3;

const NEVER_LATER: &str = "no process refuses later than the server would";
const OBEDIENT: &str = "whoever comes back at the time told is admitted";

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let state = |phase| State {
            ticks: 0,
            phase,
            charged_ms: None,
            admissions: 0,
            sent: 0,
            faults: 0,
            messages: Vec::new(),
            processes: Default::default(),
        };
        // More would be the same as beginning a tick later.
        (0..2).map(state).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.ticks < self.ticks {
            actions.push(Action::Tick);
        }
        for process in 0..2 {
            if state.sent < MAX_SENT && self.repeated(state, process).is_none() {
                actions.push(Action::Ask(process));
            }
            if state.sent < MAX_SENT && state.processes[process].admitted_ms.is_some() {
                actions.push(Action::GiveBack(process));
            }
        }
        for place in 0..state.messages.len() {
            actions.push(Action::Deliver(place));
        }
        if state.faults == 0 {
            actions.extend((0..2).map(Action::Crash));
            for (place, message) in state.messages.iter().enumerate() {
                actions.push(Action::Lose(place));
                if message.is_awaited {
                    actions.push(Action::Leave(place));
                }
            }
            if state.charged_ms.is_some() {
                actions.push(Action::Forget);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.faults += u8::from(action.is_fault());
        match action {
            Action::Tick => state.ticks += 1,
            Action::Ask(process) => {
                state.sent += 1;
                let asked = self.now(&state, process);
                let given_back = state.processes[process].given_back;
                state.ask(process, Body::Check { asked, given_back });
            }
            Action::GiveBack(process) => {
                state.sent += 1;
                let own = &mut state.processes[process];
                let at_ms = own.admitted_ms.take()?;
                self.note(own, true);
                state.ask(process, Body::GiveBack { at_ms });
            }
            Action::Deliver(place) => {
                let message = state.messages.remove(place);
                if message.body.is_question() {
                    let body = self.serve(&mut state, &message);
                    if message.is_awaited {
                        state.messages.push(Message { body, ..message });
                    }
                } else {
                    self.hear(&mut state, &message);
                }
            }
            Action::Lose(place) => {
                let message = state.messages.remove(place);
                if message.is_awaited {
                    self.leave(&mut state, &message);
                }
            }
            Action::Leave(place) => {
                let message = state.messages[place].clone();
                self.leave(&mut state, &message);
                if message.body.is_question() {
                    state.messages[place].is_awaited = false;
                } else {
                    state.messages.remove(place);
                }
            }
            Action::Crash(process) => {
                for message in &mut state.messages {
                    message.is_awaited &= message.process != process;
                }
                let messages = &mut state.messages;
                messages.retain(|it| it.is_awaited || it.body.is_question());
                state.processes[process] = Process::default();
            }
            Action::Forget => {
                state.charged_ms = None;
                for process in &mut state.processes {
                    process.unknown_at = Some(state.ticks);
                }
            }
        }
        self.tidy(&mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NEVER_LATER, Self::never_refuses_later_than_the_server),
            Property::always(OBEDIENT, Self::admits_who_obeys),
        ]
    }
}

/// Ticks of half a millisecond, for the edges.
fn fine(rule: Rule) -> Protocol {
    Protocol {
        rule,
        tick: Duration::from_micros(500),
        window_ms: 1,
        ticks: 6,
    }
}

/// Ticks of half a second, for late notice.
fn coarse(rule: Rule) -> Protocol {
    Protocol {
        rule,
        tick: Duration::from_millis(500),
        window_ms: 2_000,
        ticks: 5,
    }
}

/// The broken promise, if there is one.
fn broken(protocol: Protocol) -> Option<&'static str> {
    let checker = protocol
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    println!("{} states", checker.unique_state_count());
    let mut promises = [NEVER_LATER, OBEDIENT].into_iter();
    promises.find(|it| checker.discovery(it).is_some())
}

#[test]
fn the_promises_hold_whatever_happens() {
    assert_eq!(broken(fine(Rule::AsItIs)), None);
    assert_eq!(broken(coarse(Rule::AsItIs)), None);
}

#[test]
fn each_known_mistake_breaks_a_promise() {
    for rule in [
        Rule::FromTheAnswer,
        Rule::WithoutOneMillisecond,
        Rule::WithoutNotes,
        Rule::NotesReadLate,
        Rule::NotedEarly,
    ] {
        assert_eq!(broken(fine(rule)), Some(NEVER_LATER), "{rule:?}");
    }
    assert_eq!(broken(coarse(Rule::WithoutMaxAge)), Some(NEVER_LATER));
    // This makes a difference of a millisecond if a denial is repeated for longer than that.
    let told = Protocol {
        window_ms: 2,
        ..fine(Rule::ToldFromTheQuestion)
    };
    assert_eq!(broken(told), Some(OBEDIENT));
}
