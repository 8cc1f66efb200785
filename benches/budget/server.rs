//! The example server under callgrind, and requests in rounds: one on each connection, then all answers.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    time::Duration,
};

use support::{example::Example, redis::Server};

use super::callgrind::{Callgrind, Counts};

const CONNECTIONS: usize = 32;
const LIMIT: &str = "header:x-api-key=1000000/1s,60000000/1m,1000000000/1h";
const WARM_UP_ROUNDS: usize = 100;

/// Each row: its name, its path, and whether it shares limits through Redis.
pub(crate) const ROWS: [(&str, &str, bool); 3] = [
    ("server, /health", "/health", false),
    ("server, memory", "/", false),
    ("server, redis", "/", true),
];

/// The number of requests in this number of rounds.
pub(crate) fn requests(rounds: usize) -> usize {
    rounds * CONNECTIONS
}

pub(crate) fn count(
    callgrind: &Callgrind,
    program: &Path,
    path: &str,
    redis: Option<&Server>,
    rounds: usize,
) -> Counts {
    let mut command = callgrind.command(program);
    command.env("TOKIO_WORKER_THREADS", "1");
    command.args(["--listen", "127.0.0.1:0", "--limit", LIMIT]);
    command.args(["--on-failure", "closed", "--timeout", "20s"]);
    if let Some(redis) = redis {
        command.args(["--redis", &redis.url()]);
    }
    let server = Example::run(&mut command);
    load(server.address(), path, WARM_UP_ROUNDS + rounds);
    let (is_success, output) = server.stop();
    assert!(is_success, "the server ended badly: {output}");
    callgrind.counts()
}

fn load(address: SocketAddr, path: &str, rounds: usize) {
    let connect = |_| {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let patience = Some(Duration::from_secs(30));
        stream.set_read_timeout(patience).unwrap();
        BufReader::new(stream)
    };
    let mut connections: Vec<_> = (0..CONNECTIONS).map(connect).collect();
    for round in 0..rounds {
        for (n, connection) in connections.iter_mut().enumerate() {
            let user = (round % 32) * CONNECTIONS + n;
            let request =
                format!("GET {path} HTTP/1.1\r\nhost: budget\r\nx-api-key: user-{user:08}\r\n\r\n");
            connection.get_mut().write_all(request.as_bytes()).unwrap();
        }
        for connection in &mut connections {
            read_answer(connection);
        }
    }
}

fn read_answer(connection: &mut BufReader<TcpStream>) {
    let (mut line, mut length) = (String::new(), 0);
    connection.read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 200 "), "{line}");
    while line != "\r\n" {
        line.clear();
        connection.read_line(&mut line).unwrap();
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    connection.read_exact(&mut vec![0; length]).unwrap();
}
