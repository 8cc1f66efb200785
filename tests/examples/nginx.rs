//! The example behind a proxy, behind a real nginx: no client escapes its limit, or uses up another's.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::Command,
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use axum::{Router, routing::get};
use sluicegate::{ForwardedIp, MemoryStore, Policy, RateLimitLayer, extract::TrustedProxies};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream, UnixListener},
};

use crate::common::{
    example::{self, Example},
    nginx::Nginx,
};

/// From here an nginx calls what is behind it, and nobody else.
const INNER: &str = "127.0.1.1";

/// From here an nginx calls one that is nearer to the service.
const OUTER: &str = "127.0.1.2";

/// The network of both, as the example is told.
const PROXIES: &str = "127.0.1.0/24";

/// For the block `server` of an nginx.
const LISTEN: &str = "listen PORT;";

/// A way to write the client's address, as the head of the example shows it.
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
    /// What a client writes who claims this address.
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

    /// An nginx before this address, which it calls from `source`; `server` are lines for its block of that name.
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

    /// The example, told to read this header from proxies of these networks.
    fn example(&self, networks: &[&str]) -> Example {
        let program = example::build("behind_a_proxy");
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

/// A status, and what the strictest policy has left.
#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    left: Option<u32>,
}

const SERVED: [u16; 8] = [200, 200, 200, 200, 200, 429, 429, 429];
const REFUSED: [u16; 8] = [400; 8];

/// Nothing was charged before.
const FIRST: Answer = Answer {
    status: 200,
    left: Some(4),
};

/// An address that no other client of this process has: all of 127/8 is this machine.
fn newcomer() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let [high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    Ipv4Addr::new(127, 9, high, low).to_string()
}

/// Asks for `/` from an address of this machine, with these header lines.
async fn ask(server: SocketAddr, from: &str, lines: impl AsRef<[u8]>) -> Answer {
    get_path(server, from, "/", lines).await
}

async fn get_path(server: SocketAddr, from: &str, path: &str, lines: impl AsRef<[u8]>) -> Answer {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    let stream = socket.connect(server).await.unwrap();
    exchange(stream, "", path, lines.as_ref()).await
}

/// As a load balancer that tells nginx by the PROXY protocol who its client is.
async fn ask_as(nginx: &Nginx, client: &str, lines: &str) -> Answer {
    let stream = TcpStream::connect(nginx.address()).await.unwrap();
    let (family, local) = match client.contains(':') {
        true => ("TCP6", "2001:db8::1"),
        false => ("TCP4", "192.0.2.1"),
    };
    let preamble = format!("PROXY {family} {client} {local} 50000 80\r\n");
    exchange(stream, &preamble, "/", lines.as_bytes()).await
}

