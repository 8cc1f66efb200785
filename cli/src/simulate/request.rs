//! [`Request`]: the part of a log line that is replayed; [`Mapping`]: the key that each policy limits.

use std::collections::HashMap;
use std::net::SocketAddr;

use http::HeaderValue;
use sluicegate::extract::{Cidr, TrustedProxies};
use sluicegate::{ForwardedIp, Key, PeerIp, Policy};

use super::stamp::Stamp;
use super::view::{Record, View, address, is_nobody};
use crate::identity::leaked;
use crate::text::{grouped, identity};
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
    /// The names of the fields.
    pub(super) fields: Vec<&'static str>,
    ipv6_prefix: u8,
    /// Finds the client in a list of addresses; `None` without trusted proxies.
    proxies: Option<ForwardedIp>,
    /// The shape of the values of each field.
    signs: Vec<Sign>,
}

#[derive(Clone)]
pub(super) struct Mapped {
    pub(super) policy: Policy,
    /// The index of the field, and of its key in a request.
    pub(super) key: usize,
    /// Whether `--key` names the field.
    pub(super) is_named: bool,
}

impl Mapping {
    /// Reads `--key FIELD` and `--key POLICY=FIELD`. Without them, a policy with the name `user` uses the field `user`,
    /// and any other policy uses `ip`.
    pub(super) fn new(
        policies: &[Policy],
        keys: &[String],
        proxies: &[Cidr],
        ipv6_prefix: u8,
    ) -> Result<Self> {
        let networks = || TrustedProxies::networks(proxies.iter().copied());
        let mut mapping = Self {
            policies: Vec::new(),
            fields: Vec::new(),
            ipv6_prefix,
            proxies: (!proxies.is_empty()).then(|| ForwardedIp::x_forwarded_for(networks())),
            signs: Vec::new(),
        };
        // Check all arguments first: one with a mistyped name would have no effect. The last argument wins.
        let mut fields = HashMap::new();
        for key in keys {
            let of_policy = key.split_once('=');
            let (policy, field) = of_policy.map_or((None, &**key), |(name, it)| (Some(name), it));
            let is_known = |name| policies.iter().any(|policy| policy.name() == name);
            let problem = match policy {
                Some(name) if !is_known(name) => format!("no policy `{name}` is replayed"),
                Some(_) if field.is_empty() => "write POLICY=FIELD".to_owned(),
                _ => {
                    fields.insert(policy, field);
                    continue;
                }
            };
            return Err(Error::usage(format_args!("--key {key}: {problem}")));
        }
        for policy in policies {
            let own = fields.get(&Some(policy.name()));
            let named = own.or(fields.get(&None)).copied();
            let default = ["ip", "user"][usize::from(policy.name() == "user")];
            let key = mapping.field(named.unwrap_or(default));
            mapping.policies.push(Mapped {
                policy: policy.clone(),
                key,
                is_named: named.is_some(),
            });
        }
        Ok(mapping)
    }

    fn field(&mut self, name: &str) -> usize {
        let known = self.fields.iter().position(|field| *field == name);
        known.unwrap_or_else(|| {
            self.fields.push(leaked(name));
            self.signs.push(Sign::default());
            self.fields.len() - 1
        })
    }

    /// Forgets the signs of the values so far.
    pub(super) fn forget(&mut self) {
        self.signs.fill_with(Sign::default);
    }

    /// Facts to know about the values before you trust a verdict.
    pub(super) fn notes(&self) -> Vec<String> {
        let signs = self.fields.iter().zip(&self.signs);
        signs.flat_map(|(field, sign)| sign.notes(field)).collect()
    }

    pub(super) fn request(
        &mut self,
        record: &Record<'_>,
        view: &View,
        stamp: Stamp,
        (file, line): (usize, u64),
    ) -> Request {
        let keys = view.keys.iter().enumerate().map(|(at, choice)| {
            let mut value = choice.value(record)?;
            if choice.is_list(&value) {
                value = self.client(&value, at)?.into();
            }
            let key = self.key(self.fields[at], &value[..value.len().min(MAX_VALUE)]);
            self.signs[at].count(&key, choice.oddity(&value));
            Some(key)
        });
        let (keys, Stamp { ms, is_whole }) = (keys.collect(), stamp);
        Request {
            ms,
            is_whole,
            file,
            line,
            keys,
        }
    }

