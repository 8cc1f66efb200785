//! `RateLimit` and `RateLimit-Policy`: draft-ietf-httpapi-ratelimit-headers-11.

use std::{cell::RefCell, cmp};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::seconds::seconds;
use crate::{
    domain::{
        decision::{Decision, RuleUsage},
        policies::PolicyHandle,
        policy::Policy,
        rule::Rule,
    },
    middleware::admit::{LayerConfig, PolicySelector, PolicySource},
};

pub(super) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The longest list of a layer, in bytes, whether sent in one line or in two. Proxies have little room for all headers
/// of a response (nginx 4 KiB), and respond with an error if it is exceeded.
const MAX_FIELD: usize = 1_024;

/// The length of `, ` between two items.
const SEPARATOR: usize = 2;

/// The largest integer of a structured field.
const MAX_INTEGER: u64 = 999_999_999_999_999;

thread_local! {
    /// A buffer for the field being written, so that only the header's value is allocated.
    static FIELD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The fields of one layer.
#[derive(Clone, Default)]
pub(super) struct Draft11 {
    /// The policies that are the same for all requests, and have no alternatives.
    known: List,
    /// Whether no request is charged under any other policy.
    all_known: bool,
    /// Whether to list shadows.
    shadows: bool,
    /// Replaceable policies, listed as they are at the time of the request.
    handles: Vec<PolicyHandle>,
    /// Whether all policies of the layer are shadows.
    is_shadow_layer: bool,
}

/// Policies to list, with a finished `RateLimit-Policy` and prepared items of `RateLimit`.
#[derive(Clone, Default)]
struct List {
    /// `None` if a period of a calendar rule is listed, whose length differs from that of the next: then the field is
    /// written for each response.
    policy_field: Option<HeaderValue>,
    policies: Vec<(Policy, Vec<Item>)>,
}

/// The start of a rule's item: `, "name";`. The first comma of a list is left out.
type Item = Box<str>;

/// `RateLimit` and `RateLimit-Policy`.
type Fields = [Option<HeaderValue>; 2];

impl Draft11 {
    /// Without a layer, no policy is known in advance.
    pub(super) fn new(config: Option<&LayerConfig>, shadows: bool) -> Self {
        let mut draft = Self {
            shadows,
            ..Self::default()
        };
        let Some(config) = config else {
            return draft;
        };
        draft.is_shadow_layer = config.shadow;
        draft.all_known = true;
        let mut fixed = Vec::new();
        for alternatives in config.alternatives() {
            match alternatives {
                [(PolicySelector(PolicySource::Fixed(policy)), _)] => {
                    fixed.push(config.as_charged(policy.clone()));
                    continue;
                }
                [(PolicySelector(PolicySource::Live(handle)), _)] => {
                    draft.handles.push(handle.clone())
                }
                _ => {} // the list has only the alternative that was charged
            }
            draft.all_known = false;
        }
        draft.known = List::of(fixed.into_iter(), shadows);
        draft
    }

    /// Appends the fields, because nested layers each add their items. Policies chosen for this request go on a line of
    /// their own: a list may have several lines.
    pub(super) fn append(&self, headers: &mut HeaderMap, decision: &Decision) {
        let local = decision.usage().is_local();
        if self.all_known && !local {
            return append_lists([&self.known], headers, decision);
        }
        let chosen = self.chosen(decision, local);
        match local {
            // A local decision has other limits than the prepared ones.
            true => append_lists([&chosen], headers, decision),
            false => append_lists([&self.known, &chosen], headers, decision),
        }
    }

    /// The policies that depend on the request: the chosen ones, and those of the handles.
    #[cold]
    fn chosen(&self, decision: &Decision, local: bool) -> List {
        let usage = decision.usage();
        let usages = [Some(usage), usage.shadow().map(Decision::usage)];
        let checked = usages.into_iter().flatten().flat_map(|it| it.policies());
        let checked = checked.map(|usage| usage.policy());
        let is_known = |policy: &Policy| {
            let mut known = self.known.policies.iter();
            known.any(|(shown, _)| shown.is_same(policy))
        };
        let chosen = checked.clone().filter(|it| local || !is_known(it));
        // List handles whose limits do not apply to the request as well, like policies that never change.
        let is_checked = |name: &str| checked.clone().any(|policy| policy.name() == name);
        let handles = self.handles.iter();
        let others = handles.filter(|handle| !local && !is_checked(handle.name()));
        let others = others.map(|handle| match self.is_shadow_layer {
            true => handle.load().shadow(),
            false => handle.load(),
        });
        List::of(chosen.cloned().chain(others), self.shadows)
    }
}

/// Appends the fields of each list, or both fields for as many rules as fit.
fn append_lists<const N: usize>(lists: [&List; N], headers: &mut HeaderMap, decision: &Decision) {
    let lines = lists.map(|list| list.fields(decision));
    let len = |field: usize| -> usize {
        let values = lines.iter().filter_map(|line| line[field].as_ref());
        values.map(HeaderValue::len).sum()
    };
    if len(0).max(len(1)) > MAX_FIELD {
        append(headers, tightest(&lists, decision));
    } else {
        lines.into_iter().for_each(|line| append(headers, line));
    }
}

fn append(headers: &mut HeaderMap, [usages, quotas]: Fields) {
    if let Some(usages) = usages {
        headers.append(RATELIMIT, usages);
    }
    if let Some(quotas) = quotas {
        headers.append(RATELIMIT_POLICY, quotas);
    }
}

/// Both fields for as many rules as fit, the tightest first.
#[cold]
fn tightest(lists: &[&List], decision: &Decision) -> Fields {
    let mut rules = Vec::new();
    for list in lists {
        list.each(decision, |policy, item, usage| {
            rules.push((policy, item, usage))
        });
    }
    rules.sort_by_key(|(_, _, usage)| (!usage.is_exceeded(), usage.share()));
    let now_ms = decision.usage().decided_at_ms();
    let (mut usages, mut quotas) = (Vec::new(), Vec::new());
    for (policy, item, usage) in rules {
        let ends = (usages.len(), quotas.len());
        push_item(&mut usages, item, usage, policy);
        push_policy_item(&mut quotas, item, &usage.rule(), policy, now_ms);
        if usages.len().max(quotas.len()) > MAX_FIELD + SEPARATOR {
            // Remove the rule from both lists: they must name the same rules.
            usages.truncate(ends.0);
            quotas.truncate(ends.1);
            break;
        }
    }
    [value(&usages), value(&quotas)]
}

impl List {
    fn of(policies: impl Iterator<Item = Policy>, shadows: bool) -> Self {
        let mut distinct: Vec<(Policy, Vec<Item>)> = Vec::new();
        for policy in policies.filter(|it| !it.is_hidden() && (shadows || !it.is_shadow())) {
            // Several limits may share a policy, which is listed once.
            if distinct.iter().any(|(twin, _)| twin.is_same(&policy)) {
                continue;
            }
            let item = |rule| format!(r#", "{}";"#, item_name(&policy, rule)).into();
            let items = policy.rules().iter().map(item).collect();
            distinct.push((policy, items));
        }
        let mut rules = distinct.iter().flat_map(|(policy, _)| policy.rules());
        let has_periods = rules.any(|rule| rule.in_calendar().is_some());
        let mut list = Self {
            policy_field: None,
            policies: distinct,
        };
        list.policy_field = (!has_periods).then(|| list.policy_field(0)).flatten();
        list
    }

    fn fields(&self, decision: &Decision) -> Fields {
        let usages = written(|field| {
            self.each(decision, |policy, item, usage| {
                push_item(field, item, usage, policy);
            });
        });
        let finished = self.policy_field.clone();
        let now_ms = || decision.usage().decided_at_ms();
        [usages, finished.or_else(|| self.policy_field(now_ms()))]
    }

    /// Writes `RateLimit-Policy`. The windows of calendar rules depend on `now_ms`, a time of the store's clock.
    fn policy_field(&self, now_ms: u64) -> Option<HeaderValue> {
        written(|field| {
            for (policy, items) in &self.policies {
                for (item, rule) in items.iter().zip(policy.rules()) {
                    push_policy_item(field, item, rule, policy, now_ms);
                }
            }
        })
    }

    /// Calls back with each rule to list, in the order of the policies.
    fn each<'a>(
        &'a self,
        decision: &'a Decision,
        mut list: impl FnMut(&'a Policy, &'a Item, &'a RuleUsage),
    ) {
        for (policy, items) in &self.policies {
            // Shadows have a separate decision.
            let own = match policy.is_shadow() {
                true => decision.usage().shadow(),
                false => Some(decision),
            };
            let Some(decision) = own else {
                continue;
            };
            let keys = decision.usage().policies();
            let mut keys = keys.filter(|usage| usage.policy().is_same(policy));
            let Some(first) = keys.next() else {
                continue;
            };
            for (index, (item, rule)) in items.iter().zip(first.rules()).enumerate() {
                let others = keys.clone().filter_map(|usage| usage.rules().get(index));
                let tightest = others.fold(rule, tighter);
                if decision.is_allowed() || tightest.is_exceeded() {
                    list(policy, item, tightest);
                }
            }
        }
    }
}

/// The tighter of two keys under one rule.
fn tighter<'a>(one: &'a RuleUsage, other: &'a RuleUsage) -> &'a RuleUsage {
    cmp::max_by_key(other, one, |usage| (usage.tightness(), usage.reset_after()))
}

/// The field that `write` writes, in a buffer that is used again.
fn written(write: impl FnOnce(&mut Vec<u8>)) -> Option<HeaderValue> {
    FIELD.with_borrow_mut(|field| {
        field.clear();
        write(field);
        value(field)
    })
}

/// Leaves out the first comma. A field without items is not sent.
fn value(field: &[u8]) -> Option<HeaderValue> {
    HeaderValue::from_bytes(field.get(SEPARATOR..)?).ok()
}

/// The name of a rule's item, the same in both fields and in problem details, and unique within a layer.
///
/// The limit is not part of the name, so that the name stays the same when the limit changes.
pub(super) fn item_name(policy: &Policy, rule: &Rule) -> String {
    let name = policy.name();
    if policy.rules().len() == 1 {
        return name.to_owned();
    }
    let window = rule.window_text();
    let kind = match rule.refill() {
        Some(_) => "@bucket",
        None if rule.is_fixed() => "@fixed",
        None => "",
    };
    [name, "/", &window, kind].concat()
}

fn push_policy_item(field: &mut Vec<u8>, item: &str, rule: &Rule, policy: &Policy, now_ms: u64) {
    field.extend_from_slice(item.as_bytes());
    field.extend_from_slice(b"q=");
    push_number(field, rule.limit());
    let unit = policy.counted_in();
    if unit != "requests" {
        field.extend_from_slice(format!(r#";qu="{unit}""#).as_bytes());
    }
    let window = rule.quota_window_at(now_ms);
    if window.as_secs() > 0 && !rule.is_concurrency() && rule.shows_times() {
        field.extend_from_slice(b";w=");
        push_number(field, seconds(window));
    }
    push_shadow(field, policy);
}

fn push_item(field: &mut Vec<u8>, item: &str, usage: &RuleUsage, policy: &Policy) {
    field.extend_from_slice(item.as_bytes());
    field.extend_from_slice(b"r=");
    push_number(field, usage.remaining());
    let time = match usage.is_exceeded() {
        _ if usage.rule().is_concurrency() => None, // a slot may be returned at any time
        true => usage.shown_retry_after(),
        false => usage.shown_reset_after().filter(|time| !time.is_zero()),
    };
    if let Some(time) = time {
        field.extend_from_slice(b";t=");
        push_number(field, seconds(time));
    }
    push_shadow(field, policy);
}

/// A parameter that clients may ignore.
fn push_shadow(field: &mut Vec<u8>, policy: &Policy) {
    if policy.is_shadow() {
        field.extend_from_slice(b";sluicegate-shadow");
    }
}

fn push_number(field: &mut Vec<u8>, number: u64) {
    if let Ok(digit @ 0..10) = u8::try_from(number) {
        return field.push(b'0' + digit);
    }
    let mut digits = itoa::Buffer::new();
    field.extend_from_slice(digits.format(number.min(MAX_INTEGER)).as_bytes());
}
