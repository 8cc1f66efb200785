//! A `RedisStore` over each kind of connection.

use bb8_redis::RedisConnectionManager;
use redis::{Client, IntoConnectionInfo};
use sluicegate::RedisStore;

use super::redis::Server;

/// One store for each source of connections, all over one server.
pub async fn all(server: &Server) -> Vec<(&'static str, RedisStore)> {
    let client = Client::open(server.url()).unwrap();
    let pool = pool(server.url(), |it| it.max_size(4).min_idle(4)).await;
    vec![
        ("url", RedisStore::connect(server.url()).await.unwrap()),
        ("client", client.into()),
        ("pool", pool.into()),
    ]
}

pub type Pool = bb8::Pool<RedisConnectionManager>;

type Builder = bb8::Builder<RedisConnectionManager>;

pub async fn pool(server: impl IntoConnectionInfo, with: impl FnOnce(Builder) -> Builder) -> Pool {
    let manager = RedisConnectionManager::new(server).unwrap();
    let pool = with(bb8::Pool::builder()).build(manager).await;
    pool.unwrap()
}
