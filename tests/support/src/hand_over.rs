//! The script's fast path hands no common case over to the plain script.

use super::{lua::LuaServer, prelude::*, rows};

/// By the fast path alone: an operation that it hands over is an error.
const ROWS: &str = "
New keys, charges in place, denials, looks and settlements under a sliding rule
 p = 9/1m; p alice 10 !; p alice 1; p alice 3; p alice 9 !; p alice 10 !; p alice = 5; a: p alice 1; settle a 2
 b: p alice 1; settle b 1; c: p alice 2; settle c 1; +20; d: p alice 1; +20; settle d 2
New keys, charges in place, denials, looks and settlements under three rules
 # The last charge and settlement open a step of the first.
 p = 99/1s,99/1m,9/1h; p alice 10 !; p alice 1; p alice 3; p alice 9 !; p alice 10 !; p alice = 95 95 5; a: p alice 1
 settle a 2; b: p alice 1; settle b 1; c: p alice 2; settle c 1; +20; d: p alice 1; +20; settle d 2
New keys, charges in place, denials, looks and settlements under a fixed rule
 p = 9/1m@fixed; p alice 10 !; p alice 1; p alice 3; p alice 9 !; p alice 10 !; p alice = 5; a: p alice 1; settle a 2
 b: p alice 1; settle b 1; c: p alice 2; settle c 1; +20; d: p alice 1; +20; settle d 2
New keys, charges, denials and looks under a bucket
 p = 9+60/1s@bucket; p alice 10 !; p alice 1; p alice 3; p alice 9 !; p alice 10 !; p alice = 5; +20; p alice 1
Denials while steps are released
 # The first two are released in the end.
 p = 5/1m; p alice 1; +1s; p alice 1; +1s; p alice 1; +1s; p alice 1; +1s; p alice 1; +1s; p alice 3 !; +18s
 p alice 3 !; +18s; p alice 3 !; +21s; p alice 3 !; p alice 2
Slots that are taken, renewed and returned, also those of a new key
 p = 9/30s@concurrent; x: p alice 1; +10s; renew x; p alice 1; p alice 3; p alice 9 !; +19s; renew x; +22s; renew x
 p alice 1; p alice 3; p alice 9 !; +19s; renew x; +22s; renew x; p alice 1; p alice 3; p alice 9 !; return x; return x !
";

/// Each of these cases, with an empty server.
pub async fn no_common_case_is_handed_over(server: &LuaServer, clock: &ManualClock) {
    let store = |server: LuaServer| server.store().clock(clock.clone());
    let (fast, whole) = (store(server.fast()), store(server.clone()));
    let by_fast: Arc<dyn Store> = Arc::new(fast.clone());
    for row in &rows::rows(ROWS) {
        server.clear();
        rows::play(&by_fast, clock, row).await;
    }
    server.clear();
    steps_are_opened_and_released_by_the_fast_path(&fast, &whole, clock).await;
}

/// Only the charge that brings the units of a rule to 2^16 is handed over, as entries become wide.
async fn steps_are_opened_and_released_by_the_fast_path(
    fast: &RedisStore,
    whole: &RedisStore,
    clock: &ManualClock,
) {
    for (name, rules, cost, becomes_wide) in [
        ("sliding", "1000/1m", 1, None),
        ("within-a-step", "1000/1m@7s", 1, None),
        ("three", "99/1s,999/1m,999/1h", 1, None),
        ("month", "999/1m,999/month@UTC", 1, None),
        ("wide", "1000000/1m", 5_000, Some(13)),
    ] {
        clock.set(START_MS);
        let check = check_of(&policy(name, rules), "alice", cost);
        for second in 0..=200 {
            let mut decision = fast.check(&check).await;
            let error = decision.as_ref().err().map(StoreError::kind);
            let is_handed_over = error == Some(StoreErrorKind::Protocol);
            if is_handed_over {
                decision = whole.check(&check).await;
            }
            assert!(decision.unwrap().is_allowed(), "{name}: {second}");
            let is_due = becomes_wide == Some(second);
            assert_eq!(is_handed_over, is_due, "{name}: {second}");
            // In the end, many steps are released together.
            clock.advance(SECOND * if second == 199 { 31 } else { 1 });
        }
    }
}