    /// The client in a list of addresses whose last is the peer: the one that [`ForwardedIp`] finds, or the peer.
    fn client(&mut self, list: &[u8], field: usize) -> Option<Vec<u8>> {
        let values = list.split(|byte| *byte == b',').map(bare);
        let values: Vec<&[u8]> = values.filter(|value| !is_nobody(value)).collect();
        let (last, others) = values.split_last()?;
        let Some(proxies) = &self.proxies else {
            let same = |other: &&[u8]| other == last || address(other) == address(last);
            if !others.iter().all(same) {
                self.signs[field].lists += 1;
            }
            return Some(last.to_vec());
        };
        let mut head = http::Request::new(()).into_parts().0;
        head.extensions.insert(SocketAddr::new(address(last)?, 0));
        let header = HeaderValue::from_bytes(&values.join(&b","[..])).ok()?;
        head.headers.insert("x-forwarded-for", header);
        Some(proxies.address(&head).ok()?.to_string().into_bytes())
    }

    /// Converts an address as `PeerIp` does, except in the field `user`. Other values stay unchanged.
    fn key(&self, kind: &'static str, value: &[u8]) -> Key {
        match address(value) {
            Some(address) if kind != "user" => {
                let key = PeerIp.ipv6_prefix(self.ipv6_prefix).key(address);
                match kind {
                    "ip" => key,
                    kind => Key::new(kind, key.value()),
                }
            }
            _ => Key::new(kind, value),
        }
    }
}

/// A member of a list, without the brackets around the list. W3C logs write a blank as `+` or `%20`.
fn bare(member: &[u8]) -> &[u8] {
    let mut member = member.trim_ascii();
    while let [b' ' | b'+' | b'(', rest @ ..] | [rest @ .., b' ' | b')'] = member {
        member = rest;
    }
    match member {
        [b'%', b'2', b'0', rest @ ..] => rest,
        [b'[', rest @ ..] if !rest.contains(&b']') => rest,
        [rest @ .., b']'] if !rest.contains(&b'[') => rest,
        member => member,
    }
}

/// Fewer requests say nothing about the others.
const FEW: u64 = 5;

#[derive(Default)]
pub(super) struct Sign {
    keyed: u64,
    /// The number of odd values, the first of them, and its oddity.
    odd: u64,
    example: Option<(Key, &'static str)>,
    /// The values that were a list of several addresses, without trusted proxies.
    pub(super) lists: u64,
    /// A value that has more lines than all others together, if there is one, and by how many.
    lead: Option<Key>,
    ahead: u64,
}

impl Sign {
    pub(super) fn count(&mut self, key: &Key, oddity: Option<&'static str>) {
        self.keyed += 1;
        if let Some(oddity) = oddity {
            self.odd += 1;
            self.example.get_or_insert_with(|| (key.clone(), oddity));
        }
        match &self.lead {
            Some(lead) if lead == key => self.ahead += 1,
            Some(_) if self.ahead > 0 => self.ahead -= 1,
            _ => (self.lead, self.ahead) = (Some(key.clone()), 1),
        }
    }

    /// Facts to know about a field before you trust a verdict.
    pub(super) fn notes(&self, field: &str) -> Vec<String> {
        let mut notes = Vec::new();
        if self.lists > 0 {
            notes.push(format!(
                "{} lines have several addresses: the last, the peer, was taken for the client; to find clients behind \
                 your proxies, add --trusted-proxies CIDR,…",
                grouped(self.lists)
            ));
        }
        if let Some((key, oddity)) = self.example.as_ref().filter(|_| self.odd * 2 > self.keyed) {
            let key = identity(key);
            notes.push(format!(
                "most values of `{field}` {oddity}, such as {key}: is this the right field?"
            ));
        }
        let is_client = !["method", "path", "status", "referer", "agent"].contains(&field);
        let is_most = is_client && self.keyed >= FEW && self.ahead * 10 >= self.keyed * 8;
        if let Some(lead) = self.lead.as_ref().filter(|_| is_most) {
            let lead = identity(lead);
            notes.push(format!("{lead} has nearly all lines: is it a proxy?"));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(keys: &[&str]) -> Result<Vec<String>, Error> {
        let policies = ["api", "ip", "user"].map(|name| Policy::parse(name, "1/1s").unwrap());
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        let mapping = Mapping::new(&policies, &keys, &[], 64)?;
        Ok(mapping
            .policies
            .iter()
            .map(|mapped| mapping.fields[mapped.key].to_owned())
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
        let mapping = Mapping::new(&policies, &[], &[], 64).ok().unwrap();
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
