//! Proves the sentences of `fuzz/entries.rs` over the fuzzer's corpus, and over random changes of that corpus.

#[path = "../fuzz/entries.rs"]
mod entries;

use std::{fs, path::Path};

use proptest::{collection::vec, prelude::*, sample::Index};

/// A place, a number of bytes to remove, and bytes to insert there.
type Change = (Index, u8, Vec<u8>);

fn holds(target: &str, entry: fn(&[u8])) {
    let corpus = corpus(target);
    corpus.iter().for_each(|input| entry(input));
    let bytes = prop_oneof![
        vec(any::<u8>(), 0..4),
        vec(
            prop::sample::select(b"0123456789/@,;:.=\"[]smhd \n".as_slice()),
            0..4
        ),
    ];
    let changes = vec((any::<Index>(), 0..4_u8, bytes), 0..6);
    proptest!(ProptestConfig::with_cases(2_000), |(seed: Index, changes in changes)| {
        entry(&changed(seed.get::<Vec<u8>>(&corpus), &changes));
    });
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    let files = fs::read_dir(folder.join(target)).unwrap();
    files
        .map(|file| fs::read(file.unwrap().path()).unwrap())
        .collect()
}

fn changed(seed: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut input = seed.to_vec();
    for (at, taken, put) in changes {
        let from = at.index(input.len() + 1);
        let to = (from + usize::from(*taken)).min(input.len());
        input.splice(from..to, put.iter().copied());
    }
    input
}

#[test]
fn rules_are_written_as_they_are_read() {
    holds("rule_text", entries::rule_text);
}

#[test]
fn configuration_is_written_as_it_is_read() {
    holds("configuration", entries::configuration);
}

#[test]
fn nothing_further_to_the_left_changes_who_a_client_is() {
    holds("forwarded", entries::forwarded);
}

#[test]
fn every_answer_of_a_server_is_a_sound_decision_or_an_error() {
    holds("script_reply", entries::script_reply);
}

#[test]
fn every_stored_value_is_read_as_steps_that_add_up_or_is_an_error() {
    holds("stored_value", entries::stored_value);
}
