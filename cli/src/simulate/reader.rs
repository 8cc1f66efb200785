//! [`Reader`]: reads the lines of one log by one format.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::bytes::{CaptureLocations, Regex};
use serde_json::Value;

use super::formats::{Format, OWN, PREFIX, compiled};
use super::options::SimulateArgs;
use super::request::{Mapping, Request};
use super::view::{ROLES, Record, View};
use crate::{Error, Result};

pub(super) struct Reader<'a> {
    pub(super) format: Format,
    args: &'a SimulateArgs,
    /// A view of each pattern, or one of JSON.
    views: Vec<View>,
    /// The patterns in the order of trying, the loose ones last.
    tries: Vec<Try>,
    /// Whether a line without a status repeats another line, or says that a request has started.
    pub(super) needs_status: bool,
    pub(super) has_status: bool,
    /// The most fields that the format knows in a line.
    pub(super) known: usize,
    /// The kind of the times.
    pub(super) words: String,
}

const NO_TIME: &str = "it has no time that can be read: see --time";

/// A pattern, the index of its view, whether names may have blanks, and the places of the groups.
type Try = (Regex, usize, bool, CaptureLocations);

/// The values of a line, the index of their view, and whether the line fits loosely.
type Found<'l> = Result<(Record<'l>, usize, bool), Read>;

/// One line.
pub(super) enum Read {
    /// A request, and whether the name of its user has blanks.
    Request(Request, bool),
    /// Without the prefix in `--path`.
    Filtered,
    /// About something else than a request, or a second line of a request.
    LeftOut,
    Unreadable(String),
}

impl<'a> Reader<'a> {
    pub(super) fn new(format: Format, mapping: &Mapping, args: &'a SimulateArgs) -> Self {
        let mut reader = Self {
            format,
            args,
            views: Vec::new(),
            tries: Vec::new(),
            needs_status: false,
            has_status: false,
            known: 0,
            words: String::new(),
        };
        reader.look(mapping);
        reader
    }

    /// Finds the places of the fields.
    fn look(&mut self, mapping: &Mapping) {
        let (format, time) = (&self.format, self.args.time.as_ref());
        let patterns = || format.patterns.iter().enumerate();
        let view = |pattern| View::new(format, pattern, &mapping.fields, time);
        let views = patterns().map(|(_, it)| view(Some(it)));
        let of_json = format.needs.iter().map(|_| view(None));
        self.views = views.chain(of_json).collect();
        let strict = patterns().map(|(at, it)| (&it.strict, at, false));
        let tries = strict.chain(patterns().map(|(at, it)| (&it.loose, at, true)));
        let tries = tries.map(|(it, at, loose)| (it.clone(), at, loose, it.capture_locations()));
        self.tries = tries.collect();
    }

    /// Refuses a field that no line can have.
    pub(super) fn check(&self, mapping: &Mapping) -> Result<()> {
        let views = || self.views.iter();
        let lacks = |at: usize| views().all(|view| view.keys[at].places.is_empty());
        let policies = &mapping.policies;
        let none = policies.iter().all(|it| lacks(it.key));
        let mut missing = { policies.iter() }.filter(|it| (none || it.is_named) && lacks(it.key));
        let no_path = self.args.path.is_some() && views().all(|it| it.path.places.is_empty());
        let field = missing.next().map(|it| mapping.fields[it.key]);
        let field = field.or(no_path.then_some("path"));
        let Some(field) = field.filter(|_| self.format.fields.is_none()) else {
            return Ok(());
        };
        let (name, own) = (&self.format.name, self.format.own_names());
        Err(Error::usage(format_args!(
            "{name} has no field `{field}`: it has {own}; or name a field by its role: {ROLES}"
        )))
    }

    fn find<'l>(format: &Format, tries: &'l mut [Try], line: &'l [u8]) -> Found<'l> {
        let unreadable = || Read::Unreadable(format!("it does not fit {}", format.name));
        let Some(needs) = &format.needs else {
            let mut tries = tries.iter_mut();
            let found = tries.find_map(|(regex, at, is_loose, groups)| {
                regex.captures_read(groups, line)?;
                Some((Record::Text(groups, line), *at, *is_loose))
            });
            return found.ok_or_else(unreadable);
        };
        let value = serde_json::from_slice(line).ok().filter(Value::is_object);
        let record = value.map(Record::Json).ok_or_else(unreadable)?;
        let has_all = |names: &[String]| names.iter().all(|name| record.has(name));
        match () {
            () if format.without.iter().any(|name| record.has(name)) => Err(Read::LeftOut),
            () if has_all(needs) => Ok((record, 0, false)),
            () if !format.other.is_empty() && has_all(&format.other) => Err(Read::LeftOut),
            () => Err(unreadable()),
        }
    }

