//! A closed loop of connections, each with one request under way: the user of each request is drawn at random.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::{Builder, Runtime},
    task::JoinSet,
};

const USERS: usize = 10_000;
const CONNECTIONS: u64 = 64;

/// What every answer ends with: both servers send the same body.
const END: &[u8] = b"\r\n\r\nok\n";

pub(crate) struct Load {
    runtime: Runtime,
    requests: &'static [Vec<u8>],
    seed: u64,
}

impl Load {
    pub(crate) fn new() -> Self {
        let request =
            |user| format!("GET / HTTP/1.1\r\nhost: bench\r\nx-api-key: user-{user:08}\r\n\r\n");
        let requests: Vec<_> = (0..USERS).map(|user| request(user).into_bytes()).collect();
        Self {
            runtime: Builder::new_current_thread().enable_all().build().unwrap(),
            requests: requests.leak(),
            seed: 1,
        }
    }

    /// Keeps all connections busy for so long.
    pub(crate) fn run(&mut self, server: SocketAddr, time: Duration) -> Round {
        let end = Instant::now() + time;
        let mut connections = JoinSet::new();
        for _ in 0..CONNECTIONS {
            self.seed += 1;
            let connection = keep_busy(server, self.requests, self.seed, end);
            connections.spawn_on(connection, self.runtime.handle());
        }
        let latencies = self.runtime.block_on(connections.join_all());
        Round::new(time, latencies.concat())
    }
}

/// Sends one request after the other until `end`; answers how long each took.
async fn keep_busy(
    server: SocketAddr,
    requests: &[Vec<u8>],
    seed: u64,
    end: Instant,
) -> Vec<Duration> {
    let mut stream = TcpStream::connect(server).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut latencies = Vec::new();
    let mut sent = Instant::now();
    while sent < end {
        let request = &requests[random.usize(..requests.len())];
        stream.write_all(request).await.unwrap();
        receive(&mut stream).await;
        let received = Instant::now();
        latencies.push(received - sent);
        sent = received;
    }
    latencies
}

/// Reads one answer, which must be an admission.
async fn receive(stream: &mut TcpStream) {
    let mut answer = [0; 1_024];
    let mut len = 0;
    while !answer[..len].ends_with(END) {
        let more = stream.read(&mut answer[len..]).await.unwrap();
        len += more;
        let text = String::from_utf8_lossy(&answer[..len]);
        assert!(more > 0 && text.starts_with("HTTP/1.1 200 "), "{text}");
    }
}

/// What one run has shown.
pub(crate) struct Round {
    time: Duration,
    latencies: Vec<Duration>,
}

impl Round {
    fn new(time: Duration, mut latencies: Vec<Duration>) -> Self {
        latencies.sort_unstable();
        Self { time, latencies }
    }

    #[expect(clippy::cast_precision_loss, reason = "there are not that many")]
    pub(crate) fn requests(&self) -> f64 {
        self.latencies.len() as f64
    }

    /// Requests a second.
    pub(crate) fn rate(&self) -> f64 {
        self.requests() / self.time.as_secs_f64()
    }

    /// The latency that this share of all requests did not exceed.
    pub(crate) fn latency_ms(&self, share: f64) -> f64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "share is 0 to 1"
        )]
        let index = (share * (self.requests() - 1.0)) as usize;
        self.latencies[index].as_secs_f64() * 1_000.0
    }
}
