//! `sluicegate explain`: whether a request would pass now, and if not, why, and until when.

use std::io::Write;

use clap::Args;
use comfy_table::{Cell, Color};
use serde::Serialize;
use sluicegate::{
    Charge, Decision, Key, Policy, Rule,
    decision::RuleUsage,
    store::{
        Check,
        redis::inspect::{StoredValue, decide},
    },
};

use super::{
    answer::Answer,
    block_report::{BlockReport, LevelReport},
    census,
    denied::{self, DenialReport},
    drift::{self, OtherRule},
    error::{Error, Result},
    holders::Holder,
    identity::IdentityArgs,
    inspect::StepReport,
    output::{BAD, BOLD, DIM, GOOD, Output, WARN, align_right},
    period::Period,
    published::{Differing, Source},
    reading::{Entry, ReadArgs, Reading},
    settings::Settings,
    text::{date_time, grouped, millis, span, time, used},
};

const EXAMPLES: &str = "\
Examples:
  sluicegate explain user=alice --policies policies.toml
  sluicegate explain ip=203.0.113.7 --policies policies.toml --cost 5

Shows the decision that the service would get if it charged the identity under
all policies, or under those that you name with --policy. The limits are those
that the service publishes, or those of the file. Nothing is charged.

Name the policies of a route with --policy. If a request is charged for several
identities, such as an address and a user, ask for each of them.

Exit codes: 0 the request would pass, 1 it would be denied, or the answer is not
known. It is not known if the service publishes or counts other rules than the
file has, if its processes differ (as for 15 minutes after a deploy), if plans
that share a policy's name disagree, or if no published policy enforces the
block.

Also shows how many requests of the identity the service has denied in the last
minute and hour under these policies, like `top --denied`.

Rights: GET of the keys `PREFIX:*`, and TIME; HGETALL for published policies,
and ZRANGE for past denials. Nothing is written.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    identity: IdentityArgs,

    #[command(flatten)]
    read: ReadArgs,

    /// The cost of the request; a request of any cost takes one slot
    #[arg(long, value_name = "UNITS", default_value_t = 1)]
    cost: u64,
}

/// The answer as JSON; fields are only ever added.
#[derive(Serialize)]
struct Report {
    identity: String,
    /// The identity as you wrote it.
    #[serde(skip)]
    title: String,
    /// The source of the limits.
    #[serde(skip)]
    source: Source,
    /// The reason why nothing counts; null if something does, or if no reason was found.
    why: Option<String>,
    /// The server's clock. All times are in ms since the Unix epoch.
    now_ms: u64,
    cost: u64,
    /// False if the answer is not known: the service publishes or counts other rules, or no published policy enforces
    /// the block.
    passes: bool,
    is_known: bool,
    /// The block of the identity; null if there is none.
    blocked: Option<BlockReport>,
    /// The level of bans that grow; null if there is none.
    ban_level: Option<LevelReport>,
    /// The time when the same request passes, if no other comes first; null if that is now or never, or when a slot is
    /// returned.
    passes_ms: Option<u64>,
    /// The rule that denies for longest; null if the request passes. A rule without a free slot comes last: a request
    /// may end at any time.
    denied_by: Option<DeniedBy>,
    /// The rules without a free slot.
    no_slot: Vec<DeniedBy>,
    /// The recent denials by policy; null if the tool may not read them.
    denied: Option<Vec<DenialReport>>,
    policies: Vec<PolicyReport>,
    /// Without --policy: the policies with a stored value that the file does not have.
    other_policies: Vec<String>,
    /// The policies that services publish with rules that differ from the file, or in several versions.
    published_differs: Vec<Differing>,
    /// The policies that plans share, and under which some of the plans deny and others admit.
    undecided: Vec<String>,
    /// The reason why the block may have no effect.
    warning: Option<String>,
}

#[derive(Clone, Serialize)]
struct DeniedBy {
    policy: String,
    rule: String,
}

#[derive(Serialize)]
struct PolicyReport {
    policy: String,
    /// A shadow denies no request.
    shadow: bool,
    passes: bool,
    rules: Vec<RuleReport>,
    /// Rules that are stored, but not in the file.
    other_rules: Vec<OtherRule>,
}

