//! [`Turns`]: lets some callers of a queue ask the store at the same time.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::time::Instant;

use crate::limiter::{FOR_EVER, timeout::within};

/// The maximum number of concurrent askers, so that a crowd does not hit a server all at once.
const MOST: u64 = 256;

/// Turns, which callers take in order of arrival.
///
/// The first caller asks alone. Its answer says how many units are left, and that many callers may then ask at the same
/// time, so that the round trip does not limit admissions; a denial allows one again.
///
/// A caller whose runtime is parked may never give its turn back. When all turns are overdue, the first waiting caller
/// therefore revokes them and takes the only turn. Its runtime may be parked as well: the second caller watches for
/// turns that are overdue by its allowance, the third for twice that, and so on. The first caller that is not parked
/// comes next, and even in a long queue few timers expire.
#[derive(Debug)]
pub(super) struct Turns {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    arrivals: u64,
    /// In order of arrival. Callers wait only while all turns are taken.
    waiting: VecDeque<Waiting>,
    /// Callers that have a turn but have not noticed yet.
    granted: Vec<u64>,
    /// Turns in use, including those granted but not noticed.
    taken: usize,
    wanted: usize,
    /// How often turns were revoked: turns of earlier generations no longer count.
    generation: u64,
    /// All turns are overdue from this time on.
    overdue_at: Instant,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    allowance: Duration,
    waker: Waker,
}

/// A caller without a turn.
///
/// Dropping a caller gives up its place, or a turn that it has not noticed.
struct Caller<'a> {
    turns: &'a Turns,
    number: u64,
    allowance: Duration,
    has_turn: bool,
}

/// A turn, given back when dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    generation: u64,
    allowance: Duration,
}

/// Wakers to call after the lock is released.
type Wakers = SmallVec<[Waker; 2]>;