async fn exchange(mut stream: TcpStream, preamble: &str, path: &str, lines: &[u8]) -> Answer {
    let start = format!("{preamble}GET {path} HTTP/1.1\r\nhost: example.org\r\n");
    let end = "connection: close\r\n\r\n";
    // What ends the head by itself has to close the connection by itself.
    let end = if lines.ends_with(b"\r\n\r\n") {
        ""
    } else {
        end
    };
    let request = [start.as_bytes(), lines, end.as_bytes()].concat();
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

    /// An attacker gets these statuses, whether it claims to be its victim or a new client each time; the victim has
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

    /// Attacks by what one version of nginx refuses and another one ignores.
    async fn attack_oddly(&self, lines: impl Fn(&str) -> Vec<u8>) {
        let probe = self.ask(&newcomer(), lines("203.0.113.7")).await;
        let expected = match probe.status {
            400 => REFUSED,
            _ => SERVED,
        };
        self.attack(expected, lines).await;
    }

    /// Attacks by header lines of this value, for each of which `IP` is the address that is claimed.
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
    let example = include_str!("../../examples/behind_a_proxy.rs");
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
    assert_eq!(ask(direct, "127.0.0.1", LISTEN).await.status, 400);
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

#[tokio::test]
async fn an_address_that_a_client_claims_is_not_believed() {
    for spelling in SPELLINGS {
        let values = ["IP", "IP, IP", "IP, 203.0.113.7, IP", "203.0.113.7,IP"];
        spelling.site().attack_by_values(&values).await;
    }
}

#[tokio::test]
async fn the_address_of_a_proxy_among_the_claimed_ones_does_not_make_them_trusted() {
    for spelling in SPELLINGS {
        let [inner, outer] = [INNER, OUTER].map(|ip| spelling.claim(ip));
        let values = [
            format!("IP, {inner}"),
            format!("IP, {outer}, {inner}"),
            inner.clone(),
            format!("{inner}, IP, {inner}"),
        ];
        let values = values.each_ref().map(String::as_str);
        spelling.site().attack_by_values(&values).await;
    }
}

#[tokio::test]
async fn several_lines_of_the_header_are_not_believed() {
    for spelling in SPELLINGS {
        let site = spelling.site();
        let line = |ip: &str| spelling.line(&spelling.claim(ip));
        let lines = |ip: &str| [line(ip), line("203.0.113.7"), line(ip)].concat();
        site.attack(SERVED, |ip| lines(ip).into_bytes()).await;
        site.attack(SERVED, |ip| line(ip).repeat(80).into_bytes())
            .await;
    }
}

#[tokio::test]
async fn other_headers_with_addresses_are_not_read() {
    let names = "x-forwarded-for forwarded x-real-ip cf-connecting-ip cf-connecting-ipv6 true-client-ip \
        fly-client-ip fastly-client-ip x-client-ip client-ip x-cluster-client-ip x-forwarded x-forwarded-by \
        forwarded-for x-original-forwarded-for x-envoy-external-address x-azure-clientip x-appengine-user-ip \
        x-remote-addr remote-addr x-host x-originating-ip cloudfront-viewer-address via";
    for spelling in SPELLINGS {
        let site = spelling.site();
        for claim in [|ip: &str| ip.to_owned(), |ip: &str| format!("for={ip}")] {
            let line = |name: &str, ip: &str| format!("{name}: {}\r\n", claim(ip));
            let lines =
                |ip: &str| -> String { names.split(' ').map(|name| line(name, ip)).collect() };
            site.attack(SERVED, |ip| lines(ip).into_bytes()).await;
        }
    }
}

#[tokio::test]
async fn names_in_other_spellings_are_the_header_or_no_header() {
    for spelling in SPELLINGS {
        let name = spelling.header;
        let names = [
            name.to_uppercase(),
            name.replace('-', "_"),
            name.to_uppercase().replace('-', "_"),
            name.replace('-', "."),
            format!("{name}-"),
            format!("http_{}", name.replace('-', "_")),
        ];
        for more in [
            "",
            "underscores_in_headers on;",
            "underscores_in_headers on; ignore_invalid_headers off;",
        ] {
            let site = spelling.site_with(&format!("{LISTEN} {more}"));
            for name in &names {
                let line = |ip: &str| format!("{name}: {}\r\n", spelling.claim(ip));
                site.attack_oddly(|ip| line(ip).into_bytes()).await;
            }
        }
    }
}

#[tokio::test]
async fn entries_that_are_no_addresses_are_not_read() {
    for spelling in SPELLINGS {
        let site = spelling.site();
        site.attack_by_values(&[
            "",
            ",",
            " , ,",
            "IP,",
            "IP,,,",
            "unknown",
            "IP, unknown",
            "_hidden",
            "for=unknown, for=_hidden",
            "unix:",
            "localhost",
            "IP IP",
            "IP;IP",
            "0.0.0.0",
            "0x7f000101",
            "127.1",
            "127.000.001.001",
            "<script>",
        ])
        .await;
    }
}

#[tokio::test]
async fn ports_brackets_and_ipv6_forms_of_a_victims_address_are_not_believed() {
    for spelling in SPELLINGS {
        let site = spelling.site();
        for value in [
            "IP:50000",
            "IP:_hidden",
            "[IP]",
            "::ffff:IP",
            "[::ffff:IP]",
            "[::FFFF:IP]:50000",
            "64:ff9b::IP",
            "[64:ff9b::IP]:50000",
            "::IP",
            "fe80::1%IP",
            "2001:db8::7",
            "[2001:db8::7]:50000",
        ] {
            let forms: &[_] = match spelling.header {
                "forwarded" => &["for=ADDRESS", "for=\"ADDRESS\"", "FOR=ADDRESS;by=ADDRESS"],
                _ => &["ADDRESS"],
            };
            for form in forms {
                let value = form.replace("ADDRESS", value);
                let line = |ip: &str| spelling.line(&value.replace("IP", ip));
                site.attack(SERVED, |ip| line(ip).into_bytes()).await;
            }
        }
    }
}

#[tokio::test]
async fn bytes_that_are_no_text_and_loose_quotes_do_not_reach_what_nginx_wrote() {
    for spelling in SPELLINGS {
        let site = spelling.site();
        for bytes in [
            &b"\xff\xfe"[..],
            b"\xc3",
            b"\"",
            b"\\",
            b"\"\\",
            b"\\\"",
            b"for=\"",
            b"for=\"203.0.113.7",
            b"for=\"203.0.113.7, for=203.0.113.7",
            b"for=\"\\",
            b"for=203.0.113.7;by=\"",
            b"=",
            b";",
            b"(",
            b"\t",
            b"a\x7f",
        ] {
            let start = [spelling.header.as_bytes(), b": "].concat();
            let line = |_: &str| [&start, bytes, b"\r\n"].concat();
            let expected = match (bytes, spelling.header) {
                // Not allowed in any header: the service's HTTP refuses the request.
                (b"a\x7f", "x-forwarded-for" | "forwarded") => REFUSED,
                _ => SERVED,
            };
            site.attack(expected, line).await;
        }
    }
}

#[tokio::test]
async fn long_chains_are_read_from_the_right_or_refused_by_nginx() {
    for spelling in SPELLINGS {
        let site = spelling.site();
        let chain = |ip: &str, entries| vec![spelling.claim(ip); entries].join(",");
        for entries in [63, 64, 65, 300] {
            site.attack(SERVED, |ip| spelling.line(&chain(ip, entries)).into_bytes())
                .await;
        }
        let one = |ip: &str| spelling.line(&chain(ip, 1_000)).into_bytes();
        site.attack(REFUSED, one).await;
        let four = |ip: &str| spelling.line(&chain(ip, 300)).repeat(4).into_bytes();
        site.attack(SERVED, four).await;
        let word = |ip: &str| {
            let word = "x".repeat(8_000);
            spelling.line(&format!("{} {word}", spelling.claim(ip)))
        };
        site.attack(SERVED, |ip| word(ip).into_bytes()).await;
    }
}

#[tokio::test]
async fn a_client_cannot_make_nginx_drop_the_header() {
    for spelling in SPELLINGS {
        let site = spelling.site();
        let name = spelling.header;
        for lines in [
            format!("connection: close, {name}\r\n{name}: IP\r\n\r\n"),
            format!("connection: close\r\nconnection: {name}\r\n{name}: IP\r\n\r\n"),
            format!("proxy-connection: {name}\r\n{name}: IP\r\n"),
            // After the body, where trailers are.
            format!(
                "connection: close\r\ntransfer-encoding: chunked\r\ntrailer: {name}\r\n\r\n0\r\n{name}: IP\r\n\r\n"
            ),
        ] {
            let lines = |ip: &str| lines.replace("IP", &spelling.claim(ip)).into_bytes();
            site.attack(SERVED, lines).await;
        }
    }
}

#[tokio::test]
async fn lines_that_servers_may_read_differently_move_nobody() {
    for spelling in SPELLINGS {
        let site = spelling.site();
        let name = spelling.header;
        for lines in [
            format!("{name} : IP\r\n"),
            format!("{name}\t: IP\r\n"),
            format!(" {name}: IP\r\n"),
            format!("x-other: a\r\n {name}: IP\r\n"),
            format!("{name}: a\r\n IP\r\n"),
            format!("{name}: IP\0\r\n"),
            format!("x-other: a\n{name}: IP\r\n"),
            format!("x-other: a\r{name}: IP\r\n"),
            format!("{name}\r\n"),
            ": IP\r\n".to_owned(),
        ] {
            let lines = |ip: &str| lines.replace("IP", &spelling.claim(ip)).into_bytes();
            site.attack_oddly(lines).await;
        }
    }
}

#[tokio::test]
async fn around_the_proxy_a_client_is_limited_by_the_address_that_it_calls_from() {
    for spelling in SPELLINGS {
        let site = spelling.site();
        let (attacker, victim) = (newcomer(), newcomer());
        let direct = site.service.address();
        for expected in SERVED {
            let line = spelling.line(&spelling.claim(&victim));
            assert_eq!(ask(direct, &attacker, line).await.status, expected);
        }
        assert_eq!(site.ask(&attacker, "").await.status, 429);
        assert_eq!(ask(direct, &victim, "").await, FIRST);
        assert_eq!(site.ask(&victim, "").await.left, Some(3));
    }
}

/// Why a trusted network must hold proxies only.
#[tokio::test]
async fn whoever_calls_from_a_trusted_network_is_believed() {
    for spelling in SPELLINGS {
        let service = spelling.example(&[PROXIES]);
        for nth in 0..8 {
            let line = spelling.line(&spelling.claim(&format!("203.0.113.{nth}")));
            assert_eq!(ask(service.address(), "127.0.1.99", line).await, FIRST);
        }
        let unnamed = ask(service.address(), "127.0.1.99", "").await;
        assert_eq!(unnamed.status, 400);
    }
}

/// Behind a load balancer that does no HTTP, so that clients can have any address.
const BALANCED: &str =
    "listen PORT proxy_protocol; set_real_ip_from 127.0.0.0/8; real_ip_header proxy_protocol;";

#[tokio::test]
async fn a_new_ipv6_address_for_each_request_is_the_same_client() {
    for spelling in SPELLINGS {
        let Site { nginx, .. } = &spelling.site_with(BALANCED);
        let lie = spelling.line(&spelling.claim("2001:db8:9::7"));
        for (nth, expected) in SERVED.into_iter().enumerate() {
            let client = format!("2001:db8:1:2::{nth}");
            assert_eq!(ask_as(nginx, &client, &lie).await.status, expected);
        }
        // Nor a new /64 of the same /56.
        for (nth, expected) in (0..18).map(|it| (it, if it < 15 { 200 } else { 429 })) {
            let client = format!("2001:db8:1:{:x}::1", 0x10 + nth);
            assert_eq!(ask_as(nginx, &client, &lie).await.status, expected, "{nth}");
        }
        assert_eq!(ask_as(nginx, "2001:db8:9::8", "").await, FIRST);
    }
}

#[tokio::test]
async fn one_ipv4_client_is_the_same_through_translators_and_sockets_of_both_protocols() {
    for spelling in SPELLINGS {
        let Site { nginx, .. } = &spelling.site_with(BALANCED);
        let same = ["9.9.9.9", "::ffff:9.9.9.9", "64:ff9b::9.9.9.9"];
        for (client, expected) in same.into_iter().cycle().zip(SERVED) {
            let answer = ask_as(nginx, client, "").await;
            assert_eq!(answer.status, expected, "{client}");
        }
        for other in ["9.9.9.8", "64:ff9b::9.9.9.7"] {
            assert_eq!(ask_as(nginx, other, "").await, FIRST);
        }
    }
}

#[tokio::test]
async fn a_client_whose_address_translates_to_that_of_a_proxy_is_no_proxy() {
    for spelling in LISTS {
        let Site { nginx, .. } = &spelling.site_with(BALANCED);
        for expected in SERVED {
            let lie = spelling.line(&spelling.claim(&newcomer()));
            let answer = ask_as(nginx, "64:ff9b::127.0.1.1", &lie).await;
            assert_eq!(answer.status, expected);
        }
    }
}

#[tokio::test]
async fn nginx_that_writes_ipv4_as_ipv6_does_not_make_a_second_client() {
    if std::net::TcpListener::bind("[::]:0").is_err() {
        return eprintln!("NOT TRIED: this machine has no IPv6");
    }
    for spelling in SPELLINGS {
        let site = spelling.site_with("listen [::]:PORT ipv6only=off;");
        site.attack_by_values(&["IP", "::ffff:IP", "\""]).await;
        let client = newcomer();
        assert_eq!(site.ask(&client, "").await, FIRST);
        let direct = ask(site.service.address(), &client, "").await;
        assert_eq!(direct.left, Some(3));
    }
}

/// An nginx, one behind it, and what is behind both.
struct Two {
    outer: Nginx,
    inner: Nginx,
}

impl Spelling {
    fn two(&self, service: &str) -> Two {
        let inner = self.nginx(service, INNER, LISTEN);
        let outer = self.nginx(&inner.address().to_string(), OUTER, LISTEN);
        Two { outer, inner }
    }
}

const LISTS: [&Spelling; 2] = [&X_FORWARDED_FOR, &FORWARDED];

#[tokio::test]
async fn behind_two_proxies_in_a_row_nobody_is_believed_but_them() {
    for spelling in LISTS {
        let service = spelling.example(&[PROXIES]);
        let Two { outer, inner } = spelling.two(&service.address().to_string());
        for value in [
            "IP",
            "IP, 127.0.1.2",
            "IP, for=127.0.1.2",
            "for=\"",
            "unknown, ,",
        ] {
            let line = |ip: &str| spelling.line(&value.replace("IP", &spelling.claim(ip)));
            // Through both, around the outer one, and around both: it is the same client.
            let (attacker, victim) = (newcomer(), newcomer());
            let ways = [outer.address(), inner.address(), service.address()];
            for (way, expected) in ways.into_iter().cycle().zip(SERVED) {
                let answer = ask(way, &attacker, line(&victim)).await;
                assert_eq!(answer.status, expected, "{value}");
            }
            for (way, left) in ways.into_iter().zip([4, 3, 2]) {
                assert_eq!(ask(way, &victim, "").await.left, Some(left), "{value}");
            }
        }
    }
}

/// A service that trusts a number of proxies.
fn counting(spelling: &Spelling, proxies: usize) -> Router {
    let proxies = TrustedProxies::count_including_peer(proxies);
    let ip = match spelling.header {
        "forwarded" => ForwardedIp::forwarded(proxies),
        _ => ForwardedIp::x_forwarded_for(proxies),
    };
    let policy = Policy::parse("ip-64", "5/1m").unwrap();
    let layer = RateLimitLayer::new(MemoryStore::new()).limit(policy, ip);
    Router::new().route("/", get(async || "hello")).layer(layer)
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, app).await });
    address
}

