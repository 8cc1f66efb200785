//! [`Ban`]: after how many denials a policy blocks an identity, and for how long.

use std::{fmt, str::FromStr, time::Duration};

use crate::domain::{
    error::ConfigError,
    rule::{DurationText, Rule, millis, parse_duration},
};

/// An automatic block: a policy that denies an identity as often as the limit of a rule blocks that identity for a
/// time. In text: `5/10m=1h`, for five denials within ten minutes, and an hour.
///
/// A ban with several times grows: `5/10m=1h,1d,7d` blocks an identity for an hour at first, for a day the next time, and
/// then for seven days each time. See [bans that grow](crate::block#bans-that-grow).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ban {
    strikes: Rule,
    /// In ms; 0 behind the last.
    times_ms: [u64; MAX_TIMES],
}

const MAX_TIMES: usize = 8;
const LONGEST: Duration = Duration::from_secs(3650 * 86_400);

impl Ban {
    /// Creates a ban for this time, in whole milliseconds. The ban begins after as many denials, within the window of
    /// `strikes`, as the limit of `strikes`.
    ///
    /// # Errors
    ///
    /// When the rule is not valid, or neither sliding nor fixed, when its limit is 0, or when the time is zero, longer
    /// than ten years, or has a fraction of a millisecond.
    pub fn new(strikes: Rule, time: Duration) -> Result<Self, ConfigError> {
        Self::growing(strikes, [time])
    }

    /// Creates a ban that [grows](crate::block#bans-that-grow): the first ban of an identity lasts for the first of
    /// these times, the next ban for the next time, and the last time repeats.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new); also when there is no time, more than eight, or one that is shorter than the time before.
    pub fn growing(
        strikes: Rule,
        times: impl IntoIterator<Item = Duration>,
    ) -> Result<Self, ConfigError> {
        strikes.validate().map_err(|error| of_strikes(&error))?;
        if strikes.limit() == 0 {
            return Err(ConfigError::new(format_args!(
                "a ban needs at least one strike"
            )));
        }
        if strikes.refill().is_some() || strikes.is_concurrency() || strikes.in_calendar().is_some()
        {
            return Err(ConfigError::new(format_args!(
                "strikes are counted in a window, such as `5/10m` or `5/1d@fixed`"
            )));
        }
        let times_ms = read_times(times)?;
        Ok(Self { strikes, times_ms })
    }

    /// How long the first ban of an identity lasts, the next one, and so on, in ms; at least one time.
    pub(crate) fn times_ms(&self) -> &[u64] {
        let count = self.times_ms.iter().take_while(|time| **time > 0).count();
        &self.times_ms[..count]
    }
}

fn read_times(times: impl IntoIterator<Item = Duration>) -> Result<[u64; MAX_TIMES], ConfigError> {
    let (mut times_ms, mut before, mut count) = ([0; MAX_TIMES], Duration::ZERO, 0);
    for time in times {
        let is_whole = time.subsec_nanos().is_multiple_of(1_000_000);
        if time.is_zero() || time > LONGEST || !is_whole {
            return Err(bad_time());
        }
        if time < before {
            return Err(ConfigError::new(format_args!(
                "the times of a ban grow, as in `1h,1d,7d`: {} is shorter than the one before, {}",
                DurationText(time),
                DurationText(before)
            )));
        }
        let Some(place) = times_ms.get_mut(count) else {
            return Err(ConfigError::new(format_args!(
                "a ban has at most {MAX_TIMES} times; the last one repeats"
            )));
        };
        (*place, before, count) = (millis(time), time, count + 1);
    }
    if count == 0 {
        Err(bad_time())
    } else {
        Ok(times_ms)
    }
}

fn of_strikes(error: &ConfigError) -> ConfigError {
    ConfigError::new(format_args!("strikes: {error}"))
}

fn bad_time() -> ConfigError {
    ConfigError::new(format_args!(
        "the time of a ban is a number and a unit, such as `1h`: at least 1ms, at most 3650d; several times, such as \
         `1h,1d,7d`, make it grow"
    ))
}

impl FromStr for Ban {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        match text.split_once('=') {
            Some((strikes, times)) => Self::from_parts(strikes, times),
            None => Err(ConfigError::new(format_args!(
                "write a ban as STRIKES/WINDOW=TIME, such as `5/10m=1h`"
            ))),
        }
    }
}

#[doc(hidden)] // for operators' tools
impl Ban {
    /// Returns the rule that counts denials: how many, and in which window.
    #[must_use]
    pub const fn strikes(&self) -> Rule {
        self.strikes
    }

    /// Creates a ban from the texts of a rule and of its times.
    pub(crate) fn from_parts(strikes: &str, times: &str) -> Result<Self, ConfigError> {
        let strikes = strikes.parse().map_err(|error| of_strikes(&error))?;
        let times = times.split(',').map(|time| parse_duration(time.trim()));
        let times: Option<Vec<_>> = times.collect();
        Self::growing(strikes, times.ok_or_else(bad_time)?)
    }

    /// Returns the times as text: `1h`, or `1h,1d,7d`.
    pub(crate) fn times_text(&self) -> String {
        let times = self.times_ms().iter().copied().map(Duration::from_millis);
        let times = times.map(|time| DurationText(time).to_string());
        times.collect::<Vec<_>>().join(",")
    }
}

impl fmt::Display for Ban {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.strikes, self.times_text())
    }
}

impl fmt::Debug for Ban {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ban({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bans_are_read_and_written_back_and_bad_ones_are_named() {
        for text in [
            "5/10m=1h",
            "1/1s@exact=1d",
            "100/1h@30s=90s",
            "5/10m=1h,1d,7d",
            "5/10m=1h,1h,1h,1h,1h,1h,1h,3650d",
        ] {
            assert_eq!(text.parse::<Ban>().unwrap().to_string(), text);
        }
        for (text, expected) in [
            ("5/10m", "write a ban as"),
            ("5+1/10m@bucket=1h", "strikes are counted in a window"),
            ("5/10m@concurrent=1h", "strikes are counted in a window"),
            #[cfg(feature = "calendar")]
            ("5/day@UTC=1h", "strikes are counted in a window"),
            ("5=1h", "strikes: rule `5`: write it as"),
            ("0/10m=1h", "a ban needs at least one strike"),
            ("5/10m=", "the time of a ban"),
            ("5/10m=0s", "the time of a ban"),
            ("5/10m=3651d", "the time of a ban"),
            ("5/10m=forever", "the time of a ban"),
            ("5/10m=1h,", "the time of a ban"),
            ("5/10m=1h,0s", "the time of a ban"),
            (
                "5/10m=1h,1d,90m",
                "the times of a ban grow, as in `1h,1d,7d`: 90m is shorter than the one before, 1d",
            ),
            (
                "5/10m=1h,1h,1h,1h,1h,1h,1h,1h,1h",
                "a ban has at most 8 times",
            ),
        ] {
            let error = text.parse::<Ban>().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        let fraction = Duration::from_micros(1_500);
        assert_eq!(Ban::new(Rule::per_minute(1), fraction), Err(bad_time()));
        assert_eq!(Ban::growing(Rule::per_minute(1), []), Err(bad_time()));
        let grows: Ban = "5/10m=1h, 1d".parse().unwrap();
        assert_eq!(grows.times_ms(), [3_600_000, 86_400_000]);
    }
}
