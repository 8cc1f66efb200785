//! [`Identity`]: who is meant, as a person writes it.

use std::{
    io::{self, Read},
    net::IpAddr,
    str::FromStr,
};

use clap::Args;
use sluicegate::{Header, Key, PeerIp, extract::Cookie, store::redis::inspect::hashed_key};

use super::error::{Error, Result};

/// A secret that is longer is not one.
const MAX_STDIN: u64 = 1 << 20;

/// The argument of verbs about one identity.
#[derive(Args)]
pub(crate) struct IdentityArgs {
    /// Who: KIND=VALUE, for instance ip=203.0.113.7, user=alice, header:x-api-key=VALUE or cookie:session=VALUE; a
    /// VALUE of - is read from stdin, so that a secret stays out of the shell's history. Or as it is listed by `top` and
    /// `blocks` where the value is not known: 'header=#5877c54e…'
    #[arg(value_name = "IDENTITY")]
    identity: Identity,

    /// The value is a secret, of which the service keeps only a hash (`Key::secret`); headers and cookies always are
    #[arg(long)]
    hashed: bool,
}

impl IdentityArgs {
    /// The key that the service has for this identity, if its extractors take `ipv6_prefix` bits of an IPv6 address.
    pub(crate) fn key(&self, ipv6_prefix: u8) -> Result<Key> {
        self.identity.key(self.hashed, ipv6_prefix)
    }
}

/// A kind and a value.
#[derive(Clone)]
pub(crate) struct Identity {
    kind: String,
    value: String,
}

impl FromStr for Identity {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((kind, value)) if !value.is_empty() && (!kind.is_empty() || is_hash(value)) => {
                Ok(Self {
                    kind: kind.into(),
                    value: value.into(),
                })
            }
            _ => Err("write KIND=VALUE, for instance ip=203.0.113.7 or user=alice"),
        }
    }
}

impl Identity {
    fn key(&self, hashed: bool, ipv6_prefix: u8) -> Result<Key> {
        let stdin;
        let value = if self.value == "-" {
            stdin = read_stdin()?;
            let value = stdin.trim_end_matches(['\r', '\n']);
            if value.is_empty() {
                return Err(Error::usage("stdin: there is no value"));
            }
            value
        } else {
            &self.value
        };
        if is_hash(value) {
            let key = hashed_key(leaked(&self.kind), value);
            return key
                .ok_or_else(|| Error::usage("write the hash as it is listed: header=#5877…"));
        }
        if self.kind != "ip" && self.kind.eq_ignore_ascii_case("ip") {
            return Err(Error::usage("kinds are told apart by case: write ip="));
        }
        match self.kind.split_once(':') {
            Some((kind @ ("header" | "cookie"), name)) => named(kind, name, value),
            _ if hashed => Ok(Key::secret(leaked(&self.kind), value)),
            _ if self.kind == "ip" => address(value, ipv6_prefix),
            _ => Ok(Key::new(leaked(&self.kind), value)),
        }
    }
}

/// Whether it is what stands for a long, strange or secret value.
fn is_hash(value: &str) -> bool {
    let hash = value.strip_prefix('#').unwrap_or_default();
    hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The key of an identity as the store lists it: `user=alice`, or a hash. `None` if it is none.
pub(crate) fn listed(text: &str) -> Option<Key> {
    let (kind, token) = text.split_once('=')?;
    if is_hash(token) {
        return hashed_key(leaked(kind), token);
    }
    Some(Key::new(leaked(kind), token))
}

/// The key of a header or a cookie, whose names are made of the same characters.
fn named(kind: &str, name: &str, value: &str) -> Result<Key> {
    let key = match kind {
        "cookie" => name.parse().map(|cookie: Cookie| cookie.key(value)),
        _ => name.parse().map(|header: Header| header.key(value)),
    };
    key.map_err(Error::usage)
}

/// The key as `PeerIp` and `ForwardedIp` make it: of an IPv6 address, its network.
fn address(text: &str, ipv6_prefix: u8) -> Result<Key> {
    let error = || {
        Error::usage(format_args!(
            "`{text}` is no IP address: write 203.0.113.7, 2001:db8::7, or an IPv6 network of 32 to 128 bits: 2001:db8::/64"
        ))
    };
    let (address, bits) = match text.split_once('/') {
        None => (text, ipv6_prefix),
        Some((network, bits)) => (network, bits.parse().map_err(|_| error())?),
    };
    let address: IpAddr = address.parse().map_err(|_| error())?;
    if text.contains('/') && (address.is_ipv4() || !(32..=128).contains(&bits)) {
        return Err(error());
    }
    Ok(PeerIp.ipv6_prefix(bits).key(address))
}

fn read_stdin() -> Result<String> {
    let mut text = String::new();
    let read = io::stdin().take(MAX_STDIN).read_to_string(&mut text);
    read.map_err(|error| Error::usage(format_args!("stdin: {error}")))?;
    Ok(text)
}

/// Kinds are written in programs; this one was written on the command line, once.
pub(crate) fn leaked(kind: &str) -> &'static str {
    Box::leak(kind.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str, hashed: bool) -> Result<Key, Error> {
        text.parse::<Identity>().unwrap().key(hashed, 64)
    }

    #[test]
    fn an_identity_is_the_key_that_an_extractor_makes() {
        for (text, hashed, expected) in [
            ("ip=203.0.113.7", false, Key::new("ip", "203.0.113.7")),
            (
                "ip=::ffff:203.0.113.7",
                false,
                Key::new("ip", "203.0.113.7"),
            ),
            (
                "ip=2001:db8:1:2::7",
                false,
                Key::new("ip", "2001:db8:1:2::/64"),
            ),
            (
                "ip=2001:db8:1:2::/56",
                false,
                Key::new("ip", "2001:db8:1::/56"),
            ),
            ("user=alice=1", false, Key::new("user", "alice=1")),
            ("api-key=s3cret", true, Key::secret("api-key", "s3cret")),
            (
                "header:X-Api-Key=s3cret",
                false,
                Header::new("x-api-key").key("s3cret"),
            ),
            (
                "cookie:session=s3cret",
                true,
                Cookie::new("session").key("s3cret"),
            ),
            (
                "cookie:__Host-SID=s3cret",
                false,
                Cookie::new("__Host-SID").key("s3cret"),
            ),
            (
                "header=#5877c54e0123456789abcdef01234567",
                false,
                hashed_key("header", "#5877c54e0123456789abcdef01234567").unwrap(),
            ),
            (
                "=#5877c54e0123456789abcdef01234567",
                false,
                hashed_key("", "#5877c54e0123456789abcdef01234567").unwrap(),
            ),
        ] {
            assert!(key(text, hashed).is_ok_and(|key| key == expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_identity_is_an_error() {
        for text in [
            "ip=203.0.113",
            "ip=10.0.0.0/8",
            "ip=2001:db8::/16",
            "ip=2001:db8::/x",
            "IP=203.0.113.7",
            "user=#5877C54E0123456789ABCDEF01234567",
            "header:x=#5877c54e0123456789abcdef01234567",
            "header:a b=c",
            "cookie:a b=c",
            "cookie:=x",
        ] {
            assert!(key(text, false).is_err(), "{text}");
        }
        for text in ["", "ip", "=alice", "ip="] {
            assert!(text.parse::<Identity>().is_err(), "{text}");
        }
    }
}
