//! The records of the processes, and the most slots that were held at one instant.

use std::collections::BTreeMap;

/// A slot of a key was held from one instant until another, at least: between two readings of `is_held()` that were
/// true, since the answer never becomes true again. In ns since the start of the machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) key: u64,
    pub(super) from: u64,
    pub(super) until: u64,
    /// Whether the process then saw that the slot was lost.
    pub(super) lost: bool,
}

impl Record {
    /// In bytes.
    pub(super) const SIZE: usize = 32;

    pub(super) fn bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let numbers = [self.key, self.from, self.until, self.lost.into()];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }

    /// All records in a log. A process that was killed may have written the last one in part.
    pub(super) fn all(log: &[u8]) -> impl Iterator<Item = Self> {
        let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
        log.chunks_exact(Self::SIZE).map(move |record| Self {
            key: number(&record[..8]),
            from: number(&record[8..16]),
            until: number(&record[16..24]),
            lost: number(&record[24..]) > 0,
        })
    }
}

pub(super) fn most_held(records: &[Record]) -> u64 {
    let mut changes: BTreeMap<u64, Vec<(u64, bool)>> = BTreeMap::new();
    for record in records {
        let of_key = changes.entry(record.key).or_default();
        of_key.extend([(record.from, true), (record.until, false)]);
    }
    let most = changes.into_values().map(|mut of_key| {
        of_key.sort_unstable(); // an end comes before a begin at the same time
        let (mut held, mut most) = (0_u64, 0);
        for (_, begins) in of_key {
            held = if begins {
                held + 1
            } else {
                held.saturating_sub(1)
            };
            most = most.max(held);
        }
        most
    });
    most.max().unwrap_or(0)
}

#[test]
fn the_most_slots_of_one_key_that_are_held_at_one_instant_are_found() {
    let record = |key, from, until| Record {
        key,
        from,
        until,
        lost: false,
    };
    let one = [record(1, 10, 20), record(1, 20, 30), record(2, 15, 16)];
    assert_eq!(most_held(&one), 1);
    let two = [record(1, 10, 20), record(1, 19, 30), record(2, 15, 16)];
    assert_eq!(most_held(&two), 2);
    let log: Vec<u8> = two.iter().flat_map(|it| it.bytes()).collect();
    assert_eq!(most_held(&Record::all(&log).collect::<Vec<_>>()), 2);
}
