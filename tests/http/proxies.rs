//! Mistakes about the proxies in front of a service: each leads to one warning that names the mistake and its remedy.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
};

use http::{HeaderName, Request, Response, request::Parts};
use sluicegate::{
    ForwardedIp, Header, Key, KeyExtractor, MemoryStore, PeerIp, Policy, RateLimitLayer,
    extract::TrustedProxies,
};
use tower::{Layer, ServiceExt, service_fn};

use support::trace::traced;

const XFF: &str = "x-forwarded-for";

/// A request: the peer's address, and headers.
type Sent = (&'static str, Vec<(&'static str, String)>);

/// The warnings when a limit with this extractor gets these requests.
fn warned(extractor: impl KeyExtractor, requests: impl IntoIterator<Item = Sent>) -> Vec<String> {
    warned_of(
        &RateLimitLayer::new(MemoryStore::new())
            .limit(Policy::parse("ip", "99999/1m").unwrap(), extractor),
        requests,
    )
}

fn warned_of(layer: &RateLimitLayer, requests: impl IntoIterator<Item = Sent>) -> Vec<String> {
    traced(false, async {
        let inner = service_fn(async |_: Request<String>| {
            Ok::<_, Infallible>(Response::new(String::new()))
        });
        let service = layer.layer(inner);
        for (peer, headers) in requests {
            let request = headers
                .into_iter()
                .fold(Request::get("/"), |request, (name, value)| {
                    request.header(name, value)
                });
            let mut request = request.body(String::new()).unwrap();
            let peer: SocketAddr = format!("{peer}:50000").parse().unwrap();
            request.extensions_mut().insert(peer);
            service.clone().oneshot(request).await.unwrap();
        }
    })
}

fn networks(networks: &[&str]) -> TrustedProxies {
    TrustedProxies::networks(networks.iter().map(|it| it.parse().unwrap()))
}

fn count(proxies: usize) -> TrustedProxies {
    TrustedProxies::count_including_peer(proxies)
}

/// The address of one of 200 clients.
fn client(number: usize) -> String {
    format!("198.51.100.{}", number % 200)
}

/// Requests of many clients from one peer. The header contains the `value` of the client's address.
fn forwarded(
    peer: &'static str,
    value: impl Fn(String) -> String,
    requests: usize,
) -> impl Iterator<Item = Sent> {
    (0..requests).map(move |number| (peer, vec![(XFF, value(client(number)))]))
}

/// Requests without headers from proxies.
fn bare(peer: &'static str, requests: usize) -> impl Iterator<Item = Sent> {
    (0..requests).map(move |_| (peer, vec![]))
}

/// Asserts that there is one warning with all of these words, and without a client's address.
fn assert_warned(lines: &[String], words: &[&str]) {
    let [line] = lines else {
        panic!("{lines:?}");
    };
    assert!(line.starts_with("WARN misconfigured: "), "{line}");
    for word in words {
        assert!(line.contains(word), "{word}: {line}");
    }
    assert!(!line.contains("198.51.100."), "{line}");
}

const DOCKER: &str = "172.18.0.5";
const PROXY: &str = "10.0.0.1";

#[test]
fn trusted_networks_without_the_proxy_are_warned_of() {
    for requests in [100, 500] {
        let ip = ForwardedIp::x_forwarded_for(networks(&["10.0.0.0/8"]));
        let lines = warned(ip, forwarded(DOCKER, |client| client, requests));
        let words = [
            "x-forwarded-for",
            "`TrustedProxies::networks`",
            "peer=\"172.18.0.5\"",
        ];
        assert_warned(&lines, &words);
    }
    // The peer may be a client, so the address is personal data.
    let ip = ForwardedIp::x_forwarded_for(networks(&["10.0.0.0/8"]));
    let lines = warned(ip, forwarded("203.0.113.9", |client| client, 100));
    assert_warned(&lines, &["`TrustedProxies::networks`"]);
    assert!(!lines[0].contains("203.0.113.9"), "{lines:?}");
    // Another header than the configured one also shows that the peers are proxies.
    let ip = ForwardedIp::forwarded(networks(&["10.0.0.0/8"]));
    let lines = warned(ip, forwarded(DOCKER, |client| client, 100));
    assert_warned(
        &lines,
        &["header=\"forwarded\"", "`TrustedProxies::networks`"],
    );
}

