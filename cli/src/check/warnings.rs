//! Warnings about rules that are valid, but probably not meant.
//!
//! **Rules that can never deny.** A rule counts units for its window and up to one step more. Units of a sliding rule
//! that count at the same time were charged within `window + precision`, those of a fixed rule within its window. In
//! that span, another rule of the policy with limit `l` and window `w` admits at most
//!
//! - sliding: `l · ⌈span / (w + 1 ms)⌉`, since a unit counts for at least `w` after the millisecond of its charge;
//! - fixed: `l · (1 + ⌈(span − 1 ms) / w⌉)`, for the windows that the span touches; `l · W / w` if both are fixed and
//!   `w` divides the window `W`;
//! - bucket: its burst, and its refill for the span.
//!
//! If that is no more than the rule's own limit, the other rule denies whenever this one would. A bucket can never deny
//! if it holds at least the units that the other rule admits at once, and refills at least as fast as the other rule
//! goes on admitting. These bounds are upper limits: a rule without a warning may still never deny. They do not hold
//! for units that a settlement adds when the final cost is higher.

use std::time::Duration;

use sluicegate::{Policy, Rule};

/// About 8 bytes each. With more steps, reading the key of one rule takes longer than a check should.
const MANY_STEPS: u128 = 1_000;

/// The kind of warning, for programs; the rule, and the words.
pub(crate) type Warning = (&'static str, Rule, String);

/// The kind that is not a mistake, but a fact that you may not know.
pub(crate) const NOTE: &str = "fixed-window";

/// The warnings about a policy. `cost` is the cost of the most expensive request.
pub(crate) fn of(policy: &Policy, cost: u64) -> Vec<Warning> {
    let rules = policy.rules();
    let closed = rules.iter().filter_map(|rule| too_low(rule, cost));
    let closed: Vec<Warning> = closed.collect();
    // If nothing passes, other warnings do not matter.
    if !closed.is_empty() {
        return closed;
    }
    let mut warnings: Vec<Warning> = shadow_ban(policy).into_iter().collect();
    for (index, rule) in rules.iter().enumerate() {
        let (before, after) = (&rules[..index], &rules[index + 1..]);
        let mut others = before.iter().chain(after);
        if let Some(warning) = others.find_map(|other| idle(rule, other)) {
            warnings.push(warning);
            continue;
        }
        warnings.extend(before.iter().find_map(|other| nearly_equal(rule, other)));
        warnings.extend(coarse(rule));
        warnings.extend(many_steps(rule));
        warnings.extend(fixed(rule));
    }
    warnings
}

/// A shadow policy with a ban. There is no rehearsal of bans, so the ban does nothing.
fn shadow_ban(policy: &Policy) -> Option<Warning> {
    let message =
        "a shadow counts no strikes and bans no identity: `strikes` and `ban` do nothing here";
    let is_idle = policy.is_shadow() && policy.ban_config().is_some();
    let rule = policy.rules().first().filter(|_| is_idle)?;
    Some(("shadow-bans-nobody", *rule, message.to_owned()))
}

fn too_low(rule: &Rule, cost: u64) -> Option<Warning> {
    let message = match rule.limit() {
        0 => "a limit of 0 denies every request".to_owned(),
        limit if limit < cost => {
            format!("the limit is below the cost of {cost}: such a request never passes")
        }
        _ => return None,
    };
    Some(("limit-below-cost", *rule, message))
}

fn idle(rule: &Rule, other: &Rule) -> Option<Warning> {
    // Periods are of several lengths: this is not worth knowing them.
    if rule.in_calendar().or(other.in_calendar()).is_some() {
        return None;
    }
    if let Some(refill) = rule.refill() {
        return idle_bucket(rule, refill, other);
    }
    let (span_ms, most) = most_admitted(rule, other);
    let span = span_text(span_ms);
    let message = format!(
        "this rule can never deny: `{other}` admits at most {most} in the {span} that it counts"
    );
    (most <= u128::from(rule.limit())).then_some(("never-denies", *rule, message))
}

fn idle_bucket(rule: &Rule, refill: u64, other: &Rule) -> Option<Warning> {
    let [window, other_window] = [rule.window(), other.window()].map(|window| window.as_millis());
    let (burst, limit) = (u128::from(rule.limit()), u128::from(other.limit()));
    // The units that the other rule admits at once, and afterwards its units in each period in ms.
    let (at_once, units, ms) = match other.refill() {
        Some(refill) => (limit, u128::from(refill), other_window),
        None if other.is_fixed() => (2 * limit, limit, other_window),
        None => (limit, limit, other_window + 1),
    };
    let is_idle = at_once <= burst && units * window <= u128::from(refill) * ms;
    let message = format!(
        "this bucket can never deny: `{other}` admits no more at once, and no more after that"
    );
    is_idle.then_some(("never-denies", *rule, message))
}

/// The span in ms of the units that count under `rule` at the same time, and the units that `other` admits in it.
fn most_admitted(rule: &Rule, other: &Rule) -> (u128, u128) {
    let [window, step, other_window] =
        [rule.window(), rule.step(), other.window()].map(|span| span.as_millis());
    let span = window + [step, 0][usize::from(rule.is_fixed())];
    if let Some(refill) = other.refill() {
        let refilled = u128::from(refill) * span / other_window;
        return (span, u128::from(other.limit()) + refilled);
    }
    let times = if !other.is_fixed() {
        span.div_ceil(other_window + 1)
    } else if rule.is_fixed() && window.is_multiple_of(other_window) {
        window / other_window
    } else {
        1 + (span - 1).div_ceil(other_window)
    };
    (span, u128::from(other.limit()) * times)
}

/// The span in the form that rules use, with the largest unit that divides it.
fn span_text(ms: u128) -> String {
    let ms = u64::try_from(ms).unwrap_or(u64::MAX);
    let text = Rule::new(1, Duration::from_millis(ms)).to_string();
    text.trim_start_matches("1/").to_owned()
}

/// Two windows of one kind that differ by at most a tenth are more likely a mistake than two limits.
fn nearly_equal(rule: &Rule, other: &Rule) -> Option<Warning> {
    let (short, long) = match rule.window() < other.window() {
        true => (rule, other),
        false => (other, rule),
    };
    let near = long.window().as_millis() * 10 <= short.window().as_millis() * 11;
    let message = format!(
        "the window is nearly that of `{other}`: each is counted and costs time; is one of them enough?"
    );
    let kind = |rule: &Rule| {
        let is_of_calendar = rule.in_calendar().is_some();
        (rule.is_fixed(), rule.refill().is_some(), is_of_calendar)
    };
    (near && kind(rule) == kind(other)).then_some(("nearly-equal-windows", *rule, message))
}

fn coarse(rule: &Rule) -> Option<Warning> {
    let is_coarse = !rule.is_fixed()
        && rule.in_calendar().is_none()
        && rule.step() * 2 > rule.window()
        && rule.window() > Duration::from_millis(10);
    let step = span_text(rule.step().as_millis());
    let message = format!(
        "units come back up to {step} late, so that a busy client may get as little as half of the limit; leave the precision out"
    );
    is_coarse.then_some(("coarse-precision", *rule, message))
}

fn many_steps(rule: &Rule) -> Option<Warning> {
    let steps = rule.window().as_millis() / rule.step().as_millis() + 1;
    let steps = steps.min(u128::from(rule.limit()));
    let kb = steps * 8 / 1_000;
    let message =
        format!("a key may hold {steps} steps, about {kb} kB; a coarser precision holds fewer");
    let is_sliding = !rule.is_fixed() && rule.refill().is_none();
    (is_sliding && steps > MANY_STEPS).then_some(("many-steps", *rule, message))
}

fn fixed(rule: &Rule) -> Option<Warning> {
    let message = "up to twice the limit may pass around the boundary of two windows";
    rule.is_fixed().then_some((NOTE, *rule, message.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use proptest::prelude::*;
    use sluicegate::{
        Charge, Decision, Key, MemoryStore, Store, manual_clock::ManualClock, store::Check,
    };

    use super::*;

    fn codes(rules: &str) -> Vec<&'static str> {
        let policy = Policy::parse("p", rules).unwrap();
        of(&policy, 1).iter().map(|warning| warning.0).collect()
    }

    #[test]
    fn only_what_is_probably_not_meant_is_warned_of() {
        for (rules, expected) in [
            ("10/1s,120/1m", &[][..]),
            ("10/1s,40/10s,120/1m", &[]),
            ("10/1s,600/1m", &[]), // 61 bursts of 10 fit into a minute and a step
            ("10/1s,610/1m", &["never-denies"]),
            ("1000/1m,20/1s", &[]),
            ("10/1m,20/1s", &["never-denies"]),
            ("10/1m,10/1m@fixed", &["never-denies"]),
            (
                "10/1m@fixed,100/1h@fixed",
                &["fixed-window", "fixed-window"],
            ),
            (
                "10/1m@fixed,600/1h@fixed",
                &["fixed-window", "never-denies"],
            ),
            ("20+10/1s@bucket,100/1h", &[]),
            ("20+10/1s@bucket,1000000/1h", &["never-denies"]),
            ("10+10/1s@bucket,10/1s", &["never-denies"]),
            ("9+10/1s@bucket,10/1s", &[]),
            ("20+10/1s@bucket,10+600/1m@bucket", &["never-denies"]),
            ("20+10/1s@bucket,10+601/1m@bucket", &[]),
            ("0+1/1s@bucket", &["limit-below-cost"]),
            ("0/1s,5/1m", &["limit-below-cost"]),
            ("10/60s,11/61s", &["nearly-equal-windows"]),
            ("10/1m@1m", &["coarse-precision"]),
            ("10/1m@30s", &[]),
            ("100/1m@exact", &[]),
            ("5000/1m@exact", &["many-steps"]),
        ] {
            assert_eq!(codes(rules), expected, "{rules}");
        }
        let policy = Policy::parse("p", "3/1s,100/1h").unwrap();
        assert!(of(&policy, 3).is_empty());
        assert_eq!(of(&policy, 4)[0].0, "limit-below-cost");
    }

    fn decide(store: &MemoryStore, check: &Check) -> Decision {
        let mut answer = store.check(check);
        match std::pin::Pin::new(&mut answer).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decision) => decision.unwrap(),
            Poll::Pending => unreachable!("memory answers at once"),
        }
    }

    fn rule() -> impl Strategy<Value = Rule> {
        (1_u64..30, 1_u64..60, 1_u64..=60, 0..3).prop_map(|(limit, window, step, kind)| {
            let window = Duration::from_millis(window);
            let rule = Rule::new(limit, window);
            match kind {
                0 => rule.fixed(),
                1 => Rule::new(step, window).bucket(limit),
                _ => rule.precision(Duration::from_millis(step).min(window)),
            }
        })
    }

    proptest! {
        /// A client that takes all available units, at random times.
        #[test]
        fn a_rule_that_is_said_never_to_deny_never_denies_alone(
            one in rule(), two in rule(), waits in prop::collection::vec(0_u64..20, 200)
        ) {
            let Ok(policy) = Policy::new("p", [one, two]) else { return Ok(()) };
            let idle: Vec<bool> = [idle(&one, &two), idle(&two, &one)].iter().map(Option::is_some).collect();
            let clock = ManualClock::new(1_000_000);
            let store = MemoryStore::new().clock(clock.clone());
            let charge = Charge::new(&policy, Key::new("user", "greedy"), 1);
            let check = Check::new([charge]).unwrap();
            for wait in waits {
                clock.advance(Duration::from_millis(wait));
                let denial = loop {
                    let decision = decide(&store, &check);
                    if !decision.is_allowed() { break decision; }
                };
                let exceeded: Vec<bool> = denial.usage().rules().map(|rule| rule.is_exceeded()).collect();
                for rule in 0..2 {
                    prop_assert!(!(idle[rule] && exceeded[rule] && !exceeded[1 - rule]), "{policy:?}");
                }
            }
        }
    }
}
