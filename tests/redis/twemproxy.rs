//! Proves that a store through twemproxy, in front of two servers, works as over one server.

use redis::{Client, IntoConnectionInfo, RedisConnectionInfo};
use support::{sharing::shared, twemproxy::Twemproxy};

use crate::prelude::*;

mod contract {
    support::contracts!(super::together: contract contributors denials blocks);
}

/// The prefix is the hash tag, so all keys of a store are on one server, and one call may charge any of them.
const BY_PREFIX: &str = "<>";

/// The proxy spreads identities over the servers, with all keys of an identity on one.
const BY_IDENTITY: &str = "{}";

/// A store over the proxy of all tests that run now and change nothing there.
async fn together() -> (Served<Arc<Twemproxy>>, ManualClock) {
    static RUNNING: Mutex<Weak<Twemproxy>> = Mutex::new(Weak::new());
    let proxy = shared(&RUNNING, || Twemproxy::start(BY_PREFIX));
    let (store, clock) = fresh(&proxy).await;
    (Served::by(proxy, store), clock)
}

async fn fresh(proxy: &Twemproxy) -> (RedisStore, ManualClock) {
    static STORES: AtomicU32 = AtomicU32::new(0);
    let clock = ManualClock::new(0);
    let store = RedisStore::connect(proxy.url()).await.unwrap();
    let prefix = format!("<store-{}>", STORES.fetch_add(1, Ordering::Relaxed));
    (store.prefix(&prefix).clock(clock.clone()), clock)
}

/// Connects to a proxy that spreads identities, so that no call may have several.
async fn connect(url: String) -> Result<Limiter, StoreError> {
    let store = RedisStore::connect(url).await?.in_flight(0);
    Ok(patient(store))
}

async fn spread() -> (Twemproxy, Limiter) {
    let proxy = Twemproxy::start(BY_IDENTITY);
    let limiter = connect(proxy.url()).await.unwrap();
    (proxy, limiter)
}

fn charges(name: u32) -> [Charge; 3] {
    ["a", "b", "c"].map(|it| charge(&policy(it, "5/1h,9/1d"), name, 1))
}

/// Charges every user once, all at the same time. Returns the errors.
async fn charge_all(limiter: &Limiter) -> Vec<StoreErrorKind> {
    let decisions = (0..32).map(|user| limiter.check(charges(user)));
    let decisions = join_all(decisions).await.into_iter();
    let errors = decisions.filter_map(|decision| match decision {
        Ok(decision) => {
            assert!(decision.is_allowed());
            None
        }
        Err(error) => Some(error.kind()),
    });
    errors.collect()
}

#[tokio::test]
async fn the_store_agrees_with_the_vectors() {
    let proxy = Twemproxy::start(BY_PREFIX);
    replay_all(async || fresh(&proxy).await).await;
}

#[tokio::test]
async fn identities_are_spread_and_exactly_the_limit_of_each_is_admitted() {
    let (proxy, limiter) = spread().await;
    for user in 0..32 {
        let checks = (0..20).map(|_| limiter.check(charges(user)));
        let admitted = join_all(checks).await.into_iter();
        let admitted = admitted.filter(|decision| decision.as_ref().unwrap().is_allowed());
        assert_eq!(admitted.count(), 5);
    }
    let keys = proxy.servers.each_ref().map(|it| it.run::<u64>("DBSIZE"));
    assert_eq!(keys.iter().sum::<u64>(), 3 * 32);
    assert!(keys.iter().all(|keys| *keys > 0 && keys % 3 == 0));
}

#[tokio::test]
async fn every_kind_of_connection_works() {
    let proxy = Twemproxy::start(BY_IDENTITY);
    let quiet = RedisConnectionInfo::default().set_skip_set_lib_name();
    let info = proxy.url().into_connection_info().unwrap();
    let info = info.set_redis_settings(quiet);
    let pool = pool(info, |it| it.max_size(2)).await;
    for store in [
        RedisStore::connect_lazy(proxy.url()).unwrap(),
        RedisStore::from(Client::open(proxy.url()).unwrap()),
        RedisStore::from(pool),
    ] {
        assert_eq!(charge_all(&patient(store.in_flight(0))).await, []);
    }
}

#[tokio::test]
async fn a_server_that_forgets_the_script_is_told_it_again() {
    let (proxy, limiter) = spread().await;
    assert_eq!(charge_all(&limiter).await, []);
    for server in &proxy.servers {
        let taught = server.calls("eval");
        server.run::<()>("SCRIPT FLUSH");
        assert_eq!(charge_all(&limiter).await, []);
        assert!(server.calls("eval") > taught);
    }
}

#[tokio::test]
async fn while_one_server_is_away_the_other_decides() {
    let (mut proxy, limiter) = spread().await;
    let limiter = limiter.probe_interval(Duration::ZERO);
    assert_eq!(charge_all(&limiter).await, []);
    let at_second = usize::try_from(proxy.servers[1].run::<u64>("DBSIZE") / 3).unwrap();
    type Act = fn(&mut Server);
    let acts: [[Act; 2]; 2] = [
        [|it| it.stop(), |it| it.cont()],
        [Server::kill, Server::restart],
    ];
    for [goes, comes] in acts {
        goes(&mut proxy.servers[1]);
        let errors = charge_all(&limiter).await;
        assert_eq!(errors, vec![StoreErrorKind::Unavailable; at_second]);
        comes(&mut proxy.servers[1]);
        assert_eq!(charge_all(&limiter).await, []);
    }
}

#[tokio::test]
async fn a_password_is_the_proxys_own() {
    let locked = || Server::with(&["--requirepass", "sesame"]);
    let proxy = Twemproxy::with(BY_IDENTITY, "redis_auth: sesame", [locked(), locked()]);
    for wrong in ["", "?pass=mellon"] {
        let refused = connect(proxy.url() + wrong).await;
        assert_eq!(kind(refused), Some(StoreErrorKind::AccessDenied));
    }
    let limiter = connect(proxy.url() + "?pass=sesame").await.unwrap();
    assert_eq!(charge_all(&limiter).await, []);
}

/// Their strikes are counted in one call, and each belongs to the server of its identity.
#[tokio::test]
async fn identities_on_two_servers_are_banned_where_they_are_checked() {
    let (_proxy, limiter) = spread().await;
    let policy = policy("login", "1/1h").ban("2/1h=1h".parse().unwrap());
    for expected in [false, false, true] {
        let decisions = (0..32).map(|user| limiter.check([charge(&policy, user, 2)]));
        for decision in join_all(decisions).await {
            assert_eq!(is_blocked(&decision.unwrap()), expected);
        }
        limiter.strikes_counted().await;
    }
    for name in 0..32 {
        limiter.unblock(&user(name)).await.unwrap();
        let decision = limiter.check([charge(&policy, name, 2)]).await;
        assert!(matches!(decision.unwrap(), Decision::Denied(_)));
    }
}
