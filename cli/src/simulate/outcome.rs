//! [`Outcome`]: the result of a simulation.

use serde_json::{Value, json};

use super::lines::Counts;
use super::logs::Logs;
use super::tally::{Hit, Tally};
use super::timeline::OverTime;
use super::verdict::Verdict;
use crate::text;

/// The maximum number of spans in a plot.
const MOST_SPANS: u64 = 240;

pub(super) struct Outcome {
    pub(super) tally: Tally,
    /// The formats of the logs, each with its time.
    pub(super) formats: Vec<String>,
    /// Facts to know about the clients before you trust a verdict.
    pub(super) notes: Vec<String>,
    pub(super) lines: Counts,
    pub(super) over_time: OverTime,
    /// The identities with the most refusals, the greatest first.
    pub(super) hardest_hit: Vec<(String, Hit)>,
    /// A verdict for each `--max-refused`.
    pub(super) verdicts: Vec<Verdict>,
}

impl Outcome {
    pub(super) fn new(logs: Logs<'_>, tally: Tally, top: usize) -> Self {
        let hits = tally.hits.iter();
        let hits = hits.map(|(key, hit)| (text::identity(key), *hit));
        let mut hardest_hit: Vec<(String, Hit)> = hits.collect();
        hardest_hit.sort_by(|(one, a), (two, b)| b.refused.cmp(&a.refused).then(one.cmp(two)));
        hardest_hit.truncate(top);
        let (formats, of_formats): (Vec<_>, Vec<_>) = logs.formats.into_iter().unzip();
        let notes = logs.mapping.notes().into_iter();
        Self {
            formats,
            notes: notes.chain(of_formats.into_iter().flatten()).collect(),
            lines: logs.counts,
            over_time: tally.timeline.spans(MOST_SPANS),
            hardest_hit,
            verdicts: Vec::new(),
            tally,
        }
    }

    /// The answer as JSON.
    pub(super) fn document(&self) -> Value {
        let tally = &self.tally;
        let time = |ms| (tally.requests > 0).then(|| text::rfc3339(ms));
        let hit = self.hardest_hit.iter().map(|(identity, hit)| {
            json!({
                "identity": identity, "refused": hit.refused, "first_ms": hit.first_ms, "last_ms": hit.last_ms,
            })
        });
        json!({
            "requests": tally.requests, "refused": tally.refused, "banned": tally.banned,
            "unlimited": tally.unlimited, "from": time(tally.first_ms), "to": time(tally.last_ms),
            "lines": self.lines, "policies": tally.policies, "over_time": self.over_time,
            "hardest_hit": hit.collect::<Vec<_>>(), "identities_refused": tally.hits.len(), "full": tally.full,
            "verdicts": self.verdicts, "formats": self.formats, "notes": self.notes,
        })
    }
}
