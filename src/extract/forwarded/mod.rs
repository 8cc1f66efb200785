#![doc = include_str!("../../../docs/guide/proxies.md")]

mod entries;
mod evidence;
mod forwarded_ip;
mod parse;
mod trusted;

pub use forwarded_ip::ForwardedIp;
pub use trusted::TrustedProxies;
