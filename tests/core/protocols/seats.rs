//! The seats of callers, under every order of the steps of callers that wait or leave, of their calls, of the keeper of
//! the deadlines, and of the end of its runtime.

mod sync {
    pub(super) use loom::sync::*;
}
#[path = "../../../src/store/redis/shared_calls/slab.rs"]
mod slab;

use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    task::{Poll, Wake, Waker},
    time::Duration,
};

use loom::{sync::Arc, thread};
use slab::{End, Watch};
use tokio::time::Instant;

type Slab = slab::Slab<&'static str, u8>;

const ANSWER: &str = "answer";
const RUNTIME: u8 = 1;

/// A task that remembers whether it was woken. Only the order in which threads reach the slab matters, so the flag is none
/// of loom's.
#[derive(Default)]
struct Task(AtomicBool);

impl Wake for Task {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

impl Task {
    fn new() -> (std::sync::Arc<Self>, Waker) {
        let task = std::sync::Arc::<Self>::default();
        let waker = Waker::from(std::sync::Arc::clone(&task));
        (task, waker)
    }

    fn is_woken(&self) -> bool {
        self.0.load(SeqCst)
    }
}

/// Tests all orders in which threads switch at most three times without waiting for each other.
fn every_order(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 50_000; // a crowd has many steps
    builder.check(model);
}

/// How a call treats a seat.
#[derive(Clone, Copy)]
enum Call {
    Answers,
    /// Its runtime ends after it has begun.
    Begins,
    /// Its runtime ends before.
    IsDropped,
}

const CALLS: [Call; 3] = [Call::Answers, Call::Begins, Call::IsDropped];

/// Runs a call with one seat in a thread, which returns whether the operation was sent.
fn run(call: Call, slab: &Arc<Slab>, seat: usize) -> thread::JoinHandle<bool> {
    let slab = Arc::clone(slab);
    thread::spawn(move || {
        if matches!(call, Call::IsDropped) {
            slab.lose(seat);
            return false;
        }
        let is_sent = slab.begin(seat);
        match call {
            _ if !is_sent => {}
            Call::Answers => slab.answer(seat, ANSWER),
            _ => slab.lose(seat),
        }
        is_sent
    })
}

fn in_thread<T: 'static>(
    slab: &Arc<Slab>,
    act: impl FnOnce(&Slab) -> T + 'static,
) -> thread::JoinHandle<T> {
    let slab = Arc::clone(slab);
    thread::spawn(move || act(&slab))
}

fn enter(slab: &Slab, deadline: Option<Instant>) -> (usize, Watch) {
    slab.enter(Waker::noop().clone(), deadline.map(|at| (at, RUNTIME)))
}

/// Whether there are seats for this number of callers, and each is free, once.
fn are_free(slab: &Slab, number: usize) -> bool {
    let mut seats: Vec<_> = (0..=number).map(|_| enter(slab, None).0).collect();
    seats.sort_unstable();
    seats.into_iter().eq(0..=number)
}

#[test]
fn a_caller_that_leaves_learns_whether_its_operation_is_sent() {
    for call in CALLS {
        every_order(move || {
            let slab = Arc::new(Slab::new());
            let (seat, _) = enter(&slab, None);
            let call = run(call, &slab, seat);
            let is_unsent = slab.leave(seat);
            assert_eq!(call.join().unwrap(), !is_unsent);
            assert!(are_free(&slab, 1));
        });
    }
}

#[test]
fn a_caller_that_waits_is_woken_for_its_answer_or_for_the_end_of_its_call() {
    for call in CALLS {
        every_order(move || {
            let slab = Arc::new(Slab::new());
            let (seat, _) = enter(&slab, None);
            let running = run(call, &slab, seat);
            let (task, waker) = Task::new();
            let early = slab.poll(seat, &waker);
            let is_sent = running.join().unwrap();
            let end = early.unwrap_or_else(|is_timed| {
                assert!(task.is_woken() && !is_timed);
                slab.poll(seat, &waker).unwrap()
            });
            let is_unsent = !is_sent;
            match call {
                Call::Answers => assert_eq!(end, End::Answered(ANSWER)),
                _ => assert_eq!(end, End::Lost { is_unsent }),
            }
            assert!(are_free(&slab, 1));
        });
    }
}

#[test]
fn a_call_is_woken_when_its_caller_has_left() {
    every_order(|| {
        let slab = Arc::new(Slab::new());
        let (seat, _) = enter(&slab, None);
        assert!(slab.begin(seat));
        let leaves = in_thread(&slab, move |slab| slab.leave(seat));
        let (task, waker) = Task::new();
        let has_left = slab.poll_left(seat, &waker).is_ready();
        assert!(!leaves.join().unwrap(), "it was sent");
        assert!(has_left || task.is_woken());
        assert_eq!(slab.poll_left(seat, &waker), Poll::Ready(()));
        slab.answer(seat, ANSWER);
        assert!(are_free(&slab, 1));
    });
}

