//! `RedisStore::ping`: each primary decides, or the error says what is missing.

use std::{error::Error, future::poll_fn, pin::pin};

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
    let begin = Instant::now();
    assert_eq!(kind(store.ping().await), Some(StoreErrorKind::Timeout));
    assert!(begin.elapsed() < 2 * SOON, "{:?}", begin.elapsed());
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

/// The URL of a cluster of two nodes. The first serves all hash slots but one, for which a name is found late. Both pass commands on to this server,
/// or the second redirects them to the first.
async fn two_nodes(server: &Server, redirects: bool) -> String {
    let (ports, address) = (Arc::<Mutex<Vec<u16>>>::default(), server.address());
    let node = async |number| {
        let ports = Arc::clone(&ports);
        let serve = move |client| {
            serve_node(
                client,
                address,
                Arc::clone(&ports),
                redirects && number == 1,
            )
        };
        listen(serve).await
    };
    let urls = [node(0).await, node(1).await];
    let port = |url: &String| url.rsplit(':').next().unwrap().parse().unwrap();
    *ports.lock().unwrap() = urls.iter().map(port).collect();
    urls[0].clone()
}

async fn serve_node(
    mut client: TcpStream,
    server: SocketAddr,
    ports: Arc<Mutex<Vec<u16>>>,
    redirects: bool,
) {
    let mut server = TcpStream::connect(server).await.unwrap();
    let (mut sent, mut replied) = (vec![0; 65_536], vec![0; 65_536]);
    let ports = ports.lock().unwrap().clone();
    let node = |port| format!("*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n");
    let range = |first, last, port| format!("*3\r\n:{first}\r\n:{last}\r\n{}", node(port));
    let topology = [
        "*3\r\n".to_owned(),
        range(0, 8, ports[0]),
        range(9, 9, ports[1]),
        range(10, 16_383, ports[0]),
    ]
    .concat();
    let redirect = format!("-MOVED 9 127.0.0.1:{}\r\n", ports[0]);
    loop {
        tokio::select! {
            Ok(length @ 1..) = client.read(&mut sent) => {
                let has = |word: &str| sent[..length].windows(word.len()).any(|it| it == word.as_bytes());
                let done = match () {
                    () if has("SLOTS\r\n") => client.write_all(topology.as_bytes()).await,
                    () if redirects && has("EVALSHA\r\n") => client.write_all(redirect.as_bytes()).await,
                    () => server.write_all(&sent[..length]).await,
                };
                done.unwrap();
            }
            Ok(length @ 1..) = server.read(&mut replied) => {
                client.write_all(&replied[..length]).await.unwrap();
            }
            else => return,
        }
    }
}

#[tokio::test]
async fn a_ping_whose_key_has_moved_to_another_primary_is_an_error() {
    let server = Server::start();
    let store = RedisStore::cluster([two_nodes(&server, true).await]).await;
    let error = store.unwrap().ping().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused);
    assert!(error.to_string().contains("was not asked"), "{error}");
}

#[tokio::test]
async fn a_ping_that_searches_long_for_a_key_lets_other_tasks_run() {
    let server = Server::start();
    let store = RedisStore::cluster([two_nodes(&server, false).await])
        .await
        .unwrap();
    let (mut ping, mut polls) = (pin!(store.ping()), 0);
    let pinged = poll_fn(|context| {
        polls += 1;
        ping.as_mut().poll(context)
    });
    assert!(pinged.await.unwrap() < SOON);
    assert!(polls > 200, "{polls} polls for 68 138 names");
}
