//! Pauses: replicas wait until another service takes requests again, and then begin in order, at intervals.

use std::{future::Ready, ops::Range};

use sluicegate::middleware::{HeaderStyle, ObeyLayer, Rejection, StatusOnly};
use support::prelude::*;
use tower::retry;

use super::acquire::{Timed, ours as account};

const LONG: Duration = HOUR;
const TRIP: Duration = ms(20);

/// The answer to a request: a status, and fields.
type Answer = (u16, Vec<(&'static str, String)>);

fn plain(status: u16) -> Answer {
    (status, Vec::new())
}

fn after(status: u16, seconds: &str) -> Answer {
    (status, vec![("retry-after", seconds.to_owned())])
}

/// Another service, which notes when requests arrive, and how many are under way at most.
struct Other {
    start: Instant,
    answer: Box<dyn Fn(u128) -> Answer + Send + Sync>,
    /// When requests arrived, in ms, and their statuses.
    seen: Mutex<Vec<(u128, u16)>>,
    under_way: AtomicU32,
    most: AtomicU32,
    trip: Duration,
}

impl Other {
    fn new(answer: impl Fn(u128) -> Answer + Send + Sync + 'static) -> Arc<Self> {
        Self::at_a_distance(TRIP, answer)
    }

    fn at_a_distance(
        trip: Duration,
        answer: impl Fn(u128) -> Answer + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            trip,
            start: Instant::now(),
            answer: Box::new(answer),
            seen: Mutex::default(),
            under_way: AtomicU32::new(0),
            most: AtomicU32::new(0),
        })
    }

    /// Answers like this, one after another: `429`, `429:10` with `retry-after`, or `200!1` with nothing left for so long.
    fn answering(answers: &'static str) -> Arc<Self> {
        let answers = Mutex::new(answers.split(' '));
        Self::new(move |_| {
            let answer = answers.lock().unwrap().next().unwrap();
            if let Some((status, seconds)) = answer.split_once(':') {
                return after(status.parse().unwrap(), seconds);
            }
            let (status, reset) = answer.split_once('!').unwrap_or((answer, ""));
            let fields = [("ratelimit-remaining", "0"), ("ratelimit-reset", reset)];
            let fields = fields.map(|(name, value)| (name, value.to_owned()));
            let has_fields = usize::from(!reset.is_empty());
            (status.parse().unwrap(), fields[..2 * has_fields].to_vec())
        })
    }

    /// Admits as many in each window of 10 s, and names the rest of the window in whole seconds.
    fn with_limit(limit: u32) -> Arc<Self> {
        let admitted = Mutex::new((0, 0));
        Self::new(move |at_ms| {
            let window = at_ms / 10_000;
            let mut admitted = admitted.lock().unwrap();
            if admitted.0 != window {
                *admitted = (window, 0);
            }
            admitted.1 += 1;
            match admitted.1 <= limit {
                true => plain(200),
                false => after(429, &(10 - at_ms / 1_000 % 10).to_string()),
            }
        })
    }

    async fn serve(&self) -> Response<String> {
        let under_way = self.under_way.fetch_add(1, SeqCst) + 1;
        self.most.fetch_max(under_way, SeqCst);
        sleep(self.trip / 2).await;
        let at_ms = self.start.elapsed().as_millis();
        let (status, fields) = (self.answer)(at_ms);
        self.seen.lock().unwrap().push((at_ms, status));
        sleep(self.trip / 2).await;
        self.under_way.fetch_sub(1, SeqCst);
        let mut response = Response::builder().status(status);
        for (name, value) in fields {
            response = response.header(name, value);
        }
        response.body(String::new()).unwrap()
    }

    fn service(self: &Arc<Self>) -> Inner {
        let other = Arc::clone(self);
        Inner::new(service_fn(move |_: Request<String>| {
            let other = Arc::clone(&other);
            async move { Ok::<_, Infallible>(other.serve().await) }
        }))
    }

    fn seen(&self) -> Vec<(u128, u16)> {
        self.seen.lock().unwrap().clone()
    }

    fn refused_ms(&self) -> Vec<u128> {
        let seen = self.seen();
        let refused = seen.iter().filter(|(_, status)| *status != 200);
        refused.map(|(at_ms, _)| *at_ms).collect()
    }
}