#[test]
fn a_proxy_that_is_taken_for_the_client_is_warned_of() {
    let chain = |client| format!("6.6.6.6, {client}, 203.0.113.9");
    for ip in [
        ForwardedIp::x_forwarded_for(count(1)),
        ForwardedIp::x_forwarded_for(networks(&["10.0.0.0/8"])),
    ] {
        let lines = warned(ip, forwarded(PROXY, chain, 500));
        assert_warned(
            &lines,
            &["raise", "count_including_peer", "add its network"],
        );
    }
    // nginx behind another proxy sends both headers.
    let both = |number| {
        vec![
            (XFF, format!("{}, 203.0.113.9", client(number))),
            ("x-real-ip", "203.0.113.9".to_owned()),
        ]
    };
    let ip = ForwardedIp::header(
        HeaderName::from_static("x-real-ip"),
        networks(&["10.0.0.0/8"]),
    );
    let lines = warned(ip, (0..200).map(|number| (PROXY, both(number))));
    assert_warned(&lines, &["header=\"x-real-ip\"", "add its network"]);
}

#[test]
fn trusted_proxies_that_send_no_header_are_warned_of() {
    for trusted in [networks(&["10.0.0.0/8"]), count(1)] {
        let ip = ForwardedIp::x_forwarded_for(trusted);
        let lines = warned(ip, bare(PROXY, 200));
        assert_warned(
            &lines,
            &[
                "x-forwarded-for",
                "let the proxy add it",
                "`skip` health checks",
            ],
        );
    }
}

#[test]
fn a_count_that_is_too_high_is_warned_of() {
    let ip = ForwardedIp::x_forwarded_for(count(2));
    let lines = warned(ip, forwarded(PROXY, |client| client, 200));
    assert_warned(&lines, &["fewer addresses than proxies", "lower"]);
}

#[test]
fn proxies_that_hide_addresses_are_warned_of() {
    let ip = ForwardedIp::x_forwarded_for(networks(&["10.0.0.0/8"]));
    let lines = warned(ip, forwarded(PROXY, |_| "unknown".to_owned(), 200));
    assert_warned(
        &lines,
        &["holds no address", "neither `unknown` nor a name"],
    );
    // A proxy that adds a line instead of overwriting the header.
    let twice = |number| vec![("x-real-ip", client(number)), ("x-real-ip", client(number))];
    let ip = ForwardedIp::header(
        HeaderName::from_static("x-real-ip"),
        networks(&["10.0.0.0/8"]),
    );
    let lines = warned(ip, (0..200).map(|number| (PROXY, twice(number))));
    assert_warned(&lines, &["overwrite a header of one address"]);
}

#[test]
fn health_checks_before_the_first_clients_hide_no_mistake() {
    let chain = |client| format!("{client}, 203.0.113.9");
    let trusted = || networks(&["10.0.0.0/8"]);
    let checked = |peer, checks| bare(peer, checks);
    let one = |client| client;
    for checks in [11, 50] {
        let requests = || checked(DOCKER, checks).chain(forwarded(DOCKER, one, 200));
        let untrusted = ForwardedIp::x_forwarded_for(trusted());
        assert_warned(&warned(untrusted, requests()), &["networks"]);
        assert_warned(&warned(PeerIp, requests()), &["use `ForwardedIp`"]);

        let requests = checked(PROXY, checks).chain(forwarded(PROXY, chain, 200));
        let too_low = ForwardedIp::x_forwarded_for(count(1));
        assert_warned(&warned(too_low, requests), &["raise"]);

        let requests = checked(PROXY, checks).chain(forwarded(PROXY, one, 200));
        let too_high = ForwardedIp::x_forwarded_for(count(2));
        assert_warned(&warned(too_high, requests), &["lower"]);
    }
}

