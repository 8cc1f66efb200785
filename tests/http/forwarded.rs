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
    error::{ExtractError, ExtractErrorKind},
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

/// A head without a connection, from this peer.
fn head<'a>(peer: &str, lines: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Parts {
    let mut head = Request::new(()).into_parts().0;
    head.extensions
        .insert(SocketAddr::new(peer.parse().unwrap(), 1));
    for (name, value) in lines {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        head.headers
            .append(name, HeaderValue::from_bytes(value).unwrap());
    }
    head
}

fn address(
    ip: &ForwardedIp,
    peer: &str,
    lines: &[(&str, &str)],
) -> Result<IpAddr, ExtractErrorKind> {
    let lines = lines.iter().map(|it| (it.0, it.1.as_bytes()));
    ip.address(&head(peer, lines)).map_err(|error| error.kind())
}

fn is(ip: &str) -> Result<IpAddr, ExtractErrorKind> {
    Ok(ip.parse().unwrap())
}

#[tokio::test]
async fn a_made_up_leftmost_entry_is_never_believed() {
    for ip in both() {
        let lines = [(XFF, "6.6.6.6, 10.9.9.9, 203.0.113.7")];
        assert_eq!(who(ip, &lines).await.unwrap(), REAL);
    }
    let forwarded = ForwardedIp::forwarded(ours());
    let lines = [(
        "forwarded",
        "for=6.6.6.6, For=\"203.0.113.7:1\";proto=https, for=10.0.0.1",
    )];
    assert_eq!(who(forwarded, &lines).await.unwrap(), REAL);
}

#[tokio::test]
async fn all_lines_of_a_header_are_one_list_in_order() {
    for ip in both() {
        let lines = [(XFF, WISH), ("accept", "*/*"), (XFF, REAL)];
        assert_eq!(who(ip, &lines).await.unwrap(), REAL);
    }
    let ip = ForwardedIp::x_forwarded_for(ours());
    let lines = [
        (XFF, "6.6.6.6,203.0.113.7"),
        (XFF, "10.0.0.2"),
        (XFF, "10.0.0.1"),
    ];
    assert_eq!(who(ip, &lines).await.unwrap(), REAL);
}

#[tokio::test]
async fn a_header_that_was_not_chosen_is_never_read() {
    let others = [
        ("x-real-ip", WISH),
        ("forwarded", "for=6.6.6.6"),
        ("true-client-ip", WISH),
        ("x-forwarded", WISH),
    ];
    for ip in both() {
        assert_eq!(who(ip.clone(), &others).await, Err(400));
        let lines = [&others[..], &[(XFF, REAL)]].concat();
        assert_eq!(who(ip, &lines).await.unwrap(), REAL);
    }
    let single = ForwardedIp::header(HeaderName::from_static("cf-connecting-ip"), ours());
    let lines = [(XFF, WISH), ("cf-connecting-ip", REAL)];
    assert_eq!(who(single, &lines).await.unwrap(), REAL);
}

#[tokio::test]
async fn an_entry_that_cannot_be_read_is_an_error_and_never_another_entry() {
    for bad in [
        "unknown",
        "_hidden",
        "garbage",
        "\"\"",
        "203.0.113",
        "0.0.0.0",
        "[::1",
    ] {
        for ip in both() {
            let lines = [(XFF, format!("{WISH}, {bad}"))];
            assert_eq!(
                who(ip, &[(lines[0].0, &lines[0].1)]).await,
                Err(400),
                "{bad}"
            );
        }
        for trusted in [ours(), TrustedProxies::count_including_peer(1)] {
            let ip = ForwardedIp::forwarded(trusted);
            let line = format!("for={WISH}, for={bad}");
            assert_eq!(who(ip, &[("forwarded", &line)]).await, Err(400), "{bad}");
        }
    }
}

#[tokio::test]
async fn quotes_that_a_client_left_open_do_not_reach_what_the_proxy_wrote() {
    for sabotage in [
        "for=\"6.6.6.6",
        "for=\"6.6.6.6\\",
        "for=6.6.6.6;host=\"",
        "\"",
        "\\\"",
        "for=\"6.6.6.6\\\", for=6.6.6.6",
        ";;;==\"\",\"",
    ] {
        for trusted in [ours(), TrustedProxies::count_including_peer(1)] {
            let ip = ForwardedIp::forwarded(trusted);
            let joined = format!("{sabotage}, for=203.0.113.7;by=\"[::1]\"");
            let lines = [("forwarded", joined.as_str())];
            assert_eq!(who(ip.clone(), &lines).await.unwrap(), REAL, "{sabotage}");
            let lines = [("forwarded", sabotage), ("forwarded", "for=203.0.113.7")];
            assert_eq!(who(ip, &lines).await.unwrap(), REAL, "{sabotage}");
        }
    }
}

