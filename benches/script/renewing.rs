//! The cost of renewing slots: of a hundred keys, and of one.

use std::time::Duration;

use sluicegate::{
    Charge, Key, Policy, RedisStore, Rule, Store,
    store::{Check, Operation, Reply, Slots},
    test_util::TestClock,
};

use support::redis::Server;

use crate::measure::{Error, Figures, bar, median};

const SLOTS: u64 = 100;
/// A third of the time in which slots expire: so often they are renewed.
const PAUSE: Duration = Duration::from_secs(10);
const WARM_UP: usize = 10;
const TURNS: usize = 61;

fn checks(name: &str, keys: u64) -> Result<Vec<Check>, Error> {
    let policy = Policy::new(name, [Rule::concurrent(1_000_000)])?;
    let check = |slot: u64| {
        let key = Key::new("user", (slot % keys).to_string());
        Ok(Check::new([Charge::new(&policy, key, 1)])?)
    };
    (0..SLOTS).map(check).collect()
}

/// The cost of a hundred slots in one call, relative to as many checks, each in a call of its own.
pub(crate) async fn renewing(server: &Server, store: RedisStore) -> Result<bool, Error> {
    let mut met = true;
    for (what, keys) in [("of 100 keys", SLOTS), ("of one key", 1)] {
        let ratio = ratio(server, &store, keys).await?;
        let what = format!("renewing 100 slots {what} in one call / 100 checks");
        met &= bar(&what, ratio, 0.25);
    }
    Ok(met)
}

async fn ratio(server: &Server, store: &RedisStore, keys: u64) -> Result<f64, Error> {
    let clock = TestClock::new(1_700_000_000_000);
    let prefix = format!("renewing-{keys}");
    let store = store.clone().prefix(&prefix).clock(clock.clone());
    let (held, other) = (checks("held", keys)?, checks("other", keys)?);
    let mut slots = Vec::new();
    for check in &held {
        slots.extend(Slots::take(store.check(check).await?.usage()));
    }
    let mut ratios = Vec::new();
    for _ in 0..WARM_UP + TURNS {
        clock.advance(PAUSE);
        server.run::<()>("CONFIG RESETSTAT");
        for check in &other {
            store.check(check).await?;
        }
        let check = Figures::read(server, SLOTS).micros;
        server.run::<()>("CONFIG RESETSTAT");
        slots = renew(&store, slots).await?;
        ratios.push(Figures::read(server, SLOTS).micros / check);
    }
    Ok(median(ratios.split_off(WARM_UP)))
}

async fn renew(store: &RedisStore, slots: Vec<Slots>) -> Result<Vec<Slots>, Error> {
    let renewals = slots.into_iter().map(|it| Operation::Renew(it.renew()));
    let mut renewed = Vec::new();
    for reply in store.call(renewals.collect()).await? {
        match reply? {
            Reply::Renew(reply) if reply.is_renewed() => renewed.extend(reply.slots()),
            other => return Err(format!("not renewed: {other:?}").into()),
        }
    }
    Ok(renewed)
}
