//! Parsers for one entry of a header.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::extract::ip::canonical;

/// Reads an address, returned in canonical form: with or without a port, and IPv6 with or without brackets and zone.
pub(super) fn address(entry: &str) -> Option<IpAddr> {
    let entry = entry.trim_matches([' ', '\t']);
    let ip = match entry.strip_prefix('[') {
        Some(entry) => {
            let (ip, port) = entry.split_once(']')?;
            let fine = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
            IpAddr::V6(v6(ip).filter(|_| fine)?)
        }
        None => unbracketed(entry)?,
    };
    Some(canonical(ip)).filter(|ip| !ip.is_unspecified())
}

fn unbracketed(entry: &str) -> Option<IpAddr> {
    match entry.split_once(':') {
        None => entry.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        Some((ip, port)) if is_port(port) => ip.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        Some(_) => v6(entry).map(IpAddr::V6),
    }
}

fn v6(text: &str) -> Option<Ipv6Addr> {
    match text.split_once('%') {
        None => text.parse().ok(),
        Some((_, "")) => None,
        Some((ip, _zone)) => ip.parse().ok(),
    }
}

/// Accepts a number, or a name that hides a number (RFC 7239, 6.3).
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => !name.is_empty() && name.bytes().all(is_plain),
        None => (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

/// Returns the value of `for` in an element of `Forwarded`; `None` if there are two.
pub(super) fn for_of(element: &str) -> Option<&str> {
    let mut found = None;
    let mut rest = element.trim_matches([' ', '\t']);
    while !rest.is_empty() {
        let (name, value, after) = pair(rest)?;
        if name.eq_ignore_ascii_case("for") && found.replace(value).is_some() {
            return None;
        }
        let after = after.trim_start_matches([' ', '\t']);
        rest = match after.strip_prefix(';') {
            Some(rest) => rest.trim_start_matches([' ', '\t']),
            None if after.is_empty() => after,
            None => return None,
        };
    }
    found
}

/// Returns a name, its value without quotes, and the text that follows.
fn pair(text: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = text.split_once('=')?;
    if !name.bytes().all(is_plain) {
        return None;
    }
    match rest.strip_prefix('"') {
        Some(rest) => {
            let end = closing_quote(rest)?;
            Some((name, &rest[..end], &rest[end + 1..]))
        }
        None => {
            let (value, after) = rest.split_at(rest.find(';').unwrap_or(rest.len()));
            (!value.contains('"')).then_some((name, value, after))
        }
    }
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_understood_in_every_form_that_proxies_write() {
        for (entry, expected) in [
            ("203.0.113.7", "203.0.113.7"),
            (" \t203.0.113.7 ", "203.0.113.7"),
            ("203.0.113.7:50000", "203.0.113.7"),
            ("203.0.113.7:_hidden", "203.0.113.7"),
            ("2001:db8::7", "2001:db8::7"),
            ("2001:DB8:0:0::07", "2001:db8::7"),
            ("[2001:db8::7]", "2001:db8::7"),
            ("[2001:db8::7]:50000", "2001:db8::7"),
            ("fe80::7%eth0", "fe80::7"),
            ("[fe80::7%eth0]:50000", "fe80::7"),
            ("::ffff:203.0.113.7", "203.0.113.7"),
            ("::FFFF:cb00:7107", "203.0.113.7"),
            ("[::ffff:203.0.113.7]:50000", "203.0.113.7"),
            ("64:ff9b::8.8.8.8", "8.8.8.8"),
            ("64:ff9b::127.0.0.1", "64:ff9b::127.0.0.1"),
        ] {
            assert_eq!(address(entry), Some(expected.parse().unwrap()), "{entry}");
        }
    }

    #[test]
    fn what_is_no_address_is_not_guessed_at() {
        for entry in [
            "",
            " ",
            "unknown",
            "_hidden",
            "unix:",
            "localhost",
            "0.0.0.0",
            "[::]",
            "::ffff:0.0.0.0",
            "203.0.113",
            "203.0.113.007",
            "0xcb007107",
            "203.0.113.7:",
            "203.0.113.7:port",
            "203.0.113.7:123456",
            "203.0.113.7%eth0",
            "203.0.113.7 198.51.100.1",
            "[203.0.113.7]",
            "[2001:db8::7",
            "[2001:db8::7]50000",
            "[2001:db8::7]:",
            "2001:db8::7]",
            "2001:db8:1:2:3:4:5:6:50000",
            "fe80::7%",
            "\"203.0.113.7\"",
        ] {
            assert_eq!(address(entry), None, "{entry}");
        }
    }

    #[test]
    fn the_for_of_an_element_is_found_among_other_pairs() {
        for (element, expected) in [
            ("for=203.0.113.7", "203.0.113.7"),
            (" FOR=203.0.113.7 ", "203.0.113.7 "),
            (
                "by=10.0.0.1; For=\"[2001:db8::7]:1\" ;proto=https;",
                "[2001:db8::7]:1",
            ),
            (r#"host="a;for=6.6.6.6";for=203.0.113.7"#, "203.0.113.7"),
            (r#"host="\";for=6.6.6.6;x=\\";for=unknown"#, "unknown"),
        ] {
            assert_eq!(
                for_of(element).map(str::trim),
                Some(expected.trim()),
                "{element}"
            );
        }
    }

    #[test]
    fn an_element_with_no_for_or_two_or_loose_ends_has_none() {
        for element in [
            "",
            "proto=https",
            "203.0.113.7",
            "for=203.0.113.7;for=203.0.113.7",
            "for=\"203.0.113.7",
            "for=203.0.113.7\"",
            "for=\"203.0.113.7\"x",
            "for=\"203.0.113.7\\\"",
            "\"x;for=203.0.113.7",
            "a b=c;for=203.0.113.7",
            "for =203.0.113.7",
        ] {
            assert_eq!(for_of(element), None, "{element}");
        }
    }
}
