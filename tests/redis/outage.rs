//! While a Redis server is killed, local decisions within the shares replace those of the server,
//! until a second after the server is back at the latest.

use sluicegate::observe::Event;
use support::log::Log;

use crate::prelude::*;

const TASKS: usize = 64;

/// More than a busy machine needs for an answer.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Records decisions of the server, and when the breaker opens or closes.
fn recording() -> Log {
    Log::of(|event| {
        let told = match event {
            Event::Decision { decision, .. } if !decision.is_local() => "decided",
            Event::BreakerOpened { .. } => "opened",
            Event::BreakerClosed => "closed",
            _ => return None,
        };
        Some(told.to_owned())
    })
}

fn switches(log: &Log) -> Vec<String> {
    let mut lines = log.lines();
    lines.retain(|it| it != "decided");
    lines
}

fn charge(user: &str, limit: u64) -> [Charge; 1] {
    one(&api(&format!("{limit}/1d")), user)
}

fn local(store: RedisStore, replicas: u32) -> Limiter {
    let limiter = Limiter::new(store).timeout(TIMEOUT).replicas(replicas);
    limiter.on_failure(FailurePolicy::Local)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_server_is_killed_the_shares_hold_exactly_and_when_it_is_back_it_decides_within_a_second()
 {
    const LIMIT: u64 = 1_000;
    let mut server = Server::start();
    let logs = [(); 3].map(|()| recording());
    let memory = MemoryStore::new();
    let mut replicas = Vec::new();
    for log in &logs {
        replicas.push(local(connect(&server).await, 3).observer(log.clone()));
    }
    replicas[0] = replicas[0].clone().local_store(memory.clone());
    tokio::task::block_in_place(|| server.kill());

    let mut admitted = Vec::new();
    for replica in &replicas {
        let tasks = (0..TASKS).map(|_| {
            let limiter = replica.clone();
            tokio::spawn(async move {
                let mut admitted = 0_u64;
                for _ in 0..20 {
                    admitted += u64::from(limiter.try_acquire(charge("alice", LIMIT)).await);
                }
                admitted
            })
        });
        let sums = join_all(tasks).await.into_iter().map(Result::unwrap);
        admitted.push(sums.sum::<u64>());
    }
    assert_eq!(admitted, [LIMIT / 3; 3]);
    assert_eq!(memory.len(), 1);
    let begun = Instant::now();
    for (replica, log) in replicas.iter().zip(&logs) {
        while switches(log) != ["opened"] {
            assert!(!replica.try_acquire(charge("alice", LIMIT)).await);
            assert!(begun.elapsed() < 9 * SOON);
        }
    }

    tokio::task::block_in_place(|| server.restart());
    let healed = Instant::now();
    for (replica, log) in replicas.iter().zip(&logs) {
        while !log.lines().contains(&"decided".to_owned()) {
            assert!(healed.elapsed() < SOON);
            replica.check(charge("bob", LIMIT)).await.unwrap();
            sleep(Duration::from_millis(1)).await;
        }
        for _ in 0..20 {
            let decision = replica.check(charge("bob", LIMIT)).await.unwrap();
            assert!(!decision.usage().is_local());
        }
        assert_eq!(switches(log), ["opened", "closed"]);
    }
}
