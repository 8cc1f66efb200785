//! [`CalendarRule`]: a calendar rule that lacks the time zone.

use std::borrow::Cow;

use super::{Kind, Rule, invalid, millis};
use crate::domain::calendar::{Calendar, Period, Zone};
use crate::domain::error::ConfigError;

/// A limit for each period of the calendar, from which [`in_zone`](Self::in_zone) makes a [`Rule`].
///
/// See [`Rule::per_month`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it is a rule once you pass the time zone to `in_zone`"]
pub struct CalendarRule {
    limit: u64,
    period: Period,
    from_day: u8,
}

impl Rule {
    /// Begins a calendar rule: at most `limit` units in each calendar month of a time zone.
    ///
    /// Needs the feature `calendar`. See [`calendar`](Self::calendar) for other periods, and [quotas](crate::quotas)
    /// for billing cycles and failures.
    ///
    /// ```
    /// # #[cfg(feature = "calendar")] {
    /// use sluicegate::Rule;
    ///
    /// let quota = Rule::per_month(10_000).in_zone("Europe/Berlin")?;
    /// assert_eq!(quota.to_string(), "10000/month@Europe/Berlin");
    /// # }
    /// # Ok::<(), sluicegate::error::ConfigError>(())
    /// ```
    pub const fn per_month(limit: u64) -> CalendarRule {
        Self::calendar(limit, Period::Month)
    }

    /// Begins a calendar rule: at most `limit` units in each of these periods, in a time zone.
    ///
    /// Needs the feature `calendar`. Weeks begin on Monday. A period begins at the first instant of its first day. The
    /// limit is not slid: up to twice the limit may pass around the end of a period.
    pub const fn calendar(limit: u64, period: Period) -> CalendarRule {
        CalendarRule {
            limit,
            period,
            from_day: 1,
        }
    }

    pub(crate) const fn of_calendar(limit: u64, calendar: Calendar) -> Self {
        Self {
            limit,
            window_ms: millis(calendar.period().longest()),
            kind: Kind::Calendar(calendar),
        }
    }
}

impl CalendarRule {
    /// Lets each month begin on this day, 1 to 31, or on the last day of a shorter month. The default is 1.
    pub const fn from_day(mut self, day: u8) -> Self {
        self.from_day = day;
        self
    }

    /// Makes it the rule for a time zone, by its name in the IANA database, such as `Europe/Berlin` or `UTC`.
    ///
    /// # Errors
    ///
    /// When the database that is compiled into the program has no such zone, or spells the name otherwise; when the
    /// day is not one to begin on; or without the feature `calendar`.
    pub fn in_zone(self, zone: &str) -> Result<Rule, ConfigError> {
        self.build(zone)
            .map_err(|problem| invalid(&self.text(zone), &problem))
    }

    pub(super) fn build(self, zone: &str) -> Result<Rule, Cow<'static, str>> {
        let is_month = self.period == Period::Month;
        if !is_month && self.from_day != 1 {
            let period = self.period.as_str();
            let problem = format!("only a month can begin on another day: write {period}@{zone}");
            return Err(problem.into());
        }
        if !(1..=31).contains(&self.from_day) {
            return Err("a month can begin on a day from 1 to 31".into());
        }
        let calendar = Calendar::new(self.period, self.from_day, Zone::parse(zone)?);
        Ok(Rule::of_calendar(self.limit, calendar))
    }

    fn text(self, zone: &str) -> String {
        let (limit, period) = (self.limit, self.period.as_str());
        match self.from_day {
            1 => format!("{limit}/{period}@{zone}"),
            day => format!("{limit}/{period}:{day}@{zone}"),
        }
    }
}
