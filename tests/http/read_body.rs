//! Bodies that are read once, outside of the limits that depend on them.

use bytes::Bytes;
use http::header;
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::{client::conn::http2, server::conn::http1};
use serde::Deserialize;
use sluicegate::middleware::{BodyError, OpenAiJson, ParsedBody, ReadBodyLayer, StatusOnly};
use std::pin::pin;
use tokio::time::advance;
use tower::{BoxError, util::BoxCloneService};
use tower_http::limit::RequestBodyLimitLayer;

use crate::prelude::*;

#[derive(Deserialize)]
struct Chat {
    max_tokens: u64,
}

/// A hundred tokens for everybody, and bodies of at most 64 bytes.
struct Served {
    limiter: Limiter,
    tokens: Policy,
    router: Router,
}

fn served() -> Served {
    let limiter = support::limiter(MemoryStore::new());
    let tokens = policy("tokens", "100/1h");
    let charged = support::layer(limiter.clone())
        .limit(tokens.clone(), everybody())
        .cost(|head, _| ParsedBody::<Chat>::of(head).map_or(1, |chat| chat.max_tokens));
    let router = Router::new()
        .route("/", post(async |body: Bytes| body).get(async || "got"))
        .layer(charged)
        .layer(ReadBodyLayer::json::<Chat>(64));
    Served {
        limiter,
        tokens,
        router,
    }
}

impl Served {
    async fn left(&self) -> u64 {
        left_of(&self.limiter, &self.tokens, &everybody()).await
    }

    /// Sends these bytes over a connection, and reads until its end. Asserts how the answer begins.
    async fn raw(&self, request: impl AsRef<[u8]>, begins: &str) -> String {
        let mut client = connect(self.router.clone()).await;
        client.write_all(request.as_ref()).await.unwrap();
        client.shutdown().await.unwrap();
        let answer = rest(&mut client).await;
        assert!(answer.starts_with(begins), "{answer}");
        answer
    }
}

/// A connection to a server.
async fn connect(router: Router) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, router).await });
    TcpStream::connect(address).await.unwrap()
}

async fn body_of<B>(response: Response<B>) -> Bytes
where
    B: http_body::Body<Error: std::fmt::Debug>,
{
    response.into_body().collect().await.unwrap().to_bytes()
}

