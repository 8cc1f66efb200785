//! Proves that a `RedisStore` keeps the contract.

support::contract!(support::served::Served::start);
support::calls!(support::served::Served::start);
support::contributors!(support::served::Served::start);
support::denials!(support::served::Served::start);
support::blocks!(support::served::Served::start);
support::kinds!(support::served::Served::start);

mod without_sharing {
    support::contract!(support::served::Served::start_without_sharing);
    support::calls!(support::served::Served::start_without_sharing);
}
