//! The text of a [`Rule`], and of spans of time.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use super::{Kind, Rule, default_step_ms, invalid, millis};
use crate::domain::calendar::Period;
use crate::domain::error::ConfigError;

const SYNTAX: &str = "write it as LIMIT/WINDOW, for instance 10/1s, 240/1h@1m, 20/1m@exact, 1000/1d@fixed, \
     20+10/1s@bucket, 20/30s@concurrent or 10000/month@UTC";

type Problem = Cow<'static, str>;

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, window) = (self.limit, DurationText(self.window()));
        let step_ms = match self.kind {
            Kind::Fixed => return write!(f, "{limit}/{window}@fixed"),
            Kind::Bucket { refill } => return write!(f, "{limit}+{refill}/{window}@bucket"),
            Kind::Calendar(calendar) => return write!(f, "{limit}/{calendar}"),
            Kind::Concurrency => return write!(f, "{limit}/{window}@concurrent"),
            Kind::Sliding { step_ms } => {
                write!(f, "{limit}/{window}")?;
                step_ms
            }
        };
        if step_ms == default_step_ms(self.window_ms) {
            Ok(())
        } else if step_ms == 1 {
            f.write_str("@exact")
        } else {
            write!(f, "@{}", DurationText(self.step()))
        }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rule({self})")
    }
}

impl FromStr for Rule {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let rule = parse(text.trim()).and_then(|rule| match rule.problem() {
            None => Ok(rule),
            Some(problem) => Err(problem.into()),
        });
        rule.map_err(|problem| invalid(text, &problem))
    }
}

fn parse(text: &str) -> Result<Rule, Problem> {
    read(text).unwrap_or_else(|| Err(mend_of(text)))
}

/// Returns `None` if the text has another form than a rule.
fn read(text: &str) -> Option<Result<Rule, Problem>> {
    let (limit, rest) = text.split_once('/')?;
    let (window, kind) = match rest.split_once('@') {
        Some((window, kind)) => (window, Some(kind)),
        None => (rest, None),
    };
    match PeriodText::of(window) {
        Some(period) => Some(period.rule(limit, kind)),
        None => of_steps(limit, window, kind).map(Ok),
    }
}

/// Names the mend of a text that [`read`] does not accept: for the likeliest slips, the rule that was probably meant.
fn mend_of(text: &str) -> Problem {
    let (rule, kind) = text.split_once('@').unwrap_or((text, ""));
    let limit = rule.split('/').next().unwrap_or(rule);
    let has_zone = kind.contains('/') || kind.eq_ignore_ascii_case("utc");
    let meant = match kind {
        "concurrent" if limit == rule => format!("{limit}/30s@{kind}"),
        _ if kind.starts_with("concurrent@") => format!("{rule}@concurrent"), // without a precision
        "bucket" if !limit.contains('+') => format!("{limit}+{rule}@{kind}"),
        _ if has_zone => rule.to_owned(),
        _ => with_short_units(text),
    };
    match read(&meant) {
        Some(Ok(rule)) if has_zone => {
            format!("a span has no time zone: write {rule}, or {limit}/day@UTC for a calendar day")
                .into()
        }
        Some(Ok(rule)) => format!("write {rule}").into(),
        _ if text.is_empty() => format!("there is no text, or a comma too many: {SYNTAX}").into(),
        _ => SYNTAX.into(),
    }
}

/// Abbreviates the names of units, the longest first.
fn with_short_units(text: &str) -> String {
    let units = [
        "seconds second sec",
        "minutes minute min",
        "hours hour",
        "days",
    ];
    let names = units.iter().flat_map(|names| names.split(' '));
    names.fold(text.to_owned(), |text, name| text.replace(name, &name[..1]))
}

