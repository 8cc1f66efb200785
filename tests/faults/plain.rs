//! Single answers: each request ends within the timeout, according to the failure policy, and the store recovers
//! without help.

use std::time::Instant;

use sluicegate::error::StoreErrorKind::{
    self, AccessDenied, Protocol, Refused, Timeout, Unavailable,
};
use support::{prelude::*, redis::Server, stores};

/// Far longer than the timeout of 100 ms on a busy machine, and shorter than any wait of a library.
const SOON: Duration = Duration::from_secs(1);

const PLENTY: u64 = 1_000_000;

fn charge(user: &str, limit: u64) -> [Charge; 1] {
    let policy = Policy::parse("api", &format!("{limit}/1d")).unwrap();
    [Charge::new(&policy, Key::new("user", user), 1)]
}

async fn works(store: &RedisStore) -> bool {
    // A busy machine may take longer than the default timeout, and libraries wait even longer before they try again.
    let limiter = Limiter::new(store.clone()).timeout(Duration::from_millis(300));
    let decision = limiter.check(charge("alice", PLENTY)).await;
    decision.is_ok_and(|decision| decision.is_allowed())
}

/// Makes checks that must fail, under both failure policies. Returns the kind of the error.
async fn fails(store: &RedisStore) -> StoreErrorKind {
    fails_within(store, Duration::from_millis(100)).await
}

/// The same with another timeout. An answer of the server that a busy machine delays is no other error.
async fn fails_within(store: &RedisStore, timeout: Duration) -> StoreErrorKind {
    let open = Limiter::new(store.clone()).timeout(timeout);
    let closed = open.clone().on_failure(FailurePolicy::Closed);
    let start = Instant::now();
    assert!(open.try_acquire(charge("alice", PLENTY)).await);
    assert!(!closed.try_acquire(charge("alice", PLENTY)).await);
    let error = open.check(charge("alice", PLENTY)).await.unwrap_err();
    assert!(start.elapsed() < 3 * SOON, "{:?}", start.elapsed());

    let shown = format!("{error} {error:?}");
    for secret in ["alice", "sesame", "127.0.0.1"] {
        assert!(!shown.contains(secret), "{shown}");
    }
    error.kind()
}

/// Waits until the store has recovered without help.
async fn recovers(store: &RedisStore) {
    let start = Instant::now();
    while !works(store).await {
        assert!(start.elapsed() < 5 * SOON);
    }
}

/// Does this to a server: a word of ours, or commands of the server.
fn act(server: &mut Server, what: &str) {
    match what {
        "" => {}
        "kill" => server.kill(),
        "restart" => server.restart(),
        "stop" => server.stop(),
        "go on" => server.cont(),
        "keep busy" => drop(server.keep_busy()),
        commands => commands.split(" ; ").for_each(|it| server.run(it)),
    }
}

/// Each fault begins and ends so, and checks meanwhile fail as one of these kinds. After some, the next check works.
#[tokio::test]
async fn each_fault_is_an_error_in_time_and_over_without_help() {
    let another_type = &format!("DEL {COUNTS} ; LPUSH {COUNTS} 1");
    let deleted = &format!("DEL {COUNTS}");
    let min_replicas = |number| format!("CONFIG SET min-replicas-to-write {number}");
    let (lacks, needs_none) = (&min_replicas(1), &min_replicas(0));
    let (full, empty) = ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0");
    let (replica, primary) = ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE");
    for (begin, end, kinds, works_at_once) in [
        ("kill", "restart", &[Unavailable, Timeout][..], true),
        ("stop", "go on", &[Timeout], false),
        ("CLIENT PAUSE 1000 ALL", "", &[Timeout], false),
        (full, empty, &[Refused], true),
        ("keep busy", "SCRIPT KILL", &[Refused, Timeout], false),
        (replica, primary, &[Refused], true),
        (lacks, needs_none, &[Refused], true),
        (another_type, deleted, &[Protocol], true),
    ] {
        let mut server = Server::with(&["--lua-time-limit", "10"]);
        for (name, store) in stores::all(&server).await {
            assert!(works(&store).await, "{begin}: {name}");
            act(&mut server, begin);
            for _ in 0..if begin == "stop" { 3 } else { 1 } {
                let is_answered = !kinds.contains(&Timeout);
                let timeout = [Duration::from_millis(100), 10 * SOON][usize::from(is_answered)];
                let kind = fails_within(&store, timeout).await;
                assert!(kinds.contains(&kind), "{begin}: {name}: {kind:?}");
            }
            act(&mut server, end);
            match works_at_once {
                true => assert!(works(&store).await, "{begin}: {name}"),
                false => recovers(&store).await,
            }
        }
    }
}

const COUNTS: &str = "sluicegate:{user=alice}:api~1";

#[tokio::test]
async fn a_replica_says_so_and_goes_on_where_its_primary_was_when_it_is_promoted() {
    let primary = Server::start();
    let replica = Server::start();
    replica.follow(&primary);
    let store = RedisStore::connect(primary.url()).await.unwrap();
    assert!(works(&store).await);
    primary.run::<()>("SET written last");
    assert_eq!(primary.run::<u32>("WAIT 1 10000"), 1);

    for (name, store) in stores::all(&replica).await {
        assert_eq!(fails(&store).await, Refused, "{name}");
        let error = Limiter::new(store).check(charge("alice", PLENTY)).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains("read-only replica"), "{name}: {error}");
    }
    let store = RedisStore::connect(replica.url()).await.unwrap();
    replica.run::<()>("REPLICAOF NO ONE");
    let usage = Limiter::new(store).peek(charge("alice", PLENTY)).await;
    let remaining = usage.unwrap().rules().next().unwrap().remaining();
    assert_eq!(remaining, PLENTY - 1);
}

/// Until the server lets the user do so, and over a pool as well.
#[tokio::test]
async fn a_wrong_password_and_missing_rights_are_denied_access() {
    let password = |it| format!("CONFIG SET requirepass {it}");
    let user = |it| format!("ACL SETUSER limiter {it}");
    let of_another = user("on >sesame resetkeys ~other:* +@all");
    for (login, begin, end) in [
        (":sesame@", password("mellon"), password("sesame")),
        ("limiter:sesame@", of_another, user("~sluicegate:*")),
    ] {
        let server = Server::start();
        let url = server.url().replace("//", &format!("//{login}"));
        server.run::<()>(&begin);
        let pool = stores::pool(url.as_str(), |it| it).await;
        let stores = [RedisStore::connect_lazy(url).unwrap(), pool.into()];
        for store in &stores {
            assert!(!format!("{store:?}").contains("sesame"));
            assert_eq!(
                fails_within(store, 10 * SOON).await,
                AccessDenied,
                "{login}"
            );
        }
        server.run::<()>(&end);
        for store in &stores {
            assert!(works(store).await, "{login}");
        }
    }
}
