//! The least rights of the guide, each tried on a key of the tool's own.

use sluicegate::StoreError;
use sluicegate::error::StoreErrorKind;
use sluicegate::store::redis::inspect::Inspector;

/// The features, what is missing without their rights, and their commands on a key `K`. Each list deletes what it writes.
pub(super) const FEATURES: [(&str, &str, &str); 5] = [
    (
        CHECKS,
        "no check is decided",
        "TIME|EVAL return(1) 1 K|EVALSHA 0 1 K|SET K 0 PX 60000|GET K|GETRANGE K 0 0|EXISTS K|SETRANGE K 0 0|PEXPIREAT K 1|\
         DEL K",
    ),
    (
        "blocks",
        "blocks hold and are not listed",
        "ZADD K 1 m|ZSCAN K 0|ZREMRANGEBYSCORE K 5 6|ZREM K m",
    ),
    (
        "concurrency",
        "rules of concurrency do not work",
        "ZADD K 1 m|ZCOUNT K 0 1|ZMSCORE K m|ZRANGEBYSCORE K 0 1|ZREVRANGEBYSCORE K 1 0|ZREMRANGEBYSCORE K 5 6|ZREM K m",
    ),
    (
        "policies",
        "policies are not published",
        "HSET K f v|HGETALL K|PEXPIRE K 60000|HDEL K f",
    ),
    (
        "reports",
        "denials and contributors are not counted",
        "ZINCRBY K 1 m|ZRANGE K 0 0|PEXPIRE K 60000|ZREMRANGEBYRANK K 0 0",
    ),
];

/// The feature that each service needs.
pub(super) const CHECKS: &str = "checks";

/// What a user may not do, by feature, and the first error by which the server refuses to do what it may.
#[derive(Default)]
pub(super) struct Rights {
    pub(super) missing: Vec<(&'static str, &'static str, Vec<String>)>,
    pub(super) refused: Option<StoreError>,
}

/// Tries all commands. An error if the server does not answer.
pub(super) async fn tried(server: &Inspector, key: &str) -> Result<Rights, StoreError> {
    let mut rights = Rights::default();
    for (feature, without, commands) in FEATURES {
        let mut missing = Vec::new();
        for command in commands.split('|') {
            let Err(error) = server.ask(&parsed(command, key)).await else {
                continue;
            };
            match error.kind() {
                StoreErrorKind::Unavailable | StoreErrorKind::Timeout => return Err(error),
                StoreErrorKind::AccessDenied => missing.push(right(command, &error)),
                StoreErrorKind::Refused => rights.refused = rights.refused.or(Some(error)),
                // The server has the command, and the user the right to it.
                _ => {}
            }
        }
        if !missing.is_empty() {
            missing.dedup();
            rights.missing.push((feature, without, missing));
        }
    }
    // What a list could not delete for want of a right.
    for command in ["PEXPIRE K 60000", "DEL K"] {
        let _ = server.ask(&parsed(command, key)).await;
    }
    Ok(rights)
}

fn parsed(command: &str, key: &str) -> redis::Cmd {
    let mut words = command.split(' ');
    let mut cmd = redis::cmd(words.next().unwrap_or_default());
    for word in words {
        cmd.arg(if word == "K" { key } else { word });
    }
    cmd
}

/// The right that an error is about: to a command, or to the keys.
fn right(command: &str, error: &StoreError) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    let is_of_command = cause.is_some_and(|it| it.contains('`'));
    let name = command.split(' ').next().unwrap_or_default();
    match is_of_command {
        true => format!("+{}", name.to_lowercase()),
        false => "~PREFIX:*".to_owned(),
    }
}
