//! The contract of stores that keep blocks, as tests: see `blocks!`.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{Request, Response, request::Parts};
use sluicegate::{
    Charge, Decision, Key, KeyExtractor, Limiter, Policy, RateLimitLayer, Rule, Store,
    block::{Block, BlockDetails, BlockRequest, BlockedBy, Until},
    decision::Blocked,
    error::ExtractError,
    extract::Keys,
    manual_clock::ManualClock,
    middleware::Decisions,
    store::{CallFuture, Check, Operation, Reply, Settlement, StoreExt, StoreFuture},
};
use tower::{Layer, ServiceExt, service_fn};

use super::{contract::patient, history::START_MS, outcome::ms};

/// Makes one test of each sentence; `$new` is an `async fn() -> (impl Store, ManualClock)`.
#[macro_export]
macro_rules! blocks {
    ($new:path) => {
        $crate::blocks! { @each $new:
            a_block_denies_until_exactly_its_time
            a_block_until_a_time_ends_then
            a_blocked_check_charges_nothing_to_anybody
            a_block_for_ever_is_one_for_ever
            a_block_keeps_its_details_and_of_two_those_of_the_later_end
            a_ban_keeps_the_policy_and_the_rule_that_denied
            checks_that_enforce_no_blocks_are_not_denied
            the_last_of_the_most_keys_is_told
            shadows_are_no_reason_and_are_not_asked
            a_look_at_no_cost_is_denied_and_a_peek_is_not
            operations_with_blocks_are_done_in_their_order
            a_block_holds_though_the_clock_steps_back
            a_time_in_the_past_blocks_nobody
            blocks_and_limits_of_one_identity_do_not_meet
            secret_keys_are_blocked_apart_from_plain_ones
            what_was_blocked_is_not_settled
            a_ban_follows_the_last_strike_and_lasts_its_time
            a_ban_needs_all_its_strikes_and_forgets_them
            who_is_unblocked_while_a_ban_is_made_is_not_banned
            a_ban_that_grows_takes_the_next_time_and_repeats_the_last
            a_level_is_kept_for_as_long_after_a_ban_as_it_lasted
            bans_for_the_same_denials_raise_one_level
            unblocking_clears_the_level
            other_blocks_leave_the_level_as_it_is
            identities_that_are_only_looked_up_are_denied_and_charged_nothing
            a_layer_that_only_looks_up_denies_and_passes
        }
    };
    (@each $new:path: $($sentence:ident)*) => {
        $(
            #[test]
            fn $sentence() {
                $crate::sentence::about_a_store($new, |store, clock| {
                    Box::pin($crate::blocks::$sentence(store.clone(), clock))
                });
            }
        )*
    };
}

const HOUR: Duration = Duration::from_secs(3_600);

fn api() -> Policy {
    Policy::parse("api", "5/1d").unwrap()
}

fn user(name: &str) -> Key {
    Key::new("user", name)
}

/// A check of one unit for each of these users, which enforces blocks.
fn check(users: &[&str]) -> Check {
    let charges = users.iter().map(|it| Charge::new(&api(), user(it), 1));
    Check::new(charges).unwrap().enforce_blocks(true)
}

async fn decide(store: &dyn Store, users: &[&str]) -> Decision {
    store.check(&check(users)).await.unwrap()
}

async fn block(store: &dyn Store, key: &Key, until: impl Into<Until>, by: BlockedBy) -> Block {
    store.block(key, request(until, by)).await.unwrap()
}

/// A block by an operator, or a ban by a policy that denies everything.
pub fn request(until: impl Into<Until>, by: BlockedBy) -> BlockRequest {
    match by {
        BlockedBy::Ban => ban_until("3/10m=1h", until),
        _ => BlockRequest::new(until),
    }
}

async fn block_user(store: &dyn Store, name: &str, until: impl Into<Until>) -> Block {
    block(store, &user(name), until, BlockedBy::Operator).await
}

fn blocked(decision: Decision) -> Blocked {
    match decision {
        Decision::Blocked(blocked) => blocked,
        other => panic!("not blocked: {other:?}"),
    }
}

async fn is_blocked(store: &dyn Store, name: &str) -> bool {
    matches!(decide(store, &[name]).await, Decision::Blocked(_))
}

