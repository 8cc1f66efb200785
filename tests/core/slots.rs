//! Slots that a process holds: renewed while they are held, returned when dropped, and known to be lost.

use std::{
    collections::HashMap,
    task::{Context, Wake, Waker},
};

use sluicegate::observe::CallKind;
use support::prelude::*;

const WINDOW: Duration = Duration::from_secs(30);

/// A memory store on the runtime's clock, whose answers can be lost.
#[derive(Clone)]
struct Cluster {
    store: Fated,
    clock: ManualClock,
    /// When renewals arrived, and how many did at that time.
    renewals: Arc<Mutex<Vec<(u64, usize)>>>,
    fails: Arc<Mutex<Option<Failure>>>,
}

#[derive(Clone, Copy, Debug)]
enum Failure {
    /// The store acts, and the answer is lost.
    AnswerLost,
    /// The store is not even asked.
    Unsent,
    /// The store does not know renewals.
    Unsupported,
    /// The store takes a while to answer a check.
    Slow,
    /// The store answers a check after the timeout.
    Late,
    /// A check arrives after what is sent later.
    Overtaken,
    /// The store takes a while to answer a renewal.
    SlowRenewal,
    /// The store answers a renewal or a return long after the timeout.
    Stalls,
}

impl Failure {
    /// Reads the name that a row of a table has for a failure.
    fn named(name: &str) -> Self {
        use Failure::*;
        let all = [
            AnswerLost,
            Unsent,
            Unsupported,
            Slow,
            Late,
            Overtaken,
            SlowRenewal,
        ];
        let named = all.into_iter().find(|it| format!("{it:?}") == name);
        named.expect("a failure")
    }

    fn of_check(self) -> Fate {
        match self {
            Self::Overtaken => Fate::Travels(ms(50), ms(0)),
            Self::Slow => Fate::Late(ms(50)),
            Self::Late => Fate::Late(ms(150)),
            _ => Fate::Answered,
        }
    }

    fn of_message(self, message: &Operation) -> Fate {
        let is_renewal = matches!(message, Operation::Renew(_));
        match self {
            Self::AnswerLost => Fate::Late(HOUR),
            Self::Unsent => Fate::Fails(unavailable().unsent()),
            Self::Unsupported if is_renewal => Fate::Fails(message.clone().unsupported()),
            Self::SlowRenewal => Fate::Late(ms(50)),
            Self::Stalls => Fate::Late(WINDOW / 3),
            _ => Fate::Answered,
        }
    }
}

/// The store, and a process over this store.
fn cluster() -> (Cluster, Limiter) {
    let (memory, clock) = memory();
    let renewals = Arc::<Mutex<Vec<(u64, usize)>>>::default();
    let fails = Arc::<Mutex<Option<Failure>>>::default();
    let (noted, failure, now) = (renewals.clone(), fails.clone(), clock.clone());
    let fate = move |asked: &Asked<'_>| {
        let failure = *failure.lock().unwrap();
        if let Asked::Execute(Operation::Renew(_)) = asked {
            let mut noted = noted.lock().unwrap();
            match noted.last_mut() {
                Some((at_ms, count)) if *at_ms == now.now_ms() => *count += 1,
                _ => noted.push((now.now_ms(), 1)),
            }
        }
        match (failure, asked) {
            (Some(failure), Asked::Check(_)) => failure.of_check(),
            (
                Some(failure),
                Asked::Execute(message @ (Operation::Renew(_) | Operation::Return(_))),
            ) => failure.of_message(message),
            _ => Fate::Answered,
        }
    };
    let store = Fated::new(memory, fate);
    let limiter = support::limiter(store.clone());
    let cluster = Cluster {
        store,
        clock,
        renewals,
        fails,
    };
    (cluster, limiter)
}

impl Cluster {
    fn fail(&self, failure: impl Into<Option<Failure>>) -> bool {
        *self.fails.lock().unwrap() = failure.into();
        true
    }

    fn renewals(&self) -> Vec<usize> {
        let renewals = self.renewals.lock().unwrap();
        renewals.iter().map(|(_, count)| *count).collect()
    }

    /// Lets time pass at once, as for a process that is stopped.
    async fn stop(&self, time: Duration) {
        self.clock.advance(time);
        advance(time).await;
    }

