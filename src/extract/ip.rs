//! Keys from IP addresses: one form of each address, one key for each network.

use std::{
    io::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use http::{Extensions, HeaderMap, HeaderName, header::FORWARDED};

use crate::domain::{error::ExtractError, key::Key};

/// Room for the longest network: `ffff:…:ffff/128`.
const MAX_TEXT: usize = 39 + 4;

/// How many leading bits of an IPv6 address identify a client: the smallest network that a provider assigns to a
/// household.
pub(super) const DEFAULT_IPV6_PREFIX: u8 = 64;

pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Returns whether a request has a header that most proxies add.
pub(crate) fn is_forwarded(headers: &HeaderMap) -> bool {
    headers.contains_key(X_FORWARDED_FOR) || headers.contains_key(FORWARDED)
}

/// Refuses a shorter prefix, under which a provider and all of its customers would share one key.
pub(super) const fn checked_ipv6_prefix(bits: u8) -> u8 {
    assert!(
        32 <= bits && bits <= 128,
        "the prefix of an IPv6 network must be 32 to 128 bits"
    );
    bits
}

/// Returns the address at the other end of the connection, in canonical form.
pub(super) fn peer(extensions: &Extensions) -> Result<IpAddr, ExtractError> {
    let peer = match socket(extensions) {
        Some(peer) => peer,
        None => tonic(extensions)?,
    };
    let ip = canonical(peer.ip());
    if ip.is_unspecified() {
        return Err(UNSPECIFIED);
    }
    Ok(ip)
}

const NO_PEER: ExtractError = ExtractError::misconfigured(if cfg!(feature = "axum") {
    "no request has a peer address: serve the axum router with \
     `into_make_service_with_connect_info::<SocketAddr>()`; in tests, add a layer `MockConnectInfo(SocketAddr)`; in other \
     servers, insert a `SocketAddr` into the extensions of each request (tonic: feature `tonic`, over TCP)"
} else {
    "no request has a peer address. With axum: enable sluicegate's feature `axum` and serve the router with \
     `into_make_service_with_connect_info::<SocketAddr>()`; with tonic: feature `tonic`, over TCP; in other servers, \
     insert a `SocketAddr` into the extensions of each request"
});

const UNSPECIFIED: ExtractError = ExtractError::misconfigured(
    "the peer address is 0.0.0.0 or ::, which no peer has: use another one in `MockConnectInfo`, or whatever inserts it",
);

#[cfg(feature = "tonic")]
const DISCONNECTED: ExtractError =
    ExtractError::malformed("the connection was closed before its peer was known");

/// A plain address comes first: an acceptor of the PROXY protocol inserts one, while axum sees the load balancer's
/// address.
#[cfg(feature = "axum")]
fn socket(extensions: &Extensions) -> Option<SocketAddr> {
    use axum::extract::{ConnectInfo, connect_info::MockConnectInfo};

    let inserted = extensions.get::<SocketAddr>().copied();
    let real = || Some(extensions.get::<ConnectInfo<SocketAddr>>()?.0);
    let mock = || Some(extensions.get::<MockConnectInfo<SocketAddr>>()?.0);
    inserted.or_else(real).or_else(mock)
}

#[cfg(not(feature = "axum"))]
fn socket(extensions: &Extensions) -> Option<SocketAddr> {
    extensions.get().copied()
}

/// With TLS, tonic inserts this type beside `TlsConnectInfo`.
#[cfg(feature = "tonic")]
fn tonic(extensions: &Extensions) -> Result<SocketAddr, ExtractError> {
    let info = extensions.get::<tonic::transport::server::TcpConnectInfo>();
    info.ok_or(NO_PEER)?.remote_addr().ok_or(DISCONNECTED)
}

#[cfg(not(feature = "tonic"))]
const fn tonic(_: &Extensions) -> Result<SocketAddr, ExtractError> {
    Err(NO_PEER)
}

/// Returns the canonical form of an address: IPv4 that is mapped (`::ffff:0:0/96`) or translated (`64:ff9b::/96`) into
/// IPv6 becomes IPv4.
///
/// All translated addresses are in one `/64` and would otherwise share one key. But special networks must not be
/// translated (RFC 6052, 3.1): `64:ff9b::127.0.0.1` is not this machine, and not within `127.0.0.0/8`.
pub(super) fn canonical(ip: IpAddr) -> IpAddr {
    match translated(ip) {
        Some(v4) if !is_special(v4) => IpAddr::V4(v4),
        Some(_) => ip,
        None => ip.to_canonical(),
    }
}

/// Returns the IPv4 address that this one is a translation of, with the prefix of RFC 6052.
pub(super) fn translated(ip: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(v6) = ip else {
        return None;
    };
    let is_translated = matches!(v6.segments(), [0x64, 0xff9b, 0, 0, 0, 0, _, _]);
    let [.., a, b, c, d] = v6.octets();
    is_translated.then_some(Ipv4Addr::new(a, b, c, d))
}

/// Returns whether the address is in a network that RFC 1918, RFC 5735 (section 3) or RFC 6598 reserves.
const fn is_special(ip: Ipv4Addr) -> bool {
    matches!(
        ip.octets(),
        [0 | 10 | 127 | 224.., ..]
            | [100, 64..=127, ..]
            | [169, 254, ..]
            | [172, 16..=31, ..]
            | [192, 0, 0 | 2, _]
            | [192, 88, 99, _]
            | [192, 168, ..]
            | [198, 18 | 19, ..]
            | [198, 51, 100, _]
            | [203, 0, 113, _]
    )
}

/// Returns the key in a form that operators can read.
pub(super) fn key(ip: IpAddr, ipv6_prefix: u8) -> Key {
    let mut text = [0; MAX_TEXT];
    let len = match ip {
        IpAddr::V4(ip) => write_v4(&mut text, ip),
        IpAddr::V6(ip) => {
            let prefix = prefix_of(ip, ipv6_prefix);
            let mut rest = &mut text[..];
            // Writing cannot fail: there is room for the longest text.
            let _ = write!(rest, "{}/{prefix}", network(ip, prefix));
            MAX_TEXT - rest.len()
        }
    };
    Key::new("ip", &text[..len])
}

/// Each octet as text, with a dot behind it.
static OCTETS: [[u8; 4]; 256] = {
    let mut texts = [[b'.'; 4]; 256];
    let mut octet = 0;
    while octet < 256 {
        let [hundreds, tens, ones] = [octet / 100, octet / 10 % 10, octet % 10];
        let (digits, len) = match octet {
            0..10 => ([ones, 0, 0], 1),
            10..100 => ([tens, ones, 0], 2),
            _ => ([hundreds, tens, ones], 3),
        };
        let mut place = 0;
        while place < len {
            texts[octet][place] = b"0123456789"[digits[place]];
            place += 1;
        }
        octet += 1;
    }
    texts
};

/// Writes the address by hand: `Display` takes longer than the rest of the extraction. The loop has no branches that
/// depend on the address, since the processor would mispredict them for each client.
fn write_v4(text: &mut [u8; MAX_TEXT], ip: Ipv4Addr) -> usize {
    let mut len = 0;
    for octet in ip.octets() {
        text[len..len + 4].copy_from_slice(&OCTETS[usize::from(octet)]);
        len += 2 + usize::from(octet >= 10) + usize::from(octet >= 100);
    }
    len - 1
}

/// Each IPv4 address owns a whole /48 of 6to4 (`2002::/16`), so a longer prefix would give one client many keys.
fn prefix_of(ip: Ipv6Addr, prefix: u8) -> u8 {
    match ip.segments()[0] {
        0x2002 => prefix.min(48),
        _ => prefix,
    }
}

fn network(ip: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    let mask = u128::MAX << (128 - u32::from(prefix));
    Ipv6Addr::from_bits(ip.to_bits() & mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(ip: &str, prefix: u8) -> String {
        let key = key(canonical(ip.parse().unwrap()), prefix);
        String::from_utf8(key.value().to_vec()).unwrap()
    }

    #[test]
    fn ipv4_is_written_as_usual() {
        for ip in ["0.0.0.0", "1.20.99.100", "109.9.10.255"] {
            assert_eq!(text(ip, 64), ip);
        }
    }

    #[test]
    fn special_addresses_are_not_translated() {
        for (first, last) in [
            ("0.0.0.0", "0.255.255.255"),
            ("10.0.0.0", "10.255.255.255"),
            ("100.64.0.0", "100.127.255.255"),
            ("127.0.0.0", "127.255.255.255"),
            ("169.254.0.0", "169.254.255.255"),
            ("172.16.0.0", "172.31.255.255"),
            ("192.0.0.0", "192.0.0.255"),
            ("192.0.2.0", "192.0.2.255"),
            ("192.88.99.0", "192.88.99.255"),
            ("192.168.0.0", "192.168.255.255"),
            ("198.18.0.0", "198.19.255.255"),
            ("198.51.100.0", "198.51.100.255"),
            ("203.0.113.0", "203.0.113.255"),
            ("224.0.0.0", "255.255.255.255"),
        ] {
            let bits = |ip: &str| ip.parse::<Ipv4Addr>().unwrap().to_bits();
            let is_ipv4 = |bits| {
                let ip: IpAddr = format!("64:ff9b::{}", Ipv4Addr::from_bits(bits))
                    .parse()
                    .unwrap();
                canonical(ip).is_ipv4()
            };
            assert!(!is_ipv4(bits(first)) && !is_ipv4(bits(last)), "{first}");
            let before = bits(first).checked_sub(1).is_none_or(is_ipv4);
            let after = bits(last).checked_add(1).is_none_or(is_ipv4);
            assert!(before, "{first}");
            assert!(after, "{last}");
        }
    }

    #[test]
    fn an_address_has_one_form() {
        for (ip, prefix, expected) in [
            ("203.0.113.7", 64, "203.0.113.7"),
            ("::ffff:203.0.113.7", 64, "203.0.113.7"),
            ("64:ff9b::8.8.8.8", 64, "8.8.8.8"),
            ("64:ff9b::10.0.0.1", 64, "64:ff9b::/64"),
            ("2001:DB8:1:2:3:4:5:6", 64, "2001:db8:1:2::/64"),
            ("2001:db8:1:2ff::", 56, "2001:db8:1:200::/56"),
            ("2001:db8:1:2ff::", 32, "2001:db8::/32"),
            ("2002:cb00:7107:5::1", 64, "2002:cb00:7107::/48"),
            ("2002:cb00:7107:5::1", 32, "2002:cb00::/32"),
            (
                "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
                128,
                "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128",
            ),
        ] {
            assert_eq!(text(ip, prefix), expected, "{ip}");
        }
    }
}
