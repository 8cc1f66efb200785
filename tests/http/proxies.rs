//! Mistakes about the proxies in front of a service: each leads to one warning that names the mistake and its remedy.

use crate::prelude::*;

const XFF: &str = "x-forwarded-for";

/// A request: the peer's address, and headers.
type Sent = (&'static str, Vec<(&'static str, String)>);

/// The warnings when a limit with this extractor gets these requests.
fn warned(extractor: impl KeyExtractor, requests: impl IntoIterator<Item = Sent>) -> Vec<String> {
    let layer = empty().limit(policy("ip", "99999/1m"), extractor);
    warned_of(&layer, requests)
}

fn warned_of(layer: &RateLimitLayer, requests: impl IntoIterator<Item = Sent>) -> Vec<String> {
    traced(false, async {
        let service = layer.layer(hello());
        for (peer, headers) in requests {
            let headers: Vec<_> = headers.iter().map(|(name, it)| (*name, &it[..])).collect();
            let mut request = with(&headers);
            let peer: SocketAddr = format!("{peer}:50000").parse().unwrap();
            request.extensions_mut().insert(peer);
            service.clone().oneshot(request).await.unwrap();
        }
    })
}

fn xff(trusted: TrustedProxies) -> ForwardedIp {
    ForwardedIp::x_forwarded_for(trusted)
}

fn single(name: &'static str) -> ForwardedIp {
    ForwardedIp::header(HeaderName::from_static(name), ours())
}

fn ours() -> TrustedProxies {
    TrustedProxies::networks(["10.0.0.0/8".parse().unwrap()])
}

fn count(proxies: usize) -> TrustedProxies {
    TrustedProxies::count_including_peer(proxies)
}

/// The address of one of 200 clients.
fn client(number: usize) -> String {
    format!("198.51.100.{}", number % 200)
}

/// Requests of many clients from one peer. `value` has `C` for the client's address.
fn sent(peer: &'static str, value: &'static str, requests: usize) -> impl Iterator<Item = Sent> {
    let value = move |number| value.replace('C', &client(number));
    (0..requests).map(move |number| (peer, vec![(XFF, value(number))]))
}

/// Requests through an edge that has so many addresses, the last entries, in turn. `C` in the entries beyond them stands
/// for the address of one of 200 clients.
fn rotating(peer: &'static str, beyond: &'static str, edges: usize) -> impl Iterator<Item = Sent> {
    (0..400).map(move |number| {
        let beyond = beyond.replace('C', &client(number));
        let entries = format!("{beyond}, 152.233.33.{}", number % edges);
        (peer, vec![(XFF, entries)])
    })
}

/// Requests without headers from proxies.
fn bare(peer: &'static str, requests: usize) -> impl Iterator<Item = Sent> {
    (0..requests).map(move |_| (peer, vec![]))
}