async fn rest(client: &mut TcpStream) -> String {
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    answer
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const CHAT: &str = r#"{"max_tokens":30}"#;

fn with_length(headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
}

/// The end of the body, which is not sent.
const UNSENT: usize = 9;

async fn send_half(client: &mut TcpStream, request: &str) {
    let half = &request.as_bytes()[..request.len() - UNSENT];
    client.write_all(half).await.unwrap();
}

fn chunked(chunks: &[&str]) -> String {
    let mut text =
        "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_owned();
    for chunk in chunks {
        text += &format!("{:x}\r\n{chunk}\r\n", chunk.len());
    }
    text + "0\r\n\r\n"
}

#[tokio::test]
async fn the_cost_stands_in_the_body_which_the_handler_gets_unchanged() {
    let served = served();
    let parts = [&CHAT[..5], &CHAT[5..9], &CHAT[9..]];
    for (request, left) in [(with_length("", CHAT), 70), (chunked(&parts), 40)] {
        let answer = served.raw(request, "HTTP/1.1 200 OK\r\n").await;
        assert!(answer.contains(CHAT), "{answer}");
        assert_eq!(served.left().await, left);
    }
    let more = with_length("", r#"{"max_tokens":41}"#);
    served.raw(more, "HTTP/1.1 429 ").await;
}

#[tokio::test]
async fn a_body_that_cannot_be_used_is_refused_and_nothing_is_charged() {
    let served = served();
    let long = "x".repeat(65);
    let half = with_length("", CHAT).replace("content-length: 17", "content-length: 18");
    let coded = with_length("content-encoding: gzip\r\n", CHAT);
    let cut = with_length("", "{\n\"max_tokens\"");
    let secret = with_length("", r#"{"max_tokens":"a secret"}"#);
    for (request, status, detail) in [
        (with_length("", &long), 413, "more than 64 bytes"),
        (chunked(&["x", &long[..64]]), 413, "more than 64 bytes"),
        (cut, 400, "not JSON, at line 2, column 12"),
        (secret, 400, "not as expected, at line 1, column 24"),
        (half, 400, "The body broke off."),
        (coded, 415, "no content coding"),
    ] {
        let begins = format!("HTTP/1.1 {status} ");
        let answer = served.raw(&request, &begins).await;
        for said in ["content-type: application/problem+json\r\n", detail] {
            assert!(answer.contains(said), "{answer}");
        }
        assert!(!answer.contains("secret"), "{answer}");
        let identity = answer.contains("accept-encoding: identity\r\n");
        assert_eq!(identity, status == 415);
        assert_eq!(served.left().await, 100);
    }
}

/// The answer of a router to a body, as text.
async fn answer<M>(reader: ReadBodyLayer<Chat, M>, request: Request<Body>) -> (Response<()>, String)
where
    M: MakeRejection<Body> + Send + Sync + 'static,
{
    let router = Router::new().fallback(async || "hello").layer(reader);
    let (head, body) = router.oneshot(request).await.unwrap().into_parts();
    let body = body_of(Response::new(body)).await;
    let text = String::from_utf8(body.to_vec()).unwrap();
    (Response::from_parts(head, ()), text)
}

#[tokio::test]
async fn the_answers_to_bodies_have_the_form_of_those_of_the_limit() {
    let reader = || ReadBodyLayer::json::<Chat>(64);
    let post = |body: &str| {
        Request::post("/")
            .body(Body::from(body.to_owned()))
            .unwrap()
    };
    let (head, text) = answer(reader().rejection(OpenAiJson), post("?")).await;
    let error: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(head.status(), 400);
    assert_eq!(error["error"]["type"], "invalid_request_error");
    assert_eq!(
        error["error"]["message"],
        "The body is not JSON, at line 1, column 1."
    );
    assert_eq!(head.headers()["cache-control"], "no-store");

    let (head, text) = answer(reader().rejection(StatusOnly), post(&"x".repeat(65))).await;
    assert_eq!((head.status().as_u16(), &*text), (413, ""));

    let own = |rejection: &Rejection, head: &Parts| format!("{} {rejection}", head.uri.path());
    let (head, text) = answer(reader().reject_with(own), post("{}")).await;
    assert_eq!(head.status(), 400, "not the 200 of a text");
    assert_eq!(
        text,
        "/ The body is JSON, but not as expected, at line 1, column 2."
    );
    let reason = head.extensions().get::<Rejection>();
    assert!(matches!(reason, Some(Rejection::Unread(_))), "{reason:?}");

    let mut call = post("?");
    call.headers_mut()
        .insert("content-type", HeaderValue::from_static("application/grpc"));
    let (head, text) = answer(reader(), call).await;
    assert_eq!((head.status().as_u16(), &*text), (200, ""));
    assert_eq!(head.headers()["grpc-status"], "3");
    assert_eq!(
        head.headers()["grpc-message"],
        "The body is not JSON, at line 1, column 1."
    );
}

#[tokio::test]
async fn a_client_that_asks_before_it_sends_is_asked_to_go_on_only_if_the_body_is_read() {
    let served = served();
    let expect = |length: usize, body: &str| {
        format!(
            "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nexpect: 100-continue\r\n\
             content-length: {length}\r\n\r\n{body}"
        )
    };
    let begins = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ";
    served.raw(expect(CHAT.len(), CHAT), begins).await;
    served.raw(expect(65, ""), "HTTP/1.1 413 ").await;
    assert_eq!(served.left().await, 70);
}

#[tokio::test]
async fn a_request_without_a_body_or_of_no_interest_passes_unread() {
    let served = served();
    let get = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    served.raw(get, "HTTP/1.1 200 ").await;
    served.raw(chunked(&[]), "HTTP/1.1 200 ").await;
    assert_eq!(served.left().await, 98);
}

async fn http_2(stream: TcpStream) -> http2::SendRequest<Body> {
    let executor = TokioExecutor::new();
    let connected = http2::handshake(executor, TokioIo::new(stream)).await;
    let (sender, connection) = connected.unwrap();
    tokio::spawn(connection);
    sender
}

fn post_to(body: impl Into<Body>) -> Request<Body> {
    Request::post("http://a/").body(body.into()).unwrap()
}

#[tokio::test]
async fn over_http_2_trailers_are_dropped() {
    let seen = async |request: Request<Body>| {
        let (head, body) = request.into_parts();
        let tokens = ParsedBody::<Chat>::of(&head).map(|chat| chat.max_tokens);
        let has_trailers = body.collect().await.unwrap().trailers().is_some();
        format!("{tokens:?} {has_trailers}")
    };
    let app = Router::new()
        .route("/", post(seen))
        .layer(ReadBodyLayer::json::<Chat>(64));
    let mut sender = http_2(connect(app).await).await;
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "1".parse().unwrap());
    let frames = [Frame::data(Bytes::from(CHAT)), Frame::trailers(trailers)];
    let frames = stream::iter(frames.map(Ok::<_, Infallible>));
    let body = Body::new(StreamBody::new(frames));
    let response = sender.send_request(post_to(body)).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(body_of(response).await, "Some(30) false");
}

#[tokio::test]
async fn over_http_2_a_body_that_is_too_large_is_refused_and_the_connection_goes_on() {
    let served = served();
    let mut sender = http_2(connect(served.router.clone()).await).await;
    let long = || Bytes::from(vec![b'x'; 65]);
    let unstated = Body::from_stream(stream::iter([Ok::<_, Infallible>(long())]));
    for too_large in [Body::from(long()), unstated] {
        let response = sender.send_request(post_to(too_large)).await.unwrap();
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(served.left().await, 100);
    }
    let response = sender.send_request(post_to(CHAT)).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(served.left().await, 70);
}

#[tokio::test]
async fn a_client_that_goes_away_half_way_is_not_charged() {
    let mut served = served();
    let (ended, mut ends) = mpsc::unbounded_channel();
    let note_end = move |request, next: Next| {
        let ended = ended.clone();
        let ended = OnDrop(Box::new(move || ended.send(()).unwrap_or_default()));
        async move {
            let response = next.run(request).await;
            drop(ended);
            response
        }
    };
    served.router = served.router.layer(from_fn(note_end));

    for request in [
        with_length("expect: 100-continue\r\n", CHAT),
        chunked(&[CHAT]).replace("host: a", "host: a\r\nexpect: 100-continue"),
    ] {
        let mut client = connect(served.router.clone()).await;
        send_half(&mut client, &request).await;
        client.read_u8().await.unwrap(); // the server reads the body
        drop(client);
        ends.recv().await.unwrap();
        assert_eq!(served.left().await, 100);
    }

    let mut sender = http_2(connect(served.router.clone()).await).await;
    let half = [Ok(Bytes::from(&CHAT[UNSENT..])), Err("it goes away")];
    let half = Body::from_stream(stream::iter(half));
    let _ = sender.send_request(post_to(half)).await;
    ends.recv().await.unwrap();
    assert_eq!(served.left().await, 100);
}

/// As the documentation of the layer shows it.
#[tokio::test]
async fn a_plain_hyper_server_reads_bodies_of_which_a_slow_one_holds_no_place_inside() {
    let one_at_a_time = || ServiceBuilder::new().concurrency_limit(1).service_fn(echo);
    let buffered = ServiceBuilder::new().buffer(1).service(one_at_a_time());
    let limited = one_at_a_time().map_err(BoxError::from);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let buffered = BoxCloneService::new(buffered);
    for inner in [buffered, BoxCloneService::new(limited)] {
        let service = ServiceBuilder::new()
            .map_request(|request: Request<Incoming>| request.map(Body::new))
            .layer(ReadBodyLayer::json::<Chat>(64))
            .service(inner);
        let serve_next = async || {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            let stream = TokioIo::new(stream);
            tokio::spawn(http1::Builder::new().serve_connection(stream, service));
        };
        let mut slow = TcpStream::connect(address).await.unwrap();
        serve_next().await;
        let request = with_length("expect: 100-continue\r\n", CHAT);
        send_half(&mut slow, &request).await;
        slow.read_u8().await.unwrap(); // the server reads the body
        for (request, expected) in [
            (with_length("", CHAT), CHAT),
            (chunked(&[&CHAT[..5], &CHAT[5..]]), CHAT),
            (with_length("", "{"), "not JSON, at line 1, column 1"),
        ] {
            let mut client = TcpStream::connect(address).await.unwrap();
            serve_next().await;
            client.write_all(request.as_bytes()).await.unwrap();
            let answer = rest(&mut client).await;
            assert!(answer.contains(expected), "{answer}");
        }
        let end = &CHAT.as_bytes()[CHAT.len() - UNSENT..];
        slow.write_all(end).await.unwrap();
        let answer = rest(&mut slow).await;
        assert!(answer.ends_with(CHAT), "{answer}");
    }
}

#[tokio::test]
async fn uploads_of_another_content_type_pass_unread() {
    let is_json = |head: &Parts| head.headers.get(header::CONTENT_TYPE) == Some(&JSON);
    let router = Router::new()
        .route("/", post(async |body: Bytes| body.len().to_string()))
        .layer(ReadBodyLayer::json::<Chat>(64).only(is_json));
    let served = Served { router, ..served() };
    let long = "x".repeat(99);
    let refused = r#""status":413,"detail":"The body has more than 64 bytes."}"#;
    for (kind, end) in [("image/png", "99"), ("application/json", refused)] {
        let upload = with_length(&format!("content-type: {kind}\r\n"), &long);
        let answer = served.raw(upload, "HTTP/1.1 ").await;
        assert!(answer.ends_with(end), "{answer}");
    }
}

#[tokio::test]
async fn a_body_without_end_takes_no_more_memory_than_it_may_have_bytes() {
    const FRAMES: usize = 1_100;
    let frame = Bytes::from(vec![b'x'; 1_000]);
    let most = FRAMES * frame.len();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let frames = stream::repeat_with(move || {
        count.fetch_add(1, SeqCst);
        Ok::<_, Infallible>(frame.clone())
    });
    let request = post_to(Body::from_stream(frames));
    let service = ReadBodyLayer::json::<Chat>(most).layer(service_fn(echo));
    let mut response = None;
    let counted = allocation_counter::measure(|| {
        response = service.oneshot(request).now_or_never();
    });
    let status = response.unwrap().unwrap().status();
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(asked.load(SeqCst), FRAMES + 1);
    // They are moved as they become more.
    let peak = counted.bytes_max;
    assert!(peak < 2 * most as u64, "{peak} bytes, for {most}");
}

/// A request with a body that holds a clone of this and never ends.
fn stuck(alive: &Arc<()>) -> Request<Body> {
    let alive = Arc::clone(alive);
    let frames = stream::pending::<Result<Bytes, Infallible>>();
    let frames = frames.inspect(move |_| drop(alive.clone()));
    post_to(Body::from_stream(frames))
}

#[tokio::test(start_paused = true)]
async fn a_slow_body_is_refused_after_its_time_and_one_that_is_given_up_is_dropped() {
    let (served, alive) = (served(), Arc::new(()));
    let mut asked = pin!(served.router.clone().oneshot(stuck(&alive)));
    assert!((&mut asked).now_or_never().is_none());
    advance(Duration::from_secs(9)).await;
    assert!((&mut asked).now_or_never().is_none());
    advance(Duration::from_secs(1)).await;
    let response = asked.await.unwrap();
    assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
    assert_eq!(response.headers()[header::CONNECTION], "close");

    {
        let mut left = pin!(served.router.clone().oneshot(stuck(&alive)));
        assert!((&mut left).now_or_never().is_none());
        assert_eq!(Arc::strong_count(&alive), 2);
    }
    assert_eq!(Arc::strong_count(&alive), 1);
    assert_eq!(served.left().await, 100);
}

async fn echo(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    sleep(Duration::from_millis(1)).await;
    Ok(Response::new(request.into_body()))
}

#[tokio::test]
async fn a_length_in_the_head_is_enough_to_refuse_a_body_that_a_layer_has_wrapped() {
    let served = served();
    let mut request = stuck(&Arc::new(()));
    let headers = request.headers_mut();
    headers.insert(header::CONTENT_LENGTH, 65.into());
    let response = served.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
}

/// The layer outside answers by itself only if the head states the length.
#[tokio::test]
async fn a_body_that_a_layer_outside_cuts_off_is_too_large() {
    let mut served = served();
    served.router = served.router.layer(RequestBodyLimitLayer::new(20));
    served.raw(chunked(&[CHAT]), "HTTP/1.1 200 ").await;
    let long = "x".repeat(30);
    let refused = served.raw(chunked(&[&long, &long]), "HTTP/1.1 413 ").await;
    let is_expected = refused.contains("The body has too many bytes.");
    assert!(is_expected, "{refused}");
    assert_eq!(served.left().await, 70);
}

#[tokio::test]
async fn a_body_is_refused_in_the_words_of_the_function() {
    let read = ReadBodyLayer::new(64, |_: &Parts, _: &Bytes| {
        Err::<(), _>(BodyError::new("The \"method\" is missing."))
    });
    let inner =
        service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let response = read.layer(inner).oneshot(Request::new(Body::from("{}")));
    let body = body_of(response.await.unwrap()).await;
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(problem["detail"], "The \"method\" is missing.");
    assert_eq!(problem["title"], "Bad Request");
}
