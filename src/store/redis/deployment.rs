//! How to run the server: rights, TLS, Sentinel and replication, a cluster, twemproxy.
//!
//! # The least rights
//!
//! A user needs these rights and no others, with the store's [prefix](crate::RedisStore::prefix) in the place of
//! `sluicegate`:
//!
//! ```text
//! ACL SETUSER limiter reset on >PASSWORD ~sluicegate:* +evalsha +eval +time +get +set +setrange +del
//! ```
//!
//! and
//!
//! - `+select` for a database other than 0,
//! - `+role` where sentinels name the server (at a sentinel, `+sentinel|get-master-addr-by-name` is enough),
//! - `+cluster|slots +asking` on a cluster.
//!
//! # TLS
//!
//! With the feature `tls`, `rediss://` URLs are understood, and the system's certificate authorities trusted. For an
//! authority or a client certificate of your own, build the `redis::Client`:
//!
//! ```no_run
//! # #[cfg(feature = "tls")]
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use redis::{Client, ClientTlsConfig, TlsCertificates};
//! use sluicegate::RedisStore;
//!
//! let certificates = TlsCertificates {
//!     root_cert: Some(std::fs::read("ca.pem")?),
//!     client_tls: Some(ClientTlsConfig {
//!         client_cert: std::fs::read("limiter.pem")?,
//!         client_key: std::fs::read("limiter.key")?,
//!     }),
//! };
//! let client = Client::build_with_tls("rediss://limiter:password@redis.example:6379", certificates)?;
//! let store = RedisStore::connect(client.get_connection_info().clone()).await?;   // or, lazily: RedisStore::from(client)
//! # Ok(())
//! # }
//! ```
//!
//! A server whose certificate is not trusted, or is for another host, is an
//! [`AccessDenied`](crate::error::StoreErrorKind::AccessDenied) error: of `connect` when the service starts, and of each check
//! of a store that was made lazily. A server that does not speak TLS at that port does not answer at all.
//!
//! redis-rs uses the process's `rustls` provider of cryptography. When the first store for a `rediss://` URL is made
//! and the process has none, `ring` becomes it; to use another, install it before. Where you make the connections
//! yourself, install one in any case.
//!
//! # Sentinel and replication
//!
//! With the feature `sentinel`, [`RedisStore::sentinel`](crate::RedisStore) asks sentinels for the primary whenever it
//! connects: all at once, so that one which hangs or is gone costs nothing while others answer. The address that most
//! of them name is tried first, and must say that it is a primary. A connection is replaced when its server says that
//! it is a replica (`READONLY`) or lacks replicas (`NOREPLICAS`), does not answer in time or ends; and, asked once a
//! second while there are requests, when most sentinels name another primary. In the tests of the crate decisions are
//! normal again within a second after a promotion.
//!
//! A store over a URL does the same without asking: it connects to that name again, which DNS or a proxy may lead
//! elsewhere.
//!
//! **What can be lost.** Redis replicates asynchronously. What a primary admitted and its successor has not heard of is
//! forgotten, and so may be admitted once more, never more often for each failover:
//!
//! - *The primary dies or hangs:* what it admitted within the last replication lag, some milliseconds where replicas
//!   keep up (`INFO replication` tells).
//! - *It is cut off from its replicas and sentinels, but not from your services:* what it admits from then on, until
//!   the sentinels have promoted another (`down-after-milliseconds` and the time for an election) and a second more, if
//!   the services reach most of the sentinels. If they do not, until the primary stops by itself: set
//!   `min-replicas-to-write 1` and `min-replicas-max-lag 1` on all servers, and it refuses writes after two seconds, so
//!   that the failure policy decides.
//! - *The clock of the successor is ahead:* charges are released early by the difference: see [Clocks](super#clocks).
//!
//! A primary that restarts empty and is faster than its sentinels has lost everything: keep `down-after-milliseconds`
//! below the time that a restart takes, or persistence on.
//!
//! # Cluster
//!
//! `RedisStore::cluster` (feature `cluster`) follows a Redis Cluster: it keeps a connection to each primary, and
//! refreshes the topology as soon as a node redirects, hangs up or does not answer. A node in trouble costs its own
//! slots alone.
//!
//! A script reaches the keys of one slot, and no more. The slot follows from what stands in the braces, the identity.
//! So
//!
//! - all policies of *one* identity are decided **in one atomic step**, as on one server;
//! - a check of *several* identities is one call for each slot, at the same time, and if one denies or fails, what the
//!   others admitted is settled to 0. **Never more than the limit is admitted**, and a denial leaves nothing charged.
//!   But until that is settled, for one round trip, it counts: a request at the same time may be denied that would have
//!   fitted. When a node hangs, it counts until the caller leaves, and, from the time on when the node is known not to
//!   answer, for a round trip again. A denial by one slot is the answer though a node of another is in trouble, of
//!   which it then tells nothing;
//! - [shadows](crate::Policy::shadow) of several identities are decided after the charges that count, in calls of their
//!   own;
//! - each node's own clock decides for its keys.
//!
//! What is settled to 0 is settled in a task of its own, also when the caller has left. Two things can stay charged,
//! until their steps are released: a part whose node was lost after it had admitted, and a part that was executed but
//! whose reply was lost. Both admit too few, never too many.
//!
//! A command that was redirected (`MOVED`, `ASK`, `TRYAGAIN`) or that a node out of service refused is sent on, since
//! it was not executed. One whose connection was lost is not: it may have been. While a slot is being moved, an
//! identity with several policies may not be decidable for a moment, since its keys are in two places; then the failure
//! policy decides.
//!
//! A replica knows what its primary told it: what was charged in the last moments before a failover may be forgotten.
//! Set `cluster-require-full-coverage no`, or all slots wait while one has no primary.
//!
//! # twemproxy
//!
//! twemproxy sends a whole call to the server of its first key, and does not say so when other keys belong elsewhere.
//! So all keys of a service must be on one server: let its prefix be the hash tag, `store.prefix("<shop>")`, in a pool
//! like this one.
//!
//! ```yaml
//! limits:
//!   listen: 127.0.0.1:22121
//!   redis: true
//!   hash: murmur             # the default spreads similar names badly
//!   hash_tag: "<>"
//!   auto_eject_hosts: false  # else a server that is away moves its keys, and their limits start anew
//!   timeout: 100             # else all wait behind a server that does not answer
//!   servers:
//!    - 10.0.0.1:6379:1
//!    - 10.0.0.2:6379:1
//! ```
//!
//! Where no check charges more than one identity, `hash_tag: "{}"` spreads identities over the servers, whatever the
//! prefix. Let the limiter [probe with every request](crate::Limiter::probe_interval), since one of the servers may be
//! away and the others not.
//!
//! A URL or a `Client` works as it is. A pool or a connection of your own must not introduce itself, because the proxy
//! hangs up on commands that it does not know:
//! [`RedisConnectionInfo::set_skip_set_lib_name`](redis::RedisConnectionInfo::set_skip_set_lib_name). Users, databases
//! and RESP3 do not work through it.
