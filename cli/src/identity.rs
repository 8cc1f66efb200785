//! [`Identity`]: an identity, as you write it in an argument.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use sluicegate::extract::Cookie;
use sluicegate::store::redis::inspect::hashed_key;
use sluicegate::{Header, Key, PeerIp};

use super::text::printable;
use super::{Error, Result};

/// The limit for a secret. Longer input is something else.
const MAX_STDIN: u64 = 1 << 20;

/// The limit for a list of identities. A longer file was probably given by mistake.
const MAX_FILE: u64 = 16 << 20;

/// The identities in the arguments of a verb.
#[derive(Args)]
pub(crate) struct IdentitiesArgs {
    /// KIND=VALUE, for instance ip=203.0.113.7, user=alice, header:x-api-key=VALUE or cookie:session=VALUE; several
    /// for `inspect`, `explain`, `block` and `unblock`. With - as VALUE, it is read from stdin, which keeps a secret
    /// out of the shell's history. If you do not know the value, the form that `top` and `blocks` list:
    /// 'header=#5877c54e…'
    #[arg(value_name = "IDENTITY")]
    identities: Vec<Identity>,

    /// A file with one identity on each line; - is stdin. Empty lines and lines that begin with # are skipped
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// The service keeps only hashes of the values (`Key::secret`), as it always does for headers and cookies
    #[arg(long)]
    hashed: bool,
}

/// An identity from the arguments.
pub(crate) struct Named {
    pub(crate) key: Key,
    /// The text that you typed, without a value that you kept out of the shell's history or marked as a secret.
    typed: String,
}

impl Named {
    /// An identity in the form that the store lists: `user=alice`, or a hash. `None` for other text.
    pub(crate) fn listed(stored: &str) -> Option<Self> {
        let (kind, value) = stored.split_once('=')?;
        let (kind, typed) = (leaked(kind), printable(stored.as_bytes()));
        let key = hashed_key(kind, value).unwrap_or_else(|| Key::new(kind, value));
        Some(Self { key, typed })
    }

    /// The identity as you typed it, with the stored form if that differs.
    pub(crate) fn title(&self, stored: &str) -> String {
        let typed = &self.typed;
        if typed == stored || stored.starts_with(&format!("{typed}=")) {
            return stored.to_owned();
        }
        format!("{typed} ({stored})")
    }
}

impl IdentitiesArgs {
    /// Whether the arguments can name more than one identity.
    pub(crate) fn is_list(&self) -> bool {
        self.identities.len() > 1 || self.file.is_some()
    }

    /// All identities without duplicates. An error in one of them is an error of the command, before anything is
    /// written.
    pub(crate) fn named(&self, ipv6_prefix: u8) -> Result<Vec<Named>> {
        // The first reader of stdin takes all input, so there can be only one.
        let values = self.identities.iter().map(|it| it.value.as_str());
        let file = self.file.iter().filter_map(|file| file.to_str());
        if values.chain(file).filter(|it| *it == "-").count() > 1 {
            return Err(Error::usage("only one value can be read from stdin"));
        }
        let mut named = Vec::new();
        for identity in &self.identities {
            self.add(&mut named, identity, ipv6_prefix)?;
        }
        if let Some(file) = &self.file {
            let text = read(file, MAX_FILE)?;
            for (number, line) in (1..).zip(text.lines()) {
                if line.trim().is_empty() || line.trim_start().starts_with('#') {
                    continue;
                }
                let place = |why: &dyn Display| {
                    Error::usage(format_args!("{}:{number}: {why}", file.display()))
                };
                let identity: Identity = line.parse().map_err(|why: String| place(&why))?;
                if identity.value == "-" {
                    return Err(place(&"a value of - is for the command line only"));
                }
                let added = self.add(&mut named, &identity, ipv6_prefix);
                added.map_err(|error| place(&error.message))?;
            }
        }
        if named.is_empty() {
            return Err(Error::usage(
                "no identity is named: give KIND=VALUE, or --file FILE with one on each line",
            ));
        }
        Ok(named)
    }

    /// The only identity, of verbs that show one.
    pub(crate) fn one(&self, ipv6_prefix: u8) -> Result<Named> {
        let mut named = self.named(ipv6_prefix)?;
        match named.pop().filter(|_| named.is_empty()) {
            Some(one) => Ok(one),
            None => Err(Error::usage("name one identity: this verb takes no others")),
        }
    }

