//! [`FollowedBody`]: a body whose end the layer notices.

use std::{
    error::Error,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{StatusCode, response::Parts};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::ending::{EndOutcome, Ending};

pin_project! {
    /// The body of a response that a [`RateLimitLayer`](crate::RateLimitLayer) follows to its end. Frames, trailers and
    /// sizes are those of the inner body.
    ///
    /// The response ends when the inner body has ended or failed, or when this body is dropped, for instance because
    /// the client has left.
    ///
    /// An error is that of the inner body, boxed; or, if the layer [cuts
    /// off](crate::RateLimitLayer::cut_off_without_slot) responses, the loss of the slot.
    #[derive(Debug)]
    pub struct FollowedBody<B> {
        #[pin]
        inner: B,
        ending: Option<Ending>,
        cut_off: CutOff,
    }
}

/// Whether the loss of a slot ends the body.
enum CutOff {
    Never,
    WhenLost(Pin<Box<dyn Future<Output = ()> + Send + Sync>>),
    Done,
}

impl CutOff {
    fn of(ending: Option<&Ending>) -> Self {
        match ending.and_then(Ending::slot_to_watch) {
            Some(watch) => Self::WhenLost(Box::pin(async move { watch.lost().await })),
            None => Self::Never,
        }
    }

    fn is_due(&mut self, cx: &mut Context<'_>) -> bool {
        match self {
            Self::WhenLost(lost) => lost.as_mut().poll(cx).is_ready(),
            Self::Never | Self::Done => false,
        }
    }
}

impl fmt::Debug for CutOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Never => "Never",
            Self::WhenLost(_) => "WhenLost",
            Self::Done => "Done",
        })
    }
}

/// Ends a body whose slot was lost.
#[derive(Debug)]
struct SlotLost;

impl fmt::Display for SlotLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the slot of this response was lost, and another request may run in its place")
    }
}

impl Error for SlotLost {}

impl<B: Body> FollowedBody<B> {
    pub(super) fn new(head: &Parts, inner: B, mut ending: Option<Ending>) -> Self {
        if let Some(ending) = &ending {
            ending.begin_body(head);
        }
        let has_no_frames = inner.is_end_stream()
            || matches!(
                head.status,
                StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
            )
            || ending.as_ref().is_some_and(Ending::answers_head);
        if has_no_frames {
            finish(&mut ending, EndOutcome::Complete);
        }
        Self {
            inner,
            cut_off: CutOff::of(ending.as_ref()),
            ending,
        }
    }
}

/// For rejections by an outer layer.
impl<B: Body + From<String>> From<String> for FollowedBody<B> {
    fn from(text: String) -> Self {
        Self {
            inner: text.into(),
            ending: None,
            cut_off: CutOff::Never,
        }
    }
}

/// An empty body, for rejections by an outer layer.
impl<B: Body + Default> Default for FollowedBody<B> {
    fn default() -> Self {
        Self {
            inner: B::default(),
            ending: None,
            cut_off: CutOff::Never,
        }
    }
}

/// Ends the response, unless it has ended.
fn finish(ending: &mut Option<Ending>, outcome: EndOutcome) {
    if let Some(ending) = ending.take() {
        ending.end_body(outcome);
    }
}

impl<B> Body for FollowedBody<B>
where
    B: Body<Error: Into<Box<dyn Error + Send + Sync>>>,
{
    type Data = B::Data;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Self::Error>>> {
        let mut this = self.project();
        if this.cut_off.is_due(cx) {
            *this.cut_off = CutOff::Done;
            finish(this.ending, EndOutcome::Failed);
            return Poll::Ready(Some(Err(SlotLost.into())));
        }
        if matches!(this.cut_off, CutOff::Done) {
            return Poll::Ready(None);
        }
        let frame = ready!(this.inner.as_mut().poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(ending) = this.ending {
                    ending.see(frame);
                }
                // A server that knows the length does not poll again for the end.
                if this.inner.is_end_stream() {
                    finish(this.ending, EndOutcome::Complete);
                }
            }
            Some(Err(_)) => finish(this.ending, EndOutcome::Failed),
            None => finish(this.ending, EndOutcome::Complete),
        }
        if this.ending.is_none() {
            *this.cut_off = CutOff::Never; // no slot is held any more
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.cut_off, CutOff::Done) || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
