//! While a server takes no writes, an operation that would write fails alone, and all others are decided: a denial writes
//! nothing.

use std::fs;

use sluicegate::observe::Event;
use support::{log::Log, served::SLOTS_RIGHTS};
use tempfile::TempDir;

use crate::prelude::*;

/// A server that can save no data, as another file is where its own should be.
fn unable_to_save() -> (Server, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let server = Server::with(&["--dir", path, "--save", "3600 1000000"]);
    server.run::<()>("PING"); // it has looked for data
    fs::create_dir_all(folder.path().join("dump.rdb/in the way")).unwrap();
    server.run::<()>("BGSAVE");
    wait("the server has tried to save", || {
        let told: String = server.run("INFO persistence");
        told.contains("rdb_last_bgsave_status:err")
    });
    server.run::<()>("CONFIG SET stop-writes-on-bgsave-error no");
    (server, folder)
}

/// How a server begins and ends to take no writes, its code, and whether the address may lead to another server then.
const STATES: [(&str, [&str; 2], &str, bool); 4] = [
    ("CONFIG SET maxmemory", ["1", "0"], "OOM", false),
    (SAVES, ["yes", "no"], "MISCONF", false),
    (REPLICAS, ["1", "0"], "NOREPLICAS", true),
    ("REPLICAOF", ["127.0.0.1 1", "NO ONE"], "READONLY", true),
];

const SAVES: &str = "CONFIG SET stop-writes-on-bgsave-error";
const REPLICAS: &str = "CONFIG SET min-replicas-to-write";

fn is_denied(result: &Result<Reply, StoreError>) -> bool {
    matches!(result, Ok(Reply::Check(Decision::Denied(_))))
}

#[tokio::test]
async fn a_write_that_the_server_refuses_fails_its_operation_alone_and_unsent() {
    let (server, _folder) = unable_to_save();
    let (one, slots) = (policy("p", "1/1h"), policy("s", "1/1h@concurrent"));
    for (set, [begin, end], code, is_elsewhere) in STATES {
        let store = connect(&server).await.prefix(code.to_lowercase());
        let limiter = patient(store.clone()).count_denials(false);
        take(&limiter, &one, "alice").await;
        let slot = take(&limiter, &slots, "alice").await;
        let renewal = Operation::Renew(Slots::of(slot.usage()).remove(0));
        server.run::<()>(&format!("{set} {begin}"));
        let bans = Operation::Block {
            key: user("dave"),
            request: Until::Forever.into(),
        };
        let asks = |policy| ["alice", "bob"].map(|name| ask(policy, name));
        let before = server.connections_made();
        for _ in 0..2 {
            store.call(asks(&one).to_vec()).await.unwrap();
        }
        let replaced = server.connections_made() - before;
        assert_eq!(replaced, u64::from(is_elsewhere), "{code}");

        let operations = [asks(&one), asks(&slots), [renewal, bans]].concat();
        let results = store.call(operations).await.unwrap();
        for (place, result) in results.iter().enumerate() {
            if matches!(place, 0 | 2) {
                assert!(is_denied(result), "{code}: {place}: {result:?}");
                continue;
            }
            let error = result.as_ref().unwrap_err();
            let expected = (StoreErrorKind::Refused, Some(code));
            assert_eq!((error.kind(), error.code()), expected, "{place}");
            assert!(error.is_unsent(), "{code}: {place}");
        }
        server.run::<()>(&format!("{set} {end}"));
        for policy in [&one, &slots] {
            assert!(take(&limiter, policy, "bob").await.is_allowed(), "{code}");
        }
        assert!(limiter.check([charge(&one, "dave", 1)]).await.is_ok());
    }
}

/// A server refuses a later write of an operation only for want of a right.
#[tokio::test]
async fn a_missing_right_fails_its_operation_alone_and_says_whether_a_write_came_before() {
    let (rate, slots) = (policy("p", "9/1h"), policy("s", "9/1h@concurrent"));
    for (missing, policy, is_unsent) in [
        ("+set", &rate, true),
        ("+zcount", &slots, true),
        ("+zadd", &slots, true),
        ("+pexpireat", &slots, false),
    ] {
        let server = Server::start();
        let known = process(&server).await;
        take(&known, &rate, "alice").await;
        let rights = [&LEAST_RIGHTS[..], &SLOTS_RIGHTS].concat();
        let rights: Vec<_> = rights.into_iter().filter(|it| *it != missing).collect();
        let store = RedisStore::connect(limited(&server, &rights)).await;
        let operations = vec![ask(policy, "bob"), ask(&rate, "alice")];
        let results = store.unwrap().call(operations).await.unwrap();
        let error = results[0].as_ref().unwrap_err();
        let expected = (StoreErrorKind::AccessDenied, Some("NOPERM"), is_unsent);
        let said = (error.kind(), error.code(), error.is_unsent());
        assert_eq!(said, expected, "{missing}");
        assert!(results[1].is_ok(), "{missing}: {:?}", results[1]);
        let charged = used(&known, policy, "bob").await;
        assert_eq!(charged, u64::from(!is_unsent), "{missing}");
    }
}