    fn add(&self, all: &mut Vec<Named>, identity: &Identity, ipv6_prefix: u8) -> Result<()> {
        let key = identity.key(self.hashed, ipv6_prefix)?;
        let typed = identity.typed(self.hashed);
        if !all.iter().any(|other| other.key == key) {
            all.push(Named { key, typed });
        }
        Ok(())
    }
}

/// A kind and a value.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) kind: String,
    /// The value as you typed it: `-` if it comes from stdin.
    pub(crate) value: String,
}

impl FromStr for Identity {
    type Err = String;

    /// Rejects text that is probably a mistake: cut, or copied with an extra blank. You can pass such a value on stdin.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, value) = text.split_once('=').unwrap_or_default();
        if value.is_empty() || kind.is_empty() && !is_hash(value) {
            return Err("write KIND=VALUE, for instance ip=203.0.113.7 or user=alice".into());
        }
        if kind.contains(char::is_whitespace) || value.trim() != value {
            return Err(format!(
                "there is a blank too many in `{text}`: if it is part of the value, give that on stdin: {kind}=-"
            ));
        }
        if value.contains('…') || value.starts_with('#') && !is_hash(value) {
            return Err(format!(
                "`{text}` was cut: a hash is a # and 32 digits, which `blocks` and `top --wide` list whole. If it is the \
                 value itself, give it on stdin: {kind}=-"
            ));
        }
        let [kind, value] = [kind, value].map(str::to_owned);
        Ok(Self { kind, value })
    }
}

impl Identity {
    fn key(&self, hashed: bool, ipv6_prefix: u8) -> Result<Key> {
        if self.value != "-" {
            return key(&self.kind, &self.value, hashed, ipv6_prefix);
        }
        let stdin = read(Path::new("-"), MAX_STDIN)?;
        match stdin.trim_end_matches(['\r', '\n']) {
            "" => Err(Error::usage("stdin: there is no value")),
            value => key(&self.kind, value, hashed, ipv6_prefix),
        }
    }

    /// The text without a value that you kept out of the shell's history or marked as a secret.
    fn typed(&self, hashed: bool) -> String {
        if hashed || self.value == "-" {
            return self.kind.clone();
        }
        printable(format!("{}={}", self.kind, self.value).as_bytes())
    }
}

/// The service's key for a value of this kind.
pub(crate) fn key(kind: &str, value: &str, hashed: bool, ipv6_prefix: u8) -> Result<Key> {
    if is_hash(value) {
        let key = hashed_key(leaked(kind), value);
        return key.ok_or_else(|| Error::usage("write the hash as it is listed: header=#5877…"));
    }
    // Kinds are case-sensitive, and no extractor of addresses uses another spelling.
    if kind != "ip" && kind.eq_ignore_ascii_case("ip") {
        return Err(Error::usage("kinds are told apart by case: write ip="));
    }
    let mut hashed_kinds = ["header", "cookie"].into_iter();
    if let Some(kind) = hashed_kinds.find(|it| kind.eq_ignore_ascii_case(it)) {
        let value = printable(value.as_bytes());
        return Err(Error::usage(format_args!(
            "`{kind}={value}` is no identity: of {kind}s the service keeps a hash only. Write {kind}:NAME={value} with the \
             name of the {kind}, or the hash as it is listed: {kind}=#5877…; `sluicegate hash {kind}:NAME=-` finds the \
             hash of each value of a list"
        )));
    }
    match kind.split_once(':') {
        Some(("header", name)) => {
            let header = name.parse::<Header>().map_err(Error::usage)?;
            Ok(header.key(value))
        }
        Some(("cookie", name)) => {
            let cookie = name.parse::<Cookie>().map_err(Error::usage)?;
            Ok(cookie.key(value))
        }
        _ if hashed => Ok(Key::secret(leaked(kind), value)),
        _ if kind == "ip" => address(value, ipv6_prefix),
        _ => Ok(Key::new(leaked(kind), value)),
    }
}