    /// Reads a line, at the number of its file and its own, or in a `trial`.
    pub(super) fn read(
        &mut self,
        line: &[u8],
        mapping: &mut Mapping,
        place: (usize, u64),
        trial: bool,
    ) -> Result<Read, Read> {
        // Your string may begin as a prefix does.
        let is_own = self.format.name == OWN;
        let fits = is_own && self.tries.iter().any(|it| it.0.is_match(line));
        let line = if fits { line.into() } else { bare(line) };
        if self.format.fields.is_some() && line.starts_with(b"#") {
            if line.starts_with(b"#Fields:") {
                let pattern = self.format.compile(&String::from_utf8_lossy(&line));
                self.format.patterns = pattern.into_iter().collect();
                self.look(mapping);
            }
            return Err(Read::LeftOut);
        }
        let (record, at, is_loose) = Self::find(&self.format, &mut self.tries, &line)?;
        let (view, pairs) = (&self.views[at], self.format.pairs);
        let has_status = !pairs || view.status.value(&record).is_some();
        let is_other = pairs && view.path.places.is_empty();
        if is_other || (self.needs_status && !has_status) {
            return Err(Read::LeftOut);
        }
        if has_status && !self.has_status {
            self.words.clear();
        }
        self.has_status |= has_status;
        let Some(stamp) = view.time(&record, has_status, &mut self.words) else {
            return Err(Read::Unreadable(NO_TIME.into()));
        };
        let path = || view.path.value(&record).unwrap_or_default();
        let leaves_out = |prefix: &String| !trial && !path().starts_with(prefix.as_bytes());
        if self.args.path.as_ref().is_some_and(leaves_out) {
            return Err(Read::Filtered);
        }
        if trial {
            let names = self.format.roles.values().flatten();
            let known = match &record {
                Record::Text(groups, _) => groups.len(),
                Record::Json(_) => names.filter(|name| record.has(name)).count(),
            };
            self.known = self.known.max(known);
        }
        let request = mapping.request(&record, view, stamp, place);
        Ok(Read::Request(request, is_loose))
    }
}

/// The number of collectors that one line may pass.
const MOST: usize = 3;

/// The codes of a terminal, which tracing-subscriber writes to files too.
static COLOURS: LazyLock<Regex> = LazyLock::new(|| compiled(r"\x1b\[[\d;]*m"));

/// `{"log":"…","stream":"stdout"}` of Docker, `{"MESSAGE":"…"}` of journald.
static WRAPPED: LazyLock<Regex> =
    LazyLock::new(|| compiled(r#"^\{(?:"log":|.*"__REALTIME_TIMESTAMP")"#));

/// The line as the server wrote it.
pub(super) fn bare(line: &[u8]) -> Cow<'_, [u8]> {
    let mut line = Cow::Borrowed(line.trim_ascii());
    if line.contains(&0x1b) {
        line = COLOURS.replace_all(&line, &b""[..]).into_owned().into();
    }
    for _ in 0..MOST {
        let end = PREFIX.find(&line).map_or(0, |it| it.end());
        line = match (unwrapped(&line), line) {
            (Some(inner), _) => inner.into(),
            (None, Cow::Borrowed(line)) if end > 0 => line[end..].trim_ascii().into(),
            (None, Cow::Owned(line)) if end > 0 => line[end..].to_owned().into(),
            (None, line) => return line,
        };
    }
    line
}

fn unwrapped(line: &[u8]) -> Option<Vec<u8>> {
    let is_wrapped = line.starts_with(b"{") && WRAPPED.is_match(line);
    let line: Value = is_wrapped.then(|| serde_json::from_slice(line).ok())??;
    let inner = line.get("log").or(line.get("MESSAGE"))?;
    Some(inner.as_str()?.trim().into())
}