/// The units that each of these users has left.
async fn left(store: &dyn Store, users: &[&str]) -> Vec<u64> {
    let usage = store.check(&check(users).without_cost()).await.unwrap();
    assert!(usage.is_allowed());
    usage.usage().rules().map(|it| it.remaining()).collect()
}

fn at(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

pub async fn a_block_denies_until_exactly_its_time(store: Arc<dyn Store>, clock: ManualClock) {
    for span in [1, 2, 999, 86_400_000 * 365] {
        let start = clock.now_ms();
        let block = block_user(&store, "alice", Duration::from_millis(span)).await;
        assert_eq!(block, Block::new(start + span, BlockedBy::Operator));
        for gone in [0, span / 2, span - 1] {
            clock.set(start + gone);
            let blocked = blocked(decide(&store, &["alice"]).await);
            assert_eq!(blocked.key(), &user("alice"));
            assert_eq!(blocked.block(), block);
            assert_eq!(blocked.retry_after().map(ms), Some(span - gone));
        }
        clock.set(start + span);
        let decision = decide(&store, &["alice"]).await;
        assert!(decision.is_allowed(), "{span}");
        assert_eq!(decision.usage().decided_at_ms(), start + span);
    }
}

pub async fn a_block_until_a_time_ends_then(store: Arc<dyn Store>, clock: ManualClock) {
    block_user(&store, "alice", at(START_MS + 1_500)).await;
    // A time between two milliseconds is rounded up.
    let soon = at(START_MS + 1_499) + Duration::from_nanos(1);
    block_user(&store, "bob", soon).await;
    for name in ["alice", "bob"] {
        clock.set(START_MS + 1_499);
        assert!(is_blocked(&store, name).await);
        clock.set(START_MS + 1_500);
        assert!(!is_blocked(&store, name).await);
    }
}

pub async fn a_blocked_check_charges_nothing_to_anybody(store: Arc<dyn Store>, _: ManualClock) {
    block_user(&store, "bob", HOUR).await;
    for users in [&["bob"][..], &["alice", "bob"], &["bob", "carol"]] {
        let decision = decide(&store, users).await;
        assert_eq!(decision.usage().decided_at_ms(), START_MS);
        assert_eq!(decision.usage().policies().count(), 0);
        assert_eq!(blocked(decision).key(), &user("bob"));
    }
    assert_eq!(left(&store, &["alice", "bob", "carol"]).await, [5, 5, 5]);
}

async fn details(store: &dyn Store) -> BlockDetails {
    // In a cluster, the index may be on another node, and a first connection to that node takes longer than the
    // timeout.
    for _ in 0..200 {
        let listed = store.blocks(10).await.unwrap();
        if let Some(first) = listed.first() {
            assert_eq!(listed.len(), 1, "{listed:?}");
            return first.details().clone();
        }
    }
    panic!("no block is listed")
}

pub async fn a_block_keeps_its_details_and_of_two_those_of_the_later_end(
    store: Arc<dyn Store>,
    clock: ManualClock,
) {
    let request = |span, reason| BlockRequest::new(span).reason(reason).author("kim@desk");
    let limiter = patient(Arc::clone(&store));
    let alice = user("alice");
    let first = request(HOUR, "scrapes\nprices");
    limiter.block(&alice, first).await.unwrap();
    clock.advance(Duration::from_secs(1));
    // The second block ends earlier, so the store keeps none of its details.
    let earlier = request(HOUR / 2, "again");
    limiter.block(&alice, earlier).await.unwrap();
    let kept = details(&store).await;
    assert_eq!(kept.created_ms(), Some(START_MS));
    assert_eq!(kept.reason(), Some("scrapes prices"));
    assert_eq!(kept.author(), Some("kim@desk"));
    assert_eq!((kept.policy(), kept.rule()), (None, None));
    limiter.block(&alice, 2 * HOUR).await.unwrap();
    let kept = details(&store).await;
    assert_eq!(kept.created_ms(), Some(START_MS + 1_000));
    assert_eq!((kept.reason(), kept.author()), (None, None));
    // Checks see the block as before, also next to others in one call.
    let checks = [&["bob"][..], &["alice"], &["bob"]].map(|users| Operation::Check(check(users)));
    let replies = store.call(checks.to_vec()).await.unwrap();
    let allowed = replies.into_iter().map(|reply| match reply.unwrap() {
        Reply::Check(decision) => decision.is_allowed(),
        other => panic!("{other:?}"),
    });
    assert_eq!(allowed.collect::<Vec<_>>(), [true, false, true]);
}

pub async fn a_ban_keeps_the_policy_and_the_rule_that_denied(
    store: Arc<dyn Store>,
    _: ManualClock,
) {
    let policy = Policy::parse("login", "5/1s,1/1d").unwrap();
    let policy = policy.ban("1/10m=1h".parse().unwrap());
    let limiter = patient(Arc::clone(&store));
    strike(&limiter, &policy, "alice").await;
    let kept = details(&store).await;
    assert_eq!((kept.policy(), kept.rule()), (Some("login"), Some("1/1d")));
    assert_eq!(kept.created_ms(), Some(START_MS));
}

pub async fn a_block_for_ever_is_one_for_ever(store: Arc<dyn Store>, clock: ManualClock) {
    let block = block_user(&store, "alice", Until::Forever).await;
    assert_eq!(block.until_ms(), None);
    block_user(&store, "bob", Duration::MAX).await;
    for until in [Until::After(HOUR), Until::At(at(START_MS + 1))] {
        assert_eq!(block_user(&store, "alice", until).await, block);
    }
    let years = START_MS + 1_000 * 365 * 86_400_000;
    for time in [START_MS, years] {
        clock.set(time);
        for name in ["alice", "bob"] {
            let blocked = blocked(decide(&store, &[name]).await);
            assert_eq!(blocked.block().until_ms(), None);
            assert_eq!(blocked.retry_after(), None);
        }
    }
    store.unblock(&user("alice")).await.unwrap();
    assert!(!is_blocked(&store, "alice").await);
}

/// Charges a user under a policy that denies everything and bans for an hour, and waits for the strike.
async fn strike(limiter: &Limiter, policy: &Policy, name: &str) -> Decision {
    let charge = Charge::new(policy, user(name), 2);
    let decision = limiter.check([charge]).await.unwrap();
    limiter.strikes_counted().await;
    decision
}

fn banning(strikes: &str) -> Policy {
    let policy = Policy::parse("login", "1/1d").unwrap();
    policy.ban(strikes.parse().unwrap())
}

pub async fn a_ban_follows_the_last_strike_and_lasts_its_time(
    store: Arc<dyn Store>,
    clock: ManualClock,
) {
    // The strikes of both processes count together.
    let limiters = [patient(Arc::clone(&store)), patient(Arc::clone(&store))];
    let policy = banning("3/10s@1s=1m");
    let decide = async |place: usize, at_ms: u64| {
        clock.set(START_MS + at_ms);
        strike(&limiters[place], &policy, "alice").await
    };
    for (place, at_ms) in [(0, 0), (1, 5_000), (1, 11_000), (0, 12_000)] {
        // The first strike is released at 11 s, so the fourth one here is the third that counts.
        let decision = decide(place, at_ms).await;
        assert!(matches!(decision, Decision::Denied(_)), "{at_ms}");
    }
    for (place, at_ms) in [(1, 12_000), (0, 71_999)] {
        let blocked = blocked(decide(place, at_ms).await);
        assert_eq!(
            blocked.block(),
            Block::new(START_MS + 72_000, BlockedBy::Ban)
        );
        assert_eq!(blocked.retry_after().map(ms), Some(72_000 - at_ms));
    }
    // The ban has reset the strikes, and denials during the ban were not strikes.
    for at_ms in [72_000, 72_001, 72_002] {
        assert!(matches!(decide(0, at_ms).await, Decision::Denied(_)));
    }
    let blocked = blocked(decide(1, 72_003).await);
    assert_eq!(blocked.block().until_ms(), Some(START_MS + 132_002));
}

pub async fn a_ban_needs_all_its_strikes_and_forgets_them(
    store: Arc<dyn Store>,
    clock: ManualClock,
) {
    let (limiter, policy) = (patient(Arc::clone(&store)), banning("9/10s@1s=1h"));
    let ban = async |strikes: &str| {
        let strikes: Rule = strikes.parse().unwrap();
        let until = Until::At(at(clock.now_ms()) + HOUR);
        let request = request(until, BlockedBy::Ban);
        store.ban(&user("alice"), strikes, request).await.unwrap()
    };
    assert_eq!(ban("1/10s@1s").await, None);
    for _ in 0..2 {
        strike(&limiter, &policy, "alice").await;
    }
    strike(&limiter, &policy, "bob").await;
    for too_few in ["3/10s@1s", "1/11s@1s", "1/10s@2s", "1/10s@exact", "1/10s"] {
        assert_eq!(ban(too_few).await, None, "{too_few}");
    }
    assert!(!is_blocked(&store, "alice").await);
    let expected = Some(Block::new(START_MS + ms(HOUR), BlockedBy::Ban));
    assert_eq!(ban("2/10s@1s").await, expected);
    assert!(is_blocked(&store, "alice").await);
    assert_eq!(ban("1/10s@1s").await, None, "its strikes are forgotten");
    store.unblock(&user("alice")).await.unwrap();

    // Strikes count for the time in their rule.
    strike(&limiter, &policy, "alice").await;
    clock.advance(Duration::from_secs(1));
    strike(&limiter, &policy, "alice").await;
    clock.set(START_MS + 11_000);
    assert_eq!(ban("2/10s@1s").await, None);

    // A longer block stays in force, and the strikes are reset.
    let block = block_user(&store, "alice", 2 * HOUR).await;
    assert_eq!(ban("1/10s@1s").await, Some(block));
    store.unblock(&user("alice")).await.unwrap();
    assert_eq!(ban("1/10s@1s").await, None);
    assert!(!is_blocked(&store, "alice").await);
}

/// A store that unblocks alice before each operation other than a check.
#[derive(Debug)]
struct Unblocking(Arc<dyn Store>);

impl Store for Unblocking {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.0.check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        self.0.execute(operation)
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&*self.0)
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        let store = Arc::clone(&self.0);
        StoreFuture::pending(async move {
            if !matches!(operations[..], [Operation::Check(_), ..]) {
                store.unblock(&user("alice")).await?;
            }
            store.call(operations).await
        })
    }
}