/// Requests from the proxy with these headers.
fn proxied(
    headers: impl Fn(usize) -> Vec<(&'static str, String)>,
    requests: usize,
) -> impl Iterator<Item = Sent> {
    (0..requests).map(move |number| (PROXY, headers(number)))
}

/// Asserts that there is one warning with all of these words, and without a client's address.
fn assert_warned(lines: &[String], words: &[&str]) {
    assert_one(lines, &[&["WARN misconfigured: "], words].concat());
    for client in ["198.51.100.", "203.0.113.9"] {
        assert!(!lines[0].contains(client), "{lines:?}");
    }
}

const DOCKER: &str = "172.18.0.5";
const PROXY: &str = "10.0.0.1";

/// A test for each row: an extractor, requests, and the words of the only warning, or none where there is no warning.
macro_rules! warnings {
    ($($name:ident: $extractor:expr, $requests:expr => $words:expr;)*) => {$(
        #[test]
        fn $name() {
            let words: &[&str] = &$words;
            let lines = warned($extractor, $requests);
            match words {
                [] => assert_eq!(lines, [""; 0]),
                words => assert_warned(&lines, words),
            }
        }
    )*};
}

warnings! {
    trusted_networks_without_the_proxy_are_warned_of_once: xff(ours()), sent(DOCKER, "C", 500) => ["x-forwarded-for", "`TrustedProxies::networks`", "peer=\"172.18.0.5\""];
    a_peer_that_may_be_a_client_is_personal_data_and_in_no_warning: xff(ours()), sent("203.0.113.9", "C", 100) => ["`TrustedProxies::networks`"];
    another_header_than_the_configured_one_also_shows_that_the_peers_are_proxies:
        ForwardedIp::forwarded(ours()), sent(DOCKER, "C", 100) => ["header=\"forwarded\"", "`TrustedProxies::networks`"];
    a_proxy_that_is_taken_for_the_client_is_warned_of_by_a_count: xff(count(1)), sent(PROXY, "6.6.6.6, C, 203.0.113.9", 500) => ["raise", "count_including_peer", "add its network"];
    a_proxy_that_is_taken_for_the_client_is_warned_of_by_networks: xff(ours()), sent(PROXY, "6.6.6.6, C, 203.0.113.9", 500) => ["raise", "count_including_peer", "add its network"];
    // nginx behind another proxy sends both headers.
    a_proxy_that_is_taken_for_the_client_is_warned_of_by_a_single_header:
        single("x-real-ip"), proxied(|number| vec![(XFF, format!("{}, 203.0.113.9", client(number))), ("x-real-ip", "203.0.113.9".to_owned())], 200) =>
        ["header=\"x-real-ip\"", "add its network"];
    trusted_proxies_that_send_no_header_are_warned_of: xff(ours()), bare(PROXY, 200) => ["x-forwarded-for", "let the proxy add it", "`skip` health checks"];
    a_counted_proxy_that_sends_no_header_is_warned_of: xff(count(1)), bare(PROXY, 200) => ["x-forwarded-for", "let the proxy add it", "`skip` health checks"];
    a_count_that_is_too_high_is_warned_of: xff(count(2)), sent(PROXY, "C", 200) => ["fewer addresses than proxies", "lower"];
    proxies_that_hide_addresses_are_warned_of: xff(ours()), sent(PROXY, "unknown", 200) => ["holds no address", "neither `unknown` nor a name"];
    a_proxy_that_adds_a_line_instead_of_overwriting_the_header_is_warned_of:
        single("x-real-ip"), proxied(|number| vec![("x-real-ip", client(number)), ("x-real-ip", client(number))], 200) => ["overwrite a header of one address"];
    proxies_that_are_limited_by_their_address_are_warned_of_once: PeerIp, sent(PROXY, "C", 500) => ["a layer knows clients by `PeerIp`", "use `ForwardedIp`"];
    proxies_that_are_limited_by_their_address_are_warned_of_beside_health_checks: PeerIp, among(10) => ["use `ForwardedIp`"];
    proxies_are_warned_of_after_a_hundred_requests: PeerIp, sent(PROXY, "C", 99) => [];
    proxies_that_forward_fewer_than_nine_of_ten_requests_are_not_warned_of: PeerIp, among(11) => [];
    nobody_is_warned_of_proxies_without_a_limit_by_address: everybody(), sent(PROXY, "C", 500) => [];
    proxies_limited_by_their_network_are_warned_of: PeerIp.ipv6_prefix(56).or_skip(), sent(PROXY, "C", 100) => ["use `ForwardedIp`"];
    proxies_limited_in_place_of_a_key_are_warned_of: Header::new("x-api-key").or(PeerIp), sent(PROXY, "C", 300) => ["use `ForwardedIp`"];
    proxies_limited_beside_a_key_are_warned_of: PeerIp.and(everybody()), sent(PROXY, "C", 100) => ["use `ForwardedIp`"];
    proxies_limited_under_a_condition_are_warned_of:
        PeerIp.only_when(|head: &Parts| head.method == Method::GET), sent(PROXY, "C", 100) => ["use `ForwardedIp`"];
    a_closure_that_returns_the_keys_of_peers_also_limits_by_them: |head: &Parts| PeerIp.extract(head), sent(PROXY, "C", 100) => ["use `ForwardedIp`"];
    a_limit_that_never_falls_back_to_the_peer_is_not_warned_of: xff(ours()).or(PeerIp), sent(PROXY, "C", 300) => [];
    a_limit_by_the_peer_whose_condition_is_never_true_is_not_warned_of: PeerIp.only_when(|_: &Parts| false).or(everybody()), sent(PROXY, "C", 300) => [];
    some_health_checks_before_the_first_clients_hide_no_untrusted_proxy: xff(ours()), bare(DOCKER, 11).chain(sent(DOCKER, "C", 200)) => ["networks"];
    some_health_checks_before_the_first_clients_hide_no_limit_by_peers: PeerIp, bare(DOCKER, 11).chain(sent(DOCKER, "C", 200)) => ["use `ForwardedIp`"];
    some_health_checks_before_the_first_clients_hide_no_count_that_is_too_low: xff(count(1)), bare(PROXY, 11).chain(sent(PROXY, "C, 203.0.113.9", 200)) => ["raise"];
    some_health_checks_before_the_first_clients_hide_no_count_that_is_too_high: xff(count(2)), bare(PROXY, 11).chain(sent(PROXY, "C", 200)) => ["lower"];
    a_service_that_trusts_its_proxy_is_not_warned: xff(ours()).or_skip(), right("C") => [];
    a_service_that_trusts_its_chain_of_proxies_is_not_warned: xff(ours()).or_skip(), right("6.6.6.6, C, 10.0.0.2") => [];
    a_service_that_counts_its_proxy_is_not_warned: xff(count(1)).or_skip(), right("6.6.6.6, C") => [];
    a_service_that_counts_its_proxies_is_not_warned: xff(count(2)).or_skip(), right("C, 203.0.113.9") => [];
    clients_that_bypass_the_proxy_and_claim_other_addresses_are_no_mistake: xff(ours()), bypassing() => [];
    a_single_client_behind_its_own_proxy_is_no_mistake: xff(count(1)), sent(PROXY, "192.168.0.7, 203.0.113.7", 500) => [];
    clients_that_claim_to_be_many_others_are_no_mistake:
        xff(count(1)), proxied(|number| vec![(XFF, format!("{}, 203.0.113.{}", client(number), number / 80))], 500) => [];
    the_peers_of_the_proxy_protocol_are_the_clients: PeerIp, by_proxy_protocol(XFF, "P") => [];
    the_peers_of_the_proxy_protocol_are_the_clients_at_the_end_of_a_list: PeerIp, by_proxy_protocol(XFF, "6.6.6.6, P") => [];
    the_peers_of_the_proxy_protocol_are_the_clients_in_the_standard_header: PeerIp, by_proxy_protocol("forwarded", "for=P;proto=https") => [];
    peers_behind_which_the_header_names_a_proxy_are_proxies: PeerIp, by_proxy_protocol(XFF, "P, 10.0.0.2") => ["use `ForwardedIp`"];
    // These headers have no effect: without a trusted proxy, the extractor reads none.
    headers_that_a_bot_makes_up_are_no_mistake_without_networks: xff(TrustedProxies::networks([])), sent("203.0.113.9", "C", 500) => [];
    headers_that_a_bot_makes_up_are_no_mistake_without_proxies: xff(count(0)), sent("203.0.113.9", "C", 500) => [];
    a_bot_among_other_clients_is_no_mistake: xff(ours()), from(&["203.0.113.9", "203.0.113.7-"], 1_000) => [];
    many_bots_at_once_are_no_mistake: xff(ours()), from(&["203.0.113.7", "203.0.113.8", "203.0.113.9"], 1_000) => [];
    several_proxies_of_the_same_kind_are_warned_of: xff(ours()), from(&["172.18.0.5", "172.18.0.6"], 100) => ["`TrustedProxies::networks`", "172.18.0."];
    one_client_through_many_nodes_of_a_network_is_not_taken_for_a_proxy:
        single("cf-connecting-ip"),
        proxied(|number| vec![(XFF, format!("203.0.113.9, {}", client(number))), ("cf-connecting-ip", "203.0.113.9".to_owned())], 300) => [];
    an_edge_that_rotates_is_warned_of_by_a_count: xff(count(1)), rotating("100.64.0.2", "203.0.113.9", 60) => ["many addresses in turn", "read the header of one address", "count_including_peer"];
    an_edge_that_rotates_is_warned_of_by_networks: xff(ours()), rotating(PROXY, "203.0.113.9", 60) => ["many addresses in turn", "`TrustedProxies::networks`"];
    an_edge_that_rotates_among_two_addresses_is_warned_of: xff(count(1)), rotating(PROXY, "6.6.6.6, 203.0.113.9", 2) => ["many addresses in turn"];
    an_edge_that_rotates_is_warned_of_in_the_standard_header:
        ForwardedIp::forwarded(count(1)), proxied(|number| vec![("forwarded", format!("for=203.0.113.9, for=152.233.33.{}", number % 60))], 400) => ["header=\"forwarded\"", "many addresses in turn"];
    an_edge_that_rotates_is_warned_of_by_a_single_header:
        single("x-real-ip"), proxied(|number| {
            let edge = format!("152.233.33.{}", number % 60);
            vec![(XFF, format!("203.0.113.9, {edge}")), ("x-real-ip", edge)]
        }, 400) => ["header=\"x-real-ip\"", "many addresses in turn"];
    health_checks_before_the_first_clients_hide_no_edge_that_rotates: xff(count(1)), bare(PROXY, 50).chain(rotating(PROXY, "203.0.113.9", 60)) => ["many addresses in turn"];
    many_clients_behind_an_edge_that_rotates_are_no_mistake: xff(count(1)), rotating(PROXY, "C", 60) => [];
    many_clients_behind_one_proxy_are_no_mistake: xff(count(1)), rotating(PROXY, "", 60) => [];
    many_clients_that_claim_to_be_one_other_are_no_mistake: xff(count(1)), sent(PROXY, "6.6.6.6, C", 500) => [];
    a_client_behind_its_own_proxy_among_many_others_is_no_mistake:
        xff(count(1)), proxied(|number| vec![(XFF, if number % 9 == 0 { client(number % 4) } else { "192.168.0.7, 203.0.113.9".to_owned() })], 500) => [];
    a_single_client_that_moves_seldom_is_no_mistake:
        xff(count(1)), proxied(|number| vec![(XFF, format!("192.168.0.7, 203.0.113.{}", number / 12 % 3))], 500) => [];
    requests_after_the_first_ten_thousand_are_not_looked_at: xff(ours()), sent(PROXY, "C", 10_000).chain(sent(DOCKER, "C", 500)) => [];
}

/// Requests of which this many in each hundred were not forwarded, with both headers in turn.
fn among(direct: usize) -> impl Iterator<Item = Sent> {
    (0..500).map(move |number| {
        let name = [XFF, "forwarded"][number % 2];
        let forwarded = (number % 100 >= direct).then(|| (name, format!("for={}", client(number))));
        (PROXY, forwarded.into_iter().collect())
    })
}

/// Clients through a proxy that is configured rightly, with health checks.
fn right(value: &'static str) -> impl Iterator<Item = Sent> {
    let checks = bare(PROXY, 99).chain(sent(PROXY, value, 300));
    checks.chain(bare(PROXY, 300))
}

/// Most clients bypass the proxy.
fn bypassing() -> impl Iterator<Item = Sent> {
    let direct = sent("203.0.113.7", "C", 89);
    let mixed: Vec<_> = direct.chain(sent(PROXY, "C", 11)).collect();
    std::iter::repeat_n(mixed, 5).flatten()
}

/// Requests of three clients, with `P` for the peer's address in a header.
fn by_proxy_protocol(name: &'static str, value: &'static str) -> impl Iterator<Item = Sent> {
    (0..300).map(move |number| {
        let peer = ["203.0.113.7", "203.0.113.8", "198.51.100.9"][number % 3];
        (peer, vec![(name, value.replace('P', peer))])
    })
}

/// Requests from these peers in turn, with a header unless the peer ends with a dash.
fn from(peers: &'static [&'static str], requests: usize) -> impl Iterator<Item = Sent> {
    (0..requests).map(|number| {
        let peer = peers[number % peers.len()];
        match peer.strip_suffix('-') {
            Some(peer) => (peer, vec![]),
            None => (peer, vec![(XFF, client(number))]),
        }
    })
}

