use std::sync::Arc;

use http::request::Parts;

use crate::{error::ExtractError, extract::Keys, key::Key, middleware::Rejection};

type Test<T> = Arc<dyn Fn(&T) -> bool + Send + Sync>;

/// The requests and keys that no limit decides about: those that are skipped, and those that are blocked.
#[derive(Clone, Default)]
pub(in crate::middleware) struct AccessLists {
    pub(in crate::middleware) skipped: Vec<Test<Parts>>,
    pub(in crate::middleware) blocked: Vec<Test<Parts>>,
    pub(in crate::middleware) skipped_keys: Vec<Test<Key>>,
    pub(in crate::middleware) blocked_keys: Vec<Test<Key>>,
}

impl AccessLists {
    /// Whether the request passes at once, without a key, a charge or a header. What is blocked is not skipped.
    pub(super) fn skips(&self, head: &Parts) -> Result<bool, Rejection> {
        if any(&self.blocked, head) {
            return Err(Rejection::OnDenyList);
        }
        Ok(any(&self.skipped, head))
    }

    /// The keys that are to be charged. Inlined, since keys are large to move and seldom filtered.
    #[inline]
    pub(super) fn charged(&self, keys: Result<Keys, ExtractError>) -> Result<Keys, Rejection> {
        let keys = keys?;
        if self.skipped_keys.is_empty() && self.blocked_keys.is_empty() {
            return Ok(keys);
        }
        self.filtered(keys)
    }

    fn filtered(&self, keys: Keys) -> Result<Keys, Rejection> {
        if keys.iter().any(|key| any(&self.blocked_keys, key)) {
            return Err(Rejection::OnDenyList);
        }
        let keys = keys.into_iter();
        Ok(keys.filter(|key| !any(&self.skipped_keys, key)).collect())
    }

    /// Whether a key is to be charged. What is blocked is not skipped.
    pub(super) fn charges(&self, key: &Key) -> Result<bool, Rejection> {
        if any(&self.blocked_keys, key) {
            return Err(Rejection::OnDenyList);
        }
        Ok(!any(&self.skipped_keys, key))
    }
}

fn any<T>(tests: &[Test<T>], it: &T) -> bool {
    tests.iter().any(|test| test(it))
}