pub async fn who_is_unblocked_while_a_ban_is_made_is_not_banned(
    store: Arc<dyn Store>,
    _: ManualClock,
) {
    let between = patient(Unblocking(Arc::clone(&store)));
    let (limiter, policy) = (patient(Arc::clone(&store)), banning("2/10m=1h"));
    for _ in 0..2 {
        let decision = strike(&between, &policy, "alice").await;
        assert!(matches!(decision, Decision::Denied(_)));
    }
    assert!(!is_blocked(&store, "alice").await);
    // Unblocking has reset her strikes.
    for expected in [false, true] {
        strike(&limiter, &policy, "alice").await;
        assert_eq!(is_blocked(&store, "alice").await, expected);
    }
}

const GROWING: &str = "1/10m=1s,5s,1m";

/// A ban until then; if it grows, as the first ban.
pub fn ban_until(ban: &str, until: impl Into<Until>) -> BlockRequest {
    let policy = banning(ban);
    BlockRequest::ban(until, &policy, &policy.rules()[0])
}

/// A ban that grows, for a denial at this time.
fn for_denial_at(ms: u64) -> BlockRequest {
    ban_until(GROWING, at(ms + 1_000))
}

/// The end of the ban of alice after a strike at this time, in ms after the start.
async fn banned_at(store: &Arc<dyn Store>, clock: &ManualClock, at_ms: u64) -> u64 {
    clock.set(START_MS + at_ms);
    let limiter = patient(Arc::clone(store)); // as in a new process
    let decision = strike(&limiter, &banning(GROWING), "alice").await;
    assert!(matches!(decision, Decision::Denied(_)), "{at_ms}");
    let block = blocked(decide(store, &["alice"]).await).block();
    assert_eq!(block.source(), BlockedBy::Ban);
    block.until_ms().unwrap() - START_MS
}

