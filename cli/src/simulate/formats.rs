//! [`Format`]: the fields of a log, from `formats.toml` or from the string of a server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::bytes::{Regex, RegexBuilder};
use serde::Deserialize;

use crate::{Error, Result};

/// The name of a server's own string.
pub(super) const OWN: &str = "your string";

/// The fields that each role may be found in.
pub(super) type Roles = BTreeMap<String, Vec<String>>;

#[derive(Deserialize)]
struct Data {
    prefix: String,
    classes: Vec<[String; 2]>,
    roles: Roles,
    apache: BTreeMap<String, String>,
    format: Vec<Format>,
}

static DATA: LazyLock<Data> = LazyLock::new(|| {
    toml::from_str(include_str!("formats.toml")).unwrap_or_else(|error| unreachable!("{error}"))
});

/// The prefix that a collector writes in front of a line.
pub(super) static PREFIX: LazyLock<Regex> = LazyLock::new(|| compiled(&DATA.prefix));

/// The names of fields and their values.
static CLASSES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let classes = DATA.classes.iter().map(|it| (compiled(&it[0]), &*it[1]));
    classes.collect()
});

/// The format of a log: see `formats.toml`.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Format {
    pub(super) name: String,
    lines: Vec<String>,
    pub(super) needs: Option<Vec<String>>,
    pub(super) other: Vec<String>,
    pub(super) without: Vec<String>,
    pub(super) pairs: bool,
    pub(super) roles: Roles,
    pub(super) note: Option<String>,
    pub(super) fields: Option<String>,
    /// The compiled lines.
    #[serde(skip)]
    pub(super) patterns: Vec<Pattern>,
}

impl Format {
    /// All formats with a name, which some share.
    pub(super) fn all() -> Vec<Self> {
        let mut formats = DATA.format.clone();
        for format in &mut formats {
            let lines = std::mem::take(&mut format.lines);
            let known = |line: &String| format.compile(line).ok();
            format.patterns = lines.iter().filter_map(known).collect();
            if format.roles.is_empty() {
                format.roles.clone_from(&DATA.roles);
            }
        }
        formats
    }

    pub(super) fn all_names() -> String {
        let mut names: Vec<&str> = DATA.format.iter().map(|it| it.name.as_str()).collect();
        names.dedup();
        names.join(", ")
    }

    /// The names of the fields of text.
    pub(super) fn own_names(&self) -> String {
        let names: BTreeSet<&String> = self.patterns.iter().flat_map(|it| &it.names).collect();
        names.into_iter().cloned().collect::<Vec<_>>().join(" ")
    }

    /// The formats of this name, or that of a server's own string.
    pub(super) fn of(text: &str) -> Result<Vec<Self>> {
        let mut named = Self::all();
        named.retain(|it| it.name == text);
        if !named.is_empty() {
            return Ok(named);
        }
        if !text.contains(['$', '%']) {
            let names = Self::all_names();
            return Err(Error::usage(format_args!(
                "--format {text}: write the string of your server, or one of {names}"
            )));
        }
        let text = text.replace("\\\"", "\"").replace("\\t", "\t");
        let text = text.trim();
        let mut format = Self {
            name: OWN.into(),
            roles: DATA.roles.clone(),
            ..Self::default()
        };
        let wrong = |text: &str, (at, problem): Misfit| {
            let mark = " ".repeat(text[..at].chars().count());
            Error::usage(format_args!("--format: {problem}\n  {text}\n  {mark}^"))
        };
        let own = match text.contains('$') {
            true => text.to_owned(),
            false => from_apache(text).map_err(|it| wrong(text, it))?,
        };
        let pattern = format.compile(&own).map_err(|it| wrong(&own, it))?;
        format.patterns.push(pattern);
        Ok(vec![format])
    }

    /// Compiles a string with `$names`, or the names in a line `#Fields`.
    pub(super) fn compile(&self, line: &str) -> Result<Pattern, Misfit> {
        let Some(names) = line.strip_prefix("#Fields:") else {
            return Pattern::compile(line);
        };
        let names = names.split_whitespace().map(|name| format!("${{{name}}}"));
        let delimiter = self.fields.as_deref().unwrap_or(" ");
        let text = names.collect::<Vec<_>>().join(delimiter);
        let time = format!("${{date}}{delimiter}${{time}}");
        Pattern::compile(&text.replace(&time, "${date+time}"))
    }
}

/// The values that a field of this name has in text.
fn class(name: &str) -> &'static str {
    let mut classes = CLASSES.iter();
    let class = classes.find(|it| it.0.is_match(name.as_bytes()));
    class.map_or("", |it| it.1)
}

/// Returns the bare name of a field, which may be written with `$` or as Apache does.
pub(super) fn own_name(name: &str) -> String {
    match from_apache(name) {
        Ok(own) if name.starts_with('%') => own.trim_matches(['$', '[', ']']).to_owned(),
        _ => name.trim_start_matches('$').to_owned(),
    }
}

