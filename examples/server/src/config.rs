//! Limits from a file, which the server reads again at each SIGHUP.
//!
//! ```toml
//! [limits]
//! ip = "10/1s,40/10s,120/1m"
//! "header:x-api-key" = ["600/1m", "100000/1d"]
//! "header:x-tenant" = { rules = "100/1s", shadow = true }     # decides and reports, and never denies
//! "header:x-user" = { rules = "9/1s", strikes = "5/10m", ban = "1h" }     # who is denied five times is blocked
//! ```

use std::{collections::BTreeMap, fs, io, path::Path};

use serde::Deserialize;
use sluicegate::{
    block::Ban,
    error::ConfigError,
    policies::{Policies, ReloadablePolicies},
};
use tokio::signal::unix::{SignalKind, signal};

use super::options::Limit;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    limits: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "write rules as \"10/1s,120/1m\", as a list of them, or as { rules = …, shadow = true, strikes = …, ban = … }"
)]
enum Entry {
    Rules(Rules),
    Policy(Policy),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Policy {
    rules: Rules,
    #[serde(default)]
    shadow: bool,
    strikes: Option<String>,
    ban: Option<String>,
}

impl Policy {
    /// `strikes` and `ban` must be given both, or neither.
    fn ban(&self) -> Result<Option<Ban>, String> {
        match (&self.strikes, &self.ban) {
            (None, None) => Ok(None),
            (Some(strikes), Some(time)) => {
                let ban = format!("{strikes}={time}").parse();
                ban.map(Some)
                    .map_err(|error: ConfigError| error.to_string())
            }
            _ => Err("a ban needs both `strikes` and `ban`".to_owned()),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Rules {
    Text(String),
    List(Vec<String>),
}

/// Reads the limits of the file: at least one. An error names the file and the mistake in it.
pub(crate) fn read(file: &Path) -> Result<Vec<Limit>, String> {
    let of_file = |why: String| format!("{}: {}", file.display(), why.trim());
    let text = fs::read_to_string(file).map_err(|error| of_file(error.to_string()))?;
    let config: Config = toml::from_str(&text).map_err(|error| of_file(error.to_string()))?;
    let limits = config
        .limits
        .into_iter()
        .map(|(key, entry)| -> Result<Limit, String> {
            let (rules, shadow, ban) = match entry {
                Entry::Rules(rules) => (rules, false, None),
                Entry::Policy(policy) => {
                    let ban = policy
                        .ban()
                        .map_err(|why| of_file(format!("{key}: {why}")))?;
                    (policy.rules, policy.shadow, ban)
                }
            };
            let rules = match rules {
                Rules::Text(text) => text,
                Rules::List(list) => list.join(","),
            };
            let mut limit = Limit::read(&key, &rules).map_err(of_file)?;
            if shadow {
                limit.policy = limit.policy.shadow();
            }
            if let Some(ban) = ban {
                limit.policy = limit.policy.ban(ban);
            }
            Ok(limit)
        });
    let limits: Vec<Limit> = limits.collect::<Result<_, _>>()?;
    // Two limits may be valid alone, and have the same name.
    policies(&limits).map_err(of_file)?;
    Ok(limits)
}

/// The policies of the limits. Fails if two have the same name.
pub(crate) fn policies(limits: &[Limit]) -> Result<Policies, String> {
    if limits.is_empty() {
        return Err("there are no limits".into());
    }
    let policies = limits.iter().map(|limit| limit.policy.clone());
    Policies::new(policies).map_err(|error| error.to_string())
}

/// Reads the file again at each SIGHUP. If the file is wrong, the limits stay as they are.
pub(crate) fn follow(file: &Path, live: ReloadablePolicies) -> io::Result<()> {
    let mut hangups = signal(SignalKind::hangup())?;
    let file = file.to_owned();
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            match read_again(&file, &live) {
                Ok(()) => eprintln!("server: limits read again from {}", file.display()),
                Err(why) => eprintln!("server: the limits stay as they are: {why}"),
            }
        }
    });
    Ok(())
}

/// Only rules may change. Another kind of key would need another extractor, which the running layer does not have.
fn read_again(file: &Path, live: &ReloadablePolicies) -> Result<(), String> {
    let policies = policies(&read(file)?)?;
    if let Some(new) = policies
        .iter()
        .find(|policy| live.get(policy.name()).is_none())
    {
        return Err(format!(
            "policy `{}` is new: start again to add it",
            new.name()
        ));
    }
    live.replace(policies).map_err(|error| error.to_string())
}