pub async fn a_ban_that_grows_takes_the_next_time_and_repeats_the_last(
    store: Arc<dyn Store>,
    clock: ManualClock,
) {
    let ends = [1_000, 6_000, 66_000, 126_000];
    for (level, (begins, end)) in [0, 1_000, 6_000, 66_000].into_iter().zip(ends).enumerate() {
        assert_eq!(banned_at(&store, &clock, begins).await, end);
        let kept = details(&store).await;
        assert_eq!(kept.ban_level().map(usize::from), Some(level + 1));
        let kept_until_ms = START_MS + end + (end - begins);
        assert_eq!(kept.ban_level_until_ms(), Some(kept_until_ms));
        clock.set(START_MS + end - 1);
        assert!(is_blocked(&store, "alice").await);
        clock.set(START_MS + end);
        assert!(!is_blocked(&store, "alice").await);
        assert_eq!(store.blocks(10).await.unwrap(), []);
    }
}

pub async fn a_level_is_kept_for_as_long_after_a_ban_as_it_lasted(
    store: Arc<dyn Store>,
    clock: ManualClock,
) {
    let mut start = 0;
    for (second, lasts) in [(1_999, 5_000), (2_000, 1_000)] {
        assert_eq!(banned_at(&store, &clock, start).await, start + 1_000);
        let begins = start + second;
        assert_eq!(banned_at(&store, &clock, begins).await, begins + lasts);
        start = begins + 2 * lasts;
    }
}

