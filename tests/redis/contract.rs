//! Proves that a `RedisStore` keeps the contract.

crate::contract!(crate::common::served::Served::start);
crate::calls!(crate::common::served::Served::start);
crate::contributors!(crate::common::served::Served::start);
crate::blocks!(crate::common::served::Served::start);
