//! A client that stays within the limits of another service, and obeys the service when it changes its mind.
//!
//! A server takes five requests in any second. Two clients, which share a store as replicas do, know that, and have
//! fourteen requests to make, all at once: this takes about two seconds, and the server refuses none. Then the server
//! takes three requests a second, without notice. It refuses the fourth with a `Retry-After`, which pauses the account:
//! all requests of both clients wait, and also the retries, so that they do not storm.
//!
//!     cargo run --example outbound --features obey
//!     # 200 OK after 0.
//!     # 200 OK after 1.
//!     # 200 OK after 2.
//!     # as they said: served 14, refused 0
//!     # with less than they said: served 14, refused
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add futures http http-body-util
//!     cargo add hyper tokio tower -F hyper/http1,hyper/server,tokio/full,tower/retry,tower/util
//!     cargo add hyper-util -F client-legacy,http1,tokio
//!     cargo add --path ../sluicegate -F obey

use std::{
    convert::Infallible,
    error::Error,
    future::{Ready, ready},
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures::future::try_join_all;
use http::{Request, Response, StatusCode, header::RETRY_AFTER};
use http_body_util::{BodyExt, Empty};
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
};
use sluicegate::{
    FailurePolicy, Key, Limiter, MemoryStore, Policy, RateLimitLayer,
    middleware::{HeaderStyle, ObeyLayer, Rejection, StatusOnly},
};
use tokio::net::TcpListener;
use tower::{ServiceBuilder, ServiceExt, retry};

const SECOND: Duration = Duration::from_secs(1);

/// Serves a number of requests in any second, and refuses the others.
struct Server {
    takes: AtomicUsize,
    taken: Mutex<Vec<Instant>>,
    refused: AtomicUsize,
}

impl Server {
    fn answer(&self) -> Response<Empty<Bytes>> {
        let mut response = Response::new(Empty::new());
        let now = Instant::now();
        let takes = self.takes.load(SeqCst);
        let is_taken = self.taken.lock().is_ok_and(|mut taken| {
            let recent = taken.iter().filter(|at| now - **at < SECOND).count();
            if recent < takes {
                taken.push(now);
            }
            recent < takes
        });
        if !is_taken {
            self.refused.fetch_add(1, SeqCst);
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            response.headers_mut().insert(RETRY_AFTER, 1.into());
        }
        response
    }
}

/// Tries a request again that the other service has refused. It need not wait: the layer within does.
#[derive(Clone)]
struct Again {
    tries_left: u32,
}

impl<B, E> retry::Policy<Request<Empty<Bytes>>, Response<B>, E> for Again {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        _: &mut Request<Empty<Bytes>>,
        result: &mut Result<Response<B>, E>,
    ) -> Option<Ready<()>> {
        let response = result.as_ref().ok()?;
        // A 429 with a `Rejection` is ours: waiting would have taken too long.
        let is_refused = response.status() == StatusCode::TOO_MANY_REQUESTS
            && response.extensions().get::<Rejection>().is_none();
        self.tries_left = self.tries_left.checked_sub(u32::from(is_refused))?;
        is_refused.then(|| ready(()))
    }

    fn clone_request(&mut self, request: &Request<Empty<Bytes>>) -> Option<Request<Empty<Bytes>>> {
        Some(request.clone())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (address, server) = serve().await?;
    let store = Arc::new(MemoryStore::new());
    let account = Key::new("account", "ours");
    // A tenth longer than the server's window: one request may be quicker on its way than another.
    let theirs = Policy::parse("their-api", "5/1100ms")?;
    let at_once = Policy::parse("at-once", "4/30s@concurrent")?;
    let replica = || {
        let limiter = Limiter::new(store.clone()).on_failure(FailurePolicy::Closed);
        let waiting = RateLimitLayer::new(limiter.clone())
            .limit(theirs.clone(), account.clone())
            .limit_concurrent(at_once.clone(), account.clone())
            .max_wait(Duration::from_secs(30))
            .headers(HeaderStyle::NONE)
            .rejection(StatusOnly);
        ServiceBuilder::new()
            .layer(retry::RetryLayer::new(Again { tries_left: 20 }))
            .layer(waiting)
            .layer(ObeyLayer::new(limiter, account.clone()))
            // The layers can make an empty body of this type, but no `Incoming`.
            .map_response(|response: Response<Incoming>| response.map(BodyExt::boxed))
            .service(Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>())
    };
    let replicas = [replica(), replica()];
    for (takes, said) in [(5, "as they said"), (3, "with less than they said")] {
        server.takes.store(takes, SeqCst);
        let (start, refused) = (Instant::now(), server.refused.load(SeqCst));
        try_join_all((0..14).map(|number| {
            let client = replicas[number % 2].clone();
            async move {
                let request = Request::get(format!("http://{address}/")).body(Empty::new())?;
                let response = client.oneshot(request).await?;
                let (status, seconds) = (response.status(), start.elapsed().as_secs_f32());
                println!("request {number:2}: {status} after {seconds:.1} s");
                match status {
                    StatusCode::OK => Ok(()),
                    _ => Err(Box::<dyn Error>::from("a request was not served")),
                }
            }
        }))
        .await?;
        let refused = server.refused.load(SeqCst) - refused;
        println!("{said}: served 14, refused {refused}");
        // None during a pause. After a pause, five leave as they said, and two of these are refused.
        let seconds = usize::try_from(start.elapsed().as_secs())? + 1;
        if refused > (5 - takes) * seconds {
            return Err("their answers were not obeyed".into());
        }
    }
    Ok(())
}

async fn serve() -> Result<(SocketAddr, Arc<Server>), Box<dyn Error>> {
    let server = Arc::new(Server {
        takes: AtomicUsize::new(0),
        taken: Mutex::default(),
        refused: AtomicUsize::new(0),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (address, serving) = (listener.local_addr()?, server.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let server = serving.clone();
            let service = service_fn(move |_| ready(Ok::<_, Infallible>(server.answer())));
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection);
        }
    });
    Ok((address, server))
}
