use proptest::{collection::vec, prelude::*};

use super::*;
use crate::domain::{
    charge::Charge, check::CheckBatch, decision::Decision, error::StoreErrorKind, key::Key,
    policy::Policy, rule::Rule, settlement::Settlement,
};

fn replies(operations: &[Operation], reply: &Value) -> Vec<Result<Reply, StoreError>> {
    read_replies(operations, reply).results
}

fn check() -> Check {
    let policies = ["1/1s,2/1m", "3/1d@fixed"].map(|rules| Policy::parse("p", rules).unwrap());
    let keys = ["alice", "bob"].map(|user| Key::new("user", user));
    let charges = policies.iter().zip(keys);
    Check::new(charges.map(|(policy, key)| Charge::new(policy, key, 1))).unwrap()
}

fn decision(reply: &Value) -> Result<Reply, StoreError> {
    replies(&[Operation::Check(check())], reply).remove(0)
}

/// An admission, told at length.
fn whole() -> Vec<u8> {
    let counts = |rules: usize| [vec![LONG], vec![1; rules * (7 + 6 + 6)]].concat();
    [&[1; 6][..], &[DONE, 1, 0, 0, 0], &counts(2), &counts(1)].concat()
}

#[test]
fn a_reply_that_is_no_text_or_too_short_is_an_error() {
    let whole = whole();
    let reply = |length| Value::BulkString(whole[..length].to_vec());
    assert!(decision(&reply(whole.len())).is_ok());
    let short = (0..whole.len()).map(reply);
    for reply in short.chain([Value::Nil, Value::Int(1), Value::Array(vec![])]) {
        let error = decision(&reply).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Protocol);
    }
}

#[test]
fn an_operation_that_failed_has_an_error_of_its_own() {
    let mut reply = whole();
    reply.splice(6..6, [FAILED, WRONG_TYPE]);
    let operations = [check(), check()].map(Operation::Check);
    let results = replies(&operations, &Value::BulkString(reply));
    let error = results[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Protocol);
    assert!(error.is_unsent(), "it has written nothing");
    assert!(matches!(&results[1], Ok(Reply::Check(decision)) if decision.is_allowed()));
}

#[test]
fn a_refusal_is_the_error_that_the_server_has_given_and_says_whether_a_write_came_before() {
    let told = |reason: u8, text: &str| {
        let length = u8::try_from(text.len()).unwrap();
        let refusal = [&[FAILED, reason, length][..], text.as_bytes()].concat();
        let operations = [check(), check()].map(Operation::Check);
        let reply = [&[1; 6][..], &refusal, &whole()[6..]].concat();
        let mut replies = read_replies(&operations, &Value::BulkString(reply));
        assert!(replies.results[1].is_ok(), "the other is read behind it");
        let error = replies.results.remove(0).unwrap_err();
        let code = error.code().map(ToOwned::to_owned);
        let unsent = error.is_unsent();
        (error.kind(), code, unsent, replies.needs_another_connection)
    };
    use StoreErrorKind::{AccessDenied, Protocol, Refused};
    let full = "OOM command not allowed when used memory > 'maxmemory'.";
    let right = "ERR ACL failure in script: User alice has no permissions to run the 'set' command";
    let old = "@user_script: 1: The user executing the script can't run this command";
    for (text, kind, code, is_elsewhere) in [
        (full, Refused, Some("OOM"), false),
        ("READONLY You can't write", Refused, Some("READONLY"), true),
        ("NOREPLICAS Not enough", Refused, Some("NOREPLICAS"), true),
        ("MISCONF Errors writing", Refused, Some("MISCONF"), false),
        ("ERR DB capacity quota exceeded", Refused, None, false),
        (right, AccessDenied, Some("NOPERM"), false),
        (old, AccessDenied, Some("NOPERM"), false),
        ("WHATEVER", Protocol, Some("WHATEVER"), false),
        ("", Protocol, None, false),
    ] {
        for (reason, is_unsent) in [(REFUSED, true), (REFUSED_LATER, false)] {
            let expected = (kind, code.map(ToOwned::to_owned), is_unsent, is_elsewhere);
            assert_eq!(told(reason, text), expected, "{text}");
        }
    }
}

/// Until the time 1, by an operator, as it is stored.
const BLOCK: [u8; 8] = [1, 0, 0, 0, 0, 0, 1, 1];

