//! Who is asking, behind proxies: [`ForwardedIp`], and what each proxy needs.
//!
//! Behind a proxy the peer is the proxy. The client's address stands in a header, to which everybody on the way may have
//! added something, the client first. What a trusted proxy wrote can be believed; what stands left of that is the
//! client's own tale. So the header is read from the right, as far as it was written by proxies that you name:
//!
//! ```text
//!  X-Forwarded-For: 6.6.6.6, 203.0.113.7, 10.0.0.2        peer: 10.0.0.1
//!                   └──┬──┘  └────┬────┘  └───┬──┘              └───┬──┘
//!            the client's tale    │     written by 10.0.0.1,    trusted
//!            (never read)         │     trusted: go on
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
//! // A client that got past the proxies is itself, whatever it writes.
//! head.extensions.insert("198.51.100.1:50000".parse::<SocketAddr>()?);
//! assert_eq!(ip.extract(&head)?, Keys::from(Key::new("ip", "198.51.100.1")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Networks or a count
//!
//! Prefer [`networks`](TrustedProxies::networks): they hold when somebody reaches the service directly, and when a proxy is added
//! or taken away within them. A [count](TrustedProxies::count_including_peer) is for proxies whose addresses cannot be told, and for Unix
//! sockets; it is safe only if every request passes exactly that many.
//!
//! A request that a trusted proxy makes for itself, such as a health check, has no header and so no identity: it is refused unless
//! you choose [`or_skip`](crate::KeyExtractor::or_skip) or [`or_shared`](crate::KeyExtractor::or_shared). With a count, a client that gets past
//! the proxies can choose to be such a request.
//!
//! Counts differ by one between products. Ours is the position of the client's entry from the right, so that 1 is the
//! last entry:
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
//! `networks` stands for the addresses from which the proxy calls the service, with those of any further proxies in front of it.
//! Networks of vendors change, and an address that a vendor gave back belongs to somebody else: none are built in. Fetch
//! the vendor's list when you deploy.
//!
//! | in front of the service | its setting | extractor | count |
//! |---|---|---|---|
//! | nginx | `proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for` | `x_forwarded_for` | 1 |
//! | nginx, as `X-Real-IP` | `proxy_set_header X-Real-IP $remote_addr` | `header("x-real-ip")` | 1 |
//! | HAProxy | `option forwardfor` (adds a line of its own) | `x_forwarded_for` | 1 |
//! | HAProxy 2.8 | `option forwarded` | `forwarded` | 1 |
//! | Envoy, Istio's gateway | `use_remote_address: true` | `x_forwarded_for` | 1 |
//! | Caddy | none; believes no client unless it has `trusted_proxies` | `x_forwarded_for` | 1 |
//! | Traefik | none; believes no client unless it has `forwardedHeaders.trustedIPs` | `x_forwarded_for` | 1 |
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
//! A single-value header needs a proxy that *always* sets or overwrites it; one that only passes it on lets clients write it.
//! `CloudFront-Viewer-Address` writes IPv6 with a port and without brackets, which cannot be told from an address: use
//! `X-Forwarded-For`. A proxy that writes the `Host` into `Forwarded` must put it in quotes and escape it.
//!
//! # How each known attack is met
//!
//! | attack | what is done |
//! |---|---|
//! | a made-up leftmost entry | entries are read from the right; what stands left of the client's is never read |
//! | a header line of the client's own before the proxy's | all lines are one list, in order |
//! | a header that the proxy does not overwrite | exactly one header is read, and none instead of it |
//! | an entry that cannot be read, so that the search goes on to the left | an error, never another entry |
//! | `Forwarded` with quotes that stay open, to spoil the header for a reader from the left | quotes are followed from the right, and end with the trusted part |
//! | a `Host` full of commas and semicolons, which the proxy quotes in `Forwarded` | within quotes they separate nothing |
//! | an error, to be let through | malformed always refuses, whatever is said of missing ones |
//! | a direct connection, past the proxy | with networks, the header is ignored; with a count, close the way |
//! | an account of one's own at the same CDN, pointed at your service | *not met here*: its networks are the trusted ones. Let the CDN authenticate itself (mTLS, a secret header that you check further out) |
//! | an address that a vendor gave back | no networks are built in |
//! | a new IPv6 address for each request | IPv6 counts by network: [`ipv6_prefix`](ForwardedIp::ipv6_prefix) |
//! | one IPv4 address, plain and mapped into IPv6 | one form, made before networks are compared |
//! | ports, zones, upper case, other ways to write zeros | parsed, and written in one form |
//! | thousands of entries | at most 64 entries and 4 KiB are read, from the right |
//!
//! # Several widths at once
//!
//! Whoever rents a /48 has 65,536 networks of /64. Limits that rise with the width slow such a client down and leave
//! room for neighbours; they are decided in one atomic step, as all limits of a layer:
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
//! # Ok::<(), sluicegate::PolicyError>(())
//! ```
//!
//! An IPv4 address is charged under all three, and the strictest holds. On a cluster, the three keys of an IPv6 client may live in different
//! slots.
//!
//! # Addresses in the store
//!
//! Addresses are personal data, and keys hold them in a form that operators can read. To keep only a hash, make the
//! keys secret ones, and give the store a secret (`RedisStore::secret`), without which the
//! hash of an IPv4 address is undone by trying all:
//!
//! ```
//! use http::request::Parts;
//! use sluicegate::{ExtractError, ForwardedIp, Key, KeyExtractor, extract::{Keys, TrustedProxies}};
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
