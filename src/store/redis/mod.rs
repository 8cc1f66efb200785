//! [`RedisStore`]
use super::*;
/// x
#[derive(Debug, Clone)]
pub struct RedisStore;
impl Store for RedisStore {
    fn check(&self, _check: &Check) -> Answer<Decision> {
        todo!()
    }
    fn settle(&self, _: &Settlement) -> Answer<Usage> {
        todo!()
    }
    fn reset(&self, _: &Policy, _: &Key) -> Answer<()> {
        todo!()
    }
}