fn read(operations: &[Operation], parts: &[&[u8]]) -> Vec<Result<Reply, StoreError>> {
    let bytes = [&[0; 6][..], &parts.concat()].concat();
    replies(operations, &Value::BulkString(bytes))
}

#[test]
fn a_blocked_check_tells_which_of_its_keys_is() {
    let enforcing = Operation::Check(check().enforce_blocks(true));
    let then = Operation::Unblock {
        key: Key::new("user", "bob"),
    };
    let operations = [enforcing, then];
    let results = read(&operations, &[&[BLOCKED, 1], &BLOCK, &[DONE, DONE]]);
    let Ok(Reply::Check(Decision::Blocked(blocked))) = &results[0] else {
        panic!("{results:?}");
    };
    assert_eq!(blocked.key(), &Key::new("user", "bob"));
    assert_eq!(blocked.block(), Block::new(1, BlockedBy::Operator));
    assert!(matches!(results[1], Ok(Reply::Unblock)));

    // Of no key, of no known maker, cut off; and one that was not asked for.
    let mut stranger = BLOCK;
    stranger[6] = 4;
    for parts in [
        [&[BLOCKED, 2][..], &BLOCK],
        [&[BLOCKED, 1], &stranger],
        [&[BLOCKED, 1], &BLOCK[..7]],
    ] {
        let error = read(&operations, &parts).remove(0).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Protocol);
    }
    let plain = [Operation::Check(check())];
    let error = read(&plain, &[&[BLOCKED, 1], &BLOCK]).remove(0);
    assert_eq!(error.unwrap_err().kind(), StoreErrorKind::Protocol);
}

#[test]
fn of_an_unblocking_that_failed_both_answers_are_read() {
    let key = || Key::new("user", "bob");
    let unblock = Operation::Unblock { key: key() };
    let block = Operation::Block {
        key: key(),
        request: crate::domain::block::Until::Forever.into(),
    };
    let operations = [unblock, block];
    for (failed, is_unsent) in [
        (&[FAILED, WRONG_TYPE, DONE][..], false),
        (&[DONE, FAILED, WRONG_TYPE], false),
        (&[FAILED, WRONG_TYPE, FAILED, UNREADABLE], true),
    ] {
        let results = read(&operations, &[failed, &[DONE], &BLOCK]);
        let error = results[0].as_ref().unwrap_err();
        assert_eq!(error.is_unsent(), is_unsent, "the other half may be done");
        let Ok(Reply::Block(block)) = &results[1] else {
            panic!("{results:?}");
        };
        assert_eq!(*block, Block::new(1, BlockedBy::Operator));
    }
}

proptest! {
    #[test]
    fn no_reply_panics(start in 0..3_usize, mut reply in vec(any::<u8>(), 0..300)) {
        // As a sound reply begins, so that what follows is read too.
        let sound = whole();
        let known = [0, 11, 12 + 2 * 19][start].min(reply.len());
        reply[..known].copy_from_slice(&sound[..known]);
        let Ok(Reply::Check(admitted)) = decision(&Value::BulkString(sound)) else {
            panic!("a sound reply is not read")
        };
        let settlement = Settlement::new(admitted.usage(), |_| 2).unwrap();
        let policy = Policy::parse("p", "1/1s").unwrap();
        let reset = Operation::Reset { policy, key: Key::new("user", "alice") };
        let fill = Operation::CheckBatch(CheckBatch::new(check(), 3));
        let reply = Value::BulkString(reply);
        let key = Key::new("user", "alice");
        let enforcing = Operation::CheckBatch(CheckBatch::new(check().enforce_blocks(true), 3));
        let unblock = Operation::Unblock { key: key.clone() };
        let request = crate::domain::block::BlockRequest::from(crate::domain::block::Until::Forever);
        let block = Operation::Block { key: key.clone(), request: request.clone() };
        let ban = Operation::Ban { key, strikes: Rule::per_minute(1), request };
        let limits = [Operation::Check(check()), fill, Operation::Settle(settlement), reset];
        for first in limits.into_iter().chain([enforcing, block, ban, unblock]) {
            let operations = [first, Operation::Check(check())];
            prop_assert_eq!(replies(&operations, &reply).len(), 2);
        }
    }
}
