//! Combined extractors: the first of two, both of two, and only under a condition.

use proptest::prelude::*;
use sluicegate::extract::{And, OnlyWhen, Or};

use crate::prelude::*;

fn user(value: &str) -> Key {
    Key::new("user", value)
}

fn only(keys: Result<Keys, ExtractError>) -> Key {
    let keys: Vec<Key> = keys.unwrap().into_iter().collect();
    assert_eq!(keys.len(), 1);
    keys[0].clone()
}

fn missing(_: &Parts) -> Result<Key, ExtractError> {
    Err(ExtractError::missing("nobody"))
}

fn malformed(_: &Parts) -> Result<Key, ExtractError> {
    Err(ExtractError::malformed("garbage"))
}

fn unavailable(_: &Parts) -> Result<Key, ExtractError> {
    Err(ExtractError::unavailable("down"))
}

fn skip(_: &Parts) -> Keys {
    Keys::skip()
}

/// A test for each row: an extractor, and the result for an empty `GET`.
macro_rules! found {
    ($($name:ident: $extractor:expr => $found:expr;)*) => {$(
        #[test]
        fn $name() {
            assert_eq!(found(&$extractor, &head()), $found);
        }
    )*};
}

found! {
    the_first_identity_that_is_there_counts: user("a").or(user("b")) => "user=a";
    the_second_identity_counts_if_the_first_is_missing: missing.or(user("b")) => "user=b";
    the_third_identity_counts_if_two_are_missing: missing.or(missing).or(user("c")) => "user=c";
    nobody_is_missing: missing.or(missing) => "missing";
    nobody_may_be_skipped: missing.or(missing).or_skip() => "skip";
    to_skip_is_an_answer_and_the_second_is_not_asked: skip.or(user("b")) => "skip";
    a_client_cannot_choose_the_second_identity_by_spoiling_the_first: malformed.or(user("b")) => "malformed";
    a_failure_does_not_choose_the_second_identity: unavailable.or(user("b")) => "unavailable";
    a_pair_skips_when_the_first_part_does: skip.and(user("b")) => "skip";
    a_pair_skips_when_the_second_part_does: user("a").and(skip) => "skip";
    a_pair_is_missing_when_the_first_part_is: missing.and(user("b")) => "missing";
    a_pair_is_missing_when_the_second_part_is: user("a").and(missing) => "missing";
    a_pair_fails_when_the_second_part_does_though_the_first_skips: skip.and(malformed) => "malformed";
    a_limit_applies_when_its_condition_is_true: user("a").only_when(|head: &Parts| head.method == Method::GET) => "user=a";
    a_limit_applies_only_when_its_condition_is_true: user("a").only_when(|head: &Parts| head.method == Method::POST) => "skip";
    what_a_condition_leaves_out_is_not_asked: malformed.only_when(|_: &Parts| false) => "skip";
}

#[test]
fn both_identities_make_one_key_and_their_parts_do_not_flow_into_each_other() {
    let pair = |a: &str, b: &str| only(user(a).and(user(b)).extract(&head()));
    assert_eq!(pair("a", "b"), pair("a", "b"));
    assert_eq!(pair("a", "b").kind(), "both");
    assert_ne!(pair("a", "b"), pair("b", "a"));
    assert_ne!(pair("a:b", "c"), pair("a", "b:c"));
    assert_ne!(pair("ab", ""), pair("a", "b"));
    assert_ne!(pair("", "ab"), pair("ab", ""));
    assert_ne!(pair("a4:user:1:b", "c"), pair("a", "4:user:1:bc"));
    let nested = |a, b, c| only(user(a).and(user(b)).and(user(c)).extract(&head()));
    assert_ne!(nested("a", "b", "c"), nested("a", "bc", ""));
}

#[test]
fn a_pair_is_secret_when_a_part_is() {
    let secret = || Key::secret("user", "a");
    let pair = |a: Key, b: Key| only(a.and(b).extract(&head()));
    assert!(!pair(user("a"), user("b")).is_secret());
    let pairs = [
        pair(secret(), user("a")),
        pair(user("a"), secret()),
        pair(secret(), secret()),
    ];
    assert!(pairs.iter().all(Key::is_secret));
    assert_ne!(pairs[1], pairs[2]);
}

#[test]
fn several_keys_are_paired_each_with_each_and_bounded() {
    let several = |n: usize| move |_: &Parts| Keys::from_iter((0..n).map(|n| user(&n.to_string())));
    let pairs = |a, b| {
        let pairs = several(a).and(several(b)).extract(&head());
        pairs.unwrap().into_iter()
    };
    let mut keys: Vec<Key> = pairs(2, 3).collect();
    assert_eq!(keys.len(), 6);
    while let Some(key) = keys.pop() {
        assert!(!keys.contains(&key));
    }
    let bound = pairs(64, 64).count();
    assert_eq!(bound, 65, "one more than a check may charge");
}

#[test]
fn extractors_that_are_put_together_are_trait_objects_again() {
    let session: Box<dyn KeyExtractor> = Box::new(Cookie::new("session"));
    let api_key: Arc<dyn KeyExtractor> = Arc::new(Header::new("x-api-key"));
    let all = |_: &Parts| true;
    let who: Arc<dyn KeyExtractor> = Arc::new(session.or(api_key).and(user("a")).only_when(all));
    assert_eq!(found(&who, &head()), "missing");
}

#[test]
fn public_types_are_send_sync_and_clone_and_show_no_value() {
    fn check<T: Send + Sync + Clone + std::fmt::Debug>(_: &T) {}
    let or: Or<_, _> = Cookie::new("session").or(user("sesame"));
    let both: And<_, _> = or.and(user("sesame"));
    let only: OnlyWhen<_, _> = both.only_when(|_: &Parts| true);
    check(&only);
    let text = format!("{only:?}");
    let is_expected = text.contains("session") && !text.contains("sesame");
    assert!(is_expected, "{text}");
}

proptest! {
    #[test]
    fn pairs_are_equal_only_when_both_parts_are(
        [a, b, c, d] in prop::array::uniform4(prop::collection::vec(
            prop::sample::select(b"a:1@4user".to_vec()), 0..8)),
    ) {
        let pair = |first: &[u8], second: &[u8]| {
            only(Key::new("user", first).and(Key::secret("user", second)).extract(&head()))
        };
        prop_assert_eq!(pair(&a, &b) == pair(&c, &d), a == c && b == d);
    }
}
