//! A `RedisStore` over each kind of connection.

use redis::Client;
use sluicegate::RedisStore;

use super::redis::Server;

/// One store for each source of connections, all over one server.
pub async fn all(server: &Server) -> Vec<(&'static str, RedisStore)> {
    vec![
        ("url", RedisStore::connect(server.url()).await.unwrap()),
        (
            "client",
            RedisStore::from(Client::open(server.url()).unwrap()),
        ),
        ("pool", pool(server).await),
    ]
}

/// A store over a pool of four open connections.
pub async fn pool(server: &Server) -> RedisStore {
    let manager = bb8_redis::RedisConnectionManager::new(server.url()).unwrap();
    let pool = bb8::Pool::builder().max_size(4).min_idle(4);
    pool.build(manager).await.unwrap().into()
}
