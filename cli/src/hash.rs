//! `sluicegate hash`: the stored form of identities, to find the name of a listed hash.

use std::collections::BTreeSet;
use std::io::{self, BufRead};

use clap::Args;
use serde_json::json;

use super::identity::Identity;
use super::text::printable;
use super::{Error, Output, Result, Settings, identity, server};

#[derive(Args)]
#[command(after_help = include_str!("help/hash.txt"))]
pub(crate) struct HashArgs {
    /// KIND=VALUE, header:NAME=VALUE or cookie:NAME=VALUE; with - as VALUE, each line of stdin is one
    #[arg(value_name = "IDENTITY")]
    identity: Identity,

    /// The service keeps only a hash of the value (`Key::secret`), as it always does for headers and cookies
    #[arg(long)]
    hashed: bool,

    /// Only values with this hash: '#5877c54e…' or 'header=#5877c54e…', from 8 digits on; may be repeated
    #[arg(long, value_name = "HASH", value_parser = parse_digits)]
    find: Vec<String>,
}

pub(crate) fn run(args: &HashArgs, settings: &Settings, output: &mut Output) -> Result<bool> {
    let inspector = server::unconnected(settings)?.inspector();
    let kind = &args.identity.kind;
    let mut rows = Vec::new();
    let (mut found, mut has_hashes) = (BTreeSet::new(), false);
    let mut add = |value: &str, output: &mut Output| -> Result<()> {
        let key = identity::key(kind, value, args.hashed, settings.ipv6_prefix())?;
        let identity = inspector.name(&key, "").identity().to_owned();
        let digits = identity.split_once("=#").map(|(_, digits)| digits);
        has_hashes |= digits.is_some();
        let is_hash = |wanted: &&String| digits.is_some_and(|digits| digits.starts_with(&**wanted));
        let wanted: Vec<&String> = args.find.iter().filter(is_hash).collect();
        if wanted.is_empty() && !args.find.is_empty() {
            return Ok(());
        }
        found.extend(wanted);
        // Print text at once, since the list may be long. JSON is one document.
        if output.is_json {
            rows.push(json!({ "identity": identity, "value": value }));
        } else {
            output.line(format!("{identity}  {}", printable(value.as_bytes())))?;
        }
        Ok(())
    };
    match &*args.identity.value {
        "-" => each_line(|value| add(value, output))?,
        value => add(value, output)?,
    }
    let missing = args.find.iter().filter(|digits| !found.contains(digits));
    let missing: Vec<String> = missing.map(|digits| format!("#{digits}")).collect();
    if output.is_json {
        output.document(&json!({ "identities": rows }))?;
    } else if !missing.is_empty() {
        let why = why_missing(kind, has_hashes, settings.secret.is_some());
        let missing = missing.join(", ");
        output.hint(&format!("No value has the hash {missing}: {why}."))?;
    }
    Ok(missing.is_empty())
}

/// The reason why no value with this hash was found.
fn why_missing(kind: &str, has_hashes: bool, has_secret: bool) -> String {
    if !has_hashes {
        return format!("values of the kind `{kind}` are stored as they are, or see --hashed");
    }
    let secret = match has_secret {
        true => "the secret of the settings may not be that of the service",
        false => "the service may use a secret, see --secret",
    };
    match kind.split_once(':') {
        Some((what, name)) => format!("it may be of another {what} than `{name}`, or {secret}"),
        None => format!("it is not among them, or {secret}"),
    }
}

/// The non-empty lines of stdin without their ends, read in the same way as an identity from stdin.
fn each_line(mut add: impl FnMut(&str) -> Result<()>) -> Result<()> {
    let mut is_empty = true;
    for (number, line) in (1..).zip(io::stdin().lock().lines()) {
        let place = format!("stdin:{number}");
        let line = line.map_err(|error| Error::usage(format_args!("{place}: {error}")))?;
        let value = line.trim_end_matches('\r');
        if !value.is_empty() {
            is_empty = false;
            add(value).map_err(|error| error.of(&place))?;
        }
    }
    if is_empty {
        return Err(Error::usage("stdin: there is no value"));
    }
    Ok(())
}

/// The digits of a hash, or its first digits.
fn parse_digits(text: &str) -> Result<String, String> {
    let hash = text.rsplit_once('=').map_or(text, |(_, hash)| hash);
    let digits = hash.strip_prefix('#').unwrap_or(hash).trim_end_matches('…');
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_hash = (8..=32).contains(&digits.len()) && digits.bytes().all(is_digit);
    match is_hash {
        true => Ok(digits.to_owned()),
        false => Err("write a hash as it is listed, with 8 to 32 digits: '#5877c54e…'".into()),
    }
}
