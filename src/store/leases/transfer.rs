use std::sync::{Arc, atomic::Ordering::Release};

use super::entry::Entry;
use crate::settlement::Settlement;

/// Units of an identity on their way from the store to its lease, or back from there, or from a check that is not
/// decided.
///
/// Meanwhile they are charged and cannot be spent. Whoever is denied for that may fit when they are there, so that the
/// denial must not be repeated.
#[derive(Debug)]
pub(super) struct Transfer {
    entry: Arc<Entry>,
    gives_back: bool,
}

impl Transfer {
    /// To be made before the units are taken from where they were.
    pub(super) fn begin(entry: &Arc<Entry>) -> Self {
        entry.transfers.fetch_add(1, Release);
        Self {
            entry: Arc::clone(entry),
            gives_back: true,
        }
    }

    /// No units are to be had by it: there were none, or they are used.
    pub(super) fn gives_nothing_back(mut self) {
        self.gives_back = false;
    }

    pub(super) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if self.gives_back {
            self.entry.note_give_back();
        }
        self.entry.transfers.fetch_sub(1, Release);
    }
}

/// What was unspent when a lease was ended, to be returned. Dropped when the store has answered, or nobody waits for
/// it.
#[derive(Debug)]
pub(super) struct Unspent {
    pub(super) settlement: Settlement,
    pub(super) _transfer: Transfer,
}
