//! [`Report`]: everything that is stored for one identity, and the answer to a request. `inspect` and `explain` show
//! the report once, `watch` again and again.

use std::collections::HashMap;
use std::ops::Range;

use serde::Serialize;
use sluicegate::store::Check;
use sluicegate::store::redis::inspect::{
    Section, StoredBlock, StoredName, StoredResult, StoredValue, decide,
};
use sluicegate::{Charge, Decision, Key, Policy, Rule};

use super::block_report::{BlockReport, LevelReport};
use super::denied::DenialReport;
use super::holders::Holder;
use super::period::Period;
use super::published::{Differing, Limits, write_other_policies};
use super::sparkline::sparkline;
use super::text::{date_time, grouped, millis, span, time, used, without_limit};
use super::{BAD, BOLD, Cell, DIM, Error, GOOD, Output, PLAIN, Result, Table, denied};

/// A key, the policies, and the stored value.
type Read<'a> = (&'a StoredName, &'a [Policy], StoredResult);

/// Everything that is stored for an identity at one time, and the limits.
pub(crate) struct Stored<'a> {
    pub(crate) key: &'a Key,
    pub(crate) identity: String,
    pub(crate) limits: &'a Limits,
    /// The reason why a block may have no effect; `None` if that is not known.
    pub(crate) unenforced: Option<&'a str>,
    /// The server's clock.
    pub(crate) now_ms: u64,
    pub(crate) values: Vec<Read<'a>>,
    /// The block of the identity. Independent of the counts.
    pub(crate) block: StoredBlock,
    /// The denials that count towards a ban, independent of the policy.
    pub(crate) strikes: StoredResult,
    /// The labels of processes that hold slots.
    pub(crate) processes: HashMap<u64, String>,
}

/// The answer as JSON. All times are in ms since the Unix epoch.
#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) identity: String,
    /// The identity as you wrote it.
    #[serde(skip)]
    pub(crate) title: String,
    pub(crate) now_ms: u64,
    /// The units that the request costs.
    cost: u64,
    /// False if the answer is not known.
    pub(crate) passes: bool,
    /// False without limits, if the service publishes or counts other rules, or if no published policy enforces the
    /// block.
    is_known: bool,
    /// The time when the request passes, if no other comes first; null if that is now or never, or when a slot is
    /// returned.
    passes_ms: Option<u64>,
    /// The rule that denies for longest; null if the request passes. A rule without a free slot comes last: a request
    /// may end at any time.
    denied_by: Option<DeniedBy>,
    /// The rules without a free slot.
    no_slot: Vec<DeniedBy>,
    /// The block in force; null if there is none.
    pub(crate) blocked: Option<BlockReport>,
    /// The reason why the block may have no effect.
    warning: Option<String>,
    /// The level of bans that grow; null if there is none.
    ban_level: Option<LevelReport>,
    /// Denials that count towards a ban.
    strikes: Vec<Strikes>,
    /// The recent denials by policy; null if the tool may not read them.
    pub(crate) denied: Option<Vec<DenialReport>>,
    pub(crate) policies: Vec<PolicyReport>,
    /// Policies with a stored value that the file or the service does not have.
    pub(crate) other_policies: Vec<String>,
    /// The policies that services publish with rules that differ from the file, or in several versions.
    published_differs: Vec<Differing>,
    /// The policies that plans share, and under which some of the plans deny and others admit.
    undecided: Vec<String>,
    /// The reason why nothing is stored; null if something is.
    pub(crate) why: Option<String>,
    #[serde(skip)]
    has_limits: bool,
    /// The reason why the published policies could not be read; `None` if they were.
    #[serde(skip)]
    unpublished: Option<String>,
    /// Completes a sentence about a rule that the limits do not have.
    #[serde(skip)]
    lacks: &'static str,
    /// The reason why the block cannot be read.
    #[serde(skip)]
    pub(crate) unreadable_block: Option<Error>,
}