pub async fn bans_for_the_same_denials_raise_one_level(store: Arc<dyn Store>, clock: ManualClock) {
    let alice = user("alice");
    let ban = async |denied: u64| {
        let request = for_denial_at(START_MS + denied);
        let block = store.block(&alice, request).await.unwrap();
        block.until_ms().unwrap() - START_MS
    };
    // Two processes ban at once.
    assert_eq!([ban(0).await, ban(3).await], [1_000, 1_003]);
    assert_eq!(ban(2).await, 1_003);
    clock.set(START_MS + 1_100);
    // A denial before the end of the last ban, and one after it.
    assert_eq!(ban(1_002).await, 2_002);
    assert_eq!(details(&store).await.ban_level(), Some(1));
    clock.set(START_MS + 2_002);
    assert_eq!(ban(2_002).await, 7_002);
    assert_eq!(details(&store).await.ban_level(), Some(2));
    // A ban that would have ended already leaves no level.
    let bob = for_denial_at(START_MS + 1_002);
    let block = store.block(&user("bob"), bob).await.unwrap();
    assert_eq!(block.until_ms(), Some(START_MS + 2_002));
    let block = store.block(&user("bob"), for_denial_at(START_MS + 2_002));
    assert_eq!(block.await.unwrap().until_ms(), Some(START_MS + 3_002));
}

pub async fn unblocking_clears_the_level(store: Arc<dyn Store>, clock: ManualClock) {
    assert_eq!(banned_at(&store, &clock, 0).await, 1_000);
    store.unblock(&user("alice")).await.unwrap();
    assert_eq!(banned_at(&store, &clock, 1).await, 1_001);
    // The same when the ban has ended.
    clock.set(START_MS + 1_500);
    store.unblock(&user("alice")).await.unwrap();
    assert_eq!(banned_at(&store, &clock, 1_501).await, 2_501);
}

pub async fn other_blocks_leave_the_level_as_it_is(store: Arc<dyn Store>, clock: ManualClock) {
    let half = Duration::from_millis(250);
    let others = [
        BlockRequest::new(half),
        BlockRequest::pause(half),
        request(half, BlockedBy::Ban), // does not grow
    ];
    assert_eq!(banned_at(&store, &clock, 0).await, 1_000);
    for (other, begins) in others.into_iter().zip([1_000, 1_250, 1_500]) {
        clock.set(START_MS + begins);
        store.block(&user("alice"), other).await.unwrap();
        let kept = details(&store).await;
        assert_eq!(kept.ban_level(), Some(1));
        assert_eq!(kept.ban_level_until_ms(), Some(START_MS + 2_000));
    }
    assert_eq!(banned_at(&store, &clock, 1_750).await, 6_750);
    // A block that ends later than the ban replaces it, and the level is kept no longer for it.
    block_user(&store, "alice", at(START_MS + 20_000)).await;
    assert_eq!(details(&store).await.ban_level(), Some(2));
    clock.set(START_MS + 20_000);
    assert_eq!(banned_at(&store, &clock, 20_000).await, 21_000);
    // A longer block stays, and no ban is made.
    let longer = block_user(&store, "alice", at(START_MS + 30_000)).await;
    let ban = for_denial_at(START_MS + 21_000);
    assert_eq!(store.block(&user("alice"), ban).await.unwrap(), longer);
    assert_eq!(details(&store).await.ban_level(), Some(1));
}

