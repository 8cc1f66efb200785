//! The kinds and messages of Redis errors.

use redis::Value;

use super::*;

#[test]
fn error_replies_are_told_apart_by_their_code() {
    use StoreErrorKind::{AccessDenied, Protocol, Refused, Unavailable};
    let replies = [
        (
            Refused,
            &[
                "LOADING Redis is loading the dataset in memory",
                "BUSY Redis is busy running a script",
                "OOM command not allowed when used memory > 'maxmemory'",
                "MISCONF Errors writing to the AOF file",
                "READONLY You can't write against a read only replica",
                "MASTERDOWN Link with MASTER is down",
                "NOREPLICAS Not enough good replicas to write",
                "CLUSTERDOWN Hash slot not served",
                "TRYAGAIN Multiple keys request during rehashing of slot",
                "MOVED 7 alice:6379",
                "ASK 7 alice:6379",
                "ERR max requests limit exceeded. Limit: 5, Usage: 5, alice",
                "ERR max daily request limit exceeded",
                "ERR DB capacity quota exceeded",
                "ERR Error running script (call to f_0a1b): @user_script:1: @user_script: 1: -OOM command not allowed",
                "ERR Error running script (call to f_0a1b): @user_script:1: @user_script: 1: -READONLY You can't write",
            ][..],
        ),
        (
            Unavailable,
            &[
                "ERR Connection timed out",
                "ERR max number of clients reached",
                "upstream failure",
                "no upstream host",
            ][..],
        ),
        (
            AccessDenied,
            &[
                "NOAUTH Authentication required",
                "WRONGPASS invalid username-password pair",
                "NOPERM No permissions to access the key alice",
                "ERR The user executing the script can't run this command or subcommand script: alice",
                "@user_script: 12: The user executing the script can't run this command or subcommand",
                "ERR ACL failure in script: User alice has no permissions to run the 'get' command",
                "ERR This instance has cluster support disabled",
                "ERR DB index is out of range",
                "ERR Authentication required.",
                "DENIED Redis is running in protected mode because alice",
                "NOPROTO unsupported protocol version",
                "ERR unknown command 'EVALSHA', with args beginning with: 'alice'",
                "ERR unknown command `EVALSHA`, with args beginning with: `alice`",
                "ERR Unknown Redis command called from script script: 0a1b, on @user_script:1.",
                "ERR Unknown Redis command called from script",
                "ERR Error running script (call to f_0a1b): @user_script:1: @user_script: 1: Unknown Redis command called from Lua script",
                "@user_script: 12: Unknown Redis command called from Lua script",
                "ERR This Redis command is not allowed from script",
                "ERR This Redis command is not allowed from scripts: alice",
                "unsupported command 'evalsha'",
            ][..],
        ),
        (
            Protocol,
            &[
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                "CROSSSLOT Keys in request don't hash to the same slot",
                "WHATEVER alice",
                "ERR Error running script (call to f_0a1b): @user_script:1: WRONGTYPE Operation against a key",
                "ERR Error running script (call to f_0a1b): @user_script:1: attempt to call a nil value: alice",
            ][..],
        ),
    ];
    for (reply, kind) in replies
        .into_iter()
        .flat_map(|(kind, replies)| replies.iter().map(move |reply| (reply, kind)))
    {
        // The script passes on the text of an error that it has caught.
        for error in [error_reply(reply), within_script(reply)] {
            let error = store_error(&error);
            assert_eq!(error.kind(), kind, "{reply}");
            assert!(!format!("{error} {error:?}").contains("alice"), "{error:?}");
        }
    }
}

