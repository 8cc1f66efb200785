//! `sluicegate inspect`: everything that is stored for one identity.

use std::io::Write;

use clap::Args;
use comfy_table::{Cell, Color, Table};
use serde::Serialize;
use sluicegate::{
    Policy, Rule,
    store::redis::inspect::{Section, Step},
};

use super::{
    answer::Answer,
    block_report::{BlockReport, LevelReport},
    census,
    denied::{self, DenialReport},
    drift,
    error::Result,
    holders::Holder,
    identity::IdentityArgs,
    output::{BAD, BOLD, DIM, Output, WARN, align_right},
    period::Period,
    published::Source,
    reading::{Entry, ReadArgs, Reading},
    settings::Settings,
    sparkline::sparkline,
    text::{date_time, grouped, millis, span, used, without_limit},
};

const EXAMPLES: &str = "\
Examples:
  sluicegate inspect ip=203.0.113.7 --policies policies.toml
  sluicegate inspect user=alice --policy api
  sluicegate inspect header:x-api-key=- < key.txt
  sluicegate inspect user=alice --json | jq '.policies[].rules[].used'

Reads the keys of the policies that you name, or of the file, or else of those
that services publish. Without any of these, the tool scans all keys of the
server to find those of the identity, slowly enough that other clients do not
notice.

`one more` is the time when one more unit fits, `empty` the time when no units
count. The picture shows the window of the rule, with the newest units at the
right; the highest bar is full. A `?` is a limit that no policy has: the rule
belongs to a process with other rules, or the rules have changed.

Below the table you see who holds slots: the host and the id of each process, or
the label that it has set, and since when, by the clock of that process.

The last lines show how many requests of the identity the service has denied,
like `top --denied`.

Rights: GET of the keys `PREFIX:*`, and TIME; HGETALL for published policies and
the labels of processes, SCAN and DBSIZE without policies, and ZRANGE for slots
and past denials.
Nothing is written.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    identity: IdentityArgs,

    #[command(flatten)]
    read: ReadArgs,
}

/// The answer as JSON; fields are only ever added.
#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) identity: String,
    /// The identity as you wrote it.
    #[serde(skip)]
    pub(crate) title: String,
    /// Whether a file or the service supplies limits.
    #[serde(skip)]
    has_file: bool,
    #[serde(skip)]
    source: Source,
    /// The reason why the published policies could not be read; `None` if they were.
    #[serde(skip)]
    unpublished: Option<String>,
    /// The reason why nothing is stored; null if something is. `watch` does not look for it.
    why: Option<String>,
    /// The server's clock. All times are in ms since the Unix epoch.
    pub(crate) now_ms: u64,
    /// The block in force; null if there is none.
    pub(crate) blocked: Option<BlockReport>,
    /// The level of bans that grow; null if there is none.
    ban_level: Option<LevelReport>,
    /// The recent denials by policy; null if they were not read, as by `watch`.
    pub(crate) denied: Option<Vec<DenialReport>>,
    /// Denials that count towards a ban.
    pub(crate) strikes: Vec<StrikesReport>,
    pub(crate) policies: Vec<PolicyReport>,
    /// Policies with a stored value that the file does not have. `watch` does not look for them.
    other_policies: Vec<String>,
    /// The reason why the block may have no effect. `watch` does not look for it.
    warning: Option<String>,
}

#[derive(Serialize)]
pub(crate) struct PolicyReport {
    pub(crate) policy: String,
    /// The time when the key expires; null if nothing is stored.
    pub(crate) expires_ms: Option<u64>,
    /// The reason why the stored value cannot be read; null if it can.
    pub(crate) error: Option<String>,
    pub(crate) rules: Vec<RuleReport>,
}

#[derive(Serialize)]
pub(crate) struct StrikesReport {
    pub(crate) count: u64,
    /// The number of strikes that leads to a ban; null if no known policy has one.
    pub(crate) limit: Option<u64>,
    pub(crate) window_ms: u64,
}

