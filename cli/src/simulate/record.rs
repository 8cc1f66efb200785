//! [`Record`]: one line of a log, and its fields by name.
//!
//! A line that begins with `{` is JSON. Any other line has the common log format, or a format that adds fields to it,
//! such as the combined one:
//!
//! ```text
//! 203.0.113.7 - alice [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 2326 "referer" "agent" "extra1" …
//! ```

use std::{
    borrow::Cow,
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    str,
};

use serde_json::Value;

use super::stamp::Stamp;

const UNREADABLE_TIME: &str = "the time cannot be read";

/// The maximum number of fields to read. The rest of a line is ignored.
const MAX_FIELDS: usize = 24;

#[allow(
    clippy::large_enum_variant,
    reason = "there is one at a time, on the stack"
)]
pub(super) enum Record<'a> {
    Common(Common<'a>),
    Json(Value),
}

/// The fields of a line, without their brackets and quotes.
pub(super) struct Common<'a> {
    fields: [&'a [u8]; MAX_FIELDS],
    count: usize,
    /// The index of the time.
    time: usize,
    stamp: Stamp,
}

/// A field, with the name that you use on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    name: String,
    known: Option<Known>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Ip,
    User,
    Method,
    Path,
    Status,
    Referer,
    Agent,
    Time,
    /// A field behind the user agent, counted from 1.
    Extra(NonZeroUsize),
}

impl Known {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "ip" => Self::Ip,
            "user" => Self::User,
            "method" => Self::Method,
            "path" => Self::Path,
            "status" => Self::Status,
            "referer" => Self::Referer,
            "agent" => Self::Agent,
            "time" => Self::Time,
            _ => Self::Extra(name.strip_prefix("extra")?.parse().ok()?),
        })
    }

    /// Other names of this field in JSON logs: nginx by custom, Caddy, Traefik, Envoy, pino.
    const fn aliases(self) -> &'static [&'static str] {
        match self {
            Self::Ip => &[
                "remote_addr",
                "client_ip",
                "remote_ip",
                "clientip",
                "request.client_ip",
                "request.remote_ip",
                "ClientHost",
                "downstream_remote_address_without_port",
            ],
            Self::User => &["remote_user", "user_id", "ClientUsername"],
            Self::Method => &["request_method", "request.method", "RequestMethod"],
            Self::Path => &["uri", "request_uri", "request.uri", "RequestPath", "url"],
            Self::Status => &["status_code", "DownstreamStatus", "response_code"],
            Self::Referer => &["http_referer", "referrer"],
            Self::Agent => &["http_user_agent", "user_agent"],
            Self::Time => &[
                "ts",
                "timestamp",
                "@timestamp",
                "time_iso8601",
                "time_local",
                "msec",
                "StartUTC",
                "start_time",
            ],
            Self::Extra(_) => &[],
        }
    }
}

impl Field {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            known: Known::of(name),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl<'a> Record<'a> {
    /// Reads a line. The error describes the problem.
    pub(super) fn read(line: &'a [u8]) -> Result<Self, &'static str> {
        if line.starts_with(b"{") {
            let value = serde_json::from_slice(line).map_err(|_| "this is not one JSON object")?;
            return Ok(Self::Json(value));
        }
        Common::read(line).map(Self::Common)
    }

    /// The time of the line.
    pub(super) fn stamp(&self, field: &Field) -> Result<Stamp, &'static str> {
        match self {
            Self::Common(line) => Ok(line.stamp),
            Self::Json(value) => {
                let time = lookup(value, field)
                    .ok_or("there is no field with the time: name it with --time")?;
                Stamp::json(time).ok_or(UNREADABLE_TIME)
            }
        }
    }

    /// The value of a field; `None` if there is no such field, or its value is empty or `-`.
    pub(super) fn get(&self, field: &Field) -> Option<Cow<'_, [u8]>> {
        let value: Cow<'_, [u8]> = match self {
            Self::Common(line) => line.get(field.known?)?.into(),
            Self::Json(value) => match lookup(value, field)? {
                Value::String(text) => text.as_bytes().into(),
                Value::Number(number) => number.to_string().into_bytes().into(),
                Value::Bool(bool) => bool.to_string().into_bytes().into(),
                _ => return None,
            },
        };
        (!value.is_empty() && *value != *b"-").then_some(value)
    }
}

/// The value with this name or path with dots, or with one of the other names that logs use for the field.
fn lookup<'v>(value: &'v Value, field: &Field) -> Option<&'v Value> {
    let aliases = field.known.map_or(&[][..], Known::aliases);
    let mut names = std::iter::once(field.name.as_str()).chain(aliases.iter().copied());
    names.find_map(|name| {
        let found = value.get(name).or_else(|| {
            let mut path = name.split('.');
            path.try_fold(value, |value, part| value.get(part))
        });
        found.filter(|value| !value.is_null())
    })
}

