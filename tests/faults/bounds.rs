//! The effects that each fault may have on the figures of a run, and the promise that allows them. Other effects are
//! defects.

use std::time::Duration;

use sluicegate::Rule;

use support::proxy::Weather;

use super::{fault::Fault, setup::Setup, tally::window_ms};

/// Counts that a server may lose.
pub(crate) struct Forgets {
    /// The number of times that a rule may admit the limit again; `None` means any number of times.
    pub(crate) times: Option<u64>,
    /// Only rules with a shorter sum of window and step are affected.
    span_below: Duration,
    pub(crate) why: &'static str,
}

impl Forgets {
    const fn all(times: Option<u64>, why: &'static str) -> Option<Self> {
        Some(Self {
            times,
            span_below: Duration::MAX,
            why,
        })
    }

    fn concerns(&self, rule: &Rule) -> bool {
        Duration::from_millis(window_ms(rule)) + rule.step() < self.span_below
    }
}

/// The counts that a server loses in a fault, by the server's clock, even if that jumps.
fn forgets(fault: Fault) -> Option<Forgets> {
    match fault {
        Fault::Evicting { .. } => Forgets::all(
            None,
            "a server that evicts keys forgets counts: use `noeviction`",
        ),
        Fault::Back { seconds } => Some(Forgets {
            times: Some(1),
            span_below: Duration::from_secs(seconds),
            why: "the clock shows a time twice, and a step further ahead than a window and a step is dropped: \
                  the limit once more",
        }),
        Fault::Emptied => Forgets::all(
            Some(1),
            "a server that comes back empty has forgotten its counts: the limit once more",
        ),
        Fault::FailedOver => Forgets::all(
            Some(1),
            "a replica may lack what its primary charged last: the limit once more",
        ),
        _ => None,
    }
}

/// The reason why requests may be left to the failure policy during a fault.
const fn undecided(fault: Fault) -> Option<&'static str> {
    match fault {
        Fault::OutOfMemory => Some("a full server writes nothing: the failure policy decides"),
        Fault::ReadOnly => Some("a replica writes nothing: the failure policy decides"),
        Fault::Slow { ms: ..1_000 } => Some(
            "a check may wait for two replies, and the timeout is two delays: the failure policy decides",
        ),
        Fault::Crowd => {
            Some("the last of 10 000 checks come after the timeout: the failure policy decides")
        }
        Fault::Wire(Weather::Clear)
        | Fault::ScriptsFlushed
        | Fault::Ahead { .. }
        | Fault::Back { .. }
        | Fault::Evicting { .. } => None,
        Fault::Busy
        | Fault::Slow { .. }
        | Fault::Wire(_)
        | Fault::Stopped
        | Fault::Killed
        | Fault::Emptied
        | Fault::FailedOver => Some("the server does not answer: the failure policy decides"),
    }
}

/// The reason why requests may be left to the failure policy beside a job, without a fault.
const ENDED: &str =
    "calls in a runtime that ends fail, and its connection is replaced: the failure policy decides";

pub(crate) struct Bounds<'a> {
    setup: Setup,
    faults: &'a [Fault],
}

impl<'a> Bounds<'a> {
    pub(crate) const fn new(setup: Setup, faults: &'a [Fault]) -> Self {
        Self { setup, faults }
    }

    /// The timeout of requests. If all must be decided, long enough for a busy machine.
    pub(crate) fn timeout(&self) -> Duration {
        match self.why_undecided()[..] {
            [] => Duration::from_secs(2),
            _ => Duration::from_millis(100),
        }
    }

    /// The number of times that a rule may admit the limit; `None` means any number of times.
    pub(crate) fn times(&self, rule: &Rule) -> Option<u64> {
        let faults = self.faults.iter().filter_map(|&fault| forgets(fault));
        let concerned = faults.filter(|it| it.concerns(rule));
        concerned
            .map(|it| it.times)
            .sum::<Option<u64>>()
            .map(|it| it + 1)
    }

    pub(crate) fn why_over(&self) -> Vec<&'static str> {
        let faults = self.faults.iter().filter_map(|&fault| forgets(fault));
        faults.map(|it| it.why).collect()
    }

    pub(crate) fn why_undecided(&self) -> Vec<&'static str> {
        let faults = self.faults.iter().filter_map(|&fault| undecided(fault));
        let mut why: Vec<_> = faults.collect();
        if why.is_empty() && self.setup.with_job {
            why.push(ENDED);
        }
        why.dedup();
        why
    }

    /// Whether the server may have fewer units of a rule than were admitted.
    pub(crate) fn may_lose(&self, rule: &Rule) -> bool {
        let released = |fault: &Fault| match *fault {
            Fault::Ahead { seconds } => seconds * 1_000 > window_ms(rule),
            _ => false,
        };
        self.times(rule) != Some(1) || self.faults.iter().any(released)
    }

    /// Whether leased units may stay charged, because answers or the returning runtime get lost.
    pub(crate) fn may_strand_leases(&self) -> bool {
        let loses_answers = |fault: &Fault| fault.silences() || *fault == Fault::Emptied;
        self.setup.with_leases_and_cache
            && (self.setup.with_job || self.faults.iter().any(loses_answers))
    }
}

fn table() -> String {
    let rows = Fault::ALL.iter().filter_map(|&fault| {
        let (over, open) = (forgets(fault), undecided(fault));
        let times = match &over {
            None => "0".into(),
            Some(Forgets { times: None, .. }) => "any".to_owned(),
            Some(Forgets {
                times: Some(times), ..
            }) => format!("{times} × limit"),
        };
        let why: Vec<_> = over.iter().map(|it| it.why).chain(open).collect();
        let open = if open.is_some() { "yes" } else { "no" };
        let name = fault.name();
        (!why.is_empty()).then(|| format!("| {name} | {times} | {open} | {} |\n", why.join("; ")))
    });
    rows.collect()
}

#[test]
fn the_readme_shows_what_each_fault_may_do() {
    let table = table();
    let readme = include_str!("README.md");
    assert!(
        readme.contains(&table),
        "README.md lacks this table:\n{table}"
    );
}