/// A process whose first request was refused for five seconds, and its client, which waits for the other service.
async fn refused_once() -> (Limiter, Inner) {
    let other = Other::new(|at_ms| match at_ms {
        0..1_000 => after(429, "5"),
        _ => plain(200),
    });
    let limiter = Timed::new().limiter();
    let client = client(&limiter, &other, LONG, |obey| obey);
    assert_eq!(status(&client).await, 429);
    (limiter, client)
}

/// A client that waits, and obeys answers.
fn client(
    limiter: &Limiter,
    other: &Arc<Other>,
    max_wait: Duration,
    obey: impl FnOnce(ObeyLayer) -> ObeyLayer,
) -> Inner {
    let waiting = support::layer(limiter.clone())
        .deny_blocked(account())
        .max_wait(max_wait)
        .headers(HeaderStyle::NONE)
        .rejection(StatusOnly);
    let client = ServiceBuilder::new()
        .layer(waiting)
        .layer(obey(ObeyLayer::new(limiter.clone(), account())))
        .service(other.service());
    Inner::new(client)
}

async fn get(client: &Inner) -> Response<String> {
    client.clone().oneshot(to("/")).await.unwrap()
}

async fn status(client: &Inner) -> u16 {
    get(client).await.status().as_u16()
}

/// Asks until a request is served.
async fn is_served(client: &Inner) {
    until(async || status(client).await == 200, async || ()).await;
}

fn assert_waited(start: Instant, expected_ms: Range<u128>) {
    let ms = start.elapsed().as_millis();
    assert!(expected_ms.contains(&ms), "{ms} ms, not {expected_ms:?}");
}

/// Each of these times is so much later than the one before.
fn assert_apart(times_ms: impl IntoIterator<Item = u128>, least: Duration) {
    let times_ms: Vec<_> = times_ms.into_iter().collect();
    let mut pairs = times_ms.windows(2);
    assert!(
        pairs.all(|it| it[1] - it[0] >= least.as_millis()),
        "{times_ms:?}"
    );
}

fn is_paused(decision: &Decision) -> bool {
    matches!(decision, Decision::Blocked(blocked) if blocked.block().source() == BlockedBy::Pause)
}

async fn pause(limiter: &Limiter, millis: u64) {
    let pause = BlockRequest::pause(ms(millis));
    limiter.block(&account(), pause).await.unwrap();
}

fn charge() -> [Charge; 1] {
    let policy = policy("their-api", "1000000/1s");
    [Charge::new(&policy, account(), 1)]
}

/// Records the reason and the length of each pause.
fn pauses() -> Log {
    Log::of(|event| match event {
        Event::Pause { reason, length, .. } => {
            Some(format!("{}, {length:?}", reason.unwrap_or_default()))
        }
        _ => None,
    })
}

/// Takes time to store a block, and may lose the first.
fn slow_to_block(store: &Timed, takes: Duration, loses_first: bool) -> Limiter {
    let loses = AtomicBool::new(loses_first);
    support::limiter(Fated::new(store.store.clone(), move |asked| match asked {
        Asked::Execute(Operation::Block { .. }) => match loses.swap(false, SeqCst) {
            true => Fate::FailsLate(takes),
            false => Fate::Travels(takes, Duration::ZERO),
        },
        _ => Fate::Answered,
    }))
}

