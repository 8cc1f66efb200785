//! The example `behind_a_proxy` behind a real nginx: no client escapes its limit, or uses up another client's.

mod claims;
mod hops;
mod mistakes;

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
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
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

/// A line for the block `server` of an nginx.
const LISTEN: &str = "listen 127.0.0.1:PORT;";

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

/// The headers to which each proxy appends.
const LISTS: [&Spelling; 2] = [&X_FORWARDED_FOR, &FORWARDED];

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

    /// An nginx in front of this address, with calls from `source`. `server` are lines for its block of that name.
    fn nginx(&self, upstream: &str, source: &str, server: &str) -> Nginx {
        let Self { maps, set, .. } = self;
        Nginx::start(|port| {
            let server = server.replace("PORT", &port.to_string());
            format!(
                "{maps}\nupstream service {{ server {upstream}; keepalive 8; }}\n\
                 server {{\n {server}\n location / {{\n\
                 proxy_pass http://service; proxy_bind {source};\n\
                 proxy_http_version 1.1; proxy_set_header Connection \"\";\n{set}\n }}\n}}"
            )
        })
    }

    /// Two in a row with the same configuration, in front of this address.
    fn two(&self, upstream: &str) -> Two {
        let inner = self.nginx(upstream, INNER, LISTEN);
        let outer = self.nginx(&inner.address().to_string(), OUTER, LISTEN);
        Two { outer, inner }
    }

    /// The example, with arguments to read this header from proxies in these networks.
    fn example(&self, networks: &[&str]) -> Example {
        static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
        let program = PROGRAM.get_or_init(|| example::build("behind_a_proxy"));
        let args = [&["127.0.0.1:0", self.header], networks].concat();
        Example::run(Command::new(program).args(args))
    }

    fn site(&'static self) -> Site {
        self.site_with(LISTEN)
    }

    fn site_with(&'static self, server: &str) -> Site {
        let service = self.example(&[PROXIES]);
        let nginx = self.nginx(&service.address().to_string(), INNER, server);
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

/// Two instances of nginx, one behind the other.
struct Two {
    outer: Nginx,
    inner: Nginx,
}

/// A status, and the remaining units under the strictest policy.
#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    left: Option<u32>,
}

const SERVED: [u16; 8] = [200, 200, 200, 200, 200, 429, 429, 429];
const REFUSED: [u16; 8] = [400; 8];

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
    let stream = socket.connect(server).await.unwrap();
    exchange(stream, "", path, lines.as_ref()).await
}

/// Requests `/` like a load balancer that passes the client's address in the PROXY protocol.
async fn ask_as(nginx: &Nginx, client: &str, lines: &str) -> Answer {
    let stream = TcpStream::connect(nginx.address()).await.unwrap();
    let (family, local) = match client.contains(':') {
        true => ("TCP6", "2001:db8::1"),
        false => ("TCP4", "192.0.2.1"),
    };
    let preamble = format!("PROXY {family} {client} {local} 50000 80\r\n");
    exchange(stream, &preamble, "/", lines.as_bytes()).await
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    preamble: &str,
    path: &str,
    lines: &[u8],
) -> Answer {
    let start =
        format!("{preamble}GET {path} HTTP/1.1\r\nhost: example.org\r\nconnection: close\r\n");
    let request = [start.as_bytes(), lines, b"\r\n"].concat();
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

    /// Asserts these statuses for an attacker, which claims to be its victim and a new client in turn. The victim keeps
    /// all of its requests.
    async fn attack(&self, expected: [u16; 8], lines: impl Fn(&str) -> Vec<u8>) {
        let (attacker, victim) = (newcomer(), newcomer());
        for (nth, expected) in expected.into_iter().enumerate() {
            let claimed = match nth % 2 {
                0 => victim.clone(),
                _ => newcomer(),
            };
            let lines = lines(&claimed);
            let answer = self.ask(&attacker, &lines).await;
            let sent = String::from_utf8_lossy(&lines);
            assert_eq!(answer.status, expected, "{nth}: {sent:.200}");
        }
        let sent = lines(&victim);
        let sent = String::from_utf8_lossy(&sent);
        assert_eq!(self.ask(&victim, "").await, FIRST, "{sent:.200}");
    }

    /// Attacks with lines that one version of nginx rejects and another ignores.
    async fn attack_oddly(&self, lines: impl Fn(&str) -> Vec<u8>) {
        let probe = self.ask(&newcomer(), lines("203.0.113.7")).await;
        let expected = match probe.status {
            400 => REFUSED,
            _ => SERVED,
        };
        self.attack(expected, lines).await;
    }

    /// Attacks with header lines of these values. `IP` in a value becomes the claimed address.
    async fn attack_by_values(&self, values: &[&str]) {
        for value in values {
            let value = |ip: &str| value.replace("IP", &self.spelling.claim(ip));
            let lines = |ip: &str| self.spelling.line(&value(ip)).into_bytes();
            self.attack(SERVED, lines).await;
        }
    }
}

#[test]
fn nginx_is_configured_as_the_example_shows() {
    let example = include_str!("../../../../examples/behind_a_proxy.rs");
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
    let nginx = X_FORWARDED_FOR.nginx(&service.address().to_string(), "127.0.0.1", LISTEN);
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
