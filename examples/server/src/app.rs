//! The server without its limits.

use std::{convert::Infallible, future::ready, io, net::SocketAddr, time::Duration};

use axum::{
    Extension, Router,
    body::Body,
    extract::{Path, Request},
    http::{HeaderMap, HeaderName, StatusCode, Uri, header},
    response::{Html, IntoResponse, Response},
    routing::get,
    serve::{IncomingStream, ListenerExt},
};
use futures::{StreamExt, stream};
use sluicegate::middleware::{CostMeter, Decisions};
use tokio::{net::TcpListener, signal::unix::SignalKind};
use tower::{Layer, service_fn};

use super::report;

const PAGE: &str = include_str!("page.html");

const LONGEST_WAIT: Duration = Duration::from_secs(3_600);

/// Caches keep the kinds of answers apart.
pub(crate) const VARY: [(HeaderName, &str); 1] = [(header::VARY, "accept")];

/// All routes; `limited` adds limits to some of them, and joins those that do not meter with those that do.
pub(crate) fn app(limited: impl FnOnce(Router, Router) -> Router) -> Router {
    let routes = Router::new()
        .route("/", get(root))
        .route(
            "/cost/{n}",
            get(async |request: Request| match cost(request.uri()) {
                Some(n) => Ok(answer(&request, format!("{n}\n"))),
                None => Err(StatusCode::BAD_REQUEST),
            }),
        )
        .route("/status/{code}", get(status))
        .route("/wait/{ms}", get(wait));
    let metering = Router::new().route("/stream/{n}", get(frames));
    limited(routes, metering)
        .route("/health", get(|| async { "ok\n" }))
        // Builds all services now: a router that was given no state builds its layers again for each request.
        .with_state(())
}

async fn status(Path(code): Path<u16>) -> StatusCode {
    let status = StatusCode::from_u16(code).ok();
    // A 1xx response is not final, and no other would follow.
    status
        .filter(|status| !status.is_informational())
        .unwrap_or(StatusCode::BAD_REQUEST)
}

/// Answers the head at once and the body later: the request keeps its slot until then.
async fn wait(Path(ms): Path<u64>, request: Request) -> Result<Response, StatusCode> {
    let time = Duration::from_millis(ms);
    if time > LONGEST_WAIT {
        return Err(StatusCode::BAD_REQUEST);
    }
    let (head, body) = answer(&request, format!("{ms}\n")).into_parts();
    let later = stream::once(async move {
        tokio::time::sleep(time).await;
        body
    });
    let body = later.flat_map(Body::into_data_stream);
    Ok(Response::from_parts(head, Body::from_stream(body)))
}

/// Sends frames of one unit each. If the client leaves, the rest costs nothing.
async fn frames(Path(n): Path<u64>, request: Request) -> Body {
    let meter = request.extensions().get::<CostMeter>();
    let meter = meter.cloned().unwrap_or_default();
    meter.set(0); // a stream of no frames is free
    Body::from_stream(stream::iter(0..n).map(move |frame| {
        meter.add(1);
        Ok::<_, Infallible>(format!("{frame}\n"))
    }))
}

/// The cost that a path names for its request, if it can be read. The limits and the handler both use this function, on
/// the undecoded path, because they must agree.
pub(crate) fn cost(uri: &Uri) -> Option<u64> {
    match uri.path().strip_prefix("/cost/") {
        Some(n) => n.parse().ok(),
        None => Some(1),
    }
}

async fn root(request: Request) -> Response {
    if wants_page(request.uri(), request.headers()) {
        return page();
    }
    answer(&request, "ok\n".to_owned())
}

fn answer(request: &Request, text: String) -> Response {
    let decisions = request.extensions().get::<Decisions>();
    // The server has one layer, so there is one decision.
    let decision = decisions.and_then(|decisions| decisions.iter().next());
    let answer = if wants_json(request.headers()) {
        report::decision(decision).into_response()
    } else {
        text.into_response()
    };
    (VARY, answer).into_response()
}

/// Sends the page to a browser, also when its request is denied, because the page shows why.
pub(crate) fn page() -> Response {
    (VARY, Html(PAGE)).into_response()
}

/// Whether a browser sent the request, rather than the page's script.
pub(crate) fn wants_page(uri: &Uri, headers: &HeaderMap) -> bool {
    uri.path() == "/" && accepts(headers, "text/html")
}

/// Whether the client asks for the decision as JSON.
pub(crate) fn wants_json(headers: &HeaderMap) -> bool {
    accepts(headers, "application/json")
}

fn accepts(headers: &HeaderMap, first: &str) -> bool {
    let accept = headers.get(header::ACCEPT);
    accept.is_some_and(|value| value.as_bytes().starts_with(first.as_bytes()))
}

pub(crate) async fn serve(listen: SocketAddr, app: Router) -> io::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let listener = listener.tap_io(|stream| {
        // A connection without `TCP_NODELAY` still works.
        let _ = stream.set_nodelay(true);
    });
    // `ForwardedIp` finds the address in the extensions. With the feature `axum`, you can use the router's own
    // `into_make_service_with_connect_info::<SocketAddr>()` instead.
    let make = service_fn(move |stream: IncomingStream<'_, _>| {
        let peer: SocketAddr = *stream.remote_addr();
        ready(Ok::<_, Infallible>(Extension(peer).layer(app.clone())))
    });
    axum::serve(listener, make)
        .with_graceful_shutdown(told_to_stop())
        .await
}

async fn told_to_stop() {
    let terminate = tokio::signal::unix::signal(SignalKind::terminate());
    let interrupt = tokio::signal::unix::signal(SignalKind::interrupt());
    match (terminate, interrupt) {
        (Ok(mut terminate), Ok(mut interrupt)) => tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        },
        _ => std::future::pending().await,
    }
}
