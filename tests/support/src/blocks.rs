//! The contract of stores that keep blocks, as tests: see `blocks!`.

use std::time::{SystemTime, UNIX_EPOCH};

use sluicegate::{
    KeyExtractor, block::BlockDetails, decision::Blocked, error::ExtractError, extract::Keys,
    middleware::Decisions,
};

use super::{contract::patient, outcome::ms as millis, prelude::*, rows::Row};

/// Makes one test of the rows, and one of each other sentence; `$new` is an `async fn() -> (impl Store, ManualClock)`.
#[macro_export]
macro_rules! blocks {
    ($new:path) => {
        #[test]
        fn each_row_about_blocks_holds() {
            $crate::sentence::of_each_row($new, &$crate::blocks::all());
        }
        $crate::sentences! { about_a_store $new, blocks[]:
            a_block_until_a_time_ends_then
            a_block_keeps_its_details_and_of_two_those_of_the_later_end
            a_ban_keeps_the_policy_and_the_rule_that_denied
            checks_that_enforce_no_blocks_are_not_denied
            the_blocked_of_the_most_keys_is_told
            shadows_are_no_reason_and_are_not_asked
            a_look_at_no_cost_is_denied_and_a_peek_is_not
            operations_with_blocks_are_done_in_their_order
            identities_that_are_only_looked_up_are_denied_and_charged_nothing
            a_layer_that_only_looks_up_denies_and_passes
        }
    };
}

pub fn all() -> Vec<Row> {
    rows(BLOCKS)
}

const BLOCKS: &str = "
A block denies until exactly its time
 p = 5/1d; block alice 1; p alice 1 !operator:1; @1; p alice 1
 block alice 999; p alice 1 !operator:999; @500; p alice 1 !operator:500; @999; p alice 1 !operator:1; @1s; p alice 1
 block alice 365d; @2s; p alice 1 !operator:31535999000; @31536000999; p alice 1 !operator:1; +1; p alice 1
A blocked check charges nothing to anybody
 p = 5/1d; block bob 1h; p bob 1 !operator; p alice 1 & p bob 1 !operator; p bob 1 & p carol 1 !operator
 p alice = 5; p bob = 5; p carol = 5
A pause is told as a pause
 p = 5/1d; pause alice 5s; p alice 1 !pause:5s; @4999; p alice 1 !pause:1; @5s; p alice 1
A block for ever is one for ever
 p = 5/1d; block alice forever; block bob 99999999999d; block alice 1h; block alice @1; p alice 1 !operator:never
 @365000d; p alice 1 !operator:never; p bob 1 !operator:never; unblock alice; p alice 1
Of two blocks with one end the first holds
 p = 5/1d; block alice forever; ban alice forever 3/10m=1h; p alice 1 !operator:never
A block holds though the clock steps back
 # A block that ends earlier by the store's present clock does not replace the first.
 p = 5/1d; block alice 1m; -5s; p alice 1 !operator:65s; block alice 64s; @59999; p alice 1 !operator:1; @1m; p alice 1
Blocks and limits of one identity do not meet
 # The same value of another kind is another identity.
 p = 5/1d; p alice 1; block alice 1s; p alice = 4; reset p alice; p alice 1 !operator; +1s; p alice 1 = 4
 block ip/alice 1h; p alice 1; p ip/alice 1 !operator
A secret key is blocked apart from a plain one
 p = 5/1d; block secret/alice 1h; p secret/alice 1 !operator; p alice 1; unblock secret/alice; p secret/alice 1
 block alice 1h; p alice 1 !operator; p secret/alice 1
A time in the past blocks nobody and ends no block
 # Also after the clock has stepped back.
 p = 99/1d; block alice @-1 = 0; p alice 1; @-1; p alice 1; @0; block alice @0 = 0; p alice 1; @-1; p alice 1; @0
 block alice 0 = 0; p alice 1; @-1; p alice 1; @0; block alice @1970-01-01 = 0; p alice 1
 block alice 1h; block alice @-1 = 1h; block alice 0 = 1h; block alice @1970-01-01 = 1h; p alice 1 !operator:1h