#[tokio::test]
async fn two_proxies_are_counted_as_two() {
    for spelling in LISTS {
        let service = serve(counting(spelling, 2)).await;
        let Two {
            outer,
            inner: _inner,
        } = spelling.two(&service.to_string());
        for value in ["IP", "IP, IP, IP", "IP, 127.0.1.2", "\"", "unknown", "IP,"] {
            let (attacker, victim) = (newcomer(), newcomer());
            let line = spelling.line(&value.replace("IP", &spelling.claim(&victim)));
            for expected in SERVED {
                let answer = ask(outer.address(), &attacker, &line).await;
                assert_eq!(answer.status, expected, "{value}");
            }
            assert_eq!(ask(outer.address(), &victim, "").await, FIRST, "{value}");
        }
    }
}

/// Why networks are better than a count.
#[tokio::test]
async fn a_count_that_is_wrong_shares_one_limit_or_believes_clients() {
    for spelling in LISTS {
        let too_low = serve(counting(spelling, 1)).await;
        let Two {
            outer,
            inner: _inner,
        } = spelling.two(&too_low.to_string());
        for expected in SERVED {
            let answer = ask(outer.address(), &newcomer(), "").await;
            assert_eq!(answer.status, expected);
        }

        let too_high = serve(counting(spelling, 3)).await;
        let Two {
            outer,
            inner: _inner,
        } = spelling.two(&too_high.to_string());
        let client = newcomer();
        for nth in 0..8 {
            let line = spelling.line(&spelling.claim(&format!("203.0.113.{nth}")));
            assert_eq!(ask(outer.address(), &client, line).await, FIRST);
        }
        // Honest clients have no entry where it looks.
        assert_eq!(ask(outer.address(), &client, "").await.status, 400);
    }
}

#[tokio::test]
async fn behind_a_unix_socket_one_proxy_is_counted() {
    for spelling in LISTS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("service");
        let listener = UnixListener::bind(&path).unwrap();
        let app = counting(spelling, 1);
        tokio::spawn(async { axum::serve(listener, app).await });
        let nginx = spelling.nginx(&format!("unix:{}", path.display()), "off", LISTEN);
        let (attacker, victim) = (newcomer(), newcomer());
        for expected in SERVED {
            let line = spelling.line(&spelling.claim(&victim));
            let answer = ask(nginx.address(), &attacker, line).await;
            assert_eq!(answer.status, expected);
        }
        assert_eq!(ask(nginx.address(), &victim, "").await, FIRST);
    }
}
