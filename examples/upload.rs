//! The bandwidth of uploads: 64 kB at once, and then 50 000 bytes a second, over all uploads of an address together.
//!
//!     cargo run --example upload --features axum
//!
//! The handler reads as fast as the limit admits. TCP slows the client down, so that nothing is denied:
//!
//!     curl -i localhost:3000/upload -H expect: --data-binary @Cargo.lock    # 200, bytes
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum futures tokio -F tokio/full
//!     cargo add --path ../sluicegate -F axum

use std::{
    env,
    error::Error,
    net::SocketAddr,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, State},
    http::StatusCode,
    routing::post,
};
use futures::StreamExt;
use sluicegate::{Charge, Limiter, MemoryStore, PeerIp, Policy};
use tokio::net::TcpListener;

/// The most bytes of one charge: no more than the bucket holds. Smaller pieces flow more evenly, and ask the store more
/// often.
const PIECE: usize = 65_536;

/// The longest wait for a piece. With 50 000 bytes a second, about 23 uploads of an address can go on at a time.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct Uploads {
    limiter: Limiter,
    bandwidth: Policy,
}

async fn upload(
    State(uploads): State<Uploads>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    body: Body,
) -> Result<String, StatusCode> {
    let (start, mut received) = (Instant::now(), 0);
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| StatusCode::BAD_REQUEST)?;
        for piece in chunk.chunks(PIECE) {
            let (key, bytes) = (PeerIp.key(peer.ip()), piece.len());
            let charge = Charge::new(&uploads.bandwidth, key, bytes as u64);
            match uploads.limiter.acquire([charge], PATIENCE).await {
                Ok(decision) if decision.is_allowed() => received += bytes,
                Ok(_) => return Err(StatusCode::TOO_MANY_REQUESTS),
                Err(_) => return Err(StatusCode::SERVICE_UNAVAILABLE),
            }
        }
    }
    let seconds = start.elapsed().as_secs_f32();
    Ok(format!("{received} bytes in {seconds:.1} s\n"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let bandwidth = Policy::parse("bandwidth", "65536+50000/1s@bucket")?.unit("bytes".parse()?);
    let uploads = Uploads {
        limiter: Limiter::new(MemoryStore::new()),
        bandwidth,
    };
    let app = Router::new()
        .route("/upload", post(upload))
        .with_state(uploads);

    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
