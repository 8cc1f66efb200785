//! A second runtime that shares the store: one thread.

use std::thread::{Builder as Thread, JoinHandle};

use tokio::{
    runtime::{Handle, Runtime},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
};

use super::run::WORKER;

/// The job works from the start. Dropping a job also drops the runtime, in the middle of requests.
pub(crate) struct Job {
    /// Each is to drop the runtime in the middle of requests, and continue with another.
    orders: Option<UnboundedSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Job {
    /// `begin` starts its requests in each runtime.
    pub(crate) fn start(begin: impl Fn(&Handle) + Send + 'static) -> Self {
        let (orders, received) = unbounded_channel();
        let thread = Thread::new().name(WORKER.into());
        Self {
            orders: Some(orders),
            thread: Some(thread.spawn(move || work(begin, received)).unwrap()),
        }
    }

    pub(crate) fn renew(&self) {
        let orders = self.orders.as_ref().unwrap();
        assert!(orders.send(()).is_ok(), "the job has ended");
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn work(begin: impl Fn(&Handle), mut orders: UnboundedReceiver<()>) {
    let asking = || {
        let runtime = support::runtime();
        begin(runtime.handle());
        runtime
    };
    let mut runtime: Runtime = asking();
    while let Some(()) = runtime.block_on(orders.recv()) {
        runtime = asking();
    }
}
