//! [`Nodes`]: which primaries there are, and which slots they serve.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use redis::{
    Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue, RedisError,
    ServerErrorKind, Value, cluster::NodeAddress, cluster_routing::Slot,
};

use super::super::keeper::{Keeper, Source};

/// What is known of a cluster.
pub(super) struct Nodes {
    /// How to connect to a node, but for its address.
    form: ConnectionInfo,
    seeds: Vec<Arc<Node>>,
    by_address: HashMap<NodeAddress, Arc<Node>>,
    owners: HashMap<Slot, Arc<Node>>,
}

/// One node and the connection to it, which is made when first used.
pub(super) struct Node {
    address: NodeAddress,
    keeper: Arc<Keeper>,
    /// Whether the last that was heard from it, or not heard, would be explained by another topology.
    suspect: AtomicBool,
    /// Since the topology was last looked at.
    used: AtomicBool,
}

/// A range of slots, and the primary that serves them.
pub(super) struct Range {
    first: u16,
    last: u16,
    primary: NodeAddress,
}

impl Nodes {
    pub(super) fn new(seeds: &[ConnectionInfo]) -> Result<Self, RedisError> {
        let Some(form) = seeds.first() else {
            return Err((
                ErrorKind::InvalidClientConfig,
                "a cluster needs at least one node",
            )
                .into());
        };
        let tcp = form.tcp_settings().clone().set_nodelay(true);
        let form = form.clone().set_tcp_settings(tcp);
        let seeds = seeds
            .iter()
            .map(|seed| Node::at(&form, NodeAddress::try_from(seed.addr())?));
        Ok(Self {
            seeds: seeds.collect::<Result<_, _>>()?,
            form,
            by_address: HashMap::new(),
            owners: HashMap::new(),
        })
    }

    pub(super) fn owner(&self, slot: Slot) -> Option<Arc<Node>> {
        self.owners.get(&slot).cloned()
    }

    /// Who may be asked for the topology, those that are likely to answer first.
    pub(super) fn all(&self) -> Vec<Arc<Node>> {
        let known = self.by_address.values().chain(&self.seeds);
        let mut all: Vec<Arc<Node>> = known.cloned().collect();
        all.sort_by_key(|node| node.is_suspect());
        all
    }

    /// The node that a redirect names.
    pub(super) fn named(&mut self, error: &RedisError, by: &Node) -> Result<Arc<Node>, RedisError> {
        let (name, _) = error.redirect_node().ok_or_else(|| error.clone())?;
        let address = match name.strip_prefix(':') {
            None => NodeAddress::try_from(name)?,
            // It does not know its own name, which is the one that it was reached by.
            Some(port) => {
                NodeAddress::new(by.address.host(), port.parse().map_err(|_| error.clone())?)
            }
        };
        self.at(address)
    }

    /// The node that a redirect names, which has the slot from now on.
    pub(super) fn moved(
        &mut self,
        slot: Slot,
        error: &RedisError,
        by: &Node,
    ) -> Result<Arc<Node>, RedisError> {
        let node = self.named(error, by)?;
        self.owners.insert(slot, Arc::clone(&node));
        Ok(node)
    }

    fn at(&mut self, address: NodeAddress) -> Result<Arc<Node>, RedisError> {
        if let Some(node) = self.by_address.get(&address) {
            return Ok(Arc::clone(node));
        }
        let node = Node::at(&self.form, address.clone())?;
        self.by_address.insert(address, Arc::clone(&node));
        Ok(node)
    }

    /// Takes over what a node says of the topology, and forgets the nodes that serve nothing and were asked for nothing.
    pub(super) fn adopt(&mut self, ranges: Vec<Range>) -> Result<(), RedisError> {
        let mut owners = HashMap::with_capacity(16_384);
        for Range {
            first,
            last,
            primary,
        } in ranges
        {
            let node = self.at(primary)?;
            let slots = (first..=last).filter_map(Slot::new);
            owners.extend(slots.map(|slot| (slot, Arc::clone(&node))));
            node.used.store(true, Relaxed);
        }
        self.owners = owners;
        self.by_address
            .retain(|_, node| node.used.swap(false, Relaxed));
        Ok(())
    }
}

impl Node {
    fn at(form: &ConnectionInfo, address: NodeAddress) -> Result<Arc<Self>, RedisError> {
        let (host, port) = (address.host().to_owned(), address.port());
        let addr = match form.addr() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        let client = Client::open(form.clone().set_addr(addr))?;
        Ok(Arc::new(Self {
            address,
            keeper: Arc::new(Keeper::new(Source::Client(client.into()))),
            suspect: AtomicBool::new(false),
            used: AtomicBool::new(false),
        }))
    }

