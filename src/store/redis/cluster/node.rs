//! [`Node`]: one node of a cluster, and the topology as reported by that node.

use std::{collections::HashMap, sync::Arc};

use redis::{
    Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind, Value,
    cluster::NodeAddress,
};

use crate::store::redis::{
    connection::{Connection, ReconnectingConnection, SingleServer, Target},
    error::closed,
};

/// One node and a connection, which opens at the first use.
pub(in crate::store::redis) struct Node {
    address: NodeAddress,
    /// The name of its certificate, if a node gave one beside the address.
    pub(super) name: Option<String>,
    pub(in crate::store::redis) connection: Arc<ReconnectingConnection>,
}

/// A range of hash slots, and the primary that serves them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) primary: NodeAddress,
    /// The name beside that address.
    pub(super) name: Option<String>,
}

impl Node {
    /// The node that is called so.
    pub(super) fn new(address: NodeAddress, name: Option<String>, target: Target) -> Arc<Self> {
        Arc::new(Self {
            address,
            name,
            connection: ReconnectingConnection::new(Arc::new(target)),
        })
    }

    /// Waits for a usable connection.
    pub(super) async fn reach(&self) -> RedisResult<Arc<Connection>> {
        self.connection.usable().await
    }

    pub(super) const fn address(&self) -> &NodeAddress {
        &self.address
    }

    /// The node alone, whatever its hash slots.
    pub(in crate::store::redis) fn server(&self) -> SingleServer {
        SingleServer {
            connection: Arc::clone(&self.connection),
            address: Some(self.address.to_string()),
        }
    }

    /// Sends one command, once. Use `asking` for a hash slot that is being moved to this node.
    ///
    /// Cancellation: the node executes a command that was sent. The reply is dropped.
    pub(super) async fn send(
        &self,
        cmd: &Cmd,
        asking: bool,
        connection: &Arc<Connection>,
    ) -> RedisResult<Value> {
        match asking {
            true => send_asking(cmd, connection).await,
            false => connection.send(cmd).await,
        }
    }

    /// Whether the node seems not to answer, so that the topology may have changed.
    pub(super) fn is_suspect(&self) -> bool {
        self.connection.is_lost()
    }

    /// Asks the node for the hash slots of each primary.
    pub(super) async fn topology(&self) -> RedisResult<Vec<Range>> {
        let connection = self.reach().await?;
        let question = redis::cmd("CLUSTER").arg("SLOTS").take();
        let reply = self.send(&question, false, &connection).await?;
        let ranges: Vec<Vec<Value>> = Vec::from_redis_value(reply)?;
        let ranges = ranges.into_iter().map(|range| self.range(range));
        let mut ranges: Vec<Range> = ranges.collect::<RedisResult<_>>()?;
        ranges.sort_unstable_by_key(|range| range.first);
        Ok(ranges)
    }

    /// Reads `[first, last, [host, port, id, {"hostname": …}], replicas…]`; versions before 7 give no more than an id.
    fn range(&self, mut range: Vec<Value>) -> RedisResult<Range> {
        range.truncate(3);
        let (first, last, mut primary): (u16, u16, Vec<Value>) =
            redis::from_redis_value(Value::Array(range))?;
        let beside: HashMap<String, String> = primary
            .get(3)
            .and_then(|it| redis::from_redis_value(it.clone()).ok())
            .unwrap_or_default();
        primary.truncate(2);
        let (host, port): (Option<String>, u16) = redis::from_redis_value(Value::Array(primary))?;
        let name = beside.get("hostname").filter(|name| !name.is_empty());
        Ok(Range {
            first,
            last,
            primary: NodeAddress::new(self.host_or_own(host.as_deref().unwrap_or_default()), port),
            name: name.cloned(),
        })
    }

    /// A node that does not know its own host is called by the one that reached it.
    pub(super) fn host_or_own<'a>(&'a self, host: &'a str) -> &'a str {
        match host {
            "" | "?" => self.address.host(),
            host => host,
        }
    }
}

async fn send_asking(cmd: &Cmd, connection: &Arc<Connection>) -> RedisResult<Value> {
    // Both go in one message: ASKING applies to the next command on the connection, and other callers share the
    // connection.
    let mut both = redis::Pipeline::with_capacity(2);
    both.cmd("ASKING").add_command(cmd.clone());
    let mut replies = connection.send_all(&both).await?.into_iter();
    // An error of ASKING, such as a missing right, comes first: without ASKING the command would only be redirected
    // back.
    replies.next().ok_or_else(closed)??;
    replies.next().ok_or_else(closed)?
}

/// Whether the node has executed nothing and another may have taken over.
pub(super) fn is_out_of_service(error: &RedisError) -> bool {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, ReadOnly};
    matches!(
        error.kind(),
        ErrorKind::Server(BusyLoading | ClusterDown | MasterDown | ReadOnly)
    )
}

#[cfg(test)]
mod tests {
    use redis::{IntoConnectionInfo, parse_redis_value};

    use super::*;

    fn range(text: &str) -> RedisResult<String> {
        let target = Target::from("redis://seed:7000".into_connection_info().unwrap());
        let address = NodeAddress::try_from(target.addr()).unwrap();
        let seed = Node::new(address, None, target);
        let value = parse_redis_value(text.replace(' ', "\r\n").as_bytes()).unwrap();
        let range = seed.range(Vec::from_redis_value(value)?)?;
        let name = range
            .name
            .map(|name| format!(" {name}"))
            .unwrap_or_default();
        let (first, last, primary) = (range.first, range.last, range.primary);
        Ok(format!("{first}-{last} {primary}{name}"))
    }

    #[test]
    fn a_node_that_does_not_know_its_name_has_the_one_that_it_was_reached_by() {
        for (host, named) in [
            ("$4 node", "node"),
            ("$0 ", "seed"),
            ("$1 ?", "seed"),
            ("$-1", "seed"),
        ] {
            let text = format!("*3 :0 :9 *3 {host} :7001 $2 id ");
            assert_eq!(range(&text).unwrap(), format!("0-9 {named}:7001"));
        }
    }

    #[test]
    fn the_name_beside_an_address_is_found_in_both_protocols() {
        for (beside, name) in [
            ("*0", ""),
            ("*2 $8 hostname $4 node", " node"),
            ("*4 $2 ip $4 ::ff $8 hostname $4 node", " node"),
            ("%1 $8 hostname $4 node", " node"),
            ("*2 $8 hostname $0 ", ""),
            (":7", ""),
        ] {
            let text = format!("*3 :0 :9 *4 $4 host :7001 $2 id {beside} ");
            assert_eq!(range(&text).unwrap(), format!("0-9 host:7001{name}"));
        }
    }

    #[test]
    fn a_range_that_cannot_be_read_is_an_error() {
        for text in ["*0 ", "*2 :0 :9 ", "*3 :0 :9 *0 ", "*3 :0 :9 :1 "] {
            assert!(range(text).is_err(), "{text}");
        }
    }
}
