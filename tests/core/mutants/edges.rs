//! Cases that random histories hardly meet, each with the right answer.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use sluicegate::{
    Charge, Decision, Key, Limiter, MemoryStore, Policy, RedisStore, Store, Usage,
    block::{Block, BlockedBy, Until},
    rule::MAX_UNITS,
    store::{
        Check, Operation, Reply, Settlement, StoreExt,
        redis::inspect::{StoredValue, decide},
    },
};
use support::{
    blocks::request,
    contract::patient,
    hand_over::{self, Halves},
    history::START_MS,
    kinds,
    outcome::Outcome,
    stored::assert_room,
};

use super::Script;

const HOUR_MS: u64 = 3_600_000;

const DAY_MS: u64 = 24 * HOUR_MS;

/// Alice's key under the policy `p`, her block and her strikes.
const NAME: &str = "sluicegate:{user=alice}:p";
const BLOCK: &str = "sluicegate:{user=alice}:!block";
const STRIKES: &str = "sluicegate:{user=alice}:!strikes";

pub(super) async fn all(script: &Script) {
    a_value_that_cannot_be_read_is_told(script).await;
    a_queue_that_reaches_into_the_labels_cannot_be_read(script).await;
    a_block_that_cannot_be_read_leaves_the_strikes(script).await;
    sections_of_a_later_kind_are_carried_along(script).await;
    a_value_has_255_sections(script).await;
    crate::lua54::periods_are_found_however_far_the_clock_is_ahead(&script.server, &script.unset)
        .await;
    zone_data_may_differ(script).await;
    a_settlement_ends_no_period_later(script).await;
    a_refund_takes_no_more_than_its_period_has(script).await;
    steps_may_span_a_window_and_a_step(script).await;
    if script.is_plain {
        room_is_taken_and_given_back(script).await;
    } else {
        common_cases_are_not_handed_over(script).await;
    }
    a_settlement_at_the_largest_number_changes_nothing(script).await;
    a_bucket_is_emptied_by_whole_units(script).await;
    a_bucket_of_others_keeps_its_time(script).await;
    slots_are_those_of_the_memory_store(script).await;
    slots_that_are_held_need_no_room_under_a_lower_limit(script).await;
    of_two_blocks_with_one_end_the_first_holds(script).await;
    bans_are_those_of_the_memory_store(script).await;
    a_policy_may_stand_in_the_257th_part(script).await;
    the_servers_clock_decides(script).await;
    a_call_of_another_version_is_an_error(script).await;
    a_write_that_fails_fails_the_call(script).await;
}

fn gone_ms(script: &Script) -> u64 {
    script.server.written()[NAME.as_bytes()].1
}

/// Puts a time in the place of another.
fn rewrite(script: &Script, from_ms: u64, to_ms: u64) {
    let [from, to] = [from_ms, to_ms].map(|ms| ms.to_le_bytes()[..6].to_vec());
    let mut value = script.server.value(NAME).unwrap();
    for at in 0..value.len() - 5 {
        if value[at..].starts_with(&from) {
            value[at..at + 6].copy_from_slice(&to);
        }
    }
    script.server.put(NAME, Some(&value));
}

fn alice() -> Key {
    Key::new("user", "alice")
}

fn policy(rules: &str) -> Policy {
    Policy::parse("p", rules).unwrap()
}

pub(super) fn look(policy: &Policy, cost: u64) -> Check {
    Check::new([Charge::new(policy, alice(), cost)]).unwrap()
}

async fn check(store: &RedisStore, policy: &Policy, cost: u64) -> Decision {
    store.check(&look(policy, cost)).await.unwrap()
}

async fn settle(store: &RedisStore, usage: &Usage, cost: u64) -> Usage {
    let settlement = Settlement::new(usage, |_| cost).unwrap();
    store.settle(&settlement).await.unwrap()
}

fn left(usage: &Usage) -> u64 {
    usage.rules().next().unwrap().remaining()
}

