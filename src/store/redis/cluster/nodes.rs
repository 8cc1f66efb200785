//! [`Nodes`]: the known primaries, and the hash slots that they serve.

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::Arc,
};

use redis::{
    Client, ConnectionInfo, ErrorKind, RedisError, RedisResult, cluster::NodeAddress,
    cluster_routing::Slot,
};

use super::node::{Node, Range};

/// The known nodes and hash slots of a cluster.
pub(super) struct Nodes {
    /// Connection settings for every node; only the address differs.
    template: ConnectionInfo,
    seeds: Vec<Arc<Node>>,
    by_address: HashMap<NodeAddress, Arc<Node>>,
    owners: Owners,
    /// The source of `owners`; empty if a redirect has changed `owners` since.
    ranges: Vec<Range>,
}

/// The primary of each hash slot.
pub(super) type Owners = HashMap<Slot, Arc<Node>>;

impl Nodes {
    pub(super) fn new(seeds: &[Client]) -> RedisResult<Self> {
        let Some(first) = seeds.first() else {
            let problem = "a cluster needs at least one node";
            return Err((ErrorKind::InvalidClientConfig, problem).into());
        };
        let template = first.get_connection_info().clone();
        let node = |seed: &Client| {
            let address = NodeAddress::try_from(seed.get_connection_info().addr())?;
            Node::new(&template, address)
        };
        Ok(Self {
            seeds: seeds.iter().map(node).collect::<RedisResult<_>>()?,
            template,
            by_address: HashMap::new(),
            owners: Owners::new(),
            ranges: Vec::new(),
        })
    }

    /// The same for another runtime, as at first.
    pub(super) fn fresh(&self) -> Self {
        Self {
            seeds: self.seeds.iter().map(|seed| seed.fresh()).collect(),
            template: self.template.clone(),
            by_address: HashMap::new(),
            owners: Owners::new(),
            ranges: Vec::new(),
        }
    }

    /// The nodes that own a hash slot, each once, in the order of their hash slots.
    pub(super) fn serving(&self) -> Vec<Arc<Node>> {
        let mut owners: Vec<Arc<Node>> = Vec::new();
        for slot in (0..16_384).filter_map(Slot::new) {
            if let Some(owner) = self.owners.get(&slot)
                && !owners.iter().any(|other| Arc::ptr_eq(other, owner))
            {
                owners.push(Arc::clone(owner));
            }
        }
        owners
    }

    pub(super) fn owner(&self, slot: Slot) -> Option<Arc<Node>> {
        self.owners.get(&slot).cloned()
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
        let (name, _) = error.redirect_node().ok_or_else(|| error.clone())?;
        let address = match name.strip_prefix(':') {
            None => NodeAddress::try_from(name)?,
            // The node does not know its own name, so use the address that reached it.
            Some(port) => NodeAddress::new(
                by.address().host(),
                port.parse().map_err(|_| error.clone())?,
            ),
        };
        self.at(address)
    }

    /// The node that a redirect names. Records that node as the owner of the hash slot.
    pub(super) fn moved(
        &mut self,
        slot: Slot,
        error: &RedisError,
        by: &Node,
    ) -> RedisResult<Arc<Node>> {
        let node = self.named(error, by)?;
        self.owners.insert(slot, Arc::clone(&node));
        self.ranges.clear();
        Ok(node)
    }

    fn at(&mut self, address: NodeAddress) -> RedisResult<Arc<Node>> {
        if let Some(node) = self.by_address.get(&address) {
            return Ok(Arc::clone(node));
        }
        let node = Node::new(&self.template, address.clone())?;
        self.by_address.insert(address, Arc::clone(&node));
        Ok(node)
    }

    /// Whether these ranges are known already.
    pub(super) fn is_known(&self, ranges: &[Range]) -> bool {
        self.ranges == ranges
    }

    /// The nodes that serve these ranges, in their order.
    pub(super) fn primaries(&mut self, ranges: &[Range]) -> RedisResult<Vec<Arc<Node>>> {
        let primaries = ranges.iter().map(|range| self.at(range.primary.clone()));
        primaries.collect()
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

/// The primary of each hash slot, from the ranges and their primaries. Call this outside of the lock: there are 16 384
/// hash slots.
pub(super) fn owners(ranges: &[Range], primaries: &[Arc<Node>]) -> Owners {
    let mut owners = Owners::with_capacity(16_384);
    for (range, node) in ranges.iter().zip(primaries) {
        let slots = (range.first..=range.last).filter_map(Slot::new);
        owners.extend(slots.map(|slot| (slot, Arc::clone(node))));
    }
    owners
}

#[cfg(test)]
mod tests {
    use redis::{Value, parse_redis_value};

    use super::*;

    fn nodes() -> Nodes {
        let seed = Client::open("redis://seed:7000").unwrap();
        Nodes::new(&[seed]).unwrap()
    }

    fn moved(to: &str) -> RedisError {
        let reply = parse_redis_value(format!("-MOVED 7 {to}\r\n").as_bytes());
        reply.and_then(Value::extract_error).unwrap_err()
    }

    #[test]
    fn a_redirect_may_leave_the_host_out() {
        let mut nodes = nodes();
        let seed = Arc::clone(&nodes.seeds[0]);
        for (to, named) in [("node:7001", "node:7001"), (":7002", "seed:7002")] {
            let node = nodes.named(&moved(to), &seed).unwrap();
            assert_eq!(*node.address(), *named);
        }
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
            }]
        };
        assert!(!nodes.is_known(&ranges()));
        let primaries = nodes.primaries(&ranges()).unwrap();
        nodes.adopt(ranges(), owners(&ranges(), &primaries));
        assert!(nodes.is_known(&ranges()));
        let slot = Slot::new(7).unwrap();
        assert!(Arc::ptr_eq(&nodes.owner(slot).unwrap(), &primaries[0]));
        nodes.moved(slot, &moved("node:7001"), &seed).unwrap();
        assert!(!nodes.is_known(&ranges()));
        assert_eq!(*nodes.owner(slot).unwrap().address(), *"node:7001");
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
            }];
            let primaries = nodes.primaries(&ranges).unwrap();
            let owners = owners(&ranges, &primaries);
            nodes.adopt(ranges, owners);
            let ports = nodes.by_address.keys().map(NodeAddress::port);
            assert_eq!(ports.collect::<Vec<_>>(), known);
        }
    }
}
