//! A user's own usage: reports, and resets of all policies, those among them that closures chose.

use support::prelude::*;

fn alice() -> Key {
    user("alice")
}

async fn remaining(limiter: &Limiter, policy: &Policy) -> u64 {
    let report = limiter.report([policy], &alice()).await.unwrap();
    report.limits[0].remaining
}

#[tokio::test]
async fn a_reset_of_all_knows_the_policies_that_a_closure_chose() {
    let limiter = support::limiter(MemoryStore::new());
    let plans = ["10/1h", "99/1d"].map(|rules| policy("plan", rules));
    let tools = policy("tools", "5/1h");
    let chosen = (plans.clone(), tools.clone());
    let layer = support::layer(limiter.clone()).charge(move |head: &Parts| {
        let is_large = head.uri.path() == "/large";
        let plan = &chosen.0[usize::from(is_large)];
        let plan = Charge::new(plan, alice(), 2);
        vec![plan, Charge::new(&chosen.1, alice(), 1)]
    });
    for path in ["/small", "/large"] {
        send(&layer, to(path)).await;
    }
    let all = async || {
        let [small, large] = &plans;
        [
            remaining(&limiter, small).await,
            remaining(&limiter, large).await,
            remaining(&limiter, &tools).await,
        ]
    };
    assert_eq!(all().await, [8, 97, 3]);
    limiter.reset_all(&alice()).await.unwrap();
    assert_eq!(all().await, [10, 99, 5]);
}

#[tokio::test]
async fn a_reset_of_all_knows_a_policy_whose_costs_are_known_at_the_end_alone() {
    let limiter = support::limiter(MemoryStore::new());
    let tokens = policy("tokens", "100/1h");
    let check = limiter.check([Charge::new(&tokens, alice(), 0)]);
    let decision = check.await.unwrap();
    limiter.settle(decision.usage(), |_| 30).await.unwrap();
    assert_eq!(remaining(&limiter, &tokens).await, 70);
    limiter.reset_all(&alice()).await.unwrap();
    assert_eq!(remaining(&limiter, &tokens).await, 100);
}

#[tokio::test]
async fn a_reset_of_all_says_that_it_has_forgotten_policies() {
    let limiter = support::limiter(MemoryStore::new());
    let check = async |policy: &Policy| {
        let check = limiter.check([Charge::new(policy, alice(), 1)]);
        check.await.unwrap();
    };
    // Variants of a policy are one count.
    for limit in 1..=300 {
        check(&policy("credits", &format!("{limit}/1h"))).await;
    }
    limiter.reset_all(&alice()).await.unwrap();
    check(&policy("plan", "9/1h")).await;
    let error = limiter.reset_all(&alice()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidRequest);
}
