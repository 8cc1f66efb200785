//! [`Rule`]: at most `limit` units in any `window`, counted in steps of `precision`; and the other kinds of rules.

use std::time::Duration;

pub(crate) use self::text::{DurationText, parse_duration};
pub use calendar_rule::CalendarRule;

use crate::domain::{
    calendar::Calendar,
    error::{ConfigError, shown},
};

mod calendar_rule;
mod share;
mod text;

/// The largest limit or cost: 2^53 − 1. Up to this number, a Lua number is exact for whole numbers.
pub const MAX_UNITS: u64 = (1 << 53) - 1;

/// The longest window: a hundred years.
pub(crate) const MAX_WINDOW: Duration = Duration::from_secs(36_525 * 86_400);

/// A sliding rule counts its window in this many steps by default.
const DEFAULT_STEPS: u64 = 60;

/// The largest refill of a bucket: 48 bits, since stores label buckets with the refill.
const MAX_REFILL: u64 = (1 << 48) - 1;

/// How long a slot is held by default without being renewed.
const DEFAULT_EXPIRY: Duration = Duration::from_secs(30);

/// At most `limit` units in any `window`, counted in steps of `precision`; or a [bucket](Self::bucket), a limit of
/// [concurrent](Self::concurrent) work, or a quota for each [month](Self::per_month).
///
/// A rule is plain data: a rule that is not valid is an error when you pass it to [`Policy::new`], or parse it.
/// [`FromStr`](std::str::FromStr) reads the text form; `Display` and serde use the same form:
///
/// | text | meaning |
/// |---|---|
/// | `10/1s`, `10/s` | 10 in any second, in steps of 17 ms |
/// | `240/1h@1m` | 240 in any hour, in steps of one minute |
/// | `20/1m@exact` | 20 in any minute, in steps of 1 ms |
/// | `1000/1d@fixed` | 1000 in each UTC day |
/// | `20+10/1s@bucket` | 20 at once, and 10 more a second |
/// | `20/30s@concurrent` | 20 slots at a time; one that is neither returned nor renewed for 30 seconds is released |
/// | `10000/month@Europe/Berlin` | 10 000 in each calendar month there; also `day`, `week` (from Monday) and `year` |
/// | `10000/month:15@UTC` | 10 000 from the 15th of a month to that of the next |
///
/// Units are `ms`, `s`, `m`, `h` and `d`. Calendar rules need the feature `calendar`.
///
/// **Choosing a precision.** Units are released up to one step late, never early. With a smaller step, they are
/// released sooner, but the store keeps more steps: a key holds up to `window / precision + 1` of them, about 8 bytes
/// each, and never more than `limit`. Use [`exact`](Self::exact) for limits up to some hundreds. Keep the steps that
/// can count at a time below 4096: with more, a decision takes longer the more there are. With 50 000, a check takes
/// Redis 7 ms, during which no other client is served.
///
/// [`Policy::new`]: crate::Policy::new
///
/// ```
/// use std::time::Duration;
/// use sluicegate::Rule;
///
/// let hourly = Rule::per_hour(240).precision(Duration::from_secs(60));
/// assert_eq!(hourly.to_string(), "240/1h");              // 1h / 60 is the default precision
/// assert_eq!("20/1m@exact".parse(), Ok(Rule::per_minute(20).exact()));
/// assert_eq!("10/s".parse(), Ok(Rule::per_second(10)));
/// assert_eq!("20+10/1s@bucket".parse(), Ok(Rule::per_second(10).bucket(20)));
///
/// let error = "10/0s".parse::<Rule>().unwrap_err();
/// assert_eq!(error.to_string(), "rule `10/0s`: the window must be from 1ms to 36525d");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rule {
    limit: u64,
    /// For a calendar rule, the longest that a period is.
    window_ms: u64,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Sliding { step_ms: u64 },
    Fixed,
    Bucket { refill: u64 },
    Concurrency,
    Calendar(Calendar),
}

impl Rule {
    /// Creates a sliding rule: at most `limit` units in any span of `window`.
    ///
    /// `limit` is 0 to 2^53 − 1, and 0 denies every cost above 0. `window` is from 1 ms to 36 525 days, and
    /// is rounded up to whole milliseconds. So is the precision, which is a sixtieth of the window.
    #[must_use]
    pub const fn new(limit: u64, window: Duration) -> Self {
        let window_ms = ceil_millis(window);
        let step_ms = default_step_ms(window_ms);
        Self {
            limit,
            window_ms,
            kind: Kind::Sliding { step_ms },
        }
    }

