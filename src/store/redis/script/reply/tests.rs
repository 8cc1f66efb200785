use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    charge::Charge, error::StoreErrorKind, key::Key, policy::Policy, settlement::Settlement,
};

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
    assert!(matches!(&results[1], Ok(Reply::Check(it)) if it.is_allowed()));
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
        let settlement = Settlement::new(admitted.usage(), [1, 2]).unwrap();
        let policy = Policy::parse("p", "1/1s").unwrap();
        let reset = Operation::Reset { policy, key: Key::new("user", "alice") };
        let fill = Operation::Fill { check: check(), count: 3 };
        let reply = Value::BulkString(reply);
        for first in [Operation::Check(check()), fill, Operation::Settle(settlement), reset] {
            let operations = [first, Operation::Check(check())];
            prop_assert_eq!(replies(&operations, &reply).len(), 2);
        }
    }
}
