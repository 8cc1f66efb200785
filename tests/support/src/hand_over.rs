//! Counts the checks that the script's fast path hands over to the plain script: none in the common cases.

use sluicegate::store::HeldSlots;

use super::{lua::LuaServer, prelude::*};

/// Two stores over one server: by the fast path alone, and by the whole script.
#[derive(Clone)]
pub struct Halves {
    fast: RedisStore,
    whole: RedisStore,
}

impl Halves {
    pub fn over(server: &LuaServer, clock: &ManualClock) -> Self {
        let [fast, whole] = [server.fast(), server.clone()];
        let store = |server: LuaServer| server.store().clock(clock.clone());
        Self {
            fast: store(fast),
            whole: store(whole),
        }
    }
}

/// Executes operations by the fast path alone or, if it hands them over, by the whole script.
struct Counting {
    stores: Halves,
    policy: Policy,
    handed_over: usize,
}

impl Counting {
    fn new(stores: &Halves, clock: &ManualClock, name: &str, rules: &str) -> Self {
        clock.set(START_MS);
        Self {
            stores: stores.clone(),
            policy: Policy::parse(name, rules).unwrap(),
            handed_over: 0,
        }
    }

    async fn execute(&mut self, operation: Operation) -> Reply {
        match self.stores.fast.execute(operation.clone()).await {
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::Protocol, "{error}");
                self.handed_over += 1;
                self.stores.whole.execute(operation).await.unwrap()
            }
            reply => reply.unwrap(),
        }
    }

    async fn check(&mut self, cost: u64) -> (bool, Usage) {
        let charge = Charge::new(&self.policy, Key::new("user", "alice"), cost);
        let check = Operation::Check(Check::new([charge]).unwrap());
        match self.execute(check).await {
            Reply::Check(decision) => (decision.is_allowed(), decision.usage().clone()),
            other => panic!("{other:?}"),
        }
    }

    async fn settle(&mut self, usage: &Usage, cost: u64) {
        let settlement = Settlement::new(usage, |_| cost).unwrap();
        self.execute(Operation::Settle(settlement)).await;
    }

    /// Sends a renewal or a return.
    async fn send(&mut self, message: Operation) -> HeldSlots {
        match self.execute(message).await {
            Reply::Renew(answer) | Reply::Return(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    /// How many operations were handed over since it was asked last.
    fn handed_over(&mut self) -> usize {
        std::mem::take(&mut self.handed_over)
    }
}

/// Each of these cases, with an empty server.
pub async fn no_common_case_is_handed_over(new: impl Fn() -> (Halves, ManualClock)) {
    let (stores, clock) = new();
    a_common_case_is_not_handed_over(stores, clock).await;
    let (stores, clock) = new();
    steps_are_opened_and_released_by_the_fast_path(stores, clock).await;
    let (stores, clock) = new();
    a_denial_while_steps_are_released_is_not_handed_over(stores, clock).await;
    let (stores, clock) = new();
    slots_are_taken_renewed_and_returned_by_the_fast_path(stores, clock).await;
}

/// Nothing is handed over: new keys, charges in place, denials, looks, and settlements.
async fn a_common_case_is_not_handed_over(stores: Halves, clock: ManualClock) {
    let kinds = [
        ("sliding", "9/1m"),
        ("three", "99/1s,99/1m,9/1h"),
        ("fixed", "9/1m@fixed"),
        ("bucket", "9+60/1s@bucket"),
    ];
    for (name, rules) in kinds {
        let mut calls = Counting::new(&stores, &clock, name, rules);
        assert!(
            !calls.check(10).await.0,
            "{name}: more than the limit of a new key"
        );
        assert!(calls.check(1).await.0);
        assert_eq!(calls.handed_over(), 0, "{name}: a new key");
        assert!(calls.check(3).await.0 && !calls.check(9).await.0 && !calls.check(10).await.0);
        assert!(calls.check(0).await.0);
        assert_eq!(calls.handed_over(), 0, "{name}: in one step");
        if name != "bucket" {
            for (charged, cost) in [(1, 2), (1, 1), (2, 1)] {
                let (_, usage) = calls.check(charged).await;
                calls.settle(&usage, cost).await;
            }
            assert_eq!(calls.handed_over(), 0, "{name}: a settlement");
        }
        clock.advance(Duration::from_millis(20));
        let (is_allowed, usage) = calls.check(1).await;
        assert!(is_allowed);
        assert_eq!(
            calls.handed_over(),
            0,
            "{name}: the first rule opens a step"
        );
        if name != "bucket" {
            clock.advance(Duration::from_millis(20));
            calls.settle(&usage, 2).await;
            assert_eq!(calls.handed_over(), 0, "{name}: so does a settlement");
        }
    }
}

/// Only the charge that brings the units of a rule to 2^16 is handed over, as entries become wide.
async fn steps_are_opened_and_released_by_the_fast_path(stores: Halves, clock: ManualClock) {
    for (name, rules, cost, becomes_wide) in [
        ("sliding", "1000/1m", 1, vec![]),
        ("within-a-step", "1000/1m@7s", 1, vec![]),
        ("three", "99/1s,999/1m,999/1h", 1, vec![]),
        ("month", "999/1m,999/month@UTC", 1, vec![]),
        ("wide", "1000000/1m", 5_000, vec![13]),
    ] {
        let mut calls = Counting::new(&stores, &clock, name, rules);
        let mut handed_over_at = Vec::new();
        for second in 0..200 {
            assert!(calls.check(cost).await.0);
            if calls.handed_over() > 0 {
                handed_over_at.push(second);
            }
            clock.advance(Duration::from_millis(1_000));
        }
        assert_eq!(handed_over_at, becomes_wide, "{name}");
        clock.advance(Duration::from_secs(30));
        assert!(calls.check(cost).await.0);
        assert_eq!(calls.handed_over(), 0, "{name}: many steps are released");
    }
}

async fn a_denial_while_steps_are_released_is_not_handed_over(stores: Halves, clock: ManualClock) {
    let mut calls = Counting::new(&stores, &clock, "sliding", "5/1m");
    for _ in 0..5 {
        assert!(calls.check(1).await.0);
        clock.advance(Duration::from_millis(1_000));
    }
    calls.handed_over();
    for _ in 0..3 {
        assert!(!calls.check(3).await.0);
        clock.advance(Duration::from_millis(18_000));
    }
    clock.advance(Duration::from_millis(3_000)); // the first two are released
    assert!(!calls.check(3).await.0);
    assert!(calls.check(2).await.0);
    assert_eq!(calls.handed_over(), 0);
}

/// Also those of a new key.
async fn slots_are_taken_renewed_and_returned_by_the_fast_path(stores: Halves, clock: ManualClock) {
    let mut calls = Counting::new(&stores, &clock, "slots", "9/30s@concurrent");
    let (is_allowed, usage) = calls.check(1).await;
    assert!(is_allowed);
    let slots = Slots::of(&usage).remove(0);
    for _ in 0..12 {
        clock.advance(Duration::from_millis(10_000));
        assert!(calls.send(Operation::Renew(slots.clone())).await.are_held());
        assert!(calls.check(1).await.0 && calls.check(3).await.0 && !calls.check(9).await.0);
        clock.advance(Duration::from_millis(19_000));
        assert!(calls.send(Operation::Renew(slots.clone())).await.are_held());
        clock.advance(Duration::from_millis(12_000));
    }
    for is_held in [true, false] {
        let answer = calls.send(Operation::Return(slots.clone())).await;
        assert_eq!(answer.are_held(), is_held);
    }
    assert_eq!(calls.handed_over(), 0);
}
