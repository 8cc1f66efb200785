use std::net::IpAddr;

use crate::extract::Cidr;

use super::entries::MAX_ENTRIES;

/// Which proxies' word is taken for where a request came from: those of some networks, or a number of them.
#[derive(Clone, Debug)]
pub struct TrustedProxies {
    pub(super) trust: Trust,
}

#[derive(Clone, Debug)]
pub(super) enum Trust {
    Networks(Box<[Cidr]>),
    Count(usize),
}

impl TrustedProxies {
    /// Trusts the proxies of these networks, and nobody else: where the peer is not in one of them, the header is ignored.
    ///
    /// Without any network, no header is ever read, and the peer is the client.
    #[must_use]
    pub fn networks(networks: impl IntoIterator<Item = Cidr>) -> Self {
        Self {
            trust: Trust::Networks(networks.into_iter().collect()),
        }
    }

    /// Trusts whoever connects, and so many proxies in a row with it: 1 is the peer alone, 2 the peer and the one that
    /// calls it.
    ///
    /// The client is the entry that the outermost of them has written: the `proxies`-th from the right. Only for services that
    /// nobody can reach past these proxies, and always by way of all of them: one too many, and a client writes its own
    /// address; one too few, and all clients are a proxy. The peer's address is not looked at, so that this
    /// works over Unix sockets too.
    ///
    /// # Panics
    ///
    /// When `proxies` is 0 or above 64.
    #[must_use]
    pub const fn count_including_peer(proxies: usize) -> Self {
        assert!(
            1 <= proxies && proxies <= MAX_ENTRIES,
            "the number of trusted proxies must be 1 (the peer alone) to 64"
        );
        Self {
            trust: Trust::Count(proxies),
        }
    }
}

pub(super) fn any_contains(networks: &[Cidr], ip: IpAddr) -> bool {
    networks
        .iter()
        .any(|network| network.contains_canonical(ip))
}
