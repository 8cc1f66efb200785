//! Keys from IP addresses: one form of each address, one key for each network.

use std::{
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use http::Extensions;

use crate::{error::ExtractError, key::Key};

/// Room for the longest network: `ffff:…:ffff/128`.
const MAX_TEXT: usize = 39 + 4;

/// How many leading bits of an IPv6 address identify a client: the smallest network that a household is given.
pub(super) const DEFAULT_IPV6_PREFIX: u8 = 64;

pub(super) const fn checked_ipv6_prefix(bits: u8) -> u8 {
    assert!(
        32 <= bits && bits <= 128,
        "the prefix of an IPv6 network must be 32 to 128 bits"
    );
    bits
}

/// The address at the other end of the connection, in its canonical form.
pub(super) fn peer(extensions: &Extensions) -> Result<IpAddr, ExtractError> {
    let peer = socket(extensions).or_else(|| tonic(extensions));
    match peer.map(canonical) {
        Some(ip) if !ip.is_unspecified() => Ok(ip),
        _ => Err(ExtractError::missing(
            "no peer address in the extensions: serve an axum router with \
             `into_make_service_with_connect_info::<SocketAddr>()`, or put a `SocketAddr` there",
        )),
    }
}

#[cfg(feature = "axum")]
fn socket(extensions: &Extensions) -> Option<IpAddr> {
    use axum::extract::{ConnectInfo, connect_info::MockConnectInfo};

    let real = extensions.get::<ConnectInfo<SocketAddr>>().map(|it| it.0);
    real.or_else(|| extensions.get::<SocketAddr>().copied())
        .or_else(|| {
            extensions
                .get::<MockConnectInfo<SocketAddr>>()
                .map(|it| it.0)
        })
        .map(|peer| peer.ip())
}

#[cfg(not(feature = "axum"))]
fn socket(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get::<SocketAddr>().map(SocketAddr::ip)
}

#[cfg(feature = "tonic")]
fn tonic(extensions: &Extensions) -> Option<IpAddr> {
    let info = extensions.get::<tonic::transport::server::TcpConnectInfo>()?;
    info.remote_addr().map(|peer| peer.ip())
}

#[cfg(not(feature = "tonic"))]
const fn tonic(_: &Extensions) -> Option<IpAddr> {
    None
}

/// The one form of an address: IPv4 that is mapped (`::ffff:0:0/96`) or translated (`64:ff9b::/96`) into IPv6 is IPv4.
///
/// All translated addresses are in one `/64` and would otherwise share one key.
pub(super) fn canonical(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => match v6.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, _, _] => {
                let [.., a, b, c, d] = v6.octets();
                IpAddr::V4(Ipv4Addr::new(a, b, c, d))
            }
            _ => ip.to_canonical(),
        },
        IpAddr::V4(_) => ip,
    }
}

/// The key in a form that operators can read.
pub(super) fn key(ip: IpAddr, ipv6_prefix: u8) -> Key {
    let mut text = [0; MAX_TEXT];
    let mut rest = &mut text[..];
    // Writing cannot fail: there is room for the longest text.
    let _ = match ip {
        IpAddr::V4(ip) => write_v4(&mut rest, ip),
        IpAddr::V6(ip) => {
            let prefix = prefix_of(ip, ipv6_prefix);
            write!(rest, "{}/{prefix}", network(ip, prefix))
        }
    };
    let len = MAX_TEXT - rest.len();
    Key::new("ip", &text[..len])
}

/// As `Display`, which takes longer than the rest of the extraction together.
fn write_v4(text: &mut &mut [u8], ip: Ipv4Addr) -> io::Result<()> {
    for (index, octet) in ip.octets().into_iter().enumerate() {
        if index > 0 {
            text.write_all(b".")?;
        }
        for unit in [100, 10, 1] {
            if octet >= unit || unit == 1 {
                text.write_all(&[b'0' + octet / unit % 10])?;
            }
        }
    }
    Ok(())
}

/// Each IPv4 address owns a whole /48 of 6to4 (`2002::/16`).
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
    fn an_address_has_one_form() {
        for (ip, prefix, expected) in [
            ("203.0.113.7", 64, "203.0.113.7"),
            ("::ffff:203.0.113.7", 64, "203.0.113.7"),
            ("64:ff9b::203.0.113.7", 64, "203.0.113.7"),
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