#[test]
fn an_extractor_and_its_clones_are_warned_of_once() {
    let ip = ForwardedIp::x_forwarded_for(count(2));
    let policy = |name| Policy::parse(name, "99999/1m").unwrap().shadow();
    let layer = RateLimitLayer::new(MemoryStore::new())
        .limit(policy("ip-64"), ip.clone())
        .limit(policy("ip-48"), ip.ipv6_prefix(48));
    let lines = warned_of(&layer, forwarded(PROXY, |client| client, 500));
    assert_warned(&lines, &["lower"]);
}

#[test]
fn services_that_are_right_about_their_proxies_are_not_warned() {
    type Chain = fn(String) -> String;
    let right: [(ForwardedIp, Chain); 4] = [
        (
            ForwardedIp::x_forwarded_for(networks(&["10.0.0.0/8"])),
            |client| client,
        ),
        (
            ForwardedIp::x_forwarded_for(networks(&["10.0.0.0/8"])),
            |client| format!("6.6.6.6, {client}, 10.0.0.2"),
        ),
        (ForwardedIp::x_forwarded_for(count(1)), |client| {
            format!("6.6.6.6, {client}")
        }),
        (ForwardedIp::x_forwarded_for(count(2)), |client| {
            format!("{client}, 203.0.113.9")
        }),
    ];
    for (ip, value) in right {
        let checks = bare(PROXY, 99).chain(forwarded(PROXY, value, 300));
        let lines = warned(ip.or_skip(), checks.chain(bare(PROXY, 300)));
        assert!(lines.is_empty(), "{lines:?}");
    }
}

#[test]
fn what_clients_make_up_is_no_mistake_of_the_service() {
    let trusted = || networks(&["10.0.0.0/8"]);
    // Some clients bypass the proxy and claim other addresses.
    let direct = forwarded("203.0.113.7", |client| client, 89);
    let mixed = direct
        .chain(forwarded(PROXY, |client| client, 11))
        .collect::<Vec<_>>();
    let mixed = std::iter::repeat_n(mixed, 5).flatten();
    let lines = warned(ForwardedIp::x_forwarded_for(trusted()), mixed);
    assert!(lines.is_empty(), "{lines:?}");

    // A single client behind its own proxy.
    let alone = |_| "192.168.0.7, 203.0.113.7".to_owned();
    let lines = warned(
        ForwardedIp::x_forwarded_for(count(1)),
        forwarded(PROXY, alone, 500),
    );
    assert!(lines.is_empty(), "{lines:?}");

    // Each of many clients claims to be many others.
    let liars = (0..500).map(|number| {
        let value = format!("{}, 203.0.113.{}", client(number), number / 80);
        (PROXY, vec![(XFF, value)])
    });
    let lines = warned(ForwardedIp::x_forwarded_for(count(1)), liars);
    assert!(lines.is_empty(), "{lines:?}");
}

#[test]
fn a_limit_that_falls_back_to_the_peer_is_warned_of_only_where_it_does() {
    let trusted = || networks(&["10.0.0.0/8"]);
    let forwarded = || forwarded(PROXY, |client| client, 300);
    let lines = warned(
        ForwardedIp::x_forwarded_for(trusted()).or(PeerIp),
        forwarded(),
    );
    assert!(lines.is_empty(), "{lines:?}");

    let lines = warned(Header::new("x-api-key").or(PeerIp), forwarded());
    assert_warned(&lines, &["use `ForwardedIp`"]);

    let never = PeerIp
        .only_when(|_: &Parts| false)
        .or(Key::new("service", "all"));
    let lines = warned(never, forwarded());
    assert!(lines.is_empty(), "{lines:?}");
}

