//! [`Record`]: one line of a log, and its fields by name.
//!
//! A line that begins with `{` is JSON. Any other line has the common log format, or a format that adds fields to it,
//! such as the combined one. Its fields are known by their places around ident and the time:
//!
//! ```text
//! … 203.0.113.7 - alice [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 2326 "referer" "agent" "extra1" …
//!   client  ident user  time
//! ```

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::str;

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

/// The fields of a line.
pub(super) struct Common<'a> {
    /// Without their brackets and quotes.
    fields: [&'a [u8]; MAX_FIELDS],
    /// The rest of the line from each field on, with brackets and quotes.
    starts: [&'a [u8]; MAX_FIELDS],
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

    /// Other names of this field in JSON logs, separated by blanks: nginx by custom, Caddy, Traefik, Envoy, pino.
    const fn aliases(self) -> &'static str {
        match self {
            Self::Ip => {
                "remote_addr client_ip remote_ip clientip request.client_ip request.remote_ip request.remote_addr \
                 ClientHost downstream_remote_address_without_port"
            }
            Self::User => "remote_user user_id ClientUsername",
            Self::Method => "request_method request.method RequestMethod",
            Self::Path => "uri request_uri request.uri RequestPath url",
            Self::Status => "status_code DownstreamStatus response_code",
            Self::Referer => "http_referer referrer request.headers.Referer request_Referer",
            Self::Agent => {
                "http_user_agent user_agent request.headers.User-Agent request_User-Agent"
            }
            Self::Time => {
                "ts timestamp @timestamp time_iso8601 time_local msec StartUTC start_time"
            }
            Self::Extra(_) => "",
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

    /// Whether this value is a list of addresses, as proxies forward it. Other fields may have commas as well.
    pub(super) fn is_list(&self, value: &[u8]) -> bool {
        value.contains(&b',')
            && match self.known {
                Some(Known::Ip) => true,
                Some(Known::Extra(_)) | None => ends_in_address(value),
                Some(_) => false,
            }
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
            Self::Common(line) => line.get(field.known?)?,
            Self::Json(value) => text(lookup(value, field)?)?,
        };
        (!is_empty(&value)).then_some(value)
    }
}

/// Whether this is how logs write that there is no value.
pub(super) fn is_empty(value: &[u8]) -> bool {
    value.is_empty() || value == b"-"
}

/// The value with this name or path with dots, or with one of the other names that logs use for the field.
fn lookup<'v>(value: &'v Value, field: &Field) -> Option<&'v Value> {
    let aliases = field.known.map_or("", Known::aliases).split_whitespace();
    let mut names = std::iter::once(field.name.as_str()).chain(aliases);
    names.find_map(|name| {
        let found = value.get(name).or_else(|| {
            let mut path = name.split('.');
            path.try_fold(value, |value, part| value.get(part))
        });
        found.filter(|value| !is_absent(value))
    })
}

