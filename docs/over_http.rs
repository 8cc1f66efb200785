// Included, hidden, by the examples of the documentation: it serves their services on a loopback port and sends their
// requests over connections, so that an example cannot depend on what only a call in the process has.

use std::{error::Error, fmt, io, marker::PhantomData, net::SocketAddr, pin::Pin, task};

use http::{HeaderValue, Request, Response, header, uri::PathAndQuery};
use http_body_util::BodyExt;
use hyper::{
    body::{Body, Incoming},
    client, server,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tower::{Service, ServiceExt};

type BoxError = Box<dyn Error + Send + Sync>;
type Outcome = Result<(), Box<dyn Error>>;

/// Runs an example over HTTP/1.1, and from its beginning over HTTP/2.
pub fn run(example: impl AsyncFn(Http) -> Outcome) {
    run_over(&[Http::One, Http::Two], example);
}

/// Runs an example, with a client of its own, over these versions.
pub fn run_over(versions: &[Http], example: impl AsyncFn(Http) -> Outcome) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for http in versions {
        runtime
            .block_on(example(*http))
            .unwrap_or_else(|error| panic!("over {http:?}: {error}"));
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Http {
    One,
    Two,
}

impl Http {
    /// Serves until the runtime ends. The answer sends a request over a connection of its own.
    pub fn serve<S, Q, R>(self, service: S) -> Client<Q, R>
    where
        S: Service<Request<Q>, Response = Response<R>, Error: fmt::Debug, Future: Send>
            + Clone
            + Send
            + 'static,
        Q: From<String> + Send + 'static,
        R: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        tokio::spawn(async move {
            while let Ok((connection, peer)) = listener.accept().await {
                tokio::spawn(answer(self, connection, peer, service.clone()));
            }
        });
        Client {
            address,
            http: self,
            bodies: PhantomData,
        }
    }
}

async fn answer<S, Q, R>(http: Http, connection: TcpStream, peer: SocketAddr, service: S)
where
    S: Service<Request<Q>, Response = Response<R>, Error: fmt::Debug, Future: Send>
        + Clone
        + Send
        + 'static,
    Q: From<String> + Send + 'static,
    R: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    let io = TokioIo::new(connection);
    let service = service_fn(move |request: Request<Incoming>| {
        let service = service.clone();
        async move {
            let (mut head, body) = request.into_parts();
            head.extensions.insert(peer);
            #[cfg(feature = "axum")]
            head.extensions.insert(axum::extract::ConnectInfo(peer));
            let body = text(body).await?;
            service
                .oneshot(Request::from_parts(head, body.into())).await.map_err(|error| io::Error::other(format!("{error:?}")))
        }
    });
    // A client that leaves is no failure of the example.
    let _ = match http {
        Http::One => {
            server::conn::http1::Builder::new()
                .serve_connection(io, service)
                .await
        }
        Http::Two => {
            server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(io, service)
                .await
        }
    };
}

#[derive(Debug)]
pub struct Client<Q, R> {
    address: SocketAddr,
    http: Http,
    bodies: PhantomData<fn(Q) -> R>,
}

impl<Q, R> Client<Q, R> {
    /// For a client of another kind.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

impl<Q, R> Clone for Client<Q, R> {
    fn clone(&self) -> Self {
        Self {
            address: self.address,
            http: self.http,
            bodies: PhantomData,
        }
    }
}

impl<Q, R> Service<Request<Q>> for Client<Q, R>
where
    Q: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
    R: From<String>,
{
    type Response = Response<R>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Response<R>>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
        task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (address, http) = (self.address, self.http);
        Box::pin(async move {
            let io = TokioIo::new(TcpStream::connect(address).await?);
            let response = match http {
                Http::One => {
                    let (mut sender, connection) = client::conn::http1::handshake(io).await.map_err(io::Error::other)?;
                    tokio::spawn(connection);
                    sender.send_request(origin_form(request, address)?).await.map_err(io::Error::other)?
                }
                Http::Two => {
                    let (mut sender, connection) =
                        client::conn::http2::handshake(TokioExecutor::new(), io).await.map_err(io::Error::other)?;
                    tokio::spawn(connection);
                    sender
                        .send_request(absolute_form(request, address)?).await.map_err(io::Error::other)?
                }
            };
            let (head, body) = response.into_parts();
            let body = text(body).await?;
            Ok(Response::from_parts(head, body.into()))
        })
    }
}

async fn text(body: Incoming) -> io::Result<String> {
    let body = body.collect().await.map_err(io::Error::other)?;
    String::from_utf8(body.to_bytes().into()).map_err(io::Error::other)
}

/// As clients send it over HTTP/1.1: a path, and the authority in `Host`.
fn origin_form<Q>(mut request: Request<Q>, address: SocketAddr) -> io::Result<Request<Q>> {
    let authority = request
        .uri()
        .authority()
        .map_or(address.to_string(), ToString::to_string);
    if !request.headers().contains_key(header::HOST) {
        request
            .headers_mut()
            .insert(header::HOST, HeaderValue::from_str(&authority).map_err(io::Error::other)?);
    }
    *request.uri_mut() = request
        .uri()
        .path_and_query()
        .map_or("/", PathAndQuery::as_str)
        .parse().map_err(io::Error::other)?;
    Ok(request)
}

/// As clients send it over HTTP/2: with `:scheme` and `:authority`.
fn absolute_form<Q>(mut request: Request<Q>, address: SocketAddr) -> io::Result<Request<Q>> {
    if request.uri().authority().is_none() {
        let path = request
            .uri()
            .path_and_query()
            .map_or("/", PathAndQuery::as_str);
        *request.uri_mut() = format!("http://{address}{path}").parse().map_err(io::Error::other)?;
    }
    Ok(request)
}
