//! [`Cidr`]: a network of IP addresses, and the parser for text from a configuration.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::{IpNet, Ipv4Net};

use super::ip::{canonical, translated};
use crate::domain::error::ConfigError;

/// A network of IP addresses, written `10.0.0.0/8`, `2001:db8::/32`, or as a single address.
///
/// An IPv4 address that is mapped into IPv6 counts as that IPv4 address, here and in [`contains`](Self::contains):
/// `::ffff:10.0.0.0/104` is `10.0.0.0/8`, and no IPv6 network contains an IPv4 address. An address that is translated
/// into IPv6 (`64:ff9b::/96`) also counts as IPv4, unless it is private or otherwise special: RFC 6052 forbids to
/// translate those, and `64:ff9b::10.0.0.1` is not in `10.0.0.0/8`.
///
/// ```
/// use sluicegate::extract::Cidr;
///
/// let office: Cidr = "203.0.113.0/24".parse()?;
/// assert!(office.contains("203.0.113.7".parse()?));
/// assert!(office.contains("::ffff:203.0.113.7".parse()?));
/// assert!(!office.contains("203.0.114.7".parse()?));
///
/// let error = "203.0.113.7/24".parse::<Cidr>().unwrap_err();
/// assert_eq!(error.to_string(), "`203.0.113.7/24` has address bits beyond its width: write `203.0.113.0/24`");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr(IpNet);

impl Cidr {
    /// Returns whether the network contains this address.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.contains_canonical(canonical(ip))
    }

    pub(super) fn contains_canonical(&self, ip: IpAddr) -> bool {
        self.0.contains(&ip)
    }
}

impl FromStr for Cidr {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let Some(network) = read(text) else {
            return Err(ConfigError::new(format_args!(
                "`{text}` is no network: write 10.0.0.0/8, 2001:db8::/32, or an address"
            )));
        };
        let first = network.addr();
        if network.trunc() != network {
            return Err(ConfigError::new(format_args!(
                "`{text}` has address bits beyond its width: write `{}`",
                network.trunc()
            )));
        }
        if translated(first).is_some() {
            return Err(ConfigError::new(format_args!(
                "`{text}` is IPv4 translated into IPv6: write the network of IPv4"
            )));
        }
        Ok(Self(unmapped(network).unwrap_or(network)))
    }
}

/// Not `ipnet`'s parser, which reads `010.0.0.0` as `10.0.0.0`; other programs read `8.0.0.0`.
fn read(text: &str) -> Option<IpNet> {
    let Some((ip, prefix)) = text.split_once('/') else {
        return text.parse().ok().map(|ip: IpAddr| ip.into());
    };
    let digits =
        (1..=3).contains(&prefix.len()) && prefix.bytes().all(|byte| byte.is_ascii_digit());
    let network = IpNet::new(ip.parse().ok()?, prefix.parse().ok()?).ok()?;
    digits.then_some(network)
}

/// Returns the IPv4 network of a mapped one, which has a prefix of at least 96 bits.
fn unmapped(network: IpNet) -> Option<IpNet> {
    let IpNet::V6(network) = network else {
        return None;
    };
    let first = network.addr().to_ipv4_mapped()?;
    let prefix = network.prefix_len().checked_sub(96)?;
    Ipv4Net::new(first, prefix).ok().map(IpNet::V4)
}

/// Writes the network in the form that `FromStr` reads.
impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_one_form_that_is_read_again() {
        for (text, expected) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("203.0.113.7", "203.0.113.7/32"),
            ("2001:DB8::/32", "2001:db8::/32"),
            ("::/0", "::/0"),
            ("::1", "::1/128"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::ffff:203.0.113.7", "203.0.113.7/32"),
        ] {
            let network: Cidr = text.parse().unwrap();
            assert_eq!(network.to_string(), expected);
            assert_eq!(expected.parse(), Ok(network));
        }
    }

    #[test]
    fn a_network_contains_what_lies_in_it_and_nothing_of_the_other_family() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.255.255", "11.0.0.0"),
            ("10.0.0.0/8", "::ffff:10.0.0.1", "::10.0.0.1"),
            ("203.0.113.7", "203.0.113.7", "203.0.113.6"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("::/0", "ffff::", "0.0.0.0"),
            ("2001:db8::/33", "2001:db8:7fff::", "2001:db8:8000::"),
            ("::1", "::1", "::"),
        ] {
            let cidr: Cidr = network.parse().unwrap();
            assert!(cidr.contains(inside.parse().unwrap()), "{network} {inside}");
            assert!(
                !cidr.contains(outside.parse().unwrap()),
                "{network} {outside}"
            );
        }
    }

    #[test]
    fn what_is_no_network_is_an_error_that_says_what_to_write() {
        let message = |text: &str| text.parse::<Cidr>().unwrap_err().to_string();
        for text in [
            "",
            "localhost",
            "10/8",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10.0.0.0/8 ",
            " 10.0.0.0/8",
            "010.0.0.0/8",
            "10.0.0.0/255.0.0.0",
            "::/129",
            "fe80::1%eth0",
            "[::1]/128",
        ] {
            let expected = "is no network: write 10.0.0.0/8, 2001:db8::/32, or an address";
            assert_eq!(message(text), format!("`{text}` {expected}"));
        }
        assert!(message("2001:db8::1/64").ends_with("write `2001:db8::/64`"));
        assert!(message("::ffff:0:0/80").ends_with("write `::/80`"));
        for text in ["64:ff9b::/96", "64:ff9b::/64", "64:ff9b::10.0.0.0/104"] {
            assert!(
                message(text).contains("write the network of IPv4"),
                "{text}"
            );
        }
    }
}
