//! Files of policies: TOML, or JSON if the name ends in `.json`.
//!
//! The file maps policies' names to their rules, as [`sluicegate::policies`] describes. If it has a table `policies` at
//! the top that is not a policy, the policies are in that table, and the rest of the file belongs to another program.
//! The same is true of a table `limits`, which the example server uses: its `header:x-tenant` is the policy
//! `header-x-tenant`.

use std::borrow::Cow;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sluicegate::Policy;
use sluicegate::policies::Policies;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::text::{position, printable};
use super::{Error, Result};

const TABLE: &str = "policies";
const LIMITS: &str = "limits";

/// The policies of a file, and the mistakes in it.
pub(crate) struct PoliciesFile {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    /// In the order of the file, without policies that have a mistake.
    pub(crate) policies: Vec<Placed<Policy>>,
    pub(crate) errors: Vec<Placed<String>>,
}

/// A policy or the words of a mistake, and the place in the text; `None` for the policies of JSON.
type Placed<T> = (T, Option<Range<usize>>);

impl PoliciesFile {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|error| Error::file(path, &error))?;
        let end = path.extension();
        let is_json = end.is_some_and(|it| it.eq_ignore_ascii_case("json"));
        let (policies, errors) = if is_json { json(&text) } else { toml(&text) };
        Ok(Self {
            path: path.into(),
            text,
            policies,
            errors,
        })
    }

    /// `file:line:column`, or only the file if the place is unknown.
    pub(crate) fn place(&self, span: Option<&Range<usize>>) -> String {
        let file = self.path.display();
        match span {
            Some(span) => {
                let (line, column) = position(&self.text, span.start);
                format!("{file}:{line}:{column}")
            }
            None => file.to_string(),
        }
    }
}

/// The policies of a file, for verbs that use them; it has to have those that are `named`. The error names the first
/// mistake and its place.
pub(crate) fn load(path: &Path, named: &[String]) -> Result<Vec<Policy>> {
    let file = PoliciesFile::read(path)?;
    if let Some((message, span)) = file.errors.first() {
        let place = file.place(span.as_ref());
        let more = match file.errors.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more: see `sluicegate check`)"),
        };
        return Err(Error::usage(format_args!("{place}: {message}{more}")));
    }
    let policies = file.policies.into_iter().map(|(policy, _)| policy);
    let policies = Policies::new(policies).map_err(Error::usage)?;
    for name in named {
        policies.get(name).ok_or_else(|| {
            let (path, name) = (path.display(), printable(name.as_bytes()));
            let names: Vec<&str> = policies.iter().map(Policy::name).collect();
            let names = names.join(", ");
            Error::usage(format_args!(
                "{path} has no policy `{name}`: there are {names}"
            ))
        })?;
    }
    Ok(policies.iter().cloned().collect())
}

/// Reads each policy separately, so that you see all policies with a mistake.
fn toml(text: &str) -> (Vec<Placed<Policy>>, Vec<Placed<String>>) {
    let (root, errors) = DeTable::parse_recoverable(text);
    let mut mistakes: Vec<_> = errors.iter().map(mistake).collect();
    // After a syntax error, more mistakes would only be consequences of it.
    if !mistakes.is_empty() {
        return (Vec::new(), mistakes);
    }
    let whole = root.span();
    let mut found = Vec::new();
    for (name, value) in chosen(root.into_inner()) {
        let span = value.span();
        let mut alone = DeTable::new();
        alone.insert(name, value);
        let deserializer = toml::Deserializer::from(Spanned::new(whole.clone(), alone));
        match Policies::deserialize(deserializer) {
            Ok(policies) => {
                found.extend(policies.iter().map(|it| (it.clone(), Some(span.clone()))));
            }
            Err(error) => mistakes.push(narrowed(mistake(&error), text)),
        }
    }
    found.sort_by_key(|(_, span)| span.as_ref().map(|span| span.start));
    mistakes.sort_by_key(|(_, span)| span.as_ref().map(|span| span.start));
    (found, mistakes)
}

