//! Tests of concurrency and calendar rules for every store, made by `kinds!`.

use super::{prelude::*, rows::Row};

type AnyStore = Arc<dyn Store>;

/// Makes one test of the rows, and one of each other sentence; `$new` is an `async fn() -> (impl Store, ManualClock)`.
#[macro_export]
macro_rules! kinds {
    ($new:path) => {
        #[test]
        fn each_row_about_slots_and_periods_holds() {
            $crate::sentence::of_each_row($new, &$crate::kinds::all());
        }
        $crate::sentences! { about_a_store $new, kinds[&]:
            each_check_of_a_batch_has_slots_of_its_own
            slots_of_a_shadow_are_held
            a_denial_tells_the_wait_besides_slots
        }
    };
}

pub fn all() -> Vec<Row> {
    rows(KINDS)
}

const KINDS: &str = "
A slot is free once it is returned
 e = 2/30s@concurrent; a: e alice 1; +1s; b: e alice 1; e alice 1 !29s; e bob = 2
 return a; e alice = 1; return b = 2; e alice = 2
A slot that is not renewed is free when it expires
 e = 1/30s@concurrent; +200; a: e alice 1; e alice 1 !30s; +29999; e alice = 0; +1; e alice = 1; return a !
A renewed slot is held for longer
 e = 1/30s@concurrent; a: e alice 1; +25s; renew a = 0/30s; +25s; renew a = 0/30s; +25s; renew a = 0/30s
 e alice = 0; return a; e alice = 1
Messages about slots may come twice
 # The second takes no other slot, needs no room, and does not extend the first. Nothing revives.
 e = 2/30s@concurrent; a: e alice 1; +10s; again a = 1; b: e alice 1; again a; e alice = 0; +20s; e alice = 1
 renew a !; return b; e alice = 2; renew a !; return b !; e alice = 2; again a; e alice = 1
A lost slot is neither renewed nor taken from others
 e = 1/30s@concurrent; lost: e alice 1; +30s; other: e alice 1; renew lost ! = 0; return lost !
 e alice = 0; renew other
A settlement leaves slots alone
 rate = 9/1m; e = 1/30s@concurrent; x: e alice 1 & rate alice 3; settle x 0 = 0 9; settle x 0 !
 return x; e alice = 1; rate alice = 9
Slots are taken with other charges or not at all
 rate = 1/1m; e = 1/30s@concurrent; x: e alice 1; rate alice 1 & e alice 1 !; rate alice = 1; return x
 rate alice 1; rate alice 1 & e alice 1 !; e alice = 1
Slots of a key are renewed and returned one by one
 # The first have expired. Both are in one set, and each id has an answer of its own.
 e = 4/10s@concurrent; a: e alice 2; +5s; b: e alice 2; +5s; renew a b !2-2+; renew a !; renew b; +9s
 return a !; e alice = 2; return b; e alice = 4
A limit of no slots is a switch
 e = 0/30s@concurrent; e alice 1 !never; e alice 2 !never; x: e alice 0; return x !
A check may take several slots
 # The denials end when the first slots expire, or the others.
 e = 300/30s@concurrent; x: e alice 200; e alice 101 !30s; +10s; e alice 75; e alice 50 !20s; e alice 250 !30s
 renew x; return x; e alice = 225
A lower limit takes no slot away
 high = e 3/30s@concurrent; low = e 1/30s@concurrent; x: high alice 3; low alice 1 !; renew x; return x; low alice = 1
Slots that are held need no room under a lower limit
 low = e 2/30s@concurrent; high = e 9/30s@concurrent; x: low alice 1; high alice 8; again x; low alice 0 !
Slots are renewed apart and together and are lost
 p = 9/30s@concurrent; a: p alice 2 = 7/30000; b: p alice 2 = 5/30000; c: p alice 1 = 4/30000; +10000
 renew a c = 4/30000 4/30000; +20000; renew a b c !2+2-1+ = 6/30000 6/30000 6/30000; p alice 7 !30000 = 6/30000
 p alice 6 = 0/30000; renew c = 0/30000; +30000; p alice 9 = 0/30000
