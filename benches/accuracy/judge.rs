//! The exact model: a sliding window that keeps every admission, and judges a history of requests.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use sluicegate::Rule;

/// One request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) rule: usize,
    pub(crate) key: u64,
    /// The time of the decision in ms, by the clock of the store or process that decided.
    pub(crate) at: u64,
    pub(crate) answer: Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Admitted,
    /// Denied with this `retry_after`.
    Denied(Duration),
    /// The memory of the asking process decided, not the store.
    AdmittedHere,
    DeniedHere,
    /// An error. The request may have been charged.
    Nothing,
}

impl Answer {
    pub(crate) fn is_admission(self) -> bool {
        matches!(self, Self::Admitted | Self::AdmittedHere)
    }
}

/// The results of the requests under one rule.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) requests: usize,
    pub(crate) admitted: usize,
    pub(crate) denied: usize,
    pub(crate) unanswered: usize,
    /// The maximum that one key was admitted in any span of the window, minus the limit.
    pub(crate) beyond: u64,
    /// Denials that an exact window would have admitted after the same admissions.
    pub(crate) early: usize,
    /// The delay of admissions after a denial, compared with an exact window, in ms: the minimum and the maximum.
    pub(crate) late_ms: Option<(i64, i64)>,
    /// The longest time in ms during which requests were denied, and an exact window would have admitted them.
    pub(crate) early_for_ms: u64,
    /// Denials before the limit had been admitted once.
    pub(crate) baseless: usize,
}

impl Verdict {
    pub(crate) fn of(rule: &Rule, records: &[Record]) -> Self {
        let mut verdict = Self::default();
        for (_, history) in by_key(records) {
            verdict.beyond = verdict.beyond.max(beyond(rule, &history));
            verdict.judge_denials(rule, &history);
        }
        let count = |of: fn(&Record) -> bool| records.iter().filter(|record| of(record)).count();
        verdict.requests = records.len();
        verdict.admitted = count(|record| record.answer.is_admission());
        verdict.unanswered = count(|record| record.answer == Answer::Nothing);
        verdict.denied = verdict.requests - verdict.admitted - verdict.unanswered;
        verdict
    }

    /// An exact window opens as soon as the oldest of the newest `limit` admissions is older than the window.
    fn judge_denials(&mut self, rule: &Rule, history: &[Record]) {
        let limit = usize::try_from(rule.limit()).unwrap();
        let mut newest = VecDeque::new();
        let mut early_since = None;
        for record in history {
            match record.answer {
                Answer::Admitted => {
                    newest.push_back(record.at);
                    if newest.len() > limit {
                        newest.pop_front();
                    }
                }
                Answer::Denied(_) if newest.len() < limit => {
                    self.baseless += 1;
                    self.early += 1;
                    self.note_early(&mut early_since, record.at);
                }
                Answer::Denied(retry_after) => {
                    // The oldest of the counted admissions must have left the window.
                    let open = newest[0] + window_ms(rule) + 1;
                    if record.at >= open {
                        self.early += 1;
                        self.note_early(&mut early_since, record.at);
                    } else {
                        early_since = None;
                    }
                    self.note_lateness(record.at + ms(retry_after), open);
                }
                Answer::AdmittedHere | Answer::DeniedHere | Answer::Nothing => {}
            }
        }
    }

    fn note_early(&mut self, since: &mut Option<u64>, at: u64) {
        let since = *since.get_or_insert(at);
        self.early_for_ms = self.early_for_ms.max(at - since);
    }

    fn note_lateness(&mut self, opens: u64, open: u64) {
        let late = opens.cast_signed() - open.cast_signed();
        let (least, most) = self.late_ms.unwrap_or((late, late));
        self.late_ms = Some((least.min(late), most.max(late)));
    }
}

/// Sorted by time. Within a millisecond, admissions come before denials.
pub(crate) fn by_key(records: &[Record]) -> BTreeMap<u64, Vec<Record>> {
    let mut histories: BTreeMap<u64, Vec<Record>> = BTreeMap::new();
    for record in records {
        histories.entry(record.key).or_default().push(*record);
    }
    for history in histories.values_mut() {
        history.sort_by_key(|record| (record.at, !record.answer.is_admission()));
    }
    histories
}

/// The admissions beyond the limit in any span of a window, with the first and last millisecond.
fn beyond(rule: &Rule, history: &[Record]) -> u64 {
    let admissions = history.iter().filter(|record| record.answer.is_admission());
    let times: Vec<u64> = admissions.map(|record| record.at).collect();
    let until = |first: usize| times.partition_point(|&at| at <= times[first] + window_ms(rule));
    let most = (0..times.len()).map(|first| until(first) - first).max();
    (most.unwrap_or(0) as u64).saturating_sub(rule.limit())
}

/// The same in any window that is aligned to the epoch. This is the promise of a fixed rule.
pub(crate) fn beyond_aligned(rule: &Rule, records: &[Record]) -> u64 {
    let mut counts: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for record in records.iter().filter(|record| record.answer.is_admission()) {
        *counts
            .entry((record.key, record.at / window_ms(rule)))
            .or_default() += 1;
    }
    counts
        .into_values()
        .max()
        .unwrap_or(0)
        .saturating_sub(rule.limit())
}

pub(crate) fn window_ms(rule: &Rule) -> u64 {
    ms(rule.window())
}

pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}