#[tokio::test]
async fn within_quotes_a_host_separates_nothing() {
    for host in [
        "a, for=6.6.6.6",
        "a, for=6.6.6.6;x=",
        "a;for=6.6.6.6",
        r#"\", for=6.6.6.6;x=\""#,
        r#"\\\", for=6.6.6.6"#,
    ] {
        for trusted in [ours(), TrustedProxies::count_including_peer(1)] {
            let ip = ForwardedIp::forwarded(trusted);
            let line = format!("for=203.0.113.7;host=\"{host}\"");
            assert_eq!(
                who(ip, &[("forwarded", &line)]).await.unwrap(),
                REAL,
                "{host}"
            );
        }
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
async fn past_the_proxy_a_client_is_its_own_address() {
    let elsewhere = || networks(&["10.0.0.0/8", "fd00::/8"]);
    for ip in [
        ForwardedIp::x_forwarded_for(elsewhere()),
        ForwardedIp::forwarded(elsewhere()),
        ForwardedIp::header(HeaderName::from_static("x-real-ip"), elsewhere()),
    ] {
        let lines = [
            (XFF, WISH),
            ("forwarded", "for=6.6.6.6"),
            ("x-real-ip", WISH),
        ];
        assert_eq!(who(ip.clone(), &lines).await.unwrap(), "127.0.0.1");
        let malformed = [(XFF, "garbage"), ("forwarded", "\""), ("x-real-ip", "a, b")];
        assert_eq!(who(ip, &malformed).await.unwrap(), "127.0.0.1");
    }
}

#[tokio::test]
async fn no_network_is_trusted_that_was_not_named() {
    let nobody = ForwardedIp::x_forwarded_for(TrustedProxies::networks([]));
    assert_eq!(who(nobody, &[(XFF, WISH)]).await.unwrap(), "127.0.0.1");
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
async fn plain_and_mapped_ipv4_are_one_proxy_and_one_client() {
    let mapped = || networks(&["::ffff:127.0.0.0/104", "::ffff:10.0.0.0/104"]);
    for trusted in [ours, mapped] {
        for client in ["203.0.113.7, 10.0.0.2", "::ffff:203.0.113.7, ::FFFF:a00:2"] {
            let ip = ForwardedIp::x_forwarded_for(trusted());
            assert_eq!(who(ip, &[(XFF, client)]).await.unwrap(), REAL, "{client}");
        }
    }
}

#[test]
fn an_address_that_must_not_be_translated_is_no_trusted_proxy() {
    let trusted = networks(&["127.0.0.0/8", "10.0.0.0/8", "8.8.8.0/24"]);
    let ip = ForwardedIp::x_forwarded_for(trusted);
    let sent = &[(XFF, REAL)][..];
    for peer in ["64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1"] {
        assert_eq!(address(&ip, peer, sent), is(peer));
        let entry = format!("{REAL}, {peer}");
        assert_eq!(address(&ip, "10.0.0.1", &[(XFF, &entry)]), is(peer));
    }
    assert_eq!(address(&ip, "64:ff9b::8.8.8.8", sent), is(REAL));
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
fn a_count_of_proxies_is_the_position_from_the_right() {
    let line = "6.6.6.6, 203.0.113.7, 198.51.100.1";
    let missing = Err(ExtractErrorKind::Missing);
    for (proxies, expected) in [
        (1, is("198.51.100.1")),
        (2, is(REAL)),
        (3, is(WISH)),
        (4, Err(ExtractErrorKind::Malformed)),
    ] {
        let ip = ForwardedIp::x_forwarded_for(TrustedProxies::count_including_peer(proxies));
        assert_eq!(address(&ip, "192.0.2.1", &[(XFF, line)]), expected);
        assert_eq!(address(&ip, "192.0.2.1", &[]), missing);
    }
}

#[test]
fn entries_of_proxies_that_are_counted_need_not_be_addresses() {
    let two = || TrustedProxies::count_including_peer(2);
    let ip = ForwardedIp::x_forwarded_for(two());
    let lines = [(XFF, "6.6.6.6, 203.0.113.7, unix:")];
    assert_eq!(address(&ip, "10.0.0.1", &lines), is(REAL));
    let ip = ForwardedIp::forwarded(two());
    let lines = [("forwarded", "for=203.0.113.7, for=_gateway")];
    assert_eq!(address(&ip, "10.0.0.1", &lines), is(REAL));

    let mut over_a_unix_socket = head("10.0.0.1", [("forwarded", &b"for=203.0.113.7,x"[..])]);
    over_a_unix_socket.extensions.clear();
    assert_eq!(ip.address(&over_a_unix_socket).unwrap().to_string(), REAL);
}

#[test]
fn an_empty_element_of_a_list_is_no_entry() {
    let two = || TrustedProxies::count_including_peer(2);
    for lines in [
        &["203.0.113.7,,10.0.0.2"][..],
        &["203.0.113.7, 10.0.0.2,"],
        &["203.0.113.7 , \t,, 10.0.0.2 , "],
        &["203.0.113.7", "", "10.0.0.2", ""],
        &[", 203.0.113.7,", "10.0.0.2"],
        &["6.6.6.6,", "6.6.6.6,, 203.0.113.7, 10.0.0.2"],
    ] {
        for trusted in [ours(), two()] {
            let ip = ForwardedIp::x_forwarded_for(trusted.clone());
            let sent: Vec<_> = lines.iter().map(|line| (XFF, *line)).collect();
            assert_eq!(address(&ip, "10.0.0.1", &sent), is(REAL), "{lines:?}");

            let ip = ForwardedIp::forwarded(trusted);
            let [real, proxy] = [REAL, "10.0.0.2"].map(|ip| (ip, format!("for={ip}")));
            let elements = |line: &&str| line.replace(real.0, &real.1).replace(proxy.0, &proxy.1);
            let sent: Vec<_> = lines.iter().map(elements).collect();
            let sent: Vec<_> = sent.iter().map(|line| ("forwarded", &**line)).collect();
            assert_eq!(address(&ip, "10.0.0.1", &sent), is(REAL), "{lines:?}");
        }
    }
    let ip = ForwardedIp::x_forwarded_for(ours());
    for (commas, expected) in [(63, is(REAL)), (64, Err(ExtractErrorKind::Malformed))] {
        let line = format!("{REAL}{}", ",".repeat(commas));
        assert_eq!(address(&ip, "10.0.0.1", &[(XFF, &line)]), expected);
    }
    let ip = ForwardedIp::x_forwarded_for(TrustedProxies::count_including_peer(3));
    let too_few = Err(ExtractErrorKind::Malformed);
    assert_eq!(
        address(&ip, "10.0.0.1", &[(XFF, ",,203.0.113.7,,10.0.0.2")]),
        too_few
    );
}

#[test]
fn where_every_address_is_a_trusted_proxy_the_leftmost_is_the_client() {
    let ip = ForwardedIp::x_forwarded_for(ours());
    let lines = [(XFF, "10.0.0.3, 10.0.0.2")];
    assert_eq!(address(&ip, "10.0.0.1", &lines), is("10.0.0.3"));
}

#[test]
fn a_trusted_proxy_that_names_no_client_is_not_the_client() {
    for ip in [
        ForwardedIp::x_forwarded_for(ours()),
        ForwardedIp::forwarded(ours()),
        ForwardedIp::header(HeaderName::from_static("x-real-ip"), ours()),
    ] {
        let missing = Err(ExtractErrorKind::Missing);
        assert_eq!(address(&ip, "10.0.0.1", &[]), missing);
    }
}

#[test]
fn without_a_peer_nobody_can_be_trusted_by_network() {
    let mut head = head("10.0.0.1", [(XFF, REAL.as_bytes())]);
    head.extensions.clear();
    let error = ForwardedIp::x_forwarded_for(ours())
        .address(&head)
        .unwrap_err();
    assert_eq!(error.kind(), ExtractErrorKind::Misconfigured);
}

#[test]
fn a_single_value_is_one_line_and_one_address() {
    for trusted in [ours(), TrustedProxies::count_including_peer(3)] {
        let ip = ForwardedIp::header(HeaderName::from_static("x-real-ip"), trusted);
        let at = |values: &[&str]| {
            let lines: Vec<_> = values.iter().map(|it| ("x-real-ip", *it)).collect();
            address(&ip, "10.0.0.1", &lines)
        };
        assert_eq!(at(&["203.0.113.7:1"]), is(REAL));
        assert_eq!(at(&["10.0.0.9"]), is("10.0.0.9"));
        for values in [
            &[REAL, REAL][..],
            &["6.6.6.6, 203.0.113.7"],
            &["203.0.113.7,"],
            &["unknown"],
        ] {
            assert_eq!(at(values), Err(ExtractErrorKind::Malformed), "{values:?}");
        }
    }
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
fn with_a_count_of_no_proxies_the_peer_is_the_client_and_no_header_is_read() {
    let ip = ForwardedIp::x_forwarded_for(TrustedProxies::count_including_peer(0));
    let head = head(REAL, [(XFF, WISH.as_bytes())]);
    assert_eq!(ip.address(&head), Ok(REAL.parse().unwrap()));
}

#[test]
#[should_panic(expected = "must be at most 64")]
fn a_count_of_more_proxies_than_are_read_is_an_error_when_built() {
    let _ = TrustedProxies::count_including_peer(65);
}

#[test]
fn a_name_that_no_header_has_is_an_error_of_its_type() {
    assert!("x real ip".parse::<HeaderName>().is_err());
    let ip = ForwardedIp::header("X-Real-IP".parse().unwrap(), ours());
    let head = head("10.0.0.1", [("x-real-ip", REAL.as_bytes())]);
    assert_eq!(ip.address(&head), Ok(REAL.parse().unwrap()));
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
