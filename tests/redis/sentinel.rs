//! Requests end in time whatever happens to a primary with sentinels, and the new primary decides them at once.

use support::sentinel::{Group, NAME, Parrot, Sentinel, ask};
use tokio::task::block_in_place;

use crate::{
    load::{Load, is_outage},
    prelude::*,
};

fn plenty() -> Policy {
    api("1000000/1d")
}

async fn store(group: &Group) -> RedisStore {
    RedisStore::sentinel(group.urls(), NAME).await.unwrap()
}

async fn works(store: &RedisStore) -> bool {
    let limiter = Limiter::new(store.clone()).timeout(Duration::from_millis(300));
    limiter.check(one(&plenty(), "alice")).await.is_ok()
}

fn traffic(store: &RedisStore) -> Load {
    let users = [1, 2, 3, 4].map(|it| format!("bob-{it}"));
    Load::start(&Limiter::new(store.clone()), [&plenty()], &users)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_on_request() {
    let group = Group::start(&[]);
    let store = store(&group).await;
    for _ in 0..2 {
        let traffic = traffic(&store);
        block_in_place(|| group.fail_over());
        traffic.recovers().await;
        block_in_place(|| group.settle());
        traffic.end().await;
        assert!(works(&store).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_killed_or_hangs_and_comes_back_empty_or_as_a_replica() {
    for is_killed in [true, false] {
        let mut group = Group::start(&[]);
        let store = store(&group).await;
        let traffic = traffic(&store);
        let old = group.primary();
        match is_killed {
            true => group.servers[old].kill(),
            false => group.servers[old].stop(),
        }
        block_in_place(|| group.promoted(old));
        traffic.recovers().await;

        match is_killed {
            true => group.servers[old].restart(),
            false => group.servers[old].cont(),
        }
        block_in_place(|| group.settle());
        traffic.recovers().await;
        traffic.end().await;
    }
}

/// Charges one key without a break. The remaining units in each answer show the charges that a new primary lacks.
struct Count {
    limiter: Limiter,
    policy: Policy,
    left: u64,
    admitted: u64,
    lost: u64,
}

impl Count {
    fn new(store: &RedisStore, policy: Policy) -> Self {
        Self {
            limiter: Limiter::new(store.clone()),
            left: policy.rules()[0].limit(),
            policy,
            admitted: 0,
            lost: 0,
        }
    }

    /// Whether the charge was admitted; `None` if there was no decision.
    async fn charge(&mut self) -> Option<bool> {
        let decision = self.limiter.check(one(&self.policy, "carol")).await.ok()?;
        let left = remaining(decision.usage());
        let admitted = decision.is_allowed();
        let before = left + u64::from(admitted);
        self.lost += before.saturating_sub(self.left);
        self.admitted += u64::from(admitted);
        self.left = left;
        Some(admitted)
    }

    async fn charge_often(&mut self, times: u64) {
        for _ in 0..times {
            self.charge().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_primary_had_not_replicated_is_admitted_again_and_no_more() {
    let mut group = Group::start(&[]);
    let store = store(&group).await;
    let mut count = Count::new(&store, api("3000/1d"));
    count.charge_often(500).await;
    let old = group.primary();
    group.servers[old].run::<()>("SET written last");
    assert_eq!(group.servers[old].run::<u32>("WAIT 2 10000"), 2);

    let replicated = count.admitted;
    count.charge_often(1_000).await;
    let not_for_sure = count.admitted - replicated;
    group.servers[old].kill();
    block_in_place(|| group.promoted(old));
    let start = Instant::now();
    while count.charge().await.is_none() {
        assert!(start.elapsed() < 30 * SOON, "no charge is decided");
    }
    assert!(
        count.lost <= not_for_sure,
        "{} of {not_for_sure}",
        count.lost
    );
    for charge in 0.. {
        assert!(charge < 10_000, "more than the limit and all lost units");
        if count.charge().await == Some(false) {
            break;
        }
    }
    let (admitted, lost) = (count.admitted, count.lost);
    assert!(admitted <= 3_000 + lost, "{admitted}, {lost} of them lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_only_we_still_reach_is_left_when_another_is_named() {
    let group = Group::start(&[]);
    for server in &group.servers {
        server.run::<()>("ACL SETUSER limiter on nopass ~* +@all");
    }
    let url = format!("redis://limiter:any@{NAME}");
    let store = RedisStore::sentinel(group.urls(), url).await.unwrap();
    let old = group.primary();
    let mut count = Count::new(&store, plenty());
    count.charge_often(100).await;
    // The server now refuses the default user, as which the sentinels and replicas log in.
    let socket = group.servers[old].socket_url() + "?user=limiter&pass=any";
    ask::<()>(&socket, "ACL SETUSER default off").unwrap();
    ask::<()>(&socket, "CLIENT KILL TYPE replica").unwrap();
    ask::<()>(&socket, "CLIENT KILL USER default").unwrap();

    let promoted = async {
        let start = Instant::now();
        while group.primary() == old {
            assert!(start.elapsed() < 30 * SOON, "no other is promoted");
            sleep(Duration::from_millis(5)).await;
        }
        Instant::now()
    };
    tokio::pin!(promoted);
    let at = loop {
        tokio::select! {
            biased;
            promoted = &mut promoted => break promoted,
            admitted = count.charge() => assert_eq!(admitted, Some(true)),
        }
    };
    while count.lost == 0 {
        count.charge().await;
        assert!(at.elapsed() < 4 * SOON);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_without_replicas_stops_when_told_to_need_one() {
    let needs_one = [
        "--min-replicas-to-write",
        "1",
        "--min-replicas-max-lag",
        "1",
    ];
    let group = Group::start(&needs_one);
    let store = store(&group).await;
    let primary = group.primary();
    for (index, server) in group.servers.iter().enumerate() {
        if index != primary {
            server.stop();
        }
    }
    let limiter = Limiter::new(store.clone());
    let mut refused = None;
    let is_refused = async || {
        refused = kind(limiter.check(one(&plenty(), "dave")).await);
        refused.is_some()
    };
    assert!(until("it stops", is_refused).await < 5 * SOON);
    assert_eq!(refused, Some(StoreErrorKind::Refused));
    group.servers.iter().for_each(Server::cont);
    until("it works again", async || works(&store).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_hang_or_are_gone_do_not_matter_while_one_answers() {
    let group = Group::start(&[]);
    group.sentinels[..2].iter().for_each(Sentinel::stop);
    let nobody = "redis://127.0.0.1:1".to_owned();
    let urls = [vec![nobody], group.urls()].concat();
    let store = in_time(SOON, RedisStore::sentinel(urls, NAME)).await;
    assert!(works(&store.unwrap()).await);
    group.sentinels[..2].iter().for_each(Sentinel::cont);
}

#[tokio::test]
async fn what_the_sentinels_cannot_tell_is_said_clearly() {
    let server = Server::start();
    let nobody = RedisStore::sentinel(["redis://127.0.0.1:1"], NAME).await;
    assert_eq!(kind(nobody), Some(StoreErrorKind::Unavailable));

    let no_sentinel = RedisStore::sentinel([server.url()], NAME).await;
    let parrot = Parrot::start(server.address());
    let unknown = RedisStore::sentinel([parrot.url()], "another").await;
    for error in [no_sentinel, unknown] {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::AccessDenied);
        assert!(error.to_string().contains("Sentinel"), "{error}");
    }
    for senseless in [
        RedisStore::connect_lazy_sentinel([""; 0], NAME),
        RedisStore::connect_lazy_sentinel(["nonsense"], NAME),
        RedisStore::connect_lazy_sentinel([parrot.url()], ""),
        RedisStore::connect_lazy_sentinel([parrot.url()], "http://mymaster"),
    ] {
        assert_eq!(kind(senseless), Some(StoreErrorKind::AccessDenied));
    }
}

/// The rights in the documentation of `store::redis`.
#[tokio::test]
async fn the_least_rights_are_enough_behind_sentinels() {
    let server = Server::start();
    let sentinel = Sentinel::watch(server.address(), "");
    sentinel
        .ask::<()>("ACL SETUSER limiter reset on >sesame +sentinel|get-master-addr-by-name")
        .unwrap();
    let limited = |url: &str| url.replace("//", "//limiter:sesame@");
    let sentinels = || [limited(&sentinel.url())];
    let rights = LEAST_RIGHTS.join(" ");
    let primary = format!("redis://limiter:sesame@{NAME}");
    for (role, is_enough) in [("", false), (" +role", true)] {
        server.run::<()>(&format!(
            "ACL SETUSER limiter reset on >sesame {rights}{role}"
        ));
        let store = RedisStore::sentinel(sentinels(), primary.as_str()).await;
        match is_enough {
            true => assert!(works(&store.unwrap()).await),
            false => assert_eq!(kind(store), Some(StoreErrorKind::AccessDenied)),
        }
    }
}

#[tokio::test]
async fn a_sentinel_that_still_names_the_old_primary_is_asked_again_and_not_in_a_storm() {
    let server = Server::start();
    let parrot = Parrot::start(server.address());
    let store = RedisStore::sentinel([parrot.url()], NAME).await.unwrap();
    assert!(works(&store).await);
    server.run::<()>("REPLICAOF 127.0.0.1 1");
    let before = server.connections_made();
    let start = Instant::now();
    while start.elapsed() < SOON {
        let limiter = Limiter::new(store.clone());
        let error = limiter.check(one(&plenty(), "erin")).await.unwrap_err();
        assert!(is_outage(error.kind()), "{error}");
    }
    let connections = server.connections_made() - before;
    assert!(connections <= 250, "{connections} connections in a second");
    server.run::<()>("REPLICAOF NO ONE");
    assert!(works(&store).await);
}

#[tokio::test]
async fn a_replica_that_a_sentinel_names_is_passed_over() {
    let replica = Server::with(&["--replicaof", "127.0.0.1", "1"]);
    let parrots = [replica, Server::start()].map(|it| (Parrot::start(it.address()), it));
    for _ in 0..20 {
        let urls = parrots.each_ref().map(|(parrot, _)| parrot.url());
        let store = RedisStore::sentinel(urls, NAME).await.unwrap();
        assert!(works(&store).await);
    }
}

#[tokio::test]
async fn most_sentinels_are_believed_whoever_answers_first() {
    let (old, new) = (Server::start(), Server::start());
    let stale = Parrot::start(old.address());
    let right = [Parrot::start(new.address()), Parrot::start(new.address())];
    let urls = [stale.url(), right[0].url(), right[1].url()];
    for _ in 0..20 {
        let store = RedisStore::sentinel(urls.clone(), NAME).await.unwrap();
        assert!(works(&store).await);
    }
    assert_eq!(old.calls("evalsha"), 0);
    assert_eq!(new.calls("evalsha"), 20);
}
