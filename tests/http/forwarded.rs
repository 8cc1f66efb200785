//! Behind proxies, a client has the address in the entries of trusted proxies, and its own entries change nothing. One
//! test per attack.

use std::{
    convert::Infallible,
    future::ready,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::{
    Extension, Router,
    body::Body,
    http::{HeaderName, HeaderValue, Request, request::Parts},
    routing::get,
    serve::IncomingStream,
};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use proptest::prelude::*;
use sluicegate::{
    ForwardedIp, Key, KeyExtractor, MemoryStore, Policy, RateLimitLayer,
    error::ExtractError,
    extract::{Cidr, Keys, TrustedProxies},
};
use support::scripted::Scripted;
use tokio::net::TcpListener;
use tower::{Layer, service_fn};

const XFF: &str = "x-forwarded-for";

/// The client's real address in these tests, and one that it claims to have.
const REAL: &str = "203.0.113.7";
const WISH: &str = "6.6.6.6";

fn networks(networks: &[&str]) -> TrustedProxies {
    let networks = networks.iter().map(|it| it.parse::<Cidr>().unwrap());
    TrustedProxies::networks(networks)
}

/// The proxies of these tests: calls come from the loopback address, behind other proxies in 10/8.
fn ours() -> TrustedProxies {
    networks(&["127.0.0.0/8", "10.0.0.0/8"])
}

fn both() -> [ForwardedIp; 2] {
    [
        ForwardedIp::x_forwarded_for(ours()),
        ForwardedIp::x_forwarded_for(TrustedProxies::count_including_peer(1)),
    ]
}

/// An axum server behind this layer.
async fn serve(layer: RateLimitLayer) -> SocketAddr {
    serve_at(TcpListener::bind("127.0.0.1:0").await.unwrap(), layer)
}

fn serve_at(listener: TcpListener, layer: RateLimitLayer) -> SocketAddr {
    let hello = get(async || "hello");
    let app = Router::new().route("/", hello).layer(layer);
    let address = listener.local_addr().unwrap();
    let make = service_fn(move |stream: IncomingStream<'_, TcpListener>| {
        let peer: SocketAddr = *stream.remote_addr();
        ready(Ok::<_, Infallible>(Extension(peer).layer(app.clone())))
    });
    tokio::spawn(async { axum::serve(listener, make).await });
    address
}

/// Sends these header lines. Returns the status.
async fn send(server: SocketAddr, lines: &[(&str, &[u8])]) -> u16 {
    let mut request = Request::get(format!("http://{server}/"));
    for (name, value) in lines {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).unwrap();
    let client = Client::builder(TokioExecutor::new()).build_http();
    client.request(request).await.unwrap().status().as_u16()
}

/// The key that a real server charges for these lines, or the status of a rejection.
async fn who(extractor: impl KeyExtractor, lines: &[(&str, &str)]) -> Result<String, u16> {
    let store = Scripted::allowing();
    let policy = Policy::parse("ip", "1/1s").unwrap();
    let server = serve(RateLimitLayer::new(store.clone()).limit(policy, extractor)).await;
    let lines: Vec<(&str, &[u8])> = lines.iter().map(|it| (it.0, it.1.as_bytes())).collect();
    match send(server, &lines).await {
        200 => Ok(charged(&store)),
        status => Err(status),
    }
}

fn charged(store: &Arc<Scripted>) -> String {
    let checks = store.checks();
    let keys = checks.iter().flat_map(|check| check.charges());
    let text = |key: &Key| String::from_utf8(key.value().to_vec()).unwrap();
    keys.map(|charge| text(charge.key())).collect()
}

/// A head from this peer, or without a peer.
fn head<'a>(peer: &str, lines: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Parts {
    let mut head = Request::new(()).into_parts().0;
    if let Ok(peer) = peer.parse() {
        head.extensions.insert(SocketAddr::new(peer, 1));
    }
    for (name, value) in lines {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        head.headers
            .append(name, HeaderValue::from_bytes(value).unwrap());
    }
    head
}

