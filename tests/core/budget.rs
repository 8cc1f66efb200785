//! A budget of tokens. Each request is charged an estimate on arrival, and its response costs more or less than that:
//! the excess of the responses under way bounds by how much the budget is exceeded, as `docs/guide/costs.md` says. Units
//! count from the time at which they are known to be used.

use support::prelude::*;

const BUDGET: u64 = 1_000;
const WINDOW_MS: u64 = 60_000;
/// Responses cost 1 to this.
const MOST: u64 = 100;
const EVENTS: usize = 3_000;

struct Response {
    usage: Usage,
    admitted_ms: u64,
    cost: u64,
}

struct Service {
    limiter: Limiter,
    clock: ManualClock,
    policy: Policy,
    estimate: u64,
    under_way: Vec<Response>,
    /// When units became known to be used: an estimate at the admission, less the part that was not used, and the excess
    /// at the end of the response.
    known: Vec<(u64, i64)>,
    /// By how much the responses under way at the last admission exceed their estimates.
    bound: u64,
}

impl Service {
    fn new(estimate: u64) -> Self {
        let clock = ManualClock::new(1_700_000_000_000);
        Self {
            limiter: support::limiter(MemoryStore::new().clock(clock.clone())),
            clock,
            policy: Policy::parse("tokens", "1000/1m").unwrap(),
            estimate,
            under_way: Vec::new(),
            known: Vec::new(),
            bound: 0,
        }
    }

    /// Whether the request was admitted.
    async fn begin(&mut self, cost: u64) -> bool {
        let charge = Charge::new(&self.policy, Key::new("user", "alice"), self.estimate);
        let decision = self.limiter.check([charge]).await.unwrap();
        let is_allowed = decision.is_allowed();
        if is_allowed {
            let (usage, admitted_ms) = (decision.usage().clone(), self.clock.now_ms());
            self.under_way.push(Response {
                usage,
                admitted_ms,
                cost,
            });
            self.known.push((admitted_ms, self.estimate.cast_signed()));
            self.bound = self.excess_under_way();
        }
        is_allowed
    }

    async fn end(&mut self, index: usize) {
        let Response {
            usage,
            admitted_ms,
            cost,
        } = self.under_way.swap_remove(index);
        self.limiter.settle(&usage, |_| cost).await.unwrap();
        let difference = cost.cast_signed() - self.estimate.cast_signed();
        let at_ms = if difference > 0 {
            self.clock.now_ms()
        } else {
            admitted_ms
        };
        self.known.push((at_ms, difference));
    }

    /// By how much the units that are known in the last window exceed the budget.
    fn excess(&mut self) -> u64 {
        let begin = self.clock.now_ms() - WINDOW_MS;
        self.known.retain(|(at, _)| *at > begin);
        let known: i64 = self.known.iter().map(|(_, units)| units).sum();
        known.cast_unsigned().saturating_sub(BUDGET)
    }

    /// By how much the responses under way exceed their estimates.
    fn excess_under_way(&self) -> u64 {
        let costs = self.under_way.iter().map(|it| it.cost);
        costs.map(|cost| cost.saturating_sub(self.estimate)).sum()
    }
}

/// Responses begin and end at random; returns the greatest excess.
async fn greatest_excess(estimate: u64, seed: u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut service = Service::new(estimate);
    let (mut greatest, mut admitted) = (0, 0);
    for _ in 0..EVENTS {
        service
            .clock
            .advance(Duration::from_millis(random.u64(..2_000)));
        if random.bool() && service.begin(random.u64(1..=MOST)).await {
            assert_eq!(service.excess(), 0, "seed {seed}: the next requests wait");
            admitted += 1;
        }
        let is_full = service.under_way.len() > 12;
        if !service.under_way.is_empty() && (is_full || random.u8(..3) == 0) {
            let index = random.usize(..service.under_way.len());
            service.end(index).await;
            let excess = service.excess();
            assert!(excess <= service.bound, "seed {seed}");
            greatest = greatest.max(excess);
        }
    }
    assert!(admitted > EVENTS / 10, "{admitted}");
    greatest
}

#[tokio::test]
async fn a_budget_is_exceeded_by_the_excess_of_responses_under_way_at_most() {
    let mut greatest = 0;
    for seed in 0..20 {
        greatest = greatest.max(greatest_excess(50, seed).await);
    }
    assert!(greatest > 0, "an estimate of the mean is exceeded");
}

#[tokio::test]
async fn a_budget_is_never_exceeded_if_no_response_costs_more_than_its_estimate() {
    for seed in 0..20 {
        assert_eq!(greatest_excess(MOST, seed).await, 0, "seed {seed}");
    }
}
