//! The seats of callers, under every order of the steps of callers that wait or leave, of their calls, and of the keeper
//! of the deadlines.

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
use slab::End;
use tokio::time::Instant;

use super::every_order;

type Slab = slab::Slab<&'static str>;

const ANSWER: &str = "answer";

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
            slab.end(seat, None);
            return false;
        }
        let is_sent = slab.begin(seat);
        match call {
            _ if !is_sent => {}
            Call::Answers => slab.end(seat, Some(ANSWER)),
            _ => slab.end(seat, None),
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

fn enter(slab: &Slab, deadline: Option<Instant>) -> (usize, bool) {
    slab.enter(Waker::noop().clone(), deadline)
}

/// The end of a wait, which is there now or by another poll.
fn ended(
    early: Poll<End<&'static str>>,
    again: impl FnOnce() -> Poll<End<&'static str>>,
) -> End<&'static str> {
    match early {
        Poll::Ready(end) => end,
        Poll::Pending => match again() {
            Poll::Ready(end) => end,
            Poll::Pending => panic!("it was woken for nothing"),
        },
    }
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
            let is_unsent = slab.is_never_sent(seat);
            if !is_unsent {
                slab.leave(seat);
            }
            assert_eq!(call.join().unwrap(), !is_unsent);
            assert!(are_free(&slab, 1));
        });
    }
}

#[test]
fn a_caller_in_time_or_late_is_woken_for_the_answer_or_the_end_of_its_call() {
    for (call, is_late) in CALLS
        .into_iter()
        .flat_map(|call| [(call, false), (call, true)])
    {
        every_order(move || {
            let slab = Arc::new(Slab::new());
            let (seat, _) = enter(&slab, None);
            let running = run(call, &slab, seat);
            if is_late && slab.is_never_sent(seat) {
                assert!(!running.join().unwrap());
                assert!(are_free(&slab, 1));
                return;
            }
            let (task, waker) = Task::new();
            let early = slab.poll(seat, &waker);
            let is_sent = running.join().unwrap();
            let end = ended(early, || {
                assert!(task.is_woken());
                slab.poll(seat, &waker)
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
        let leaves = in_thread(&slab, move |slab| {
            assert!(!slab.is_never_sent(seat), "it was sent");
            slab.leave(seat);
        });
        let (task, waker) = Task::new();
        let has_left = slab.poll_wait(seat, &waker) == Poll::Ready(true);
        leaves.join().unwrap();
        assert!(has_left || task.is_woken());
        assert_eq!(slab.poll_wait(seat, &waker), Poll::Ready(true));
        slab.end(seat, Some(ANSWER));
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
            let (seat, begins) = slab.enter(waker.clone(), Some(now));
            assert!(begins);
            let running = run(call, &slab, seat);
            let keeper = in_thread(&slab, move |slab| slab.look(now));
            let early = slab.poll(seat, &waker);
            let goes_on = keeper.join().unwrap();
            let is_sent = running.join().unwrap();
            assert!(!goes_on);
            let end = ended(early, || {
                assert!(task.is_woken());
                slab.poll(seat, &waker)
            });
            match end {
                End::Answered(_) => assert!(is_sent),
                End::Lost { is_unsent } => assert_eq!(is_unsent, !is_sent),
                End::Late { is_unsent } => {
                    assert_eq!(is_unsent, !is_sent);
                    // It waits on, and the call has ended.
                    let is_late =
                        || matches!(slab.poll(seat, &waker), Poll::Ready(End::Late { .. }));
                    assert!(!(is_sent && is_late()));
                }
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
            slab.leave(seat);
            keeper.join().unwrap();
            running.join().unwrap();
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
        let (_, begins) = enter(&slab, Some(now + Duration::from_secs(1)));
        let goes_on = keeper.join().unwrap();
        assert_eq!(begins, !goes_on);
        let (_, begins) = enter(&slab, Some(now + Duration::from_secs(1)));
        assert!(!begins);
    });
}

/// A waker that panics.
struct Panics;

impl Wake for Panics {
    fn wake(self: std::sync::Arc<Self>) {
        panic!("a waker is foreign code");
    }
}

#[test]
fn a_waker_that_panics_keeps_no_other_caller_from_being_woken() {
    loom::model(|| {
        let slab = Slab::new();
        let now = Instant::now();
        let panics = Waker::from(std::sync::Arc::new(Panics));
        let callers = [(); 3].map(|()| {
            let (task, waker) = Task::new();
            let seats = [panics.clone(), waker].map(|it| slab.enter(it, Some(now)).0);
            (task, seats)
        });
        assert!(!slab.look(now));
        assert!(callers.iter().all(|(task, _)| task.is_woken()));
        for (_, seats) in callers {
            for seat in seats {
                assert!(slab.poll(seat, Waker::noop()).is_ready());
            }
        }
    });
}

#[test]
fn a_keeper_looks_at_the_earliest_deadline() {
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
        let (early, begins) = enter(&slab, Some(after(5)));
        assert!(!begins && task.is_woken());
        assert_eq!(slab.next_look(&keeper), Some(after(5)));
        assert!(slab.look(after(6)));
        assert_eq!(slab.next_look(&keeper), Some(after(9)));
        assert!(slab.poll(late, &keeper).is_pending());
        let is_late = End::Late { is_unsent: true };
        assert_eq!(slab.poll(early, &keeper), Poll::Ready(is_late));
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
            slab.leave(seat);
            assert!(!slab.begin(seat));
        }
        assert!(are_free(&slab, 0), "the first seat is one of new memory");
    });
}
