//! Notice before the limit: an identity has used a share of a limit.

use super::events::Events;
use crate::{
    domain::{
        decision::{PolicyUsage, RuleUsage, Usage},
        rule::millis,
    },
    observe::Event,
};

/// The share of a limit, in percent, by default.
pub(super) const DEFAULT_PERCENT: u8 = 80;

/// From this share on, there are no notices.
pub(super) const NO_PERCENT: u8 = 100;

/// Gives notice of the policies of an admission or a settlement, and of its shadows, of which this share is used.
pub(super) fn notice(usage: &Usage, percent: u8, events: &Events) {
    // This process's memory has counted a part of the requests only.
    let parts = usage.admitted_parts().filter(|part| !part.is_local());
    let policies = parts.flat_map(|part| part.policies().map(|it| (it, part.decided_at_ms())));
    for (of_policy, now_ms) in policies {
        let Some(rule) = nearest(of_policy, percent) else {
            continue;
        };
        let until_ms = now_ms.saturating_add(millis(rule.reset_after()));
        let policy = of_policy.policy();
        if policy.marks().is_first_notice(now_ms, until_ms) {
            events.report(|| Event::NearLimit { policy, rule });
        }
    }
}

/// The rule of which this share is used, and of several the one with the longest to go.
fn nearest(usage: PolicyUsage<'_>, percent: u8) -> Option<&RuleUsage> {
    let rules = usage.rules().iter();
    // Slots are taken and returned all the time.
    let near = rules.filter(|rule| is_near(rule, percent) && !rule.rule().is_concurrency());
    near.max_by_key(|rule| rule.reset_after())
}

fn is_near(usage: &RuleUsage, percent: u8) -> bool {
    let limit = usage.rule().limit();
    let used = limit.saturating_sub(usage.remaining());
    used > 0 && used * 100 >= limit * u64::from(percent)
}
