//! The next events, in the order of their times. Events with the same time keep the order in which they were added.

use std::{cmp::Ordering, collections::BinaryHeap};

pub(crate) struct Events<E> {
    heap: BinaryHeap<Entry<E>>,
    noted: u64,
}

struct Entry<E> {
    at: f64,
    number: u64,
    event: E,
}

impl<E> Events<E> {
    pub(crate) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            noted: 0,
        }
    }

    pub(crate) fn note(&mut self, at: f64, event: E) {
        self.noted += 1;
        self.heap.push(Entry {
            at,
            number: self.noted,
            event,
        });
    }

    pub(crate) fn next(&mut self) -> Option<(f64, E)> {
        self.heap.pop().map(|next| (next.at, next.event))
    }
}

impl<E> Ord for Entry<E> {
    /// The first event is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        let by_time = other.at.total_cmp(&self.at);
        by_time.then(other.number.cmp(&self.number))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}