/// Whether the next name is to be tried.
fn is_absent(value: &Value) -> bool {
    match value {
        Value::Null | Value::Object(_) => true,
        Value::String(text) => is_empty(text.as_bytes()),
        Value::Array(values) => values.iter().all(is_absent),
        Value::Number(_) | Value::Bool(_) => false,
    }
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

impl<'a> Common<'a> {
    fn read(line: &'a [u8]) -> Result<Self, &'static str> {
        let (mut fields, mut starts) = ([&b""[..]; MAX_FIELDS], [&b""[..]; MAX_FIELDS]);
        let (mut count, mut time, mut rest) = (0, None, line.trim_ascii());
        // Use the last time before the request: in front of it is the name of a user, which may look like a time.
        let mut is_known = false;
        let mut error = "this is neither JSON nor of the common log format";
        while count < MAX_FIELDS && !rest.is_empty() {
            starts[count] = rest;
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
            starts,
            count,
            time,
            stamp,
        })
    }

    fn get(&self, field: Known) -> Option<Cow<'a, [u8]>> {
        let after_time = |places: usize| {
            let place = self.time + places;
            (place < self.count).then(|| self.fields[place])
        };
        let request = || after_time(1).map(|line| line.split(|byte| *byte == b' '));
        let value = match field {
            Known::Ip => return Some(self.client()),
            Known::User => Some(self.text(self.ident() + 1, self.time)),
            Known::Time => Some(self.fields[self.time]),
            Known::Method => request()?.next(),
            Known::Path => request()?.nth(1),
            Known::Status => after_time(2),
            Known::Referer => after_time(4),
            Known::Agent => after_time(5),
            Known::Extra(number) => after_time(number.get().checked_add(5)?),
        };
        value.map(Cow::from)
    }

    /// The place of ident: the first `-` behind another field. Clients choose the name of the user behind it, which may
    /// have blanks. Without a `-`, ident is the field before the user.
    fn ident(&self) -> usize {
        let is_dash = |place: &usize| self.starts[*place].starts_with(b"- ");
        (1..self.time - 1).find(is_dash).unwrap_or(self.time - 2)
    }

    /// The field before ident, with the fields before it that end in a comma. A quoted field of addresses in front of
    /// that is a header, and the client is the last proxy: together they are a list.
    fn client(&self) -> Cow<'a, [u8]> {
        let ident = self.ident();
        let ends_list = |place: &usize| !self.fields[*place - 1].ends_with(b",");
        let first = (1..ident).rev().find(ends_list).unwrap_or(0);
        let client = self.text(first, ident);
        let before = first.checked_sub(1).map(|place| self.fields[place]);
        let header = before
            .filter(|header| self.starts[first - 1].starts_with(b"\"") && ends_in_address(header));
        header.map_or(client.into(), |header| {
            [header, b", ", client].concat().into()
        })
    }

    /// The text of the fields between two places. Several keep their quotes.
    fn text(&self, from: usize, to: usize) -> &'a [u8] {
        if from + 1 == to {
            return self.fields[from];
        }
        let (text, rest) = (self.starts[from], self.starts[to]);
        text[..text.len() - rest.len()].trim_ascii_end()
    }
}