#[derive(Serialize)]
struct RuleReport {
    rule: String,
    limit: u64,
    /// Whether the units are slots, each held by a request that runs.
    slots: bool,
    used: u64,
    left: u64,
    fits: bool,
    /// The time when the cost fits; null if that is now or never. For slots, the time when one expires that is neither
    /// returned nor renewed.
    fits_ms: Option<u64>,
    /// The steps to be released before the cost fits, oldest first.
    released_first: Vec<StepReport>,
    /// The processes that hold slots, those that have held one for longest first.
    holders: Vec<Holder>,
    /// The current period; null if the rule is not of the calendar.
    period: Option<Period>,
}

pub(crate) fn run(args: &ExplainArgs, settings: &Settings, output: &mut Output) -> Result<Answer> {
    let key = args.identity.key(settings.ipv6_prefix())?;
    let reading = args.read.read(settings, &key)?;
    if !reading.has_limits {
        const HOW: &str =
            "give --policies FILE, or write `policies = \"FILE\"` into sluicegate.toml";
        return Err(match &reading.unpublished {
            Some(why) => Error::server(format_args!(
                "the limits are needed, and the published policies could not be read: {why}; or {HOW}"
            )),
            None => Error::usage(format_args!(
                "the limits are needed, and the service publishes none: {HOW}"
            )),
        });
    }
    let mut report = report(&reading, &key, args.cost)?;
    report.title = args.identity.title(&reading.identity);
    // With --policy you know that other policies are left out.
    if args.read.only.is_empty() {
        let known = report.policies.iter().map(|policy| policy.policy.as_str());
        report.other_policies = census::ask_other_policies(settings, &key, known);
    }
    if report.is_empty() {
        let asked = report.policies.iter().map(|it| it.policy.as_str());
        report.why = census::ask_why_nothing(settings, &key, asked);
    }
    output.report(&report, write)?;
    Ok(report.passes.into())
}

fn report(reading: &Reading, key: &Key, cost: u64) -> Result<Report> {
    let mut report = Report {
        identity: reading.identity.clone(),
        title: reading.identity.clone(),
        source: reading.source,
        why: None,
        now_ms: reading.now_ms,
        cost,
        passes: true,
        is_known: true,
        blocked: None,
        ban_level: LevelReport::of(&reading.block, reading.now_ms),
        passes_ms: None,
        denied_by: None,
        no_slot: Vec::new(),
        denied: reading.denied.clone(),
        policies: Vec::new(),
        other_policies: Vec::new(),
        published_differs: reading.differing.clone(),
        undecided: Vec::new(),
        warning: reading.unenforced.clone(),
    };
    let mut longest = 0;
    let mut is_denied = false;
    if let Some(block) = BlockReport::of(reading.block.clone(), reading.now_ms)? {
        if reading.unenforced.is_some() {
            // A layer that looks up keys without a policy may enforce the block, but nothing publishes that.
            report.is_known = false;
        } else {
            // A block without an end lasts longest.
            longest = block.until_ms.unwrap_or(u64::MAX);
        }
        report.passes = false;
        report.passes_ms = block.until_ms;
        report.blocked = Some(block);
    }
    for entry in &reading.entries {
        if entry.policies.is_empty() {
            continue;
        }
        let value = value(entry)?;
        let mut denials = Vec::new();
        for policy in &entry.policies {
            let decision = decision(policy, key, cost, reading.now_ms, value)?;
            denials.push(denial(policy, &decision, reading.now_ms));
            let plans = &entry.policies;
            let mut policy = PolicyReport::of(policy, plans, &decision, reading.now_ms, value);
            for rule in policy.rules.iter_mut().filter(|rule| rule.slots) {
                rule.holders = Holder::all(value, reading.now_ms, &reading.processes);
            }
            report.is_known &= policy.shadow || !policy.has_drifted();
            report.policies.push(policy);
        }
        let differs = reading
            .differing
            .iter()
            .any(|differing| differing.may_deny && differing.policy == entry.name);
        // Any of the plans may hold, so all of them have to deny, until the first of them admits; the greatest, if equal.
        if (1..denials.len()).contains(&denials.iter().flatten().count()) {
            report.undecided.push(entry.name.clone());
        }
        report.is_known &= !differs && report.undecided.is_empty();
        let denials: Option<Vec<_>> = denials.into_iter().collect();
        let first = denials.and_then(|all| all.into_iter().rev().min_by_key(|(until, ..)| *until));
        // If the service may have other limits, these prove neither a denial nor a pass.
        if let Some((until, is_of_slots, by)) = first.filter(|_| !differs) {
            is_denied = true;
            report.passes = false;
            if is_of_slots && until < u64::MAX {
                report.no_slot.push(by);
            } else if until > longest {
                longest = until;
                report.passes_ms = Some(until).filter(|until| *until < u64::MAX);
                report.denied_by = Some(by);
            }
        }
    }
    if report.denied_by.is_none() && report.blocked.is_none() {
        report.denied_by = report.no_slot.first().cloned();
    }
    // A limit denies even if other rules are unknown. A block denies only if it is enforced.
    report.is_known |= is_denied;
    report.passes &= report.is_known;
    Ok(report)
}