pub async fn checks_that_enforce_no_blocks_are_not_denied(store: Arc<dyn Store>, _: ManualClock) {
    block_user(&store, "alice", HOUR).await;
    let plain = Check::new([Charge::new(&api(), user("alice"), 1)]).unwrap();
    assert!(!plain.enforces_blocks());
    assert!(store.check(&plain).await.unwrap().is_allowed());
    let operations = vec![
        Operation::Check(plain.clone()),
        Operation::Check(plain.clone().enforce_blocks(true)),
        Operation::Check(plain.clone()),
    ];
    let replies = store.call(operations).await.unwrap();
    let told = replies.into_iter().map(|reply| match reply.unwrap() {
        Reply::Check(decision) => decision,
        other => panic!("not a decision: {other:?}"),
    });
    let told: Vec<_> = told.collect();
    assert!(told[0].is_allowed() && told[2].is_allowed());
    assert!(matches!(told[1], Decision::Blocked(_)));
    assert_eq!(left(&store, &["alice"]).await, [2]);
    // Limits deny a check that enforces no blocks; the block denies the other checks.
    for _ in 0..2 {
        assert!(store.check(&plain).await.unwrap().is_allowed());
    }
    assert!(matches!(
        store.check(&plain).await.unwrap(),
        Decision::Denied(_)
    ));
    assert!(is_blocked(&store, "alice").await);
}

pub async fn the_last_of_the_most_keys_is_told(store: Arc<dyn Store>, _: ManualClock) {
    let names: Vec<String> = (0..64).map(|it| it.to_string()).collect();
    let users: Vec<&str> = names.iter().map(String::as_str).collect();
    block_user(&store, "63", HOUR).await;
    let blocked = blocked(decide(&store, &users).await);
    assert_eq!(blocked.key(), &user("63"));
    assert_eq!(left(&store, &users).await, [5; 64]);
    store.unblock(&user("63")).await.unwrap();
    assert!(decide(&store, &users).await.is_allowed());
}

pub async fn shadows_are_no_reason_and_are_not_asked(store: Arc<dyn Store>, _: ManualClock) {
    let trial = Policy::parse("trial", "5/1d").unwrap();
    let with_shadow = |counting: &str, shadow: &str| {
        let charges = [
            Charge::new(&api(), user(counting), 1),
            Charge::new(&trial.clone().shadow(), user(shadow), 1),
        ];
        Check::new(charges).unwrap().enforce_blocks(true)
    };
    block_user(&store, "bob", HOUR).await;
    let decision = store.check(&with_shadow("alice", "bob")).await.unwrap();
    assert!(decision.usage().shadow().unwrap().is_allowed());

    let decision = store.check(&with_shadow("bob", "alice")).await.unwrap();
    assert!(decision.usage().shadow().is_none());
    blocked(decision);
    let looks = ["alice", "bob"].map(|it| Charge::new(&trial, user(it), 0));
    let usage = store.check(&Check::new(looks).unwrap()).await.unwrap();
    let left: Vec<_> = usage.usage().rules().map(|it| it.remaining()).collect();
    assert_eq!(left, [5, 4]);

    // A check with nothing but shadows is not denied.
    let alone = [Charge::new(&trial.shadow(), user("bob"), 1)];
    let alone = Check::new(alone).unwrap().enforce_blocks(true);
    assert!(store.check(&alone).await.unwrap().is_allowed());
}

