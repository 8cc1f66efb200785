//! `RateLimit` and `RateLimit-Policy`: draft-ietf-httpapi-ratelimit-headers-11.

use std::{cell::RefCell, cmp::Reverse};

use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::seconds::seconds;
use crate::domain::{
    decision::{Decision, RuleUsage},
    policies::PolicyHandle,
    policy::Policy,
    rule::Rule,
};

pub(super) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The longest list of a layer, in bytes, whether it is sent in one line or in two. Proxies have little room for all headers of a response, nginx 4 KiB, and
/// answer with an error of their own where that is too small.
const MAX_FIELD: usize = 1_024;

/// The largest integer of a structured field.
const MAX_INTEGER: u64 = 999_999_999_999_999;

thread_local! {
    /// A field while it is written: so the only allocation is that of the header's value.
    static FIELD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The fields of one layer: `RateLimit-Policy` is made once, and the items of `RateLimit` are prepared.
#[derive(Clone)]
pub(super) struct Draft11 {
    policy_field: Option<HeaderValue>,
    /// The length of `policy_field`, also where it is too long for a header.
    policy_len: usize,
    policies: Vec<(Policy, Vec<Item>)>,
    all_known: bool,
    /// Whether shadows are listed.
    shadows: bool,
    /// Policies that can be replaced while the service runs, so that they are listed as they are then.
    handles: Vec<PolicyHandle>,
    /// Whether all policies of the layer are shadows.
    is_shadow_layer: bool,
}

/// The beginning of a rule's item: `"name";r=`.
type Item = Box<str>;

impl Draft11 {
    /// `all_known` when no request is charged under another policy than these.
    pub(super) fn new<'a>(
        policies: impl Iterator<Item = &'a Policy>,
        all_known: bool,
        shadows: bool,
    ) -> Self {
        let mut distinct: Vec<(Policy, Vec<Item>)> = Vec::new();
        let mut field = Vec::new();
        for policy in policies.filter(|it| shadows || !it.is_shadow()) {
            if distinct.iter().any(|(twin, _)| twin.is_same(policy)) {
                continue;
            }
            let items = policy.rules().iter().map(|rule| {
                let name = item_name(policy, rule);
                push_policy_item(&mut field, &name, rule, policy);
                format!(r#""{name}";r="#).into()
            });
            distinct.push((policy.clone(), items.collect()));
        }
        Self {
            policy_field: value(&field),
            policy_len: field.len(),
            policies: distinct,
            all_known,
            shadows,
            handles: Vec::new(),
            is_shadow_layer: false,
        }
    }

    /// Lists these, too.
    pub(super) fn with_handles(
        mut self,
        handles: Vec<PolicyHandle>,
        is_shadow_layer: bool,
    ) -> Self {
        self.handles = handles;
        self.is_shadow_layer = is_shadow_layer;
        self
    }

    /// Appends, since several layers around each other each add their items.
    ///
    /// Policies that were chosen for this request are in a line of their own: a list may have several lines.
    pub(super) fn append(&self, headers: &mut HeaderMap, decision: &Decision) {
        // All limits of a local decision differ from these.
        if decision.usage().is_local() {
            return Self::append_all(&[&self.chosen(decision, true)], headers, decision);
        }
        if self.all_known {
            return Self::append_all(&[self], headers, decision);
        }
        Self::append_all(&[self, &self.chosen(decision, false)], headers, decision);
    }

    /// The policies that are not known before the request: those that were chosen for it, and those of the handles.
    #[cold]
    fn chosen(&self, decision: &Decision, local: bool) -> Self {
        let shadows = decision.usage().shadow().map(|it| it.usage().policies());
        let checked = decision.usage().policies();
        let checked = checked
            .chain(shadows.into_iter().flatten())
            .map(|it| it.policy());
        let chosen = checked.clone().filter(|it| local || !self.knows(it));
        let mut chosen: SmallVec<[Policy; 8]> = chosen.cloned().collect();
        // Those whose limits do not apply to the request are listed all the same, as policies that never change are.
        let is_checked =
            |handle: &PolicyHandle| checked.clone().any(|it| it.name() == handle.name());
        let others = self.handles.iter().filter(|it| !local && !is_checked(it));
        chosen.extend(others.map(|it| self.current(it)));
        Self::new(chosen.iter(), true, self.shadows)
    }

    fn current(&self, handle: &PolicyHandle) -> Policy {
        let policy = handle.load();
        if self.is_shadow_layer {
            policy.shadow()
        } else {
            policy
        }
    }

    fn knows(&self, policy: &Policy) -> bool {
        self.policies.iter().any(|(it, _)| it.is_same(policy))
    }

    /// Appends the lists of all policies, or of the tightest rules alone where there is no room for all.
    fn append_all(parts: &[&Self], headers: &mut HeaderMap, decision: &Decision) {
        let fields = parts.iter().map(|part| part.field(decision));
        let fields: SmallVec<[Option<HeaderValue>; 2]> = fields.collect();
        let usages: usize = fields.iter().flatten().map(HeaderValue::len).sum();
        let quotas: usize = parts.iter().map(|part| part.policy_len).sum();
        if usages.max(quotas) > MAX_FIELD {
            return Self::append_tightest(parts, headers, decision);
        }
        for (part, field) in parts.iter().zip(fields) {
            if let Some(field) = field {
                headers.append(RATELIMIT, field);
            }
            if let Some(field) = &part.policy_field {
                headers.append(RATELIMIT_POLICY, field.clone());
            }
        }
    }

    fn field(&self, decision: &Decision) -> Option<HeaderValue> {
        FIELD.with_borrow_mut(|field| {
            field.clear();
            self.write(field, decision);
            value(field)
        })
    }

    fn write(&self, field: &mut Vec<u8>, decision: &Decision) {
        self.each(decision, |policy, item, usage| {
            push_item(field, item, usage);
            push_shadow(field, policy);
        });
    }

    /// Both lists of as many rules as there is room for, the tightest first.
    #[cold]
    fn append_tightest(parts: &[&Self], headers: &mut HeaderMap, decision: &Decision) {
        let mut rules = Vec::new();
        for part in parts {
            part.each(decision, |policy, item, usage| {
                rules.push((policy, item, usage))
            });
        }
        rules.sort_by_key(|(_, _, usage)| (!usage.is_exceeded(), share_left(usage)));
        let (mut usages, mut quotas) = (Vec::new(), Vec::new());
        for (policy, item, usage) in rules {
            let ends = (usages.len(), quotas.len());
            let rule = usage.rule();
            push_item(&mut usages, item, usage);
            push_shadow(&mut usages, policy);
            push_policy_item(&mut quotas, &item_name(policy, &rule), &rule, policy);
            if usages.len().max(quotas.len()) > MAX_FIELD {
                usages.truncate(ends.0);
                quotas.truncate(ends.1);
                break;
            }
        }
        for (name, field) in [(RATELIMIT, usages), (RATELIMIT_POLICY, quotas)] {
            if let Some(field) = value(&field) {
                headers.append(name, field);
            }
        }
    }

    /// Calls back with each rule that is to be listed, in the order of the policies.
    fn each<'a>(
        &'a self,
        decision: &'a Decision,
        mut list: impl FnMut(&'a Policy, &'a Item, &'a RuleUsage),
    ) {
        for (policy, items) in &self.policies {
            let Some(decision) = decision_of(policy, decision) else {
                continue;
            };
            let keys = decision.usage().policies();
            let mut keys = keys.filter(|it| it.policy().is_same(policy));
            let Some(first) = keys.next() else {
                continue;
            };
            for (index, (item, rule)) in items.iter().zip(first.rules()).enumerate() {
                let others = keys.clone().filter_map(|it| it.rules().get(index));
                let tightest = others.fold(rule, tighter);
                if decision.is_allowed() || tightest.is_exceeded() {
                    list(policy, item, tightest);
                }
            }
        }
    }
}

/// The share of a limit that is left, as a part of 2^53, the greatest limit.
fn share_left(usage: &RuleUsage) -> u128 {
    let limit = usage.rule().limit().max(1);
    (u128::from(usage.remaining()) << 53) / u128::from(limit)
}

/// A field without items is not sent.
fn value(field: &[u8]) -> Option<HeaderValue> {
    let value = HeaderValue::from_bytes(field).ok();
    value.filter(|value| !value.is_empty())
}

/// The name of a rule's item, the same in both fields and in problem details: unique within a layer.
///
/// The limit is not part of it, so that a name stays the same when a limit changes.
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

fn push_policy_item(field: &mut Vec<u8>, name: &str, rule: &Rule, policy: &Policy) {
    separate(field);
    field.extend_from_slice(format!(r#""{name}";q="#).as_bytes());
    push_number(field, rule.limit());
    let window = rule.quota_window();
    if window.as_secs() > 0 {
        field.extend_from_slice(b";w=");
        push_number(field, seconds(window));
    }
    push_shadow(field, policy);
}

fn push_item(field: &mut Vec<u8>, item: &str, usage: &RuleUsage) {
    separate(field);
    field.extend_from_slice(item.as_bytes());
    push_number(field, usage.remaining());
    let time = if usage.is_exceeded() {
        usage.retry_after()
    } else {
        Some(usage.reset_after()).filter(|time| !time.is_zero())
    };
    if let Some(time) = time {
        field.extend_from_slice(b";t=");
        push_number(field, seconds(time));
    }
}

/// A parameter that clients ignore if they do not know it.
fn push_shadow(field: &mut Vec<u8>, policy: &Policy) {
    if policy.is_shadow() {
        field.extend_from_slice(b";sluicegate-shadow");
    }
}

/// Shadows have a decision of their own.
fn decision_of<'a>(policy: &Policy, decision: &'a Decision) -> Option<&'a Decision> {
    if policy.is_shadow() {
        decision.usage().shadow()
    } else {
        Some(decision)
    }
}

fn separate(field: &mut Vec<u8>) {
    if !field.is_empty() {
        field.extend_from_slice(b", ");
    }
}

fn push_number(field: &mut Vec<u8>, number: u64) {
    let mut digits = itoa::Buffer::new();
    field.extend_from_slice(digits.format(number.min(MAX_INTEGER)).as_bytes());
}

/// The tighter of two keys under one policy: the exceeded one with the longer wait, or else the one with less left.
fn tighter<'a>(one: &'a RuleUsage, other: &'a RuleUsage) -> &'a RuleUsage {
    let order = |it: &RuleUsage| {
        let is_exceeded = it.is_exceeded();
        let waits = (is_exceeded, is_exceeded && it.retry_after().is_none());
        (
            waits,
            it.retry_after(),
            Reverse(it.remaining()),
            it.reset_after(),
        )
    };
    if order(other) > order(one) {
        other
    } else {
        one
    }
}
