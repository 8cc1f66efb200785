//! Evidence of mistakes about proxies in the first requests of a service. A single request proves no mistake: a client
//! can write any header.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    mem,
    net::IpAddr,
};

use crate::warning::ProxyMistake;

/// How many requests are compared with each other.
const WINDOW: u32 = 100;

/// Not all: some requests may be made up.
const MOST_OF_THEM: u32 = 90;

/// If the entry beyond the address changes this often, the address is a proxy's: the entries beyond it are the clients.
const MANY_CHANGES: u32 = 10;

/// The evidence of one request.
pub(super) enum Seen {
    /// A peer that is not trusted, with this address, sent a forwarded request.
    Untrusted(IpAddr),
    /// A peer that is not trusted sent a request which was not forwarded: the peer is a client.
    Direct,
    /// A trusted proxy sent no header.
    NoHeader,
    /// The header has fewer entries than there are proxies.
    TooFew,
    /// The header names this client. If the header has another entry beyond the client's, this is a hash of that entry.
    Client(IpAddr, Option<u64>),
    /// The header cannot be read.
    Unreadable,
}

/// Hashes an entry, so that the notes keep no data from clients.
pub(super) fn hash_of(entry: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    entry.hash(&mut hasher);
    hasher.finish()
}

/// Notes about the requests so far.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// Requests of trusted proxies without the header: health checks, or a proxy that does not add one.
    without_header: u32,
    with_header: u32,
    window: Window,
    found: Vec<mem::Discriminant<ProxyMistake>>,
}

/// The last requests, without those of trusted proxies without a header.
#[derive(Debug, Default)]
struct Window {
    requests: u32,
    /// How many requests came from the first untrusted peer of the window, and how many from internal peers.
    of_peer: u32,
    of_internal: u32,
    peer: Option<IpAddr>,
    too_few: u32,
    unreadable: u32,
    /// The first client of the window, how many requests it sent, and how often the entry beyond it changed.
    client: Option<IpAddr>,
    of_client: u32,
    beyond: u64,
    changes: u32,
}

impl Evidence {
    /// Adds a request. Returns a mistake once that is certain; each kind of mistake once.
    pub(super) fn add(&mut self, seen: &Seen) -> Option<ProxyMistake> {
        let mistake = self.judge(seen)?;
        let kind = mem::discriminant(&mistake);
        if self.found.contains(&kind) {
            return None;
        }
        self.found.push(kind);
        Some(mistake)
    }

    fn judge(&mut self, seen: &Seen) -> Option<ProxyMistake> {
        if matches!(seen, Seen::NoHeader) {
            self.without_header += 1;
            // A client that sends the header must not hide that the proxy does not.
            let is_seldom_there = self.without_header / (WINDOW - MOST_OF_THEM) >= self.with_header;
            let is_certain = self.without_header >= WINDOW && is_seldom_there;
            return is_certain.then_some(ProxyMistake::NoHeader);
        }
        self.with_header += u32::from(!matches!(seen, Seen::Untrusted(_) | Seen::Direct));
        self.window.add(seen);
        // Judge whole windows: a mistake in the configuration shows in nearly every request.
        if self.window.requests < WINDOW {
            return None;
        }
        mem::take(&mut self.window).mistake()
    }
}

impl Window {
    fn add(&mut self, seen: &Seen) {
        self.requests += 1;
        match seen {
            Seen::Untrusted(peer) => {
                self.of_peer += u32::from(*self.peer.get_or_insert(*peer) == *peer);
                self.of_internal += u32::from(is_internal(peer));
            }
            Seen::TooFew => self.too_few += 1,
            Seen::Client(ip, Some(beyond)) if *self.client.get_or_insert(*ip) == *ip => {
                self.of_client += 1;
                let last = mem::replace(&mut self.beyond, *beyond);
                self.changes += u32::from(last != *beyond);
            }
            Seen::Unreadable => self.unreadable += 1,
            Seen::Client(..) | Seen::Direct | Seen::NoHeader => {}
        }
    }

    fn mistake(&self) -> Option<ProxyMistake> {
        // If the peers are many and public, each may be a client that made up the header.
        if self.of_peer.max(self.of_internal) >= MOST_OF_THEM {
            return Some(ProxyMistake::Untrusted {
                peer: self.peer.filter(is_internal),
            });
        }
        if self.too_few >= MOST_OF_THEM {
            return Some(ProxyMistake::TooFew);
        }
        if self.unreadable >= MOST_OF_THEM {
            return Some(ProxyMistake::Unreadable);
        }
        let is_proxy = self.of_client >= MOST_OF_THEM && self.changes >= MANY_CHANGES;
        is_proxy.then_some(ProxyMistake::ProxyIsClient)
    }
}

/// Returns whether a log may show the address: internal addresses identify no client of the public internet.
fn is_internal(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_private() || ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unique_local() || ip.is_loopback(),
    }
}
