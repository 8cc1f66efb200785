//! `RateLimit` and `RateLimit-Policy`: draft-ietf-httpapi-ratelimit-headers-11.

use std::cell::RefCell;

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

/// The fields of one layer: a finished `RateLimit-Policy`, and prepared items of `RateLimit`.
#[derive(Clone)]
pub(super) struct Draft11 {
    policy_field: Option<HeaderValue>,
    /// Whether a period of a calendar rule is listed, whose length differs from that of the next. Then `policy_field`
    /// is written for each response.
    has_periods: bool,
    policies: Vec<(Policy, Vec<Item>)>,
    all_known: bool,
    /// Whether to list shadows.
    shadows: bool,
    /// Replaceable policies, listed as they are at the time of the request.
    handles: Vec<PolicyHandle>,
    /// Whether all policies of the layer are shadows.
    is_shadow_layer: bool,
}

/// The start of a rule's item: `, "name";`. The first comma of a list is left out.
type Item = Box<str>;

/// Both fields, for the rules of one layer.
struct Fields {
    usages: Option<HeaderValue>,
    quotas: Option<HeaderValue>,
}

impl Fields {
    fn append_to(self, headers: &mut HeaderMap) {
        if let Some(usages) = self.usages {
            headers.append(RATELIMIT, usages);
        }
        if let Some(quotas) = self.quotas {
            headers.append(RATELIMIT_POLICY, quotas);
        }
    }
}

impl Draft11 {
    /// `all_known` if no request is charged under any other policy.
    pub(super) fn new<'a>(
        policies: impl Iterator<Item = &'a Policy>,
        all_known: bool,
        shadows: bool,
    ) -> Self {
        // Several limits may share a policy, which is listed once.
        let mut distinct: Vec<(Policy, Vec<Item>)> = Vec::new();
        let shown =
            policies.filter(|policy| !policy.is_hidden() && (shadows || !policy.is_shadow()));
        for policy in shown {
            if distinct.iter().any(|(twin, _)| twin.is_same(policy)) {
                continue;
            }
            let items = policy.rules().iter().map(|rule| {
                let name = item_name(policy, rule);
                format!(r#", "{name}";"#).into()
            });
            distinct.push((policy.clone(), items.collect()));
        }
        let mut rules = distinct.iter().flat_map(|(policy, _)| policy.rules());
        let has_periods = rules.any(|rule| rule.in_calendar().is_some());
        Self {
            policy_field: if has_periods {
                None
            } else {
                policy_field(&distinct, 0)
            },
            has_periods,
            policies: distinct,
            all_known,
            shadows,
            handles: Vec::new(),
            is_shadow_layer: false,
        }
    }

    /// Also lists these policies.
    pub(super) fn with_handles(
        mut self,
        handles: Vec<PolicyHandle>,
        is_shadow_layer: bool,
    ) -> Self {
        self.handles = handles;
        self.is_shadow_layer = is_shadow_layer;
        self
    }

    /// Appends the fields, because nested layers each add their items.
    pub(super) fn append(&self, headers: &mut HeaderMap, decision: &Decision) {
        if !self.all_known || decision.usage().is_local() {
            return self.append_with_chosen(headers, decision);
        }
        let fields = self.fields(decision);
        if fit([&fields.usages]) && fit([&fields.quotas]) {
            fields.append_to(headers);
        } else {
            Self::append_tightest(&[self], headers, decision);
        }
    }

    /// Policies chosen for this request go on a line of their own: a list may have several lines.
    fn append_with_chosen(&self, headers: &mut HeaderMap, decision: &Decision) {
        // A local decision has other limits than the prepared ones.
        let local = decision.usage().is_local();
        let chosen = self.chosen(decision, local);
        let known = if local { None } else { Some(self) };
        let parts: SmallVec<[&Self; 2]> = known.into_iter().chain([&chosen]).collect();
        let lines = parts.iter().map(|part| part.fields(decision));
        let lines: SmallVec<[Fields; 2]> = lines.collect();
        if fit(lines.iter().map(|it| &it.usages)) && fit(lines.iter().map(|it| &it.quotas)) {
            lines.into_iter().for_each(|line| line.append_to(headers));
        } else {
            Self::append_tightest(&parts, headers, decision);
        }
    }

    /// The policies that depend on the request: the chosen ones, and those of the handles.
    #[cold]
    fn chosen(&self, decision: &Decision, local: bool) -> Self {
        let shadows = decision
            .usage()
            .shadow()
            .map(|shadow| shadow.usage().policies());
        let checked = decision.usage().policies();
        let checked = checked
            .chain(shadows.into_iter().flatten())
            .map(|usage| usage.policy());
        let chosen = checked
            .clone()
            .filter(|policy| local || !self.knows(policy));
        let mut chosen: SmallVec<[Policy; 8]> = chosen.cloned().collect();
        // List handles whose limits do not apply to the request as well, like policies that never change.
        let is_checked =
            |handle: &PolicyHandle| checked.clone().any(|policy| policy.name() == handle.name());
        let others = self
            .handles
            .iter()
            .filter(|handle| !local && !is_checked(handle));
        chosen.extend(others.map(|handle| self.current(handle)));
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
        self.policies.iter().any(|(shown, _)| shown.is_same(policy))
    }

    fn fields(&self, decision: &Decision) -> Fields {
        Fields {
            usages: written(|field| {
                self.each(decision, |policy, item, usage| {
                    push_item(field, item, usage);
                    push_shadow(field, policy);
                });
            }),
            quotas: if self.has_periods {
                policy_field(&self.policies, decision.usage().decided_at_ms())
            } else {
                self.policy_field.clone()
            },
        }
    }

    /// Appends both lists for as many rules as fit, the tightest first.
    #[cold]
    fn append_tightest(parts: &[&Self], headers: &mut HeaderMap, decision: &Decision) {
        let mut rules = Vec::new();
        for part in parts {
            part.each(decision, |policy, item, usage| {
                rules.push((policy, item, usage))
            });
        }
        rules.sort_by_key(|(_, _, usage)| (!usage.is_exceeded(), usage.share()));
        let now_ms = decision.usage().decided_at_ms();
        let (mut usages, mut quotas) = (Vec::new(), Vec::new());
        for (policy, item, usage) in rules {
            let ends = (usages.len(), quotas.len());
            push_item(&mut usages, item, usage);
            push_shadow(&mut usages, policy);
            push_policy_item(&mut quotas, item, &usage.rule(), policy, now_ms);
            if usages.len().max(quotas.len()) > MAX_FIELD + SEPARATOR {
                // Remove the rule from both lists: they must name the same rules.
                usages.truncate(ends.0);
                quotas.truncate(ends.1);
                break;
            }
        }
        let fields = Fields {
            usages: value(&usages),
            quotas: value(&quotas),
        };
        fields.append_to(headers);
    }

    /// Calls back with each rule to list, in the order of the policies.
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
    let order = |usage: &RuleUsage| (usage.tightness(), usage.reset_after());
    if order(other) > order(one) {
        other
    } else {
        one
    }
}