    /// Creates a sliding rule over one second.
    #[must_use]
    pub const fn per_second(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(1))
    }

    /// Creates a sliding rule over one minute.
    #[must_use]
    pub const fn per_minute(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(60))
    }

    /// Creates a sliding rule over one hour.
    #[must_use]
    pub const fn per_hour(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(3_600))
    }

    /// Creates a sliding rule over 24 hours.
    #[must_use]
    pub const fn per_day(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(86_400))
    }

    /// Creates a concurrency rule: at most `limit` slots are held at a time.
    ///
    /// A check takes as many slots as it costs, at most 1000, and holds them until they are
    /// [returned](crate::store::Slots). A slot that is neither returned nor renewed for 30 seconds, or the time that you
    /// [choose](Self::expires_after), is released: so nothing is lost for longer when a process dies. A limit of 0
    /// denies every check.
    ///
    /// The rule is the only one of its policy. Limit by several policies if you want to limit the rate, too.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::Rule;
    ///
    /// assert_eq!(Rule::concurrent(20).to_string(), "20/30s@concurrent");
    /// let short = Rule::concurrent(20).expires_after(Duration::from_secs(10));
    /// assert_eq!("20/10s@concurrent".parse(), Ok(short));
    /// ```
    #[must_use]
    pub const fn concurrent(limit: u64) -> Self {
        Self::new(limit, DEFAULT_EXPIRY).expires_after(DEFAULT_EXPIRY)
    }

    /// Makes the rule a [concurrency rule](Self::concurrent) whose slots are released when they are neither returned
    /// nor renewed for this time: the window, rounded up to whole milliseconds.
    #[must_use]
    pub const fn expires_after(mut self, window: Duration) -> Self {
        self.window_ms = ceil_millis(window);
        self.kind = Kind::Concurrency;
        self
    }

    /// Counts in steps of `precision`, from 1 ms to the window, and rounded up to whole milliseconds. A rule that is not
    /// sliding becomes sliding.
    ///
    /// The default is a sixtieth of the window.
    #[must_use]
    pub const fn precision(mut self, precision: Duration) -> Self {
        let step_ms = ceil_millis(precision);
        self.kind = Kind::Sliding { step_ms };
        self
    }

    /// Counts in steps of one millisecond: the [precision](Self::precision).
    #[must_use]
    pub const fn exact(self) -> Self {
        self.precision(Duration::from_millis(1))
    }

    /// Makes the rule fixed: windows follow one another from the Unix epoch, each with the full `limit`.
    ///
    /// The store keeps a single step for a fixed rule, and up to twice the limit may pass around the boundary of two
    /// windows.
    #[must_use]
    pub const fn fixed(mut self) -> Self {
        self.kind = Kind::Fixed;
        self
    }

    /// Makes the rule a bucket that holds up to `burst` units and is full at first. The former limit becomes the
    /// refill: it is added in each window, continuously.
    ///
    /// In any span of `t`, a bucket admits at most `burst + refill · t / window` units: `20+10/1s@bucket` admits 20 at
    /// once, and 30 in a second. A sliding rule is stricter, see [when to use a bucket](crate::buckets).
    ///
    /// `burst` is 0 to 2^53 − 1, and the refill 1 to 2^48 − 1. Each of them, times the window in ms, must be at most
    /// 2^53 − 1.
    ///
    /// ```
    /// use sluicegate::Rule;
    ///
    /// let rule = Rule::per_second(10).bucket(20);
    /// assert_eq!(rule.to_string(), "20+10/1s@bucket");
    /// assert_eq!((rule.limit(), rule.refill()), (20, Some(10)));
    /// ```
    #[must_use]
    pub const fn bucket(mut self, burst: u64) -> Self {
        let refill = match self.kind {
            Kind::Bucket { refill } => refill,
            _ => self.limit,
        };
        self.kind = Kind::Bucket { refill };
        self.limit = burst;
        self
    }

    /// Returns the same rule with another limit; for a bucket, with another burst.
    #[must_use]
    pub const fn with_limit(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    /// Returns how many units are admitted in any window or period; for a bucket, the burst; for a concurrency rule,
    /// how many slots there are.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the span of time that the limit is for; for a bucket, the span that the refill is for; for a concurrency
    /// rule, the time after which a slot is released that is not renewed; for a calendar rule, the length of the
    /// longest period: 1, 7, 31 or 366 days.
    #[must_use]
    pub const fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms)
    }

    /// Returns the length of one step: the precision of a sliding rule, the window of a fixed or a calendar rule, 1 ms for
    /// a bucket and for slots.
    #[must_use]
    pub const fn step(&self) -> Duration {
        Duration::from_millis(self.step_ms())
    }

    /// Returns the [window](Self::window) in ms.
    pub(crate) const fn window_ms(&self) -> u64 {
        self.window_ms
    }

    /// Returns the [step](Self::step) in ms.
    pub(crate) const fn step_ms(&self) -> u64 {
        match self.kind {
            Kind::Sliding { step_ms } => step_ms,
            Kind::Fixed | Kind::Calendar(_) => self.window_ms,
            Kind::Bucket { .. } | Kind::Concurrency => 1,
        }
    }

    /// Returns whether windows are aligned to the Unix epoch instead of sliding.
    #[must_use]
    pub const fn is_fixed(&self) -> bool {
        matches!(self.kind, Kind::Fixed)
    }

    /// Returns how many units a bucket refills in each window; `None` for other rules.
    #[must_use]
    pub const fn refill(&self) -> Option<u64> {
        match self.kind {
            Kind::Bucket { refill } => Some(refill),
            _ => None,
        }
    }

    /// Returns whether this is a [concurrency rule](Self::concurrent), whose units are slots.
    #[must_use]
    pub const fn is_concurrency(&self) -> bool {
        matches!(self.kind, Kind::Concurrency)
    }

    /// Returns the calendar whose periods a rule counts in; `None` for rules of other kinds.
    #[must_use]
    pub const fn in_calendar(&self) -> Option<Calendar> {
        match self.kind {
            Kind::Calendar(calendar) => Some(calendar),
            _ => None,
        }
    }

    /// Returns whether response fields name times of this rule. No client waits for more than a year: units that last
    /// so long are a stock, such as credits.
    pub(crate) const fn shows_times(&self) -> bool {
        self.window_ms <= 366 * 86_400_000
    }

    /// Returns the end of the step that contains this time: the first millisecond after the step. For stores.
    ///
    /// Times are in ms since the Unix epoch, by the store's clock.
    #[must_use]
    pub fn step_end_ms(&self, at_ms: u64) -> u64 {
        if let Kind::Calendar(calendar) = self.kind {
            return calendar.periods(at_ms).end_ms;
        }
        let step_ms = self.step_ms();
        at_ms - at_ms % step_ms + step_ms
    }

    /// Returns the first millisecond at which the units of a step no longer count, from the end of the step; for a slot,
    /// from its expiry. For stores, and not for buckets: see [`Count`](crate::store::Count).
    #[must_use]
    pub const fn release_ms(&self, step_end_ms: u64) -> u64 {
        match self.kind {
            Kind::Fixed | Kind::Calendar(_) | Kind::Concurrency => step_end_ms,
            _ => step_end_ms + self.window_ms(),
        }
    }

    /// Returns the time in which the rule admits as much as the limit, again and again: the window; for a bucket, the
    /// time of a full refill, rounded up to ms.
    pub(crate) fn quota_window(&self) -> Duration {
        match self.refill() {
            Some(refill) => {
                let full = self.limit.saturating_mul(self.window_ms());
                Duration::from_millis(full.div_ceil(refill))
            }
            None => self.window(),
        }
    }

    /// Returns the [quota window](Self::quota_window) at this time of the store's clock: for a calendar rule, the
    /// length of the current period.
    pub(crate) fn quota_window_at(&self, at_ms: u64) -> Duration {
        match self.kind {
            Kind::Calendar(calendar) => {
                let periods = calendar.periods(at_ms);
                Duration::from_millis(periods.end_ms - periods.start_ms)
            }
            _ => self.quota_window(),
        }
    }

    /// Returns the window, or the calendar, in the text form.
    pub(crate) fn window_text(&self) -> String {
        match self.kind {
            Kind::Calendar(calendar) => calendar.to_string(),
            _ => DurationText(self.window()).to_string(),
        }
    }

    /// Returns an error if no store could count this rule.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let problem = self.problem();
        problem.map_or(Ok(()), |problem| Err(invalid(&self.to_string(), problem)))
    }

    fn problem(&self) -> Option<&'static str> {
        let (window_ms, step_ms) = (self.window_ms, self.step_ms());
        Some(if self.limit > MAX_UNITS {
            "the limit must be at most 9007199254740991"
        } else if self.is_concurrency() && window_ms == 0 {
            "a slot must be released after 1ms to 36525d, for instance 20/30s@concurrent"
        } else if window_ms == 0 || self.window() > MAX_WINDOW {
            "the window must be from 1ms to 36525d"
        } else if step_ms == 0 || step_ms > window_ms {
            "the precision must be from 1ms to the window"
        } else {
            return self.refill().and_then(|refill| self.bucket_problem(refill));
        })
    }

    /// Returns the reason why the sums of a bucket, in units · ms, would not be exact.
    fn bucket_problem(&self, refill: u64) -> Option<&'static str> {
        let is_exact = |units: u64| {
            let product = units.checked_mul(self.window_ms());
            product.is_some_and(|product| product <= MAX_UNITS)
        };
        Some(if refill == 0 {
            "the refill must be at least 1"
        } else if refill > MAX_REFILL {
            "the refill must be at most 281474976710655"
        } else if !is_exact(self.limit) {
            "the burst times the window in ms must be at most 9007199254740991"
        } else if !is_exact(refill) {
            "the refill times the window in ms must be at most 9007199254740991"
        } else {
            return None;
        })
    }

    /// Returns whether both have the same window and kind, or the same calendar: in one policy, one of them would have
    /// no effect.
    pub(crate) fn same_window(&self, other: &Self) -> bool {
        match (self.kind, other.kind) {
            (Kind::Calendar(calendar), Kind::Calendar(other)) => calendar == other,
            (kind, of_other) => {
                std::mem::discriminant(&kind) == std::mem::discriminant(&of_other)
                    && self.window_ms == other.window_ms
            }
        }
    }
}

