//! An observer that records events.

use std::{
    fmt::Write,
    sync::{Arc, Mutex},
};

use sluicegate::{
    Policy,
    block::BlockedBy,
    observe::{CallInfo, Event, Observer},
};

type Line = dyn Fn(&Event<'_>) -> Option<String> + Send + Sync;

/// Records events, each as a line. Clones share the lines.
#[derive(Clone)]
pub struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    line: Arc<Line>,
}

impl Default for Log {
    fn default() -> Self {
        Self::of(short)
    }
}

impl Log {
    pub fn of(line: impl Fn(&Event<'_>) -> Option<String> + Send + Sync + 'static) -> Self {
        let (lines, line) = (Arc::default(), Arc::new(line));
        Self { lines, line }
    }

    pub fn in_full() -> Self {
        Self::of(|event| short(event).map(|_| format!("{event:#?}")))
    }

    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().unwrap())
    }

    pub fn switches(&self) -> Vec<String> {
        let mut lines = self.lines();
        lines.retain(|line| line.starts_with("open "));
        lines
    }
}

fn about(call: &CallInfo<'_>) -> String {
    let shadow = if call.shadow { "shadow " } else { "" };
    format!("{shadow}{} {}", call.kind.as_str(), call.names())
}

/// Describes an event in short; `None` for those that are not recorded.
fn short(event: &Event<'_>) -> Option<String> {
    Some(match event {
        Event::Decision {
            call,
            timing,
            decision,
            ..
        } => {
            let local = if decision.is_local() { "local " } else { "" };
            let mut line = format!("{local}{} {}", about(call), decision.is_allowed());
            for (policy, rule) in decision.denials() {
                write!(line, " {}:{}", policy.name(), rule.rule()).unwrap();
            }
            format!("{line} in {:?}", timing.latency)
        }
        Event::Completion {
            call,
            timing,
            local,
            ..
        } => {
            let local = if *local { "local " } else { "" };
            format!("{local}{} in {:?}", about(call), timing.latency)
        }
        Event::Error {
            call,
            timing,
            error,
            outcome,
            ..
        } => {
            let (kind, outcome) = (error.kind().as_str(), outcome.as_str());
            let latency = timing.latency;
            format!("{} {kind} {outcome} in {latency:?}", about(call))
        }
        Event::BreakerOpened { error, .. } => {
            format!("open true {:?}", Some(error.kind().as_str()))
        }
        Event::BreakerClosed => "open false None".to_owned(),
        Event::MissingKey {
            policy,
            error,
            outcome,
            ..
        } => {
            let (kind, outcome) = (error.kind().as_str(), outcome.as_str());
            format!("{} {kind} {outcome}", policy.map_or("?", Policy::name))
        }
        Event::Blocked { policy, source, .. } => {
            let policy = policy.map_or("?", Policy::name);
            format!(
                "{policy} blocked by {}",
                source.map_or("list", BlockedBy::as_str)
            )
        }
        Event::Pause { kind, reason, .. } => format!("{kind} paused by {reason:?}"),
        Event::Ban { policy, block, .. } => {
            format!("{} bans until {:?}", policy.name(), block.until_ms())
        }
        _ => return None,
    })
}

impl Observer for Log {
    fn on_event(&self, event: &Event<'_>) {
        if let Some(line) = (self.line)(event) {
            self.lines.lock().unwrap().push(line);
        }
    }
}
