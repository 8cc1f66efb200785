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

/// Responses begin and end at random; returns the greatest excess of the budget.
async fn greatest_excess(estimate: u64, seed: u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let (store, clock) = memory();
    let (limiter, policy) = (support::limiter(store), policy("tokens", "1000/1m"));
    let mut under_way: Vec<Response> = Vec::new();
    // When units became known to be used: an estimate at the admission, less the part that was not used, and the excess
    // at the end of the response.
    let mut known: Vec<(u64, i64)> = Vec::new();
    // By how much the responses under way at the last admission exceed their estimates.
    let mut bound = 0;
    let (mut greatest, mut admitted) = (0, 0);
    for _ in 0..EVENTS {
        clock.advance(ms(random.u64(..2_000)));
        let now_ms = clock.now_ms();
        let excess = |known: &[(u64, i64)]| {
            let counts = known.iter().filter(|(at_ms, _)| at_ms + WINDOW_MS > now_ms);
            let units: i64 = counts.map(|(_, units)| units).sum();
            units.cast_unsigned().saturating_sub(BUDGET)
        };
        if random.bool() {
            let cost = random.u64(1..=MOST);
            let decision = check(&limiter, &policy, "alice", estimate).await;
            if decision.is_allowed() {
                admitted += 1;
                under_way.push(Response {
                    usage: decision.usage().clone(),
                    admitted_ms: now_ms,
                    cost,
                });
                known.push((now_ms, estimate.cast_signed()));
                let costs = under_way.iter().map(|it| it.cost);
                bound = costs.map(|cost| cost.saturating_sub(estimate)).sum();
                assert_eq!(excess(&known), 0, "seed {seed}: the next requests wait");
            }
        }
        if under_way.len() > 12 || !under_way.is_empty() && random.u8(..3) == 0 {
            let ends = under_way.swap_remove(random.usize(..under_way.len()));
            limiter.settle(&ends.usage, |_| ends.cost).await.unwrap();
            let difference = ends.cost.cast_signed() - estimate.cast_signed();
            let is_more = difference > 0;
            known.push((if is_more { now_ms } else { ends.admitted_ms }, difference));
            assert!(excess(&known) <= bound, "seed {seed}");
            greatest = greatest.max(excess(&known));
        }
    }
    assert!(admitted > EVENTS / 10, "{admitted}");
    greatest
}

#[tokio::test]
async fn a_budget_is_exceeded_by_the_excess_of_responses_under_way_at_most() {
    let mut greatest = 0;
    for seed in 0..8 {
        greatest = greatest.max(greatest_excess(50, seed).await);
        let without_excess = greatest_excess(MOST, seed).await;
        assert_eq!(
            without_excess, 0,
            "no response exceeds its estimate: {seed}"
        );
    }
    assert!(greatest > 0, "an estimate of the mean is exceeded");
}
