//! Streams of handlers that check by themselves, dropped at random points and places: each costs what was metered under
//! each of three policies, and holds no slot afterwards.

use futures::{StreamExt, stream};

use super::prelude::*;

/// The budgets, and what a frame costs under each. The meter of all counts for the first one.
const BUDGETS: [(&str, u64); 3] = [("requests", 1), ("tokens", 2), ("money", 3)];
/// Charged on arrival: more than short streams cost, and less than long ones.
const ESTIMATE: u64 = 5;

/// Cuts so many streams, one after another.
pub async fn cut_checks(limiter: Limiter, streams: usize) {
    let slots = Policy::parse("slots", "100000/1h@concurrent").unwrap();
    let budgets = BUDGETS.map(|(name, _)| Policy::parse(name, "1000000/1d").unwrap());
    let key = || Key::new("user", "alice");
    let mut random = fastrand::Rng::with_seed(54);
    let mut polled = 0;
    for _ in 0..streams {
        let charges = budgets.iter();
        let charges = charges.map(|budget| Charge::new(budget, key(), ESTIMATE));
        let charges = charges.chain([Charge::new(&slots, key(), 1)]);
        let decision = limiter.check(charges).await.unwrap();
        assert!(decision.is_allowed());
        let (slot, meter) = (limiter.hold(&decision), limiter.meter(&decision));
        let [tokens, money] = [1, 2].map(|budget| meter.under(BUDGETS[budget].0));
        meter.set(0);
        [&tokens, &money].into_iter().for_each(|meter| meter.set(0));
        let length = [0, 1, 3, 40][random.usize(..4)];
        let mut frames = Box::pin(stream::iter(0..length).map(move |_| {
            let _ = &slot;
            meter.add(BUDGETS[0].1);
            tokens.add(BUDGETS[1].1);
            money.add(BUDGETS[2].1);
        }));
        for _ in 0..random.usize(..45) {
            polled += u64::from(frames.next().await.is_some());
        }
        match random.usize(..4) {
            0 => drop(std::thread::spawn(move || drop(frames)).join()),
            1 => {
                let task =
                    tokio::spawn(async move { pending::<()>().map(|()| drop(frames)).await });
                task.abort();
                drop(task.await);
            }
            _ => drop(frames),
        }
    }
    crate::finished(&limiter).await;
    let charges = budgets.iter().chain([&slots]);
    let charges = charges.map(|policy| Charge::new(policy, key(), 0));
    let usage = limiter.peek(charges).await.unwrap();
    let used = usage.rules().map(|it| it.rule().limit() - it.remaining());
    let [requests, tokens, money] = BUDGETS.map(|(_, cost)| cost * polled);
    assert!(used.eq([requests, tokens, money, 0]), "{usage:?}");
}
