//! The example `behind_a_proxy` behind a real nginx: no client escapes its limit, or uses up another client's.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::Command,
    sync::{
        OnceLock,
        atomic::{AtomicU16, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
};

use support::{
    example::{self, Example},
    nginx::Nginx,
};

/// The address from which only an inner nginx calls the service.
const INNER: &str = "127.0.1.1";

/// The address from which an outer nginx calls an inner one.
const OUTER: &str = "127.0.1.2";

/// The network of both addresses, for the example's arguments.
const PROXIES: &str = "127.0.1.0/24";

/// A way to write the client's address, as in the example's head.
struct Spelling {
    header: &'static str,
    /// Lines for the block `http`.
    maps: &'static str,
    /// A line for the block `location`.
    set: &'static str,
}

const X_FORWARDED_FOR: Spelling = Spelling {
    header: "x-forwarded-for",
    maps: "",
    set: "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
};

const FORWARDED: Spelling = Spelling {
    header: "forwarded",
    maps: r#"
map $remote_addr $forwarded_element {
    ~^[0-9.]+$         "for=$remote_addr";
    ~^[0-9A-Fa-f:.]+$  "for=\"[$remote_addr]\"";
    default            "for=unknown";
}
map $http_forwarded $add_forwarded {
    ""       $forwarded_element;
    default  "$http_forwarded, $forwarded_element";
}"#,
    set: "proxy_set_header Forwarded $add_forwarded;",
};

const X_REAL_IP: Spelling = Spelling {
    header: "x-real-ip",
    maps: "",
    set: "proxy_set_header X-Real-IP $remote_addr;",
};

const SPELLINGS: [&Spelling; 3] = [&X_FORWARDED_FOR, &FORWARDED, &X_REAL_IP];

impl Spelling {
    /// The text of a client that claims this address.
    fn claim(&self, ip: &str) -> String {
        match self.header {
            "forwarded" if ip.contains(':') => format!("for=\"[{ip}]\""),
            "forwarded" => format!("for={ip}"),
            _ => ip.to_owned(),
        }
    }

    /// A header line with this value.
    fn line(&self, value: &str) -> String {
        format!("{}: {value}\r\n", self.header)
    }

    /// An nginx in front of this address, with calls from `source`.
    fn nginx(&self, upstream: &str, source: &str) -> Nginx {
        let Self { maps, set, .. } = self;
        Nginx::start(|port| {
            format!(
                "{maps}\nupstream service {{ server {upstream}; keepalive 8; }}\n\
                 server {{\n listen 127.0.0.1:{port};\n location / {{\n\
                 proxy_pass http://service; proxy_bind {source};\n\
                 proxy_http_version 1.1; proxy_set_header Connection \"\";\n{set}\n }}\n}}"
            )
        })
    }

    /// The example, with arguments to read this header from proxies in these networks.
    fn example(&self, networks: &[&str]) -> Example {
        static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
        let program = PROGRAM.get_or_init(|| example::build("behind_a_proxy"));
        let args = [&["127.0.0.1:0", self.header], networks].concat();
        Example::run(Command::new(program).args(args))
    }

    fn site(&'static self) -> Site {
        let service = self.example(&[PROXIES]);
        let nginx = self.nginx(&service.address().to_string(), INNER);
        Site {
            spelling: self,
            service,
            nginx,
        }
    }
}

/// The example behind one nginx.
struct Site {
    spelling: &'static Spelling,
    service: Example,
    nginx: Nginx,
}

/// A service with the right settings logs no warning, whatever clients send.
impl Drop for Site {
    fn drop(&mut self) {
        let said = self.service.end();
        if !thread::panicking() {
            assert_eq!(said, "", "a service that is right about its proxies");
        }
    }
}

/// A status, and the remaining units under the strictest policy.
#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    left: Option<u32>,
}

const SERVED: [u16; 8] = [200, 200, 200, 200, 200, 429, 429, 429];

/// The answer to the first request.
const FIRST: Answer = Answer {
    status: 200,
    left: Some(4),
};

/// An address that no other client of this process has. All of 127/8 is this machine.
fn newcomer() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let [high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    Ipv4Addr::new(127, 9, high, low).to_string()
}

/// Requests `/` from an address of this machine, with these header lines.
async fn ask(server: SocketAddr, from: &str, lines: impl AsRef<[u8]>) -> Answer {
    get_path(server, from, "/", lines).await
}

async fn get_path(server: SocketAddr, from: &str, path: &str, lines: impl AsRef<[u8]>) -> Answer {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    let mut stream = socket.connect(server).await.unwrap();
    let start = format!("GET {path} HTTP/1.1\r\nhost: example.org\r\nconnection: close\r\n");
    let request = [start.as_bytes(), lines.as_ref(), b"\r\n"].concat();
    let mut response = Vec::new();
    let answered = async {
        // A server may answer and close before it has read a request that is too long.
        let _ = stream.write_all(&request).await;
        let _ = stream.read_to_end(&mut response).await;
    };
    tokio::time::timeout(Duration::from_secs(30), answered)
        .await
        .expect("an answer within 30 seconds");
    read(&String::from_utf8_lossy(&response))
}

