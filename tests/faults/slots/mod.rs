//! Eight processes share slots of one server. Each is killed (−9) and stopped (SIGSTOP), also for longer than slots
//! take to expire, at random times; their wall clocks are an hour apart. At no instant do more slots than the limit
//! count as held, and all slots of the dead are free a second after their expiry.

mod fleet;
mod judge;
mod worker;

use std::{thread, time::Instant};

use fleet::Fleet;
use support::{prelude::*, redis::Server};

/// The slots of each key.
const LIMIT: usize = 3;
/// Under each policy.
const KEYS: usize = 4;

/// After their expiry, for slots of dead processes to be free.
const GRACE: Duration = Duration::from_secs(1);

const LONGEST_ROUND: Duration = Duration::from_secs(1_800);

/// A policy whose slots expire after this number of seconds.
fn policy(expiry: u64) -> Policy {
    let rule =
        Rule::concurrent(LIMIT.try_into().unwrap()).expires_after(Duration::from_secs(expiry));
    Policy::new(format!("jobs-{expiry}"), [rule]).unwrap()
}

/// Takes this number of slots.
fn charge(policy: &Policy, key: usize, slots: u64) -> [Charge; 1] {
    let key = Key::new("tenant", key.to_string());
    [Charge::new(policy, key, slots)]
}

#[test]
fn processes_that_are_killed_and_stopped_never_hold_more_slots_than_the_limit() {
    run(&[1], &[4_000], 20);
}

#[test]
#[ignore = "a long form"]
fn a_million_slots_of_processes_that_are_killed_and_stopped() {
    run(&[1, 10], &[100_000; 10], 200);
}

/// In each round, processes take this number of slots, and then all die. The rarer faults are, the more slots are taken
/// in a second.
fn run(expiries: &[u64], rounds: &[usize], rarity: u32) {
    let _turn = super::my_turn();
    let server = Server::start();
    let (begin, mut compete) = (Instant::now(), false);
    for slots in rounds {
        let round = Instant::now();
        let mut fleet = Fleet::start(&server, expiries, rarity);
        while fleet.taken() < *slots || fleet.kills < 2 || fleet.stops_beyond_expiry < 2 {
            assert!(round.elapsed() < LONGEST_ROUND, "{} slots", fleet.taken());
            fleet.disturb();
            thread::sleep(Duration::from_millis(20));
        }
        fleet.kill_all();
        let free_after_ms = all_are_free(&server, expiries);
        let records = fleet.records();
        let lost = records.iter().filter(|it| it.lost).count();
        let held = judge::most_held(&records);
        assert!(held.len() <= LIMIT, "held at once: {held:#?}");
        compete |= held.len() == LIMIT;
        let (taken, kills, stops) = (fleet.taken(), fleet.kills, fleet.stops);
        let beyond = fleet.stops_beyond_expiry;
        eprintln!(
            "{taken} slots, {kills} kills, {stops} stops, {beyond} of them beyond the expiry"
        );
        eprintln!(
            "{lost} lost, free {free_after_ms} ms after the expiry, {:?}",
            begin.elapsed()
        );
    }
    assert!(compete, "the processes compete for slots");
}

/// Waits until all slots are free, and returns how long after the expiry the last of them was: in ms, and negative if
/// before. Only looks: a check that times out may have taken a slot for no one.
fn all_are_free(server: &Server, expiries: &[u64]) -> i64 {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(async {
        let died = Instant::now();
        let store = RedisStore::connect_lazy(server.url()).unwrap();
        let limiter = Limiter::new(store).timeout(Duration::from_secs(10));
        let mut latest = i64::MIN;
        for &expiry in expiries {
            let policy = policy(expiry);
            for key in 0..KEYS {
                all_of_a_key_are_free(&limiter, &policy, key, died, expiry).await;
            }
            let after = i64::try_from(died.elapsed().as_millis()).unwrap();
            latest = latest.max(after - i64::try_from(expiry).unwrap() * 1_000);
        }
        latest
    })
}

async fn all_of_a_key_are_free(
    limiter: &Limiter,
    policy: &Policy,
    key: usize,
    died: Instant,
    expiry: u64,
) {
    loop {
        let before = died.elapsed();
        let decision = limiter.check(charge(policy, key, 0)).await.unwrap();
        let free = decision.usage().rules().next().unwrap().remaining();
        if free == u64::try_from(LIMIT).unwrap() {
            return;
        }
        assert!(
            before < Duration::from_secs(expiry) + GRACE,
            "slots of the dead are still taken after {before:?}: {free} are free"
        );
        sleep(Duration::from_millis(5)).await;
    }
}