pub async fn a_look_at_no_cost_is_denied_and_a_peek_is_not(store: Arc<dyn Store>, _: ManualClock) {
    block_user(&store, "alice", HOUR).await;
    let look = || [Charge::new(&api(), user("alice"), 0)];
    let check = Check::new(look()).unwrap().enforce_blocks(true);
    blocked(store.check(&check).await.unwrap());
    let limiter = patient(Arc::clone(&store));
    blocked(limiter.check(look()).await.unwrap());
    assert!(!limiter.try_acquire(look()).await);
    let waited = limiter.acquire(look(), 2 * HOUR).await;
    blocked(waited.unwrap());
    let usage = limiter.peek(look()).await.unwrap();
    assert_eq!(usage.rules().next().unwrap().remaining(), 5);
}

pub async fn operations_with_blocks_are_done_in_their_order(store: Arc<dyn Store>, _: ManualClock) {
    let alice = || Operation::Check(check(&["alice"]));
    let operations = vec![
        alice(),
        Operation::Block {
            key: user("alice"),
            request: request(HOUR, BlockedBy::Ban),
        },
        alice(),
        Operation::Check(check(&["bob"])),
        Operation::Block {
            key: user("alice"),
            request: request(HOUR / 2, BlockedBy::Operator),
        },
        Operation::Unblock { key: user("alice") },
        alice(),
        Operation::Reset {
            policy: api(),
            key: user("alice"),
        },
        alice(),
    ];
    let replies = store.call(operations).await.unwrap();
    let told = replies.into_iter().map(|reply| match reply.unwrap() {
        Reply::Check(Decision::Allowed(usage)) => {
            let left = usage.rules().next().unwrap().remaining();
            format!("{left} left")
        }
        Reply::Check(Decision::Blocked(blocked)) => format!("{:?}", blocked.block()),
        other => format!("{other:?}"),
    });
    let told: Vec<String> = told.collect();
    let ban = Block::new(START_MS + ms(HOUR), BlockedBy::Ban);
    let (denied, asked) = (format!("{ban:?}"), format!("Block({ban:?})"));
    let expected = [
        "4 left", &asked, &denied, "4 left", &asked, "Unblock", "3 left", "Reset", "4 left",
    ];
    assert_eq!(told, expected);
}

pub async fn a_block_holds_though_the_clock_steps_back(store: Arc<dyn Store>, clock: ManualClock) {
    block_user(&store, "alice", Duration::from_secs(60)).await;
    clock.set(START_MS - 5_000);
    let blocked = blocked(decide(&store, &["alice"]).await);
    assert_eq!(blocked.retry_after(), Some(Duration::from_secs(65)));
    // A block that ends earlier by the store's present clock does not replace the first.
    let block = block_user(&store, "alice", Duration::from_secs(64)).await;
    assert_eq!(block.until_ms(), Some(START_MS + 60_000));
    clock.set(START_MS + 59_999);
    assert!(is_blocked(&store, "alice").await);
    clock.set(START_MS + 60_000);
    assert!(!is_blocked(&store, "alice").await);
}

pub async fn a_time_in_the_past_blocks_nobody(store: Arc<dyn Store>, clock: ManualClock) {
    let past = [
        Until::At(UNIX_EPOCH - HOUR),
        Until::At(UNIX_EPOCH),
        Until::At(at(START_MS - 1)),
        Until::At(at(START_MS)),
        Until::After(Duration::ZERO),
    ];
    for until in past {
        let block = block_user(&store, "alice", until).await;
        assert!(block.until_ms().unwrap() <= START_MS, "{until:?}");
        assert!(decide(&store, &["alice"]).await.is_allowed());
        // The same after the clock has stepped back.
        clock.set(START_MS - 1);
        assert!(!is_blocked(&store, "alice").await, "{until:?}");
        clock.set(START_MS);
        store.reset(&api(), &user("alice")).await.unwrap();
    }
    // A time in the past ends no existing block either.
    block_user(&store, "alice", HOUR).await;
    for until in past {
        let block = block_user(&store, "alice", until).await;
        assert_eq!(block.until_ms(), Some(START_MS + ms(HOUR)), "{until:?}");
        assert!(is_blocked(&store, "alice").await);
    }
}

