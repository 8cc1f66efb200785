//! Proves that a limiter that caches denials denies no request that the store would admit, except after refunds
//! elsewhere.

mod edges;
mod histories;
mod repeats;
mod slots;