/// The table that holds the policies: `policies`, `limits`, or the whole file.
fn chosen(mut root: DeTable<'_>) -> DeTable<'_> {
    for name in [TABLE, LIMITS] {
        let is_nested = match root.get(name).map(Spanned::get_ref) {
            Some(DeValue::Table(table)) => !table.contains_key("rules"),
            _ => false,
        };
        if is_nested && let Some(DeValue::Table(table)) = root.remove(name).map(Spanned::into_inner)
        {
            return match name {
                LIMITS => renamed(table),
                _ => table,
            };
        }
    }
    root
}

/// Renames policies as the example server does: it names limits by their keys.
fn renamed(limits: DeTable<'_>) -> DeTable<'_> {
    let limits = limits.into_iter().map(|(key, value)| {
        let key = match key.get_ref().split_once(':') {
            Some((kind, name)) => {
                let name = format!("{kind}-{}", name.to_ascii_lowercase());
                Spanned::new(key.span(), Cow::Owned(name))
            }
            None => key,
        };
        (key, value)
    });
    limits.collect()
}

fn mistake(error: &toml::de::Error) -> Placed<String> {
    (error.message().to_owned(), error.span())
}

/// Narrows the span to the rule that the message names, if the span contains the rule.
fn narrowed((message, span): Placed<String>, text: &str) -> Placed<String> {
    let rest = message.split_once("rule `");
    let rule = rest.and_then(|it| it.1.split_once('`'));
    let narrow = match (&span, rule) {
        (Some(span), Some((rule, _))) if !rule.is_empty() => within(text, span, rule),
        _ => None,
    };
    (message, narrow.or(span))
}

/// The place of this rule in the span.
pub(crate) fn within(text: &str, span: &Range<usize>, rule: &str) -> Option<Range<usize>> {
    let value = text.get(span.clone())?;
    let ends = |at: usize| {
        let outside =
            |c: Option<char>| c.is_none_or(|c| matches!(c, '"' | '\'' | ',') || c.is_whitespace());
        outside(value[..at].chars().next_back()) && outside(value[at + rule.len()..].chars().next())
    };
    let places = value.match_indices(rule).map(|(at, _)| at);
    let places = places.filter(|at| ends(*at));
    let at = span.start + places.last()?;
    Some(at..at + rule.len())
}

fn json(text: &str) -> (Vec<Placed<Policy>>, Vec<Placed<String>>) {
    #[derive(Deserialize)]
    struct Nested {
        policies: Policies,
    }
    // Parse the text again for the policies, because errors need their positions in it.
    let is_nested = serde_json::from_str::<serde_json::Value>(text)
        .is_ok_and(|root| root[TABLE].is_object() && root[TABLE].get("rules").is_none());
    let read = if is_nested {
        serde_json::from_str(text).map(|file: Nested| file.policies)
    } else {
        serde_json::from_str(text)
    };
    match read {
        Ok(policies) => {
            let found = policies.iter().map(|policy| (policy.clone(), None));
            (found.collect(), Vec::new())
        }
        Err(error) => {
            let mistake = json_mistake(text, &error);
            (Vec::new(), vec![narrowed(mistake, text)])
        }
    }
}

fn json_mistake(text: &str, error: &serde_json::Error) -> Placed<String> {
    let message = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let lines = text.split_inclusive('\n');
    let lines = lines.take(error.line().saturating_sub(1));
    let end = lines.map(str::len).sum::<usize>() + error.column();
    // serde_json reports an error at the end of the wrong text.
    let start = text.get(..end).and_then(|read| read.rfind('\n'));
    let is_rule = message.contains("rule `");
    let start = match start {
        _ if !is_rule => end.saturating_sub(1),
        line => line.map_or(0, |line_end| line_end + 1),
    };
    let message = message.strip_suffix(&place).unwrap_or(&message);
    (message.to_owned(), (error.line() > 0).then_some(start..end))
}