/// The script cannot decide with a value that it cannot read.
fn value(entry: &Entry) -> Result<Option<&StoredValue>> {
    let value = entry.stored.as_ref().map_err(|error| {
        let name = &entry.name;
        Error::server(format_args!(
            "policy `{name}`: {error}. No check of it can be decided: the service's failure policy applies. \
             `sluicegate reset` deletes the value"
        ))
    })?;
    Ok(value.as_ref())
}

fn decision(
    policy: &Policy,
    key: &Key,
    cost: u64,
    now_ms: u64,
    value: Option<&StoredValue>,
) -> Result<Decision> {
    // Decide as if the policy were not a shadow.
    let counting = Policy::new(policy.name(), policy.rules().iter().copied());
    let counting = counting.map_err(Error::usage)?;
    let is_of_slots = policy.rules().iter().any(Rule::is_concurrency);
    let cost = if is_of_slots { cost.min(1) } else { cost };
    let check = Check::new([Charge::new(&counting, key.clone(), cost)])?;
    Ok(decide(&check, now_ms, &[value])?)
}

/// The time until which a policy denies, whether it is for want of a slot, and the rule; `None` if it does not deny.
fn denial(policy: &Policy, decision: &Decision, now_ms: u64) -> Option<(u64, bool, DeniedBy)> {
    let Decision::Denied(denial) = decision else {
        return None;
    };
    let rule = denial.rule().rule();
    let by = DeniedBy {
        policy: policy.name().to_owned(),
        rule: rule.to_string(),
    };
    // A rule that never admits lasts longest.
    let until = after(now_ms, denial.rule()).unwrap_or(u64::MAX);
    (!policy.is_shadow()).then_some((until, rule.is_concurrency(), by))
}

/// The time when a rule that denies admits again; `None` for never, or if the rule does not deny.
fn after(now_ms: u64, rule: &RuleUsage) -> Option<u64> {
    Some(now_ms.saturating_add(millis(rule.retry_after()?)))
}

impl PolicyReport {
    /// Whether there is nothing to say about this policy.
    fn is_empty(&self) -> bool {
        let is_used = self.rules.iter().any(|rule| rule.used > 0);
        self.passes && !is_used && self.other_rules.is_empty()
    }

    /// Whether the service counts other rules than these.
    fn has_drifted(&self) -> bool {
        self.other_rules.iter().any(|rule| rule.is_charged)
    }

    fn of(
        policy: &Policy,
        plans: &[Policy],
        decision: &Decision,
        now_ms: u64,
        value: Option<&StoredValue>,
    ) -> Self {
        let rules = decision.usage().rules();
        Self {
            policy: policy.name().to_owned(),
            shadow: policy.is_shadow(),
            passes: decision.is_allowed(),
            rules: rules
                .map(|rule| RuleReport::of(rule, now_ms, value))
                .collect(),
            other_rules: value.map_or(Vec::new(), |value| OtherRule::of(value, plans, now_ms)),
        }
    }
}

