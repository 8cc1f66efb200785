//! Cases that random histories hardly meet, each with the right answer.

use std::{collections::HashMap, time::SystemTime};

use sluicegate::store::redis::inspect::{StoredValue, decide};
use support::{
    blocks, contract, contract::patient, hand_over, history::move_clock, kinds, prelude::*,
    rows::play_and, stored::assert_written,
};

use super::Script;

const HOUR_MS: u64 = 3_600_000;

const DAY_MS: u64 = 24 * HOUR_MS;

/// Alice's key under the policy `p`, her block and her strikes.
const NAME: &str = "sluicegate:{user=alice}:p~1";
const BLOCK: &str = "sluicegate:{user=alice}:!block";
const STRIKES: &str = "sluicegate:{user=alice}:!strikes";

pub(super) async fn all(script: &Script) {
    the_rows_of_every_store_hold(script).await;
    a_value_that_cannot_be_read_is_told(script).await;
    a_value_that_lacks_totals_cannot_be_read(script).await;
    entries_are_narrow_again_when_nothing_counts(script).await;
    a_new_key_is_held_to_the_limit_whatever_was_settled_before(script).await;
    a_block_that_cannot_be_read_leaves_the_strikes(script).await;
    sections_of_a_later_kind_are_carried_along(script).await;
    a_value_has_255_sections(script).await;
    periods_are_found_however_far_the_clock_is_ahead(script).await;
    zone_data_may_differ(script).await;
    a_settlement_ends_no_period_later(script).await;
    if !script.is_plain {
        common_cases_are_not_handed_over(script).await;
    }
    bans_are_those_of_the_memory_store(script).await;
    the_second_of_three_rules_denies_as_it_does_in_memory(script).await;
    a_rule_with_a_queue_decides_as_it_does_in_memory(script).await;
    levels_stop_at_255(script).await;
    a_policy_may_stand_in_the_257th_part(script).await;
    the_servers_clock_decides(script).await;
    a_call_of_another_version_is_an_error(script).await;
    a_newest_step_that_another_program_has_set_ahead_is_not_believed(script).await;
    a_write_that_is_refused_fails_its_operation_alone(script).await;
    a_refusal_says_whether_a_write_came_before(script).await;
}

/// And each value is as the README of the script says.
async fn the_rows_of_every_store_hold(script: &Script) {
    let store: Arc<dyn Store> = Arc::new(script.store.clone());
    for row in [contract::all(), kinds::all(), blocks::all()].concat() {
        script.start(START_MS);
        let mut before = HashMap::new();
        let mut after = |rules: &[Rule]| {
            let written = script.server.written();
            for (name, (value, gone_ms)) in &written {
                let is_new = before.get(name) != Some(&(value.clone(), *gone_ms));
                if is_new && !name.ends_with(b":!block") && !name.ends_with(b":!strikes") {
                    assert_written(value, *gone_ms, script.clock.now_ms(), None, rules);
                }
            }
            before = written;
        };
        play_and(&store, &script.clock, &row, &mut after).await;
    }
    script.start(START_MS);
    kinds::each_check_of_a_batch_has_slots_of_its_own(&store, script.clock.clone()).await;
    script.start(START_MS);
    blocks::operations_with_blocks_are_done_in_their_order(store, script.clock.clone()).await;
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
    user("alice")
}

fn policy(rules: &str) -> Policy {
    support::prelude::policy("p", rules)
}

fn look(policy: &Policy, cost: u64) -> Check {
    check_of(policy, "alice", cost)
}

async fn check(store: &RedisStore, policy: &Policy, cost: u64) -> Decision {
    store.check(&look(policy, cost)).await.unwrap()
}

async fn settle(store: &RedisStore, usage: &Usage, cost: u64) -> Usage {
    let settlement = Settlement::new(usage, |_| cost).unwrap();
    store.settle(&settlement).await.unwrap()
}

fn left(usage: &Usage) -> u64 {
    remaining(usage)[0]
}

