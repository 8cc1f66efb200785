//! Proves that a `RedisStore` keeps the contract.

support::contracts!(support::served::Served::start: contract calls contributors denials blocks kinds);

mod without_sharing {
    support::contracts!(support::served::Served::start_without_sharing: contract calls);
}