#[test]
fn an_extractor_and_its_clones_are_warned_of_once() {
    let ip = xff(count(2));
    let layer = empty()
        .limit(policy("ip-64", "99999/1m").shadow(), ip.clone())
        .limit(policy("ip-48", "99999/1m").shadow(), ip.ipv6_prefix(48));
    assert_warned(&warned_of(&layer, sent(PROXY, "C", 500)), &["lower"]);
}

#[test]
fn looking_up_the_blocks_of_proxies_is_warned_of_in_words_that_are_true() {
    let lines = warned_of(&empty().deny_blocked(PeerIp), sent(PROXY, "C", 100));
    assert_warned(&lines, &["use `ForwardedIp`"]);
    assert!(!lines[0].contains("limit"), "{lines:?}");
}

#[test]
fn conditions_and_extractors_are_called_once_for_each_request() {
    let calls = Arc::new(AtomicU32::new(0));
    let (counted, also_counted) = (calls.clone(), calls.clone());
    let condition = move |_: &Parts| counted.fetch_add(1, SeqCst) < u32::MAX;
    let first = move |_: &Parts| {
        also_counted.fetch_add(1, SeqCst);
        None::<Key>
    };
    let who = first.or(PeerIp).only_when(condition);
    assert_warned(&warned(who, sent(PROXY, "C", 100)), &["use `ForwardedIp`"]);
    assert_eq!(calls.load(SeqCst), 200);
}