#[derive(Serialize)]
pub(crate) struct PolicyReport {
    pub(crate) policy: String,
    /// A shadow denies no request.
    shadow: bool,
    /// Null without limits, or if that depends on the plan.
    passes: Option<bool>,
    /// The time when the key expires; null if nothing is stored.
    expires_ms: Option<u64>,
    /// The reason why the stored value cannot be read; null if it can.
    pub(crate) error: Option<String>,
    pub(crate) rules: Vec<RuleReport>,
    #[serde(skip)]
    pub(crate) slots_expire_after_ms: Option<u64>,
}

/// A rule of the policy, or of another process's policy with that name.
#[derive(Serialize)]
pub(crate) struct RuleReport {
    /// The rule as text; without a limit if that is not known: `?/1m`.
    pub(crate) rule: String,
    pub(crate) limit: Option<u64>,
    window_ms: u64,
    step_ms: u64,
    /// Whether the units are slots, each held by a request that runs.
    pub(crate) slots: bool,
    pub(crate) used: u64,
    /// Null if the limit is not known.
    left: Option<u64>,
    /// Whether the cost fits; null if the limit is not known.
    pub(crate) fits: Option<bool>,
    /// The time when the cost fits; null if that is now or never, or if the limit is not known. For slots, the time when
    /// one expires that is neither returned nor renewed.
    fits_ms: Option<u64>,
    /// The time when no units count; null if that is now.
    free_ms: Option<u64>,
    /// Whether the last charge of the policy added units to this rule. If not, a former rule left them.
    charged: bool,
    /// The steps that count, oldest first.
    steps: Vec<Step>,
    /// The processes that hold slots, those that have held one for longest first.
    holders: Vec<Holder>,
    /// The current period; null if the rule is not of the calendar.
    period: Option<Period>,
    /// Whether the steps of the window make a picture.
    #[serde(skip)]
    is_sliding: bool,
}

#[derive(Serialize)]
struct Step {
    end_ms: u64,
    units: u64,
    release_ms: u64,
}

#[derive(Clone, Serialize)]
struct DeniedBy {
    policy: String,
    rule: String,
}

/// The limit is the number of strikes that leads to a ban; null if no known policy has one.
#[derive(Serialize)]
struct Strikes {
    count: u64,
    limit: Option<u64>,
    window_ms: u64,
}

impl Report {
    pub(crate) fn of(stored: &Stored<'_>, cost: u64) -> Result<Self> {
        let (now_ms, limits) = (stored.now_ms, stored.limits);
        let identity = stored.identity.clone();
        let (blocked, unreadable_block) = match BlockReport::of(&stored.block, now_ms) {
            Ok(block) => (block, None),
            Err(error) => (None, Some(error)),
        };
        let mut report = Self {
            title: identity.clone(),
            identity,
            now_ms,
            cost,
            passes: blocked.is_none(),
            // A layer that looks up keys without a policy may enforce the block, but nothing publishes that.
            is_known: blocked.is_none() || stored.unenforced.is_none(),
            passes_ms: blocked.as_ref().and_then(|block| block.until_ms),
            denied_by: None,
            no_slot: Vec::new(),
            warning: { stored.unenforced }
                .filter(|_| blocked.is_some())
                .map(str::to_owned),
            blocked,
            ban_level: LevelReport::of(&stored.block, now_ms),
            strikes: strikes(stored),
            denied: None,
            policies: Vec::new(),
            other_policies: Vec::new(),
            published_differs: limits.differing.clone(),
            undecided: Vec::new(),
            why: None,
            has_limits: limits.policies.is_some(),
            unpublished: limits.unpublished.clone(),
            lacks: limits.lacks,
            unreadable_block,
        };
        let is_blocked = report.blocked.is_some() && report.is_known;
        let mut denials = Vec::new();
        for read in &stored.values {
            let (policy, denial) = PolicyReport::of(read, stored, cost)?;
            let mut differing = limits.differing.iter();
            let differs = differing.any(|it| it.may_deny && it.policy == policy.policy);
            if policy.passes.is_none() && policy.error.is_none() && read.1.len() > 1 {
                report.undecided.push(policy.policy.clone());
            }
            report.is_known &= policy.is_certain() && !differs;
            // If the service may have other limits, these prove neither a denial nor a pass.
            denials.extend(denial.filter(|_| !differs));
            report.policies.push(policy);
        }
        // A limit denies even if other rules are unknown. A block denies only if it is enforced.
        report.is_known |= !denials.is_empty();
        report.passes &= report.is_known && denials.is_empty();
        // A block without an end lasts longest, and a rule that never admits.
        let until_ms = report.passes_ms.unwrap_or(u64::MAX);
        let mut longest = if is_blocked { until_ms } else { 0 };
        for denial in denials {
            if denial.is_of_slots && denial.until_ms < u64::MAX {
                report.no_slot.push(denial.by);
            } else if denial.until_ms > longest {
                longest = denial.until_ms;
                report.passes_ms = Some(longest).filter(|until| *until < u64::MAX);
                report.denied_by = Some(denial.by);
            }
        }
        if report.denied_by.is_none() && report.blocked.is_none() {
            report.denied_by = report.no_slot.first().cloned();
        }
        Ok(report)
    }

