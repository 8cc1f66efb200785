//! A second runtime that shares the store: one thread, which polls only while the job works.

use std::{
    sync::mpsc,
    thread::{Builder as Thread, JoinHandle},
};

use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
};

use super::{run::WORKER, traffic::Traffic};

enum Order {
    /// Poll nothing until the other end is dropped.
    Park(mpsc::Receiver<()>),
    /// Drop the runtime in the middle of requests, and continue with another.
    Renew,
}

/// The job works from the start. Dropping a job also drops the runtime, in the middle of requests.
pub(crate) struct Job {
    orders: Option<UnboundedSender<Order>>,
    thread: Option<JoinHandle<()>>,
}

/// The job is parked until this is dropped.
pub(crate) struct Parked {
    _until: mpsc::Sender<()>,
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

    pub(crate) fn park(&self) -> Parked {
        let (until, parked) = mpsc::channel();
        self.order(Order::Park(parked));
        Parked { _until: until }
    }

    pub(crate) fn renew(&self) {
        self.order(Order::Renew);
    }

    fn order(&self, order: Order) {
        let orders = self.orders.as_ref().unwrap();
        assert!(orders.send(order).is_ok(), "the job has ended");
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn work(traffic: &Traffic, mut orders: UnboundedReceiver<Order>) {
    let mut runtime = asking(traffic);
    while let Some(order) = runtime.block_on(orders.recv()) {
        match order {
            Order::Park(until) => drop(until.recv()),
            Order::Renew => runtime = asking(traffic),
        }
    }
}

fn asking(traffic: &Traffic) -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    traffic.start_in_job(runtime.handle());
    runtime
}
