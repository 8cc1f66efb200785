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

/// The most slots of a key that were held at one instant, and their records.
pub(super) fn most_held(records: &[Record]) -> Vec<Record> {
    let mut of_keys: BTreeMap<u64, Vec<&Record>> = BTreeMap::new();
    for record in records {
        of_keys.entry(record.key).or_default().push(record);
    }
    let most = of_keys.into_values().map(|of_key| {
        let changes = of_key
            .iter()
            .flat_map(|it| [(it.from, true), (it.until, false)]);
        let mut changes: Vec<_> = changes.collect();
        changes.sort_unstable(); // an end comes before a begin at the same time
        let (mut held, mut most) = (0_i64, (0, 0));
        for (at, begins) in changes {
            held += if begins { 1 } else { -1 };
            most = most.max((held, at));
        }
        let (_, at) = most;
        let of_key = of_key.into_iter();
        let held = of_key.filter(|it| it.from <= at && at < it.until);
        held.copied().collect::<Vec<_>>()
    });
    most.max_by_key(Vec::len).unwrap_or_default()
}

#[test]
fn the_most_slots_of_one_key_that_are_held_at_one_instant_are_found() {
    let record = |key, from, until| Record {
        key,
        from,
        until,
        lost: false,
    };
    let killed_at_once = record(1, 5, 5);
    let one = [
        killed_at_once,
        record(1, 10, 20),
        record(1, 20, 30),
        record(2, 15, 16),
    ];
    assert_eq!(most_held(&one).len(), 1);
    let two = [record(1, 10, 20), record(1, 19, 30), record(2, 15, 16)];
    assert_eq!(most_held(&two).len(), 2);
    let log: Vec<u8> = two.iter().flat_map(|it| it.bytes()).collect();
    assert_eq!(most_held(&Record::all(&log).collect::<Vec<_>>()).len(), 2);
}
