//! [`Queued`]: an operation that waits for its turn, and then for its reply.

use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::Instant;

use super::{CallQueues, SharedCalls, slab::End};
use crate::{
    domain::{
        check::Check,
        error::StoreError,
        operation::{Operation, Reply},
    },
    store::{ANOTHER_REPLY, TIMED_OUT, redis::error::SHUT_DOWN, sent::Sent},
};

/// An operation that is small to move: most are checks.
pub(in crate::store::redis) enum Task {
    Check(Check),
    Other(Box<Operation>),
}

impl Task {
    pub(in crate::store::redis) fn check(&self) -> Option<&Check> {
        match self {
            Self::Check(check) => Some(check),
            Self::Other(operation) => operation.check(),
        }
    }

    pub(in crate::store::redis) fn into_operation(self) -> Operation {
        match self {
            Self::Check(check) => Operation::Check(check),
            Self::Other(operation) => *operation,
        }
    }
}

impl From<Operation> for Task {
    fn from(operation: Operation) -> Self {
        match operation {
            Operation::Check(check) => Self::Check(check),
            other => Self::Other(Box::new(other)),
        }
    }
}

/// The answer to an operation, which enters the line when first polled. It needs no box.
pub(crate) struct Queued<T> {
    stage: Progress,
    read: fn(Reply) -> Option<T>,
}

/// The mark is set if others than the caller have to know whether the operation is sent.
enum Progress {
    /// With the time that the caller waits, if the line looks after that.
    NotEntered(Arc<CallQueues>, Task, Option<Duration>, Option<Sent>),
    /// In this seat, until the deadline.
    Waits(Arc<SharedCalls>, usize, Option<Instant>, Option<Sent>),
    Over,
}

impl<T> Queued<T> {
    pub(in crate::store::redis) fn new(
        queues: &Arc<CallQueues>,
        task: Task,
        sent: Option<Sent>,
        read: fn(Reply) -> Option<T>,
    ) -> Self {
        Self {
            stage: Progress::NotEntered(Arc::clone(queues), task, None, sent),
            read,
        }
    }

    /// Sets how long to wait.
    pub(crate) const fn set_timeout(&mut self, timeout: Duration) {
        if let Progress::NotEntered(_, _, wait, _) = &mut self.stage {
            *wait = Some(timeout);
        }
    }

    /// The deadline that the line looks after, while the caller waits.
    pub(crate) const fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Progress::Waits(_, _, deadline, _) => *deadline,
            Progress::NotEntered(..) | Progress::Over => None,
        }
    }

    /// Returns the mark by which the sender or a leaving caller decides whether the operation is sent.
    pub(crate) fn sent(&mut self) -> Option<&Sent> {
        match &mut self.stage {
            Progress::NotEntered(.., sent) => Some(sent.get_or_insert_with(Sent::queued)),
            Progress::Waits(.., sent) => sent.as_ref(),
            Progress::Over => None,
        }
    }

    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.stage, Progress::Over)
    }

    /// Sees to it that the operation is not sent, if it was not. Otherwise, the caller waits on without a deadline.
    pub(crate) fn is_never_sent(&mut self) -> bool {
        let sent = match &mut self.stage {
            Progress::NotEntered(.., sent) => sent.take(),
            Progress::Waits(line, seat, _, sent) if line.slab.is_never_sent(*seat) => sent.take(),
            Progress::Waits(..) | Progress::Over => return false,
        };
        self.stage = Progress::Over;
        sent.is_none_or(|sent| sent.leave())
    }

    fn enter(&mut self, caller: &Waker) -> Result<(), StoreError> {
        if let Progress::NotEntered(queues, task, timeout, sent) =
            mem::replace(&mut self.stage, Progress::Over)
        {
            let line = queues.here(&task)?;
            let deadline = timeout.map(|timeout| Instant::now() + timeout);
            let seat = line.enter(task, sent.clone(), deadline, caller);
            self.stage = Progress::Waits(line, seat, deadline, sent);
        }
        Ok(())
    }
}

impl<T> Unpin for Queued<T> {}

impl<T> Future for Queued<T> {
    type Output = Result<T, StoreError>;

    /// The error of a timeout that passes after the operation was sent is not the last answer: the wait can go on.
    ///
    /// # Panics
    ///
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let (end, sent) = match &mut this.stage {
            Progress::NotEntered(..) => {
                return match this.enter(cx.waker()) {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(Err(error)),
                };
            }
            Progress::Waits(line, seat, _, sent) => match line.slab.poll(*seat, cx.waker()) {
                Poll::Ready(End::Late { is_unsent: false }) => {
                    return Poll::Ready(Err(TIMED_OUT));
                }
                Poll::Ready(end) => (end, sent.take()),
                Poll::Pending => return Poll::Pending,
            },
            Progress::Over => panic!("polled after completion"),
        };
        this.stage = Progress::Over;
        Poll::Ready(match end {
            End::Answered(reply) => reply.and_then(|it| (this.read)(it).ok_or(ANOTHER_REPLY)),
            End::Lost { is_unsent } => Err(SHUT_DOWN.unsent_if(is_unsent)),
            End::Late { .. } => {
                let left = sent.is_none_or(|sent| sent.leave());
                Err(TIMED_OUT.unsent_if(left))
            }
        })
    }
}

/// Leaves the line.
impl<T> Drop for Queued<T> {
    fn drop(&mut self) {
        if let Progress::Waits(line, seat, ..) = &self.stage {
            line.slab.leave(*seat);
        }
    }
}