pub async fn blocks_and_limits_of_one_identity_do_not_meet(
    store: Arc<dyn Store>,
    clock: ManualClock,
) {
    assert!(decide(&store, &["alice"]).await.is_allowed());
    block_user(&store, "alice", Duration::from_secs(1)).await;
    assert_eq!(left(&store, &["alice"]).await, [4]);
    store.reset(&api(), &user("alice")).await.unwrap();
    assert!(is_blocked(&store, "alice").await, "a reset ends no block");
    clock.advance(Duration::from_secs(1));
    assert!(decide(&store, &["alice"]).await.is_allowed());
    // The same value of another kind is another identity.
    block(&store, &Key::new("ip", "alice"), HOUR, BlockedBy::Operator).await;
    assert!(!is_blocked(&store, "alice").await);
}

pub async fn secret_keys_are_blocked_apart_from_plain_ones(store: Arc<dyn Store>, _: ManualClock) {
    let (secret, plain) = (Key::secret("user", "alice"), user("alice"));
    let long = Key::new("user", "a".repeat(2_000));
    for (blocked_key, other) in [(&secret, &plain), (&plain, &secret), (&long, &plain)] {
        block(&store, blocked_key, HOUR, BlockedBy::Operator).await;
        for key in [blocked_key, other] {
            let charge = Charge::new(&api(), key.clone(), 1);
            let check = Check::new([charge]).unwrap();
            let decision = store.check(&check.enforce_blocks(true)).await.unwrap();
            assert_eq!(matches!(decision, Decision::Blocked(_)), key == blocked_key);
        }
        store.unblock(blocked_key).await.unwrap();
    }
}

pub async fn what_was_blocked_is_not_settled(store: Arc<dyn Store>, _: ManualClock) {
    block_user(&store, "alice", HOUR).await;
    let decision = decide(&store, &["alice"]).await;
    assert!(Settlement::new(decision.usage(), |_| 0).is_err());
}

/// The layer's answer: the status, and the remaining units in the only shown rule.
async fn ask(layer: &RateLimitLayer) -> (u16, Option<u64>) {
    let inner =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let layer = layer.clone().decisions_in_response();
    let response = layer.layer(inner).oneshot(Request::new(())).await.unwrap();
    let decisions = response.extensions().get::<Decisions>();
    let left = decisions.and_then(|it| {
        let usage = it.iter().next().unwrap().usage();
        assert!(usage.policies().all(|it| it.policy().name() == "api"));
        usage.rules().next().map(|rule| rule.remaining())
    });
    (response.status().as_u16(), left)
}

fn users(names: &'static [&'static str]) -> impl KeyExtractor {
    move |_: &Parts| -> Result<Keys, ExtractError> {
        Ok(names.iter().map(|name| user(name)).collect())
    }
}

pub async fn identities_that_are_only_looked_up_are_denied_and_charged_nothing(
    store: Arc<dyn Store>,
    _: ManualClock,
) {
    let limiter = patient(Arc::clone(&store));
    let layer = RateLimitLayer::new(limiter.clone())
        .limit(api(), user("alice"))
        .limit(
            Policy::parse("trial", "1/1d").unwrap().shadow(),
            user("bob"),
        )
        .deny_blocked(users(&["alice", "bob", "carol", "dave"]));
    assert_eq!(ask(&layer).await, (200, Some(4)));
    // The usage of each looked-up identity is separate.
    for (left, name) in ["alice", "bob", "carol", "dave"].into_iter().enumerate() {
        limiter.block(&user(name), HOUR).await.unwrap();
        assert_eq!(ask(&layer).await, (403, None), "{name}");
        limiter.unblock(&user(name)).await.unwrap();
        assert_eq!(ask(&layer).await, (200, Some(3 - left as u64)), "{name}");
    }
    let (status, left) = ask(&layer).await;
    assert_eq!((status, left), (429, Some(0)), "the limit denies as ever");
}

pub async fn a_layer_that_only_looks_up_denies_and_passes(store: Arc<dyn Store>, _: ManualClock) {
    let limiter = patient(Arc::clone(&store));
    let layer = RateLimitLayer::new(limiter.clone()).deny_blocked(users(&["alice", "bob"]));
    for name in ["alice", "bob"] {
        assert_eq!(ask(&layer).await, (200, None));
        limiter.block(&user(name), HOUR).await.unwrap();
        assert_eq!(ask(&layer).await, (403, None));
        limiter.unblock(&user(name)).await.unwrap();
    }
    assert_eq!(ask(&layer).await, (200, None));
}
