//! [`MemoryStore`]
use super::*;
/// x
#[derive(Debug, Clone, Default)]
pub struct MemoryStore;
impl MemoryStore {
    /// x
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}
impl Store for MemoryStore {
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