/// The answer asks for a pause of 5 s, and storing the pause takes 50 ms.
#[tokio::test(start_paused = true)]
async fn nothing_leaves_while_the_store_does_not_have_the_pause() {
    for (is_lost, first, answers) in [
        (false, 429, "429:5 200"),
        (true, 429, "429:5 200"),
        (false, 200, "200!5 200"),
    ] {
        let other = Other::answering(answers);
        let limiter = slow_to_block(&Timed::new(), ms(50), is_lost);
        let client = client(&limiter, &other, LONG, |obey| obey);
        // The second caller comes while the pause is being stored.
        let later = async {
            sleep(TRIP + ms(10)).await;
            status(&client).await
        };
        let statuses = futures::join!(status(&client), later);
        assert_eq!(statuses, (first, 200));
        let seen = other.seen();
        assert!((5_000..6_100).contains(&seen[1].0), "{is_lost}: {seen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_the_store_did_not_get_is_stored_by_the_next_refusal() {
    let other = Other::new(|_| after(429, "5"));
    let store = Timed::new();
    let limiter = slow_to_block(&store, ms(1), true);
    let pauses = pauses();
    let limiter = limiter.observer(pauses.clone());
    let client = client(&limiter, &other, LONG, |obey| obey);
    // Both have left before the first answer arrives.
    let second = async {
        sleep(ms(5)).await;
        status(&client).await
    };
    assert_eq!(futures::join!(status(&client), second), (429, 429));
    let replica = store.limiter();
    assert!(is_paused(&replica.check(charge()).await.unwrap()));
    assert_eq!(pauses.lines().len(), 1);
}

/// When requests arrived after the first, if so many wait that many ms after each other for a pause.
async fn arrivals_ms(pause_seconds: u32, callers: u32, apart: Duration) -> Vec<u128> {
    let other = Other::new(move |at_ms| match at_ms < 1_000 {
        true => after(429, &pause_seconds.to_string()),
        false => plain(200),
    });
    let client = client(&Timed::new().limiter(), &other, LONG, |obey| obey);
    assert_eq!(status(&client).await, 429);
    let order = Arc::<Mutex<Vec<u32>>>::default();
    let callers = (0..callers).map(|number| {
        let (client, order) = (client.clone(), Arc::clone(&order));
        // Tasks, since each takes its place when it is first polled.
        tokio::spawn(async move {
            sleep(apart * number).await;
            assert_eq!(status(&client).await, 200);
            order.lock().unwrap().push(number);
        })
    });
    let callers: Vec<_> = callers.collect();
    for caller in callers {
        caller.await.unwrap();
    }
    let order = order.lock().unwrap();
    assert!(order.is_sorted(), "{order:?}");
    other.seen()[1..].iter().map(|(at_ms, _)| *at_ms).collect()
}

/// The pause, those that wait for it, and the interval.
#[tokio::test(start_paused = true)]
async fn after_a_pause_callers_begin_in_order_one_in_each_interval_and_the_last_within_thirty_seconds()
 {
    for (pause, callers, interval_ms) in [
        (5, 40, 98..=102),    // the shortest interval
        (60, 40, 298..=302),  // a fifth of the pause for all
        (60, 1_000, 28..=32), // so that the last begins in time
    ] {
        let arrivals_ms = arrivals_ms(pause, callers, Duration::ZERO).await;
        let ends_ms = u128::from(pause) * 1_000 + TRIP.as_millis();
        assert!(arrivals_ms[0] - ends_ms <= *interval_ms.end() + TRIP.as_millis());
        assert!(arrivals_ms.last().unwrap() - ends_ms <= 30_000 + TRIP.as_millis());
        let mut pairs = arrivals_ms.windows(2);
        assert!(
            pairs.all(|it| interval_ms.contains(&(it[1] - it[0]))),
            "{arrivals_ms:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_comes_after_the_end_of_a_pause_begins_behind_the_last() {
    // Half of them have come by the end of the pause.
    let arrivals_ms = arrivals_ms(4, 80, ms(100)).await;
    assert_apart(arrivals_ms, ms(100));
}

#[tokio::test(start_paused = true)]
async fn callers_begin_at_once_when_all_have_begun_that_waited_or_none_did() {
    for first_after in [4_500, 10_000] {
        let (_, client) = refused_once().await;
        sleep(ms(first_after)).await;
        assert_eq!(status(&client).await, 200);
        sleep(ms(1_000)).await;
        let all = Instant::now();
        join_all((0..50).map(|_| status(&client))).await;
        assert_eq!(all.elapsed(), TRIP);
    }
}

#[tokio::test(start_paused = true)]
async fn pauses_of_other_accounts_delay_no_turn() {
    let limiter = Timed::new().limiter();
    pause(&limiter, 4_000).await;
    let start = Instant::now();
    let callers = all_admitted((0..8).map(|_| limiter.acquire(charge(), LONG)));
    let others = async {
        for number in 0..1_000 {
            sleep(ms(30)).await;
            let other = Key::new("account", format!("{number}"));
            let request = BlockRequest::pause(MINUTE);
            limiter.block(&other, request).await.unwrap();
        }
    };
    tokio::select! {
        admitted = callers => assert!(admitted),
        () = others => panic!("no caller begins"),
    }
    assert_waited(start, 4_700..4_900);
}

#[tokio::test(start_paused = true)]
async fn a_caller_whose_turn_comes_after_its_deadline_is_denied_by_then() {
    let (limiter, patient) = refused_once().await;
    let other = Other::new(|_| plain(200));
    let hasty = client(&limiter, &other, ms(6_000), |obey| obey);
    let start = Instant::now();
    let waiting = (0..20).map(|_| status(&patient));
    let later = async {
        sleep(ms(10)).await;
        (status(&hasty).await, start.elapsed())
    };
    let (served, (denied, after)) = futures::join!(join_all(waiting), later);
    assert_eq!(served, [200; 20]);
    assert_eq!(denied, 429);
    assert!(after <= ms(6_011), "{after:?}");
}

/// Two queues, since the policies differ.
#[tokio::test(start_paused = true)]
async fn callers_with_other_policies_share_the_intervals_of_an_account() {
    let store = Timed::new();
    let limiter = store.limiter();
    pause(&limiter, 4_000).await;
    let callers = ["one", "another"].map(|name| {
        let policy = Policy::parse(name, "1000/1s").unwrap();
        limiter.acquire([Charge::new(&policy, account(), 1)], LONG)
    });
    let admitted = join_all(callers.map(async |caller| {
        assert!(caller.await.unwrap().is_allowed());
        store.asked_ms().pop().unwrap()
    }));
    let mut admitted_ms = admitted.await;
    admitted_ms.sort_unstable();
    assert_apart(admitted_ms, ms(400));
}

#[tokio::test(start_paused = true)]
async fn a_caller_without_patience_is_denied_at_once_also_behind_one_that_waits() {
    let other = Other::answering("429:30 200");
    let limiter = Timed::new().limiter();
    let patient = client(&limiter, &other, LONG, |obey| obey);
    let hasty = client(&limiter, &other, ms(20_000), |obey| obey);
    assert_eq!(status(&patient).await, 429);
    let later = async {
        sleep(ms(1_000)).await;
        let start = Instant::now();
        let denied = get(&hasty).await;
        assert_eq!(start.elapsed(), ms(0));
        denied
    };
    let (served, denied) = futures::join!(status(&patient), later);
    assert_eq!(served, 200);
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.headers()["retry-after"], "29");
}

/// Another replica makes the pause. The first caller in the queue learns of it when the store answers.
#[tokio::test(start_paused = true)]
async fn a_caller_that_waits_already_is_denied_when_the_pause_becomes_known() {
    let store = Timed::with_latency(ms(500));
    let [here, elsewhere] = [(); 2].map(|()| store.limiter().timeout(ms(5_000)));
    pause(&elsewhere, 30_000).await;
    let start = Instant::now();
    let hasty = async {
        sleep(ms(10)).await;
        let decision = here.acquire(charge(), ms(5_000)).await.unwrap();
        assert_eq!(start.elapsed(), ms(1_000), "the two answers of the store");
        decision
    };
    let (patient, hasty) = tokio::join!(here.acquire(charge(), LONG), hasty);
    assert!(patient.unwrap().is_allowed() && is_paused(&hasty));
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_you_make_is_no_longer_than_five_minutes_unless_you_say_so() {
    let limiter = Timed::new().limiter();
    let day = Duration::from_secs(86_400);
    for (request, seconds) in [
        (BlockRequest::pause(day), 300),
        (BlockRequest::pause_up_to(day, LONG), 3_600),
        (BlockRequest::pause(ms(7_000)), 3_600),
    ] {
        let block = limiter.block(&account(), request).await.unwrap();
        assert_eq!(block.until_ms(), Some(seconds * 1_000));
    }
}

#[tokio::test(start_paused = true)]
async fn acquire_and_slots_wait_for_a_pause_and_an_operators_block_is_a_block() {
    let limiter = Timed::new().limiter();
    pause(&limiter, 4_000).await;
    let start = Instant::now();
    assert!(limiter.acquire(charge(), LONG).await.unwrap().is_allowed());
    assert_waited(start, 4_000..4_900);

    pause(&limiter, 4_000).await;
    let slot = limiter.acquire_slot(charge(), LONG).await.unwrap();
    assert!(slot.is_ok() && start.elapsed() >= ms(8_000));

    // The later end wins, and the operator's block is not waited for.
    pause(&limiter, 4_000).await;
    limiter.block(&account(), ms(9_000)).await.unwrap();
    let decision = limiter.acquire(charge(), LONG).await.unwrap();
    let Decision::Blocked(blocked) = decision else {
        panic!("{decision:?}");
    };
    assert_eq!(blocked.block().source(), BlockedBy::Operator);
}

#[tokio::test(start_paused = true)]
async fn unblocking_ends_a_pause_here_at_once_and_elsewhere_within_two_seconds() {
    let store = Timed::new();
    let [here, elsewhere] = [(); 2].map(|()| store.limiter());
    for (operator, most_ms) in [(&here, 500), (&elsewhere, 2_000)] {
        pause(&here, 300_000).await;
        let start = Instant::now();
        let waiting = here.acquire(charge(), LONG * 2);
        let unblocking = async {
            sleep(ms(500)).await;
            operator.unblock(&account()).await.unwrap();
        };
        let (decision, ()) = tokio::join!(waiting, unblocking);
        assert!(decision.unwrap().is_allowed());
        assert!(start.elapsed() <= ms(most_ms), "{:?}", start.elapsed());
        assert!(here.check(charge()).await.unwrap().is_allowed());
    }
}

#[tokio::test(start_paused = true)]
async fn pauses_only_lengthen_and_end_at_the_longest_allowed() {
    let other = Other::answering("429:10 429:4 429:20 429:1000000000000");
    let pauses = pauses();
    let limiter = Timed::new().limiter().observer(pauses.clone());
    // Only obeys, so that requests go on.
    let layer = ObeyLayer::new(limiter.clone(), account()).max_pause(MINUTE);
    let client = Inner::new(layer.layer(other.service()));
    for seconds in [10.0, 10.0, 20.0, 60.0_f32] {
        get(&client).await;
        let Decision::Blocked(blocked) = limiter.check(charge()).await.unwrap() else {
            panic!("it is not paused");
        };
        let rest = blocked.retry_after().unwrap().as_secs_f32();
        assert!((rest - seconds).abs() < 0.1, "{rest} for {seconds}");
    }
    assert_eq!(pauses.lines(), ["429, retry-after, 10s"]);
}

/// The pauses by these answers, which one caller meets one after the other.
async fn pauses_by(answers: &'static str) -> (Arc<Other>, Vec<String>) {
    let (other, pauses) = (Other::answering(answers), pauses());
    let limiter = Timed::new().limiter().observer(pauses.clone());
    let backoff = |obey: ObeyLayer| obey.backoff(ms(1_000), ms(5_000));
    let client = client(&limiter, &other, LONG, backoff);
    for _ in answers.split(' ') {
        get(&client).await;
    }
    (other, pauses.lines())
}

#[tokio::test(start_paused = true)]
async fn without_a_time_pauses_double_up_to_a_bound_and_successes_take_it_back() {
    let (other, pauses) = pauses_by("429 429 429 429 200 200 429 200 200 200 200 429").await;
    let expected = [1, 2, 4, 5, 2, 1].map(|it| format!("429, no time, {it}s"));
    assert_eq!(pauses, expected);
    let refused = other.refused_ms();
    let waits: Vec<_> = refused.windows(2).take(3).map(|it| it[1] - it[0]).collect();
    for (wait, pause) in waits.iter().zip([1_000, 2_000, 4_000]) {
        let most = pause * 12 / 10 + TRIP.as_millis();
        assert!((pause..=most).contains(wait), "{waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_success_with_nothing_left_takes_a_doubling_back() {
    let expected = [
        "429, no time, 1s",
        "429, no time, 2s",
        "200, ratelimit-reset, 1s",
        "429, no time, 2s",
    ];
    assert_eq!(pauses_by("429 429 200!1 429").await.1, expected);
}

#[tokio::test(start_paused = true)]
async fn a_burst_that_is_refused_without_a_time_doubles_the_pause_once() {
    let other = Other::new(|at_ms| plain(if at_ms < 500 { 429 } else { 200 }));
    let pauses = pauses();
    let limiter = Timed::new().limiter().observer(pauses.clone());
    let client = client(&limiter, &other, LONG, |obey| obey);
    join_all((0..50).map(|_| status(&client))).await;
    assert_eq!(pauses.lines(), ["429, no time, 1s"]);
    let start = Instant::now();
    assert_eq!(status(&client).await, 200);
    assert_waited(start, 1_000..1_240);
}

/// GitHub answers so when the quota is used up, in the second in which it will be full again.
#[tokio::test(start_paused = true)]
async fn jobs_that_are_refused_without_a_usable_time_do_not_storm_whatever_the_status() {
    for status in [403, 420, 429, 503, 529] {
        let other = Other::new(move |at_ms| match at_ms / 1_000 {
            second @ 0..2 => {
                let fields = [
                    ("date", format!("Thu, 26 Nov 2026 10:00:0{second} GMT")),
                    ("x-ratelimit-remaining", "0".to_owned()),
                    ("x-ratelimit-reset", (1_795_687_200 + second).to_string()),
                ];
                (status, fields.into())
            }
            _ => plain(200),
        });
        let limiter = Timed::new().limiter();
        let client = client(&limiter, &other, LONG, |obey| obey);
        join_all((0..20).map(|_| is_served(&client))).await;
        let refused = other.refused_ms().len();
        assert!(refused <= 25, "{status}: {refused} refused calls");
    }
}

/// How many requests of 40 jobs in two processes the other service refuses, which names the rest of a pause, and after
/// the first pause refuses for so many more.
async fn refused_of_forty(trip: Duration, pause: u64, again: u64) -> usize {
    let store = Timed::new();
    let other = Other::at_a_distance(trip, move |at_ms| {
        let seconds = u64::try_from(at_ms).unwrap() / 1_000;
        match seconds < pause * (1 + again) {
            true => after(429, &(pause - seconds % pause).to_string()),
            false => plain(200),
        }
    });
    let processes = [(); 2].map(|()| client(&store.limiter(), &other, LONG, |obey| obey));
    assert_eq!(status(&processes[0]).await, 429);
    join_all((0..40_usize).map(|number| is_served(&processes[number % 2]))).await;
    other.refused_ms().len()
}

#[tokio::test(start_paused = true)]
async fn of_forty_callers_of_two_processes_a_service_refuses_those_that_begin_in_a_round_trip() {
    for trip in [20, 300] {
        for pause in [2, 60] {
            for again in 0..=2 {
                let refused = refused_of_forty(ms(trip), pause, again).await as u64;
                let most = 1 + again * 2 * (1 + trip / 100);
                let which = format!("{trip} ms, {pause} s, {again} times more");
                assert!(refused <= most, "{which}: {refused}, not {most}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_without_a_time_can_be_left_alone() {
    let other = Other::answering("429 429:5 429");
    let limiter = Timed::new().limiter();
    let alone = client(&limiter, &other, LONG, ObeyLayer::without_backoff);
    for pauses in [false, true] {
        assert_eq!(status(&alone).await, 429);
        let decision = limiter.check(charge()).await.unwrap();
        assert_eq!(is_paused(&decision), pauses);
    }
    let again = client(&limiter, &other, LONG, |obey| {
        obey.without_backoff().backoff(ms(1_000), ms(2_000))
    });
    assert_eq!(status(&again).await, 429);
    assert!(is_paused(&limiter.check(charge()).await.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_layer_within_is_no_refusal_of_the_other_service() {
    let other = Other::new(|_| plain(200));
    let limiter = Timed::new().limiter();
    let one = policy("one", "1/1m");
    let within = support::layer(limiter.clone())
        .limit(one, account())
        .headers(HeaderStyle::NONE);
    let client = ServiceBuilder::new()
        .layer(ObeyLayer::new(limiter.clone(), account()))
        .layer(within)
        .service(other.service());
    for expected in [200, 429] {
        let response = client.clone().oneshot(to("/")).await;
        assert_eq!(response.unwrap().status(), expected);
    }
    assert!(limiter.check(charge()).await.unwrap().is_allowed());
}

/// Tries a request again at once that the other service has refused.
#[derive(Clone)]
struct Again {
    tries_left: u32,
}

impl<B> retry::Policy<Request<String>, Response<B>, Infallible> for Again {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        _: &mut Request<String>,
        result: &mut Result<Response<B>, Infallible>,
    ) -> Option<Ready<()>> {
        let response = result.as_ref().unwrap();
        let is_refused = response.status() == StatusCode::TOO_MANY_REQUESTS
            && response.extensions().get::<Rejection>().is_none();
        self.tries_left = self.tries_left.checked_sub(u32::from(is_refused))?;
        is_refused.then(|| ready(()))
    }

    fn clone_request(&mut self, request: &Request<String>) -> Option<Request<String>> {
        Some(request.clone())
    }
}

/// The statuses of 60 callers of two replicas, each of which tries again, under a limit of four requests at once. The
/// other service takes 20 in each window of 10 s.
async fn retrying(max_wait: Duration) -> (Arc<Other>, Vec<u16>) {
    let (store, other) = (Timed::new(), Other::with_limit(20));
    let at_once = policy("at-once", "4/30s@concurrent");
    let replicas = [(); 2].map(|()| {
        let limiter = store.limiter();
        let waiting = support::layer(limiter.clone())
            .limit_concurrent(at_once.clone(), account())
            .max_wait(max_wait)
            .headers(HeaderStyle::NONE)
            .rejection(StatusOnly);
        ServiceBuilder::new()
            .layer(retry::RetryLayer::new(Again { tries_left: 9 }))
            .layer(waiting)
            .layer(ObeyLayer::new(limiter, account()))
            .service(other.service())
    });
    let callers = (0..60).map(|number| {
        let client = replicas[number % 2].clone();
        async move {
            let response = client.oneshot(Request::new(String::new())).await;
            response.unwrap().status().as_u16()
        }
    });
    let statuses = join_all(callers).await;
    (other, statuses)
}

#[tokio::test(start_paused = true)]
async fn retries_wait_for_the_pause_and_for_a_slot_and_do_not_storm() {
    let (other, statuses) = retrying(LONG).await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    assert!(other.most.load(SeqCst) <= 4);
    let (seen, refused) = (other.seen(), other.refused_ms());
    assert_eq!(seen.len(), 60 + refused.len());
    for window in 0..3 {
        let of_window = |at_ms: &&u128| **at_ms / 10_000 == window;
        let refused: Vec<_> = refused.iter().filter(of_window).collect();
        // Those under way when the first was refused.
        assert!(refused.len() <= 4, "{seen:?}");
        if let [first, .., last] = refused[..] {
            assert!(last - first <= TRIP.as_millis(), "{seen:?}");
        }
    }
    assert!(seen.last().unwrap().0 < 23_000, "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_may_not_wait_for_the_pause_ends_with_a_429_of_ours() {
    let (other, statuses) = retrying(ms(2_000)).await;
    let served = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!((served, statuses.len()), (20, 60));
    assert!(other.refused_ms().len() <= 4, "{:?}", other.seen());
    assert!(other.start.elapsed() < ms(500), "the others did not wait");
}

#[test]
#[should_panic = "pauses are blocks"]
fn a_limiter_that_enforces_no_blocks_cannot_obey() {
    let limiter = support::limiter(MemoryStore::new()).enforce_blocks(false);
    let _ = ObeyLayer::new(limiter, account());
}