fn of_steps(limit: &str, window: &str, kind: Option<&str>) -> Option<Rule> {
    let window = parse_duration(window)?;
    if let Some((burst, refill)) = limit.split_once('+') {
        let rule = Rule::new(parse_number(refill)?, window).bucket(parse_number(burst)?);
        return (kind == Some("bucket")).then_some(rule);
    }
    let rule = Rule::new(parse_number(limit)?, window);
    Some(match kind {
        None => rule,
        Some("concurrent") => rule.expires_after(window),
        Some("fixed") => rule.fixed(),
        Some("exact") => rule.exact(),
        Some(precision) => rule.precision(parse_duration(precision)?),
    })
}

/// The part of a calendar rule's text before the zone: a period, and the day that it begins on. The number of periods
/// is always an error, and has a message of its own.
struct PeriodText<'a> {
    number: &'a str,
    period: Period,
    from_day: Option<&'a str>,
}

impl<'a> PeriodText<'a> {
    /// Returns `None` if the text names no period.
    fn of(text: &'a str) -> Option<Self> {
        let (text, from_day) = match text.split_once(':') {
            Some((text, day)) => (text, Some(day)),
            None => (text, None),
        };
        let name = text.trim_start_matches(|letter: char| letter.is_ascii_digit());
        let mut periods = Period::ALL.iter().copied();
        let period = periods.find(|period| period.as_str() == name)?;
        Some(Self {
            number: &text[..text.len() - name.len()],
            period,
            from_day,
        })
    }

    fn rule(&self, limit: &str, zone: Option<&str>) -> Result<Rule, Problem> {
        let units = parse_number(limit).ok_or(SYNTAX)?;
        let (period, days) = (self.period.as_str(), millis(self.period.longest()) / DAY_MS);
        if !self.number.is_empty() {
            return Err(format!(
                "a calendar period has no number: write {limit}/{period}@{}, or a span of time, such as {limit}/60d",
                zone.unwrap_or("UTC"),
            )
            .into());
        }
        let Some(zone) = zone else {
            return Err(format!(
                "a calendar {period} needs a time zone: write {limit}/{period}@UTC, or {limit}/{days}d for any {} hours",
                days * 24,
            )
            .into());
        };
        let rule = Rule::calendar(units, self.period);
        match self.from_day {
            None => rule.build(zone),
            // A number that is no day has the same mend as one out of range.
            Some(day) => {
                let day = parse_number(day).and_then(|day| day.try_into().ok());
                rule.from_day(day.unwrap_or(0)).build(zone)
            }
        }
    }
}

/// Reads digits only: `u64::from_str` would also accept a sign.
fn parse_number(text: &str) -> Option<u64> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number = if number.is_empty() {
        1
    } else {
        parse_number(number)?
    };
    let unit_ms = UNITS.iter().find(|(name, _)| *name == unit)?.1;
    number.checked_mul(unit_ms).map(Duration::from_millis)
}

const DAY_MS: u64 = 86_400_000;

