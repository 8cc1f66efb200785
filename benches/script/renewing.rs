//! The cost of renewing slots: of a hundred keys, of one, and of slots that a limiter holds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use sluicegate::{
    Charge, Key, Limiter, Policy, RedisStore, Rule, Store,
    manual_clock::ManualClock,
    observe::{CallKind, Event, Observer},
    store::{Check, Operation, Reply, Slots},
};

use support::redis::Server;

use crate::figures::{Error, Figures, bar_and_aim, median};

const SLOTS: u64 = 100;
/// A third of the time in which slots expire: so often they are renewed.
const PAUSE: Duration = Duration::from_secs(10);
const WARM_UP: usize = 10;
const TURNS: usize = 61;

/// Checks that take a hundred slots, spread over this number of keys.
fn checks(name: &str, keys: u64) -> Result<Vec<Check>, Error> {
    let policy = Policy::new(name, [Rule::concurrent(1_000_000)])?;
    let check = |user: u64| {
        let key = Key::new("user", user.to_string());
        Ok(Check::new([Charge::new(&policy, key, SLOTS / keys)])?)
    };
    (0..keys).map(check).collect()
}

/// The cost of a hundred slots in one call, relative to as many checks, each in a call of its own.
pub(crate) async fn renewing(server: &Server, store: RedisStore) -> Result<bool, Error> {
    let mut met = true;
    for (what, keys) in [("of 100 keys", SLOTS), ("of one key", 1)] {
        let ratio = ratio(server, &store, keys).await?;
        let what = format!("renewing 100 slots {what} in one call / 100 checks");
        met &= bar_and_aim(&what, ratio, 0.5, 0.25);
    }
    let ratio = of_limiter(server, &store).await?;
    println!("       renewing a slot of 100 that a limiter holds / a check: {ratio:.2}");
    Ok(met)
}

/// Counts renewals.
#[derive(Debug, Default)]
struct Renewals(AtomicU64);

impl Observer for Renewals {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::Completion { call, .. } = event {
            self.0
                .fetch_add(u64::from(call.kind == CallKind::Renew), SeqCst);
        }
    }
}

/// The cost of a renewal by a limiter, which chooses when to renew which slots, relative to a check in a call of its
/// own.
async fn of_limiter(server: &Server, store: &RedisStore) -> Result<f64, Error> {
    let renewals = Arc::new(Renewals::default());
    let limiter = Limiter::new(store.clone().prefix("renewing-limiter"));
    let limiter = limiter
        .publish_policies(false)
        .observer(Arc::clone(&renewals));
    let expiry = Duration::from_secs(3);
    let policy = Policy::new("held", [Rule::concurrent(1_000_000).expires_after(expiry)])?;
    let mut slots = Vec::new();
    for slot in 0..SLOTS {
        let job = Charge::new(&policy, Key::new("user", slot.to_string()), 1);
        slots.extend(
            limiter
                .acquire_slot([job], Duration::ZERO)
                .await?
                .ok()
                .flatten(),
        );
    }
    tokio::time::sleep(expiry).await;
    let other = checks("other", SLOTS)?;
    let mut ratios = Vec::new();
    for _ in 0..3 {
        server.run::<()>("CONFIG RESETSTAT");
        let before = renewals.0.load(SeqCst);
        tokio::time::sleep(expiry).await;
        let renewed = renewals.0.load(SeqCst) - before;
        let renewal = Figures::read(server, renewed).micros;
        server.run::<()>("CONFIG RESETSTAT");
        let mut checked = 0;
        for check in other.iter().cycle().take(2_000) {
            store.check(check).await?;
            checked += 1;
        }
        // Few renewals fall into this time.
        ratios.push(renewal / Figures::read(server, checked).micros);
    }
    drop(slots);
    Ok(median(ratios))
}

async fn ratio(server: &Server, store: &RedisStore, keys: u64) -> Result<f64, Error> {
    let clock = ManualClock::new(1_700_000_000_000);
    let prefix = format!("renewing-{keys}");
    let store = store.clone().prefix(&prefix).clock(clock.clone());
    let (held, other) = (checks("held", keys)?, checks("other", SLOTS)?);
    let mut slots = Vec::new();
    for check in &held {
        slots.extend(Slots::of(store.check(check).await?.usage()));
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
        renew(&store, &slots).await?;
        ratios.push(Figures::read(server, SLOTS).micros / check);
    }
    Ok(median(ratios.split_off(WARM_UP)))
}

async fn renew(store: &RedisStore, slots: &[Slots]) -> Result<(), Error> {
    let renewals = slots.iter().cloned().map(Operation::Renew);
    for reply in store.call(renewals.collect()).await? {
        match reply? {
            Reply::Renew(reply) if reply.are_held() => {}
            other => return Err(format!("not renewed: {other:?}").into()),
        }
    }
    Ok(())
}
