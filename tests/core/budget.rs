//! A budget of tokens. Each request is charged an estimate on arrival, and its response costs more or less than that:
//! the excess of the responses under way bounds by how much the budget is exceeded, as `docs/guide/costs.md` says.

use std::{collections::VecDeque, time::Duration};

use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy, Usage, manual_clock::ManualClock};

const BUDGET: u64 = 1_000;
const WINDOW_MS: u64 = 60_000;
/// Responses cost 1 to this.
const MOST: u64 = 100;
const EVENTS: usize = 3_000;

struct Response {
    usage: Usage,
    cost: u64,
}

struct Service {
    limiter: Limiter,
    clock: ManualClock,
    policy: Policy,
    estimate: u64,
    under_way: Vec<Response>,
    /// When responses of the last window were admitted, and their costs in the end.
    admitted: VecDeque<(u64, u64)>,
}

impl Service {
    fn new(estimate: u64) -> Self {
        let clock = ManualClock::new(1_700_000_000_000);
        Self {
            limiter: Limiter::new(MemoryStore::new().clock(clock.clone())),
            clock,
            policy: Policy::parse("tokens", "1000/1m").unwrap(),
            estimate,
            under_way: Vec::new(),
            admitted: VecDeque::new(),
        }
    }

    /// Whether the request was admitted.
    async fn begin(&mut self, cost: u64) -> bool {
        let charge = Charge::new(&self.policy, Key::new("user", "alice"), self.estimate);
        let decision = self.limiter.check([charge]).await.unwrap();
        let is_allowed = decision.is_allowed();
        if is_allowed {
            let usage = decision.usage().clone();
            self.under_way.push(Response { usage, cost });
            self.admitted.push_back((self.clock.now_ms(), cost));
        }
        is_allowed
    }

    async fn end(&mut self, index: usize) {
        let Response { usage, cost } = self.under_way.swap_remove(index);
        self.limiter.settle(&usage, |_| cost).await.unwrap();
    }

    /// By how much the responses of the last window exceed the budget, once all have ended.
    fn excess(&mut self) -> u64 {
        let begin = self.clock.now_ms() - WINDOW_MS;
        while self.admitted.front().is_some_and(|(at, _)| *at <= begin) {
            self.admitted.pop_front();
        }
        let spent: u64 = self.admitted.iter().map(|(_, cost)| cost).sum();
        spent.saturating_sub(BUDGET)
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
            // The excess grows at an admission alone, as the costs in the end are known here.
            let excess = service.excess();
            assert!(excess <= service.excess_under_way(), "seed {seed}");
            greatest = greatest.max(excess);
            admitted += 1;
        }
        let is_full = service.under_way.len() > 12;
        if !service.under_way.is_empty() && (is_full || random.u8(..3) == 0) {
            let index = random.usize(..service.under_way.len());
            service.end(index).await;
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
