use redis::Value;

use super::*;

#[test]
fn error_replies_are_told_apart_by_their_code() {
    use StoreErrorKind::{AccessDenied, Protocol, Unavailable};
    for (reply, kind) in [
        (
            "LOADING Redis is loading the dataset in memory",
            Unavailable,
        ),
        ("BUSY Redis is busy running a script", Unavailable),
        (
            "OOM command not allowed when used memory > 'maxmemory'",
            Unavailable,
        ),
        ("MISCONF Errors writing to the AOF file", Unavailable),
        (
            "READONLY You can't write against a read only replica",
            Unavailable,
        ),
        ("MASTERDOWN Link with MASTER is down", Unavailable),
        ("NOREPLICAS Not enough good replicas to write", Unavailable),
        ("CLUSTERDOWN Hash slot not served", Unavailable),
        ("NOAUTH Authentication required", AccessDenied),
        ("WRONGPASS invalid username-password pair", AccessDenied),
        (
            "NOPERM No permissions to access the key alice",
            AccessDenied,
        ),
        (
            "ERR The user executing the script can't run this command or subcommand script: alice",
            AccessDenied,
        ),
        (
            "ERR ACL failure in script: User alice has no permissions to run the 'get' command",
            AccessDenied,
        ),
        (
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            Protocol,
        ),
        (
            "CROSSSLOT Keys in request don't hash to the same slot",
            Protocol,
        ),
        (
            "ERR unknown command 'EVALSHA', with args beginning with: 'alice'",
            Protocol,
        ),
        ("WHATEVER alice", Protocol),
        (
            "ERR This instance has cluster support disabled",
            AccessDenied,
        ),
        ("ERR Connection timed out", Unavailable),
        (
            "ERR Error running script (call to f_0a1b): @user_script:1: @user_script: 1: -OOM command not allowed",
            Unavailable,
        ),
        (
            "ERR Error running script (call to f_0a1b): @user_script:1: @user_script: 1: -READONLY You can't write",
            Unavailable,
        ),
        (
            "ERR Error running script (call to f_0a1b): @user_script:1: WRONGTYPE Operation against a key",
            Protocol,
        ),
        (
            "ERR Error running script (call to f_0a1b): @user_script:1: attempt to call a nil value: alice",
            Protocol,
        ),
    ] {
        let error = store_error(&error_reply(reply));
        assert_eq!(error.kind(), kind, "{reply}");
        assert!(!format!("{error} {error:?}").contains("alice"), "{error:?}");
    }
}

#[test]
fn failures_of_the_connection_are_told_apart() {
    use StoreErrorKind::{Timeout, Unavailable};
    for (io, kind) in [
        (io::ErrorKind::TimedOut, Timeout),
        (io::ErrorKind::ConnectionRefused, Unavailable),
        (io::ErrorKind::BrokenPipe, Unavailable),
        (io::ErrorKind::Other, Unavailable),
    ] {
        let error = io::Error::new(io, "alice@redis.example");
        let error = store_error(&RedisError::from(error));
        assert_eq!(error.kind(), kind, "{io}");
        assert!(!format!("{error} {error:?}").contains("alice"), "{error:?}");
    }
}

fn error_reply(text: &str) -> RedisError {
    match redis::parse_redis_value(format!("-{text}\r\n").as_bytes()) {
        Ok(Value::ServerError(error)) => error.into(),
        other => panic!("{other:?}"),
    }
}
