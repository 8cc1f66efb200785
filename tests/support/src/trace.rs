//! A subscriber that records traces.

use std::{
    fmt::{Debug, Write},
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use tracing::{
    Dispatch, Event, Id, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
    subscriber::{DefaultGuard, NoSubscriber, set_default, with_default},
};

/// Records spans and events as `level target name field=value …`, and counts the entered spans.
#[derive(Clone, Default)]
pub struct Trace {
    pub lines: Arc<Mutex<Vec<String>>>,
    pub entered: Arc<AtomicU64>,
    pub below_warn: bool,
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "latency_us" => {}
            "message" => write!(self.0, " {value:?}").unwrap(),
            name => write!(self.0, " {name}={value:?}").unwrap(),
        }
    }
}

/// The traces of this future, with a paused clock.
pub fn traced(below_warn: bool, run: impl Future<Output = ()>) -> Vec<String> {
    let trace = Trace {
        below_warn,
        ..Trace::default()
    };
    trace.during(|| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build();
        runtime.unwrap().block_on(run);
    });
    let lines = trace.lines.lock().unwrap();
    lines.clone()
}

/// Records the warnings of this thread until the guard is dropped.
pub fn traced_here() -> (Trace, DefaultGuard) {
    LazyLock::force(&ANOTHER);
    let trace = Trace::default();
    let guard = set_default(trace.clone());
    (trace, guard)
}

/// A second subscriber. With only one, tracing asks the first thread at an event whether a subscriber wants the event,
/// and the answer of another test's thread would count for all.
static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));

impl Trace {
    pub fn during(&self, run: impl FnOnce()) {
        LazyLock::force(&ANOTHER);
        with_default(self.clone(), run);
    }

    fn add(&self, metadata: &Metadata<'_>, record: impl FnOnce(&mut Fields)) {
        let mut fields = Fields(String::new());
        record(&mut fields);
        let inside = if self.entered.load(Ordering::SeqCst) > 0 {
            "| "
        } else {
            ""
        };
        let line = format!("{inside}{}{}", metadata.level(), fields.0);
        assert_eq!(metadata.target(), "sluicegate");
        self.lines.lock().unwrap().push(line);
    }
}

impl Subscriber for Trace {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "sluicegate" && (self.below_warn || *metadata.level() == Level::WARN)
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> Id {
        self.add(attributes.metadata(), |fields| attributes.record(fields));
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        self.add(event.metadata(), |fields| event.record(fields));
    }

    fn enter(&self, _: &Id) {
        self.entered.fetch_add(1, Ordering::SeqCst);
    }

    fn exit(&self, _: &Id) {
        self.entered.fetch_sub(1, Ordering::SeqCst);
    }

    fn record(&self, _: &Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}
}
