//! [`Request`]: the part of a log line that is replayed; [`Mapping`]: the key that each policy limits.

use std::cell::Cell;
use std::net::SocketAddr;

use http::HeaderValue;
use sluicegate::extract::{Cidr, TrustedProxies};
use sluicegate::{ForwardedIp, Key, PeerIp, Policy};

use super::record::{Field, Record, address, is_empty};
use super::stamp::Stamp;
use crate::identity::leaked;
use crate::{Error, Result};

/// A longer value is cut, to bound memory. No real identity is that long.
const MAX_VALUE: usize = 1_024;

/// One line of a log.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) ms: u64,
    pub(super) is_whole: bool,
    /// The index of the file, and the number of the line, counted from 1.
    pub(super) file: usize,
    pub(super) line: u64,
    /// A key for each field of the mapping.
    pub(super) keys: Box<[Option<Key>]>,
}

/// The policies, and the field that distinguishes clients for each of them.
pub(super) struct Mapping {
    pub(super) policies: Vec<Mapped>,
    fields: Vec<(Field, &'static str)>,
    ipv6_prefix: u8,
    /// Finds the client in a list of addresses; `None` without trusted proxies.
    proxies: Option<ForwardedIp>,
    /// Whether the first of several addresses was taken for the client.
    pub(super) is_guessed: Cell<bool>,
}

#[derive(Clone)]
pub(super) struct Mapped {
    pub(super) policy: Policy,
    /// The index of the field, and of its key in a request.
    pub(super) key: usize,
    /// Whether `--key` names the field.
    pub(super) is_named: bool,
    /// The index of the first rule among the rules of all policies.
    pub(super) first_rule: usize,
}

impl Mapping {
    /// Reads `--key FIELD` and `--key POLICY=FIELD`. Without them, a policy with the name `user` uses the field `user`,
    /// and any other policy uses `ip`.
    pub(super) fn new(policies: &[Policy], keys: &[String], ipv6_prefix: u8) -> Result<Self> {
        let mut mapping = Self {
            policies: Vec::new(),
            fields: Vec::new(),
            ipv6_prefix,
            proxies: None,
            is_guessed: Cell::new(false),
        };
        // Check all arguments first: one with a mistyped name would have no effect.
        for key in keys {
            if let Some((name, field)) = key.split_once('=') {
                if !policies.iter().any(|policy| policy.name() == name) {
                    return Err(Error::usage(format_args!(
                        "--key {key}: no policy `{name}` is replayed"
                    )));
                }
                if field.is_empty() {
                    return Err(Error::usage(format_args!(
                        "--key {key}: write POLICY=FIELD"
                    )));
                }
            }
        }
        let own = |policy: &str| {
            keys.iter()
                .rev()
                .find_map(|key| key.strip_prefix(policy)?.strip_prefix('='))
        };
        // The last argument wins.
        let all = keys.iter().rev().find(|key| !key.contains('='));
        let mut first_rule = 0;
        for policy in policies {
            let named = own(policy.name()).or(all.map(String::as_str));
            let field = named.unwrap_or(match policy.name() {
                "user" => "user",
                _ => "ip",
            });
            let mapped = Mapped {
                policy: policy.clone(),
                key: mapping.field(field),
                is_named: named.is_some(),
                first_rule,
            };
            mapping.policies.push(mapped);
            first_rule += policy.rules().len();
        }
        Ok(mapping)
    }

    /// Finds the client in lists of addresses by the networks of the proxies, if there are any.
    pub(super) fn trusting(mut self, proxies: &[Cidr]) -> Self {
        let networks = || TrustedProxies::networks(proxies.iter().copied());
        self.proxies = (!proxies.is_empty()).then(|| ForwardedIp::x_forwarded_for(networks()));
        self
    }

    fn field(&mut self, name: &str) -> usize {
        let known = self
            .fields
            .iter()
            .position(|(field, _)| field.name() == name);
        known.unwrap_or_else(|| {
            self.fields.push((Field::new(name), leaked(name)));
            self.fields.len() - 1
        })
    }