/// A rule of the policy, or of another process's policy with that name.
#[derive(Serialize)]
pub(crate) struct RuleReport {
    /// The rule as text; without a limit if that is not known: `?/1m`.
    pub(crate) rule: String,
    pub(crate) limit: Option<u64>,
    pub(crate) window_ms: u64,
    pub(crate) step_ms: u64,
    pub(crate) fixed: bool,
    /// The units that come back in each window; null if the rule is no bucket.
    pub(crate) refill: Option<u64>,
    /// Whether the units are slots, each held by a request that runs.
    pub(crate) slots: bool,
    pub(crate) used: u64,
    /// Null if the limit is not known.
    pub(crate) left: Option<u64>,
    /// The time when one more unit fits; null if that is now or never, or if the limit is not known. For slots, the
    /// time when one expires that is neither returned nor renewed.
    pub(crate) fits_ms: Option<u64>,
    /// The time when no units count; null if that is now.
    pub(crate) free_ms: Option<u64>,
    /// The steps that count, oldest first.
    pub(crate) steps: Vec<StepReport>,
    /// The processes that hold slots, those that have held one for longest first.
    holders: Vec<Holder>,
    /// The current period; null if the rule is not of the calendar.
    period: Option<Period>,
}

#[derive(Serialize)]
pub(crate) struct StepReport {
    pub(crate) end_ms: u64,
    pub(crate) units: u64,
    pub(crate) release_ms: u64,
}

pub(crate) fn run(args: &InspectArgs, settings: &Settings, output: &mut Output) -> Result<Answer> {
    let key = args.identity.key(settings.ipv6_prefix())?;
    let reading = args.read.read(settings, &key)?;
    let mut report = Report::of(&reading)?;
    report.title = args.identity.title(&reading.identity);
    // With --policy you know that other policies are left out.
    if report.has_file && args.read.only.is_empty() {
        let known = report.policies.iter().map(|policy| policy.policy.as_str());
        report.other_policies = census::ask_other_policies(settings, &key, known);
    }
    if report.is_empty() {
        let asked = report.policies.iter().map(|it| it.policy.as_str());
        report.why = census::ask_why_nothing(settings, &key, asked);
    }
    output.report(&report, |report, output| {
        report.write(output)?;
        denied::write(report.denied.as_deref(), output)
    })?;
    Ok(Answer::Yes)
}

impl Report {
    pub(crate) fn of(reading: &Reading) -> Result<Self> {
        let policies = reading.entries.iter();
        Ok(Self {
            identity: reading.identity.clone(),
            title: reading.identity.clone(),
            has_file: reading.entries.iter().any(|it| !it.policies.is_empty()),
            source: reading.source,
            unpublished: reading.unpublished.clone(),
            why: None,
            now_ms: reading.now_ms,
            blocked: BlockReport::of(reading.block.clone(), reading.now_ms)?,
            ban_level: LevelReport::of(&reading.block, reading.now_ms),
            denied: reading.denied.clone(),
            strikes: strikes(reading),
            policies: policies
                .map(|entry| PolicyReport::of(entry, reading))
                .collect(),
            other_policies: Vec::new(),
            warning: reading.unenforced.clone(),
        })
    }

    /// Whether there is nothing to show.
    fn is_empty(&self) -> bool {
        self.blocked.is_none()
            && self.ban_level.is_none()
            && self.other_policies.is_empty()
            && self.policies.iter().all(PolicyReport::is_empty)
    }

    /// Writes the report as text.
    pub(crate) fn write(&self, output: &mut Output) -> Result<()> {
        let time = date_time(self.now_ms);
        writeln!(output, "{BOLD}{}{BOLD:#}  {DIM}{time}{DIM:#}", self.title)?;
        if let Some(block) = &self.blocked {
            writeln!(output, "{BAD}{}{BAD:#}", block.text(self.now_ms))?;
            output.hint(&block.origin().unwrap_or_default())?;
            if let Some(warning) = &self.warning {
                writeln!(output, "{WARN}{warning}{WARN:#}")?;
            }
        }
        if let Some(level) = &self.ban_level {
            output.hint(&level.text(self.now_ms))?;
        }
        for strikes in &self.strikes {
            writeln!(output, "{}", strikes.text())?;
        }
        if self.policies.is_empty() {
            writeln!(output, "Nothing is stored.")?;
            return output.hint(self.why.as_deref().unwrap_or_default());
        }
        // Policies without counts get one line together, so that the table stays short.
        let empty = self.policies.iter().filter(|policy| policy.is_empty());
        let empty: Vec<&str> = empty.map(|policy| policy.policy.as_str()).collect();
        if empty.len() < self.policies.len() {
            let table = self.table(output);
            output.write_table(&table)?;
        }
        let used = self.policies.iter().filter(|policy| !policy.is_empty());
        for rule in used.flat_map(|policy| &policy.rules) {
            if let Some(period) = &rule.period {
                output.hint(&period.text(&rule.rule, self.now_ms))?;
            }
        }
        for policy in &self.policies {
            for holder in policy.rules.iter().flat_map(|rule| &rule.holders) {
                output.hint(&holder.text(&policy.policy, self.now_ms))?;
            }
        }
        if !empty.is_empty() {
            output.hint(&format!("nothing is stored under {}", empty.join(", ")))?;
        }
        output.hint(self.why.as_deref().unwrap_or_default())?;
        drift::write_other_policies(&self.other_policies, self.source, output)?;
        for policy in &self.policies {
            if let Some(error) = &policy.error {
                writeln!(output, "{}: {error}", policy.policy)?;
            }
        }
        let mut rules = self.policies.iter().flat_map(|policy| &policy.rules);
        if rules.any(|rule| rule.limit.is_none()) {
            let lacks = self.source.lacks();
            output.hint(&match (self.has_file, &self.unpublished) {
                (true, _) => format!("?: the limit is not stored, and {lacks} this rule"),
                (false, None) => "?: the limit is not stored: --policies FILE tells it".to_owned(),
                (false, Some(why)) => format!(
                    "?: the limit is not stored, and the published policies could not be read ({why}): --policies FILE tells it"
                ),
            })?;
        }
        Ok(())
    }