    /// Lets time pass, for the store and for this process, in small steps.
    async fn pass(&self, time: Duration) {
        let mut left = time;
        while !left.is_zero() {
            let by = ms(100).min(left);
            self.stop(by).await;
            others_run().await;
            left -= by;
        }
    }

    /// Lets time pass until the first renewal.
    async fn is_asked_to_renew(&self) {
        let is_renewed = async || !self.renewals().is_empty();
        until(is_renewed, async || self.pass(ms(10)).await).await;
    }

    /// Lets time pass as a row says; `false` where the words say something else.
    async fn waits(&self, start: Instant, words: &[&str]) -> bool {
        let time = |text: &str| ms(millis(text).unsigned_abs());
        match words {
            ["pass", for_so_long] => self.pass(time(for_so_long)).await,
            ["renewal"] => self.is_asked_to_renew().await,
            ["stop", until] if until.starts_with('@') => {
                self.stop(time(&until[1..]) - start.elapsed()).await;
            }
            ["stop", for_so_long] => self.stop(time(for_so_long)).await,
            _ => return false,
        }
        true
    }
}

fn one() -> Policy {
    policy("jobs", "1/30s@concurrent")
}

/// A slot of alice, if one is free.
async fn acquire(limiter: &Limiter, policy: &Policy) -> Option<Slot> {
    acquire_for(limiter, [charge(policy, "alice", 1)]).await
}

async fn acquire_for<const N: usize>(limiter: &Limiter, jobs: [Charge; N]) -> Option<Slot> {
    let slot = limiter.acquire_slot(jobs, Duration::ZERO).await.unwrap();
    slot.ok().map(|slot| slot.expect("the policy has slots"))
}

async fn is_free(limiter: &Limiter) -> bool {
    acquire(limiter, &one()).await.is_some()
}

async fn take(limiter: &Limiter) -> Slot {
    acquire(limiter, &one()).await.unwrap()
}

/// Sentences about slots of alice: `take x` takes one, by the rules of the row or by other rules; `full` and `free` say
/// whether there is one; `leaves` is a caller that waits for 10 ms, and `late` one that waits for its timeout; `pass` lets
/// time pass, `stop` does so at once, to a time after `@`, and `renewal` until the first.
const ROWS: &str = "
A slot is renewed as long as it is held, at a third of the window
 take x; pass 5m; held x; full; renewals 30 42; drop x; pass 1s; free
Slots without a holder are not renewed
 take x; drop x; pass 90s; renewals 0 0
A renewal without an answer is sent again
 take x; fail AnswerLost; pass 15s; mend; renewals 2 99; pass 30s; held x; drop x; pass 1s; free
A return without an answer is sent again and takes no slot of another
 take x; fail AnswerLost; drop x; pass 200; take y; mend; pass 1m; held y; full
A renewal that was not sent is tried again
 take x; fail Unsent; pass 15s; renewals 2 99; mend; pass 30s; held x; full
A store that does not know renewals keeps no slot that is returned
 fail Unsupported; take x; pass 2500; held x; drop x; pass 1s; take x; pass 15s; held x; drop x; pass 1s
 take x; pass 30s; lost x; renewals 0 149
An outage that is longer than the expiry loses the slot
 # A lost slot is not acquired again.
 take x; fail Unsent; pass 29s; held x; pass 1s; lost x; mend; pass 30s; lost x
A process that was stopped for longer than the expiry holds nothing
 take x; stop 1m; lost x; free
A slot that an operator has freed takes no slot of another
 take x; reset; take y; pass 10200; lost x; drop x; pass 30s; held y; full
Slots that expire too early to be renewed are not
 take x 1/1ms; pass 1s; lost x; renewals 0 0
A return that overtakes the check is sent again
 fail Overtaken; leaves; pass 1s; mend; free
A slot that is dropped during a renewal is returned after the answer
 take x; fail SlowRenewal; renewal; drop x; mend; pass 100; renewals 1 1; free
A slot whose renewal is answered after it was lost stays lost and is returned
 # Stopped while the answer is under way, until the first time is over, and that of the renewal is not.
 take x; fail SlowRenewal; renewal; mend; stop @30s; pass 100; lost x; renewals 1 1; free