impl RuleReport {
    fn of(usage: &RuleUsage, now_ms: u64, value: Option<&StoredValue>) -> Self {
        let rule = usage.rule();
        let section = value.and_then(|value| value.section(&rule));
        let used = section.map_or(0, |section| section.used(now_ms));
        let fits_ms = after(now_ms, usage);
        let steps = section
            .into_iter()
            .flat_map(|section| section.steps(now_ms));
        let before = steps.filter(|step| fits_ms.is_some_and(|fits_ms| step.release_ms <= fits_ms));
        Self {
            rule: rule.to_string(),
            limit: rule.limit(),
            slots: rule.is_concurrency(),
            used,
            left: rule.limit().saturating_sub(used),
            fits: !usage.is_exceeded(),
            fits_ms,
            released_first: before.map(|step| StepReport::of(&step)).collect(),
            holders: Vec::new(),
            period: Period::of(&rule, now_ms),
        }
    }

    fn row(&self, policy: String, now_ms: u64) -> Vec<Cell> {
        let fits = match (self.fits, self.fits_ms) {
            (true, _) => Cell::new("now"),
            (false, None) => Cell::new("never").fg(Color::Red),
            (false, Some(_)) if self.slots => Cell::new("when one ends").fg(Color::Red),
            (false, Some(ms)) => Cell::new(time(ms, now_ms)).fg(Color::Red),
        };
        vec![
            Cell::new(policy),
            Cell::new(&self.rule),
            Cell::new(used(self.used, Some(self.limit), self.slots)),
            Cell::new(grouped(self.left)),
            fits,
            Cell::new(self.released_first()),
        ]
    }

    /// The units and steps to be released, in words. Those of a calendar rule are released all together.
    fn released_first(&self) -> String {
        if self.period.is_some() && self.fits_ms.is_some() {
            return format!("{} in 1 period", grouped(self.used));
        }
        let units: u64 = self.released_first.iter().map(|step| step.units).sum();
        match &self.released_first[..] {
            _ if self.slots => String::new(),
            [] => String::new(),
            [_] => format!("{} in 1 step", grouped(units)),
            steps => format!("{} in {} steps", grouped(units), steps.len()),
        }
    }
}

