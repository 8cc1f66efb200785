//! The results of the traffic, counted by the tests from the decisions alone.

use std::collections::{BTreeMap, HashMap};

use support::{prelude::*, promise::most_within};

/// One rule of one policy, decided by the server or by this process. Each policy has one key here.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Counted {
    policy: String,
    rule: Rule,
    local: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
    /// The admissions and denials that this process decided.
    pub(crate) local: u64,
    /// The number of requests whose callers left before the answer.
    pub(crate) left: u64,
    /// The number of requests that the server may have charged without a known admission.
    pub(crate) unknown: u64,
    /// By kind, without those of a job, which are the job's own fault.
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) worst_wait: Duration,
    /// The longest delay of the runtime in waking a task.
    pub(crate) worst_lateness: Duration,
    /// The steps that admissions were charged to: the end of each in ms, by the clock of the server or process that
    /// decided.
    steps: HashMap<Counted, Vec<u64>>,
}

impl Tally {
    pub(crate) fn leave(&mut self) {
        self.requests += 1;
        self.left += 1;
        self.unknown += 1;
    }

    /// Counts an answer, and the time until the answer. `None` if the delay of its runtime is unknown.
    pub(crate) fn note(&mut self, waited: Option<Duration>, result: &Result<Decision, StoreError>) {
        self.requests += 1;
        self.worst_wait = self.worst_wait.max(waited.unwrap_or_default());
        let local = result.as_ref().is_ok_and(|it| it.usage().is_local());
        self.local += u64::from(local);
        let error = result.as_ref().err();
        let is_sent = error.is_some_and(|it| it.kind() != StoreErrorKind::CircuitOpen);
        self.unknown += u64::from(local || is_sent);
        match result {
            Ok(Decision::Allowed(usage)) => {
                self.admitted += 1;
                for policy in usage.policies() {
                    for rule in policy.rules() {
                        let counted = Counted {
                            policy: policy.policy().name().to_owned(),
                            rule: rule.rule(),
                            local,
                        };
                        let steps = self.steps.entry(counted).or_default();
                        steps.push(rule.step_end_ms());
                    }
                }
            }
            Ok(_) => self.denied += 1,
            Err(_) if waited.is_none() => {}
            Err(error) => {
                let kind = format!("{:?}", error.kind());
                *self.errors.entry(kind).or_default() += 1;
            }
        }
    }

    /// The number of admissions by the server under each policy.
    pub(crate) fn admissions(&self) -> BTreeMap<&str, usize> {
        self.steps
            .iter()
            .filter(|(counted, _)| !counted.local)
            .map(|(counted, steps)| (counted.policy.as_str(), steps.len()))
            .collect()
    }

    /// The number of requests that were left to the failure policy.
    pub(crate) fn undecided(&self) -> u64 {
        self.local + self.errors.values().sum::<u64>()
    }

    /// The rule that admitted the most beyond `times(rule)` times its limit and `more(rule)` units in a span of its
    /// window, and that number of units.
    pub(crate) fn over_admission(&self, times: impl Fn(&Rule) -> u64) -> (u64, String) {
        let figures = self.steps.iter().map(|(it, steps)| {
            let (times, whose) = match it.local {
                true => (1, " of this process"),
                false => (times(&it.rule), ""),
            };
            let limit = times * it.rule.limit();
            let over = match it.rule.refill() {
                Some(refill) => most_beyond(&it.rule, refill, times, steps),
                None => most_charges(window_ms(&it.rule), steps).saturating_sub(limit),
            };
            (over, format!("{} {}{whose}", it.policy, it.rule))
        });
        figures.max().unwrap_or_default()
    }
}

/// The time in which a rule forgets: the window, or for a bucket the time of a full refill.
pub(crate) fn window_ms(rule: &Rule) -> u64 {
    let window_ms = u64::try_from(rule.window().as_millis()).unwrap();
    match rule.refill() {
        Some(refill) => rule.limit() * window_ms / refill,
        None => window_ms,
    }
}

/// The charges of a bucket in any span, beyond `times` times the burst and the refill of that span.
fn most_beyond(rule: &Rule, refill: u64, times: u64, ends: &[u64]) -> u64 {
    let window_ms = u64::try_from(rule.window().as_millis()).unwrap();
    let mut ends = ends.to_vec();
    ends.sort_unstable();
    let spans = ends.iter().enumerate().flat_map(|(first, from)| {
        let later = ends[first..].iter().zip(1_u64..);
        later.map(move |(end, count)| (end - from, count))
    });
    let beyond = spans.map(|(span_ms, count)| {
        let most = times.saturating_mul(rule.limit() * window_ms + refill * span_ms);
        (count * window_ms).saturating_sub(most)
    });
    beyond.max().unwrap_or(0).div_ceil(window_ms)
}

/// The most charges within any span of a window.
///
/// A charge in the step that ends at `end` counts until `end + window`. So the next step in which the charge no longer
/// counts ends later than that.
fn most_charges(window_ms: u64, ends: &[u64]) -> u64 {
    let mut ends: Vec<_> = ends.iter().map(|end| (*end, 1)).collect();
    ends.sort_unstable();
    most_within(window_ms, &ends).try_into().unwrap()
}

#[test]
fn what_a_bucket_admits_beyond_its_promise_is_found() {
    let rule: Rule = "2+1/10ms@bucket".parse().unwrap();
    for (ends, times, beyond) in [
        (&[][..], 1, 0),
        (&[1, 1, 11, 21], 1, 0),
        (&[1, 1, 10], 1, 1),
        (&[1, 50, 50, 50, 50], 1, 2),
        (&[1, 50, 50, 50, 50], 2, 0),
    ] {
        assert_eq!(most_beyond(&rule, 1, times, ends), beyond, "{ends:?}");
    }
}
