//! The report as text.

use std::ops::Range;

use super::policy::{PolicyReport, RuleReport};
use super::verdict::DeniedBy;
use super::{BlockReport, Differing, Report, Strikes};
use crate::published::write_others;
use crate::text::{date_time, grouped, span, time, used};
use crate::{BAD, BOLD, Cell, DIM, GOOD, Output, PLAIN, Result, Table, denied};

impl Report<'_> {
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
        self.write_identity(output)?;
        if self.policies.is_empty() {
            output.line("Nothing is stored.")?;
        }
        // Policies without counts get one line together, so that the table stays short.
        let (empty, used): (Vec<_>, Vec<_>) = self.policies.iter().partition(|it| it.is_empty());
        self.write_used(&used, output)?;
        if !empty.is_empty() {
            let empty: Vec<&str> = empty.iter().map(|policy| policy.policy.as_str()).collect();
            output.hint(&format!("no usage under {}", empty.join(", ")))?;
        }
        output.hint(self.why.as_deref().unwrap_or_default())?;
        let has_limits = self.limits.policies.is_some();
        if has_limits {
            self.write_other_rules(&used, output)?;
        }
        write_others(&self.other_policies, self.limits.lacks, output)?;
        for policy in &self.policies {
            if let Some(error) = &policy.error {
                output.line(format!("{}: {error}", policy.policy))?;
            }
        }
        if has_limits || rules(&used).next().is_none() {
            return Ok(());
        }
        let why = match self.limits.unpublished {
            Some(_) => format!(", and {}", self.limits.why_unlimited()),
            None => String::new(),
        };
        output.hint(&format!(
            "?: the limit is not stored{why}: --policies FILE has it"
        ))
    }

    /// Writes the identity and the block.
    fn write_identity(&self, output: &mut Output) -> Result<()> {
        let (title, now_ms) = (&self.title, self.now_ms);
        let cost = match self.cost {
            1 => String::new(),
            cost => format!("  cost {}", grouped(cost)),
        };
        let now = date_time(now_ms);
        output.line(format!("{BOLD}{title}{BOLD:#}{cost}  {DIM}{now}{DIM:#}"))?;
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
        let mut strikes = self.strikes.iter();
        strikes.try_for_each(|strikes| output.line(strikes.text()))
    }

    /// Writes the policies with counts.
    fn write_used(&self, used: &[&PolicyReport], output: &mut Output) -> Result<()> {
        self.write_table(used, output)?;
        for (policy, rule) in rules(used) {
            let period = rule.period.as_ref();
            output.hint(&period.map_or(String::new(), |it| it.text(&rule.rule, self.now_ms)))?;
            for holder in &rule.holders {
                output.hint(&holder.text(policy, self.now_ms))?;
            }
        }
        match used.iter().any(|policy| policy.shadow) {
            true => output.hint("*: a shadow, which denies no request"),
            false => Ok(()),
        }
    }

    /// Names the rules with counts that the limits do not have.
    fn write_other_rules(&self, used: &[&PolicyReport], output: &mut Output) -> Result<()> {
        for (policy, rule) in rules(used).filter(|(_, rule)| rule.is_other()) {
            let (name, units, lacks) = (&rule.rule, grouped(rule.used), self.limits.lacks);
            let other = format!("{name} under {policy}, with {units} used");
            match rule.charged {
                true => output.warn(format!("the service counts a rule that {lacks}: {other}"))?,
                false => output.hint(&format!("left of former rules: {other}"))?,
            }
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
        let verdict = &self.verdict;
        if is_blocked {
            output.styled(BAD, "It is denied, where blocks are enforced.")?;
        }
        match (&verdict.denied_by, verdict.passes_ms) {
            (None, _) if self.limits.policies.is_none() && self.limits.unpublished.is_none() => {}
            (None, _) if !verdict.is_known => {
                let elsewhere = if is_blocked { " elsewhere" } else { "" };
                if let Some(why) = self.why_unknown() {
                    let lead = format!("{BAD}It is not known whether it passes{elsewhere}:{BAD:#}");
                    output.line(format!("{lead} {why}."))?;
                }
            }
            // Said below.
            (Some(_), None) if verdict.waits_for_slot() => {}
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
        for DeniedBy { policy, rule } in &verdict.no_slot {
            let lead = match verdict.waits_for_slot() {
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
        if self.limits.policies.is_none() {
            return Some(self.limits.why_unlimited());
        }
        if self.is_doubted {
            return Some("nothing is stored under this name".to_owned());
        }
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
            Some(_) => format!("the service counts rules that {}", self.limits.lacks),
            None => format!("nothing is known under {}", policy.policy),
        })
    }
}

/// The rules of some policies, each with the name of the policy.
fn rules<'a>(policies: &'a [&PolicyReport]) -> impl Iterator<Item = (&'a String, &'a RuleReport)> {
    let each = policies.iter();
    each.flat_map(|it| it.rules.iter().map(|rule| (&it.policy, rule)))
}

impl PolicyReport {
    fn line(&self) -> String {
        let rules = self.rules.iter().map(|rule| {
            let full = if rule.left == Some(0) { " full" } else { "" };
            let used = used(rule.used, rule.limit, rule.slots);
            format!("{} {used}{full}", rule.rule)
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

impl Strikes {
    /// `3 of 5 strikes in 10m`
    fn text(&self) -> String {
        let limit = self.limit.map(|limit| format!(" of {limit}"));
        let limit = limit.unwrap_or_default();
        format!("{}{limit} strikes in {}", self.count, span(self.window_ms))
    }
}

/// From few units to many. No units are a dot.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws the steps of a span. Each step has a range of times and a number of units. The highest bar is full.
///
/// The middle of a step decides its column. `columns` is at least 1.
fn sparkline(
    steps: impl IntoIterator<Item = (Range<u64>, u64)>,
    span: &Range<u64>,
    columns: usize,
) -> String {
    let mut sums = vec![0_u64; columns];
    let length = u128::from((span.end - span.start).max(1));
    for (step, units) in steps {
        let middle = u64::midpoint(step.start, step.end);
        let behind = u128::from(middle.saturating_sub(span.start));
        let column = behind * columns as u128 / length;
        let column = usize::try_from(column).unwrap_or(usize::MAX);
        // A step outside of the span goes into the first or the last column.
        let column = column.min(sums.len() - 1);
        sums[column] = sums[column].saturating_add(units);
    }
    let most = sums.iter().copied().max().unwrap_or(0);
    let bars = sums.iter().map(|&sum| match sum {
        0 => '·',
        sum => {
            let bar = u128::from(sum) * 8 / u128::from(most);
            BARS[usize::try_from(bar.saturating_sub(1)).unwrap_or(7)]
        }
    });
    bars.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_high_as_their_share_of_the_highest() {
        let steps = [(0..10, 1), (10..20, 8), (30..40, 4), (90..100, 8)];
        assert_eq!(sparkline(steps, &(0..100), 10), "▁█·▄·····█");
        assert_eq!(sparkline([], &(0..100), 5), "·····");
        assert_eq!(sparkline([(0..100, u64::MAX)], &(0..100), 3), "·█·");
    }

    #[test]
    fn what_lies_outside_stands_at_an_end() {
        assert_eq!(sparkline([(0..2, 1), (300..302, 1)], &(100..200), 3), "█·█");
    }
}