/// Whether these lines of one field are not too long together.
fn fit<'a>(lines: impl IntoIterator<Item = &'a Option<HeaderValue>>) -> bool {
    let lengths = lines.into_iter().flatten().map(HeaderValue::len);
    lengths.sum::<usize>() <= MAX_FIELD
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

/// Writes `RateLimit-Policy`. The windows of calendar rules depend on `now_ms`, a time of the store's clock.
fn policy_field(policies: &[(Policy, Vec<Item>)], now_ms: u64) -> Option<HeaderValue> {
    written(|field| {
        for (policy, items) in policies {
            for (item, rule) in items.iter().zip(policy.rules()) {
                push_policy_item(field, item, rule, policy, now_ms);
            }
        }
    })
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
    if window.as_secs() > 0 && !rule.is_concurrency() {
        field.extend_from_slice(b";w=");
        push_number(field, seconds(window));
    }
    push_shadow(field, policy);
}

fn push_item(field: &mut Vec<u8>, item: &str, usage: &RuleUsage) {
    field.extend_from_slice(item.as_bytes());
    field.extend_from_slice(b"r=");
    push_number(field, usage.remaining());
    if usage.rule().is_concurrency() {
        return; // a slot may be returned at any time
    }
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

/// A parameter that clients may ignore.
fn push_shadow(field: &mut Vec<u8>, policy: &Policy) {
    if policy.is_shadow() {
        field.extend_from_slice(b";sluicegate-shadow");
    }
}

/// Shadows have a separate decision.
fn decision_of<'a>(policy: &Policy, decision: &'a Decision) -> Option<&'a Decision> {
    if policy.is_shadow() {
        decision.usage().shadow()
    } else {
        Some(decision)
    }
}

fn push_number(field: &mut Vec<u8>, number: u64) {
    if let Ok(digit @ 0..10) = u8::try_from(number) {
        return field.push(b'0' + digit);
    }
    let mut digits = itoa::Buffer::new();
    field.extend_from_slice(digits.format(number.min(MAX_INTEGER)).as_bytes());
}
