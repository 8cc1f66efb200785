//! [`View`]: where a format has what is replayed of a request.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::str;

use regex::bytes::{CaptureLocations, Regex};
use serde_json::Value;

use super::formats::{Format, Pattern, compiled, own_name};
use super::stamp::{self, Stamp};

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
    times: Vec<(String, FieldPlace, &'static str)>,
    /// The name of each duration, its place and its unit.
    durations: Vec<(String, FieldPlace, String)>,
    pub(super) path: Choice,
    pub(super) status: Choice,
    /// In the order of the fields of the mapping.
    pub(super) keys: Vec<Choice>,
}

/// The places that the value of a field may be found in, the best first.
pub(super) struct Choice {
    /// Empty for a field that you name by its own name.
    role: &'static str,
    pub(super) places: Vec<FieldPlace>,
}

impl View {
    /// The view of fields in a pattern or in JSON, with the time of this name if there is one.
    pub(super) fn new(
        format: &Format,
        pattern: Option<&Pattern>,
        fields: &[&str],
        time: Option<&String>,
    ) -> Self {
        let place = |name: &str| FieldPlace::of(pattern, name);
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
            keys: fields.iter().map(|it| choice(it)).collect(),
            times,
        }
    }

    /// When the request came, as far as the log says; and what this is, in words. A line without a status is written when
    /// the request starts.
    pub(super) fn time(
        &self,
        record: &Record<'_>,
        is_done: bool,
        words: &mut String,
    ) -> Option<Stamp> {
        let times = self.times.iter();
        let mut times = times.filter_map(|time| Some((time, record.get(&time.1)?)));
        let ((name, _, meaning), value) = times.next()?;
        let stamp = Stamp::read(&value)?;
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
            ("path", Cow::Borrowed(url)) => path(url).into(),
            ("path", Cow::Owned(url)) => path(&url).to_vec().into(),
            (_, first) => first,
        })
    }

    /// Whether this value is a list of addresses, as proxies forward it. Other fields may have commas as well.
    pub(super) fn is_list(&self, value: &[u8]) -> bool {
        let is_list = value.iter().any(|byte| b",()".contains(byte));
        let is_own = || self.role.is_empty() && ends_in_address(value);
        is_list && (self.role == "ip" || is_own())
    }

    /// Whether the value is unlike others in such a field, and how.
    pub(super) fn oddity(&self, value: &[u8]) -> Option<&'static str> {
        let is_address = || address(value).is_some();
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

pub(super) enum Record<'a> {
    Text(&'a CaptureLocations, &'a [u8]),
    Json(Value),
}

/// The place of a field's value.
#[derive(Clone)]
pub(super) enum FieldPlace {
    /// A group of a pattern.
    Group(usize),
    /// The value behind a name and `=` in a group.
    Part(usize, Regex),
    /// A member of JSON, or a path with dots.
    Member(String),
}

impl FieldPlace {
    /// The place of a field in JSON; or in text, also of `field.name`.
    pub(super) fn of(pattern: Option<&Pattern>, name: &str) -> Option<Self> {
        let Some(pattern) = pattern else {
            return Some(Self::Member(name.to_owned()));
        };
        let group = |name: &str| Some(pattern.names.iter().position(|it| it == name)? + 1);
        group(name).map(Self::Group).or_else(|| {
            let (whole, part) = name.split_once('.')?;
            let pair = |name: &str, value: &str| {
                format!(r#"{name}=(?:"{value}(?:[^"\\]|\\.)*)"|{value}[^ "]*))"#)
            };
            let (others, own) = (pair("[^ =]+", "(?:"), pair(&regex::escape(part), "("));
            let regex = compiled(&format!("^(?:{others} )*?{own}"));
            Some(Self::Part(group(whole)?, regex))
        })
    }
}

impl Record<'_> {
    /// The value at a place; `None` if there is none, or only a `-`.
    pub(super) fn get(&self, place: &FieldPlace) -> Option<Cow<'_, [u8]>> {
        let group = |at: usize| match self {
            Self::Text(groups, line) => groups.get(at).map(|(from, to)| &line[from..to]),
            Self::Json(_) => None,
        };
        let value: Cow<'_, [u8]> = match (place, self) {
            (FieldPlace::Group(at), _) => group(*at)?.into(),
            (FieldPlace::Part(at, part), _) => {
                let found = part.captures(group(*at)?)?;
                found.get(1).or(found.get(2))?.as_bytes().into()
            }
            (FieldPlace::Member(name), Self::Json(value)) => text(member(value, name)?)?,
            _ => return None,
        };
        (!is_nobody(&value)).then_some(value)
    }

    /// Whether a line of JSON has this member.
    pub(super) fn has(&self, name: &str) -> bool {
        matches!(self, Self::Json(value) if member(value, name).is_some_and(|it| !it.is_null()))
    }
}