    fn table(&self, output: &Output) -> Table {
        let header = ["policy", "rule", "used", "left", "one more", "empty"];
        let mut rows: Vec<[(String, Option<Color>); 6]> = Vec::new();
        let mut rules = Vec::new();
        for policy in self.policies.iter().filter(|policy| !policy.is_empty()) {
            for (index, rule) in policy.rules.iter().enumerate() {
                let name = if index == 0 {
                    policy.policy.as_str()
                } else {
                    ""
                };
                rows.push(rule.row(name, self.now_ms));
                rules.push(rule);
            }
        }
        // The width of the other columns. Each has a blank on both sides, and perhaps a line beside it.
        let widths = (0..header.len()).map(|column| {
            let cells = rows.iter().map(|row| row[column].0.chars().count());
            cells.chain([header[column].len()]).max().unwrap_or(0) + 3
        });
        let others = u16::try_from(widths.sum::<usize>() + 4).unwrap_or(u16::MAX);
        let columns = output.width().saturating_sub(others).clamp(6, 30);
        let mut table = output.table(header.into_iter().chain(["window"]));
        for (row, rule) in rows.into_iter().zip(rules) {
            let cells = row.into_iter().map(|(text, color)| match color {
                Some(color) => Cell::new(text).fg(color),
                None => Cell::new(text),
            });
            table.add_row(cells.chain([Cell::new(rule.picture(self.now_ms, columns))]));
        }
        align_right(&mut table, 2..=3);
        table
    }
}

/// The strikes in each window with strikes. The limit is that of the strictest ban with this window.
fn strikes(reading: &Reading) -> Vec<StrikesReport> {
    let Ok(Some(stored)) = &reading.strikes else {
        return Vec::new();
    };
    let policies = reading.entries.iter().flat_map(|entry| &entry.policies);
    let bans: Vec<Rule> = policies
        .filter_map(|policy| Some(policy.ban_config()?.strikes()))
        .collect();
    let sections = stored.sections().iter().map(|section| {
        let limits = bans.iter().filter(|rule| section.is_of(rule));
        StrikesReport {
            count: section.used(reading.now_ms),
            limit: limits.map(Rule::limit).min(),
            window_ms: millis(section.rule(0).window()),
        }
    });
    sections.filter(|strikes| strikes.count > 0).collect()
}

impl StrikesReport {
    /// `3 of 5 strikes in 10m`
    fn text(&self) -> String {
        let window = span(self.window_ms);
        match self.limit {
            Some(limit) => format!("{} of {limit} strikes in {window}", self.count),
            None => format!("{} strikes in {window}", self.count),
        }
    }
}

impl PolicyReport {
    /// Whether nothing is stored. An unreadable value counts as stored.
    pub(crate) const fn is_empty(&self) -> bool {
        self.expires_ms.is_none() && self.error.is_none()
    }