    /// Sends one command, once; `asking` for a slot that is on its way to this node.
    ///
    /// Cancellation: a caller who gives up makes the node suspect.
    pub(super) async fn send(&self, cmd: &Cmd, asking: bool) -> Result<Value, RedisError> {
        self.used.store(true, Relaxed);
        let mut waiting = Waiting {
            node: self,
            in_vain: true,
        };
        let keeper = Arc::clone(&self.keeper);
        let result = if asking {
            keeper.ask(cmd).await
        } else {
            keeper.send(cmd).await
        };
        waiting.in_vain = result.as_ref().is_err_and(is_suspicious);
        result
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.suspect.load(Relaxed)
    }

    /// Asks which slots are whose.
    pub(super) async fn topology(&self) -> Result<Vec<Range>, RedisError> {
        let reply = self.send(redis::cmd("CLUSTER").arg("SLOTS"), false).await?;
        let ranges: Vec<Vec<Value>> = Vec::from_redis_value(reply)?;
        ranges.into_iter().map(|range| self.range(range)).collect()
    }

    /// Reads `[first, last, [host, port, …], replicas…]`.
    fn range(&self, range: Vec<Value>) -> Result<Range, RedisError> {
        let mut range = range.into_iter();
        let mut next = || range.next().unwrap_or(Value::Nil);
        let (first, last) = (
            u16::from_redis_value(next())?,
            u16::from_redis_value(next())?,
        );
        let mut primary = Vec::<Value>::from_redis_value(next())?.into_iter();
        let host: Option<String> =
            FromRedisValue::from_redis_value(primary.next().unwrap_or(Value::Nil))?;
        let port = u16::from_redis_value(primary.next().unwrap_or(Value::Nil))?;
        // A node that does not know its own name is to be called by the one that it was reached by.
        let host = host.filter(|host| !host.is_empty());
        let host = host.unwrap_or_else(|| self.address.host().to_owned());
        Ok(Range {
            first,
            last,
            primary: NodeAddress::new(host, port),
        })
    }
}

/// Marks a node as suspect when a caller leaves without an answer, or with one that says so.
struct Waiting<'a> {
    node: &'a Node,
    in_vain: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.node.is_suspect() != self.in_vain {
            self.node.suspect.store(self.in_vain, Relaxed);
        }
    }
}

/// Whether another topology would explain this error.
fn is_suspicious(error: &RedisError) -> bool {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, Moved, ReadOnly};
    match error.kind() {
        ErrorKind::Server(kind) => {
            matches!(
                kind,
                BusyLoading | ClusterDown | MasterDown | Moved | ReadOnly
            )
        }
        kind => kind != ErrorKind::Extension,
    }
}

#[cfg(test)]
mod tests {
    use redis::{IntoConnectionInfo, parse_redis_value};

    use super::*;

    fn nodes() -> Nodes {
        Nodes::new(&["redis://seed:7000".into_connection_info().unwrap()]).unwrap()
    }

    fn value(text: &str) -> Value {
        parse_redis_value(text.replace(' ', "\r\n").as_bytes()).unwrap()
    }

    fn range(text: &str) -> Result<String, RedisError> {
        let range = Vec::from_redis_value(value(text))?;
        let Range {
            first,
            last,
            primary,
        } = nodes().seeds[0].range(range)?;
        Ok(format!("{first}-{last} {primary}"))
    }

    #[test]
    fn a_node_that_does_not_know_its_name_is_called_as_it_was_reached() {
        for (host, named) in [("$4 node", "node"), ("$0 ", "seed"), ("$-1", "seed")] {
            let text = format!("*3 :0 :9 *3 {host} :7001 $2 id ");
            assert_eq!(range(&text).unwrap(), format!("0-9 {named}:7001"));
        }
        let mut nodes = nodes();
        let seed = Arc::clone(&nodes.seeds[0]);
        for (to, named) in [("node:7001", "node:7001"), (":7002", "seed:7002")] {
            let moved = parse_redis_value(format!("-MOVED 7 {to}\r\n").as_bytes());
            let moved = moved.and_then(Value::extract_error).unwrap_err();
            assert_eq!(nodes.named(&moved, &seed).unwrap().address, *named);
        }
    }

    #[test]
    fn what_makes_no_sense_is_an_error() {
        for text in ["*0 ", "*2 :0 :9 ", "*3 :0 :9 *0 ", "*3 :0 :9 :1 "] {
            assert!(range(text).is_err(), "{text}");
        }
    }
}
