//! A store uses TLS with a server that it can trust, and explains clearly why it does not trust another.

use redis::Client;
use support::tls::{Authority, TlsServer};

use crate::prelude::*;

async fn check(store: &RedisStore) -> Result<(), StoreError> {
    let limiter = Limiter::new(store.clone()).timeout(SOON);
    limiter.check(one(&api("1000/1d"), "alice")).await.map(drop)
}

/// A server with a certificate for this host, which an authority has signed.
fn trusted(host: &str) -> (Authority, TlsServer) {
    let authority = Authority::new();
    let tls = TlsServer::start(&authority, &authority.identity(&[host]), false);
    (authority, tls)
}

/// The message of `connect`, which must come in time. A check of a lazily connected store gives the same message.
async fn refusal(client: Client) -> String {
    let connects = RedisStore::connect(client.get_connection_info().clone());
    let error = in_time(2 * SOON, connects).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::AccessDenied, "{error}");

    let late = check(&RedisStore::from(client)).await.unwrap_err();
    assert_eq!(late.to_string(), error.to_string());
    error.to_string()
}

#[tokio::test]
async fn a_private_authority_is_trusted_over_every_kind_of_connection() {
    let (authority, mut tls) = trusted("127.0.0.1");
    let client = tls.client(authority.certificates(None));
    let info = client.get_connection_info().clone();

    let stores = [
        RedisStore::from(client.clone()),
        RedisStore::connect(info.clone()).await.unwrap(),
        pool(info, |it| it.test_on_check_out(false)).await.into(),
    ];
    for store in &stores {
        check(store).await.unwrap();
    }
    tls.server.kill();
    for store in &stores {
        assert!(check(store).await.is_err());
    }
    tls.server.restart();
    for store in &stores {
        let is_back = async || check(store).await.is_ok();
        assert!(until("it is back", is_back).await < 5 * SOON);
    }
}

#[tokio::test]
async fn an_authority_that_is_not_trusted_and_a_certificate_for_another_host_are_refused() {
    let (_, tls) = trusted("127.0.0.1");
    let not_trusted = "the Redis server's certificate is not trusted";
    let other = tls.client(Authority::new().certificates(None));
    assert_eq!(refusal(other).await, not_trusted);
    let system = Client::open(tls.url()).unwrap();
    assert_eq!(refusal(system).await, not_trusted);

    let (authority, tls) = trusted("redis.example");
    let for_another = "the Redis server's certificate is for another host name";
    let client = tls.client(authority.certificates(None));
    assert_eq!(refusal(client).await, for_another);
}

#[tokio::test]
async fn a_client_certificate_is_shown_to_a_server_that_asks_for_one() {
    let authority = Authority::new();
    let tls = TlsServer::start(&authority, &authority.identity(&["127.0.0.1"]), true);
    let own = authority.identity(&["limiter"]);
    let client = tls.client(authority.certificates(Some(&own)));
    check(&RedisStore::from(client)).await.unwrap();

    let none = tls.client(authority.certificates(None));
    assert!(refusal(none).await.contains("client certificate"));
    let foreign = Authority::new().identity(&["limiter"]);
    let foreign = tls.client(authority.certificates(Some(&foreign)));
    assert!(refusal(foreign).await.contains("client certificate"));
}

#[tokio::test]
async fn sentinels_and_their_primary_are_trusted_or_refused_each_by_its_certificate() {
    let (authority, tls) = trusted("127.0.0.1");
    let (_sentinel, url) = tls.sentinel();
    let info = |url: &str, authority: &Authority| {
        let client = Client::build_with_tls(url, authority.certificates(None)).unwrap();
        client.get_connection_info().clone()
    };
    // A busy machine may need several attempts, since each ends after half a second.
    let connected = async |sentinels: &Authority, to: &Authority| {
        for _ in 0..20 {
            let primary = info("rediss://mymaster", to);
            match RedisStore::sentinel([info(&url, sentinels)], primary).await {
                Err(error) if error.kind() == StoreErrorKind::Timeout => {}
                answer => return answer,
            }
        }
        panic!("nobody answers for ten seconds");
    };

    let store = connected(&authority, &authority).await;
    check(&store.unwrap()).await.unwrap();

    let other = Authority::new();
    for (sentinels, to) in [(&other, &authority), (&authority, &other)] {
        let error = connected(sentinels, to).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::AccessDenied, "{error}");
        assert!(error.to_string().contains("not trusted"), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_speaks_no_tls_is_given_up_in_time() {
    let (_, tls) = trusted("127.0.0.1");
    let plain = tls.server.url().replace("redis://", "rediss://");
    // Redis waits for the end of the bytes, which it takes for a line.
    let refused = in_time(2 * SOON, RedisStore::connect(plain)).await;
    assert_eq!(kind(refused), Some(StoreErrorKind::Timeout));
}