/// Whether the value is a hash, which replaces long, strange or secret values.
fn is_hash(value: &str) -> bool {
    let hash = value.strip_prefix('#').unwrap_or_default();
    hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The key that `PeerIp` and `ForwardedIp` make: for an IPv6 address, its network.
fn address(text: &str, ipv6_prefix: u8) -> Result<Key> {
    let (address, bits) = match text.split_once('/') {
        None => (text, Some(ipv6_prefix)),
        Some((network, bits)) => (network, bits.parse().ok()),
    };
    let bits = bits.filter(|bits| (32..=128).contains(bits));
    match (address.parse::<IpAddr>(), bits) {
        (Ok(IpAddr::V4(_)), _) if address != text => Err(Error::usage(format_args!(
            "`{text}`: IPv4 addresses are limited and blocked one by one: list them in a --file, or deny the network in \
             the service (`RateLimitLayer::deny_keys`) or in front of it"
        ))),
        (Ok(address), Some(bits)) => Ok(PeerIp.ipv6_prefix(bits).key(address)),
        _ => Err(Error::usage(format_args!(
            "`{text}` is no IP address: write 203.0.113.7, 2001:db8::7, or an IPv6 network of 32 to 128 bits: 2001:db8::/64"
        ))),
    }
}

/// The text of a file, or of stdin if the path is `-`, of fewer bytes than `most`.
fn read(path: &Path, most: u64) -> Result<String> {
    let (mut text, is_stdin) = (String::new(), path.as_os_str() == "-");
    let name = if is_stdin { Path::new("stdin") } else { path };
    let read = match is_stdin {
        true => io::stdin().take(most).read_to_string(&mut text),
        false => File::open(path).and_then(|file| file.take(most).read_to_string(&mut text)),
    };
    match read.map_err(|error| Error::file(name, &error))? as u64 {
        length if length < most => Ok(text),
        _ => {
            let error = format!("it is longer than {} MiB", most >> 20);
            Err(Error::file(name, &io::Error::other(error)))
        }
    }
}

/// Services write kinds into their code. The tool has one from the command line, and leaks it once.
pub(crate) fn leaked(kind: &str) -> &'static str {
    Box::leak(kind.into())
}

#[cfg(test)]
mod tests {
    use sluicegate::extract::{BearerToken, Host};

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
                "cookie:express:sess=s3cret",
                false,
                Cookie::new("express:sess").key("s3cret"),
            ),
            ("bearer=mF_9.B5f", true, BearerToken.key("mF_9.B5f")),
            (
                "host=acme.example.com",
                false,
                Host.key("Acme.example.com:8080"),
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
    fn a_title_is_what_was_typed_and_what_is_stored() {
        let title = |text: &str, hashed, stored| {
            let typed = text.parse::<Identity>().unwrap().typed(hashed);
            let key = Key::new("user", "alice");
            Named { key, typed }.title(stored)
        };
        assert_eq!(title("user=alice", false, "user=alice"), "user=alice");
        let (hash, other) = ("header=#5877", "api-key=#5877");
        assert_eq!(
            title("header:x-tenant=acme", false, hash),
            "header:x-tenant=acme (header=#5877)"
        );
        assert_eq!(
            title("header:x-tenant=-", false, hash),
            "header:x-tenant (header=#5877)"
        );
        assert_eq!(title("api-key=s3cret", true, other), other);
        assert_eq!(title("api-key=-", true, other), other);
    }

    #[test]
    fn a_listed_identity_is_the_key_that_it_was_made_of() {
        for key in [Key::new("user", "alice"), Key::new("ip", "2001:db8::/64")] {
            let value = String::from_utf8_lossy(key.value()).into_owned();
            let named = Named::listed(&format!("{}={value}", key.kind()));
            assert!(named.is_some_and(|named| named.key == key));
        }
        let hash = "#5877c54e0123456789abcdef01234567";
        let hashed = hashed_key("header", hash);
        let named = Named::listed(&format!("header={hash}"));
        assert!(hashed.is_some() && named.map(|named| named.key) == hashed);
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
            "header:a{b=c",
            "cookie:a;b=c",
            "cookie:=x",
            "header=bob",
            "Header=bob",
            "cookie=bob",
        ] {
            assert!(key(text, false).is_err(), "{text}");
        }
        for text in [
            "",
            "ip",
            "=alice",
            "ip=",
            "user=alice ",
            " user=alice",
            "user= alice",
            "user =alice",
            "header:a b=c",
            "header=#72047c877111b0c2…",
            "user=a-very-lo…",
            "header=#72047c877111b0c2",
        ] {
            assert!(text.parse::<Identity>().is_err(), "{text}");
        }
    }
}