#[test]
fn a_deadline_ends_a_wait_once_whatever_its_call_does() {
    for call in CALLS {
        every_order(move || {
            let slab = Arc::new(Slab::new());
            let now = Instant::now();
            let (task, waker) = Task::new();
            let (seat, watch) = slab.enter(waker.clone(), Some((now, RUNTIME)));
            assert_eq!(watch, Watch::Begin);
            let running = run(call, &slab, seat);
            let keeper = in_thread(&slab, move |slab| slab.look(now));
            let early = slab.poll(seat, &waker);
            let goes_on = keeper.join().unwrap();
            let is_sent = running.join().unwrap();
            assert!(!goes_on);
            let end = early.unwrap_or_else(|_| {
                assert!(task.is_woken());
                slab.poll(seat, &waker).unwrap()
            });
            match end {
                End::Answered(_) => assert!(is_sent),
                End::Lost { is_unsent } => assert_eq!(is_unsent, !is_sent),
                End::Late { is_unsent } => assert_eq!(is_unsent, !is_sent),
            }
            assert!(are_free(&slab, 1));
        });
    }
}

#[test]
fn a_caller_may_leave_while_its_deadline_passes() {
    for call in CALLS {
        every_order(move || {
            let slab = Arc::new(Slab::new());
            let now = Instant::now();
            let (seat, _) = enter(&slab, Some(now));
            let running = run(call, &slab, seat);
            let keeper = in_thread(&slab, move |slab| slab.look(now));
            let is_unsent = slab.leave(seat);
            keeper.join().unwrap();
            assert_eq!(running.join().unwrap(), !is_unsent);
            assert!(are_free(&slab, 1));
        });
    }
}

#[test]
fn no_deadline_is_left_without_a_keeper() {
    every_order(|| {
        let slab = Arc::new(Slab::new());
        let now = Instant::now();
        enter(&slab, Some(now));
        let keeper = in_thread(&slab, move |slab| slab.look(now));
        let (_, watch) = enter(&slab, Some(now + Duration::from_secs(1)));
        let goes_on = keeper.join().unwrap();
        let expected = if goes_on { Watch::Kept } else { Watch::Begin };
        assert_eq!(watch, expected);
        let (_, next) = enter(&slab, Some(now + Duration::from_secs(1)));
        assert_eq!(next, Watch::Kept);
    });
}

#[test]
fn a_caller_whose_keeper_ends_with_its_runtime_is_woken_for_a_timer() {
    every_order(|| {
        let slab = Arc::new(Slab::new());
        let later = Instant::now() + Duration::from_secs(1);
        enter(&slab, Some(later));
        let ends = in_thread(&slab, |slab| slab.end_looks());
        let (task, waker) = Task::new();
        let (seat, watch) = slab.enter(waker.clone(), Some((later, RUNTIME)));
        ends.join().unwrap();
        let is_timed = slab.poll(seat, &waker).unwrap_err();
        match watch {
            Watch::Kept => assert!(task.is_woken() && !is_timed),
            _ => assert!(watch == Watch::Begin && is_timed),
        }
    });
}

#[test]
fn a_keeper_looks_at_the_earliest_deadline_of_its_own_runtime() {
    every_order(|| {
        let slab = Slab::new();
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let (task, keeper) = Task::new();
        assert_eq!(slab.next_look(&keeper), None);
        let (late, _) = enter(&slab, Some(after(9)));
        assert_eq!(slab.next_look(&keeper), Some(after(9)));
        enter(&slab, Some(after(10)));
        assert!(!task.is_woken());
        let (early, watch) = enter(&slab, Some(after(5)));
        assert!(watch == Watch::Kept && task.is_woken());
        assert_eq!(slab.next_look(&keeper), Some(after(5)));
        let of_another = Some((after(1), RUNTIME + 1));
        let (other, watch) = slab.enter(keeper.clone(), of_another);
        assert_eq!(watch, Watch::No);
        assert!(slab.look(after(6)));
        assert_eq!(slab.next_look(&keeper), Some(after(9)));
        assert_eq!(slab.poll(late, &keeper), Err(true));
        assert_eq!(slab.poll(other, &keeper), Err(false));
        let is_late = End::Late { is_unsent: true };
        assert_eq!(slab.poll(early, &keeper), Ok(is_late));
    });
}

#[test]
fn a_keeper_is_woken_to_end_with_the_slab() {
    every_order(|| {
        let slab = Slab::new();
        let (task, keeper) = Task::new();
        enter(&slab, Some(Instant::now() + Duration::from_secs(1)));
        assert!(slab.next_look(&keeper).is_some());
        drop(slab);
        assert!(task.is_woken());
    });
}

#[test]
fn the_seats_of_a_crowd_that_has_left_take_no_memory() {
    every_order(|| {
        let slab = Slab::new();
        let crowd: Vec<_> = (0..2_000).map(|_| enter(&slab, None).0).collect();
        for seat in crowd {
            assert!(slab.leave(seat));
            assert!(!slab.begin(seat));
        }
        assert!(are_free(&slab, 0), "the first seat is one of new memory");
    });
}
