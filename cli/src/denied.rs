//! The number of denials of an identity, for `top --denied`, `explain` and `inspect`.

use serde::Serialize;
use sluicegate::denials::DeniedIdentity;

use super::text::{grouped, printable};
use super::{Output, Result};

/// The denials of one identity as JSON; fields are only ever added.
#[derive(Clone, Serialize)]
pub(crate) struct DenialReport {
    /// Null if a block or a ban denied the requests.
    pub(crate) policy: Option<String>,
    pub(crate) last_minute: u64,
    pub(crate) last_hour: u64,
}

impl DenialReport {
    pub(crate) fn of(denied: &DeniedIdentity) -> Self {
        Self {
            policy: denied.policy().map(|name| printable(name.as_bytes())),
            last_minute: denied.last_minute(),
            last_hour: denied.last_hour(),
        }
    }

    /// `api: denied 212 in the last minute, 1 204 in the last hour`
    pub(crate) fn text(&self) -> String {
        let (minute, hour) = (grouped(self.last_minute), grouped(self.last_hour));
        let by = self.policy.as_deref().unwrap_or("blocked");
        format!("{by}: denied {minute} in the last minute, {hour} in the last hour")
    }
}

/// Writes the denials of an identity. `None` means that the tool has no right to read them.
pub(crate) fn write(denied: Option<&[DenialReport]>, output: &mut Output) -> Result<()> {
    let Some(denied) = denied else {
        let text = "how often it was denied cannot be read: the right `+zrange` is missing";
        return output.hint(text);
    };
    let mut denied = denied.iter();
    denied.try_for_each(|report| output.line(report.text()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_are_shown_as_counts() {
        let report = |policy: Option<&str>, last_minute, last_hour| DenialReport {
            policy: policy.map(str::to_owned),
            last_minute,
            last_hour,
        };
        assert_eq!(
            report(Some("api"), 212, 1_204).text(),
            "api: denied 212 in the last minute, 1\u{202f}204 in the last hour"
        );
        assert_eq!(
            report(None, 0, 90).text(),
            "blocked: denied 0 in the last minute, 90 in the last hour"
        );
    }
}
