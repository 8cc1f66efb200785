//! [`Nodes`]: the known primaries, and the hash slots that they serve.

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::Arc,
};

use redis::{
    ConnectionAddr, RedisError, RedisResult, cluster::NodeAddress,
    cluster_routing::Slot as HashSlot,
};

use super::node::{Node, Range};
use crate::store::redis::connection::Target;

/// The known nodes and hash slots of a cluster.
pub(super) struct Nodes {
    /// Connection settings for every node; only the address differs.
    template: Target,
    seeds: Vec<Arc<Node>>,
    by_address: HashMap<NodeAddress, Arc<Node>>,
    owners: Owners,
    /// The source of `owners`; empty if a redirect has changed `owners` since.
    ranges: Vec<Range>,
}

/// The primary of each hash slot.
pub(super) type Owners = HashMap<HashSlot, Arc<Node>>;

impl Nodes {
    /// # Panics
    ///
    /// Without seeds.
    pub(super) fn new(seeds: &[Target]) -> Self {
        let seed = |seed: &Target| {
            let address = NodeAddress::try_from(seed.addr()).ok()?;
            let target = seeds[0].at(address.host().to_owned(), address.port());
            Some(Node::new(address, None, target))
        };
        Self {
            template: seeds[0].clone(),
            seeds: seeds.iter().filter_map(seed).collect(),
            by_address: HashMap::new(),
            owners: Owners::new(),
            ranges: Vec::new(),
        }
    }

    /// The nodes that own a hash slot, each once, in the order of their hash slots.
    pub(super) fn serving(&self) -> Vec<Arc<Node>> {
        let mut owners: Vec<Arc<Node>> = Vec::new();
        for hash_slot in (0..16_384).filter_map(HashSlot::new) {
            if let Some(owner) = self.owners.get(&hash_slot)
                && !owners.iter().any(|other| Arc::ptr_eq(other, owner))
            {
                owners.push(Arc::clone(owner));
            }
        }
        owners
    }

    pub(super) fn owner(&self, hash_slot: HashSlot) -> Option<Arc<Node>> {
        self.owners.get(&hash_slot).cloned()
    }

    /// All nodes that can report the topology, the most likely to answer first.
    pub(super) fn all(&self) -> Vec<Arc<Node>> {
        let known = self.by_address.values().chain(&self.seeds);
        let mut all: Vec<Arc<Node>> = known.cloned().collect();
        all.sort_by_key(|node| node.is_suspect());
        all
    }

    /// The node that a redirect names.
    pub(super) fn named(&mut self, error: &RedisError, by: &Node) -> RedisResult<Arc<Node>> {
        Ok(self.at(address_in(error, by)?, None))
    }

    /// Whether a redirect names a node that has to be known first, since its certificate may have another name.
    pub(super) fn is_stranger(&self, error: &RedisError, by: &Node) -> bool {
        let is_tls = matches!(self.template.addr(), ConnectionAddr::TcpTls { .. });
        let is_known = |address| self.by_address.contains_key(&address);
        is_tls && address_in(error, by).is_ok_and(|address| !is_known(address))
    }

    /// The node that a redirect names. Records that node as the owner of the hash slot.
    pub(super) fn moved(
        &mut self,
        hash_slot: HashSlot,
        error: &RedisError,
        by: &Node,
    ) -> RedisResult<Arc<Node>> {
        let node = self.named(error, by)?;
        self.owners.insert(hash_slot, Arc::clone(&node));
        self.ranges.clear();
        Ok(node)
    }

    /// The node at this address, if that is its name too.
    fn at(&mut self, address: NodeAddress, name: Option<String>) -> Arc<Node> {
        match self.by_address.get(&address) {
            Some(node) if name.is_none() || node.name == name => Arc::clone(node),
            _ => {
                let place = (address.host(), address.port());
                let target = self.template.named(place, name.as_deref());
                let node = Node::new(address.clone(), name, target);
                self.by_address.insert(address, Arc::clone(&node));
                node
            }
        }
    }

    /// Whether these ranges are known already.
    pub(super) fn is_known(&self, ranges: &[Range]) -> bool {
        self.ranges == ranges
    }

    /// The nodes that serve these ranges, in their order.
    pub(super) fn primaries(&mut self, ranges: &[Range]) -> Vec<Arc<Node>> {
        let at = |range: &Range| self.at(range.primary.clone(), range.name.clone());
        ranges.iter().map(at).collect()
    }

