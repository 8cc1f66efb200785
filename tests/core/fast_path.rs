//! Proves that the script's fast path changes nothing but its speed: without it, answers, values and expiries are the
//! same; and that both answer as the memory store does, in Lua 5.4 as in the Lua 5.1 of Redis.

use proptest::prelude::*;
use sluicegate::store::redis::inspect::StoredValue;
use support::{history::*, lua::LuaServer, prelude::*, vectors::replay_all};

/// The plain script, in Lua 5.4.
mod without {
    use super::{LuaServer, ManualClock, RedisStore};

    support::contracts!(new: contract calls blocks kinds);

    async fn new() -> (RedisStore, ManualClock) {
        super::plain(&LuaServer::new())
    }
}

fn plain(server: &LuaServer) -> (RedisStore, ManualClock) {
    whole(&server.plain())
}

fn whole(server: &LuaServer) -> (RedisStore, ManualClock) {
    let clock = ManualClock::new(0);
    (server.store().clock(clock.clone()), clock)
}

#[tokio::test]
async fn the_script_agrees_with_the_vectors_with_the_fast_path_and_without() {
    replay_all(async || plain(&LuaServer::new())).await;
    replay_all(async || whole(&LuaServer::new())).await;
}

#[test]
fn a_fast_path_changes_nothing_whatever_happens() {
    changes_nothing(&ProptestConfig::default(), wild());
}

#[test]
fn a_fast_path_changes_nothing_whatever_happens_to_all_kinds_of_rules() {
    changes_nothing(&few_cases(), wild_kinds());
}

#[test]
fn a_fast_path_changes_nothing_about_what_is_taken_back() {
    changes_nothing(&few_cases(), taken_back());
}

#[test]
fn a_fast_path_changes_nothing_on_busy_keys() {
    changes_nothing(&few_cases(), hot());
}

#[test]
fn a_fast_path_changes_nothing_however_much_is_charged() {
    changes_nothing(&ProptestConfig::default(), large());
}

#[test]
fn a_fast_path_changes_nothing_in_calls_of_several_operations() {
    changes_nothing(&few_cases(), calls());
    changes_nothing(&few_cases(), calls_of_all_kinds());
}

#[test]
fn a_fast_path_changes_nothing_about_values_that_cannot_be_read() {
    changes_nothing(&few_cases(), spoiled_calls());
}

/// Whatever the other keys hold: they are new, or have room, or steps of theirs are due; and whichever rule denies.
#[tokio::test]
async fn a_check_that_one_of_three_keys_denies_has_the_same_answer_without_the_fast_path() {
    let policies = "9/1m;99/1s,99/1m,99/1h;70000/1m,70000/1h;9+9/1s@bucket;9/1m@fixed;\
        9/month@UTC,9/1m;9/30s@concurrent";
    let denials = "1/1s,9/1m,9/1h;9/1s,9/1m,1/1h;1/1s,1/1m,1/1h;9/1s,1/1m,9/1h;0/1m";
    for (n, other) in policies.split(';').enumerate() {
        for denial in denials.split(';') {
            let (with, without) = (LuaServer::new(), LuaServer::new());
            let (plain, clock) = plain(&without);
            let fast = with.store().clock(clock.clone());
            let (other, denial) = (policy("other", other), policy("denial", denial));
            let charge = |policy: &Policy, name: &str| {
                Charge::new(policy, Key::new("user", format!("{name}-{n}")), 1)
            };
            clock.set(START_MS);
            for gap_ms in [0, 0, 20, 1_500, 70_000] {
                move_clock(&clock, gap_ms);
                let (first, second) = (charge(&other, "first"), charge(&denial, "second"));
                let third = charge(&other, &format!("third-{gap_ms}"));
                let alone = Check::new([first.clone()]).unwrap();
                let all = Check::new([first, second, third]).unwrap();
                for check in [&all, &alone, &all] {
                    let said = async |store: &RedisStore| {
                        format!("{:?}", store.check(check).await.unwrap())
                    };
                    assert_eq!(said(&fast).await, said(&plain).await, "{other}, {denial}");
                    assert_eq!(kept(&with), kept(&without), "{other}, {denial}");
                }
            }
        }
    }
}

/// Plays a history with the fast path, without, and in memory; after each step the servers keep the same.
fn changes_nothing(config: &ProptestConfig, histories: impl Strategy<Value = History>) {
    let runtime = support::runtime();
    let (with, without) = (LuaServer::new(), LuaServer::new().plain());
    proptest!(config.clone(), |(history in histories)| {
        with.clear();
        without.clear();
        let clock = ManualClock::new(history.start_ms);
        let [fast, plain] = [&with, &without].map(|it| it.store().clock(clock.clone()));
        let memory = MemoryStore::new().clock(clock.clone());
        let spoil_with = |policy: &str, key: &_, spoiled| with.spoil(policy, key, spoiled);
        let spoil_without = |policy: &str, key: &_, spoiled| without.spoil(policy, key, spoiled);
        let mut fast = Player::new(&fast, &history).spoil(&spoil_with);
        let mut plain = Player::new(&plain, &history).spoil(&spoil_without);
        let mut memory = Player::new(&memory, &history).calls(Calls::Apart);
        for (index, step) in history.steps.iter().enumerate() {
            move_clock(&clock, step.gap_ms);
            let (what, now_ms) = (&step.act, clock.now_ms());
            let right = runtime.block_on(memory.come(what));
            for player in [&mut fast, &mut plain] {
                let came = runtime.block_on(player.come(what));
                prop_assert!(came == right, "step {index} at {now_ms}, {what:?}: {came:?}, not {right:?}");
            }
            if with.all() != without.all() {
                prop_assert_eq!(kept(&with), kept(&without), "step {} at {}: {:?}", index, now_ms, what);
            }
        }
    });
}

/// The meaning and the expiry of each key: the room of queues may differ, and each player has ids of its own.
fn kept(server: &LuaServer) -> Vec<(String, String, u64)> {
    let keys = server.all().into_iter();
    let kept = keys.map(|(name, value, gone_ms)| {
        if name.contains('@') {
            let slots = value.chunks(24).map(|slot| &slot[..8]);
            return (name, format!("{:?}", slots.collect::<Vec<_>>()), gone_ms);
        }
        let means = match StoredValue::read(&value) {
            Ok(stored) => format!("{stored:?}"),
            Err(_) => format!("{value:?}"),
        };
        (name, means, gone_ms)
    });
    kept.collect()
}
