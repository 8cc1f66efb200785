//! One empty script for each request, which no limit through Redis can undercut.

use axum::{
    Router,
    extract::{Request, State},
    middleware::{self, Next},
    response::Response,
};
use redis::{Client, Cmd, aio::MultiplexedConnection};

use crate::Result;

pub(crate) async fn limit(app: Router, url: &str) -> Result<Router> {
    let mut connection = Client::open(url)?
        .get_multiplexed_async_connection()
        .await?;
    let sha: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg("return 0")
        .query_async(&mut connection)
        .await?;
    let mut empty = redis::cmd("EVALSHA");
    empty.arg(sha).arg(0);
    let empty: &'static Cmd = Box::leak(Box::new(empty));
    Ok(app.route_layer(middleware::from_fn_with_state((connection, empty), ask)))
}

async fn ask(
    State((mut connection, empty)): State<(MultiplexedConnection, &'static Cmd)>,
    request: Request,
    next: Next,
) -> Response {
    let reply: i64 = empty.query_async(&mut connection).await.unwrap();
    assert_eq!(reply, 0);
    next.run(request).await
}