async fn a_value_that_cannot_be_read_is_told(script: &Script) {
    let no_section: &[u8] = &[&[0; 13][..], &[1]].concat();
    for (value, reason) in [
        (None, "of another type"),
        (Some(&b"of another version\x02"[..]), "another version"),
        (Some(b"\x03 is not so long\x01"), "cannot be read"),
        (Some(no_section), "cannot be read"),
    ] {
        script.start(START_MS);
        script.server.put(NAME, value);
        let error = script
            .store
            .check(&look(&policy("3/1m"), 1))
            .await
            .unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    let block = |stop_ms: u64, rest: &[u8]| [&stop_ms.to_le_bytes()[..6], rest].concat();
    for (value, reason) in [
        (None, "of another type"),
        (Some(block(START_MS + 9, &[1, 2])), "another version"),
        (Some(block(START_MS + 9, &[1, 1, 0])), "cannot be read"),
        (
            Some(block(START_MS + 9, &[1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
            "cannot be read",
        ),
    ] {
        script.start(START_MS);
        script.server.put(BLOCK, value.as_deref());
        let look = look(&policy("3/1m"), 1).enforce_blocks(true);
        let error = script.store.check(&look).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

/// All its entries seem to be released.
async fn a_queue_that_reaches_into_the_labels_cannot_be_read(script: &Script) {
    let first_ms: u64 = 65_536_000 * 25_940; // a step of 1 s whose number is 0 in 2 bytes
    let number = |number: u64, size: usize| number.to_le_bytes()[..size].to_vec();
    let front = [
        number(1, 1),
        number(3, 7),
        number(first_ms + 60_000, 7),
        number(first_ms + 59_000, 6),
        number(first_ms + 200_000, 6),
    ];
    let (newest, first, base) = (
        number(first_ms + 60_000, 6),
        number(first_ms, 6),
        number(0, 7),
    );
    let head = [
        newest,
        first,
        base,
        number(44, 4),
        number(44, 4),
        number(1, 1),
    ];
    let label = [number(1_000, 6), number(60_000, 6), number(1, 1)];
    let value = [front.concat(), head.concat(), vec![0; 32], label.concat()].concat();
    script.start(first_ms + 60_500);
    script.server.put(NAME, Some(&value));
    let checked = script.store.check(&look(&policy("9/1m@1s"), 1)).await;
    let error = checked.unwrap_err().to_string();
    assert!(error.contains("cannot be read"), "{error}");
}

async fn a_block_that_cannot_be_read_leaves_the_strikes(script: &Script) {
    let strikes = "2/1d@1s".parse().unwrap();
    script.start(START_MS);
    check(&script.store, &policy("9/1d@1s"), 2).await;
    let struck = script.server.value(NAME).unwrap();
    script.server.put(STRIKES, Some(&struck));
    script.server.put(BLOCK, Some(b"no block"));
    let ban = Operation::Ban {
        key: alice(),
        strikes,
        request: Until::Forever.into(),
    };
    script.store.execute(ban.clone()).await.unwrap_err();
    assert_eq!(script.server.value(STRIKES), Some(struck));
    script.server.remove(BLOCK);
    script.store.execute(ban).await.unwrap();
    assert_eq!(script.server.value(STRIKES), None);
}

/// The highest 4 of the 48 bits of a label's first number are the kind.
async fn sections_of_a_later_kind_are_carried_along(script: &Script) {
    script.start(START_MS);
    check(&script.store, &policy("3/1m@1s,9/1h@fixed"), 1).await;
    let mut value = script.server.value(NAME).unwrap();
    let kind = value.len() - 1 - 12 + 5;
    value[kind] |= 3 << 4;
    let first_ms = gone_ms(script);
    script.server.put(NAME, Some(&value));
    let minute = policy("3/1m@1s");
    let later = |value: &[u8]| {
        (
            value[0],
            value[8..15].to_vec(),
            value[value.len() - 13..].to_vec(),
        )
    };
    for at_ms in [0, 500, 62_000, HOUR_MS + 1] {
        script.clock.set(START_MS + at_ms);
        assert!(check(&script.store, &minute, 1).await.is_allowed());
        let written = script.server.value(NAME).unwrap();
        assert_eq!(later(&written), later(&value), "{at_ms}");
        assert!(gone_ms(script) >= first_ms, "{at_ms}");
    }
    script.clock.set(gone_ms(script));
    check(&script.store, &minute, 1).await;
    assert_eq!(script.server.value(NAME).unwrap()[0], 1);
}

/// The caller's section comes first, then as many others as there is room for.
async fn a_value_has_255_sections(script: &Script) {
    let later = |number: u8| [&[number, 0, 0, 0, 0, 3 << 4][..], &[7; 6]].concat();
    let times = [START_MS, START_MS + HOUR_MS].map(|ms| ms.to_le_bytes()[..6].to_vec());
    let ones = [1, 0, 0, 0, 0, 0, 0].repeat(255);
    let labels: Vec<u8> = (0..255).flat_map(later).collect();
    let heads = vec![0; 28 * 255];
    let value = [
        vec![255],
        ones.clone(),
        ones,
        times.concat(),
        heads,
        labels.clone(),
        vec![1],
    ];
    script.start(START_MS);
    script.server.put(NAME, Some(&value.concat()));
    check(&script.store, &policy("3/1m"), 1).await;
    let written = script.server.value(NAME).unwrap();
    assert_eq!(written[0], 255);
    assert_eq!(
        written[written.len() - 1 - 254 * 12..written.len() - 1],
        labels[..254 * 12]
    );
}

/// Another replica has charged, and its zone data ends the period at another time.
async fn zone_data_may_differ(script: &Script) {
    let quota = policy("9/day@UTC,1000/30d");
    let end_ms = START_MS + DAY_MS;
    let half = 12 * HOUR_MS;
    // The last of these are too late, or just not, for the last period that begins within two days.
    let ahead = 2 * DAY_MS + half;
    let apart = [
        1,
        HOUR_MS,
        half - 1,
        half,
        half + 1,
        DAY_MS,
        ahead - 1,
        ahead,
    ];
    let others = apart
        .into_iter()
        .flat_map(|apart| [end_ms - apart, end_ms + apart]);
    for other_ms in others {
        let times = [end_ms - HOUR_MS, end_ms - 1, end_ms, other_ms - 1, other_ms];
        for at_ms in times.into_iter().filter(|it| *it > START_MS) {
            script.start(START_MS + 1);
            check(&script.store, &quota, 4).await;
            rewrite(script, end_ms, other_ms);
            script.clock.set(at_ms);
            for cost in [0, 3, 6, 2] {
                let value = script
                    .server
                    .value(NAME)
                    .map(|it| StoredValue::read(&it).unwrap());
                let right = decide(&look(&quota, cost), at_ms, &[value.as_ref()]).unwrap();
                let said = check(&script.store, &quota, cost).await;
                let (said, right) = (Outcome::from(&said), Outcome::from(&right));
                assert_eq!(
                    said, right,
                    "{cost} at {at_ms}, and {other_ms} for {end_ms}"
                );
            }
        }
    }
}

/// Other zone data ends the period of a charge later: its settlement leaves the end of the others.
async fn a_settlement_ends_no_period_later(script: &Script) {
    let quota = policy("9/day@UTC,1000/30d");
    let end_ms = START_MS + DAY_MS;
    for (other_ms, cost, left, ends_ms) in [
        (end_ms + HOUR_MS, 0, 6, end_ms),
        (end_ms + HOUR_MS, 2, 4, end_ms),
        (end_ms - HOUR_MS, 0, 6, end_ms),
        (end_ms - HOUR_MS, 2, 4, end_ms),
        (end_ms + 12 * HOUR_MS, 0, 5, end_ms),
    ] {
        script.start(START_MS + 1);
        check(&script.store, &quota, 1).await;
        rewrite(script, end_ms, other_ms);
        let other = check(&script.store, &quota, 1).await;
        script.store.reset(&quota, &alice()).await.unwrap();
        check(&script.store, &quota, 4).await;
        let settled = settle(&script.store, other.usage(), cost).await;
        let settled = &Outcome::from(&settled).usage[0][0];
        let expected = (left, ends_ms - START_MS - 1);
        assert_eq!(
            (settled.remaining, settled.reset_after_ms),
            expected,
            "{other_ms} {cost}"
        );
    }
}

/// The reset forgot the charge.
async fn a_refund_takes_no_more_than_its_period_has(script: &Script) {
    let (policy, store) = (policy("9/day@UTC"), &script.store);
    script.start(START_MS);
    let forgotten = check(store, &policy, 4).await;
    store.reset(&policy, &alice()).await.unwrap();
    check(store, &policy, 1).await;
    assert_eq!(left(&settle(store, forgotten.usage(), 0).await), 9);
}

/// Their numbers differ by 2^16: with narrow entries, the first would be released with the second.
async fn steps_may_span_a_window_and_a_step(script: &Script) {
    let (policy, store) = (policy("9/131071ms@2ms"), &script.store);
    script.start(START_MS);
    check(store, &policy, 1).await;
    script.clock.set(START_MS + 131_072);
    assert_eq!(left(check(store, &policy, 1).await.usage()), 7);
    script.clock.set(START_MS + 131_073);
    assert_eq!(left(check(store, &policy, 0).await.usage()), 8);
}

/// The fast path may leave other room.
async fn slots_that_are_held_need_no_room_under_a_lower_limit(script: &Script) {
    script.start(START_MS);
    let [low, high] = ["2/30s@concurrent", "9/30s@concurrent"].map(policy);
    let first = look(&low, 1);
    let checks = [&first, &look(&high, 8), &first, &look(&low, 0)];
    let mut are_allowed = Vec::new();
    for check in checks {
        are_allowed.push(script.store.check(check).await.unwrap().is_allowed());
    }
    assert_eq!(are_allowed, [true, true, true, false]);
}

async fn room_is_taken_and_given_back(script: &Script) {
    let policy = policy("99/1m@1s");
    for pause in 48..56 {
        script.start(START_MS);
        for gap in [vec![1; 20], vec![pause]].concat() {
            script.clock.advance(Duration::from_secs(gap));
            let before = script.server.value(NAME);
            check(&script.store, &policy, 1).await;
            let (value, now_ms) = (script.server.value(NAME).unwrap(), script.clock.now_ms());
            assert_room(&value, before.as_deref(), now_ms);
        }
    }
}

async fn common_cases_are_not_handed_over(script: &Script) {
    let new = || {
        script.start(START_MS);
        (
            Halves::over(&script.server, &script.clock),
            script.clock.clone(),
        )
    };
    let (stores, clock) = new();
    hand_over::a_common_case_is_not_handed_over(stores, clock).await;
    let (stores, clock) = new();
    hand_over::steps_are_opened_and_released_by_the_fast_path(stores, clock).await;
    let (stores, clock) = new();
    hand_over::a_denial_while_steps_are_released_is_not_handed_over(stores, clock).await;
    let (stores, clock) = new();
    hand_over::slots_are_taken_renewed_and_returned_by_the_fast_path(stores, clock).await;
}

/// It opens no step either.
async fn a_settlement_at_the_largest_number_changes_nothing(script: &Script) {
    let (policy, store) = (policy(&format!("{MAX_UNITS}/1s@100ms")), &script.store);
    script.start(START_MS);
    let [first, second, third] = [
        check(store, &policy, 1).await,
        check(store, &policy, 1).await,
        check(store, &policy, 1).await,
    ];
    // One more than the largest number.
    let settled = settle(store, first.usage(), MAX_UNITS - 1).await;
    assert_eq!(left(&settled), 0);
    script.clock.set(START_MS + 250);
    let settled = settle(store, second.usage(), 2).await;
    let settled = &Outcome::from(&settled).usage[0][0];
    assert_eq!((settled.remaining, settled.reset_after_ms), (0, 850));
    assert_eq!(left(&settle(store, third.usage(), 0).await), 1);
}

/// At most 2^53 - 1 units * ms are missing. After a millisecond, no whole number of units is.
async fn a_bucket_is_emptied_by_whole_units(script: &Script) {
    let bucket = policy("6+4/7ms@bucket");
    script.start(START_MS);
    let charged = check(&script.store, &bucket, 6).await;
    script.clock.set(START_MS + 1);
    let settled = settle(&script.store, charged.usage(), u64::MAX).await;
    let most = MAX_UNITS - MAX_UNITS % 7;
    let room = (most - 38) / 7;
    let reset_after_ms = Outcome::from(&settled).usage[0][0].reset_after_ms;
    assert_eq!(reset_after_ms, (38 + 7 * room).div_ceil(4));
}

/// A clock that was wrong while a caller without the bucket wrote does not empty it.
async fn a_bucket_of_others_keeps_its_time(script: &Script) {
    let both = policy("9/1m,6+2/3ms@bucket");
    script.start(START_MS);
    let charged = check(&script.store, &both, 6).await;
    settle(&script.store, charged.usage(), 100).await;
    script.clock.set(START_MS + 50);
    assert!(
        check(&script.store, &policy("900/1m"), 1)
            .await
            .is_allowed()
    );
    script.clock.set(START_MS);
    let look = check(&script.store, &both, 0).await;
    let bucket = Outcome::from(&look).usage[0][1];
    assert_eq!((bucket.remaining, bucket.reset_after_ms), (0, 150));
}

async fn of_two_blocks_with_one_end_the_first_holds(script: &Script) {
    script.start(START_MS);
    for by in [BlockedBy::Operator, BlockedBy::Ban] {
        let block = script.store.block(&alice(), request(Until::Forever, by));
        assert_eq!(
            block.await.unwrap(),
            Block::new(u64::MAX, BlockedBy::Operator)
        );
    }
}

async fn slots_are_those_of_the_memory_store(script: &Script) {
    let store: Arc<dyn Store> = Arc::new(script.store.clone());
    let start = || {
        script.start(START_MS);
        script.clock.clone()
    };
    kinds::messages_about_slots_may_come_twice(&store, start()).await;
    kinds::slots_of_a_key_are_renewed_and_returned_one_by_one(&store, start()).await;
    kinds::a_check_may_take_several_slots(&store, start()).await;
    kinds::each_check_of_a_batch_has_slots_of_its_own(&store, start()).await;
    kinds::slots_last_longer_while_the_clock_is_behind_and_are_not_believed_beyond_their_window(
        &store,
        start(),
    )
    .await;
}

/// With windows of a few milliseconds, blocks and strikes end at the time of a check.
async fn bans_are_those_of_the_memory_store(script: &Script) {
    script.start(START_MS);
    let memory = MemoryStore::new().clock(script.clock.clone());
    let limiters: [Limiter; 2] = [patient(script.store.clone()), patient(memory)];
    let mut random = fastrand::Rng::with_seed(7);
    let login = Policy::parse("login", "1/3ms@1ms").unwrap();
    let login = login.ban("2/6ms@1ms=4ms".parse().unwrap());
    let key = |random: &mut fastrand::Rng| Key::new("user", random.u8(0..2).to_string());
    for step in 0..200 {
        script
            .clock
            .advance(Duration::from_millis(random.u64(0..3)));
        let (act, key, other) = (random.u8(0..12), key(&mut random), key(&mut random));
        let millis = Duration::from_millis(random.u64(0..6));
        let mut said = Vec::new();
        for limiter in &limiters {
            said.push(match act {
                0..9 => {
                    let charges = [&key, &other].map(|key| Charge::new(&login, key.clone(), 1));
                    let decision = limiter.check(charges).await.unwrap();
                    limiter.strikes_counted().await;
                    format!("{:?}", Outcome::from(&decision))
                }
                9 => format!(
                    "{:?}",
                    limiter.block(&key, Until::After(millis)).await.unwrap()
                ),
                10 => format!(
                    "{:?}",
                    limiter
                        .block(&key, Until::After(Duration::MAX))
                        .await
                        .unwrap()
                ),
                _ => format!("{:?}", limiter.unblock(&key).await),
            });
        }
        assert_eq!(said[0], said[1], "step {step}");
    }
}

/// A part names the place of its policy in two bytes.
async fn a_policy_may_stand_in_the_257th_part(script: &Script) {
    script.start(START_MS);
    let (many, few) = (policy("900/1m"), policy("2/1m"));
    let mut operations = vec![Operation::Check(look(&many, 1)); 256];
    operations.extend(vec![Operation::Check(look(&few, 1)); 2]);
    let replies = script.store.call(operations).await.unwrap();
    assert_eq!(script.server.last_call().len(), 258 + 1, "one call");
    let Some(Ok(Reply::Check(last))) = replies.last() else {
        panic!("{replies:?}");
    };
    assert!(!last.is_allowed(), "256 units are used");
    assert_eq!(left(last.usage()), 0);
}

async fn the_servers_clock_decides(script: &Script) {
    let now_ms = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
    script.server.clear();
    let from_ms = now_ms();
    check(&script.unset, &policy("9/1m@1s"), 1).await;
    let times_ms = from_ms..=now_ms();
    let reply = script.server.last_reply().unwrap();
    let replied_ms = reply[..6]
        .iter()
        .rev()
        .fold(0, |ms, byte| ms << 8 | u128::from(*byte));
    assert!(times_ms.contains(&replied_ms), "{replied_ms}");
    let kept_ms = u128::from(gone_ms(script)) - replied_ms;
    assert!((60_000..=121_000).contains(&kept_ms), "{kept_ms}");
}

async fn a_call_of_another_version_is_an_error(script: &Script) {
    for store in [&script.store, &script.unset] {
        script.start(START_MS);
        check(store, &policy("9/1m"), 1).await;
        let written = script.server.value(NAME);
        let error = script.server.repeat_as_version(2).unwrap_err();
        assert!(error.to_string().contains("CALLVERSION"), "{error}");
        assert_eq!(script.server.value(NAME), written);
    }
}

/// The error is the server's, without the place in the script that older servers add.
async fn a_write_that_fails_fails_the_call(script: &Script) {
    let policy = policy("9/1m");
    for is_reset in [false, true] {
        script.start(START_MS);
        check(&script.store, &policy, 1).await;
        if is_reset {
            script.store.reset(&policy, &alice()).await.unwrap();
        }
        let error = "@user_script: 1: -READONLY You can't write";
        script.server.refuse_writes(error);
        let error = script.server.repeat_as_version(1).unwrap_err();
        assert_eq!(error.detail(), Some("READONLY You can't write"));
    }
}
