//! [`Holder`]: a process that holds slots, for the verbs that show slots.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use sluicegate::store::redis::inspect::StoredValue;

use super::text::{date_time, grouped, span};

/// A process that holds slots of one key. Fields are only ever added.
#[derive(Clone, Serialize)]
pub(crate) struct Holder {
    /// The number in the ids of its slots, as 16 hexadecimal digits.
    process: String,
    /// The host and the id of the process, or the label that it has set; null if it publishes none.
    label: Option<String>,
    slots: u64,
    /// When the process asked for the first of them, by its own clock.
    since_ms: u64,
}

impl Holder {
    /// The processes that hold slots of a key, those that have held one for longest first.
    pub(crate) fn all(
        value: Option<&StoredValue>,
        now_ms: u64,
        labels: &HashMap<u64, String>,
    ) -> Vec<Self> {
        let sections = value.into_iter().flat_map(StoredValue::sections);
        let mut holders: BTreeMap<u64, Self> = BTreeMap::new();
        for (_, id) in sections.flat_map(|section| section.slots(now_ms)) {
            let process = id.process();
            let holder = holders.entry(process).or_insert_with(|| Self {
                process: format!("{process:016x}"),
                label: labels.get(&process).cloned(),
                slots: 0,
                since_ms: u64::MAX,
            });
            holder.slots += 1;
            holder.since_ms = id.asked_at_ms().min(holder.since_ms);
        }
        let mut holders: Vec<_> = holders.into_values().collect();
        holders.sort_by_key(|holder| holder.since_ms);
        holders
    }

    /// `jobs: 2 slots are held by web-3:4711, since 2026-11-27 12:00:00 UTC (3m)`
    pub(crate) fn text(&self, policy: &str, now_ms: u64) -> String {
        let slots = match self.slots {
            1 => "1 slot is".to_owned(),
            slots => format!("{} slots are", grouped(slots)),
        };
        let who = match &self.label {
            Some(label) => label.clone(),
            None => format!("the process {}", self.process),
        };
        let since = date_time(self.since_ms);
        let long = span(now_ms.saturating_sub(self.since_ms));
        format!("{policy}: {slots} held by {who}, since {since} ({long})")
    }
}
