//! [`View`]: where a format has what is replayed of a request.

use std::borrow::Cow;

use super::formats::{Format, own_name};
use super::pattern::Pattern;
use super::record;
use super::record::{Place, Record};
use super::stamp;
use super::stamp::{Clock, Stamp};

/// The roles of times, and their meanings.
const TIMES: [(&str, &str); 5] = [
    ("begin", "when a request came"),
    ("end", "when a request ended"),
    ("logged", "when a request came (Apache) or ended (nginx)"),
    ("stated", "as the log says"),
    ("shipped", "perhaps only when the line was shipped"),
];

/// The roles that `--key` can name.
pub(super) const ROLES: &str = "ip user method path status referer agent";

pub(super) struct View {
    /// The name of each time, its place and its meaning.
    times: Vec<(String, Place, &'static str)>,
    /// The name of each duration, its place and its unit.
    durations: Vec<(String, Place, String)>,
    pub(super) path: Choice,
    pub(super) status: Choice,
    /// In the order of the fields of the mapping.
    pub(super) keys: Vec<Choice>,
}

/// The places that the value of a field may be found in, the best first.
pub(super) struct Choice {
    /// Empty for a field that you name by its own name.
    role: &'static str,
    pub(super) places: Vec<Place>,
}

impl View {
    /// The view of fields in a pattern or in JSON, with the time of this name if there is one.
    pub(super) fn new<'f>(
        format: &Format,
        pattern: Option<&Pattern>,
        fields: impl Iterator<Item = &'f str>,
        time: Option<&String>,
    ) -> Self {
        let place = |name: &str| Place::of(pattern, name);
        let named = |role: &str| format.roles.get(role).into_iter().flatten();
        let choice = |name: &str| {
            let role = ROLES.split(' ').find(|role| *role == name);
            let places = named(role.unwrap_or_default()).filter_map(|it| place(it));
            let own = place(&own_name(name)).filter(|_| role.is_none());
            let (places, role) = (places.chain(own).collect(), role.unwrap_or_default());
            Choice { role, places }
        };
        let times = TIMES.iter().flat_map(|(role, meaning)| {
            named(role).filter_map(|name| Some((name.clone(), place(name)?, *meaning)))
        });
        let mut times: Vec<_> = times.collect();
        if let Some(name) = time.map(|it| own_name(it)) {
            times.retain(|it| it.0 == name);
            let own = place(&name).filter(|_| times.is_empty());
            times.extend(own.map(|place| (name, place, "as you named it")));
        }
        let durations = named("duration").filter_map(|it| {
            let (name, unit) = it.split_once(' ')?;
            Some((name.to_owned(), place(name)?, unit.to_owned()))
        });
        Self {
            durations: durations.collect(),
            path: choice("path"),
            status: choice("status"),
            keys: fields.map(choice).collect(),
            times,
        }
    }

    /// When the request came, as far as the log says; and what this is, in words. A line without a status is written when
    /// the request starts.
    pub(super) fn time(
        &self,
        record: &Record<'_>,
        is_done: bool,
        clock: &mut Clock,
        words: &mut String,
    ) -> Option<Stamp> {
        let times = self.times.iter();
        let mut times = times.filter_map(|time| Some((time, record.get(&time.1)?)));
        let ((name, _, meaning), value) = times.next()?;
        let stamp = clock.read(&value)?;
        let durations = self.durations.iter().filter(|_| *meaning == TIMES[1].1);
        let mut lasted = durations.filter_map(|(name, place, unit)| {
            Some((name, stamp::duration(&record.get(place)?, unit)?))
        });
        let lasted = lasted.next();
        if words.is_empty() {
            *words = match lasted {
                Some((duration, _)) => format!("{name} less {duration}: {}", TIMES[0].1),
                None if !is_done && *meaning == TIMES[1].1 => format!("{name}: {}", TIMES[0].1),
                None => format!("{name}: {meaning}"),
            };
        }
        Some(lasted.map_or(stamp, |(_, lasted)| stamp.before(lasted)))
    }
}

impl Choice {
    pub(super) fn value<'r>(&self, record: &'r Record<'_>) -> Option<Cow<'r, [u8]>> {
        let mut values = self.places.iter().filter_map(|place| record.get(place));
        let first = values.next()?;
        Some(match (self.role, first) {
            // The addresses of the headers, then the peer.
            ("ip", first) => values.fold(first, |all, it| [&*all, b", ", &*it].concat().into()),
            ("path", Cow::Borrowed(url)) => record::path(url).into(),
            ("path", Cow::Owned(url)) => record::path(&url).to_vec().into(),
            (_, first) => first,
        })
    }

    /// Whether this value is a list of addresses, as proxies forward it. Other fields may have commas as well.
    pub(super) fn is_list(&self, value: &[u8]) -> bool {
        let is_list = value.iter().any(|byte| b",()".contains(byte));
        let is_own = || self.role.is_empty() && record::ends_in_address(value);
        is_list && (self.role == "ip" || is_own())
    }

    /// Whether the value is unlike others in such a field, and how.
    pub(super) fn oddity(&self, value: &[u8]) -> Option<&'static str> {
        let is_address = || record::address(value).is_some();
        let is_url = || value.starts_with(b"http") && value.windows(3).any(|it| it == b"://");
        match self.role {
            "ip" if !is_address() => Some("are no addresses"),
            "user" if is_address() => Some("are addresses"),
            "agent" if is_url() => Some("are URLs"),
            "referer" if !is_url() => Some("are no URLs"),
            _ => None,
        }
    }
}
