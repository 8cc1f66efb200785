//! The number of denials of an identity, for `top --denied`, `explain` and `inspect`.

use serde::Serialize;
use sluicegate::denials::{DeniedIdentity, RequestCounts};

use super::text::{grouped, printable};
use super::{Output, Result};

/// The denials of one identity as JSON; fields are only ever added.
#[derive(Clone, Serialize)]
pub(crate) struct DenialReport {
    /// Null if a block or a ban denied the requests.
    pub(crate) policy: Option<String>,
    pub(crate) last_minute: CountsReport,
    pub(crate) last_hour: CountsReport,
}

#[derive(Clone, Serialize)]
pub(crate) struct CountsReport {
    pub(crate) denied: u64,
    /// Denied and admitted requests; null for a block, which admits none.
    pub(crate) requests: Option<u64>,
    /// The share of denied requests; null without requests.
    pub(crate) share: Option<f64>,
}

impl DenialReport {
    pub(crate) fn of(denied: &DeniedIdentity) -> Self {
        let policy = denied.policy().map(|name| printable(name.as_bytes()));
        let counts = |counted| CountsReport::of(counted, policy.is_some());
        Self {
            last_minute: counts(denied.last_minute()),
            last_hour: counts(denied.last_hour()),
            policy,
        }
    }

    /// `api: denied 48% of the last minute (212 of 441), 12% of the last hour (1 204 of 10 034)`
    pub(crate) fn text(&self) -> String {
        let minute = self.last_minute.text("the last minute");
        let hour = self.last_hour.text("the last hour");
        let by = self.policy.as_deref().unwrap_or("blocked");
        format!("{by}: denied {minute}, {hour}")
    }
}

impl CountsReport {
    #[expect(clippy::cast_precision_loss, reason = "for a share")]
    fn of(counts: RequestCounts, has_requests: bool) -> Self {
        let requests = has_requests.then_some(counts.total());
        let some = requests.filter(|total| *total > 0);
        Self {
            denied: counts.denied(),
            requests,
            share: some.map(|total| counts.denied() as f64 / total as f64),
        }
    }

    /// `212 of 441`, or `90` for a block.
    pub(crate) fn counts(&self) -> String {
        let denied = grouped(self.denied);
        match self.requests {
            Some(requests) => format!("{denied} of {}", grouped(requests)),
            None => denied,
        }
    }

    /// `48%`, or nothing for a block or without requests.
    pub(crate) fn percent(&self) -> String {
        let percent = self.share.map(|share| format!("{:.0}%", share * 100.0));
        percent.unwrap_or_default()
    }

    fn text(&self, period: &str) -> String {
        match self.share {
            Some(_) => format!("{} of {period} ({})", self.percent(), self.counts()),
            None => format!("{} in {period}", grouped(self.denied)),
        }
    }
}

/// Writes the denials of an identity. `None` means that the tool has no right to read them.
pub(crate) fn write(denied: Option<&[DenialReport]>, output: &mut Output) -> Result<()> {
    let Some(denied) = denied else {
        return output
            .hint("how often it was denied cannot be read: the right `+zrange` is missing");
    };
    for report in denied {
        output.line(report.text())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_are_told_as_counts_and_as_a_share() {
        let report = |policy: Option<&str>, minute, hour| DenialReport {
            policy: policy.map(str::to_owned),
            last_minute: CountsReport::of(minute, policy.is_some()),
            last_hour: CountsReport::of(hour, policy.is_some()),
        };
        let counts = RequestCounts::new;
        assert_eq!(
            report(Some("api"), counts(212, 229), counts(300, 700)).text(),
            "api: denied 48% of the last minute (212 of 441), 30% of the last hour (300 of 1\u{202f}000)"
        );
        assert_eq!(
            report(Some("api"), counts(0, 0), counts(1, 2)).text(),
            "api: denied 0 in the last minute, 33% of the last hour (1 of 3)"
        );
        assert_eq!(
            report(None, counts(9, 0), counts(90, 0)).text(),
            "blocked: denied 9 in the last minute, 90 in the last hour"
        );
    }
}
