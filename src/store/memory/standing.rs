//! [`Standing`]: the order in which a full store forgets keys.

use std::num::NonZeroU64;

use crate::{
    domain::{rule::Rule, window::Count},
    store::entry::Entry,
};

/// The class of keys at their limit, under which not one unit fits. They are never forgotten.
///
/// Each class below has used about twice the share of the class before it. So the store forgets at most twice the
/// smallest share that it could.
pub(super) const LIMITED: u8 = 15;
pub(super) const CLASSES: usize = LIMITED as usize + 1;

/// The place of a key in the order of forgetting, as of its latest change. In each class, the first key is the one that
/// is released first or has room first.
///
/// The bits from high to low: that time in ms, the class when a unit fits again, and the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Standing(NonZeroU64);

impl Standing {
    /// The standing of a key with room, whose last unit is released at this time.
    pub(super) fn open(class: u8, release_ms: u64) -> Self {
        Self::new(class, class, release_ms)
    }

    /// The standing of a key at its limit, under which a unit fits at this time.
    pub(super) fn limited(fits_at_ms: u64, later: u8) -> Self {
        Self::new(LIMITED, later.min(LIMITED - 1), fits_at_ms)
    }

    fn new(class: u8, later: u8, at_ms: u64) -> Self {
        let bits = at_ms.min(u64::MAX >> 8) << 8 | u64::from(later) << 4 | u64::from(class);
        Self(NonZeroU64::new(bits).unwrap_or(NonZeroU64::MIN))
    }

    pub(super) fn class(self) -> usize {
        (self.0.get() & 15) as usize
    }

    pub(super) fn at_ms(self) -> u64 {
        self.0.get() >> 8
    }

    /// The standing of the same key when a unit fits again.
    pub(super) fn with_room(self, release_ms: u64) -> Self {
        Self::open((self.0.get() >> 4 & 15) as u8, release_ms)
    }
}

impl Entry {
    /// The standing after a change that has left these counts under these rules.
    pub(super) fn standing(
        &self,
        rules: impl Iterator<Item = Rule> + Clone,
        counts: &[Count],
        now_ms: u64,
    ) -> Standing {
        // Without its slots, a response that runs would be cut off, or one too many would start.
        if let Some(expires_ms) = self.slots_held_until(now_ms) {
            return Standing::limited(expires_ms, 0);
        }
        let classes = rules.clone().zip(counts);
        let class_now = classes.map(|(rule, count)| class(&rule, *count)).max();
        let class_now = class_now.unwrap_or(0);
        if class_now < LIMITED {
            return Standing::open(class_now, self.release_ms());
        }
        let fits = rules
            .clone()
            .map(|rule| self.count(&rule, now_ms).fits_at_ms(&rule, 1));
        let fits_at_ms = fits.max().unwrap_or(0);
        let later = rules.map(|rule| class(&rule, self.count(&rule, fits_at_ms)));
        Standing::limited(fits_at_ms, later.max().unwrap_or(0))
    }
}

/// The class of a key with this count under a rule.
fn class(rule: &Rule, count: Count) -> u8 {
    let (limit, used) = (rule.limit(), count.units(rule));
    if used >= limit {
        return LIMITED;
    }
    if used == 0 {
        return 0;
    }
    let halvings = used.leading_zeros() - limit.leading_zeros();
    (LIMITED - 1).saturating_sub(u8::try_from(halvings).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_class_has_used_about_twice_as_much_as_the_one_before() {
        let rule = Rule::new(1_000, Duration::from_secs(1));
        let class = |used| {
            let count = Count {
                used,
                ..Count::default()
            };
            class(&rule, count)
        };
        let first_of_class = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_000];
        let classes = first_of_class.map(class);
        assert_eq!(classes, [0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, LIMITED]);
        assert_eq!(class(511), 13);
        assert_eq!(class(999), 14);
    }

    #[test]
    fn the_time_decides_within_a_class() {
        let [early, late] = [5, u64::MAX].map(|ms| Standing::open(14, ms));
        assert!(Standing::limited(4, LIMITED) < early && early < late);
        assert_eq!(early.at_ms(), 5);
        assert_eq!(late.class(), 14);
        assert_eq!(Standing::limited(4, LIMITED).with_room(5), early);
    }
}