#[test]
fn an_error_is_unsent_if_the_server_has_certainly_done_nothing() {
    let not_done = "\
OOM command not allowed when used memory > 'maxmemory'
ERR Error running script (call to f_0a1b): @user_script:1: @user_script: 1: -OOM command
EXECABORT Transaction discarded because of: OOM command not allowed
EXECABORT Transaction discarded because of previous errors.
READONLY You can't write against a read only replica
MISCONF Errors writing to the AOF file
NOREPLICAS Not enough good replicas to write
MASTERDOWN Link with MASTER is down
LOADING Redis is loading the dataset in memory
BUSY Redis is busy running a script
CLUSTERDOWN Hash slot not served
TRYAGAIN Multiple keys request during rehashing of slot
CROSSSLOT Keys in request don't hash to the same slot
NOAUTH Authentication required
ERR max number of clients reached
DENIED Redis is running in protected mode
ERR Connection refused
no upstream host";
    let perhaps_done = "\
upstream failure
ERR max requests limit exceeded script: 0a1b, on @user_script:1.
ERR DB capacity quota exceeded
ERR Connection timed out
ERR Connection reset by peer
NOPERM No permissions to access a key
ERR ACL failure in script: User alice has no permissions to run the 'set' command
WRONGTYPE Operation against a key holding the wrong kind of value
ERR Error running script (call to f_0a1b): attempt to call a nil value
WHATEVER";
    for (replies, is_unsent) in [(not_done, true), (perhaps_done, false)] {
        for reply in replies.lines() {
            let error = store_error(&error_reply(reply));
            assert_eq!(error.is_unsent(), is_unsent, "{reply}");
        }
    }
}

#[test]
fn a_right_that_is_missing_is_named_and_nothing_else_of_the_reply() {
    for (reply, expected) in [
        (
            "NOPERM this user has no permissions to run the 'scan' command or its subcommand",
            Some("the right `+scan` is missing"),
        ),
        (
            "NOPERM User alice has no permissions to run the 'cluster|slots' command",
            Some("the right `+cluster|slots` is missing"),
        ),
        (
            "ERR ACL failure in script: User alice has no permissions to run the 'get' command",
            Some("the right `+get` is missing"),
        ),
        ("NOPERM has no permissions to run the 'Alice' command", None),
        ("NOPERM No permissions to access a key", None),
        ("ERR has no permissions to run the 'get' command", None),
    ] {
        let error = store_error(&error_reply(reply));
        let source = error.source().unwrap().to_string();
        let expected = expected.unwrap_or("error reply of the server");
        assert_eq!(source, expected, "{reply}");
    }
}

#[test]
fn a_command_that_the_server_forbids_is_named_and_nothing_else_of_the_reply() {
    for (reply, expected) in [
        (
            "ERR unknown command 'EVALSHA', with args beginning with: 'alice'",
            "the command `EVALSHA`",
        ),
        (
            "ERR unknown command `client|info`, with args",
            "the command `client|info`",
        ),
        ("unsupported command 'evalsha'", "the command `evalsha`"),
        (
            "ERR unknown command 'a b', with args",
            "one that the script calls",
        ),
        (
            "ERR Unknown Redis command called from script",
            "one that the script calls: `TIME`",
        ),
    ] {
        let error = store_error(&error_reply(reply));
        let source = error.source().unwrap().to_string();
        assert!(source.starts_with(expected), "{reply}: {source}");
        assert!(error.to_string().contains("forbids a command"));
    }
}

#[test]
fn a_wrong_password_is_said_to_be_one() {
    for reply in [
        "WRONGPASS invalid username-password pair: alice",
        "NOAUTH Authentication required, alice",
    ] {
        let error = store_error(&error_reply(reply));
        assert_eq!(error.kind(), StoreErrorKind::AccessDenied);
        assert_eq!(
            error.source().unwrap().to_string(),
            "the authentication failed"
        );
        assert!(!format!("{error} {error:?}").contains("alice"), "{error:?}");
    }
    let error = store_error(&(ErrorKind::AuthenticationFailed, "alice").into());
    assert_eq!(
        error.source().unwrap().to_string(),
        "the authentication failed"
    );
    let other = store_error(&error_reply("WHATEVER alice"));
    assert_eq!(
        other.source().unwrap().to_string(),
        "error reply of the server"
    );
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
