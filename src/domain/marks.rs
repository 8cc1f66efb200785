//! [`Marks`]: what this process remembers of a policy.

use std::{
    hash::{Hash, Hasher},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// How many variants of a policy share its marks: as a shadow or not, and with each failure policy or none.
pub(super) const VARIANTS: usize = 8;

/// The marks of a policy and its clones. They make no difference between policies, and a policy that is changed begins
/// without marks.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// For each variant, the number of the limiter that saw the policy last.
    pub(super) seen_by: [AtomicU64; VARIANTS],
    /// When a reload replaced the policy, as a number that was next then; 0 if none did.
    replaced: AtomicU64,
    /// Until when the last notice before the limit holds.
    noticed_until_ms: AtomicU64,
    /// The rules as they are sent to Redis.
    #[cfg(feature = "redis")]
    pub(crate) encoded: std::sync::OnceLock<Box<[u8]>>,
}

/// The bit of a mark that says that the limiter has only seen charges of 0.
pub(crate) const LOOKED_AT: u64 = 2;

/// Returns a number that no limiter had before: a multiple of 4, and above 0.
pub(crate) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(4);
    NEXT.fetch_add(4, Relaxed)
}

impl Marks {
    pub(crate) fn replace(&self, is_replaced: bool) {
        let number = if is_replaced { next_number() } else { 0 };
        self.replaced.store(number, Relaxed);
    }

    /// Returns whether a reload replaced the policy after a limiter got this number.
    pub(crate) fn is_replaced_after(&self, number: u64) -> bool {
        self.replaced.load(Relaxed) > number
    }

    /// Returns whether no notice holds, and lets this one hold until that time.
    pub(crate) fn is_first_notice(&self, now_ms: u64, until_ms: u64) -> bool {
        let until = &self.noticed_until_ms;
        let last_ms = until.load(Relaxed);
        let next = || until.compare_exchange(last_ms, until_ms, Relaxed, Relaxed);
        last_ms <= now_ms && next().is_ok()
    }
}

impl Clone for Marks {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Marks {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Marks {}

impl Hash for Marks {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_notice_holds_until_its_time_and_one_of_many_threads_gives_it() {
        let marks = Marks::default();
        assert!(marks.is_first_notice(1_000, 2_000));
        assert!(!marks.is_first_notice(1_999, 9_000));
        let firsts = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| marks.is_first_notice(2_000, 3_000)))
                .collect();
            let firsts = threads.into_iter().map(|thread| thread.join().unwrap());
            firsts.filter(|is_first| *is_first).count()
        });
        assert_eq!(firsts, 1);
    }

    #[test]
    fn a_policy_is_replaced_after_the_numbers_before_and_not_after_those_that_follow() {
        let (marks, before) = (Marks::default(), next_number());
        assert!(!marks.is_replaced_after(before));
        marks.replace(true);
        assert!(marks.is_replaced_after(before) && !marks.is_replaced_after(next_number()));
        marks.replace(false);
        assert!(!marks.is_replaced_after(before));
    }
}