    /// Whether there is nothing to show.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocked.is_none()
            && self.ban_level.is_none()
            && self.other_policies.is_empty()
            && self.policies.iter().all(PolicyReport::is_empty)
    }

    /// The first rule or block that makes every answer wrong, because the script cannot read it either.
    pub(crate) fn unreadable(&mut self) -> Option<Error> {
        let unreadable = self.policies.iter().find_map(|policy| {
            let (name, error) = (&policy.policy, policy.error.as_ref()?);
            Some(Error::server(format_args!(
                "policy `{name}`: {error}. No check of it can be decided: the service's failure policy applies. \
                 `sluicegate reset` deletes the value"
            )))
        });
        self.unreadable_block.take().or(unreadable)
    }

    /// The usage without times: `api 10/1s 3, 120/1m 120 full`. The text of a block comes first.
    pub(crate) fn line(&self) -> String {
        let block = self.blocked.as_ref().map(BlockReport::text_without_span);
        let policies = self.policies.iter().map(PolicyReport::line);
        let parts: Vec<String> = block.into_iter().chain(policies).collect();
        match parts.is_empty() {
            true => "nothing is stored".to_owned(),
            false => parts.join("; "),
        }
    }

    /// Writes the report as text.
    pub(crate) fn write(&self, output: &mut Output) -> Result<()> {
        let (title, now_ms) = (&self.title, self.now_ms);
        let cost = match self.cost {
            1 => String::new(),
            cost => format!("  cost {}", grouped(cost)),
        };
        output.line(format!(
            "{BOLD}{title}{BOLD:#}{cost}  {DIM}{}{DIM:#}",
            date_time(now_ms)
        ))?;
        if let Some(block) = &self.blocked {
            output.styled(BAD, &block.text(now_ms))?;
            output.hint(&block.origin().unwrap_or_default())?;
        }
        if let Some(warning) = &self.warning {
            output.warn(warning)?;
        }
        if let Some(level) = &self.ban_level {
            output.hint(&level.text(now_ms))?;
        }
        for strikes in &self.strikes {
            output.line(strikes.text())?;
        }
        if self.policies.is_empty() {
            output.line("Nothing is stored.")?;
        }
        // Policies without counts get one line together, so that the table stays short.
        let (empty, used): (Vec<_>, Vec<_>) = self.policies.iter().partition(|it| it.is_empty());
        self.write_table(&used, output)?;
        let rules = || {
            used.iter()
                .flat_map(|it| it.rules.iter().map(|rule| (&it.policy, rule)))
        };
        for (_, rule) in rules() {
            let period = rule.period.as_ref();
            output.hint(&period.map_or(String::new(), |it| it.text(&rule.rule, now_ms)))?;
        }
        for (policy, rule) in rules() {
            for holder in &rule.holders {
                output.hint(&holder.text(policy, now_ms))?;
            }
        }
        if used.iter().any(|policy| policy.shadow) {
            output.hint("*: a shadow, which denies no request")?;
        }
        if !empty.is_empty() {
            let empty: Vec<&str> = empty.iter().map(|policy| policy.policy.as_str()).collect();
            output.hint(&format!("no usage under {}", empty.join(", ")))?;
        }
        output.hint(self.why.as_deref().unwrap_or_default())?;
        for (policy, rule) in rules().filter(|(_, rule)| self.has_limits && rule.is_other()) {
            let lacks = self.lacks;
            let other = format!(
                "{} under {policy}, with {} used",
                rule.rule,
                grouped(rule.used)
            );
            match rule.charged {
                true => output.warn(format!("the service counts a rule that {lacks}: {other}"))?,
                false => output.hint(&format!("left of former rules: {other}"))?,
            }
        }
        write_other_policies(&self.other_policies, self.lacks, output)?;
        for policy in &self.policies {
            if let Some(error) = &policy.error {
                output.line(format!("{}: {error}", policy.policy))?;
            }
        }
        if !self.has_limits && rules().next().is_some() {
            output.hint(&match &self.unpublished {
                None => "?: the limit is not stored: --policies FILE has it".to_owned(),
                Some(why) => format!(
                    "?: the limit is not stored, and the published policies could not be read ({why}): --policies FILE has it"
                ),
            })?;
        }
        Ok(())
    }

    fn write_table(&self, policies: &[&PolicyReport], output: &mut Output) -> Result<()> {
        let fits = match self.cost {
            1 => "one more",
            _ => "fits",
        };
        let titles = ["policy", "rule", "used", "left", fits, "empty", "window"];
        let (mut table, mut rules) = (Table::new(titles), Vec::new());
        for policy in policies {
            let mark = if policy.shadow { "*" } else { "" };
            let mut name = format!("{}{mark}", policy.policy);
            for rule in &policy.rules {
                table.row(rule.cells(std::mem::take(&mut name), self.now_ms));
                rules.push(rule);
            }
        }
        let columns = table.room(output.width()).clamp(6, 30);
        table.fill(rules.iter().map(|rule| rule.picture(self.now_ms, columns)));
        output.table(&table)
    }

    /// Writes the denials and the answer, if there are limits or a block.
    pub(crate) fn write_answer(&self, output: &mut Output) -> Result<()> {
        denied::write(self.denied.as_deref(), output)?;
        let (now_ms, is_blocked) = (self.now_ms, self.blocked.is_some());
        if is_blocked {
            output.styled(BAD, "It is denied, where blocks are enforced.")?;
        }
        match (&self.denied_by, self.passes_ms) {
            (None, _) if !self.has_limits => {}
            (None, _) if !self.is_known => {
                let elsewhere = if is_blocked { " elsewhere" } else { "" };
                if let Some(why) = self.why_unknown() {
                    let lead = format!("{BAD}It is not known whether it passes{elsewhere}:{BAD:#}");
                    output.line(format!("{lead} {why}."))?;
                }
            }
            // Said below.
            (Some(_), None) if self.waits_for_slot() => {}
            // The block above is the verdict.
            (None, _) if is_blocked => {}
            (None, _) => output.styled(GOOD, "It passes.")?,
            (Some(DeniedBy { policy, rule }), None) => output.line(format!(
                "{BAD}It is denied for ever:{BAD:#} it costs more than the rule {rule} of {policy} admits."
            ))?,
            (Some(DeniedBy { policy, rule }), Some(until)) => {
                let (until, left) = (time(until, now_ms), span(until.saturating_sub(now_ms)));
                output.line(format!("{BAD}It is denied until {until}{BAD:#} (in {left}),"))?;
                output.line(format!("if nothing else is charged first: by the rule {rule} of {policy}."))?;
            }
        }
        // Without a time: a slot is free when any of the requests ends.
        for DeniedBy { policy, rule } in &self.no_slot {
            let lead = match self.waits_for_slot() {
                true => "It is denied until a request ends:",
                false => "Besides, until a request ends:",
            };
            output.line(format!("{BAD}{lead}{BAD:#} all slots are in use,"))?;
            output.line(format!("by the rule {rule} of {policy}."))?;
        }
        Ok(())
    }

    /// The reason why the limits prove nothing; `None` if they do.
    fn why_unknown(&self) -> Option<String> {
        let differing = self.published_differs.iter().filter(|it| it.may_deny);
        let differing: Vec<String> = differing.map(Differing::text).collect();
        if !differing.is_empty() {
            return Some(differing.join("; "));
        }
        if let Some(policy) = self.undecided.first() {
            return Some(format!("that depends on its plan under {policy}"));
        }
        let policy = self.policies.iter().find(|policy| !policy.is_certain())?;
        Some(match policy.passes {
            Some(_) => format!("the service counts rules that {}", self.lacks),
            None => format!("nothing is known under {}", policy.policy),
        })
    }

    /// Whether nothing but slots is missing.
    fn waits_for_slot(&self) -> bool {
        let by = self.denied_by.as_ref();
        by.is_some_and(|by| {
            self.no_slot
                .iter()
                .any(|missing| missing.policy == by.policy)
        })
    }
}