impl Report {
    /// The reason why the limits prove nothing; `None` if they do.
    fn why_unknown(&self) -> Option<String> {
        let differing = self
            .published_differs
            .iter()
            .filter(|differing| differing.may_deny);
        let differing: Vec<String> = differing.map(Differing::text).collect();
        if !differing.is_empty() {
            return Some(differing.join("; "));
        }
        if let Some(policy) = self.undecided.first() {
            return Some(format!("that depends on its plan under {policy}"));
        }
        let is_drifted = |policy: &PolicyReport| !policy.shadow && policy.has_drifted();
        let why = match self.source {
            Source::File => "the file is not that of the service",
            Source::Service => "the service also counts rules that it does not publish",
        };
        let mut policies = self.policies.iter();
        policies.any(is_drifted).then(|| why.to_owned())
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

    /// Whether there is nothing to show.
    fn is_empty(&self) -> bool {
        self.blocked.is_none()
            && self.ban_level.is_none()
            && self.other_policies.is_empty()
            && self.policies.iter().all(PolicyReport::is_empty)
    }
}

fn write(report: &Report, output: &mut Output) -> Result<()> {
    let (at, cost) = (date_time(report.now_ms), grouped(report.cost));
    writeln!(
        output,
        "{BOLD}{}{BOLD:#}  cost {cost}  {DIM}{at}{DIM:#}",
        report.title
    )?;
    let mut table = output.table(["policy", "rule", "used", "left", "fits", "released first"]);
    // Policies without counts get one line together, so that the table stays short.
    let (empty, used): (Vec<_>, Vec<_>) =
        report.policies.iter().partition(|policy| policy.is_empty());
    for policy in &used {
        for (index, rule) in policy.rules.iter().enumerate() {
            let name = match (index, policy.shadow) {
                (0, true) => format!("{}*", policy.policy),
                (0, false) => policy.policy.clone(),
                _ => String::new(),
            };
            table.add_row(rule.row(name, report.now_ms));
        }
    }
    align_right(&mut table, 2..=3);
    if !used.is_empty() {
        output.write_table(&table)?;
    }
    for rule in used.iter().flat_map(|policy| &policy.rules) {
        if let Some(period) = &rule.period {
            output.hint(&period.text(&rule.rule, report.now_ms))?;
        }
    }
    for policy in &used {
        for holder in policy.rules.iter().flat_map(|rule| &rule.holders) {
            output.hint(&holder.text(&policy.policy, report.now_ms))?;
        }
    }
    if used.iter().any(|policy| policy.shadow) {
        output.hint("*: a shadow, which denies no request")?;
    }
    if !empty.is_empty() {
        let mut empty: Vec<&str> = empty.iter().map(|policy| policy.policy.as_str()).collect();
        empty.dedup();
        let empty = empty.join(", ");
        output.hint(&format!("no usage under {empty}: the request passes there"))?;
    }
    output.hint(report.why.as_deref().unwrap_or_default())?;
    write_drift(report, output)?;
    drift::write_other_policies(&report.other_policies, report.source, output)?;
    denied::write(report.denied.as_deref(), output)?;
    if let Some(level) = &report.ban_level {
        output.hint(&level.text(report.now_ms))?;
    }
    write_verdict(report, output)
}

fn write_drift(report: &Report, output: &mut Output) -> Result<()> {
    for policy in &report.policies {
        for other in &policy.other_rules {
            let text = other.text(&policy.policy);
            if other.is_charged {
                let lacks = report.source.lacks();
                let text = format!("the service counts a rule that {lacks}: {text}");
                writeln!(output, "{WARN}{text}{WARN:#}")?;
            } else {
                output.hint(&format!("left of former rules: {text}"))?;
            }
        }
    }
    Ok(())
}

fn write_verdict(report: &Report, output: &mut Output) -> Result<()> {
    let now_ms = report.now_ms;
    if let Some(block) = &report.blocked {
        let text = block.text(now_ms);
        writeln!(
            output,
            "{BAD}It is denied, where blocks are enforced:{BAD:#}\n{text}."
        )?;
        output.hint(&block.origin().unwrap_or_default())?;
        if let Some(warning) = &report.warning {
            writeln!(output, "{WARN}{warning}{WARN:#}")?;
        }
    }
    match (&report.denied_by, report.passes_ms) {
        (None, _) if !report.is_known => {
            let elsewhere = match report.blocked {
                Some(_) => " elsewhere",
                None => "",
            };
            if let Some(why) = report.why_unknown() {
                writeln!(
                    output,
                    "{BAD}It is not known whether it passes{elsewhere}:{BAD:#} {why}."
                )?;
            }
        }
        // Said below.
        (Some(_), None) if report.waits_for_slot() => {}
        // The block above is the verdict.
        (None, _) if report.blocked.is_some() => {}
        (None, _) => writeln!(output, "{GOOD}It passes.{GOOD:#}")?,
        (Some(by), None) => writeln!(
            output,
            "{BAD}It is denied for ever:{BAD:#} it costs more than the rule {} of {} admits.",
            by.rule, by.policy
        )?,
        (Some(by), Some(until)) => writeln!(
            output,
            "{BAD}It is denied until {}{BAD:#} (in {}), if nothing else is charged first:\nby the rule {} of {}.",
            time(until, now_ms),
            span(until.saturating_sub(now_ms)),
            by.rule,
            by.policy,
        )?,
    }
    write_slots(report, output)
}

/// Without a time: a slot is free when any of the requests ends.
fn write_slots(report: &Report, output: &mut Output) -> Result<()> {
    for by in &report.no_slot {
        let lead = match report.waits_for_slot() {
            true => "It is denied until a request ends:",
            false => "Besides, until a request ends:",
        };
        writeln!(
            output,
            "{BAD}{lead}{BAD:#} all slots are in use,\nby the rule {} of {}.",
            by.rule, by.policy
        )?;
    }
    Ok(())
}