A caller that leaves before the answer leaves no slot taken
 fail Slow; leaves; pass 100; leaves; pass 100; leaves; pass 100; free
A check that is answered after its timeout leaves no slot taken
 fail Late; late; mend; free
A slot beside a lost one is held until the work ends
 take x & all; reset; pass 10200; lost x; pass 30s; full all; pass 30s; full all; drop x; pass 100; free all
A reload to a shorter expiry leaves the slots until the work ends
 take x; take y 1/5s; pass 1m; held x; held y; full; full 1/5s; drop x; drop y; pass 1s; free; free 1/5s
";

#[tokio::test(start_paused = true)]
async fn each_row_about_a_holder_holds() {
    for (sentence, acts) in rows(ROWS) {
        let ((cluster, limiter), start) = (cluster(), Instant::now());
        let mut slots = HashMap::new();
        // All that fit, as one slot.
        let by = |rules: Option<&&str>| match rules.copied().unwrap_or("1/30s") {
            "all" => Charge::new(&policy("all", "1/12s@concurrent"), acme(), 1),
            rules => {
                let (most, _) = rules.split_once('/').unwrap();
                let policy = policy("jobs", &format!("{rules}@concurrent"));
                charge(&policy, "alice", most.parse().unwrap())
            }
        };
        for act in acts {
            let words: Vec<&str> = act.split(' ').collect();
            let holds = match words[..] {
                ["take", name, "&", "all"] => {
                    let both = acquire_for(&limiter, [by(None), by(Some(&"all"))]).await;
                    slots.insert(name, both.unwrap()).is_none()
                }
                ["take", name, ref rules @ ..] => {
                    let decision = limiter.check([by(rules.first())]).await.unwrap();
                    let slot = limiter.hold(&decision);
                    slot.is_some_and(|slot| slots.insert(name, slot).is_none())
                }
                ["full", ref rules @ ..] => {
                    acquire_for(&limiter, [by(rules.first())]).await.is_none()
                }
                ["free", ref rules @ ..] => {
                    acquire_for(&limiter, [by(rules.first())]).await.is_some()
                }
                ["drop", name] => slots.remove(name).is_some(),
                ["held", name] => slots[name].is_held(),
                ["lost", name] => {
                    let is_held = slots[name].is_held();
                    slots[name].lost().await;
                    !is_held
                }
                ["leaves"] => {
                    let left = timeout(ms(10), acquire(&limiter, &one())).await;
                    left.is_err()
                }
                ["late"] => {
                    let asking = limiter.acquire_slot([by(None)], Duration::ZERO);
                    let (asked, ()) = tokio::join!(asking, cluster.pass(ms(500)));
                    kind_of(asked) == Some(StoreErrorKind::Timeout)
                }
                ["reset"] => limiter.reset(&one(), &user("alice")).await.is_ok(),
                ["renewals", least, most] => {
                    let bounds = [least, most].map(|it| it.parse::<usize>().unwrap());
                    (bounds[0]..=bounds[1]).contains(&cluster.renewals().len())
                }
                ["mend"] => cluster.fail(None),
                ["fail", failure] => cluster.fail(Failure::named(failure)),
                _ => cluster.waits(start, &words).await,
            };
            assert!(holds, "{sentence}: {act}: {:?}", cluster.renewals());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_slots_of_many_keys_are_renewed_in_time_and_not_in_one_moment() {
    let (cluster, limiter) = cluster();
    let mut slots = Vec::new();
    for user in 0..300 {
        let job = charge(&one(), &user.to_string(), 1);
        slots.extend(acquire_for(&limiter, [job]).await);
    }
    cluster.pass(WINDOW * 5).await;
    let renewals = cluster.renewals();
    let renewed: usize = renewals.iter().sum();
    assert!(
        renewed >= 300 * 5 * 3,
        "before each third has passed: {renewed}"
    );
    assert!(renewals.iter().all(|it| *it < 100), "{renewals:?}");
}

#[tokio::test(start_paused = true)]
async fn one_message_renews_all_slots_of_a_key() {
    let (cluster, limiter) = cluster();
    let many = policy("jobs", "256/30s@concurrent");
    let mut slots = Vec::new();
    for _ in 0..256 {
        slots.push(acquire(&limiter, &many).await.unwrap());
    }
    cluster.pass(WINDOW * 4).await;
    assert!(slots.iter().all(Slot::is_held));
    assert!(acquire(&limiter, &many).await.is_none());
    let renewals = cluster.renewals().len();
    assert!((12..=18).contains(&renewals), "{renewals}");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_without_an_answer_loses_no_slot_of_another_identity() {
    let (cluster, _) = cluster();
    // Answers no renewal of Alice's slots.
    let silent = Fated::new(cluster.store.clone(), |asked| match asked {
        Asked::Execute(Operation::Renew(it)) if *it.charge().key() == user("alice") => Fate::Hangs,
        _ => Fate::Answered,
    });
    let limiter = support::limiter(silent).publish_policies(false);
    let mut slots = Vec::new();
    for user in ["alice", "bob", "carol"] {
        slots.extend(acquire_for(&limiter, [charge(&one(), user, 1)]).await);
    }
    cluster.stop(WINDOW / 2).await; // all are due together
    cluster.pass(2 * WINDOW).await;
    let held: Vec<_> = slots.iter().map(Slot::is_held).collect();
    assert_eq!(held, [false, true, true]);
}

#[tokio::test(start_paused = true)]
async fn a_return_that_is_to_be_sent_again_outlasts_the_renewal_of_a_slot_that_has_ended() {
    let (cluster, limiter) = cluster();
    let limiter = limiter.timeout(WINDOW / 6);
    let jobs = policy("jobs", "2/30s@concurrent");
    let ended = acquire(&limiter, &jobs).await;
    sleep(WINDOW / 5).await; // its renewal is near
    cluster.fail(Failure::Overtaken);
    let asked = timeout(ms(10), acquire(&limiter, &jobs)).await;
    assert!(asked.is_err(), "the caller has left");
    drop(ended);
    cluster.fail(None);
    sleep(WINDOW / 4).await; // longer than the timeout
    assert_eq!(limiter.finish(SECOND).await, 0);
    let slots = (
        acquire(&limiter, &jobs).await,
        acquire(&limiter, &jobs).await,
    );
    assert!(slots.0.is_some() && slots.1.is_some());
}

/// A millisecond less than the expiry, since the store's clock may have begun a millisecond earlier.
#[tokio::test(start_paused = true)]
async fn a_slot_is_sure_for_its_time_from_the_question_on_and_not_from_the_answer() {
    for failure in [Failure::Slow, Failure::SlowRenewal] {
        let (cluster, limiter) = cluster();
        cluster.fail(failure);
        cluster.pass(SECOND).await; // the clock of slots begins with the process
        let mut asked = Instant::now();
        let slot = take(&limiter).await;
        if let Failure::SlowRenewal = failure {
            cluster.is_asked_to_renew().await;
            let asked_ms = cluster.renewals.lock().unwrap()[0].0;
            asked = Instant::now() - ms(cluster.clock.now_ms() - asked_ms);
            cluster.pass(ms(100)).await;
        }
        cluster.fail(Failure::Unsent);
        cluster.stop(WINDOW - ms(2) - asked.elapsed()).await;
        assert!(slot.is_held(), "{failure:?}");
        cluster.stop(ms(1)).await;
        assert!(!slot.is_held(), "{failure:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn slots_of_a_shadow_are_renewed_and_returned() {
    let (cluster, limiter) = cluster();
    let (one, alice) = (one().shadow(), user("alice"));
    let slot = acquire(&limiter, &one).await.unwrap();
    cluster.pass(WINDOW * 2).await;
    assert!(slot.is_held());
    let shadow = async || {
        let job = Charge::new(&one, alice.clone(), 0);
        let decision = limiter.check([job]).await.unwrap();
        let shadow = decision.usage().shadow().unwrap().usage().clone();
        remaining(&shadow)[0]
    };
    assert_eq!(shadow().await, 0);
    drop(slot);
    cluster.pass(SECOND).await;
    assert_eq!(shadow().await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_return_that_was_not_sent_is_tried_again_however_long_the_breaker_waits() {
    let (cluster, limiter) = cluster();
    let limiter = limiter.probe_interval(HOUR);
    let slot = take(&limiter).await;
    cluster.fail(Failure::Unsent);
    drop(slot);
    cluster.pass(SECOND).await;
    cluster.fail(None);
    cluster.pass(WINDOW / 6).await;
    assert!(is_free(&limiter).await);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_ends_returns_its_slots() {
    let (cluster, limiter) = cluster();
    let three = policy("jobs", "3/30s@concurrent");
    let mut slots = Vec::new();
    for _ in 0..3 {
        slots.push(acquire(&limiter, &three).await.unwrap());
    }
    drop(slots.pop());
    // One return is under way, and a renewal may be.
    cluster.fail(Failure::Stalls);
    let ends = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.finish(MINUTE).await }
    });
    cluster.pass(SECOND).await;
    assert!(!ends.is_finished());
    cluster.fail(None);
    cluster.pass(WINDOW).await;
    assert!(ends.is_finished());
    assert!(slots.iter().all(|slot| !slot.is_held()));
    let job = charge(&three, "alice", 3);
    let all = limiter.acquire_slot([job], Duration::ZERO).await;
    assert!(all.unwrap().is_ok());
    drop(slots);
}

#[tokio::test(start_paused = true)]
async fn a_caller_with_little_time_waits_for_a_slot() {
    let (cluster, limiter) = cluster();
    let slot = take(&limiter).await;
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        let job = charge(&one(), "alice", 1);
        let patience = ms(50);
        async move { limiter.acquire_slot([job], patience).await.unwrap().is_ok() }
    });
    cluster.stop(ms(10)).await;
    assert!(!waiting.is_finished());
    drop(slot);
    cluster.pass(ms(50)).await;
    assert!(waiting.await.unwrap());
}

/// An observer that panics at the first of these events.
fn panicking(at: impl Fn(&Event<'_>) -> bool + Send + Sync + 'static) -> Log {
    let is_first = AtomicBool::new(true);
    Log::of(move |event| {
        assert!(!(at(event) && is_first.swap(false, SeqCst)));
        None
    })
}

#[tokio::test(start_paused = true)]
async fn renewing_goes_on_after_an_observer_has_panicked() {
    let (cluster, limiter) = cluster();
    let limiter = limiter.observer(panicking(
        |event| matches!(event, Event::Completion { call, .. } if call.kind == CallKind::Renew),
    ));
    let two = policy("jobs", "2/30s@concurrent");
    let first = acquire(&limiter, &two).await.unwrap();
    cluster.pass(WINDOW / 6).await;
    let second = acquire(&limiter, &two).await.unwrap();
    cluster.pass(WINDOW * 2).await;
    assert!(first.is_held() && second.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_returned_if_the_observer_of_its_decision_panics() {
    for fails in [None, Some(Failure::Slow)] {
        let (cluster, limiter) = cluster();
        cluster.fail(fails);
        let limiter = limiter.observer(panicking(|event| matches!(event, Event::Decision { .. })));
        let job = limiter.clone();
        let panics = tokio::spawn(async move { acquire(&job, &one()).await });
        assert!(panics.await.is_err());
        cluster.pass(ms(50)).await;
        assert!(is_free(&limiter).await);
    }
}

/// A waker that panics in any task, such as the keeper's; but not when the timer wakes it.
struct PanickingWaker;

impl Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        assert!(tokio::task::try_id().is_none(), "woken by the keeper");
    }
}

#[tokio::test(start_paused = true)]
async fn renewing_goes_on_after_the_waker_of_a_holder_has_panicked() {
    let (cluster, limiter) = cluster();
    let lost = take(&limiter).await;
    let long = policy("long", "1/2m@concurrent");
    let slot = acquire(&limiter, &long).await.unwrap();
    let waker = Waker::from(Arc::new(PanickingWaker));
    let mut waits = Box::pin(lost.lost());
    let poll = waits.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(poll.is_pending());
    cluster.stop(WINDOW + SECOND).await;
    cluster.pass(Duration::from_secs(240)).await;
    assert!(!lost.is_held());
    assert!(slot.is_held());
}

/// Notes how often a future is polled.
async fn counted<F: Future>(polls: Arc<AtomicUsize>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        polls.fetch_add(1, SeqCst);
        future.as_mut().poll(cx)
    })
    .await
}

/// Waits for a slot with these charges, and returns that at once.
async fn take_a_turn(limiter: Limiter, charges: Vec<Charge>) {
    let slot = limiter.acquire_slot(charges, 240 * WINDOW).await;
    drop(slot.unwrap().expect("it waits long enough"));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_callers_that_wait_for_a_slot_wake_one_by_one() {
    let limiter = support::limiter(MemoryStore::new());
    let held = take(&limiter).await;
    let polls = Arc::new(AtomicUsize::new(0));
    let waiting = (0..1_000).map(|_| {
        let job = charge(&one(), "alice", 1);
        let turn = take_a_turn(limiter.clone(), vec![job]);
        tokio::spawn(counted(Arc::clone(&polls), turn))
    });
    let waiting: Vec<_> = waiting.collect();
    sleep(ms(50)).await;
    let arrived = polls.swap(0, SeqCst);
    sleep(Duration::from_secs(5)).await;
    let idle = polls.swap(0, SeqCst);
    drop(held);
    join_all(waiting).await;
    let served = polls.load(SeqCst);
    assert!(arrived < 4_000, "{arrived}");
    assert!(idle < 1_000, "{idle} in five seconds");
    assert!(served < 10_000, "{served}");
}

#[tokio::test(start_paused = true)]
async fn callers_with_other_checks_ask_one_by_one_for_the_slots_of_one_key() {
    let decided = Log::of(|event| matches!(event, Event::Decision { .. }).then(String::new));
    let limiter = support::limiter(MemoryStore::new()).observer(decided.clone());
    let held = take(&limiter).await;
    let rate = policy("rate", "9/1h");
    let waiting = (0..200).map(|number: u32| {
        let own = charge(&rate, &number.to_string(), 1);
        let charges = vec![charge(&one(), "alice", 1), own];
        tokio::spawn(take_a_turn(limiter.clone(), charges))
    });
    let waiting: Vec<_> = waiting.collect();
    sleep(ms(50)).await;
    decided.take();
    drop(held);
    join_all(waiting).await;
    let decisions = decided.lines().len();
    assert!(decisions < 600, "{decisions}");
}

#[tokio::test(start_paused = true)]
async fn a_returned_slot_goes_past_callers_that_wait_for_a_rate() {
    let limiter = support::limiter(MemoryStore::new());
    let rate = policy("rate", "1/1h");
    let charges = |user: &'static str| vec![charge(&one(), "alice", 1), charge(&rate, user, 1)];
    let used_up = charge(&rate, "bob", 1);
    assert!(limiter.check([used_up]).await.unwrap().is_allowed());
    let held = take(&limiter).await;
    let late = tokio::spawn(take_a_turn(limiter.clone(), charges("bob")));
    sleep(ms(10)).await;
    let soon = tokio::spawn(take_a_turn(limiter.clone(), charges("carol")));
    sleep(ms(10)).await;
    let start = Instant::now();
    drop(held);
    soon.await.unwrap();
    assert!(start.elapsed() < ms(5), "woken at once");
    assert!(!late.is_finished());
    late.abort();
}

/// In real time, as runtimes cannot share a paused clock. A busy machine may delay a renewal by 600 ms.
#[test]
fn a_slot_is_renewed_while_other_runtimes_come_and_go_and_its_own_is_blocked() {
    const WINDOW: Duration = ms(900);
    let limiter = Limiter::new(MemoryStore::new()).timeout(ms(20));
    let policy = policy("jobs", "1/900ms@concurrent");
    let (first, holder) = (support::runtime(), support::runtime());
    let none = Policy::parse("none", "0/1m").unwrap();
    let ask = async || {
        let denied = limiter.check([charge(&none, "bob", 1)]).await.unwrap();
        sleep(ms(15)).await;
        denied
    };
    first.block_on(ask());
    let slot = holder.block_on(acquire(&limiter, &policy)).unwrap();
    drop(first);
    let begin = std::time::Instant::now();
    // Nothing drives the runtime of the holder meanwhile.
    while begin.elapsed() < 2 * WINDOW {
        support::runtime().block_on(ask());
        assert!(slot.is_held());
    }
    assert!(holder.block_on(acquire(&limiter, &policy)).is_none());
}