    /// Installs a new topology, and forgets the nodes that serve no hash slots. Returns the old owners, to be dropped
    /// outside of the lock.
    pub(super) fn adopt(&mut self, ranges: Vec<Range>, owners: Owners) -> Owners {
        let serving: HashSet<_> = ranges.iter().map(|range| &range.primary).collect();
        self.by_address
            .retain(|address, _| serving.contains(address));
        self.ranges = ranges;
        mem::replace(&mut self.owners, owners)
    }
}

/// The address that a redirect names.
fn address_in(error: &RedisError, by: &Node) -> RedisResult<NodeAddress> {
    let (name, _) = error.redirect_node().ok_or_else(|| error.clone())?;
    let (host, port) = name.rsplit_once(':').ok_or_else(|| error.clone())?;
    let port = port.parse().map_err(|_| error.clone())?;
    Ok(NodeAddress::new(by.host_or_own(host), port))
}

/// The primary of each hash slot, from the ranges and their primaries. Call this outside of the lock: there are 16 384
/// hash slots.
pub(super) fn owners(ranges: &[Range], primaries: &[Arc<Node>]) -> Owners {
    let mut owners = Owners::with_capacity(16_384);
    for (range, node) in ranges.iter().zip(primaries) {
        let hash_slots = (range.first..=range.last).filter_map(HashSlot::new);
        owners.extend(hash_slots.map(|hash_slot| (hash_slot, Arc::clone(node))));
    }
    owners
}

#[cfg(test)]
mod tests {
    use redis::{IntoConnectionInfo, Value, parse_redis_value};

    use super::*;
    use crate::store::redis::connection::RedisServer;

    fn nodes() -> Nodes {
        let seed = "redis://seed:7000".into_connection_info().unwrap();
        Nodes::new(&[Target::from(seed)])
    }

    fn moved(to: &str) -> RedisError {
        let reply = parse_redis_value(format!("-MOVED 7 {to}\r\n").as_bytes());
        reply.and_then(Value::extract_error).unwrap_err()
    }

    #[test]
    fn a_redirect_may_leave_the_host_out() {
        let mut nodes = nodes();
        let seed = Arc::clone(&nodes.seeds[0]);
        for (to, named) in [
            ("node:7001", "node:7001"),
            ("::1:7001", "::1:7001"),
            (":7002", "seed:7002"),
            ("?:7003", "seed:7003"),
        ] {
            let node = nodes.named(&moved(to), &seed).unwrap();
            assert_eq!(*node.address(), *named);
        }
    }

    #[test]
    fn no_code_of_the_user_runs_while_the_nodes_are_locked() {
        let seed = RedisServer::from("redis://seed:7000");
        let seed = seed.map_addresses(|_, _| panic!("called"));
        let mut nodes = Nodes::new(&[seed.target().unwrap()]);
        let seed = Arc::clone(&nodes.seeds[0]);
        nodes.named(&moved("node:7001"), &seed).unwrap();
    }

    #[test]
    fn a_topology_is_known_until_a_redirect_contradicts_it() {
        let mut nodes = nodes();
        let seed = Arc::clone(&nodes.seeds[0]);
        let ranges = || {
            vec![Range {
                first: 0,
                last: 9,
                primary: NodeAddress::new("seed", 7000),
                name: None,
            }]
        };
        assert!(!nodes.is_known(&ranges()));
        let primaries = nodes.primaries(&ranges());
        nodes.adopt(ranges(), owners(&ranges(), &primaries));
        assert!(nodes.is_known(&ranges()));
        let hash_slot = HashSlot::new(7).unwrap();
        assert!(Arc::ptr_eq(&nodes.owner(hash_slot).unwrap(), &primaries[0]));
        nodes.moved(hash_slot, &moved("node:7001"), &seed).unwrap();
        assert!(!nodes.is_known(&ranges()));
        assert_eq!(*nodes.owner(hash_slot).unwrap().address(), *"node:7001");
    }

    #[test]
    fn a_node_is_forgotten_with_the_topology_in_which_it_serves_nothing() {
        let mut nodes = nodes();
        let seed = Arc::clone(&nodes.seeds[0]);
        for (port, known) in [(7001, vec![7001]), (7002, vec![7002])] {
            nodes.named(&moved("node:7009"), &seed).unwrap();
            let ranges = vec![Range {
                first: 0,
                last: 9,
                primary: NodeAddress::new("node", port),
                name: None,
            }];
            let primaries = nodes.primaries(&ranges);
            let owners = owners(&ranges, &primaries);
            nodes.adopt(ranges, owners);
            let ports = nodes.by_address.keys().map(NodeAddress::port);
            assert_eq!(ports.collect::<Vec<_>>(), known);
        }
    }
}
