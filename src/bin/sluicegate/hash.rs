//! `sluicegate hash`: how identities are stored, so that a hash that is listed leads to a name.

use std::io::{self, BufRead, Write};

use clap::Args;
use serde::Serialize;

use super::{
    Answer,
    error::{Error, Result},
    identity::{self, Identity},
    output::Output,
    server,
    settings::Settings,
    text::printable,
};

const EXAMPLES: &str = "\
Examples:
  sluicegate hash header:x-user=alice
  sluicegate hash header:x-user=- < users.txt
  sluicegate hash header:x-user=- --find '#5877c54e…' < users.txt

Prints how an identity is stored, and its value: of - one line for each line
of stdin. With --find only those with this hash, as `top`, `blocks` and
`contributors` list it; its first digits are enough. The hashes depend on the
secret of the settings, which has to be that of the service. No server is
asked.

Exit codes: 0 done, 1 no value has the hash of --find.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HashArgs {
    /// Whose: KIND=VALUE, header:NAME=VALUE or cookie:NAME=VALUE; a VALUE of - takes each line of stdin for one
    #[arg(value_name = "IDENTITY")]
    identity: Identity,

    /// The value is a secret, of which the service keeps only a hash (`Key::secret`); headers and cookies always are
    #[arg(long)]
    hashed: bool,

    /// Only values with this hash: '#5877c54e…' or 'header=#5877c54e…', from 8 digits on
    #[arg(long, value_name = "HASH", value_parser = parse_digits)]
    find: Option<String>,
}

/// The answer as JSON; fields are only ever added.
#[derive(Serialize)]
struct Report {
    identities: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    /// As it is stored.
    identity: String,
    value: String,
}

pub(crate) fn run(args: &HashArgs, settings: &Settings, output: &mut Output) -> Result<Answer> {
    let inspector = server::unconnected(settings)?.inspector();
    let kind = args.identity.kind();
    let mut rows = Vec::new();
    let mut found = false;
    let mut add = |value: &str, output: &mut Output| -> Result<()> {
        let key = identity::key(kind, value, args.hashed, settings.ipv6_prefix())?;
        let identity = inspector.name(&key, "").identity().to_owned();
        let digits = identity.split_once("=#").map(|(_, digits)| digits);
        let wanted = args.find.as_deref();
        if wanted.is_some_and(|wanted| !digits.is_some_and(|it| it.starts_with(wanted))) {
            return Ok(());
        }
        found = true;
        if output.is_json() {
            rows.push(Row {
                identity,
                value: value.to_owned(),
            });
        } else {
            writeln!(output, "{identity}  {}", printable(value.as_bytes()))?;
        }
        Ok(())
    };
    match args.identity.value() {
        "-" => each_line(|value| add(value, output))?,
        value => add(value, output)?,
    }
    if output.is_json() {
        output.document(&Report { identities: rows })?;
    } else if !found {
        let secret = match settings.secret {
            Some(_) => "the secret of the settings may not be that of the service",
            None => "the service may use a secret, see --secret",
        };
        output.hint(&format!("No value has this hash; or {secret}."))?;
    }
    Ok(found.into())
}

/// Lines without their ends, as an identity from stdin is read; empty ones are skipped.
fn each_line(mut add: impl FnMut(&str) -> Result<()>) -> Result<()> {
    for (number, line) in (1..).zip(io::stdin().lock().lines()) {
        let place = format!("stdin:{number}");
        let line = line.map_err(|error| Error::usage(format_args!("{place}: {error}")))?;
        let value = line.trim_end_matches('\r');
        if !value.is_empty() {
            add(value).map_err(|error| error.of(&place))?;
        }
    }
    Ok(())
}

/// The digits of a hash, or the first of them.
fn parse_digits(text: &str) -> Result<String, String> {
    let hash = text.rsplit_once('=').map_or(text, |(_, hash)| hash);
    let digits = hash.strip_prefix('#').unwrap_or(hash).trim_end_matches('…');
    let is_hash = (8..=32).contains(&digits.len())
        && digits
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    match is_hash {
        true => Ok(digits.to_owned()),
        false => Err("write a hash as it is listed, with 8 to 32 digits: '#5877c54e…'".into()),
    }
}