Slots are renewed while the clock is behind and lost in a reset
 p = 9/30s@concurrent; a: p alice 1 = 8/30000; b: p alice 2 = 6/30000; +1000; c: p alice 2 = 4/30000; -1500
 renew a b !3- = 9/0 9/0; p alice 9 = 0/30000; reset p alice; p alice 2 = 7/30000
 renew a b c !5- = 7/30000 7/30000 7/30000; +25000; p alice 9 !5000 = 7/5000
A slot that has a millisecond left is kept when others are dropped
 p = 9/30s@concurrent; +1; p alice 2 = 7/30000; +29999; p alice 2 = 5/30000; p alice 6 !1 = 5/30000
More slots than a server keeps in a short list are taken and some expire
 p = 300/30s@concurrent; a: p alice 5 = 295/30000; +1; b: p alice 130 = 165/30000; renew b = 165/30000; +29999
 renew a b !5-130+ = 170/1 170/30000
 p alice 171 !30000 = 170/30000
A missing slot is no strike and a denial by a rate beside it is one
 jobs = 1/30s@concurrent 2/1m=1h; wide = 9/1d 2/1m=1h; login = 1/1d 2/1m=1h; look = 9/1d; jobs alice 1
 5* strike jobs alice 1 & wide alice !; look alice 1; 2* strike jobs alice 1 & login alice !; look alice 1 !ban:1h
Slots are taken and returned by their keys
 e = 1/30s@concurrent; a: e alice 1; b: e bob 1; return a; e alice = 1; e bob = 0; reset e bob; e bob = 1; renew b !
Another expiry starts empty and the first is still returned
 long = e 1/30s@concurrent; short = e 1/10s@concurrent; a: long alice 1; b: short alice 1; renew a; return a
 long alice = 1; short alice = 0; return b; short alice = 1
A policy may change from rates to slots and to another expiry
 # At the end, the rates are back.
 a = p 10/1h; b = p 3/30s@concurrent; c = p 3/10s@concurrent; a alice 4; b alice 2; c alice 3; a alice 5
 a alice = 1; b alice = 1; c alice = 0; reset b alice; a alice = 1; b alice = 3; c alice = 0
 reset a alice; a alice = 10; b alice = 3; c alice = 0
Slots last longer while the clock is behind and are not believed beyond their window
 e = 1/30s@concurrent; x: e alice 1; @10s; @5s; e alice = 0; @-1; e alice = 1; renew x !; @0; renew x
A new limit takes effect within a period
 @2024-05-10; small = p 2/month@Europe/Berlin; large = p 9/month@Europe/Berlin; small alice 2; small alice 1 !
 large alice 1; large alice = 6; small alice = 0
Another zone or day starts empty and the first is carried along
 @2024-05-10; p = 9/month@UTC; zone = p 9/month@Etc/UTC; day = p 9/month:2@UTC; week = p 9/week@UTC
 month = p 9/31d; fixed = p 9/31d@fixed; p alice 3; zone alice 1; zone alice = 8; day alice 1; day alice = 8
 week alice 1; week alice = 8; month alice 1; month alice = 8; fixed alice 1; fixed alice = 8; p alice = 6
Time stands still for a quota while the clock is behind
 p = 5/month@UTC; @2024-06-01; p alice 2; @2024-05-31; p alice 2 = 1/31d; @2024-06-30T23:59:59Z; p alice = 1
 @2024-07-01; p alice = 5
A month that begins more than two days ahead is not believed
 # A server's clock is a month ahead for one charge, and is set right.
 p = 5/month@UTC; @2024-01-10T12:00:00Z; p alice 2; @2024-02-10T12:00:00Z; x: p alice 3
 @2024-01-10T12:00:00Z; p alice = 5; @2024-01-29T23:59:59.999Z; p alice = 5; @2024-01-30; p alice = 2
 @2024-01-29T23:59:59.999Z; settle x 1 = 5; p alice 4; p alice = 1; @2024-02-01; p alice = 5
