//! The layer's allow and deny lists.

use std::sync::Arc;

use http::request::Parts;

use crate::{
    domain::{error::ExtractError, key::Key},
    extract::Keys,
    middleware::respond::Rejection,
};

type Test<T> = Arc<dyn Fn(&T) -> bool + Send + Sync>;

/// Lists of requests and keys that bypass the limits, and of those to deny.
#[derive(Clone, Default)]
pub(in crate::middleware) struct AccessLists {
    pub(in crate::middleware) skipped: Vec<Test<Parts>>,
    pub(in crate::middleware) denied: Vec<Test<Parts>>,
    pub(in crate::middleware) skipped_keys: Vec<Test<Key>>,
    pub(in crate::middleware) denied_keys: Vec<Test<Key>>,
}

impl AccessLists {
    /// Whether the request passes at once, without keys, charges or headers. Deny lists take precedence.
    pub(super) fn skips(&self, head: &Parts) -> Result<bool, Rejection> {
        if any(&self.denied, head) {
            return Err(Rejection::OnDenyList);
        }
        Ok(any(&self.skipped, head))
    }

    /// The keys that an extractor has found, without those that are not charged. Inlined, because keys are large to move.
    #[inline(always)]
    pub(super) fn filter(&self, found: Result<Keys, ExtractError>) -> Result<Keys, Rejection> {
        let keys = found.map_err(Rejection::MissingKey)?;
        if self.skipped_keys.is_empty() && self.denied_keys.is_empty() {
            return Ok(keys);
        }
        let mut charged = Vec::new();
        for key in keys {
            if self.charges(&key)? {
                charged.push(key);
            }
        }
        Ok(charged.into_iter().collect())
    }

    /// Whether to charge a key. Deny lists take precedence.
    pub(super) fn charges(&self, key: &Key) -> Result<bool, Rejection> {
        if any(&self.denied_keys, key) {
            return Err(Rejection::OnDenyList);
        }
        Ok(!any(&self.skipped_keys, key))
    }
}

fn any<T>(tests: &[Test<T>], subject: &T) -> bool {
    tests.iter().any(|test| test(subject))
}
