//! An observer that records events.

use std::{
    fmt::{Debug, Write},
    sync::{Arc, Mutex},
};

use sluicegate::{
    Policy,
    block::BlockedBy,
    observe::{
        BanEvent, BlockEvent, BreakerEvent, CallInfo, CompletionEvent, DecisionEvent, ErrorEvent,
        MissingKeyEvent, Observer, PauseEvent,
    },
};

/// Records all events, in short or in full.
#[derive(Clone, Default)]
pub struct Log {
    pub lines: Arc<Mutex<Vec<String>>>,
    pub in_full: bool,
}

impl Log {
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    pub fn switches(&self) -> Vec<String> {
        let mut lines = self.lines();
        lines.retain(|line| line.starts_with("open "));
        lines
    }

    fn add(&self, event: &impl Debug, short: String) {
        let line = if self.in_full {
            format!("{event:#?}")
        } else {
            short
        };
        self.lines.lock().unwrap().push(line);
    }
}

fn about(call: &CallInfo<'_>) -> String {
    let shadow = if call.is_shadow() { "shadow " } else { "" };
    format!("{shadow}{} {}", call.kind().as_str(), call.names())
}

impl Observer for Log {
    fn on_decision(&self, it: &DecisionEvent<'_>) {
        let local = if it.is_local() { "local " } else { "" };
        let mut line = format!("{local}{} {}", about(it.call()), it.is_allowed());
        for (policy, rule) in it.denials() {
            write!(line, " {}:{}", policy.name(), rule.rule()).unwrap();
        }
        self.add(it, format!("{line} in {:?}", it.latency()));
    }

    fn on_completion(&self, it: &CompletionEvent<'_>) {
        let local = if it.is_local() { "local " } else { "" };
        let call = about(it.call());
        self.add(it, format!("{local}{call} in {:?}", it.latency()));
    }

    fn on_error(&self, it: &ErrorEvent<'_>) {
        let (kind, outcome) = (it.error().kind().as_str(), it.outcome().as_str());
        let latency = it.latency();
        self.add(
            it,
            format!("{} {kind} {outcome} in {latency:?}", about(it.call())),
        );
    }

    fn on_breaker(&self, it: &BreakerEvent<'_>) {
        let kind = it.error().map(|error| error.kind().as_str());
        self.add(it, format!("open {} {kind:?}", it.is_open()));
    }

    fn on_missing_key(&self, it: &MissingKeyEvent<'_>) {
        let (kind, outcome) = (it.error().kind().as_str(), it.outcome().as_str());
        let policy = it.policy().map_or("?", Policy::name);
        self.add(it, format!("{policy} {kind} {outcome}"));
    }

    fn on_blocked(&self, it: &BlockEvent<'_>) {
        let policy = it.policy().map_or("?", Policy::name);
        self.add(
            it,
            format!(
                "{policy} blocked by {}",
                it.source().map_or("list", BlockedBy::as_str)
            ),
        );
    }

    fn on_pause(&self, it: &PauseEvent<'_>) {
        let (kind, reason) = (it.kind(), it.reason());
        self.add(it, format!("{kind} paused by {reason:?}"));
    }

    fn on_ban(&self, it: &BanEvent<'_>) {
        let (policy, until) = (it.policy().name(), it.block().until_ms());
        self.add(it, format!("{policy} bans until {until:?}"));
    }
}
