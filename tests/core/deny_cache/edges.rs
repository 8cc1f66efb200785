//! Every quarter of a millisecond around the edges, with delays in both directions and different clocks, against a
//! server that is always asked.

use std::sync::atomic::Ordering::Relaxed;

use sluicegate::decision::Count;
use support::prelude::*;

const QUARTER: Duration = Duration::from_micros(250);

/// Denies until a time by a clock that is ahead of this process's clock. Messages take time in both directions.
#[derive(Clone, Debug)]
struct Server {
    start: Instant,
    ahead: Duration,
    there: Duration,
    back: Duration,
    admits_at_ms: u64,
    hangs: Arc<AtomicBool>,
}

impl Server {
    /// The server's clock in whole milliseconds.
    fn now_ms(&self) -> u64 {
        let now = self.start.elapsed() + self.ahead;
        now.as_millis().try_into().unwrap()
    }

    fn decide(&self, check: &Check) -> Result<Decision, StoreError> {
        let now_ms = self.now_ms();
        let mut count = Count::default();
        count.used = 1;
        count.newest_end_ms = now_ms;
        count.fits_at_ms = self.admits_at_ms;
        Decision::new(check, now_ms >= self.admits_at_ms, now_ms, &[count])
    }
}

impl Store for Server {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        if self.hangs.load(Relaxed) {
            return StoreFuture::pending(pending());
        }
        let (this, check) = (self.clone(), check.clone());
        StoreFuture::pending(async move {
            advance(this.there).await;
            let decision = this.decide(&check);
            advance(this.back).await;
            decision
        })
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        StoreFuture::ready(Err(operation.unsupported()))
    }
}

fn charges() -> [Charge; 1] {
    let policy = policy("p", "1/1h");
    [charge(&policy, "alice", 1)]
}

/// The delay of a repeated denial; `None` for another denial.
fn repeated(decision: &Decision) -> Option<Duration> {
    let Decision::Denied(denial) = decision else {
        panic!("it was admitted");
    };
    let is_cached = denial.usage().is_cached();
    is_cached.then(|| denial.retry_after().unwrap())
}

/// Returns how many times the denial was repeated.
async fn meets_the_edge(phase: u32, there: u32, back: u32, denied_for_ms: u64) -> u32 {
    let decides_at = Duration::from_secs(5) + (phase + there) * QUARTER;
    let server = Arc::new(Server {
        start: Instant::now(),
        ahead: Duration::from_secs(5) + phase * QUARTER,
        there: there * QUARTER,
        back: back * QUARTER,
        admits_at_ms: u64::try_from(decides_at.as_millis()).unwrap() + denied_for_ms,
        hangs: Arc::default(),
    });
    let limiter = support::limiter(Arc::clone(&server))
        .cache_denials(true)
        .count_denials(false);
    let first = limiter.check(charges()).await.unwrap();
    assert_eq!(repeated(&first), None);
    let Decision::Denied(denial) = &first else {
        unreachable!()
    };
    assert_eq!(denial.retry_after(), Some(ms(denied_for_ms)));
    let answered = Instant::now();
    let mut count = 0;
    // Looks at the cache only.
    server.hangs.store(true, Relaxed);
    while let Some(decision) = { known(&limiter) } {
        let told = repeated(&decision).unwrap();
        count += 1;
        assert!(server.now_ms() < server.admits_at_ms, "refused too late");
        // A caller that waits is admitted, and the delay is not longer than that of the first answer.
        let back_at = Instant::now() - server.start + server.ahead + told;
        let is_enough = back_at.as_millis() >= server.admits_at_ms.into();
        assert!(is_enough, "told too little");
        let first_at = answered + ms(denied_for_ms);
        assert!(Instant::now() + told < first_at + ms(1), "told too much");
        advance(QUARTER).await;
    }
    assert!(answered.elapsed() <= SECOND, "remembered for too long");
    count
}

fn known(limiter: &Limiter) -> Option<Decision> {
    limiter.check(charges()).now_or_never().map(Result::unwrap)
}

#[tokio::test(start_paused = true)]
async fn no_denial_is_repeated_when_the_server_would_admit_and_obedient_clients_are_admitted() {
    let delays = [0, 1, 2, 3, 4, 5, 9];
    let mut count = 0;
    for denied_for_ms in [1, 2, 3, 5, 8, 20] {
        for phase in 0..4 {
            for there in delays {
                for back in delays {
                    count += meets_the_edge(phase, there, back, denied_for_ms).await;
                }
            }
        }
    }
    assert!(count > 5_000, "{count}");
    for denied_for_ms in [999, 1_000, 1_001, 1_002, 3_600_000] {
        count = meets_the_edge(3, 2, 1, denied_for_ms).await;
        assert!((3_900..=4_000).contains(&count), "{count}");
    }
}
