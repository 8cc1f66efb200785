//! A second runtime that shares the store: one thread.

use std::thread::{Builder as Thread, JoinHandle};

use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
};

use super::{run::WORKER, traffic::Traffic};

/// The job works from the start. Dropping a job also drops the runtime, in the middle of requests.
pub(crate) struct Job {
    /// Each is to drop the runtime in the middle of requests, and continue with another.
    orders: Option<UnboundedSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Job {
    pub(crate) fn start(traffic: Traffic) -> Self {
        let (orders, received) = unbounded_channel();
        let thread = Thread::new().name(WORKER.into());
        Self {
            orders: Some(orders),
            thread: Some(thread.spawn(move || work(&traffic, received)).unwrap()),
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

fn work(traffic: &Traffic, mut orders: UnboundedReceiver<()>) {
    let mut runtime = asking(traffic);
    while let Some(()) = runtime.block_on(orders.recv()) {
        runtime = asking(traffic);
    }
}

fn asking(traffic: &Traffic) -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    traffic.start_in_job(runtime.handle());
    runtime
}
