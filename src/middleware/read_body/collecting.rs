//! [`Collecting`]: the bytes of a body, as they arrive.

use std::{
    error::Error,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, BufMut, Bytes};
use http::StatusCode;
use http_body::Body;
use http_body_util::LengthLimitError;
use tokio::time::{Sleep, sleep};

use crate::middleware::respond::BodyError;

pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// Keeps at most `most` bytes, and waits for at most `time_limit`.
pub(super) struct Collecting {
    most: usize,
    time_limit: Duration,
    /// Made at the first wait, since most bodies are there with the head.
    timer: Option<Pin<Box<Sleep>>>,
    /// The first frame, which is mostly the whole body.
    first: Bytes,
    /// All frames, if there are several.
    all: Vec<u8>,
}

impl Collecting {
    pub(super) fn new(most: usize, time_limit: Duration) -> Self {
        Self {
            most,
            time_limit,
            timer: None,
            first: Bytes::new(),
            all: Vec::new(),
        }
    }

    /// Returns all bytes when the body has ended.
    pub(super) fn poll<B>(
        &mut self,
        mut body: Pin<&mut B>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Bytes, BodyError>>
    where
        B: Body<Error: Into<BoxError>>,
    {
        loop {
            let Poll::Ready(frame) = body.as_mut().poll_frame(cx) else {
                let timer = self
                    .timer
                    .get_or_insert_with(|| Box::pin(sleep(self.time_limit)));
                ready!(timer.as_mut().poll(cx));
                let slow = "The body took too long.";
                return Poll::Ready(Err(BodyError::of(StatusCode::REQUEST_TIMEOUT, slow)));
            };
            match frame {
                Some(Ok(frame)) => {
                    // Others are trailers.
                    if let Ok(data) = frame.into_data() {
                        self.add(data)?;
                    }
                }
                Some(Err(error)) => return Poll::Ready(Err(why(&*error.into()))),
                None if self.all.is_empty() => {
                    return Poll::Ready(Ok(std::mem::take(&mut self.first)));
                }
                None => return Poll::Ready(Ok(std::mem::take(&mut self.all).into())),
            }
        }
    }

    fn add(&mut self, mut data: impl Buf) -> Result<(), BodyError> {
        let length = data.remaining();
        if length > self.most - self.first.len().max(self.all.len()) {
            return Err(too_large(self.most));
        }
        if self.first.is_empty() && self.all.is_empty() {
            self.first = data.copy_to_bytes(length); // no copy, of `Bytes`
            return Ok(());
        }
        let first = std::mem::take(&mut self.first);
        self.make_room_for(first.len() + length);
        self.all.put(first);
        self.all.put(data);
        Ok(())
    }

    /// Doubles the capacity as a vector does, but up to the most that are allowed.
    fn make_room_for(&mut self, length: usize) {
        let needed = self.all.len() + length;
        if needed > self.all.capacity() {
            let capacity = needed.max(2 * self.all.capacity()).min(self.most);
            self.all.reserve_exact(capacity - self.all.len());
        }
    }
}

pub(super) fn too_large(most: usize) -> BodyError {
    let detail = format!("The body has more than {most} bytes.");
    BodyError::of(StatusCode::PAYLOAD_TOO_LARGE, detail)
}

/// A layer outside may bound bodies, too.
fn why(mut error: &(dyn Error + 'static)) -> BodyError {
    while !error.is::<LengthLimitError>() {
        let Some(source) = error.source() else {
            return BodyError::new("The body broke off.");
        };
        error = source;
    }
    let detail = "The body has too many bytes.";
    BodyError::of(StatusCode::PAYLOAD_TOO_LARGE, detail)
}