fn read(response: &str) -> Answer {
    let status = response
        .strip_prefix("HTTP/1.1 ")
        .and_then(|it| it.get(..3));
    let status = status.and_then(|it| it.parse().ok());
    let left = response.split_once(r#""ip-64";r="#);
    let left = left.and_then(|(_, it)| it.split(';').next()?.parse().ok());
    Answer {
        status: status.unwrap_or_else(|| panic!("no answer: {response:?}")),
        left,
    }
}

impl Site {
    async fn ask(&self, from: &str, lines: impl AsRef<[u8]>) -> Answer {
        ask(self.nginx.address(), from, lines).await
    }

    /// The attacker claims to be its victim and a new client in turn: its limit holds, and the victim keeps all of its
    /// requests. `IP` in a value becomes the claimed address.
    async fn attack(&self, value: &str) {
        let (attacker, victim) = (newcomer(), newcomer());
        let line = |ip: &str| {
            let spelling = self.spelling;
            spelling.line(&value.replace("IP", &spelling.claim(ip)))
        };
        for (nth, expected) in SERVED.into_iter().enumerate() {
            let claimed = match nth % 2 {
                0 => victim.clone(),
                _ => newcomer(),
            };
            let answer = self.ask(&attacker, line(&claimed)).await;
            assert_eq!(answer.status, expected, "{nth}: {value}");
        }
        assert_eq!(self.ask(&victim, "").await, FIRST, "{value}");
    }
}

#[test]
fn nginx_is_configured_as_the_example_shows() {
    let example = include_str!("../../../examples/behind_a_proxy.rs");
    let head = example
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .map(str::trim);
    let head: Vec<&str> = head.collect();
    for Spelling { maps, set, .. } in SPELLINGS {
        for line in maps.lines().chain([*set]) {
            assert!(head.contains(&line.trim()), "{line}");
        }
    }
}

#[tokio::test]
async fn the_example_answers_as_its_head_says() {
    let service = X_FORWARDED_FOR.example(&[]);
    let nginx = X_FORWARDED_FOR.nginx(&service.address().to_string(), "127.0.0.1");
    let (via, direct) = (nginx.address(), service.address());
    let fake = X_FORWARDED_FOR.line("203.0.113.7");
    for expected in [200, 200, 200, 200, 200, 429] {
        assert_eq!(ask(via, "127.0.0.2", "").await.status, expected);
    }
    assert_eq!(ask(via, "127.0.0.2", &fake).await.status, 429);
    assert_eq!(ask(via, "127.0.0.3", &fake).await, FIRST);

    assert_eq!(ask(direct, "127.0.0.2", &fake).await.status, 429);
    assert_eq!(ask(direct, "127.0.0.1", &fake).await, FIRST);
    assert_eq!(ask(direct, "127.0.0.1", "").await.status, 400);
    let health = get_path(direct, "127.0.0.1", "/health", "").await;
    assert_eq!((health.status, health.left), (200, None));
}

#[tokio::test]
async fn clients_that_share_the_connections_of_nginx_are_limited_apart() {
    for spelling in SPELLINGS {
        let site = spelling.site();
        let clients = [newcomer(), newcomer(), newcomer()];
        for expected in [200, 200, 200, 200, 200, 429] {
            for client in &clients {
                assert_eq!(site.ask(client, "").await.status, expected);
            }
        }
    }
}

/// `tests/http/forwarded.rs` has all attacks on the header; this shows that nginx writes the entry that it expects.
#[tokio::test]
async fn an_address_that_a_client_claims_through_nginx_is_not_believed() {
    for spelling in SPELLINGS {
        let site = spelling.site();
        let inner = spelling.claim(INNER);
        for value in [
            "",
            "IP",
            "IP, 203.0.113.7, IP",
            &format!("IP, {inner}"),
            &inner,
            "unknown",
            "\"",
            "for=\"IP",
            "IP\r\nx-forwarded-for: IP\r\nforwarded: for=IP\r\nx-real-ip: IP",
        ] {
            site.attack(value).await;
        }
    }
}

#[tokio::test]
async fn behind_two_proxies_in_a_row_nobody_is_believed_but_them() {
    for spelling in [&X_FORWARDED_FOR, &FORWARDED] {
        let service = spelling.example(&[PROXIES]);
        let inner = spelling.nginx(&service.address().to_string(), INNER);
        let outer = spelling.nginx(&inner.address().to_string(), OUTER);
        // Through both proxies, around the outer one, and around both, it is the same client.
        let (attacker, victim) = (newcomer(), newcomer());
        let ways = [outer.address(), inner.address(), service.address()];
        for (way, expected) in ways.into_iter().cycle().zip(SERVED) {
            let line = spelling.line(&spelling.claim(&victim));
            assert_eq!(ask(way, &attacker, line).await.status, expected);
        }
        for (way, left) in ways.into_iter().zip([4, 3, 2]) {
            assert_eq!(ask(way, &victim, "").await.left, Some(left));
        }
    }
}