What was blocked is not settled
 p = 5/1d; block alice 1h; x: p alice 1 !operator; settle x 0 !
A ban follows the last strike and lasts its time
 # Each strike is one of another process. The first is released at 11 s, so the fourth is the third that counts.
 p = login 1/1d 3/10s@1s=1m; strike p alice !; @5s; strike p alice !; @11s; strike p alice !; @12s; strike p alice !
 strike p alice !ban:60s; @71999; strike p alice !ban:1
 # The ban has reset the strikes, and denials during the ban were not strikes.
 @72s; strike p alice !; @72001; strike p alice !; @72002; strike p alice !; @72003; strike p alice !ban:59999
A ban needs all its strikes and forgets them
 p = login 1/1d 9/10s@1s=1h; api = 5/1d; bans alice 1/10s@1s !; 2* strike p alice !; strike p bob !
 bans alice 3/10s@1s !; bans alice 1/11s@1s !; bans alice 1/10s@2s !; bans alice 1/10s@exact !; bans alice 1/10s !
 api alice 1; bans alice 2/10s@1s = 1h; api alice 1 !ban:3600000; bans alice 1/10s@1s !; unblock alice
 # Strikes count for the time in their rule.
 strike p alice !; +1s; strike p alice !; @11s; bans alice 2/10s@1s !
 # A longer block stays in force, no ban is made, and the strikes are reset.
 block alice 2h; bans alice 1/10s@1s !; api alice 1 !operator; unblock alice; bans alice 1/10s@1s !; api alice 1
A ban that grows takes the next time and repeats the last
 p = login 1/1d 1/10m=1s,5s,1m; api = 5/1d; strike p alice !; p alice 1 !ban:1s; listed level = 1/2s; @999; p alice 1 !ban
 @1s; api alice 0; listed level !; strike p alice !; p alice 1 !ban:5s; listed level = 2/11s; @5999; p alice 1 !ban
 @6s; api alice 0; listed level !; strike p alice !; p alice 1 !ban:60s; listed level = 3/126s; @65999; p alice 1 !ban
 @66s; api alice 0; listed level !; strike p alice !; p alice 1 !ban:60s; listed level = 4/186s; @126s; api alice 0; listed level !
A level is kept for as long after a ban as it lasted
 p = login 1/1d 1/10m=1s,5s,1m; strike p alice !; p alice 1 !ban:1s; @1999; strike p alice !; p alice 1 !ban:5s
 @11999; strike p alice !; p alice 1 !ban:1s; @13999; strike p alice !; p alice 1 !ban:1s
Bans for the same denials raise one level
 # Two processes ban at once.
 ban alice @1000 1/10m=1s,5s,1m = 1000; ban alice @1003 1/10m=1s,5s,1m = 1003; ban alice @1002 1/10m=1s,5s,1m = 1003
 # A denial before the end of the last ban, and one after it.
 @1100; ban alice @2002 1/10m=1s,5s,1m = 2002; listed level = 1/3002
 @2002; ban alice @3002 1/10m=1s,5s,1m = 7002; listed level = 2/12002
 # A ban that would have ended already leaves no level.
 ban bob @2002 1/10m=1s,5s,1m = 2002; ban bob @3002 1/10m=1s,5s,1m = 3002
Unblocking clears the level also when the ban has ended
 p = login 1/1d 1/10m=1s,5s,1m; strike p alice !; p alice 1 !ban:1s; unblock alice; @1; strike p alice !
 p alice 1 !ban:1s; @1500; unblock alice; @1501; strike p alice !; p alice 1 !ban:1s
Other blocks leave the level as it is
 # The last of these three is a ban that does not grow.
 p = login 1/1d 1/10m=1s,5s,1m; strike p alice !; p alice 1 !ban:1s; @1s; block alice 250; listed level = 1/2s
 @1250; pause alice 250; listed level = 1/2s; @1500; ban alice 250 3/10m=1h; listed level = 1/2s
 @1750; strike p alice !; p alice 1 !ban:5s
 # A block that ends later than the ban replaces it, and the level is kept no longer for it.
 block alice @20s; listed level = 2/11750; @20s; strike p alice !; p alice 1 !ban:1s
 # A longer block stays, and no ban is made.
 block alice @30s; ban alice @22s 1/10m=1s,5s,1m = 30s; listed level = 1/22s