impl Turns {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                arrivals: 0,
                waiting: VecDeque::new(),
                granted: Vec::new(),
                taken: 0,
                wanted: 1,
                generation: 0,
                overdue_at: Instant::now(),
            }),
        }
    }

    /// Waits for a turn. The turn is overdue when its caller is `allowance` late with its [work](Turn::works_until).
    pub(super) async fn take(&self, allowance: Duration) -> Turn<'_> {
        let mut caller = Caller::arrive(self, allowance);
        loop {
            let (rank, rest) = caller.watch();
            let turn = poll_fn(|cx| caller.poll(rank, cx));
            let turn = within(rest, turn).await;
            if let Some(turn) = turn.unwrap_or_else(|| caller.give_up_overdue()) {
                return turn;
            }
        }
    }

    /// Sets how many callers may ask at the same time: at least one.
    pub(super) fn set_number(&self, wanted: u64) {
        let wanted = usize::try_from(wanted.clamp(1, MOST)).unwrap_or(1);
        self.change(|state, _| state.wanted = wanted);
    }

    /// Gives free turns to waiting callers after a change, and lets a new first caller watch.
    fn change<T>(&self, change: impl FnOnce(&mut State, &mut Wakers) -> T) -> T {
        let mut wakers = Wakers::new();
        let mut state = self.state();
        let first = state.first();
        let changed = change(&mut state, &mut wakers);
        state.hand_out(&mut wakers);
        if state.first() != first {
            wakers.extend(state.waiting.front().map(|first| first.waker.clone()));
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        changed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn first(&self) -> Option<u64> {
        self.waiting.front().map(|first| first.number)
    }

    /// How many callers wait ahead.
    fn rank(&self, number: u64) -> usize {
        self.waiting
            .partition_point(|caller| caller.number < number)
    }

    fn waits_at(&self, rank: usize, number: u64) -> bool {
        let there = self.waiting.get(rank);
        there.is_some_and(|there| there.number == number)
    }

    /// Until when a caller of this rank assumes that the turns are in use.
    fn watched_until(&self, rank: usize, allowance: Duration) -> Instant {
        let rank = u32::try_from(rank).unwrap_or(u32::MAX);
        let more = allowance.saturating_mul(rank).min(FOR_EVER);
        self.overdue_at + more
    }

    fn hand_out(&mut self, wakers: &mut Wakers) {
        while self.taken < self.wanted
            && let Some(next) = self.waiting.pop_front()
        {
            self.begin(next.allowance);
            self.granted.push(next.number);
            wakers.push(next.waker);
        }
    }

    /// Counts one more turn, in use from now on.
    fn begin(&mut self, allowance: Duration) {
        self.taken += 1;
        self.overdue_at = self.overdue_at.max(Instant::now() + allowance);
    }

    fn take_granted(&mut self, number: u64) -> bool {
        let place = self.granted.iter().position(|granted| *granted == number);
        place.map(|place| self.granted.swap_remove(place)).is_some()
    }
}

impl<'a> Caller<'a> {
    fn arrive(turns: &'a Turns, allowance: Duration) -> Self {
        let mut state = turns.state();
        state.arrivals += 1;
        let number = state.arrivals;
        drop(state);
        Self {
            turns,
            number,
            allowance,
            has_turn: false,
        }
    }

    /// Its rank, and how long to watch from now on.
    fn watch(&self) -> (usize, Duration) {
        let state = self.turns.state();
        let rank = state.rank(self.number);
        let until = state.watched_until(rank, self.allowance);
        (rank, until.saturating_duration_since(Instant::now()))
    }

    /// The turn; `None` if the caller has become the first while watching at another rank.
    fn poll(&mut self, watches_as: usize, cx: &Context<'_>) -> Poll<Option<Turn<'a>>> {
        let mut state = self.turns.state();
        if state.take_granted(self.number) {
            return Poll::Ready(Some(self.turn(&state)));
        }
        if state.taken < state.wanted {
            state.begin(self.allowance);
            return Poll::Ready(Some(self.turn(&state)));
        }
        let rank = state.rank(self.number);
        if state.waits_at(rank, self.number) {
            state.waiting[rank].waker.clone_from(cx.waker());
        } else {
            // The caller is new, or was passed over and is awake after all.
            let waiting = Waiting {
                number: self.number,
                allowance: self.allowance,
                waker: cx.waker().clone(),
            };
            state.waiting.insert(rank, waiting);
        }
        match rank {
            0 if watches_as > 0 => Poll::Ready(None),
            _ => Poll::Pending,
        }
    }

    /// Takes the only turn if all are overdue. Callers ahead had more time to do so, and are passed over.
    fn give_up_overdue(&mut self) -> Option<Turn<'a>> {
        let turns = self.turns;
        turns.change(|state, wakers| {
            let rank = state.rank(self.number);
            let watched_until = state.watched_until(rank, self.allowance);
            if !state.waits_at(rank, self.number) || watched_until > Instant::now() {
                return None;
            }
            let passed = state.waiting.drain(..=rank);
            wakers.extend(passed.map(|passed| passed.waker));
            state.granted.clear();
            state.generation += 1;
            (state.taken, state.wanted) = (0, 1);
            state.begin(self.allowance);
            Some(self.turn(state))
        })
    }

    fn turn(&mut self, state: &State) -> Turn<'a> {
        self.has_turn = true;
        Turn {
            turns: self.turns,
            generation: state.generation,
            allowance: self.allowance,
        }
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        if self.has_turn {
            return;
        }
        self.turns.change(|state, wakers| {
            let rank = state.rank(self.number);
            if state.waits_at(rank, self.number) {
                wakers.extend(state.waiting.remove(rank).map(|left| left.waker));
            } else if state.take_granted(self.number) {
                state.taken -= 1;
            }
        });
    }
}

impl Turn<'_> {
    /// Notes when the caller will ask the store or wake. If it does neither for its allowance after that, the turn is
    /// overdue.
    pub(super) fn works_until(&self, then: Instant) {
        let mut state = self.turns.state();
        if self.generation == state.generation {
            state.overdue_at = state.overdue_at.max(then + self.allowance);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.change(|state, _| {
            if self.generation == state.generation {
                state.taken -= 1;
            }
        });
    }
}
