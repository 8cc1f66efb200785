#![doc = concat!(include_str!("../../../docs/links.md"), include_str!("../../../docs/guide/proxies.md"))]

/// Its samples are tested.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/platforms.md")]
struct Platforms;

mod entries;
mod evidence;
mod forwarded_ip;
mod nearest;
mod parse;
mod trusted;

pub use forwarded_ip::ForwardedIp;
pub(crate) use nearest::is_forwarded_for_other;
pub use trusted::TrustedProxies;
