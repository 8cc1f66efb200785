//! Combined extractors: the first of two, both of two, and only under a condition.

use std::sync::Arc;

use http::{Method, Request, request::Parts};
use proptest::prelude::*;
use sluicegate::{
    Header, Key, KeyExtractor,
    error::{ExtractError, ExtractErrorKind},
    extract::{And, Cookie, Keys, OnlyWhen, Or},
};

fn head() -> Parts {
    Request::new(()).into_parts().0
}

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

#[test]
fn the_first_identity_that_is_there_counts() {
    assert_eq!(only(user("a").or(user("b")).extract(&head())), user("a"));
    assert_eq!(only(missing.or(user("b")).extract(&head())), user("b"));
    let third = missing.or(missing).or(user("c"));
    assert_eq!(only(third.extract(&head())), user("c"));
    let nobody = missing.or(missing).extract(&head()).unwrap_err();
    assert_eq!(nobody.kind(), ExtractErrorKind::Missing);
    assert_eq!(
        missing.or(missing).or_skip().extract(&head()),
        Ok(Keys::skip())
    );
}

#[test]
fn a_client_cannot_choose_the_second_identity_by_spoiling_the_first() {
    let error = malformed.or(user("b")).extract(&head()).unwrap_err();
    assert_eq!(error.kind(), ExtractErrorKind::Malformed);
    let error = unavailable.or(user("b")).extract(&head()).unwrap_err();
    assert_eq!(error.kind(), ExtractErrorKind::Unavailable);
}

#[test]
fn to_skip_is_an_answer_and_the_second_is_not_asked() {
    assert_eq!(skip.or(user("b")).extract(&head()), Ok(Keys::skip()));
}

#[test]
fn both_identities_make_one_key() {
    let pair = |a: &str, b: &str| only(user(a).and(Key::new("tenant", b)).extract(&head()));
    assert_eq!(pair("a", "b"), pair("a", "b"));
    assert_ne!(pair("a", "b"), pair("b", "a"));
    assert_ne!(pair("a", "b"), pair("a", "c"));
    assert_eq!(pair("a", "b").kind(), "both");
}

#[test]
fn parts_of_a_pair_do_not_flow_into_each_other() {
    let pair = |a: &str, b: &str| only(user(a).and(user(b)).extract(&head()));
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
    for (first, second, expected) in [
        (user("a"), user("b"), false),
        (secret(), user("b"), true),
        (user("b"), secret(), true),
        (secret(), secret(), true),
    ] {
        let key = only(first.and(second).extract(&head()));
        assert_eq!(key.is_secret(), expected);
    }
    let plain_then_secret = only(user("a").and(secret()).extract(&head()));
    let secret_twice = only(secret().and(secret()).extract(&head()));
    assert_ne!(plain_then_secret, secret_twice);
}

#[test]
fn a_pair_skips_or_fails_when_a_part_does() {
    assert_eq!(skip.and(user("b")).extract(&head()), Ok(Keys::skip()));
    assert_eq!(user("a").and(skip).extract(&head()), Ok(Keys::skip()));
    for result in [
        missing.and(user("b")).extract(&head()),
        user("a").and(missing).extract(&head()),
    ] {
        assert_eq!(result.unwrap_err().kind(), ExtractErrorKind::Missing);
    }
    let error = skip.and(malformed).extract(&head()).unwrap_err();
    assert_eq!(error.kind(), ExtractErrorKind::Malformed);
}

#[test]
fn several_keys_are_paired_each_with_each_and_bounded() {
    let several = |n: usize| move |_: &Parts| Keys::from_iter((0..n).map(|n| user(&n.to_string())));
    let pairs = |a, b| {
        several(a)
            .and(several(b))
            .extract(&head())
            .unwrap()
            .into_iter()
    };
    let mut keys: Vec<Key> = pairs(2, 3).collect();
    assert_eq!(keys.len(), 6);
    while let Some(key) = keys.pop() {
        assert!(!keys.contains(&key));
    }
    assert_eq!(
        pairs(64, 64).count(),
        65,
        "one more than a check may charge"
    );
}

#[test]
fn a_limit_applies_only_when_its_condition_is_true() {
    let writes = user("a").only_when(|head: &Parts| head.method == Method::POST);
    let mut head = head();
    assert_eq!(writes.extract(&head), Ok(Keys::skip()));
    head.method = Method::POST;
    assert_eq!(only(writes.extract(&head)), user("a"));
}

#[test]
fn what_a_condition_leaves_out_is_not_asked() {
    let never = malformed.only_when(|_: &Parts| false);
    assert_eq!(never.extract(&head()), Ok(Keys::skip()));
}

#[test]
fn extractors_that_are_put_together_are_trait_objects_again() {
    let session: Box<dyn KeyExtractor> = Box::new(Cookie::new("session"));
    let api_key: Arc<dyn KeyExtractor> = Arc::new(Header::new("x-api-key"));
    let all = |_: &Parts| true;
    let who: Arc<dyn KeyExtractor> = Arc::new(session.or(api_key).and(user("a")).only_when(all));
    let error = who.extract(&head()).unwrap_err();
    assert_eq!(error.kind(), ExtractErrorKind::Missing);
}

#[test]
fn public_types_are_send_sync_and_clone_and_show_no_value() {
    fn check<T: Send + Sync + Clone + std::fmt::Debug>(_: &T) {}
    let or: Or<_, _> = Cookie::new("session").or(user("sesame"));
    let both: And<_, _> = or.and(user("sesame"));
    let only: OnlyWhen<_, _> = both.only_when(|_: &Parts| true);
    check(&only);
    let text = format!("{only:?}");
    assert!(
        text.contains("session") && !text.contains("sesame"),
        "{text}"
    );
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