impl<'a> Common<'a> {
    fn read(line: &'a [u8]) -> Result<Self, &'static str> {
        let mut fields = [&b""[..]; MAX_FIELDS];
        let (mut count, mut time, mut rest) = (0, None, line.trim_ascii());
        // Use the last time before the request: in front of it is the name of a user, which may look like a time.
        let mut is_known = false;
        let mut error = "this is neither JSON nor of the common log format";
        while count < MAX_FIELDS && !rest.is_empty() {
            (fields[count], rest) = match rest[0] {
                b'"' => {
                    is_known |= time.is_some_and(|(place, _)| place + 1 == count);
                    quoted(&rest[1..])
                }
                b'[' if is_known => split(&rest[1..], b']'),
                b'[' if count >= 3 => {
                    let (text, after) = split(&rest[1..], b']');
                    if let Some(stamp) = Stamp::common(text) {
                        time = Some((count, stamp));
                        (text, after)
                    } else {
                        error = UNREADABLE_TIME;
                        split(rest, b' ')
                    }
                }
                _ => split(rest, b' '),
            };
            rest = rest.trim_ascii_start();
            count += 1;
        }
        let (time, stamp) = time.ok_or(error)?;
        Ok(Self {
            fields,
            count,
            time,
            stamp,
        })
    }

    fn get(&self, field: Known) -> Option<&'a [u8]> {
        let after_time = |places: usize| {
            let place = self.time + places;
            (place < self.count).then(|| self.fields[place])
        };
        let request = || after_time(1).map(|line| line.split(|byte| *byte == b' '));
        match field {
            Known::Ip => Some(self.client()),
            Known::User => Some(self.fields[self.time - 1]),
            Known::Time => Some(self.fields[self.time]),
            Known::Method => request()?.next(),
            Known::Path => request()?.nth(1),
            Known::Status => after_time(2),
            Known::Referer => after_time(4),
            Known::Agent => after_time(5),
            Known::Extra(number) => after_time(number.get().checked_add(5)?),
        }
    }

    /// The first field. If there are virtual hosts before the client, the first field that is an address. An address
    /// with a port before another address is also a virtual host.
    fn client(&self) -> &'a [u8] {
        if self.time > 3 {
            let is_address = |field: &[u8]| address(field).is_some();
            let fields = &self.fields[..self.time - 2];
            if let Some(place) = fields.iter().position(|field| is_address(field)) {
                let next = fields.get(place + 1).filter(|field| is_address(field));
                return next
                    .filter(|_| has_port(fields[place]))
                    .unwrap_or(&fields[place]);
            }
        }
        self.fields[0]
    }
}

fn has_port(field: &[u8]) -> bool {
    str::from_utf8(field).is_ok_and(|text| text.parse::<SocketAddr>().is_ok())
}

/// Splits at the closing quote. A quote behind a backslash does not close.
fn quoted(text: &[u8]) -> (&[u8], &[u8]) {
    let mut escaped = false;
    let end = text.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    });
    at(text, end)
}

fn split(text: &[u8], end: u8) -> (&[u8], &[u8]) {
    at(text, text.iter().position(|byte| *byte == end))
}

fn at(text: &[u8], end: Option<usize>) -> (&[u8], &[u8]) {
    match end {
        Some(end) => (&text[..end], &text[end + 1..]),
        None => (text, b""),
    }
}