    /// The name of a field.
    pub(super) fn name(&self, field: usize) -> &str {
        self.fields[field].0.name()
    }

    pub(super) fn request(
        &self,
        record: &Record<'_>,
        stamp: Stamp,
        file: usize,
        line: u64,
    ) -> Request {
        let keys = self.fields.iter().map(|(field, kind)| {
            let mut value = record.get(field)?;
            if field.is_list(&value) {
                value = self.client(&value)?.into();
            }
            Some(self.key(kind, &value[..value.len().min(MAX_VALUE)]))
        });
        Request {
            ms: stamp.ms,
            is_whole: stamp.is_whole,
            file,
            line,
            keys: keys.collect(),
        }
    }

    /// The client in a list of addresses: the first, or the one that [`ForwardedIp`] finds if the last is the peer's.
    fn client(&self, list: &[u8]) -> Option<Vec<u8>> {
        let values = list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        let values: Vec<&[u8]> = values.filter(|value| !is_empty(value)).collect();
        let Some(proxies) = &self.proxies else {
            self.is_guessed
                .set(values.len() > 1 || self.is_guessed.get());
            return values.first().map(|first| first.to_vec());
        };
        let mut head = http::Request::new(()).into_parts().0;
        let peer = address(values.last()?)?;
        head.extensions.insert(SocketAddr::new(peer, 0));
        let header = HeaderValue::from_bytes(&values.join(&b","[..])).ok()?;
        head.headers.insert("x-forwarded-for", header);
        Some(proxies.address(&head).ok()?.to_string().into_bytes())
    }

    /// Converts an address as `PeerIp` does, except in the field `user`. Other values stay unchanged.
    fn key(&self, kind: &'static str, value: &[u8]) -> Key {
        match address(value) {
            Some(address) if kind != "user" => {
                let key = PeerIp.ipv6_prefix(self.ipv6_prefix).key(address);
                if kind == "ip" {
                    key
                } else {
                    Key::new(kind, key.value())
                }
            }
            _ => Key::new(kind, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(keys: &[&str]) -> Result<Vec<String>, Error> {
        let policies = ["api", "ip", "user"].map(|name| Policy::parse(name, "1/1s").unwrap());
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        let mapping = Mapping::new(&policies, &keys, 64)?;
        Ok(mapping
            .policies
            .iter()
            .map(|mapped| mapping.name(mapped.key).to_owned())
            .collect())
    }

    #[test]
    fn policies_are_by_the_field_that_is_chosen_for_them() {
        for (keys, expected) in [
            (&[][..], ["ip", "ip", "user"]),
            (&["user"], ["user", "user", "user"]),
            (&["api=agent"], ["agent", "ip", "user"]),
            (
                &["path", "ip=request.remote_ip"],
                ["path", "request.remote_ip", "path"],
            ),
        ] {
            assert_eq!(fields(keys).ok().unwrap(), expected);
        }
        assert!(fields(&["nobody=ip"]).is_err() && fields(&["ip="]).is_err());
    }

    #[test]
    fn an_address_is_the_key_of_the_extractor() {
        let policies = [Policy::parse("ip", "1/1s").unwrap()];
        let mapping = Mapping::new(&policies, &[], 64).ok().unwrap();
        for (value, expected) in [
            ("203.0.113.7", "203.0.113.7"),
            ("203.0.113.7:40001", "203.0.113.7"),
            ("::ffff:203.0.113.7", "203.0.113.7"),
            ("2001:db8::7", "2001:db8::/64"),
            ("[2001:db8::7]", "2001:db8::/64"),
            ("[2001:db8::7]:443", "2001:db8::/64"),
            ("host.example", "host.example"),
            ("host.example:443", "host.example:443"),
            ("[203.0.113.7", "[203.0.113.7"),
        ] {
            assert_eq!(
                mapping.key("ip", value.as_bytes()),
                Key::new("ip", expected)
            );
        }
    }
}