async fn a_value_that_cannot_be_read_is_told(script: &Script) {
    let no_section: &[u8] = &[&[0; 13][..], &[1]].concat();
    for (value, reason) in [
        (None, "of another type"),
        (Some(&b"of another version\x02"[..]), "cannot be read"),
        (Some(b"\x03 is not so long\x01"), "cannot be read"),
        (Some(no_section), "cannot be read"),
    ] {
        script.start(START_MS);
        script.server.put(NAME, value);
        let error = script.store.check(&look(&policy("3/1m"), 1)).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let block = |rest: &[u8]| [&(START_MS + 9).to_le_bytes()[..6], rest].concat();
    let long = [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for (value, reason) in [
        (None, "of another type"),
        (Some(block(&[1, 2])), "cannot be read"),
        (Some(block(&[1, 1, 0])), "cannot be read"),
        (Some(block(&long)), "cannot be read"),
    ] {
        script.start(START_MS);
        script.server.put(BLOCK, value.as_deref());
        let look = look(&policy("3/1m"), 1).enforce_blocks(true);
        let error = script.store.check(&look).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

async fn a_value_that_lacks_totals_cannot_be_read(script: &Script) {
    for (rules, from) in [
        ("9/1m@1s", 60),
        ("9/1m@1s,9/1h@1m", 200),
        ("9+1/1s@bucket,9+1/1m@bucket", 60),
    ] {
        script.start(START_MS);
        check(&script.store, &policy(rules), 1).await;
        let mut value = script.server.value(NAME).unwrap();
        value.drain(from..from + 8);
        script.server.put(NAME, Some(&value));
        script.clock.set(START_MS + 30_500);
        let checked = script.store.check(&look(&policy(rules), 1)).await;
        // The fast path reads a part, in which other bytes have come to the place of those that lack.
        if script.is_plain {
            let error = checked.unwrap_err().to_string();
            assert!(error.contains("cannot be read"), "{rules}: {error}");
        }
    }
}

async fn entries_are_narrow_again_when_nothing_counts(script: &Script) {
    let policy = policy("100000/1m@1s");
    let mut lengths = Vec::new();
    script.start(START_MS);
    let costs = [1, 70_000, 1, 1, 1];
    for (gap_ms, cost) in [0, 1_000, 59_000, 3_000, 70_000].into_iter().zip(costs) {
        script.clock.advance(ms(gap_ms));
        assert!(check(&script.store, &policy, cost).await.is_allowed());
        lengths.push(script.server.value(NAME).unwrap().len());
    }
    let (narrow, wide) = (lengths[0], lengths[0] + 60 * 5);
    assert_eq!(lengths, [narrow, wide, wide, wide, narrow]);
}

/// A settlement charges an expired key whatever the limit. A check of as many units follows in the same call.
async fn a_new_key_is_held_to_the_limit_whatever_was_settled_before(script: &Script) {
    let policy = policy("3/1m");
    script.start(START_MS);
    let charged = check(&script.store, &policy, 1).await;
    script.clock.advance(Duration::from_secs(600));
    let settlement = Settlement::new(charged.usage(), |_| 6).unwrap();
    let of_bob = Charge::new(&policy, Key::new("user", "bob"), 5);
    let check = Operation::Check(Check::new([of_bob]).unwrap());
    let operations = vec![Operation::Settle(settlement), check];
    let replies = script.store.call(operations).await.unwrap();
    match &replies[..] {
        [Ok(Reply::Settle(_)), Ok(Reply::Check(decision))] => assert!(!decision.is_allowed()),
        other => panic!("{other:?}"),
    }
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
    let kind = value.len() - 2 - 16 + 5;
    value[kind] |= 3 << 4;
    let first_ms = gone_ms(script);
    script.server.put(NAME, Some(&value));
    let minute = policy("3/1m@1s");
    let later = |value: &[u8]| {
        let (used, tail) = (43 + 7, value.len() - 2 - 16);
        (value[used..used + 7].to_vec(), value[tail..].to_vec())
    };
    for at_ms in [0, 500, 62_000, HOUR_MS + 1] {
        script.clock.set(START_MS + at_ms);
        assert!(check(&script.store, &minute, 1).await.is_allowed());
        let written = script.server.value(NAME).unwrap();
        assert_eq!(later(&written), later(&value), "{at_ms}");
        assert!(gone_ms(script) >= first_ms, "{at_ms}");
    }
    script.clock.set(gone_ms(script) - 1);
    check(&script.store, &minute, 1).await;
    assert_eq!(later(&script.server.value(NAME).unwrap()), later(&value));
    script.clock.set(gone_ms(script));
    check(&script.store, &minute, 1).await;
    let value = script.server.value(NAME).unwrap();
    assert_eq!(value[value.len() - 2..], [1, 1], "one section");
}

/// The caller's section comes first, then as many others as there is room for.
async fn a_value_has_255_sections(script: &Script) {
    let later = |number: u8| [&[number, 0, 0, 0, 0, 3 << 4][..], &[7; 6], &[0; 4]].concat();
    let times = [0, START_MS, 0, 0, START_MS + HOUR_MS, 0].map(|ms| ms.to_le_bytes()[..6].to_vec());
    let ones = [1, 0, 0, 0, 0, 0, 0].repeat(255);
    let labels: Vec<u8> = (0..255).flat_map(later).collect();
    let heads = vec![0; 13 * 254];
    let first_base = vec![0; 7];
    let value = [
        times.concat(),
        first_base,
        ones,
        heads,
        labels.clone(),
        vec![255, 1],
    ];
    script.start(START_MS);
    script.server.put(NAME, Some(&value.concat()));
    check(&script.store, &policy("3/1m"), 1).await;
    let written = script.server.value(NAME).unwrap();
    let tail = &written[written.len() - 2 - 254 * 16..];
    assert_eq!(tail[254 * 16..], [255, 1]);
    assert_eq!(tail[..254 * 16], labels[..254 * 16]);
}

/// The caller sends the periods around its own clock, and asks once more if the server's time is in none of them.
async fn periods_are_found_however_far_the_clock_is_ahead(script: &Script) {
    let (server, store) = (&script.server, &script.unset);
    for days in [0, 1, 3, 400] {
        server.clear();
        server.set_ahead(Duration::from_secs(days * 86_400));
        let hourly = support::prelude::policy("hourly", "5/1h");
        let quota = policy("5/day@UTC,7/year@Europe/Berlin");
        // Only the second operation is repeated: the first is executed once.
        let both = [&hourly, &quota].map(|policy| Operation::Check(look(policy, 2)));
        let replies = store.call(both.to_vec()).await.unwrap();
        let [Ok(Reply::Check(first)), Ok(Reply::Check(second))] = &replies[..] else {
            panic!("{days} days: {replies:?}");
        };
        assert_eq!(remaining(first.usage()), [3], "{days} days");
        assert_eq!(remaining(second.usage()), [3, 5], "{days} days");
        assert_eq!(remaining(&settle(store, second.usage(), 1).await), [4, 6]);
        let both = Check::new([&hourly, &quota].map(|policy| charge(policy, "alice", 3)));
        let both = store.check(&both.unwrap()).await.unwrap();
        assert_eq!(remaining(both.usage()), [0, 1, 3]);
        // A response that outlives its periods.
        server.set_ahead(Duration::from_secs((days + 400) * 86_400));
        let settled = settle(store, both.usage(), 4).await;
        assert_eq!(remaining(&settled), [4, 4, 6], "{days} days");
    }
}

/// Another replica has charged, and its zone data ends the period at another time.
async fn zone_data_may_differ(script: &Script) {
    let quota = policy("9/day@UTC,1000/30d");
    let end_ms = START_MS + DAY_MS;
    let half = 12 * HOUR_MS;
    // The last of these are too late, or just not, for the last period that begins within two days.
    let ahead = 2 * DAY_MS + half;
    let near = [1, HOUR_MS, half - 1, half, half + 1];
    let apart = near.into_iter().chain([DAY_MS, ahead - 1, ahead]);
    for other_ms in apart.flat_map(|apart| [end_ms - apart, end_ms + apart]) {
        let times = [end_ms - HOUR_MS, end_ms - 1, end_ms, other_ms - 1, other_ms];
        for at_ms in times.into_iter().filter(|it| *it > START_MS) {
            script.start(START_MS + 1);
            check(&script.store, &quota, 4).await;
            rewrite(script, end_ms, other_ms);
            script.clock.set(at_ms);
            for cost in [0, 3, 6, 2] {
                let value = script.server.value(NAME);
                let value = value.map(|it| StoredValue::read(&it).unwrap());
                let right = decide(&look(&quota, cost), at_ms, &[value.as_ref()]).unwrap();
                let said = check(&script.store, &quota, cost).await;
                let (said, right) = (Outcome::from(&said), Outcome::from(&right));
                let which = format!("{cost} at {at_ms}, and {other_ms} for {end_ms}");
                assert_eq!(said, right, "{which}");
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
        let settled = (settled.remaining, settled.reset_after_ms);
        assert_eq!(settled, expected, "{other_ms} {cost}");
    }
}

async fn common_cases_are_not_handed_over(script: &Script) {
    hand_over::no_common_case_is_handed_over(&script.server, &script.clock).await;
}

/// With windows of a few milliseconds, blocks and strikes end at the time of a check.
async fn bans_are_those_of_the_memory_store(script: &Script) {
    script.start(START_MS);
    let memory = MemoryStore::new().clock(script.clock.clone());
    let limiters: [Limiter; 2] = [patient(script.store.clone()), patient(memory)];
    let mut random = fastrand::Rng::with_seed(7);
    let login = support::prelude::policy("login", "1/3ms@1ms");
    let login = login.ban("2/6ms@1ms=4ms".parse().unwrap());
    let key = |random: &mut fastrand::Rng| Key::new("user", random.u8(0..2).to_string());
    for step in 0..200 {
        script.clock.advance(ms(random.u64(0..3)));
        let (act, key, other) = (random.u8(0..12), key(&mut random), key(&mut random));
        let until = Until::After(ms(random.u64(0..6)));
        let mut said = Vec::new();
        for limiter in &limiters {
            said.push(match act {
                0..9 => {
                    let charges = [&key, &other].map(|key| Charge::new(&login, key.clone(), 1));
                    let decision = limiter.check(charges).await.unwrap();
                    limiter.strikes_counted().await;
                    format!("{:?}", Outcome::from(&decision))
                }
                9 => format!("{:?}", limiter.block(&key, until).await.unwrap()),
                10 => format!("{:?}", limiter.block(&key, Duration::MAX).await.unwrap()),
                _ => format!("{:?}", limiter.unblock(&key).await),
            });
        }
        assert_eq!(said[0], said[1], "step {step}");
    }
}

/// With narrow entries and with wide ones, and also after units were released.
async fn the_second_of_three_rules_denies_as_it_does_in_memory(script: &Script) {
    for cost in [1, 70_000] {
        script.start(START_MS);
        let memory = MemoryStore::new().clock(script.clock.clone());
        let (most, middle) = (100_000_000, 5 * cost);
        let policy = policy(&format!("{most}/1s,{middle}/10s@1s,{most}/1h"));
        for step in 0..200 {
            script.clock.advance(ms([0, 0, 0, 900][step % 4]));
            let check = look(&policy, cost);
            let said = script.store.check(&check).await.unwrap();
            let right = memory.check(&check).await.unwrap();
            assert_eq!(Outcome::from(&said), Outcome::from(&right), "step {step}");
        }
    }
}

/// Of one key, and beside another, on either side, which may deny. The clock steps back at times.
async fn a_rule_with_a_queue_decides_as_it_does_in_memory(script: &Script) {
    for limit in [5, 30, 30_000, 65_540, 700_000] {
        script.start(START_MS);
        let memory = MemoryStore::new().clock(script.clock.clone());
        let precision = ["3ms", "exact"][usize::from(limit % 3 == 2)];
        let (queue, cost) = (policy(&format!("{limit}/1s@{precision}")), limit / 5);
        let ring = support::prelude::policy("q", "3/1s@100ms");
        let mut before = None;
        for step in 0..600 {
            let gap_ms = [0, 0, 1, 90, 7, 0, 110, 3, 300, 0, 30, -20, 89][step % 13];
            move_clock(&script.clock, [gap_ms, 1_001][usize::from(step % 50 == 0)]);
            let cost = [cost, cost, 0, 1, 2 * cost, limit + 1][step % 6];
            let mut charges = vec![Charge::new(&queue, alice(), cost)];
            if step % 5 > 2 {
                charges.insert(step % 2, Charge::new(&ring, Key::new("user", "bob"), 1));
            }
            let check = Check::new(charges).unwrap();
            let said = script.store.check(&check).await.unwrap();
            let right = memory.check(&check).await.unwrap();
            assert_eq!(Outcome::from(&said), Outcome::from(&right), "step {step}");
            let written = script.server.written().remove(NAME.as_bytes());
            if let Some((value, gone_ms)) = written.as_ref().filter(|_| written != before) {
                let was = before.as_ref().map(|it: &(Vec<u8>, u64)| &it.0[..]);
                let now_ms = script.clock.now_ms();
                assert_written(value, *gone_ms, now_ms, Some(was), queue.rules());
            }
            before = written;
        }
    }
}

async fn levels_stop_at_255(script: &Script) {
    script.start(START_MS);
    for number in (1..=255).chain([255]) {
        let ban = blocks::ban_until("1/1m=1ms,1ms", ms(1));
        script.store.block(&alice(), ban).await.unwrap();
        let listed = script.store.blocks(1).await.unwrap();
        assert_eq!(listed[0].details().ban_level(), Some(number));
        script.clock.advance(ms(1));
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
    let bytes = reply[..6].iter().rev();
    let replied_ms = bytes.fold(0, |ms, byte| ms << 8 | u128::from(*byte));
    assert!(times_ms.contains(&replied_ms), "{replied_ms}");
    let kept_ms = u128::from(gone_ms(script)) - replied_ms;
    assert!((60_000..=121_000).contains(&kept_ms), "{kept_ms}");
}

/// Before anything is done.
async fn a_call_of_another_version_is_an_error(script: &Script) {
    for store in [&script.store, &script.unset] {
        script.start(START_MS);
        check(store, &policy("9/1m"), 1).await;
        let written = script.server.value(NAME);
        for version in [0, 2, 127] {
            let error = script.server.repeat_as_version(version).unwrap_err();
            assert!(error.to_string().contains("CALLVERSION"), "{error}");
        }
        assert_eq!(script.server.value(NAME), written);
        script.server.repeat_as_version(1).unwrap();
    }
}

async fn a_newest_step_that_another_program_has_set_ahead_is_not_believed(script: &Script) {
    let policy = policy("9/1m");
    script.start(START_MS);
    check(&script.store, &policy, 2).await;
    script.clock.advance(Duration::from_secs(2));
    let mut value = script.server.value(NAME).unwrap();
    value[30..36].copy_from_slice(&(2 * START_MS).to_le_bytes()[..6]);
    script.server.put(NAME, Some(&value));
    let stored = StoredValue::read(&value).unwrap();
    let now_ms = script.clock.now_ms();
    let right = decide(&look(&policy, 1), now_ms, &[Some(&stored)]).unwrap();
    let said = check(&script.store, &policy, 1).await;
    assert_eq!(Outcome::from(&said), Outcome::from(&right));
}

/// The text of an error, as Redis 6.2 and Redis 7 pass it on to a script.
const READ_ONLY: [&str; 2] = [
    "@user_script: 1: -READONLY You can't write against a read only replica.\r\n",
    "READONLY You can't write against a read only replica.",
];

/// The error of a refused operation: its kind, its code, and whether nothing was done.
fn refused(result: &Result<Reply, StoreError>) -> (StoreErrorKind, Option<&str>, bool) {
    let error = result.as_ref().unwrap_err();
    (error.kind(), error.code(), error.is_unsent())
}

async fn a_write_that_is_refused_fails_its_operation_alone(script: &Script) {
    let policy = policy("1/1m");
    let ask = |name: &str| Operation::Check(check_of(&policy, name, 1));
    for text in READ_ONLY {
        script.start(START_MS);
        check(&script.store, &policy, 1).await;
        script.server.refuse_writes(0..9, text);
        let reset = Operation::Reset {
            policy: policy.clone(),
            key: alice(),
        };
        let calls = vec![ask("bob"), ask("alice"), reset, ask("bob")];
        let results = script.store.call(calls).await.unwrap();
        for place in [0, 2, 3] {
            let expected = (StoreErrorKind::Refused, Some("READONLY"), true);
            assert_eq!(refused(&results[place]), expected, "{place}");
        }
        assert!(matches!(&results[1], Ok(Reply::Check(it)) if !it.is_allowed()));
        assert_eq!(script.server.all().len(), 1, "bob has nothing");
    }

    // Shadows follow an admission alone.
    let trial = support::prelude::policy("trial", "9/1m").shadow();
    let charges = [charge(&policy, "bob", 1), charge(&trial, "carol", 1)];
    let both = Operation::Check(Check::new(charges).unwrap());
    script.start(START_MS);
    script.server.refuse_writes(0..1, READ_ONLY[0]);
    let results = script.store.call(vec![both, ask("dave")]).await.unwrap();
    assert!(refused(&results[0]).2 && results[1].is_ok());
    assert_eq!(script.server.all().len(), 1, "dave alone is charged");

    // A text of any length.
    let right = "ACL failure in script: User alice has no permissions to run the 'set' command ";
    script.start(START_MS);
    script.server.refuse_writes(0..1, &right.repeat(9));
    let results = script.store.call(vec![ask("bob"), ask("dave")]).await;
    let results = results.unwrap();
    let expected = (StoreErrorKind::AccessDenied, Some("NOPERM"), true);
    assert_eq!(refused(&results[0]), expected);
    assert!(results[1].is_ok());
    let text = &script.server.last_reply().unwrap()[9..];
    assert_eq!(text[..255], right.repeat(9).as_bytes()[..255]);
}

async fn a_refusal_says_whether_a_write_came_before(script: &Script) {
    let (rate, slots) = (policy("9/1m"), policy("9/1m@concurrent"));
    let two = |names: [&str; 2]| {
        let charges = names.map(|name| charge(&rate, name, 1));
        Operation::Check(Check::new(charges).unwrap())
    };
    let one = |policy: &Policy, name: &str| Operation::Check(check_of(policy, name, 1));
    // The writes that are made before the one that is refused; the operation; and which keys are charged then.
    for (accepted, operation, charged) in [
        (0, two(["bob", "carol"]), &[][..]),
        (1, two(["bob", "carol"]), &["bob"]),
        (1, two(["carol", "bob"]), &["carol"]),
        (0, one(&rate, "alice"), &[]),
        (1, one(&rate, "alice"), &[]), // its expiry, which the plain script writes with the units
        (0, one(&slots, "bob"), &[]),
        (1, one(&slots, "bob"), &["bob"]),
    ] {
        if script.is_plain && accepted > 0 && charged.is_empty() {
            continue;
        }
        script.start(START_MS);
        check(&script.store, &rate, 1).await;
        script.clock.advance(Duration::from_secs(65));
        script.server.refuse_writes(accepted..9, READ_ONLY[1]);
        let results = script.store.call(vec![operation]).await.unwrap();
        let expected = (StoreErrorKind::Refused, Some("READONLY"), accepted == 0);
        assert_eq!(refused(&results[0]), expected, "{accepted}");
        for name in ["bob", "carol"] {
            let has = script.server.all().iter().any(|it| it.0.contains(name));
            assert_eq!(has, charged.contains(&name), "{name}");
        }
    }

    // A renewal of several writes by turns, so that its error never says that nothing was done.
    script.start(START_MS);
    let take = Check::new([charge(&slots, "bob", 2)]).unwrap();
    let decision = script.store.check(&take).await.unwrap();
    let renewal = Operation::Renew(Slots::of(decision.usage()).remove(0));
    script.server.refuse_writes(1..9, READ_ONLY[0]);
    let results = script.store.call(vec![renewal]).await.unwrap();
    let expected = (StoreErrorKind::Refused, Some("READONLY"), false);
    assert_eq!(refused(&results[0]), expected);
}