/// The strikes in each window with strikes. The limit is that of the strictest ban with this window.
fn strikes(stored: &Stored<'_>) -> Vec<Strikes> {
    let policies = stored.values.iter().flat_map(|(_, policies, _)| *policies);
    let bans = policies.filter_map(|policy| Some(policy.ban_config()?.strikes()));
    let bans: Vec<Rule> = bans.collect();
    let value = stored.strikes.as_ref().ok().and_then(Option::as_ref);
    let sections = value.map_or(&[][..], StoredValue::sections).iter();
    let strikes = sections.map(|section| Strikes {
        count: section.used(stored.now_ms),
        limit: bans
            .iter()
            .filter(|rule| section.is_of(rule))
            .map(Rule::limit)
            .min(),
        window_ms: millis(section.rule(0).window()),
    });
    strikes.filter(|strikes| strikes.count > 0).collect()
}

impl Strikes {
    /// `3 of 5 strikes in 10m`
    fn text(&self) -> String {
        let limit = self
            .limit
            .map_or(String::new(), |limit| format!(" of {limit}"));
        format!("{}{limit} strikes in {}", self.count, span(self.window_ms))
    }
}

/// The denial of a policy.
struct Denial {
    /// The greatest number for a rule that never admits.
    until_ms: u64,
    is_of_slots: bool,
    by: DeniedBy,
}