/// Whether the last value of a list is an address. A client may have written those before it.
fn ends_in_address(list: &[u8]) -> bool {
    let last = list.rsplit(|byte| *byte == b',').next();
    last.is_some_and(|last| address(last.trim_ascii()).is_some())
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

    /// The rest of a line in the common format, from the time on.
    const REST: &str = r#"[05/May/2020:21:25:27 +0000] "GET / HTTP/1.1" 200 1 "-" "-""#;

    #[test]
    fn the_client_and_the_user_are_known_by_their_places_before_the_time() {
        for (before, ip, user) in [
            ("203.0.113.7 - -", "203.0.113.7", None),
            (
                "203.0.113.7, 198.51.100.1 - -",
                "203.0.113.7, 198.51.100.1",
                None,
            ),
            (
                "a.example 203.0.113.7, 10.0.0.1, 198.51.100.1 - bob",
                "203.0.113.7, 10.0.0.1, 198.51.100.1",
                Some("bob"),
            ),
            (
                "\"203.0.113.7, 198.51.100.1\" - -",
                "203.0.113.7, 198.51.100.1",
                None,
            ),
            (
                "\"203.0.113.7, 198.51.100.1\" 10.2.1.185 - -",
                "203.0.113.7, 198.51.100.1, 10.2.1.185",
                None,
            ),
            (
                "\"203.0.113.7\" 10.2.1.185 - -",
                "203.0.113.7, 10.2.1.185",
                None,
            ),
            ("\"-\" 203.0.113.7 - -", "203.0.113.7", None),
            ("www.example.org \"-\" 203.0.113.7 - -", "203.0.113.7", None),
            ("\"a.example\" 203.0.113.7 - -", "203.0.113.7", None),
            (
                "www.example.org:443 host-a.isp.example - -",
                "host-a.isp.example",
                None,
            ),
            ("198.51.100.1 203.0.113.7 - -", "203.0.113.7", None),
            ("198.51.100.1:80 203.0.113.7 - -", "203.0.113.7", None),
            (
                "nginx.1 | www.example.org 203.0.113.7 - -",
                "203.0.113.7",
                None,
            ),
            ("web_1  | 203.0.113.7 - alice", "203.0.113.7", Some("alice")),
            ("- 203.0.113.7 - alice", "203.0.113.7", Some("alice")),
            ("203.0.113.7 - \"\"", "203.0.113.7", None),
            (
                "203.0.113.7 - alice of 198.51.100.9",
                "203.0.113.7",
                Some("alice of 198.51.100.9"),
            ),
            (
                "203.0.113.7 - 198.51.100.9 - -",
                "203.0.113.7",
                Some("198.51.100.9 - -"),
            ),
            (
                "a.example 203.0.113.7 - a [b] c",
                "203.0.113.7",
                Some("a [b] c"),
            ),
            ("203.0.113.7 identd -", "203.0.113.7", None),
            (
                "a.example 203.0.113.7 identd alice",
                "203.0.113.7",
                Some("alice"),
            ),
        ] {
            let line = format!("{before} {REST}");
            assert_eq!(get(&line, "ip").as_deref(), Some(ip), "{before}");
            assert_eq!(get(&line, "user").as_deref(), user, "{before}");
            assert_eq!(get(&line, "path").as_deref(), Some("/"), "{before}");
        }
    }

    #[test]
    fn a_list_has_commas_and_ends_in_an_address_except_where_it_is_the_client() {
        for (field, value, is_list) in [
            ("ip", "203.0.113.7, unknown", true),
            ("ip", "203.0.113.7", false),
            ("extra1", "x, [2001:db8::7]:443", true),
            (
                "request.headers.X-Forwarded-For",
                "203.0.113.7,10.0.0.1",
                true,
            ),
            ("country", "Bonaire, Saba", false),
            ("agent", "Mozilla/5.0 (KHTML, like Gecko)", false),
            ("path", "/?of=203.0.113.7,10.0.0.1", false),
            ("user", "x,10.0.0.1", false),
        ] {
            let field = Field::new(field);
            assert_eq!(field.is_list(value.as_bytes()), is_list, "{value}");
        }
    }

    #[test]
    fn fields_of_caddy_and_traefik_are_found_past_empty_ones() {
        let caddy = r#"{"request":{"client_ip":"","remote_ip":"203.0.113.7","headers":{"User-Agent":["curl/8"],"Referer":["https://a.example/"],"X":["203.0.113.7","10.0.0.1"],"Y":[""],"Z":[]}},"user_id":""}"#;
        let older = r#"{"request":{"remote_addr":"203.0.113.7:4711","uri":"/x","headers":{"User-Agent":["curl/7"]}}}"#;
        let traefik = r#"{"ClientHost":"203.0.113.7","ClientUsername":"-","request_User-Agent":"curl/8","request_Referer":"https://a.example/","user":{"id":1},"user_id":"bob"}"#;
        for (line, field, value) in [
            (caddy, "ip", Some("203.0.113.7")),
            (caddy, "agent", Some("curl/8")),
            (caddy, "referer", Some("https://a.example/")),
            (caddy, "request.headers.User-Agent", Some("curl/8")),
            (caddy, "request.headers.X", Some("203.0.113.7, 10.0.0.1")),
            (caddy, "request.headers.Y", None),
            (caddy, "request.headers.Z", None),
            (caddy, "user", None),
            (older, "ip", Some("203.0.113.7:4711")),
            (older, "agent", Some("curl/7")),
            (traefik, "ip", Some("203.0.113.7")),
            (traefik, "agent", Some("curl/8")),
            (traefik, "referer", Some("https://a.example/")),
            (traefik, "user", Some("bob")),
        ] {
            assert_eq!(get(line, field).as_deref(), value, "{field} of {line}");
        }
        let line = r#"{"time":"","ts":1.5}"#;
        let record = Record::read(line.as_bytes()).unwrap();
        assert_eq!(record.stamp(&Field::new("time")).unwrap().ms, 1_500);
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