/// In each row: the headers that are read, each with the trusted proxies (a count, a name, or `ours`); the peer, or `-`;
/// the lines that were sent, of the read header unless another is named; and the client, or the kind of the error.
const ROWS: &str = r#"
# A made-up leftmost entry is never believed. All lines of a header are one list in order.
xff, xff 1 | 10.0.0.1 | 6.6.6.6, 10.9.9.9, 203.0.113.7 | 203.0.113.7
forwarded | 10.0.0.1 | for=6.6.6.6, For="203.0.113.7:1";proto=https, for=10.0.0.1 | 203.0.113.7
xff, xff 1 | 10.0.0.1 | 6.6.6.6 && accept: */* && 203.0.113.7 | 203.0.113.7
xff | 10.0.0.1 | 6.6.6.6,203.0.113.7 && 10.0.0.2 && 10.0.0.1 | 203.0.113.7
# A header that was not chosen is never read.
xff, xff 1 | 10.0.0.1 | x-real-ip: 6.6.6.6 && forwarded: for=6.6.6.6 && x-forwarded: 6.6.6.6 | Missing
xff, xff 1 | 10.0.0.1 | x-real-ip: 6.6.6.6 && true-client-ip: 6.6.6.6 && 203.0.113.7 | 203.0.113.7
x-real-ip | 10.0.0.1 | x-forwarded-for: 6.6.6.6 && 203.0.113.7 | 203.0.113.7
# An entry that cannot be read is an error, and never another entry.
xff, xff 1 | 10.0.0.1 | 6.6.6.6, unknown | Malformed
xff, xff 1 | 10.0.0.1 | 6.6.6.6, _hidden | Malformed
xff, xff 1 | 10.0.0.1 | 6.6.6.6, "" | Malformed
xff, xff 1 | 10.0.0.1 | 6.6.6.6, 203.0.113 | Malformed
xff, xff 1 | 10.0.0.1 | 6.6.6.6, 0.0.0.0 | Malformed
xff, xff 1 | 10.0.0.1 | 6.6.6.6, [::1 | Malformed
forwarded, forwarded 1 | 10.0.0.1 | for=6.6.6.6, for=unknown | Malformed
forwarded, forwarded 1 | 10.0.0.1 | for=6.6.6.6, for=_hidden | Malformed
forwarded, forwarded 1 | 10.0.0.1 | for=6.6.6.6, for="" | Malformed
forwarded, forwarded 1 | 10.0.0.1 | for=6.6.6.6, for=203.0.113 | Malformed
forwarded, forwarded 1 | 10.0.0.1 | for=6.6.6.6, for=0.0.0.0 | Malformed
forwarded, forwarded 1 | 10.0.0.1 | for=6.6.6.6, for=[::1 | Malformed
# Quotes that a client left open do not reach the text that the proxy wrote, in the same line or the next.
forwarded, forwarded 1 | 10.0.0.1 | for="6.6.6.6, for=203.0.113.7;by="[::1]" | 203.0.113.7
forwarded, forwarded 1 | 10.0.0.1 | for="6.6.6.6\, for=203.0.113.7;by="[::1]" | 203.0.113.7
forwarded, forwarded 1 | 10.0.0.1 | for=6.6.6.6;host=", for=203.0.113.7;by="[::1]" | 203.0.113.7
forwarded, forwarded 1 | 10.0.0.1 | ", for=203.0.113.7;by="[::1]" | 203.0.113.7
forwarded, forwarded 1 | 10.0.0.1 | \", for=203.0.113.7;by="[::1]" | 203.0.113.7
forwarded, forwarded 1 | 10.0.0.1 | for="6.6.6.6\", for=6.6.6.6, for=203.0.113.7;by="[::1]" | 203.0.113.7
forwarded, forwarded 1 | 10.0.0.1 | ;;;=="",", for=203.0.113.7;by="[::1]" | 203.0.113.7
forwarded, forwarded 1 | 10.0.0.1 | for="6.6.6.6 && for=203.0.113.7 | 203.0.113.7
forwarded, forwarded 1 | 10.0.0.1 | for="6.6.6.6\", for=6.6.6.6 && for=203.0.113.7 | 203.0.113.7
# Within quotes, a host separates nothing.
forwarded, forwarded 1 | 10.0.0.1 | for=203.0.113.7;host="a, for=6.6.6.6" | 203.0.113.7
forwarded, forwarded 1 | 10.0.0.1 | for=203.0.113.7;host="a, for=6.6.6.6;x=" | 203.0.113.7
forwarded, forwarded 1 | 10.0.0.1 | for=203.0.113.7;host="a;for=6.6.6.6" | 203.0.113.7
forwarded, forwarded 1 | 10.0.0.1 | for=203.0.113.7;host="\", for=6.6.6.6;x=\"" | 203.0.113.7
forwarded, forwarded 1 | 10.0.0.1 | for=203.0.113.7;host="\\\", for=6.6.6.6" | 203.0.113.7
# Past the proxy, a client is its own address. No network is trusted that was not named.
xff, forwarded, x-real-ip | 192.0.2.1 | xff: 6.6.6.6 && forwarded: for=6.6.6.6 && x-real-ip: 6.6.6.6 | 192.0.2.1
xff, forwarded, x-real-ip | 192.0.2.1 | xff: garbage && forwarded: " && x-real-ip: a, b | 192.0.2.1
xff none | 127.0.0.1 | 6.6.6.6 | 127.0.0.1
xff 0 | 203.0.113.7 | 6.6.6.6 | 203.0.113.7
# Plain and mapped IPv4 are one proxy and one client, and so are translated addresses that may be translated.
xff, xff mapped | 127.0.0.1 | 203.0.113.7, 10.0.0.2 | 203.0.113.7
xff, xff mapped | ::ffff:127.0.0.1 | ::ffff:203.0.113.7, ::FFFF:a00:2 | 203.0.113.7
xff | 64:ff9b::127.0.0.1 | 203.0.113.7 | 64:ff9b::7f00:1
xff | 64:ff9b::10.0.0.1 | 203.0.113.7 | 64:ff9b::a00:1
xff | 10.0.0.1 | 203.0.113.7, 64:ff9b::10.0.0.1 | 64:ff9b::a00:1
xff | 64:ff9b::8.8.8.8 | 203.0.113.7 | 203.0.113.7
# A count of proxies is the position from the right. Entries of proxies need not be addresses.
xff 1 | 192.0.2.1 | 6.6.6.6, 203.0.113.7, 198.51.100.1 | 198.51.100.1
xff 2 | 192.0.2.1 | 6.6.6.6, 203.0.113.7, 198.51.100.1 | 203.0.113.7
xff 3 | 192.0.2.1 | 6.6.6.6, 203.0.113.7, 198.51.100.1 | 6.6.6.6
xff 4 | 192.0.2.1 | 6.6.6.6, 203.0.113.7, 198.51.100.1 | Malformed
xff 1, xff 2, xff 3, xff 4 | 192.0.2.1 | | Missing
xff 2 | 10.0.0.1 | 6.6.6.6, 203.0.113.7, unix: | 203.0.113.7
forwarded 2 | 10.0.0.1 | for=203.0.113.7, for=_gateway | 203.0.113.7
forwarded 2 | - | for=203.0.113.7,x | 203.0.113.7
# An empty element of a list is no entry.
xff, xff 2 | 10.0.0.1 | 203.0.113.7,,10.0.0.2 | 203.0.113.7
xff, xff 2 | 10.0.0.1 | 203.0.113.7, 10.0.0.2, | 203.0.113.7
xff, xff 2 | 10.0.0.1 | 203.0.113.7 , 	,, 10.0.0.2 , | 203.0.113.7
xff, xff 2 | 10.0.0.1 | 203.0.113.7 &&  && 10.0.0.2 && | 203.0.113.7
xff, xff 2 | 10.0.0.1 | , 203.0.113.7, && 10.0.0.2 | 203.0.113.7
xff, xff 2 | 10.0.0.1 | 6.6.6.6, && 6.6.6.6,, 203.0.113.7, 10.0.0.2 | 203.0.113.7
forwarded, forwarded 2 | 10.0.0.1 | for=203.0.113.7,,for=10.0.0.2 && | 203.0.113.7
forwarded, forwarded 2 | 10.0.0.1 | , for=203.0.113.7 , 	,, && for=10.0.0.2 , | 203.0.113.7
forwarded, forwarded 2 | 10.0.0.1 | for=6.6.6.6,, for=203.0.113.7, && for=10.0.0.2 | 203.0.113.7
xff 3 | 10.0.0.1 | ,,203.0.113.7,,10.0.0.2 | Malformed
# Where every address is a trusted proxy, the leftmost is the client. Without an entry, the proxy is not the client.
xff | 10.0.0.1 | 10.0.0.3, 10.0.0.2 | 10.0.0.3
xff, forwarded, x-real-ip | 10.0.0.1 | | Missing
xff | - | 203.0.113.7 | Misconfigured
# A single value is one line and one address.
x-real-ip, x-real-ip 3 | 10.0.0.1 | 203.0.113.7:1 | 203.0.113.7
x-real-ip, x-real-ip 3 | 10.0.0.1 | 10.0.0.9 | 10.0.0.9
x-real-ip, x-real-ip 3 | 10.0.0.1 | 203.0.113.7 && 203.0.113.7 | Malformed
x-real-ip, x-real-ip 3 | 10.0.0.1 | 6.6.6.6, 203.0.113.7 | Malformed
x-real-ip, x-real-ip 3 | 10.0.0.1 | 203.0.113.7, | Malformed
x-real-ip, x-real-ip 3 | 10.0.0.1 | unknown | Malformed
"#;

fn extractor(header: &str, trusted: &str) -> ForwardedIp {
    let trusted = match trusted {
        "ours" => networks(&["127.0.0.0/8", "10.0.0.0/8", "8.8.8.0/24"]),
        "mapped" => networks(&["::ffff:127.0.0.0/104", "::ffff:10.0.0.0/104"]),
        "none" => networks(&[]),
        count => TrustedProxies::count_including_peer(count.parse().unwrap()),
    };
    match header {
        "xff" => ForwardedIp::x_forwarded_for(trusted),
        "forwarded" => ForwardedIp::forwarded(trusted),
        one => ForwardedIp::header(one.parse().unwrap(), trusted),
    }
}

#[test]
fn each_row_names_its_client() {
    let rows = ROWS
        .lines()
        .filter(|it| !it.is_empty() && !it.starts_with('#'));
    for row in rows {
        let [readers, peer, sent, expected] = row
            .split('|')
            .map(|it| it.trim_matches(' '))
            .collect::<Vec<_>>()[..]
        else {
            panic!("{row}");
        };
        for reader in readers.split(", ") {
            let (header, trusted) = reader.split_once(' ').unwrap_or((reader, "ours"));
            let sent = sent.split("&&").filter(|_| !sent.is_empty());
            let lines = sent.map(|line| line.trim_matches(' ')).map(|line| {
                let (name, value) = line.split_once(": ").unwrap_or((header, line));
                (if name == "xff" { XFF } else { name }, value.as_bytes())
            });
            let client = extractor(header, trusted).address(&head(peer, lines));
            let client = client.map_or_else(|it| format!("{:?}", it.kind()), |it| it.to_string());
            assert_eq!(client, expected, "{reader}: {row}");
        }
    }
}

#[test]
fn no_more_than_64_elements_of_a_list_are_read() {
    let ip = ForwardedIp::x_forwarded_for(ours());
    for (commas, is_read) in [(63, true), (64, false)] {
        let line = format!("{REAL}{}", ",".repeat(commas));
        let client = ip.address(&head("10.0.0.1", [(XFF, line.as_bytes())]));
        assert_eq!(client.is_ok(), is_read);
    }
}

#[tokio::test]
async fn a_header_malformed_on_purpose_lets_no_request_through() {
    for ip in both() {
        let lines = [(XFF, "garbage")];
        assert_eq!(who(ip.clone().or_skip(), &lines).await, Err(400));
        let shared = ip.clone().or_shared(Key::new("ip", "shared"));
        assert_eq!(who(shared, &lines).await, Err(400));
        assert_eq!(who(ip.or(Key::new("ip", "other")), &lines).await, Err(400));
    }
}

#[tokio::test]
async fn a_new_ipv6_address_for_each_request_is_one_client() {
    let ip = ForwardedIp::x_forwarded_for(ours());
    let policy = Policy::parse("ip", "3/1d").unwrap();
    let layer = RateLimitLayer::new(MemoryStore::new()).limit(policy, ip);
    let server = serve(layer).await;
    let mut statuses = Vec::new();
    for n in 1..=5 {
        let line = format!("2001:db8:1:2:{n}::{n}");
        statuses.push(send(server, &[(XFF, line.as_bytes())]).await);
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!(send(server, &[(XFF, b"2001:db8:1:3::1")]).await, 200);
}

#[tokio::test]
async fn limits_of_several_widths_are_one_check_and_all_or_nothing() {
    let ip = ForwardedIp::x_forwarded_for(ours());
    let layer = |store| {
        RateLimitLayer::new(store)
            .limit(Policy::parse("ip-64", "2/1d").unwrap(), ip.clone())
            .limit(
                Policy::parse("ip-56", "3/1d").unwrap(),
                ip.clone().ipv6_prefix(56),
            )
            .limit(
                Policy::parse("ip-48", "4/1d").unwrap(),
                ip.clone().ipv6_prefix(48),
            )
    };
    let store = Scripted::allowing();
    let server = serve(layer(sluicegate::Limiter::new(store.clone()))).await;
    assert_eq!(send(server, &[(XFF, b"2001:db8:1:2ff::1")]).await, 200);
    assert_eq!(store.checks().len(), 1);
    assert_eq!(
        charged(&store),
        "2001:db8:1:2ff::/64\
         2001:db8:1:200::/56\
         2001:db8:1::/48"
    );

    let server = serve(layer(sluicegate::Limiter::new(MemoryStore::new()))).await;
    for (client, expected) in [
        ("2001:db8:1:201::1", 200),
        ("2001:db8:1:201::2", 200),
        ("2001:db8:1:201::3", 429), // its /64 is used up
        ("2001:db8:1:202::1", 200), // and was not charged to the others
        ("2001:db8:1:203::1", 429), // their /56 is used up
        ("2001:db8:1:301::1", 200),
        ("2001:db8:1:401::1", 429), // their /48 is used up
        ("2001:db8:2::1", 200),
    ] {
        let status = send(server, &[(XFF, client.as_bytes())]).await;
        assert_eq!(status, expected, "{client}");
    }
}

#[tokio::test]
async fn a_proxy_that_calls_a_socket_of_both_protocols_is_the_same_proxy() {
    let Ok(listener) = TcpListener::bind("[::]:0").await else {
        eprintln!("skipped: this machine has no IPv6");
        return;
    };
    let store = Scripted::allowing();
    let ip = ForwardedIp::x_forwarded_for(networks(&["127.0.0.0/8"]));
    let policy = Policy::parse("ip", "1/1s").unwrap();
    let layer = RateLimitLayer::new(store.clone()).limit(policy, ip);
    let port = serve_at(listener, layer).port();
    // Over IPv4, this server sees `::ffff:127.0.0.1`.
    let server = SocketAddr::from(([127, 0, 0, 1], port));
    assert_eq!(send(server, &[(XFF, REAL.as_bytes())]).await, 200);
    assert_eq!(charged(&store), REAL);
}

#[tokio::test]
async fn ports_brackets_zones_and_spelling_make_no_second_client() {
    for text in ["203.0.113.7", "203.0.113.7:1", "[::ffff:203.0.113.7]:2"] {
        for ip in both() {
            assert_eq!(who(ip, &[(XFF, text)]).await.unwrap(), REAL, "{text}");
        }
    }
    for text in [
        "2001:db8::7",
        "[2001:DB8:0::7]",
        "[2001:0db8::7%eth0]:1",
        "2001:db8::7%1",
    ] {
        for ip in both() {
            let client = who(ip, &[(XFF, text)]).await.unwrap();
            assert_eq!(client, "2001:db8::/64", "{text}");
        }
        let line = format!("FOR=\"{text}\"");
        let ip = ForwardedIp::forwarded(ours());
        let client = who(ip, &[("forwarded", &line)]).await.unwrap();
        assert_eq!(client, "2001:db8::/64", "{text}");
    }
}

#[tokio::test]
async fn no_more_than_64_entries_or_4_kib_are_read() {
    let fill = |entry: &str, times: usize| [entry].repeat(times).join(",");
    let deepest = TrustedProxies::count_including_peer(64);
    let deepest = ForwardedIp::x_forwarded_for(deepest);
    let ip = ForwardedIp::x_forwarded_for(ours());
    let (read, rejected) = (Ok(REAL.to_owned()), Err(400));
    for (ip, line, expected) in [
        (&ip, format!("{},{REAL}", fill("6.6.6.6", 40_000)), &read),
        (&ip, format!("{},{REAL}", "x".repeat(100_000)), &read),
        (&ip, format!("{REAL},{}", fill("10.0.0.1", 63)), &read),
        (&ip, format!("{REAL},{}", fill("10.0.0.1", 64)), &rejected),
        (&ip, format!("{REAL},{}10.0.0.1", " ".repeat(4_000)), &read),
        (
            &ip,
            format!("{REAL},{}10.0.0.1", " ".repeat(4_096)),
            &rejected,
        ),
        (&deepest, format!("{REAL},{}", fill("10.0.0.1", 63)), &read),
    ] {
        let answer = who(ip.clone(), &[(XFF, &line)]).await;
        assert_eq!(answer, *expected, "{} bytes", line.len());
    }

    let lines = [(XFF, "10.0.0.1")].repeat(80);
    assert_eq!(who(ip, &lines).await, rejected);
    let quoted = format!("for=\"{}", "x".repeat(100_000));
    let forwarded = ForwardedIp::forwarded(ours());
    assert_eq!(who(forwarded, &[("forwarded", &quoted)]).await, rejected);
}

#[test]
fn no_error_and_no_debug_output_holds_what_a_client_wrote() {
    let ip = ForwardedIp::x_forwarded_for(ours());
    let error = ip
        .address(&head("10.0.0.1", [(XFF, &b"sesame"[..])]))
        .unwrap_err();
    assert!(!format!("{error} {error:?} {ip:?}").contains("sesame"));
}

#[test]
#[should_panic(expected = "must be at most 64")]
fn a_count_of_more_proxies_than_are_read_is_an_error_when_built() {
    let _ = TrustedProxies::count_including_peer(65);
}

#[test]
#[should_panic(expected = "32 to 128 bits")]
fn a_network_that_is_too_wide_is_an_error_when_built() {
    let _ = ForwardedIp::x_forwarded_for(ours()).ipv6_prefix(31);
}

#[test]
#[should_panic(expected = "32 to 128 bits")]
fn a_network_of_more_bits_than_an_address_has_is_an_error_when_built() {
    let _ = ForwardedIp::x_forwarded_for(ours()).ipv6_prefix(129);
}

#[test]
fn public_types_are_send_and_sync_and_clones_are_extractors() {
    fn check<T: Send + Sync + Clone + std::fmt::Debug + 'static>() {}
    check::<ForwardedIp>();
    check::<TrustedProxies>();
    check::<Cidr>();
    let ip = ForwardedIp::x_forwarded_for(ours());
    let shared: Arc<dyn KeyExtractor> = Arc::new(ip.clone());
    let head = head("10.0.0.1", [(XFF, REAL.as_bytes())]);
    let keys: Result<Keys, ExtractError> = shared.extract(&head);
    assert_eq!(keys, ip.extract(&head));
}

/// Header values of the parts that such headers have, and of other parts.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        3 => prop::sample::select(vec![
            REAL, WISH, "10.0.0.1", "2001:db8::7", "[2001:db8::7]:1", "::ffff:10.0.0.2", ":80",
            "%eth0", "unknown", "_x", "for=", "FOR=", "by=", "host=", "\"", "\\", ";", " ", "\t",
        ]).prop_map(|it| it.as_bytes().to_vec()),
        2 => Just(b",".to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..8),
    ];
    let line = prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat());
    line.prop_filter("no header value", |it| HeaderValue::from_bytes(it).is_ok())
}

fn lines() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(line(), 0..4)
}

/// All addresses that occur anywhere in a text.
fn addresses_in(text: &[u8]) -> Vec<IpAddr> {
    let text = String::from_utf8_lossy(text);
    let pieces = text.split(|it: char| !it.is_ascii_hexdigit() && !".:".contains(it));
    let forms = pieces.flat_map(|it| [Some(it), it.rsplit_once(':').map(|it| it.0)]);
    let addresses = forms.flatten().filter_map(|it| it.parse::<IpAddr>().ok());
    addresses.map(|it| it.to_canonical()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn whatever_the_lines_hold_the_answer_stands_in_them_or_is_the_peer_or_an_error(
        lines in lines(),
        proxies in 1usize..4,
        peer in prop::sample::select(vec!["10.0.0.1", "192.0.2.1"]),
    ) {
        for trusted in [ours(), TrustedProxies::count_including_peer(proxies)] {
            let by_count = format!("{trusted:?}").contains("Count");
            for (name, ip) in [
                (XFF, ForwardedIp::x_forwarded_for(trusted.clone())),
                ("forwarded", ForwardedIp::forwarded(trusted.clone())),
                ("x-real-ip", ForwardedIp::header(HeaderName::from_static("x-real-ip"), trusted.clone())),
            ] {
                let head = head(peer, lines.iter().map(|it| (name, &it[..])));
                let answer = ip.address(&head);
                if !by_count && peer == "192.0.2.1" {
                    prop_assert_eq!(answer.unwrap().to_string(), peer);
                } else if let Ok(answer) = answer {
                    prop_assert!(addresses_in(&lines.join(&b","[..])).contains(&answer));
                }
            }
        }
    }

    #[test]
    fn whatever_a_client_writes_first_changes_nothing(lines in lines(), joined in any::<bool>()) {
        for (name, written) in [
            (XFF, "203.0.113.7, 10.0.0.2"),
            ("forwarded", "for=203.0.113.7;host=\"a, \\\"for=6.6.6.6\", by=x;for=\"10.0.0.2:1\""),
        ] {
            let mut lines = lines.clone();
            match lines.last_mut().filter(|_| joined) {
                Some(last) => last.extend_from_slice(format!(", {written}").as_bytes()),
                None => lines.push(written.into()),
            }
            let head = head("10.0.0.1", lines.iter().map(|it| (name, &it[..])));
            for trusted in [ours(), TrustedProxies::count_including_peer(2)] {
                let ip = match name {
                    XFF => ForwardedIp::x_forwarded_for(trusted),
                    _ => ForwardedIp::forwarded(trusted),
                };
                prop_assert_eq!(ip.address(&head).unwrap().to_string(), REAL);
            }
        }
    }
}