A denial by two policies of one window is one strike under the ban that comes first
 a = 1/1d 3/1m=1h; b = 1/1d 3/1m=1m; c = 1/1d 9/1m=1d; d = 1/1d 3/1m=1h; look = 9/1d
 3* strike a w & d w !; look w 1 !ban:1h; 3* strike a x & b x !; look x 1 !ban:1h; 3* strike b y & a y !
 look y 1 !ban:1h; 3* strike a z & c z !; look z 1 !ban:1h; 3* strike c v & a v !; look v 1 !ban:1h
Strikes under two policies of one window count together
 # The ban has reset the strikes of alice, and those of bob are separate.
 few = 1/1d 2/1m=1m; many = 1/1d 3/1m=1h; look = 9/1d; strike many alice !; strike many bob !; strike few alice !
 look alice 1 !ban:1m; strike many bob !; look bob 1; strike many bob !; look bob 1 !ban:1h
Of two bans that begin with one denial the later end holds
 short = 1/1d 2/1m=1m; long = 1/1d 2/1h=1h; look = 9/1d; 2* strike short alice & long alice !; look alice 1 !ban:1h
 unblock alice; 2* strike long alice & short alice !; look alice 1 !ban:1h
A ban that grows goes up a level although a longer ban begins with the same denial
 grows = 1/1d 1/10m=1s,30s,1m; other = 1/1d 1/1h=1500ms; same = 1/1d 1/10m=1500ms; look = 9/1d
 strike other alice & grows alice !; look alice 1 !ban:1500; listed level = 1/2s
 @1500; look alice 1; strike other alice & grows alice !; look alice 1 !ban:30s; listed level = 2/61500; unblock alice
 strike same alice & grows alice !; look alice 1 !ban:1500; listed level = 1/3500
 @3s; look alice 1; strike grows alice & same alice !; look alice 1 !ban:30s; listed level = 2/63s
Of two bans that grow both go up a level and the later end holds
 one = 1/1d 1/10m=2s,3s; two = 1/1d 1/1h=1s,1m; look = 9/1d
 strike one alice & two alice !; look alice 1 !ban:2s; listed level = 1/4s
 @2s; look alice 1; strike two alice & one alice !; look alice 1 !ban:1m; listed level = 2/122s
Bans that begin with one denial forget the strikes together
 grows = 1/1d 2/10m=1s,30s; other = 1/1d 2/1h=1500ms; look = 9/1d; strike other alice & grows alice !; look alice 1
 strike other alice & grows alice !; look alice 1 !ban:1500; @1500; strike other alice & grows alice !; look alice 1
";

fn api() -> Policy {
    policy("api", "5/1d")
}

/// A check of one unit for each of these users, which enforces blocks.
fn check_all(users: &[&str]) -> Check {
    let charges = users.iter().map(|it| charge(&api(), it, 1));
    Check::new(charges).unwrap().enforce_blocks(true)
}

async fn decide(store: &dyn Store, users: &[&str]) -> Decision {
    store.check(&check_all(users)).await.unwrap()
}

/// A block by an operator, or a ban by a policy that denies everything.
pub fn request(until: impl Into<Until>, by: BlockedBy) -> BlockRequest {
    match by {
        BlockedBy::Ban => ban_until("3/10m=1h", until),
        _ => BlockRequest::new(until),
    }
}

async fn block_user(store: &dyn Store, name: &str, until: impl Into<Until>) -> Block {
    let request = BlockRequest::new(until);
    store.block(&user(name), request).await.unwrap()
}

fn blocked(decision: Decision) -> Blocked {
    match decision {
        Decision::Blocked(blocked) => blocked,
        other => panic!("not blocked: {other:?}"),
    }
}

async fn is_user_blocked(store: &dyn Store, name: &str) -> bool {
    is_blocked(&decide(store, &[name]).await)
}