/// The number of refusals, and how often the breaker opened.
fn counting() -> (Arc<[AtomicU64; 2]>, Log) {
    let counts = Arc::<[AtomicU64; 2]>::default();
    let counted = Arc::clone(&counts);
    let log = Log::of(move |event| {
        let place = match event {
            Event::Error { error, .. } if error.kind() == StoreErrorKind::Refused => 0,
            Event::BreakerOpened { .. } => 1,
            _ => return None,
        };
        counted[place].fetch_add(1, Ordering::Relaxed);
        None
    });
    (counts, log)
}

/// Made-up users at full speed, before and after `begin`. Users at their limits stay denied, and the breaker closed.
/// Returns how many connections the server got meanwhile, and the time.
async fn users_at_their_limits_stay_denied(server: &Server, begin: &str) -> (u64, Duration) {
    const FLOOD: u64 = 16;
    const USERS: u64 = 20;
    const TIMEOUT: Duration = Duration::from_millis(300);
    let ((seen, log), logins) = (counting(), policy("login", "5/10m"));
    let limiter = support::limiter(connect(server).await)
        .timeout(TIMEOUT)
        .on_failure(FailurePolicy::Open)
        .observer(log);
    for user in 0..USERS {
        for _ in 0..5 {
            assert!(take(&limiter, &logins, user).await.is_allowed());
        }
    }
    server.run::<()>(begin);
    let is_over = Arc::new(AtomicBool::new(false));
    let floods = (0..FLOOD).map(|flood| {
        let (limiter, logins, is_over) = (limiter.clone(), logins.clone(), is_over.clone());
        tokio::spawn(async move {
            for number in 0_u64.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let made_up = format!("{flood}-{number}");
                limiter.try_acquire(one(&logins, made_up)).await;
            }
        })
    });
    let floods: Vec<_> = floods.collect();
    let refusals = || seen[0].load(Ordering::Relaxed);
    // A breaker that counts refusals opens after five in a row, at most one in each half of the timeout.
    let mut first = None;
    until("nothing but refusals came for a while", async || {
        yield_now().await;
        let first = (refusals() > 0).then(|| *first.get_or_insert_with(Instant::now));
        first.is_some_and(|first| first.elapsed() > 4 * TIMEOUT)
    })
    .await;
    let before = server.connections_made();
    let (start, mut passed, mut asked) = (Instant::now(), 0, 0);
    while start.elapsed() < 2 * SOON {
        for user in 0..USERS {
            passed += u64::from(limiter.try_acquire(one(&logins, user)).await);
            asked += 1;
        }
    }
    is_over.store(true, Ordering::Relaxed);
    for flood in floods {
        flood.await.unwrap();
    }
    let made = (server.connections_made() - before, start.elapsed());
    assert!(refusals() > asked, "{}", refusals());
    assert!(passed * 100 <= asked, "{passed} of {asked} have passed");
    let opened = seen[1].load(Ordering::Relaxed);
    assert_eq!(opened, 0, "the breaker has opened");
    made
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_made_up_users_fill_the_server_users_at_their_limits_stay_denied() {
    let server = Server::start();
    let room = server.info("memory", "used_memory") + (300 << 10);
    let begin = format!("CONFIG SET maxmemory {room}");
    let (connections, _) = users_at_their_limits_stay_denied(&server, &begin).await;
    assert_eq!(connections, 0);
}

/// The address may lead to another server, but no denial waits for a connection after each refusal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_server_lacks_replicas_users_at_their_limits_stay_denied() {
    let server = Server::start();
    let begin = "CONFIG SET min-replicas-to-write 1";
    let (connections, time) = users_at_their_limits_stay_denied(&server, begin).await;
    let most = time.as_millis() / 250 + 8;
    assert!(u128::from(connections) <= most, "{connections} in {time:?}");
}