/// Reads an address, also with a port or in brackets: `203.0.113.7:40001`, `[2001:db8::7]:443`.
pub(super) fn address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?;
    let host = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let with_port = || Some(text.parse::<SocketAddr>().ok()?.ip());
    host.unwrap_or(text).parse().ok().or_else(with_port)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn get(line: &str, field: &str) -> Option<String> {
        let record = Record::read(line.as_bytes()).ok()?;
        let value = record.get(&Field::new(field))?;
        Some(String::from_utf8(value.into_owned()).unwrap())
    }

    const COMBINED: &str = r#"203.0.113.7 - alice [10/Oct/2000:13:55:36 -0700] "GET /a\"b?c HTTP/1.0" 200 23 "-" "curl [x] \"y\"" "10.0.0.1""#;

    #[test]
    fn fields_of_the_combined_log_have_names() {
        for (field, value) in [
            ("ip", Some("203.0.113.7")),
            ("user", Some("alice")),
            ("method", Some("GET")),
            ("path", Some(r#"/a\"b?c"#)),
            ("status", Some("200")),
            ("referer", None),
            ("agent", Some(r#"curl [x] \"y\""#)),
            ("extra1", Some("10.0.0.1")),
            ("extra2", None),
            ("extra0", None),
            ("extra18446744073709551615", None),
            ("country", None),
        ] {
            assert_eq!(get(COMBINED, field).as_deref(), value, "{field}");
        }
        let vhost = format!("example.org:443 {COMBINED}");
        assert_eq!(get(&vhost, "ip").as_deref(), Some("203.0.113.7"));
        assert_eq!(get(&vhost, "user").as_deref(), Some("alice"));
        for (before, client) in [
            ("example.org:443 ", "203.0.113.7:40001"),
            ("198.51.100.1:443 ", "203.0.113.7"),
            ("[2001:db8::1]:443 ", "[2001:db8::7]:40001"),
            ("", "203.0.113.7:40001"),
        ] {
            let line = COMBINED.replacen("203.0.113.7", client, 1);
            assert_eq!(
                get(&format!("{before}{line}"), "ip").as_deref(),
                Some(client)
            );
            let named = line.replace("alice", "alice of 198.51.100.9");
            assert_eq!(
                get(&format!("{before}{named}"), "ip").as_deref(),
                Some(client)
            );
        }
    }

    #[test]
    fn a_name_with_brackets_hides_no_line() {
        let forged = "a [10/Oct/2090:13:55:36 -0700]";
        for name in ["[", "a [", "[a] [b", "a ][", forged] {
            let line = COMBINED.replace("alice", name);
            let stamp = Record::read(line.as_bytes()).unwrap();
            let stamp = stamp.stamp(&Field::new("time")).unwrap();
            assert_eq!(stamp.ms, 971_211_336_000, "{name}");
            assert_eq!(get(&line, "ip").as_deref(), Some("203.0.113.7"), "{name}");
            assert_eq!(get(&line, "method").as_deref(), Some("GET"), "{name}");
        }
    }

    #[test]
    fn fields_of_json_logs_are_found_by_their_names_and_paths() {
        let line = r#"{"ts":1.5,"request":{"remote_ip":"2001:db8::1","uri":"/x"},"a.b":7,"user":null,"user_id":"bob","ok":true}"#;
        for (field, value) in [
            ("ip", Some("2001:db8::1")),
            ("request.remote_ip", Some("2001:db8::1")),
            ("path", Some("/x")),
            ("a.b", Some("7")),
            ("user", Some("bob")),
            ("ok", Some("true")),
            ("request", None),
        ] {
            assert_eq!(get(line, field).as_deref(), value, "{field}");
        }
        let stamp = Record::read(line.as_bytes())
            .unwrap()
            .stamp(&Field::new("time"))
            .unwrap();
        assert_eq!(
            stamp,
            Stamp {
                ms: 1_500,
                is_whole: false
            }
        );
    }

    #[test]
    fn what_is_no_log_line_is_an_error() {
        for line in [
            "",
            "-",
            "{",
            "{}x",
            "a b [c",
            "203.0.113.7 - -",
            "\"\"\"",
            "[[[[",
        ] {
            let read = Record::read(line.as_bytes());
            let time = read.and_then(|record| record.stamp(&Field::new("time")));
            assert!(time.is_err(), "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_line_makes_the_reader_panic(line in prop::collection::vec(any::<u8>(), 0..300), field in "[a-z.0-9]{0,9}") {
            if let Ok(record) = Record::read(&line) {
                let _ = record.get(&Field::new(&field));
                let _ = record.stamp(&Field::new("time"));
            }
        }

        #[test]
        fn no_change_of_a_good_line_makes_the_reader_panic(
            at in 0..COMBINED.len(), byte: u8, cut in 0..COMBINED.len()
        ) {
            let mut line = COMBINED.as_bytes().to_vec();
            line[at] = byte;
            for line in [&line[..], &line[..cut], &line[cut..]] {
                if let Ok(record) = Record::read(line) {
                    for field in ["ip", "user", "method", "path", "status", "referer", "agent", "extra1"] {
                        let _ = record.get(&Field::new(field));
                    }
                    let _ = record.stamp(&Field::new("time"));
                }
            }
        }

        #[test]
        fn no_json_makes_the_reader_panic(line in r#"\{("[a-z]{1,4}":([0-9.e+-]{1,30}|"[ -~]{0,9}"|\{\}|\[\]|null),?){0,4}\}"#) {
            if let Ok(record) = Record::read(line.as_bytes()) {
                let _ = record.get(&Field::new("ts"));
                let _ = record.stamp(&Field::new("ts"));
            }
        }
    }
}