    fn of(entry: &Entry, reading: &Reading) -> Self {
        let now_ms = reading.now_ms;
        let stored = entry.stored.as_ref().ok().and_then(Option::as_ref);
        let mut known: Vec<Rule> = Vec::new();
        for rule in entry.policies.iter().flat_map(Policy::rules) {
            if !known.contains(rule) {
                known.push(*rule);
            }
        }
        let mut rules: Vec<RuleReport> = Vec::new();
        if entry.stored.is_ok() {
            rules.extend(known.iter().map(|rule| {
                let section = stored.and_then(|value| value.section(rule));
                RuleReport::of(rule, Some(rule.limit()), section, now_ms)
            }));
        }
        let sections = stored.into_iter().flat_map(|value| value.sections());
        // The service may count rules that the file does not have.
        let others = sections.filter(|section| !known.iter().any(|rule| section.is_of(rule)));
        rules.extend(
            others.map(|section| RuleReport::of(&section.rule(0), None, Some(section), now_ms)),
        );
        for rule in rules.iter_mut().filter(|rule| rule.slots) {
            rule.holders = Holder::all(stored, now_ms, &reading.processes);
        }
        Self {
            policy: entry.name.clone(),
            expires_ms: stored.map(|value| value.expires_ms()),
            error: entry.stored.as_ref().err().map(ToString::to_string),
            rules,
        }
    }
}

impl RuleReport {
    fn of(rule: &Rule, limit: Option<u64>, section: Option<&Section>, now_ms: u64) -> Self {
        let steps = section.map_or(Vec::new(), |section| section.steps(now_ms));
        let used = section.map_or(0, |section| section.used(now_ms));
        let fits = |limit| section.map(|section| section.fits_at_ms(now_ms, limit, 1));
        let reset_ms = section.map_or(0, |section| section.reset_at_ms(now_ms));
        Self {
            rule: limit.map_or_else(|| without_limit(rule), |_| rule.to_string()),
            limit,
            window_ms: millis(rule.window()),
            step_ms: millis(rule.step()),
            fixed: rule.is_fixed(),
            refill: rule.refill(),
            slots: rule.is_concurrency(),
            used,
            left: limit.map(|limit| limit.saturating_sub(used)),
            fits_ms: limit.and_then(fits).filter(|ms| *ms > 0),
            free_ms: Some(reset_ms).filter(|ms| *ms > 0),
            steps: steps.iter().map(StepReport::of).collect(),
            holders: Vec::new(),
            period: Period::of(rule, now_ms),
        }
    }

    /// Whether one more unit does not fit.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.left == Some(0)
    }

    /// All columns except the picture. A slot comes back when its request ends: its times say only when it would
    /// expire, if its process were dead.
    fn row(&self, policy: &str, now_ms: u64) -> [(String, Option<Color>); 6] {
        let until = |ms: u64| format!("in {}", span(ms.saturating_sub(now_ms)));
        let fits = match (self.left, self.fits_ms) {
            (None, _) => "?".into(),
            (Some(0), _) if self.slots && self.limit != Some(0) => "when one ends".into(),
            (_, Some(ms)) if !self.slots => until(ms),
            (Some(0), _) => "never".into(),
            (Some(_), _) => "now".into(),
        };
        let empty = match self.free_ms {
            _ if self.slots && self.used > 0 => "when all end".into(),
            Some(ms) if !self.slots => until(ms),
            _ => "now".into(),
        };
        let color = self.is_exceeded().then_some(Color::Red);
        [
            (policy.into(), None),
            (self.rule.clone(), None),
            (used(self.used, self.limit, self.slots), None),
            (self.left.map_or("?".into(), grouped), color),
            (fits, color),
            (empty, None),
        ]
    }

    /// A picture of the window that ends with the current step. Empty for a fixed rule, which has one step, for a
    /// bucket and a calendar rule, which have none, and for slots, which have ids.
    fn picture(&self, now_ms: u64, columns: u16) -> String {
        if self.fixed || self.refill.is_some() || self.period.is_some() || self.slots {
            return String::new();
        }
        let end = now_ms - now_ms % self.step_ms + self.step_ms;
        let newest = self.steps.last().map_or(end, |step| step.end_ms.max(end));
        let span = newest.saturating_sub(self.window_ms + self.step_ms)..newest;
        let steps = self.steps.iter();
        sparkline(
            steps.map(|step| (step.end_ms - self.step_ms..step.end_ms, step.units)),
            &span,
            columns,
        )
    }
}

impl StepReport {
    pub(crate) fn of(step: &Step) -> Self {
        Self {
            end_ms: step.end_ms,
            units: step.units,
            release_ms: step.release_ms,
        }
    }
}