/// Longest first, so that the text form uses the largest unit that fits.
const UNITS: [(&str, u64); 5] = [
    ("d", DAY_MS),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// Writes a duration, in whole milliseconds, in the form that [`parse_duration`] reads.
pub(crate) struct DurationText(pub(crate) Duration);

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = millis(self.0);
        let mut units = UNITS.iter();
        match units.find(|(_, unit_ms)| ms.is_multiple_of(*unit_ms)) {
            Some((name, unit_ms)) if ms > 0 => {
                write!(f, "{}{name}", ms / unit_ms)
            }
            _ => write!(f, "{:?}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{policy::Policy, rule::MAX_UNITS};

    fn message(text: &str) -> String {
        let rule = text.parse::<Rule>();
        rule.map_or_else(|error| error.to_string(), |rule| rule.to_string())
    }

    #[test]
    fn concurrency_rules_are_read_and_written_back() {
        let ten_seconds = Duration::from_secs(10);
        for (text, rule) in [
            ("20/30s@concurrent", Rule::concurrent(20)),
            ("0/30s@concurrent", Rule::concurrent(0)),
            (
                "20/10s@concurrent",
                Rule::concurrent(20).expires_after(ten_seconds),
            ),
        ] {
            assert_eq!(text.parse(), Ok(rule));
            assert_eq!(rule.to_string(), text);
            assert!(rule.is_concurrency() && !rule.is_fixed());
            assert_eq!(rule.release_ms(1_000), 1_000);
        }
    }

    #[test]
    fn a_bad_concurrency_rule_is_an_error_that_names_the_mend() {
        assert_eq!(
            message("20/0s@concurrent"),
            "rule `20/0s@concurrent`: a slot must be released after 1ms to 36525d, for instance 20/30s@concurrent"
        );
        for (text, problem) in [
            ("20/30s@concurrent@1s", "write 20/30s@concurrent"),
            ("20/30s@concurrent@exact", "write 20/30s@concurrent"),
            ("20/30s@concurrently", SYNTAX),
            ("20/30s@1s@concurrent", SYNTAX),
            ("20+1/30s@concurrent", SYNTAX),
            ("20@concurrent", "write 20/30s@concurrent"),
        ] {
            assert_eq!(message(text), format!("rule `{text}`: {problem}"));
        }
    }

    #[test]
    fn the_likeliest_slips_name_the_rule_that_was_meant() {
        for (text, meant) in [
            ("5/minute", "5/1m"),
            ("5/90seconds", "5/90s"),
            ("5/2hours@fixed", "5/2h@fixed"),
            ("5/30days", "5/30d"),
            ("5/1h@30sec", "5/1h@30s"),
            ("20+10/sec@bucket", "20+10/1s@bucket"),
            ("3@concurrent", "3/30s@concurrent"),
            ("3/minute@concurrent", "3/1m@concurrent"),
            ("10/1s@bucket", "10+10/1s@bucket"),
        ] {
            assert_eq!(message(text), format!("rule `{text}`: write {meant}"));
            assert_eq!(message(meant), meant);
        }
        for zone in ["utc", "UTC", "Europe/Berlin"] {
            let expected = "a span has no time zone: write 10/1h, or 10/day@UTC for a calendar day";
            let text = format!("10/1h@{zone}");
            assert_eq!(message(&text), format!("rule `{text}`: {expected}"));
        }
        let empty = format!("rule ``: there is no text, or a comma too many: {SYNTAX}");
        assert_eq!(message(""), empty);
        // Nothing is guessed where even the mend would be no rule.
        for text in [
            "five/minute",
            "5/fortnight",
            "/minute",
            "@concurrent",
            "x@bucket",
            "10/x@utc",
            "10/60@x",
        ] {
            assert_eq!(message(text), format!("rule `{text}`: {SYNTAX}"));
        }
    }

    #[test]
    fn a_concurrency_rule_beside_another_rule_is_an_error_that_names_the_mend() {
        for (rules, concurrency, other) in [
            ("10/1s,20/30s@concurrent", "20/30s@concurrent", "10/1s"),
            ("20/30s@concurrent,10/1s", "20/30s@concurrent", "10/1s"),
            (
                "20/30s@concurrent,20/30s@concurrent",
                "20/30s@concurrent",
                "20/30s@concurrent",
            ),
        ] {
            let error = Policy::parse("p", rules).unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "policy `p`: `{concurrency}` must be the only rule of its policy: give it and `{other}` policies \
                     of two names"
                )
            );
        }
        assert!(Policy::parse("p", "20/30s@concurrent").is_ok());
    }

    #[test]
    fn a_calendar_rule_that_lacks_something_is_an_error_that_names_the_mend() {
        for (text, problem) in [
            (
                "500/day",
                "a calendar day needs a time zone: write 500/day@UTC, or 500/1d for any 24 hours",
            ),
            (
                "500/month",
                "a calendar month needs a time zone: write 500/month@UTC, or 500/31d for any 744 hours",
            ),
            (
                "2/2month@UTC",
                "a calendar period has no number: write 2/month@UTC, or a span of time, such as 2/60d",
            ),
            ("5+5/month@UTC", SYNTAX),
            ("ten/month@UTC", SYNTAX),
            ("500/months@UTC", SYNTAX),
        ] {
            assert_eq!(message(text), format!("rule `{text}`: {problem}"));
        }
    }

    #[cfg(not(feature = "calendar"))]
    #[test]
    fn without_the_feature_the_error_names_it() {
        assert_eq!(
            message("500/day@UTC"),
            "rule `500/day@UTC`: calendar rules need the feature `calendar` of the crate"
        );
    }

    #[cfg(feature = "calendar")]
    mod calendar {
        use super::*;

        #[test]
        fn calendar_rules_are_read_and_written_back() {
            let rule = |period, zone| Rule::calendar(500, period).in_zone(zone).unwrap();
            for (text, rule, written) in [
                ("500/day@UTC", rule(Period::Day, "UTC"), "500/day@UTC"),
                (
                    " 500/week@Asia/Kolkata",
                    rule(Period::Week, "Asia/Kolkata"),
                    "500/week@Asia/Kolkata",
                ),
                (
                    "500/month:1@Europe/Berlin",
                    Rule::per_month(500).in_zone("Europe/Berlin").unwrap(),
                    "500/month@Europe/Berlin",
                ),
                (
                    "500/month:31@Etc/GMT+5",
                    Rule::per_month(500)
                        .from_day(31)
                        .in_zone("Etc/GMT+5")
                        .unwrap(),
                    "500/month:31@Etc/GMT+5",
                ),
                (
                    "500/year@America/Argentina/ComodRivadavia",
                    rule(Period::Year, "America/Argentina/ComodRivadavia"),
                    "500/year@America/Argentina/ComodRivadavia",
                ),
            ] {
                assert_eq!(text.parse(), Ok(rule));
                assert_eq!(rule.to_string(), written);
            }
            let month: Rule = "500/month:15@Europe/Berlin".parse().unwrap();
            let calendar = month.in_calendar().unwrap();
            assert_eq!(
                (calendar.period(), calendar.to_string(), calendar.zone()),
                (
                    Period::Month,
                    "month:15@Europe/Berlin".to_owned(),
                    "Europe/Berlin"
                )
            );
            assert_eq!(month.window(), Duration::from_secs(31 * 86_400));
        }

        #[test]
        fn a_bad_calendar_rule_is_an_error_that_names_the_mend() {
            let days = "a month can begin on a day from 1 to 31";
            for (text, problem) in [
                ("500/month:0@UTC", days),
                ("500/month:32@UTC", days),
                ("500/month:x@UTC", days),
                ("500/month:1000@UTC", days),
                (
                    "500/day:3@UTC",
                    "only a month can begin on another day: write day@UTC",
                ),
                (
                    "500/day@europe/berlin",
                    "the time zone is spelled Europe/Berlin",
                ),
                (
                    "500/day@Mars/Base",
                    "`Mars/Base` is not a time zone: write a name of the IANA database, such as Europe/Berlin or UTC",
                ),
            ] {
                assert_eq!(message(text), format!("rule `{text}`: {problem}"));
            }
            let error = Rule::per_month(7).from_day(40).in_zone("UTC").unwrap_err();
            assert_eq!(error.to_string(), format!("rule `7/month:40@UTC`: {days}"));
            let huge = Rule::per_month(MAX_UNITS + 1).in_zone("UTC").unwrap();
            assert!(Policy::new("p", [huge]).is_err());
            let long = "Z".repeat(1_000);
            let error = Rule::per_month(7).in_zone(&long).unwrap_err().to_string();
            assert!(error.len() < 300, "{error}");
        }

        #[test]
        fn two_rules_of_the_same_periods_are_an_error() {
            let error = Policy::parse("p", "5/month@UTC,7/month:1@UTC").unwrap_err();
            assert_eq!(
                error.to_string(),
                "policy `p`: rules `5/month@UTC` and `7/month@UTC` have the same periods: remove one"
            );
            let rules = "5/month@UTC,5/month:2@UTC,5/month@Etc/UTC,5/week@UTC,5/31d,5/31d@fixed";
            assert!(Policy::parse("p", rules).is_ok());
        }
    }
}
