//! Random times that need not be secret.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use crate::domain::rule::millis;

/// A time from zero up to `most`, in whole milliseconds.
///
/// Each `RandomState` of the standard library has another key: the hash of nothing is random enough here.
pub(crate) fn random_up_to(most: Duration) -> Duration {
    let number = RandomState::new().hash_one(());
    let values = u128::from(millis(most)) + 1;
    let ms = (u128::from(number) * values) >> 64;
    Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_stays_within_its_bound_and_reaches_both_ends() {
        let most = Duration::from_millis(3);
        let times: Vec<Duration> = (0..1_000).map(|_| random_up_to(most)).collect();
        assert_eq!(times.iter().min(), Some(&Duration::ZERO));
        assert_eq!(times.iter().max(), Some(&most));
        assert_eq!(random_up_to(Duration::ZERO), Duration::ZERO);
        assert!(random_up_to(Duration::MAX) <= Duration::MAX);
    }
}
