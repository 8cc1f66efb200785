//! Rules with a part of the limit.

use std::num::NonZeroU32;

use super::{Kind, Rule};

impl Rule {
    /// Returns the rule with the limit and the refill divided by `of`, rounded down; no number above 0 becomes 0. A
    /// refill of fewer units than `of` is spread over `of` windows instead, if the result is a valid rule.
    pub(crate) fn share(mut self, of: NonZeroU32) -> Self {
        let share = |units: u64| (units / u64::from(of.get())).max(units.min(1));
        self.limit = share(self.limit);
        if let Kind::Bucket { refill } = self.kind {
            let slower = Self {
                window_ms: self.window_ms.saturating_mul(of.get().into()),
                ..self
            };
            if refill < of.get().into() && slower.problem().is_none() {
                return slower;
            }
            self.kind = Kind::Bucket {
                refill: share(refill),
            };
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::rule::{MAX_REFILL, MAX_UNITS};

    #[test]
    fn a_share_is_rounded_down_but_never_to_nothing() {
        for (limit, of, share) in [
            (0, 3, 0),
            (1, 3, 1),
            (2, 3, 1),
            (3, 3, 1),
            (5, 3, 1),
            (6, 3, 2),
            (10, 1, 10),
            (MAX_UNITS, 2, MAX_UNITS / 2),
        ] {
            let rule = Rule::per_minute(limit).exact();
            let of = NonZeroU32::new(of).unwrap();
            assert_eq!(rule.share(of), Rule::per_minute(share).exact(), "{limit}");
        }
    }

    #[test]
    fn a_share_keeps_the_kind_and_has_at_least_one_slot() {
        for (rule, share) in [
            ("2/30s@concurrent", "1/30s@concurrent"),
            ("0/30s@concurrent", "0/30s@concurrent"),
            #[cfg(feature = "calendar")]
            ("10/month:15@UTC", "2/month:15@UTC"),
        ] {
            let rule: Rule = rule.parse().unwrap();
            let of = NonZeroU32::new(4).unwrap();
            assert_eq!(rule.share(of).to_string(), share, "{rule}");
        }
    }

    #[test]
    fn the_shares_of_a_bucket_are_together_no_more_than_its_burst_and_its_refill() {
        for (rule, of, share) in [
            ("20+10/1s@bucket", 1, "20+10/1s@bucket"),
            ("20+10/1s@bucket", 4, "5+2/1s@bucket"),
            ("20+10/1s@bucket", 16, "1+10/16s@bucket"),
            ("20+1/2s@bucket", 4, "5+1/8s@bucket"),
            ("0+1/1s@bucket", 4, "0+1/4s@bucket"),
            ("5+1/36525d@bucket", 4, "1+1/36525d@bucket"), // a longer window is none
        ] {
            let (rule, share): (Rule, Rule) = (rule.parse().unwrap(), share.parse().unwrap());
            assert_eq!(rule.share(NonZeroU32::new(of).unwrap()), share, "{rule}");
        }
        let largest = Rule::new(MAX_REFILL, Duration::from_millis(32)).bucket(MAX_UNITS / 32);
        for of in [1, 2, 3, u32::MAX] {
            assert!(
                largest
                    .share(NonZeroU32::new(of).unwrap())
                    .validate()
                    .is_ok()
            );
        }
    }
}