const fn default_step_ms(window_ms: u64) -> u64 {
    window_ms.div_ceil(DEFAULT_STEPS)
}

/// Returns the whole milliseconds of a duration, at most `u64::MAX`.
pub(crate) const fn millis(duration: Duration) -> u64 {
    let ms = duration.subsec_millis() as u64;
    duration.as_secs().saturating_mul(1_000).saturating_add(ms)
}

/// Returns the same, rounded up.
pub(crate) const fn ceil_millis(duration: Duration) -> u64 {
    let partial = !duration.subsec_nanos().is_multiple_of(1_000_000);
    millis(duration).saturating_add(partial as u64)
}

/// Returns whole seconds, rounded up: a client that returns early would be denied again.
pub(crate) const fn seconds(time: Duration) -> u64 {
    let partial = time.subsec_nanos() > 0;
    time.as_secs().saturating_add(partial as u64)
}

/// Returns the whole microseconds of a duration, at most `u64::MAX`.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The error of a rule: the message names the rule, the problem and the remedy.
fn invalid(rule: &str, problem: &str) -> ConfigError {
    ConfigError::new(format_args!("rule `{}`: {problem}", shown(rule)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_texts_are_read_and_written_back() {
        for (text, rule, written) in [
            ("10/1s", Rule::per_second(10), "10/1s"),
            ("10/s", Rule::per_second(10), "10/1s"),
            (" 10/1s ", Rule::per_second(10), "10/1s"),
            ("120/60s", Rule::per_minute(120), "120/1m"),
            (
                "240/1h@1m",
                Rule::per_hour(240).precision(Duration::from_secs(60)),
                "240/1h",
            ),
            (
                "240/1h@5m",
                Rule::per_hour(240).precision(Duration::from_secs(300)),
                "240/1h@5m",
            ),
            ("20/1m@exact", Rule::per_minute(20).exact(), "20/1m@exact"),
            ("20/1m@1ms", Rule::per_minute(20).exact(), "20/1m@exact"),
            (
                "5/1500ms",
                Rule::new(5, Duration::from_millis(1500)),
                "5/1500ms",
            ),
            (
                "1000/1d@fixed",
                Rule::per_day(1000).fixed(),
                "1000/1d@fixed",
            ),
            ("0/ms", Rule::new(0, Duration::from_millis(1)), "0/1ms"),
            (
                "20+10/s@bucket",
                Rule::per_second(10).bucket(20),
                "20+10/1s@bucket",
            ),
            (
                "9007199254740991+281474976710655/1ms@bucket",
                Rule::new(MAX_REFILL, Duration::from_millis(1)).bucket(MAX_UNITS),
                "9007199254740991+281474976710655/1ms@bucket",
            ),
            (
                "0+1/36525d@bucket",
                Rule::new(1, MAX_WINDOW).bucket(0),
                "0+1/36525d@bucket",
            ),
            (
                "9007199254740991/365d",
                Rule::new(MAX_UNITS, Duration::from_secs(365 * 86_400)),
                "9007199254740991/365d",
            ),
        ] {
            let read: Rule = text.parse().unwrap();
            assert_eq!(read.to_string(), written, "{text}");
            assert_eq!(read, rule, "{text}");
            assert_eq!(written.parse::<Rule>().unwrap(), rule, "{text}");
        }
    }

    #[test]
    fn bad_texts_are_refused_with_the_reason() {
        for (text, reason) in [
            (
                "10",
                "write it as LIMIT/WINDOW, for instance 10/1s, 240/1h@1m, 20/1m@exact, 1000/1d@fixed, 20+10/1s@bucket, 20/30s@concurrent or 10000/month@UTC",
            ),
            ("20+10/1s@exact", "write it as"),
            ("+10/1s@bucket", "write it as"),
            ("20+/1s@bucket", "write it as"),
            ("20+10+1/1s@bucket", "write it as"),
            ("20+0/1s@bucket", "the refill must be at least 1"),
            (
                "1+281474976710656/1ms@bucket",
                "the refill must be at most 281474976710655",
            ),
            (
                "9007199254741+1/1s@bucket",
                "the burst times the window in ms must be at most 9007199254740991",
            ),
            (
                "1+9007199254741/1s@bucket",
                "the refill times the window in ms must be at most 9007199254740991",
            ),
            ("/1s", "write it as"),
            ("10/", "write it as"),
            ("-1/1s", "write it as"),
            ("+1/1s", "write it as"),
            ("1.5/1s", "write it as"),
            ("10/1w", "write it as"),
            ("10/1S", "write it as"),
            ("10/1s@", "write it as"),
            ("10/1s@fix", "write it as"),
            ("10/1s/1s", "write it as"),
            ("10/99999999999999999999s", "write it as"),
            ("10/0s", "the window must be from 1ms to 36525d"),
            ("10/36526d", "the window must be from 1ms to 36525d"),
            ("10/1s@2s", "the precision must be from 1ms to the window"),
            ("10/1s@0ms", "the precision must be from 1ms to the window"),
            (
                "9007199254740992/1s",
                "the limit must be at most 9007199254740991",
            ),
        ] {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("rule `{text}`: {reason}")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_part_of_a_millisecond_counts_as_a_whole_one() {
        for (rule, written) in [
            (Rule::new(1, Duration::from_micros(1_500)), "1/2ms"),
            (Rule::new(1, Duration::from_nanos(1)), "1/1ms"),
            (
                Rule::concurrent(1).expires_after(Duration::from_micros(1_500)),
                "1/2ms@concurrent",
            ),
            (
                Rule::per_second(1).precision(Duration::from_micros(1_500)),
                "1/1s@2ms",
            ),
        ] {
            assert_eq!(rule.validate(), Ok(()));
            assert_eq!(rule.to_string(), written);
        }
        let longest = Rule::new(1, Duration::MAX).validate().unwrap_err();
        let problem = "the window must be from 1ms to 36525d";
        assert!(longest.to_string().ends_with(problem), "{longest}");
    }

    #[test]
    fn a_rule_is_small() {
        assert!(size_of::<Rule>() <= 32, "{}", size_of::<Rule>());
    }

    #[test]
    fn the_default_precision_is_a_sixtieth_rounded_up() {
        for (window_ms, step_ms) in [
            (1, 1),
            (60, 1),
            (61, 2),
            (1_000, 17),
            (60_000, 1_000),
            (3_600_000, 60_000),
        ] {
            assert_eq!(
                Rule::new(1, Duration::from_millis(window_ms)).step(),
                Duration::from_millis(step_ms)
            );
        }
    }
}