#[test]
fn the_peers_of_the_proxy_protocol_are_the_clients_and_not_warned_of() {
    let from = |name: &'static str, value: fn(&str) -> String| {
        (0..300).map(move |number| {
            let peer = ["203.0.113.7", "203.0.113.8", "198.51.100.9"][number % 3];
            (peer, vec![(name, value(peer))])
        })
    };
    for requests in [
        from(XFF, str::to_owned),
        from(XFF, |peer| format!("6.6.6.6, {peer}")),
        from("forwarded", |peer| format!("for={peer};proto=https")),
    ] {
        assert_eq!(warned(PeerIp, requests), [""; 0]);
    }
    // The address of a proxy is further in, and the peer is another proxy.
    let behind = from(XFF, |peer| format!("{peer}, 10.0.0.2"));
    assert_warned(&warned(PeerIp, behind), &["use `ForwardedIp`"]);
}

#[test]
fn headers_that_clients_make_up_where_they_reach_the_service_directly_are_no_mistake() {
    let direct = |trusted| ForwardedIp::x_forwarded_for(trusted);
    // These headers have no effect: without a trusted proxy, the extractor reads none.
    for ip in [direct(networks(&[])), direct(count(0))] {
        let bot = forwarded("203.0.113.9", |client| client, 500);
        assert_eq!(warned(ip, bot), [""; 0]);
    }
    // A bot among other clients, and many bots at once.
    let among = |number: usize| match number % 2 {
        0 => ("203.0.113.9", vec![(XFF, client(number))]),
        _ => ("203.0.113.7", vec![]),
    };
    let lines = warned(direct(networks(&["10.0.0.0/8"])), (0..1_000).map(among));
    assert_eq!(lines, [""; 0]);
    let many = |number: usize| {
        let bots = ["203.0.113.7", "203.0.113.8", "203.0.113.9"];
        (bots[number % 3], vec![(XFF, client(number))])
    };
    let lines = warned(direct(networks(&["10.0.0.0/8"])), (0..1_000).map(many));
    assert_eq!(lines, [""; 0]);
    // Several proxies of the same kind.
    let proxies = |number: usize| {
        let proxies = ["172.18.0.5", "172.18.0.6"];
        (proxies[number % 2], vec![(XFF, client(number))])
    };
    let lines = warned(direct(networks(&["10.0.0.0/8"])), (0..100).map(proxies));
    assert_warned(&lines, &["`TrustedProxies::networks`", "172.18.0."]);
}

#[test]
fn one_client_through_many_nodes_of_a_network_is_not_taken_for_a_proxy() {
    let monitor = |number| {
        vec![
            (XFF, format!("203.0.113.9, {}", client(number))),
            ("cf-connecting-ip", "203.0.113.9".to_owned()),
        ]
    };
    let ip = ForwardedIp::header(
        HeaderName::from_static("cf-connecting-ip"),
        networks(&["10.0.0.0/8"]),
    );
    let lines = warned(ip, (0..300).map(|number| (PROXY, monitor(number))));
    assert_eq!(lines, [""; 0]);
}

#[test]
fn conditions_and_extractors_are_called_once_for_each_request() {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let condition = move |_: &Parts| counted.fetch_add(1, SeqCst) < u32::MAX;
    let counted = calls.clone();
    let first = move |_: &Parts| {
        counted.fetch_add(1, SeqCst);
        None::<Key>
    };
    let who = first.or(PeerIp).only_when(condition);
    let lines = warned(who, forwarded(PROXY, |client| client, 100));
    assert_warned(&lines, &["use `ForwardedIp`"]);
    assert_eq!(calls.load(SeqCst), 200);
    // A closure that returns the keys of `PeerIp` also limits by the peer.
    let own = |head: &Parts| PeerIp.extract(head);
    let lines = warned(own, forwarded(PROXY, |client| client, 100));
    assert_warned(&lines, &["use `ForwardedIp`"]);
}

#[test]
fn requests_after_the_first_ten_thousand_are_not_looked_at() {
    let ip = ForwardedIp::x_forwarded_for(networks(&["10.0.0.0/8"]));
    let right = forwarded(PROXY, |client| client, 10_000);
    let lines = warned(ip, right.chain(forwarded(DOCKER, |client| client, 500)));
    assert!(lines.is_empty(), "{lines:?}");
}
