//! [`Queued`]: an operation that waits for its turn in a [`Line`], and then for its reply.

use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    domain::{
        check::Check,
        error::StoreError,
        operation::{Operation, Reply},
    },
    store::{TIMED_OUT, ext::ANOTHER_REPLY, sent::Sent},
};

/// The callers that wait for the calls of a store.
pub(crate) trait Line: Send + Sync {
    /// Lets an operation in; the end of the wait wakes its caller.
    fn enter(self: Arc<Self>, asked: Asked, caller: &Waker) -> Result<Place, StoreError>;

    /// Returns the reply, or the error, when the wait has ended. Then the caller has left.
    fn poll(&self, place: &mut Place, caller: &Waker) -> Poll<Waited>;

    /// Lets the caller out before. Returns whether the operation is never sent.
    fn leave(&self, place: &Place) -> bool;
}

/// An operation that is small to move: most are checks.
pub(crate) enum Task {
    Check(Check),
    Other(Box<Operation>),
}

impl Task {
    pub(crate) fn check(&self) -> Option<&Check> {
        match self {
            Self::Check(check) => Some(check),
            Self::Other(operation) => operation.check(),
        }
    }

    pub(crate) fn into_operation(self) -> Operation {
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

/// A task that has not entered yet.
pub(crate) struct Asked {
    pub(crate) task: Task,
    /// Set if somebody else has to know whether the operation is sent.
    pub(crate) sent: Option<Sent>,
    /// How long the caller waits, if the line looks after that.
    pub(crate) timeout: Option<Duration>,
}

/// The place of a caller in a line.
pub(crate) struct Place {
    pub(crate) seat: usize,
    pub(crate) ticket: u64,
    pub(crate) deadline: Option<Instant>,
    /// Whether the line looks after the deadline.
    pub(crate) is_timed: bool,
}

/// How a wait has ended.
pub(crate) enum Waited {
    Answered(Result<Reply, StoreError>),
    /// The deadline has passed.
    Late {
        is_unsent: bool,
    },
}

/// The answer to an operation, which enters the line when first polled. It needs no box.
pub(crate) struct Queued<T> {
    line: Arc<dyn Line>,
    stage: Stage,
    read: fn(Reply) -> Option<T>,
}

enum Stage {
    Asked(Asked),
    Waits(Place, Option<Sent>),
    Over { late: Option<Instant> },
}

impl<T> Queued<T> {
    pub(crate) fn new(line: Arc<dyn Line>, task: Task, read: fn(Reply) -> Option<T>) -> Self {
        let (sent, timeout) = (None, None);
        let asked = Asked {
            task,
            sent,
            timeout,
        };
        Self {
            line,
            stage: Stage::Asked(asked),
            read,
        }
    }

    /// Sets how long to wait. The line looks after that if it can, which [`is_timed`](Self::is_timed) says.
    pub(crate) const fn set_timeout(&mut self, timeout: Duration) {
        if let Stage::Asked(asked) = &mut self.stage {
            asked.timeout = Some(timeout);
        }
    }

    /// Whether the line looks after the deadline.
    pub(crate) const fn is_timed(&self) -> bool {
        matches!(&self.stage, Stage::Waits(place, _) if place.is_timed)
    }

    /// The deadline, while the caller waits, and after it has passed.
    pub(crate) const fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Waits(place, _) => place.deadline,
            Stage::Over { late } => *late,
            Stage::Asked(_) => None,
        }
    }

    /// Returns the mark by which the sender or a leaving caller decides whether the operation is sent.
    pub(crate) fn sent(&mut self) -> Option<&Sent> {
        match &mut self.stage {
            Stage::Asked(asked) => Some(asked.sent.get_or_insert_with(Sent::queued)),
            Stage::Waits(_, sent) => sent.as_ref(),
            Stage::Over { .. } => None,
        }
    }

    /// Leaves without the answer. Returns whether the operation is never sent.
    pub(crate) fn leave(&mut self) -> bool {
        let leave = |sent: Option<Sent>| sent.is_none_or(|sent| sent.leave());
        match mem::replace(&mut self.stage, Stage::Over { late: None }) {
            Stage::Asked(asked) => leave(asked.sent),
            Stage::Waits(place, sent) => self.line.leave(&place) && leave(sent),
            Stage::Over { .. } => false,
        }
    }

    fn enter(&mut self, caller: &Waker) -> Result<(), StoreError> {
        let over = Stage::Over { late: None };
        if let Stage::Asked(asked) = mem::replace(&mut self.stage, over) {
            let sent = asked.sent.clone();
            let place = Arc::clone(&self.line).enter(asked, caller)?;
            self.stage = Stage::Waits(place, sent);
        }
        Ok(())
    }
}

impl<T> Unpin for Queued<T> {}

impl<T> Future for Queued<T> {
    type Output = Result<T, StoreError>;

    /// # Panics
    ///
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let (waited, sent) = match &mut this.stage {
            Stage::Asked(_) => {
                return match this.enter(cx.waker()) {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(Err(error)),
                };
            }
            Stage::Waits(place, sent) => match this.line.poll(place, cx.waker()) {
                Poll::Ready(waited) => (waited, sent.take()),
                Poll::Pending => return Poll::Pending,
            },
            Stage::Over { .. } => panic!("polled after completion"),
        };
        let deadline = this.deadline();
        let late = deadline.filter(|_| matches!(waited, Waited::Late { .. }));
        this.stage = Stage::Over { late };
        Poll::Ready(match waited {
            Waited::Answered(reply) => reply.and_then(|it| (this.read)(it).ok_or(ANOTHER_REPLY)),
            Waited::Late { is_unsent } => {
                let left = is_unsent && sent.is_none_or(|sent| sent.leave());
                Err(TIMED_OUT.unsent_if(left))
            }
        })
    }
}

/// Leaves the line.
impl<T> Drop for Queued<T> {
    fn drop(&mut self) {
        if let Stage::Waits(place, _) = &self.stage {
            self.line.leave(place);
        }
    }
}