/// Apache's LogFormat with `$names`.
fn from_apache(text: &str) -> Result<String, Misfit> {
    static DIRECTIVE: LazyLock<Regex> =
        LazyLock::new(|| compiled(r"%[!,<>\d]*(%|U%q|(?:\{[^}]*\})?[A-Za-z])|%"));
    let (mut names, mut end) = (String::new(), 0);
    for found in DIRECTIVE.captures_iter(text.as_bytes()) {
        let place = found.get_match().range();
        let own = found.get(1).map_or("", |it| &text[it.range()]);
        let known = |directive: &str| DATA.apache.get(&format!("%{directive}")).cloned();
        let header = || {
            let (name, letter) = own.strip_prefix('{')?.split_once('}')?;
            let name = name.replace('-', "_");
            let lower = name.to_lowercase();
            Some(known(&format!("{{X}}{letter}"))? + if letter == "C" { &name } else { &lower })
        };
        let unknown = || (place.start, "this directive is unknown".to_owned());
        names += &text[end..place.start];
        names += &known(own).or_else(header).ok_or_else(unknown)?;
        end = place.end;
    }
    Ok(names + &text[end..])
}

/// The place of an error in the string, and the problem.
pub(super) type Misfit = (usize, String);

/// A value in quotes, one without blanks, and one that ends where the rest of the line fits.
const QUOTED: &str = r#"(?:[^"\\]|\\.)*"#;
const PLAIN: &str = r#"[^ "\t]+"#;
const ANY: &str = ".*?";

/// The first line of a request: the method, the path and the protocol.
const REQUEST: &str = r#"((?:[^"\\ ]|\\.)*)(?: ((?:[^"\\ ]|\\.)*)(?: (?:[^"\\]|\\.)*)?)?"#;

#[derive(Clone)]
pub(super) struct Pattern {
    pub(super) strict: Regex,
    /// The same where names of users may have blanks.
    pub(super) loose: Regex,
    /// The names of the groups.
    pub(super) names: Vec<String>,
}

/// A field, its place in the string, and the text up to the next field.
struct Field<'a> {
    name: &'a str,
    place: usize,
    after: &'a str,
}

impl Pattern {
    /// Compiles a string with `$name` and `${name}`.
    pub(super) fn compile(text: &str) -> Result<Self, Misfit> {
        let found = compiled(r"\$(?:\{([^}]*)\}|(\w*))([^$]*)");
        let fields = found.captures_iter(text.as_bytes()).map(|it| {
            let part = |at| it.get(at).map(|it| &text[it.range()]);
            let name = part(1).or(part(2)).unwrap_or_default();
            let (place, after) = (it.get_match().start(), part(3).unwrap_or_default());
            Field { name, place, after }
        });
        let fields: Vec<Field<'_>> = fields.collect();
        let before = fields.first().map_or(text.len(), |it| it.place);
        let (mut names, mut open) = (Vec::new(), None);
        let mut strict = format!("^{}", regex::escape(&text[..before]));
        let mut loose = strict.clone();
        for (at, field) in fields.iter().enumerate() {
            let values = field.values(class(field.name), at + 1 == fields.len(), &mut open)?;
            let after = regex::escape(field.after);
            strict += &format!("({}){after}", values.replace("USER", PLAIN));
            loose += &format!("({}){after}", values.replace("USER", ANY));
            names.push(field.name.to_owned());
            if values == REQUEST {
                names.extend(["request_method", "request_uri"].map(str::to_owned));
            }
        }
        let whole = |regex: String| build(&(regex + "$")).map_err(|error| (0, error.to_string()));
        let (strict, loose) = (whole(strict)?, whole(loose)?);
        Ok(Self {
            strict,
            loose,
            names,
        })
    }
}

impl<'a> Field<'a> {
    /// The shape of the values, up to the next literal. `open` is a field that may have any bytes, up to the next quote.
    fn values(
        &self,
        class: &str,
        is_last: bool,
        open: &mut Option<&'a str>,
    ) -> Result<String, Misfit> {
        let (name, next) = (self.name, self.after.chars().next());
        let wrong = |problem: &str| Err((self.place, format!("`${name}` {problem}")));
        let is_plain = matches!(next, None | Some(' ' | '\t' | '"'));
        let is_any = class.is_empty() || (class == "CHOSEN" && !is_plain);
        if name.is_empty() || (next.is_none() && !is_last) {
            return wrong("cannot be told from what follows: write a delimiter between them");
        }
        if let Some(other) = open.filter(|_| is_any || class == "CHOSEN") {
            return wrong(&format!(
                "cannot be told from `${other}`: both may have blanks, so quote them"
            ));
        }
        if is_any && !matches!(next, Some('"' | '\t')) {
            *open = Some(name);
        }
        if self.after.contains(['"', '\t']) {
            *open = None;
        }
        let is_quoted = next == Some('"');
        let is_free = is_any || class.contains("NEXT") || matches!(class, "CHOSEN" | "USER");
        let end = next.filter(|next| *next != ':');
        let end = end.map(|next| regex::escape(&next.to_string()));
        Ok(match class {
            _ if name == "request" && is_quoted => REQUEST.to_owned(),
            _ if is_quoted && is_free => QUOTED.to_owned(),
            _ if is_any => ANY.to_owned(),
            "CHOSEN" => PLAIN.to_owned(),
            class => class.replace("NEXT", &end.unwrap_or_default()),
        })
    }
}

fn build(regex: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(regex).unicode(false).build()
}

/// A regular expression that is known to be one.
pub(super) fn compiled(regex: &str) -> Regex {
    build(regex).unwrap_or_else(|error| unreachable!("{error}"))
}
