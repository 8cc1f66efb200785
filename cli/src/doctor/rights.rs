//! The least rights of the guide, each tried on a key of the tool's own.

use std::error::Error as _;

use sluicegate::StoreError;
use sluicegate::error::StoreErrorKind;
use sluicegate::store::redis::inspect::Inspector;

/// The commands of each feature, on a key `K`. Each list deletes what it writes, and the last one deletes the rest.
const COMMANDS: &str = include_str!("rights.txt");

/// The features that need rights: the first one, each service.
pub(super) const FEATURES: [&str; 5] = ["checks", "blocks", "concurrency", "policies", "reports"];

/// The rights that a user lacks, by feature, and the first error by which the server refuses what the user may do.
type Rights = (Vec<(&'static str, Vec<String>)>, Option<StoreError>);

/// Tries all commands. An error if the server does not answer.
pub(super) async fn tried(server: &Inspector, key: &str) -> Result<Rights, StoreError> {
    let (mut lacking, mut refused) = (Vec::new(), None);
    let features = COMMANDS.lines().filter_map(|line| line.split_once(": "));
    for (feature, commands) in features {
        let mut missing = Vec::new();
        for command in commands.split(", ") {
            let words = command.split(' ');
            let mut words = words.map(|it| if it == "K" { key } else { it });
            let name = words.next().unwrap_or_default();
            let arguments: Vec<&str> = words.collect();
            let Err(error) = server.ask(redis::cmd(name).arg(arguments)).await else {
                continue;
            };
            let cause = error.source().map(ToString::to_string);
            match error.kind() {
                StoreErrorKind::Unavailable | StoreErrorKind::Timeout => return Err(error),
                StoreErrorKind::Refused => refused = refused.or(Some(error)),
                // It names the command, or else the keys are meant.
                StoreErrorKind::AccessDenied if cause.is_some_and(|it| it.contains('`')) => {
                    missing.push(format!("+{}", name.to_lowercase()));
                }
                StoreErrorKind::AccessDenied => {
                    missing.push(format!("~{}:*", key.split(":{").next().unwrap_or_default()));
                }
                // The server has the command, and the user the right to it.
                _ => {}
            }
        }
        missing.dedup();
        if FEATURES.contains(&feature) && !missing.is_empty() {
            lacking.push((feature, missing));
        }
    }
    Ok((lacking, refused))
}
