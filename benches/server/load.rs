//! A closed loop of connections, each with one request under way. The user of each request is random.
//!
//! The load shares two cores with the measured server, so it does as little as possible: one thread, one write and one
//! read for each request.

use std::{
    io::{ErrorKind, Read, Write},
    net::SocketAddr,
    time::{Duration, Instant},
};

use mio::{Events, Interest, Poll, Token, net::TcpStream};

pub(crate) const USERS: usize = 10_000;
pub(crate) const CONNECTIONS: usize = 64;

/// The beginning and the end of each answer: all servers send the same body.
#[derive(Clone, Copy)]
struct Answer {
    begin: &'static [u8],
    end: &'static [u8],
}

const ADMITTED: Answer = Answer {
    begin: b"HTTP/1.1 200 ",
    end: b"\r\n\r\nok\n",
};
const REFUSED: Answer = Answer {
    begin: b"HTTP/1.1 429 ",
    end: b"]}",
};

/// The maximum time for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Load {
    connections: usize,
    requests: Vec<Vec<u8>>,
    /// The probability of this user or one before.
    shares: Vec<f64>,
    random: fastrand::Rng,
    expected: Answer,
}

impl Load {
    /// All users are equally likely.
    pub(crate) fn new() -> Self {
        Self::of(USERS, 0.0)
    }

    /// This number of users, all denied.
    pub(crate) fn refused(users: usize) -> Self {
        Self {
            expected: REFUSED,
            ..Self::of(users, 0.0)
        }
    }

    /// This number of users. The n-th comes `1/n^exponent` times as often as the first.
    #[expect(clippy::cast_precision_loss, reason = "there are not that many")]
    pub(crate) fn of(users: usize, exponent: f64) -> Self {
        let weights = (1..=users).map(|user| (user as f64).powf(-exponent));
        let all: f64 = weights.clone().sum();
        let shares = weights.scan(0.0, |before, weight| {
            *before += weight / all;
            Some(*before)
        });
        let request =
            |user| format!("GET / HTTP/1.1\r\nhost: bench\r\nx-api-key: user-{user:08}\r\n\r\n");
        Self {
            connections: CONNECTIONS,
            requests: (0..users).map(|user| request(user).into_bytes()).collect(),
            shares: shares.collect(),
            random: fastrand::Rng::with_seed(1),
            expected: ADMITTED,
        }
    }

    pub(crate) fn connections(self, connections: usize) -> Self {
        Self {
            connections,
            ..self
        }
    }

    /// Sends the first request of every user, whatever the answer is.
    pub(crate) fn exhaust(&self, server: SocketAddr) {
        let mut stream = std::net::TcpStream::connect(server).unwrap();
        for request in &self.requests {
            stream.write_all(request).unwrap();
            assert!(stream.read(&mut [0; 1_024]).unwrap() > 0);
        }
    }

    /// Keeps all connections busy for this time.
    pub(crate) fn run(&mut self, server: SocketAddr, time: Duration) -> Round {
        let mut poll = Poll::new().unwrap();
        let mut connections: Vec<_> = (0..self.connections)
            .map(|index| Connection::open(server, &poll, Token(index)))
            .collect();
        let end = Instant::now() + time;
        for connection in &mut connections {
            connection.send(self.request(), Instant::now());
        }
        // Enough for a round: growing in the middle would delay an answer.
        let mut latencies = Vec::with_capacity(1 << 20);
        let mut events = Events::with_capacity(self.connections);
        let mut busy = self.connections;
        while busy > 0 {
            poll.poll(&mut events, Some(PATIENCE)).unwrap();
            assert!(!events.is_empty(), "the server does not answer");
            let now = Instant::now();
            for event in &events {
                let connection = &mut connections[event.token().0];
                if connection.is_answered(self.expected) {
                    latencies.push(now - connection.sent);
                    if now < end {
                        connection.send(self.request(), now);
                    } else {
                        busy -= 1;
                    }
                }
            }
        }
        Round::new(time, latencies)
    }

    fn request(&mut self) -> &[u8] {
        let drawn = self.random.f64();
        let user = self.shares.partition_point(|share| *share < drawn);
        &self.requests[user.min(self.requests.len() - 1)]
    }
}

struct Connection {
    stream: TcpStream,
    sent: Instant,
    answer: [u8; 1_024],
    len: usize,
}

impl Connection {
    fn open(server: SocketAddr, poll: &Poll, token: Token) -> Self {
        let stream = std::net::TcpStream::connect(server).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut stream = TcpStream::from_std(stream);
        let registry = poll.registry();
        registry
            .register(&mut stream, token, Interest::READABLE)
            .unwrap();
        Self {
            stream,
            sent: Instant::now(),
            answer: [0; 1_024],
            len: 0,
        }
    }

    fn send(&mut self, request: &[u8], now: Instant) {
        // The request fits, since the server has read everything before.
        self.stream.write_all(request).unwrap();
        self.sent = now;
        self.len = 0;
    }

    /// Whether the answer is complete. It must be the right one.
    fn is_answered(&mut self, Answer { begin, end }: Answer) -> bool {
        // One read takes everything: the server sends no more before the next request.
        let more = match self.stream.read(&mut self.answer[self.len..]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            more => more.unwrap(),
        };
        self.len += more;
        let answer = &self.answer[..self.len];
        let is_good = more > 0 && (answer.starts_with(begin) || begin.starts_with(answer));
        assert!(is_good, "{}", String::from_utf8_lossy(answer));
        answer.ends_with(end)
    }
}

/// The results of one run.
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
