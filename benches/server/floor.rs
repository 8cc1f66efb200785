//! The least that a server limited through Redis can do: one empty script for each request, and nothing else.

use axum::{Router, extract::State, routing::get, serve::ListenerExt};
use redis::{
    AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, Value, aio::MultiplexedConnection,
};
use tokio::net::TcpListener;

/// The variable that makes the bench's own program this server, and names its Redis.
pub(crate) const REDIS: &str = "SLUICEGATE_BENCH_FLOOR";

#[tokio::main]
pub(crate) async fn serve(url: &str) {
    let mut connection = connect(url).await;
    let mut load = redis::cmd("SCRIPT");
    let sha: String = load
        .arg("LOAD")
        .arg("return 0")
        .query_async(&mut connection)
        .await
        .unwrap();
    let mut empty = redis::cmd("EVALSHA");
    empty.arg(sha).arg(0);
    let empty: &'static Cmd = Box::leak(Box::new(empty));
    let app = Router::new()
        .route("/", get(answer))
        .with_state((connection, empty));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("listening on http://{}", listener.local_addr().unwrap());
    let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
    axum::serve(listener, app).await.unwrap();
}

/// As the store of the crate connects.
async fn connect(url: &str) -> MultiplexedConnection {
    let info = url.into_connection_info().unwrap();
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1_024);
    Client::open(info.set_tcp_settings(tcp))
        .unwrap()
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap()
}

async fn answer(
    State((mut connection, empty)): State<(MultiplexedConnection, &'static Cmd)>,
) -> &'static str {
    let reply = connection.send_packed_command(empty).await.unwrap();
    assert_eq!(reply, Value::Int(0));
    "ok\n"
}
