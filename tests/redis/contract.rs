//! Proves that a `RedisStore` keeps the contract.

crate::contract!(crate::common::served::Served::start);
crate::calls!(crate::common::served::Served::start);
crate::contributors!(crate::common::served::Served::start);
crate::denials!(crate::common::served::Served::start);
crate::blocks!(crate::common::served::Served::start);
crate::kinds!(crate::common::served::Served::start);

mod without_sharing {
    crate::contract!(crate::common::served::Served::start_without_sharing);
    crate::calls!(crate::common::served::Served::start_without_sharing);
}
