use std::{error::Error, fmt, net::IpAddr, str::FromStr};

use super::ip::canonical;

/// A network of IP addresses, written `10.0.0.0/8`, `2001:db8::/32`, or as an address that stands for itself alone.
///
/// IPv4 in the clothes of IPv6 is IPv4, here and in the addresses that are looked for: `::ffff:10.0.0.0/104` is
/// `10.0.0.0/8`, and no network of IPv6 contains an address of IPv4.
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
pub struct Cidr {
    first: IpAddr,
    width: u8,
}

impl Cidr {
    /// Whether the network contains this address.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.contains_canonical(canonical(ip))
    }

    pub(super) fn contains_canonical(&self, ip: IpAddr) -> bool {
        self.first.is_ipv4() == ip.is_ipv4() && masked(ip, self.width) == self.first
    }
}

/// The first address of the network of this width, at most that of the address, around it.
fn masked(ip: IpAddr, width: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(width)).unwrap_or(0);
            IpAddr::V4((ip.to_bits() & mask).into())
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(width)).unwrap_or(0);
            IpAddr::V6((ip.to_bits() & mask).into())
        }
    }
}

const fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let error = |problem| CidrError {
            text: text.to_owned(),
            problem,
        };
        let (ip, width) = read(text).ok_or_else(|| error(Problem::Syntax))?;
        let first = masked(ip, width);
        if first != ip {
            return Err(error(Problem::Beyond(Self { first, width })));
        }
        let plain = canonical(ip);
        if plain != ip.to_canonical() {
            return Err(error(Problem::Translated));
        }
        // A mapped network has at least the 96 bits that map it: it has bits beyond fewer.
        let narrower = bits(ip) - bits(plain);
        Ok(Self {
            first: plain,
            width: width - narrower,
        })
    }
}

fn read(text: &str) -> Option<(IpAddr, u8)> {
    let Some((ip, width)) = text.split_once('/') else {
        let ip: IpAddr = text.parse().ok()?;
        return Some((ip, bits(ip)));
    };
    let digits = (1..=3).contains(&width.len()) && width.bytes().all(|it| it.is_ascii_digit());
    let (ip, width): (IpAddr, u8) = (ip.parse().ok()?, width.parse().ok()?);
    (digits && width <= bits(ip)).then_some((ip, width))
}

/// Writes the network, as `FromStr` reads it.
impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.width)
    }
}

/// Why a text is no [`Cidr`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CidrError {
    text: String,
    problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Problem {
    Syntax,
    Translated,
    Beyond(Cidr),
}

impl fmt::Display for CidrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.text;
        match self.problem {
            Problem::Syntax => write!(
                f,
                "`{text}` is no network: write 10.0.0.0/8, 2001:db8::/32, or an address"
            ),
            Problem::Translated => write!(
                f,
                "`{text}` is IPv4 translated into IPv6: write the network of IPv4"
            ),
            Problem::Beyond(network) => write!(
                f,
                "`{text}` has address bits beyond its width: write `{network}`"
            ),
        }
    }
}

impl Error for CidrError {}

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
    fn nonsense_is_refused_with_what_to_write_instead() {
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
