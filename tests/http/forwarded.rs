//! Behind proxies, a client has the address in the entries of trusted proxies, and its own entries change nothing. One
//! test per attack.

use proptest::prelude::*;
use sluicegate::extract::Cidr;
use std::net::IpAddr;

use crate::prelude::*;

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

#[tokio::test]
async fn limits_of_several_widths_are_one_check_and_all_or_nothing() {
    let ip = ForwardedIp::x_forwarded_for(ours());
    let layer = empty()
        .limit(policy("ip-64", "2/1d"), ip.clone())
        .limit(policy("ip-56", "3/1d"), ip.clone().ipv6_prefix(56))
        .limit(policy("ip-48", "4/1d"), ip.ipv6_prefix(48));
    let app = Router::new().fallback(async || "hello").layer(layer);
    let script = "
        GET / x-forwarded-for: 2001:db8:1:201::1 -> 200
        GET / x-forwarded-for: 2001:db8:1:201::2 -> 200
        # Its /64 is used up, and nothing was charged to the others.
        GET / x-forwarded-for: 2001:db8:1:201::3 -> 429
        GET / x-forwarded-for: 2001:db8:1:202::1 -> 200
        # Their /56 is used up.
        GET / x-forwarded-for: 2001:db8:1:203::1 -> 429
        GET / x-forwarded-for: 2001:db8:1:301::1 -> 200
        # Their /48 is used up.
        GET / x-forwarded-for: 2001:db8:1:401::1 -> 429
        GET / x-forwarded-for: 2001:db8:2::1 -> 200
    ";
    walk(&app, script).await;
}

#[test]
fn no_more_than_64_entries_or_4_kib_are_read() {
    let fill = |entry: &str, times: usize| [entry].repeat(times).join(",");
    let read = |ip: &ForwardedIp, line: String, is_read: bool| {
        let client = ip.address(&head("10.0.0.1", [(XFF, line.as_bytes())]));
        let client = client.ok().map(|it| it.to_string());
        let expected = is_read.then(|| REAL.to_owned());
        assert_eq!(client, expected, "{} bytes", line.len());
    };
    let ip = ForwardedIp::x_forwarded_for(ours());
    read(&ip, format!("{},{REAL}", fill("6.6.6.6", 40_000)), true);
    read(&ip, format!("{},{REAL}", "x".repeat(100_000)), true);
    read(&ip, format!("{REAL},{}", fill("10.0.0.1", 63)), true);
    read(&ip, format!("{REAL},{}", fill("10.0.0.1", 64)), false);
    read(&ip, format!("{REAL},{}10.0.0.1", " ".repeat(4_000)), true);
    read(&ip, format!("{REAL},{}10.0.0.1", " ".repeat(4_096)), false);
    read(&ip, format!("{REAL}{}", ",".repeat(63)), true);
    read(&ip, format!("{REAL}{}", ",".repeat(64)), false);
    let deepest = TrustedProxies::count_including_peer(64);
    let deepest = ForwardedIp::x_forwarded_for(deepest);
    read(&deepest, format!("{REAL},{}", fill("10.0.0.1", 63)), true);

    let kind = |ip: &ForwardedIp, head: &Parts| ip.address(head).unwrap_err().kind();
    let lines = [(XFF, &b"10.0.0.1"[..])].repeat(80);
    let lines = head("10.0.0.1", lines);
    assert_eq!(kind(&ip, &lines), ExtractErrorKind::Malformed);
    let quoted = format!("for=\"{}", "x".repeat(100_000));
    let head = head("10.0.0.1", [("forwarded", quoted.as_bytes())]);
    let forwarded = ForwardedIp::forwarded(ours());
    assert_eq!(kind(&forwarded, &head), ExtractErrorKind::Malformed);
}

#[test]
fn no_error_and_no_debug_output_holds_what_a_client_wrote() {
    let ip = ForwardedIp::x_forwarded_for(ours());
    let error = ip
        .address(&head("10.0.0.1", [(XFF, &b"sesame"[..])]))
        .unwrap_err();
    assert!(!format!("{error} {error:?} {ip:?}").contains("sesame"));
}

panics! {
    a_count_of_more_proxies_than_are_read_is_an_error_when_built: TrustedProxies::count_including_peer(65) => "must be at most 64";
    a_network_that_is_too_wide_is_an_error_when_built: ForwardedIp::x_forwarded_for(ours()).ipv6_prefix(31) => "32 to 128 bits";
    a_network_of_more_bits_than_an_address_has_is_an_error_when_built: ForwardedIp::x_forwarded_for(ours()).ipv6_prefix(129) => "32 to 128 bits";
}

/// Header values of the parts that such headers have, and of other parts.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        3 => prop::sample::select(vec![
            REAL, WISH, "10.0.0.1", "2001:db8::7", "[2001:db8::7]:1", "::ffff:10.0.0.2", ":80",
            "%eth0", "unknown", "_x", "for=", "FOR=", "by=", "host=", "\"", "\\", ";", " ", "\t",
        ]).prop_map(|it| it.as_bytes().to_vec()),
        2 => Just(b",".to_vec()),
        1 => prop::collection::vec(prop::num::u8::ANY, 0..8),
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
    fn whatever_a_client_writes_first_changes_nothing(lines in lines(), joined in prop::bool::ANY) {
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