fn member<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    value.get(name).or_else(|| {
        let mut path = name.split('.');
        path.try_fold(value, |value, part| value.get(part))
    })
}

fn text(value: &Value) -> Option<Cow<'_, [u8]>> {
    Some(match value {
        Value::String(text) => text.as_bytes().into(),
        Value::Number(number) => number.to_string().into_bytes().into(),
        Value::Bool(bool) => bool.to_string().into_bytes().into(),
        // The lines of a header, which are one list.
        Value::Array(lines) => {
            let lines: Vec<_> = lines.iter().filter_map(text).collect();
            lines.join(&b", "[..]).into()
        }
        Value::Null | Value::Object(_) => return None,
    })
}

/// Whether this is how logs write that there is no value: `-`, `(-)`, `- -`.
pub(super) fn is_nobody(value: &[u8]) -> bool {
    value.iter().all(|byte| b"- ,()[]\"".contains(byte))
}

/// Whether the last value of a list is an address. A client may have written those before it.
pub(super) fn ends_in_address(list: &[u8]) -> bool {
    let last = list.rsplit(|byte| *byte == b',').next();
    last.is_some_and(|last| address(last.trim_ascii()).is_some())
}

/// Reads an address, also with a port or in brackets: `203.0.113.7:40001`, `[2001:db8::7]:443`.
pub(super) fn address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?;
    let host = text.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let with_port = || Some(text.parse::<SocketAddr>().ok()?.ip());
    host.unwrap_or(text).parse().ok().or_else(with_port)
}

/// The path of an absolute URL, or the value itself.
pub(super) fn path(url: &[u8]) -> &[u8] {
    let scheme = url.iter().take_while(|byte| byte.is_ascii_alphanumeric());
    let Some(host) = url[scheme.count()..].strip_prefix(b"://") else {
        return url;
    };
    match host.iter().position(|byte| b"/?#".contains(byte)) {
        Some(start) if host[start] == b'/' => &host[start..],
        _ => b"/",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dash_is_nobody_also_in_brackets_and_twice() {
        for value in ["", "-", "(-)", "- -", "[-]", "-, -"] {
            assert!(is_nobody(value.as_bytes()), "{value}");
        }
        assert!(!is_nobody(b"a-b") && !is_nobody(b"-1"));
    }

    #[test]
    fn absolute_urls_have_paths() {
        for (url, expected) in [
            ("/a?b=http://c/d", "/a?b=http://c/d"),
            ("https://a.example/b?c", "/b?c"),
            ("http://a.example:80/", "/"),
            ("http://a.example", "/"),
            ("http://a.example?b", "/"),
            ("*", "*"),
        ] {
            assert_eq!(path(url.as_bytes()), expected.as_bytes(), "{url}");
        }
    }

    #[test]
    fn json_has_names_paths_and_lists() {
        let line = r#"{"a.b":7,"a":{"c":"x","list":["203.0.113.7","10.0.0.1"]},"null":null,"no":"-","yes":true}"#;
        let record = Record::Json(serde_json::from_str(line).unwrap());
        for (name, value) in [
            ("a.b", Some("7")),
            ("a.c", Some("x")),
            ("a.list", Some("203.0.113.7, 10.0.0.1")),
            ("yes", Some("true")),
            ("a", None),
            ("null", None),
            ("no", None),
            ("a.c.d", None),
        ] {
            let found = record.get(&FieldPlace::Member(name.to_owned()));
            let found = found.map(|it| String::from_utf8(it.into_owned()).unwrap());
            assert_eq!(found.as_deref(), value, "{name}");
        }
    }
}