/// The units that each of these users has left.
async fn left_of(store: &dyn Store, users: &[&str]) -> Vec<u64> {
    let decision = store.check(&check_all(users).without_cost()).await.unwrap();
    assert!(decision.is_allowed());
    remaining(decision.usage())
}

/// The decisions about these operations, which are checks.
async fn decisions(store: &dyn Store, operations: Vec<Operation>) -> Vec<Decision> {
    let replies = store.call(operations).await.unwrap();
    let decision = |reply: Result<Reply, _>| match reply.unwrap() {
        Reply::Check(decision) => decision,
        other => panic!("not a decision: {other:?}"),
    };
    replies.into_iter().map(decision).collect()
}

fn at(millis: u64) -> SystemTime {
    UNIX_EPOCH + ms(millis)
}

pub async fn a_block_until_a_time_ends_then(store: Arc<dyn Store>, clock: ManualClock) {
    block_user(&store, "alice", at(START_MS + 1_500)).await;
    // A time between two milliseconds is rounded up.
    let soon = at(START_MS + 1_499) + Duration::from_nanos(1);
    block_user(&store, "bob", soon).await;
    block_user(&store, "carol", UNIX_EPOCH - HOUR).await;
    assert!(!is_user_blocked(&store, "carol").await);
    for name in ["alice", "bob"] {
        clock.set(START_MS + 1_499);
        let blocked = blocked(decide(&store, &[name]).await);
        assert_eq!(blocked.key(), &user(name));
        assert_eq!(blocked.block().source(), BlockedBy::Operator);
        clock.set(START_MS + 1_500);
        assert!(!is_user_blocked(&store, name).await);
    }
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
    clock.advance(SECOND);
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
    let checks = ["bob", "alice", "bob"].map(|name| Operation::Check(check_all(&[name])));
    let told = decisions(&store, checks.to_vec()).await;
    let told = told.iter().map(Decision::is_allowed);
    assert!(told.eq([true, false, true]));
}

pub async fn a_ban_keeps_the_policy_and_the_rule_that_denied(
    store: Arc<dyn Store>,
    _: ManualClock,
) {
    let policy = policy("login", "5/1s,1/1d").ban("1/10m=1h".parse().unwrap());
    let limiter = patient(Arc::clone(&store));
    strike(&limiter, &policy, "alice").await;
    let kept = details(&store).await;
    assert_eq!((kept.policy(), kept.rule()), (Some("login"), Some("1/1d")));
    assert_eq!(kept.created_ms(), Some(START_MS));
}

/// Charges a user under a policy that denies everything and bans for an hour, and waits for the strike.
async fn strike(limiter: &Limiter, policy: &Policy, name: &str) -> Decision {
    let decision = check(limiter, policy, name, 2).await;
    limiter.strikes_counted().await;
    decision
}

fn banning(strikes: &str) -> Policy {
    policy("login", "1/1d").ban(strikes.parse().unwrap())
}

/// A ban until then; if it grows, as the first ban.
pub fn ban_until(ban: &str, until: impl Into<Until>) -> BlockRequest {
    let policy = banning(ban);
    BlockRequest::ban(until, &policy, &policy.rules()[0])
}

pub async fn checks_that_enforce_no_blocks_are_not_denied(store: Arc<dyn Store>, _: ManualClock) {
    block_user(&store, "alice", HOUR).await;
    let plain = check_of(&api(), "alice", 1);
    assert!(!plain.enforces_blocks());
    assert!(store.check(&plain).await.unwrap().is_allowed());
    let operations = vec![
        Operation::Check(plain.clone()),
        Operation::Check(plain.clone().enforce_blocks(true)),
        Operation::Check(plain.clone()),
    ];
    let told = decisions(&store, operations).await;
    assert!(told[0].is_allowed() && told[2].is_allowed());
    assert!(is_blocked(&told[1]));
    assert_eq!(left_of(&store, &["alice"]).await, [2]);
    // Limits deny a check that enforces no blocks; the block denies the other checks.
    for _ in 0..2 {
        assert!(store.check(&plain).await.unwrap().is_allowed());
    }
    assert!(is_denied(&store.check(&plain).await.unwrap()));
    assert!(is_user_blocked(&store, "alice").await);
}