impl Denial {
    /// The denial by one plan; `None` if the plan passes.
    fn of(
        plan: &Policy,
        key: &Key,
        value: Option<&StoredValue>,
        now_ms: u64,
        cost: u64,
    ) -> Result<Option<Self>> {
        // Decide as if the policy were not a shadow.
        let counting =
            Policy::new(plan.name(), plan.rules().iter().copied()).map_err(Error::usage)?;
        let is_of_slots = plan.rules().iter().any(Rule::is_concurrency);
        let cost = if is_of_slots { cost.min(1) } else { cost };
        let check = Check::new([Charge::new(&counting, key.clone(), cost)])?;
        let Decision::Denied(denial) = decide(&check, now_ms, &[value])? else {
            return Ok(None);
        };
        let after = denial.rule().retry_after();
        Ok(Some(Self {
            until_ms: after.map_or(u64::MAX, |after| now_ms.saturating_add(millis(after))),
            is_of_slots,
            by: DeniedBy {
                policy: plan.name().to_owned(),
                rule: denial.rule().rule().to_string(),
            },
        }))
    }
}

impl PolicyReport {
    /// The report about one key, and its denial.
    fn of(
        (name, plans, value): &Read<'_>,
        all: &Stored<'_>,
        cost: u64,
    ) -> Result<(Self, Option<Denial>)> {
        let now_ms = all.now_ms;
        let stored = value.as_ref().ok().and_then(Option::as_ref);
        let mut known: Vec<Rule> = Vec::new();
        for rule in plans.iter().flat_map(Policy::rules) {
            if !known.contains(rule) {
                known.push(*rule);
            }
        }
        let mut rules: Vec<RuleReport> = Vec::new();
        for rule in known.iter().filter(|_| value.is_ok()) {
            rules.push(RuleReport::of(
                rule,
                Some(rule.limit()),
                stored,
                (now_ms, cost),
            ));
        }
        // The service may count rules that the limits do not have.
        let sections = stored.map_or(&[][..], StoredValue::sections).iter();
        for section in sections.filter(|it| !known.iter().any(|rule| it.is_of(rule))) {
            rules.push(RuleReport::of(
                &section.rule(0),
                None,
                stored,
                (now_ms, cost),
            ));
        }
        for rule in rules.iter_mut().filter(|rule| rule.slots) {
            rule.holders = Holder::all(stored, now_ms, &all.processes);
        }
        let denials = plans.iter().filter(|_| value.is_ok());
        let denials = denials.map(|plan| Denial::of(plan, all.key, stored, now_ms, cost));
        let denials: Vec<Option<Denial>> = denials.collect::<Result<_>>()?;
        let count = denials.iter().flatten().count();
        let report = Self {
            policy: name.policy().to_owned(),
            shadow: !plans.is_empty() && plans.iter().all(Policy::is_shadow),
            passes: (count == 0 || count == denials.len())
                .then_some(count == 0)
                .filter(|_| !denials.is_empty()),
            expires_ms: stored.map(StoredValue::expires_ms),
            error: value.as_ref().err().map(ToString::to_string),
            rules,
            slots_expire_after_ms: name.slots_expire_after_ms(),
        };
        // Any of the plans may hold, so all of them have to deny, until the first of them admits; the greatest, if equal.
        let denial = denials
            .into_iter()
            .flatten()
            .rev()
            .min_by_key(|it| it.until_ms);
        let denies = report.passes == Some(false) && !report.shadow;
        Ok((report, denial.filter(|_| denies)))
    }

