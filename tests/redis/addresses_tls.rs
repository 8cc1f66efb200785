//! Nodes and primaries that are named by address: the names of their certificates, and how they are reached.

use redis::Client;
use sluicegate::RedisServer;
use support::{
    sentinel::{NAME, Parrot},
    tls::{Authority, TlsServer},
};

use crate::prelude::*;

/// This URL, with the authority of the servers.
fn by(authority: &Authority, url: &str) -> RedisServer {
    let client = Client::build_with_tls(url, authority.certificates(None)).unwrap();
    client.get_connection_info().clone().into()
}

/// A cluster of two nodes that name each other by address, with certificates of these names.
fn named(names: [&str; 2]) -> (Authority, [TlsServer; 2]) {
    let authority = Authority::new();
    let identities = names.map(|name| authority.identity(&[name]));
    let nodes = TlsServer::cluster(&authority, identities.each_ref());
    (authority, nodes)
}

/// Whether both nodes decide, also when they redirect the store.
async fn decides(store: Result<RedisStore, StoreError>) -> Result<(), StoreError> {
    let store = store?;
    store.ping().await?;
    let limiter = patient(store);
    for name in 0..8 {
        limiter.check(one(&api("9/1d"), name)).await?;
    }
    Ok(())
}

/// The error says that a certificate has another name.
fn is_of_another(result: Result<(), StoreError>) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::AccessDenied, "{error}");
    assert!(
        error.to_string().contains("for another host name"),
        "{error}"
    );
}

#[tokio::test]
async fn a_certificate_has_the_name_that_a_node_gives_beside_its_address() {
    let (authority, nodes) = named(["a.example", "b.example"]);
    let seed = by(&authority, &nodes[0].url()).tls_host("a.example");
    let lazy = RedisStore::connect_lazy_cluster([seed.clone()]);
    is_of_another(decides(lazy).await);
    if nodes[0].server.version() < 7 {
        return not_tried("before Redis 7, nodes give no name");
    }
    for (node, name) in nodes.iter().zip(["a.example", "b.example"]) {
        let is_kept = "CONFIG SET cluster-allow-replica-migration no"; // a primary without slots stays one
        node.server.run::<()>(is_kept);
        node.server
            .run::<()>(&format!("CONFIG SET cluster-announce-hostname {name}"));
    }
    wait("each knows the other\u{2019}s name", || {
        let slots =
            |node: &TlsServer| format!("{:?}", node.server.run::<redis::Value>("CLUSTER SLOTS"));
        nodes
            .iter()
            .all(|node| slots(node).contains("a.example") && slots(node).contains("b.example"))
    });
    decides(RedisStore::cluster([seed.clone()]).await)
        .await
        .unwrap();

    // A node that a redirect names first is known by its name too.
    give(&nodes, 8_192..16_384, 0);
    let limiter = patient(RedisStore::cluster([seed]).await.unwrap());
    for name in 0..8 {
        limiter.check(one(&api("9/1d"), name)).await.unwrap();
    }
    give(&nodes, 8_192..16_384, 1);
    for name in 0..8 {
        limiter.check(one(&api("9/1d"), name)).await.unwrap();
    }
}

/// Empties the nodes, and gives these slots to one of them. What a node has heard before may undo that once.
fn give(nodes: &[TlsServer], slots: std::ops::Range<u32>, to: usize) {
    let id: String = nodes[to].server.run("CLUSTER MYID");
    nodes[to].server.run::<String>("CLUSTER BUMPEPOCH"); // so that both believe this node
    let whole = if to == 0 { 0 } else { slots.start };
    let whole = format!(" {whole}-{}", slots.end - 1);
    wait("both name one owner", || {
        for at in [to, 1 - to] {
            nodes[at].server.run::<()>("FLUSHALL");
            for slot in slots.clone() {
                let command = format!("CLUSTER SETSLOT {slot} NODE {id}");
                nodes[at].server.run::<()>(&command);
            }
        }
        nodes.iter().all(|node| {
            let known = node.server.run::<String>("CLUSTER NODES");
            let owner = known.lines().find(|line| line.starts_with(&id));
            owner.is_some_and(|line| line.ends_with(&whole))
        })
    });
}

#[tokio::test]
async fn a_certificate_has_the_name_that_the_user_sets_or_the_host_that_is_dialled() {
    let (authority, nodes) = named(["cluster.example"; 2]);
    let seed = || by(&authority, &nodes[0].url());
    decides(RedisStore::cluster([seed().tls_host("cluster.example")]).await)
        .await
        .unwrap();
    for wrong in [seed().tls_host("other.example"), seed()] {
        is_of_another(decides(RedisStore::cluster([wrong]).await).await);
    }

    let (authority, nodes) = named(["localhost"; 2]);
    let seed = by(
        &authority,
        &nodes[0].url().replace("127.0.0.1", "localhost"),
    );
    let store = RedisStore::connect_lazy_cluster([seed.clone()]);
    is_of_another(decides(store).await);
    let mapped = seed.map_addresses(|host, port| match host.as_str() {
        "127.0.0.1" => ("localhost".to_owned(), port),
        _ => (host, port),
    });
    decides(RedisStore::cluster([mapped]).await).await.unwrap();
}

#[tokio::test]
async fn a_cluster_is_not_there_before_a_primary_lets_the_store_in() {
    let (authority, nodes) = named(["localhost"; 2]);
    // Only the seed is dialled by its name.
    let seed = by(
        &authority,
        &nodes[0].url().replace("127.0.0.1", "localhost"),
    );
    is_of_another(RedisStore::cluster([seed]).await.map(drop));
}

#[tokio::test]
async fn the_primary_of_sentinels_has_the_name_that_the_user_sets_and_is_dialled_where_the_map_says()
 {
    let authority = Authority::new();
    let identity = authority.identity(&["primary.example"]);
    let tls = TlsServer::start(&authority, &identity, false);
    let primary = by(&authority, &format!("rediss://{NAME}"));
    let parrot = Parrot::start(tls.address());
    let without = RedisStore::sentinel([parrot.url()], primary.clone()).await;
    is_of_another(without.map(drop));
    let primary = primary.tls_host("primary.example");
    let store = RedisStore::sentinel([parrot.url()], primary.clone()).await;
    store.unwrap().ping().await.unwrap();

    let elsewhere = Parrot::start(([127, 0, 0, 1], 1).into());
    let port = tls.address().port();
    let mapped =
        primary.map_addresses(move |host, named| (host, if named == 1 { port } else { named }));
    let store = RedisStore::sentinel([elsewhere.url()], mapped).await;
    store.unwrap().ping().await.unwrap();
}
