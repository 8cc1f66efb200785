//! A real Redis Cluster for one test: three primaries, each with a replica, killed when dropped.

use std::time::Duration;

use super::{redis::Server, sharing::wait};

const SLOTS: usize = 16_384;

/// Gives each hash slot to one of the nodes of a cluster, makes them meet, and waits until each knows that all are served.
pub fn share_out(nodes: &[&Server], owner: impl Fn(usize) -> usize) {
    for (place, node) in nodes.iter().enumerate() {
        let own = (0..SLOTS).filter(|slot| owner(*slot) == place);
        let own: String = own.map(|slot| format!(" {slot}")).collect();
        if !own.is_empty() {
            node.run::<()>(&format!("CLUSTER ADDSLOTS{own}"));
        }
    }
    for (index, node) in nodes.iter().enumerate() {
        for other in &nodes[..index] {
            node.run::<()>(&format!("CLUSTER MEET 127.0.0.1 {}", port(other)));
        }
    }
    let known = format!("cluster_known_nodes:{}", nodes.len());
    wait("all hash slots are served", || {
        nodes.iter().all(|node| {
            let info: String = node.run("CLUSTER INFO");
            let are_served = info.contains("cluster_state:ok") && info.contains("slots_ok:16384");
            are_served && info.contains(&known)
        })
    });
}

#[derive(Debug)]
pub struct Cluster {
    /// The primaries, followed by their replicas in the same order, as they were at the start.
    pub nodes: Vec<Server>,
}

impl Cluster {
    /// Starts a cluster that fails over a node that is silent for `node_timeout`. The cluster serves the other slots if
    /// no node serves some.
    pub fn start(node_timeout: Duration) -> Self {
        let nodes: Vec<Server> = (0..6).map(|_| start_node(node_timeout)).collect();
        for (node, epoch) in nodes.iter().zip(1..) {
            node.run::<()>(&format!("CLUSTER SET-CONFIG-EPOCH {epoch}"));
        }
        let all: Vec<&Server> = nodes.iter().collect();
        share_out(&all, owner);
        let cluster = Self { nodes };
        cluster.follow();
        cluster
    }

    fn follow(&self) {
        for (primary, replica) in self.nodes.iter().zip(&self.nodes[3..]) {
            let () = replica.run(&format!("CLUSTER REPLICATE {}", id(primary)));
        }
        self.wait_until("all replicas follow", |node| {
            let info: String = node.run("INFO replication");
            let nodes: String = node.run("CLUSTER NODES");
            (info.contains("master_link_status:up") || info.contains("state=online"))
                && nodes.matches("slave").count() == 3
        });
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    /// The slot of all keys of this identity: `user=alice`.
    pub fn slot(&self, identity: &str) -> usize {
        self.nodes[3].run(&format!("CLUSTER KEYSLOT {{{identity}}}"))
    }

    /// The index of the primary that serves this identity at the start.
    pub fn home(&self, identity: &str) -> usize {
        owner(self.slot(identity))
    }

    /// Waits until the other primaries see that the replica of this primary has taken over.
    pub fn wait_for_promotion(&self, primary: usize) {
        let heir = format!("127.0.0.1:{}@", port(&self.nodes[primary + 3]));
        wait("the replica is promoted", || {
            let mut others = (0..3).filter(|other| *other != primary);
            others.all(|other| {
                let nodes: String = self.nodes[other].run("CLUSTER NODES");
                let heir = nodes.lines().find(|line| line.contains(&heir));
                heir.is_some_and(|line| line.contains("master") && line.contains(" connected "))
            })
        });
    }

    /// Begins to move a slot. Nodes create new keys of the slot at the other primary.
    pub fn begin_move(&self, slot: usize, from: usize, to: usize) {
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        let () = to.run(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", id(from)));
        let () = from.run(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", id(to)));
    }

    pub fn move_a_key(&self, slot: usize, from: usize, to: usize) -> bool {
        let (from, to) = (&self.nodes[from], port(&self.nodes[to]));
        let keys: Vec<String> = from.run(&format!("CLUSTER GETKEYSINSLOT {slot} 1"));
        keys.iter().for_each(|key| {
            let () = from.run(&format!("MIGRATE 127.0.0.1 {to} {key} 0 5000"));
        });
        !keys.is_empty()
    }

    pub fn end_move(&self, slot: usize, from: usize, to: usize) {
        let mut rounds = 0..10_000;
        while self.move_a_key(slot, from, to) {
            assert!(rounds.next().is_some(), "slot {slot} keeps its keys");
        }
        let id = id(&self.nodes[to]);
        for node in [to, from] {
            let () = self.nodes[node].run(&format!("CLUSTER SETSLOT {slot} NODE {id}"));
        }
    }

    pub fn restart(&mut self) {
        for node in &mut self.nodes {
            let mut restarts = (0..20).map(|_| {
                node.restart();
                node.answers()
            });
            assert!(restarts.any(|answers| answers), "a node that answers");
        }
    }

    fn wait_until(&self, what: &str, holds: impl Fn(&Server) -> bool) {
        wait(what, || self.nodes.iter().all(&holds));
    }
}

/// The primary that serves a slot at the start.
fn owner(slot: usize) -> usize {
    (3 * slot + 2) / SLOTS
}

fn start_node(node_timeout: Duration) -> Server {
    let args = format!(
        "--cluster-enabled yes --cluster-node-timeout {} --cluster-replica-validity-factor 0 \
         --cluster-require-full-coverage no --repl-diskless-sync-delay 0",
        node_timeout.as_millis()
    );
    Server::node(|| Server::with(&args.split(' ').collect::<Vec<_>>()))
}

fn id(node: &Server) -> String {
    node.run("CLUSTER MYID")
}

fn port(node: &Server) -> u16 {
    node.address().port()
}