    /// Whether nothing counts. An unreadable value counts as used.
    fn is_empty(&self) -> bool {
        self.error.is_none()
            && self.passes != Some(false)
            && self.rules.iter().all(|it| it.used == 0)
    }

    /// Whether something is stored.
    pub(crate) fn is_stored(&self) -> bool {
        self.error.is_some() || self.expires_ms.is_some()
    }

    /// Whether the answer is known: it is not if the service counts other rules than these.
    fn is_certain(&self) -> bool {
        let is_other = |rule: &RuleReport| rule.is_other() && rule.charged;
        self.shadow || self.passes.is_some() && !self.rules.iter().any(is_other)
    }

    fn line(&self) -> String {
        let rules = self.rules.iter().map(|rule| {
            let full = if rule.left == Some(0) { " full" } else { "" };
            format!(
                "{} {}{full}",
                rule.rule,
                used(rule.used, rule.limit, rule.slots)
            )
        });
        // A change is one line of output, so all rules go on one line.
        let rules = match (&self.error, self.expires_ms) {
            (Some(_), _) => "unreadable".to_owned(),
            (_, None) => "nothing".to_owned(),
            _ => rules.collect::<Vec<_>>().join(", "),
        };
        format!("{} {rules}", self.policy)
    }
}

impl RuleReport {
    fn of(
        rule: &Rule,
        limit: Option<u64>,
        value: Option<&StoredValue>,
        (now_ms, cost): (u64, u64),
    ) -> Self {
        let slots = rule.is_concurrency();
        let cost = if slots { cost.min(1) } else { cost };
        let section = value.and_then(|value| value.section(rule));
        let steps = section
            .map_or(Vec::new(), |section| section.steps(now_ms))
            .into_iter();
        let used = section.map_or(0, |section| section.used(now_ms));
        let fits_ms = limit
            .zip(section)
            .map(|(limit, it)| it.fits_at_ms(now_ms, limit, cost));
        let fits_ms = fits_ms.filter(|ms| *ms > 0);
        let free_ms = section.map(|section| section.reset_at_ms(now_ms));
        let period = Period::of(rule, now_ms);
        Self {
            rule: limit.map_or_else(|| without_limit(rule), |_| rule.to_string()),
            limit,
            window_ms: millis(rule.window()),
            step_ms: millis(rule.step()),
            slots,
            used,
            left: limit.map(|limit| limit.saturating_sub(used)),
            fits: limit.map(|limit| cost <= limit && fits_ms.is_none()),
            fits_ms,
            free_ms: free_ms.filter(|ms| *ms > 0),
            charged: section.is_some_and(|section| is_charged(section, value)),
            steps: steps
                .map(|it| Step {
                    end_ms: it.end_ms,
                    units: it.units,
                    release_ms: it.release_ms,
                })
                .collect(),
            holders: Vec::new(),
            is_sliding: !rule.is_fixed() && rule.refill().is_none() && period.is_none() && !slots,
            period,
        }
    }

