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

/// If the entry beyond one address changes this often, the address is a proxy's: the entries beyond it are the clients. If
/// the address changes this often before one entry beyond it, the addresses are those of proxies, and the entry is a client.
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

/// Hashes an entry or an address, so that the notes keep no data from clients.
pub(super) fn hash_of(entry: impl Hash) -> u64 {
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
    /// The first client, and the entries beyond it; and the first entry beyond a client, and the clients before it.
    client: Steady,
    beyond: Steady,
}

/// How many requests had the first value of the window, and how often the value beside it changed in these.
#[derive(Debug, Default)]
struct Steady {
    first: Option<u64>,
    requests: u32,
    other: u64,
    changes: u32,
}

impl Steady {
    fn add(&mut self, value: u64, other: u64) {
        if *self.first.get_or_insert(value) == value {
            self.requests += 1;
            let last = mem::replace(&mut self.other, other);
            self.changes += u32::from(last != other);
        }
    }

    const fn stays_alone(&self) -> bool {
        self.requests >= MOST_OF_THEM && self.changes >= MANY_CHANGES
    }
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
            Seen::Client(ip, Some(beyond)) => {
                let client = hash_of(ip);
                self.client.add(client, *beyond);
                self.beyond.add(*beyond, client);
            }
            Seen::Unreadable => self.unreadable += 1,
            Seen::Client(_, None) | Seen::Direct | Seen::NoHeader => {}
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
        if self.client.stays_alone() {
            return Some(ProxyMistake::ProxyIsClient);
        }
        // The addresses of an edge come back. Those of many clients that all claim one address are new ones.
        let comes_back = self.client.requests > 1;
        let rotates = self.beyond.stays_alone() && comes_back;
        rotates.then_some(ProxyMistake::ProxiesAreClients)
    }
}

/// Returns whether a log may show the address: internal addresses identify no client of the public internet.
fn is_internal(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_private() || ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unique_local() || ip.is_loopback(),
    }
}
