//! `RedisStore::ping`: each primary decides, or the error says what is missing.

use std::{error::Error, future::poll_fn, pin::pin, task::Poll};

use support::sentinel::{NAME, Parrot};

use crate::prelude::*;

#[tokio::test]
async fn a_ping_decides_at_each_primary_or_says_what_is_missing() {
    let server = Server::start();
    let store = connect(&server).await;
    assert!(store.ping().await.unwrap() < SOON);
    assert_eq!(server.calls("evalsha"), 1);
    server.run::<()>("CONFIG SET maxmemory 1");
    assert_eq!(store.ping().await.unwrap_err().code(), Some("OOM"));
    let user = limited(&server, &["~sluicegate:*"]);
    let error = RedisStore::connect(user)
        .await
        .unwrap()
        .ping()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::AccessDenied);
    assert!(
        error
            .source()
            .unwrap()
            .to_string()
            .contains("right `+evalsha`")
    );
    let absent = RedisStore::connect_lazy("redis://127.0.0.1:1").unwrap();
    assert_eq!(kind(absent.ping().await), Some(StoreErrorKind::Unavailable));
    let parrot = Parrot::start(server.address());
    server.run::<()>("CONFIG SET maxmemory 0");
    let store = RedisStore::sentinel([parrot.url()], NAME).await.unwrap();
    store.ping().await.unwrap();
    server.stop();
    let late = in_time(2 * SOON, store.ping()).await;
    assert_eq!(kind(late), Some(StoreErrorKind::Timeout));
    server.cont();

    let cluster = Cluster::start(Duration::from_secs(60));
    let store = RedisStore::cluster(cluster.urls()).await.unwrap();
    store.ping().await.unwrap();
    for primary in &cluster.nodes[..3] {
        assert_eq!(primary.calls("evalsha"), 1);
        assert_eq!(primary.run::<u64>("DBSIZE"), 1);
    }
    cluster.nodes[1].run::<()>("CONFIG SET maxmemory 1");
    assert_eq!(store.ping().await.unwrap_err().code(), Some("OOM"));
}

/// A cluster of two nodes. The second serves one hash slot, for which a name is found late.
fn two_nodes() -> [Server; 2] {
    let nodes = [(); 2].map(|()| Server::node(|| Server::with(&["--cluster-enabled", "yes"])));
    share_out(&[&nodes[0], &nodes[1]], |slot| usize::from(slot == 9));
    nodes
}

#[tokio::test]
async fn a_ping_whose_key_has_moved_to_another_primary_is_an_error() {
    let nodes = two_nodes();
    let store = RedisStore::cluster([nodes[0].url()]).await.unwrap();
    let first: String = nodes[0].run("CLUSTER MYID");
    let (mut ping, mut polls) = (pin!(store.ping()), 0);
    // By then it knows both primaries, and searches for the name.
    let searches = poll_fn(|context| {
        polls += 1;
        assert!(ping.as_mut().poll(context).is_pending());
        if polls < 100 {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    });
    searches.await;
    for node in &nodes {
        node.run::<()>(&format!("CLUSTER SETSLOT 9 NODE {first}"));
    }
    let error = ping.await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused);
    assert!(error.to_string().contains("was not asked"), "{error}");
}

#[tokio::test]
async fn a_ping_that_searches_long_for_a_key_lets_other_tasks_run() {
    let nodes = two_nodes();
    let store = RedisStore::cluster([nodes[0].url()]).await.unwrap();
    let (mut ping, mut polls) = (pin!(store.ping()), 0);
    let pinged = poll_fn(|context| {
        polls += 1;
        ping.as_mut().poll(context)
    });
    assert!(pinged.await.unwrap() < SOON);
    assert!(polls > 200, "{polls} polls for 68 138 names");
}