    /// Whether the limits do not have the rule, and its units count.
    const fn is_other(&self) -> bool {
        self.limit.is_none() && self.used > 0
    }

    /// All columns except the picture. A slot comes back when its request ends: its times say only when it would
    /// expire, if its process were dead.
    fn cells(&self, policy: String, now_ms: u64) -> [Cell; 7] {
        let until = |ms: u64| format!("in {}", span(ms.saturating_sub(now_ms)));
        let fits = match (self.fits, self.fits_ms) {
            (None, _) => "?".into(),
            (Some(true), _) => "now".into(),
            (_, None) => "never".into(),
            (_, Some(_)) if self.slots => "when one ends".into(),
            (_, Some(ms)) => until(ms),
        };
        let empty = match self.free_ms {
            _ if self.slots && self.used > 0 => "when all end".into(),
            Some(ms) if !self.slots => until(ms),
            _ => "now".into(),
        };
        let style = if self.fits == Some(false) { BAD } else { PLAIN };
        [
            policy.into(),
            self.rule.as_str().into(),
            Cell::right(used(self.used, self.limit, self.slots)),
            Cell::right(self.left.map_or("?".into(), grouped)).style(style),
            Cell::from(fits).style(style),
            empty.into(),
            "".into(),
        ]
    }

    /// A picture of the window that ends with the current step. Empty for a fixed rule, which has one step, for a
    /// bucket and a calendar rule, which have none, and for slots, which have ids.
    fn picture(&self, now_ms: u64, columns: usize) -> String {
        if !self.is_sliding {
            return String::new();
        }
        let end = now_ms - now_ms % self.step_ms + self.step_ms;
        let newest = self.steps.last().map_or(end, |step| step.end_ms.max(end));
        let span = newest.saturating_sub(self.window_ms + self.step_ms)..newest;
        let steps = self.steps.iter();
        let steps = steps.map(|step| (step.end_ms - self.step_ms..step.end_ms, step.units));
        sparkline(steps, &span, columns)
    }
}

/// The rules of a stored value that none of the policies has, and that the last charge added units to.
pub(crate) fn other_rules(value: &StoredValue, policies: &[Policy], now_ms: u64) -> Vec<String> {
    let sections = value.sections().iter().filter(|section| {
        let mut rules = policies.iter().flat_map(Policy::rules);
        !rules.any(|rule| section.is_of(rule)) && section.used(now_ms) > 0
    });
    let charged = sections.filter(|section| is_charged(section, Some(value)));
    charged
        .map(|section| without_limit(&section.rule(0)))
        .collect()
}

/// Whether the last charge wrote this section. Each charge adds to all rules of a policy and writes the first section,
/// so compare with that one.
fn is_charged(section: &Section, value: Option<&StoredValue>) -> bool {
    let first = value
        .and_then(|value| value.sections().first())
        .map(newest_step);
    let step = newest_step(section);
    first.is_some_and(|first| step.start < first.end && first.start < step.end)
}

/// The time in which the newest units were charged.
fn newest_step(section: &Section) -> Range<u64> {
    let (rule, end_ms) = (section.rule(0), section.newest_end_ms());
    match rule.refill() {
        Some(_) => end_ms..end_ms + 1,
        None => end_ms.saturating_sub(millis(rule.step()))..end_ms,
    }
}