A day that begins more than two days ahead is not believed
 p = 5/day@UTC; @2024-06-04T12:00:00Z; p alice 2; @2024-06-02; p alice = 3; @2024-06-01T23:59:59.999Z; p alice = 5
 p alice 1; p alice = 4
A quota is forgotten when it is reset
 # The period is current, so that units settled upward count.
 p = 5/year@UTC; @2024-06-04T12:00:00Z; x: p alice 5; reset p alice; p alice = 5; settle x 7 = 3
";

async fn decide(store: &AnyStore, charges: impl IntoIterator<Item = Charge> + Send) -> Decision {
    store.check(&Check::new(charges).unwrap()).await.unwrap()
}

async fn free(store: &AnyStore, policy: &Policy) -> u64 {
    remaining(decide(store, [charge(policy, "alice", 0)]).await.usage())[0]
}

fn slots_of(usage: &Usage) -> Slots {
    let mut all = Slots::of(usage);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

pub async fn each_check_of_a_batch_has_slots_of_its_own(store: &AnyStore, _: ManualClock) {
    let policy = policy("exports", "3/30s@concurrent");
    let batch = CheckBatch::new(check_of(&policy, "alice", 1), 5);
    let batch = store.execute(Operation::CheckBatch(batch)).await.unwrap();
    let Reply::CheckBatch(decisions) = batch else {
        panic!("not the reply to a batch");
    };
    let left_then: Vec<_> = decisions
        .iter()
        .map(|it| remaining(it.usage())[0])
        .collect();
    assert_eq!(left_then, [2, 1, 0, 0, 0]);
    let admitted = decisions.iter().filter(|it| it.is_allowed());
    let taken: Vec<Slots> = admitted.map(|it| slots_of(it.usage())).collect();
    assert_eq!(taken.len(), 3);
    for (returned, slots) in (1..).zip(taken) {
        store.give_back(&slots).await.unwrap();
        assert_eq!(free(store, &policy).await, returned);
    }
}

pub async fn slots_of_a_shadow_are_held(store: &AnyStore, _: ManualClock) {
    let trial = policy("trial", "1/30s@concurrent").shadow();
    let rate = policy("rate", "9/1m");
    let both = async || decide(store, [&rate, &trial].map(|it| charge(it, "alice", 1))).await;
    let would_pass = |decision: &Decision| decision.usage().shadow().unwrap().is_allowed();
    let admitted = both().await;
    assert!(Slots::of(admitted.usage()).is_empty());
    let slots = slots_of(admitted.usage().shadow().unwrap().usage());
    let denied_by_shadow = both().await;
    assert!(denied_by_shadow.is_allowed() && !would_pass(&denied_by_shadow));
    store.give_back(&slots).await.unwrap();
    assert!(would_pass(&both().await));
}

pub async fn a_denial_tells_the_wait_besides_slots(store: &AnyStore, clock: ManualClock) {
    let (rate, exports) = (
        policy("rate", "1/10s@1s"),
        policy("exports", "1/30s@concurrent"),
    );
    let wait = async |rate: &Policy| {
        let charges = [rate, &exports].map(|it| charge(it, "alice", 1));
        match decide(store, charges).await {
            Decision::Denied(it) => Some((it.retry_after(), it.retry_after_besides_slots())),
            _ => None,
        }
    };
    assert_eq!(wait(&rate).await, None);
    let both = Some((Some(30 * SECOND), Some(11 * SECOND)));
    assert_eq!(wait(&rate).await, both);
    clock.advance(11 * SECOND);
    let slots_alone = Some((Some(19 * SECOND), Some(Duration::ZERO)));
    assert_eq!(wait(&rate).await, slots_alone);
    let never = policy("rate", "0/10s@1s");
    assert_eq!(wait(&never).await.unwrap().1, None);
}
