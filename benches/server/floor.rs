//! The lower bound for a server that calls Redis: the only limit of this example is one empty script for each request.

use axum::{
    extract::{Request, State},
    middleware::{self, Next},
    response::Response,
};
use redis::{
    AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, Value, aio::MultiplexedConnection,
};

use super::app;

/// The variable that turns the bench's own program into this server, and names its Redis.
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
    let limit = middleware::from_fn_with_state((connection, empty), ask);
    let app = app::app(|routes, metering| routes.merge(metering).route_layer(limit));
    app::serve(([127, 0, 0, 1], 0).into(), app).await.unwrap();
}

/// Connects like the store of the crate.
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

async fn ask(
    State((mut connection, empty)): State<(MultiplexedConnection, &'static Cmd)>,
    request: Request,
    next: Next,
) -> Response {
    let reply = connection.send_packed_command(empty).await.unwrap();
    assert_eq!(reply, Value::Int(0));
    next.run(request).await
}
