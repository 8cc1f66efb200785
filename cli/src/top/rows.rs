//! [`Rows`]: the first rows of a ranking, or of its networks, in bounded memory for any number of identities.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;

use serde_json::{Value, json};
use sluicegate::PeerIp;
use sluicegate::store::redis::inspect::StoredName;

use super::TopArgs;
use crate::{Cell, Table};

pub(super) struct Rows {
    most: usize,
    /// Sorted, the greatest rank first.
    first: Vec<(Rank, Option<StoredName>, Row)>,
    /// With `--by-prefix`.
    networks: Option<Networks>,
}

/// A row of the ranking as JSON and as cells, and less important lines below the table.
pub(super) type Row = (Value, Vec<Cell>, Vec<String>);

pub(super) type Rank = (u128, u64);

impl Rows {
    /// `names` are those of the two numbers that networks add up.
    pub(super) fn new(args: &TopArgs, names: [&'static str; 2]) -> Self {
        let networks = args.by_prefix.map(|bits| Networks {
            bits,
            names,
            ..Networks::default()
        });
        Self {
            most: args.number.into(),
            first: Vec::new(),
            networks,
        }
    }

    /// Inserts a row that is among the first. Replaces an earlier one of the same name. Or adds the numbers of an identity
    /// under a policy to those of its network.
    pub(super) fn offer(
        &mut self,
        (identity, policy): (&str, &str),
        numbers: [u64; 2],
        rank: Rank,
        name: Option<&StoredName>,
        row: impl FnOnce() -> Row,
    ) {
        if let Some(networks) = &mut self.networks {
            return networks.add(identity, policy, numbers);
        }
        let is_after = |last: &(Rank, _, _)| last.0 >= rank;
        if self.first.get(self.most - 1).is_some_and(is_after) {
            return;
        }
        self.first
            .retain(|it| name.is_none() || it.1.as_ref() != name);
        let place = self.first.partition_point(is_after);
        self.first.insert(place, (rank, name.cloned(), row()));
        self.first.truncate(self.most);
    }

    /// The rows, without those of networks.
    pub(super) fn rows(&mut self) -> impl Iterator<Item = &mut Row> {
        self.first.iter_mut().map(|it| &mut it.2)
    }

    /// The rows as JSON, and as a table with these titles, or with those of networks.
    pub(super) fn shown(&mut self, titles: &[&'static str]) -> (Vec<Value>, Table) {
        if let Some(networks) = &self.networks {
            return networks.first(self.most);
        }
        let mut table = Table::new(titles.iter().copied());
        let rows = self.rows().map(|(document, cells, _)| {
            table.row(std::mem::take(cells));
            std::mem::take(document)
        });
        (rows.collect(), table)
    }

    /// The lines below the table.
    pub(super) fn notes(&self) -> impl Iterator<Item = &str> {
        let is_cut = self.networks.as_ref().is_some_and(|it| it.is_cut);
        let cut =
            is_cut.then_some("there are too many networks: those with little use are left out");
        let notes = self.first.iter().flat_map(|(_, _, row)| &row.2);
        notes.map(String::as_str).chain(cut)
    }
}

/// Beyond, the half with the smallest numbers is forgotten.
const MOST: usize = 50_000;

/// The numbers of one network under one policy and of its addresses, by which networks are ranked.
type Sum = ([u64; 2], u64);

/// Networks of this many bits of IPv6 addresses; IPv4 addresses stay alone.
#[derive(Default)]
struct Networks {
    bits: u8,
    /// Those of the numbers.
    names: [&'static str; 2],
    sums: HashMap<(String, String), Sum>,
    /// Whether networks were forgotten.
    is_cut: bool,
}

impl Networks {
    /// Adds the numbers of an identity, if that is an address or a network.
    fn add(&mut self, identity: &str, policy: &str, numbers: [u64; 2]) {
        let Some((kind, value)) = identity.split_once('=') else {
            return;
        };
        let (address, bits) = value.split_once('/').unwrap_or((value, "128"));
        let Ok(address) = address.parse::<IpAddr>() else {
            return;
        };
        let most = self.bits;
        let bits = bits.parse().map_or(most, |bits: u8| bits.min(most));
        let network = PeerIp.ipv6_prefix(bits.clamp(32, 128)).key(address);
        let network = format!("{kind}={}", String::from_utf8_lossy(network.value()));
        let sum = self.sums.entry((network, policy.to_owned()));
        let (sums, addresses) = sum.or_default();
        *addresses += 1;
        for (sum, number) in sums.iter_mut().zip(numbers) {
            *sum = sum.saturating_add(number);
        }
        if self.sums.len() > MOST {
            self.is_cut = true;
            let mut all: Vec<Sum> = self.sums.values().copied().collect();
            let (_, middle, _) = all.select_nth_unstable(MOST / 2);
            self.sums.retain(|_, sum| *sum > *middle);
        }
    }

    /// The first networks, as JSON and as a table.
    fn first(&self, number: usize) -> (Vec<Value>, Table) {
        let mut sums: Vec<_> = self.sums.iter().collect();
        sums.sort_unstable_by_key(|(name, sum)| (Reverse(*sum), *name));
        let [one, two] = self.names;
        let titles = ["network", "policy", "addresses", one, two];
        let (mut rows, mut table) = (Vec::new(), Table::new(titles));
        for ((network, policy), ([first, second], addresses)) in sums.into_iter().take(number) {
            let field = |name: &str| name.replace(' ', "_");
            rows.push(json!({
                "network": network, "policy": policy, "addresses": addresses, field(one): first, field(two): second,
            }));
            let [addresses, first, second] = [*addresses, *first, *second].map(Cell::from);
            let (network, policy) = (network.as_str().into(), policy.as_str().into());
            table.row([network, policy, addresses, first, second]);
        }
        (rows, table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks() -> Networks {
        Networks {
            bits: 48,
            names: ["full", "used"],
            ..Networks::default()
        }
    }

    #[test]
    fn a_network_has_the_sums_of_its_addresses_and_other_identities_have_none() {
        let mut networks = networks();
        for identity in [
            "ip=2001:db8:1:2::/64",
            "ip=2001:db8:1:3::/64",
            "ip=::ffff:192.0.2.1",
        ] {
            networks.add(identity, "api", [1, 5]);
        }
        networks.add("ip=2001:db8::/32", "api", [0, 7]);
        networks.add("user=alice", "api", [9, 9]);
        let (rows, _) = networks.first(2);
        assert_eq!(
            rows[0],
            json!({ "network": "ip=2001:db8:1::/48", "policy": "api", "addresses": 2, "full": 2, "used": 10 })
        );
        assert_eq!(rows[1]["network"], "ip=192.0.2.1");
        let (rows, _) = networks.first(9);
        assert_eq!(
            (rows.len(), &rows[2]["network"]),
            (3, &json!("ip=2001:db8::/32"))
        );
    }

    #[test]
    fn networks_are_bounded_and_the_greatest_is_kept() {
        let mut networks = networks();
        for number in 0..2 * MOST {
            let [high, low] = [number / 256, number % 256];
            networks.add(&format!("ip=2001:{high:x}:{low:x}::/64"), "api", [0, 1]);
            networks.add("ip=2001:db8:1::/64", "api", [0, 1]);
            assert!(networks.sums.len() <= MOST);
        }
        let (rows, _) = networks.first(1);
        assert_eq!(rows[0]["addresses"], 2 * MOST as u64);
        assert!(networks.is_cut);
    }
}