pub async fn the_blocked_of_the_most_keys_is_told(store: Arc<dyn Store>, _: ManualClock) {
    let names: Vec<String> = (0..64).map(|it| it.to_string()).collect();
    let users: Vec<&str> = names.iter().map(String::as_str).collect();
    for name in ["0", "31", "63"] {
        block_user(&store, name, HOUR).await;
        let blocked = blocked(decide(&store, &users).await);
        assert_eq!(blocked.key(), &user(name));
        assert_eq!(left_of(&store, &users).await, [5; 64]);
        store.unblock(&user(name)).await.unwrap();
    }
    assert!(decide(&store, &users).await.is_allowed());
}

pub async fn shadows_are_no_reason_and_are_not_asked(store: Arc<dyn Store>, _: ManualClock) {
    let trial = policy("trial", "5/1d");
    let with_shadow = |counting: &str, shadow: &str| {
        let shadow = charge(&trial.clone().shadow(), shadow, 1);
        let charges = [charge(&api(), counting, 1), shadow];
        Check::new(charges).unwrap().enforce_blocks(true)
    };
    block_user(&store, "bob", HOUR).await;
    let decision = store.check(&with_shadow("alice", "bob")).await.unwrap();
    assert!(decision.usage().shadow().unwrap().is_allowed());

    let decision = store.check(&with_shadow("bob", "alice")).await.unwrap();
    assert!(decision.usage().shadow().is_none());
    blocked(decision);
    let looks = ["alice", "bob"].map(|it| charge(&trial, it, 0));
    let usage = store.check(&Check::new(looks).unwrap()).await.unwrap();
    assert_eq!(remaining(usage.usage()), [5, 4]);

    // A check with nothing but shadows is not denied.
    let alone = [Charge::new(&trial.shadow(), user("bob"), 1)];
    let alone = Check::new(alone).unwrap().enforce_blocks(true);
    assert!(store.check(&alone).await.unwrap().is_allowed());
}

pub async fn a_look_at_no_cost_is_denied_and_a_peek_is_not(store: Arc<dyn Store>, _: ManualClock) {
    block_user(&store, "alice", HOUR).await;
    let look = || [charge(&api(), "alice", 0)];
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
    let alice = || Operation::Check(check_all(&["alice"]));
    let (policy, key) = (api(), user("alice"));
    let block = |span, by| Operation::Block {
        key: user("alice"),
        request: request(span, by),
    };
    let operations = vec![
        alice(),
        block(HOUR, BlockedBy::Ban),
        alice(),
        Operation::Check(check_all(&["bob"])),
        block(HOUR / 2, BlockedBy::Operator),
        Operation::Unblock { key: key.clone() },
        alice(),
        Operation::Reset { policy, key },
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
    let ban = Block::new(START_MS + millis(HOUR), BlockedBy::Ban);
    let (denied, asked) = (format!("{ban:?}"), format!("Block({ban:?})"));
    let expected = [
        "4 left", &asked, &denied, "4 left", &asked, "Unblock", "3 left", "Reset", "4 left",
    ];
    assert_eq!(told, expected);
}

/// The layer's answer: the status, and the remaining units in the only shown rule.
async fn ask(layer: &RateLimitLayer) -> (u16, Option<u64>) {
    let layer = layer.clone().decisions_in_response();
    let response = send(&layer, to("/")).await;
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
    let layer = crate::layer(limiter.clone())
        .limit(api(), user("alice"))
        .limit(policy("trial", "1/1d").shadow(), user("bob"))
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
    let layer = crate::layer(limiter.clone()).deny_blocked(users(&["alice", "bob"]));
    for name in ["alice", "bob"] {
        assert_eq!(ask(&layer).await, (200, None));
        limiter.block(&user(name), HOUR).await.unwrap();
        assert_eq!(ask(&layer).await, (403, None));
        limiter.unblock(&user(name)).await.unwrap();
    }
    assert_eq!(ask(&layer).await, (200, None));
}
