//! The client's address behind proxies: [`ForwardedIp`], and what each proxy needs.
//!
//! Behind a proxy the peer is the proxy. The client's address is in a header, to which the client and every proxy on
//! the way may have added entries, from left to right. Entries that a trusted proxy wrote can be trusted; entries to
//! the left of those may be made up by the client. So the header is read from the right, as far as it was written by
//! proxies that you name:
//!
//! ```text
//!  X-Forwarded-For: 6.6.6.6, 203.0.113.7, 10.0.0.2        peer: 10.0.0.1
//!                   └──┬──┘  └────┬────┘  └───┬──┘              └───┬──┘
//! may be made up by the client    │     written by 10.0.0.1,    trusted
//!          (never read)           │     trusted: go on
//!                        written by 10.0.0.2, not trusted: the client
//! ```
//!
//! ```
//! use std::net::SocketAddr;
//! use sluicegate::{ForwardedIp, Key, KeyExtractor, extract::{Keys, TrustedProxies}};
//!
//! let ours = TrustedProxies::networks(["10.0.0.0/8".parse()?, "fd00::/8".parse()?]);
//! let ip = ForwardedIp::x_forwarded_for(ours);
//!
//! let mut head = http::Request::get("/")
//!     .header("x-forwarded-for", "6.6.6.6, 203.0.113.7, 10.0.0.2")
//!     .body(())?.into_parts().0;
//! head.extensions.insert("10.0.0.1:50000".parse::<SocketAddr>()?);
//! assert_eq!(ip.extract(&head)?, Keys::from(Key::new("ip", "203.0.113.7")));
//!
//! // A client that connects directly is identified by its own address, whatever it sends.
//! head.extensions.insert("198.51.100.1:50000".parse::<SocketAddr>()?);
//! assert_eq!(ip.extract(&head)?, Keys::from(Key::new("ip", "198.51.100.1")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Networks or a count
//!
//! Prefer [`networks`](TrustedProxies::networks): they stay correct when a client connects directly, and when a proxy
//! is added or removed within them. A [count](TrustedProxies::count_including_peer) is for proxies whose addresses are
//! not known, and for Unix sockets; it is safe only if every request comes through exactly that many.
//!
//! A request of a trusted proxy itself, such as a health check, has no header and so no key: it is rejected unless you
//! choose [`or_skip`](crate::KeyExtractor::or_skip) or [`or_shared`](crate::KeyExtractor::or_shared). With a count, a
//! client that connects directly can choose to send such a request.
//!
//! Counts differ by one between products. Here it is the position of the client's entry from the right, so that 1 is
//! the last entry:
//!
//! | product | its setting | ours |
//! |---|---|---|
//! | Express `trust proxy`, werkzeug `ProxyFix(x_for=…)`, Traefik `ipStrategy.depth`, ASP.NET `ForwardLimit` | n | n |
//! | Envoy `xff_num_trusted_hops` with `use_remote_address: true`, for a service in Envoy's place | n | n |
//! | the same Envoy, for the service *behind* it | n | n + 1 |
//! | Envoy `xff_num_trusted_hops` with `use_remote_address: false`, for a service in Envoy's place | n | n + 1 |
//!
//! # Which proxy needs what
//!
//! `networks` are the addresses from which the proxy calls the service, and those of any further proxies in front of
//! it. Networks of vendors change, and an address that a vendor gave up belongs to another customer: none are built
//! in. Fetch the vendor's list when you deploy.
//!
//! | in front of the service | its setting | extractor | count |
//! |---|---|---|---|
//! | nginx | `proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for` | `x_forwarded_for` | 1 |
//! | nginx, as `X-Real-IP` | `proxy_set_header X-Real-IP $remote_addr` | `header("x-real-ip")` | 1 |
//! | HAProxy | `option forwardfor` (adds a line of its own) | `x_forwarded_for` | 1 |
//! | HAProxy 2.8 | `option forwarded` | `forwarded` | 1 |
//! | Envoy, Istio's gateway | `use_remote_address: true` | `x_forwarded_for` | 1 |
//! | Caddy | none; trusts no client's header unless it has `trusted_proxies` | `x_forwarded_for` | 1 |
//! | Traefik | none; trusts no client's header unless it has `forwardedHeaders.trustedIPs` | `x_forwarded_for` | 1 |
//! | AWS ALB | `routing.http.xff_header_processing.mode` = `append`, the default | `x_forwarded_for` | 1 |
//! | AWS CloudFront, then ALB | | `x_forwarded_for` | 2 |
//! | AWS NLB | no HTTP: keep client addresses on, or read the PROXY protocol | [`PeerIp`](struct@crate::PeerIp) | |
//! | Google's external Application LB | writes two entries, the client and *its own* address: trust that one too | `x_forwarded_for` | 2 |
//! | Azure Application Gateway | writes addresses with ports | `x_forwarded_for` | 1 |
//! | Cloudflare | | `header("cf-connecting-ip")`, or `x_forwarded_for` | 1 |
//! | Cloudflare, then nginx | nginx passes the header on | `header("cf-connecting-ip")` | 1 |
//! | Akamai, Cloudflare Enterprise | True-Client-IP is enabled | `header("true-client-ip")` | 1 |
//! | Fly | | `header("fly-client-ip")` | 1 |
//! | Fly, as a list | writes two entries, the client and the app's address | `x_forwarded_for` | 2 |
//! | Heroku | | `x_forwarded_for` | 1 |
//!
//! A single-value header needs a proxy that *always* sets or overwrites it: where the proxy only passes it on, clients
//! can set it. `CloudFront-Viewer-Address` has IPv6 with a port and without brackets, which cannot be distinguished
//! from an address: use `X-Forwarded-For`. A proxy that writes the `Host` into `Forwarded` must quote and escape it.
//!
//! # Known attacks
//!
//! | attack | what is done |
//! |---|---|
//! | a made-up leftmost entry | entries are read from the right; what is left of the client's is never read |
//! | a header line of the client before the proxy's | all lines are one list, in order |
//! | a header that the proxy does not overwrite | exactly one header is read, never another one instead |
//! | an entry that cannot be read, so that the next one to the left is used | an error, never another entry |
//! | `Forwarded` with an unclosed quote, which misleads a parser that reads from the left | quotes are matched from the right, within the trusted part |
//! | a `Host` with commas and semicolons, which the proxy quotes in `Forwarded` | within quotes they do not separate |
//! | an invalid entry, to skip the limit | malformed is always rejected, also with `or_skip` |
//! | a direct connection, without the proxy | with networks, the header is ignored; with a count, make such connections impossible |
//! | the attacker's own account at the same CDN, pointed at your service | *not prevented here*: the CDN's networks are trusted. Let the CDN authenticate itself (mTLS, or a secret header that an outer layer checks) |
//! | an address that a vendor gave up | no networks are built in |
//! | a new IPv6 address for each request | IPv6 counts by network: [`ipv6_prefix`](ForwardedIp::ipv6_prefix) |
//! | one IPv4 address, plain and mapped into IPv6 | one canonical form, before networks are compared |
//! | ports, zones, upper case, other ways to write zeros | parsed, and written in canonical form |
//! | thousands of entries | at most 64 entries and 4 KiB are read, from the right |
//!
//! # Several prefixes at once
//!
//! A client with a /48 has 65,536 networks of /64. Higher limits for shorter prefixes limit such a client too, and
//! leave room for its neighbours; they are decided in one atomic step, as all limits of a layer:
//!
//! ```
//! use sluicegate::{ForwardedIp, MemoryStore, Policy, RateLimitLayer, extract::TrustedProxies};
//!
//! let ip = ForwardedIp::x_forwarded_for(TrustedProxies::count_including_peer(1));
//! let layer = RateLimitLayer::new(MemoryStore::new())
//!     .limit(Policy::parse("ip-64", "100/1m")?, ip.clone())
//!     .limit(Policy::parse("ip-56", "400/1m")?, ip.clone().ipv6_prefix(56))
//!     .limit(Policy::parse("ip-48", "1600/1m")?, ip.ipv6_prefix(48));
//! # assert!(format!("{layer:?}").contains("ip-48"));
//! # Ok::<(), sluicegate::error::PolicyError>(())
//! ```
//!
//! An IPv4 address is charged under all three, and the strictest applies. On a cluster, the three keys of an IPv6
//! client may live in different slots.
//!
//! # Addresses in the store
//!
//! Addresses are personal data, and keys contain them in readable form. To keep only a hash, make the keys
//! secret, and give the store a secret (`RedisStore::secret`): without it, the hash of an IPv4 address can be
//! reversed by trying all addresses:
//!
//! ```
//! use http::request::Parts;
//! use sluicegate::{ForwardedIp, Key, KeyExtractor, error::ExtractError, extract::{Keys, TrustedProxies}};
//!
//! let ip = ForwardedIp::x_forwarded_for(TrustedProxies::count_including_peer(1));
//! let hashed = move |head: &Parts| -> Result<Keys, ExtractError> {
//!     let keys = ip.extract(head)?.into_iter();
//!     Ok(keys.map(|key| Key::secret(key.kind(), key.value())).collect())
//! };
//!
//! let head = http::Request::get("/").header("x-forwarded-for", "203.0.113.7").body(())?.into_parts().0;
//! assert_eq!(hashed.extract(&head)?, Keys::from(Key::secret("ip", "203.0.113.7")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod entries;
mod forwarded_ip;
mod parse;
mod trusted;

pub use forwarded_ip::ForwardedIp;
pub use trusted::TrustedProxies;
