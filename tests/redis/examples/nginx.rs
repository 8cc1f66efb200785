//! The example `behind_a_proxy` behind a real nginx: no client escapes its limit, or uses up another client's.
//!
//! `tests/http/forwarded.rs` has all attacks on the headers; this shows that nginx writes the entries that it expects.

use std::{net::Ipv4Addr, process::Command, sync::atomic::AtomicU16};

use support::nginx::Nginx;

use super::guides::{indented, shell, source};
use crate::prelude::*;

/// The address from which only the nginx next to the service calls.
const INNER: &str = "127.0.1.1";

/// Its network, for the example's arguments.
const PROXIES: &str = "127.0.1.0/24";

/// A header with the client's address, and the lines of the example's head that make nginx write it: for the block
/// `http`, and one for the block `location`.
type Spelling = [&'static str; 3];

const X_FORWARDED_FOR: Spelling = [
    "x-forwarded-for",
    "",
    "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
];

const FORWARDED: Spelling = [
    "forwarded",
    r#"
map $remote_addr $forwarded_element {
    ~^[0-9.]+$         "for=$remote_addr";
    ~^[0-9A-Fa-f:.]+$  "for=\"[$remote_addr]\"";
    default            "for=unknown";
}
map $http_forwarded $add_forwarded {
    ""       $forwarded_element;
    default  "$http_forwarded, $forwarded_element";
}"#,
    "proxy_set_header Forwarded $add_forwarded;",
];

const X_REAL_IP: Spelling = ["x-real-ip", "", "proxy_set_header X-Real-IP $remote_addr;"];

/// An nginx in front of this address, with calls from `source`.
fn nginx([_, maps, set]: Spelling, upstream: SocketAddr, source: &str) -> Nginx {
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
fn service([header, ..]: Spelling, networks: &[&str]) -> Example {
    let args = [&["127.0.0.1:0", header], networks].concat();
    Example::run(Command::new(example::build("behind_a_proxy")).args(args))
}

/// The value of a client that claims this address.
fn claim([header, ..]: Spelling, ip: &str) -> String {
    let names = if header == "forwarded" { "for=" } else { "" };
    format!("{names}{ip}")
}

/// An address that no other client of this process has. All of 127/8 is this machine.
fn newcomer() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let [high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    Ipv4Addr::new(127, 9, high, low).to_string()
}

/// The status of the answer to a client at this address, and the units that it has left under the strictest policy.
fn ask(server: SocketAddr, from: &str, lines: &[String]) -> (String, Option<u32>) {
    let mut curl = Command::new("curl");
    let curl = curl.args(["-si", "--noproxy", "*", "--interface", from]);
    let curl = curl.args(lines.iter().flat_map(|it| ["-H", it]));
    let output = curl.arg(format!("http://{server}/")).output().unwrap();
    let answer = String::from_utf8(output.stdout).unwrap();
    let left = answer.split_once(r#""ip-64";r="#);
    let left = left.and_then(|(_, it)| it.split(';').next()?.parse().ok());
    let status = answer.split(' ').nth(1).expect("an answer");
    (status.to_owned(), left)
}

const SERVED: [&str; 8] = ["200", "200", "200", "200", "200", "429", "429", "429"];

#[test]
fn nginx_is_configured_as_the_example_shows() {
    let (head, _) = source("behind_a_proxy");
    for [_, maps, set] in [X_FORWARDED_FOR, FORWARDED, X_REAL_IP] {
        for line in maps.lines().chain([set]).map(str::trim) {
            assert!(head.iter().any(|it| it.trim() == line), "{line}");
        }
    }
}

#[test]
fn the_example_answers_as_its_head_says() {
    let service = service(X_FORWARDED_FOR, &[]);
    let nginx = nginx(X_FORWARDED_FOR, service.address(), "127.0.0.1");
    let (via, direct) = (nginx.address(), service.address());
    let set =
        format!("via=http://{via}/ direct=http://{direct}/ fake='X-Forwarded-For: 203.0.113.7'");
    let lines = indented("behind_a_proxy").into_iter();
    let lines: Vec<_> = lines.filter(|it| it.starts_with("curl ")).collect();
    // The first line is about five requests.
    for line in [&lines[0]; 4].into_iter().chain(&lines) {
        let (curl, said) = line.split_once(" # ").unwrap();
        let mut words = said.split(|it: char| !it.is_ascii_digit());
        let status = words.find(|it| it.len() == 3).unwrap();
        let answer = shell(&format!("{set}; {curl}"));
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{line}\n{answer}"
        );
    }
}

/// The attacker claims to be its victim and a new client in turn: its limit holds, and the victim keeps all of its
/// requests. Connections of nginx are shared, and limits are not.
#[test]
fn an_address_that_a_client_claims_through_nginx_is_not_believed() {
    for spelling in [X_FORWARDED_FOR, FORWARDED, X_REAL_IP] {
        let [header, ..] = spelling;
        let mut service = service(spelling, &[PROXIES]);
        let nginx = nginx(spelling, service.address(), INNER);
        for value in [
            "",
            "IP",
            "IP, 203.0.113.7, IP",
            &format!("IP, {}", claim(spelling, INNER)),
            &claim(spelling, INNER),
            "unknown",
            "\"",
            "for=\"IP",
            "IP\nx-forwarded-for: IP\nforwarded: for=IP\nx-real-ip: IP",
        ] {
            let (attacker, victim) = (newcomer(), newcomer());
            for (claimed, expected) in [&victim, &newcomer()].into_iter().cycle().zip(SERVED) {
                let lines = value.replace("IP", &claim(spelling, claimed));
                let lines = format!("{header}: {lines}");
                let lines: Vec<_> = lines.split('\n').map(str::to_owned).collect();
                let (status, _) = ask(nginx.address(), &attacker, &lines);
                assert_eq!(status, expected, "{value}");
            }
            let first = ("200".to_owned(), Some(4));
            assert_eq!(ask(nginx.address(), &victim, &[]), first, "{value}");
        }
        assert_eq!(
            service.end(),
            "",
            "a service that is right about its proxies warns of nothing"
        );
    }
}
