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

use super::request_guard::{EndOutcome, RequestGuard};

pin_project! {
    /// The body of a response that a [`RateLimitLayer`](crate::RateLimitLayer) follows to its end. Frames, trailers and
    /// sizes are those of the inner body.
    ///
    /// The response ends when the inner body has ended or failed, or when this body is dropped, for instance because
    /// the client has left.
    ///
    /// An error is that of the inner body, boxed; or, if the layer [cuts
    /// off](crate::RateLimitLayer::cut_off_without_slot) responses, the loss of the slot.
    pub struct FollowedBody<B> {
        #[pin]
        inner: B,
        ending: Option<RequestGuard>,
        // Ready when a slot is lost whose loss ends the body.
        lost: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
        is_cut_off: bool,
    }
}

impl<B: fmt::Debug> fmt::Debug for FollowedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FollowedBody")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

/// Ends a body whose slot was lost.
const SLOT_LOST: &str =
    "the slot of this response was lost, and another request may run in its place";

impl<B: Body> FollowedBody<B> {
    pub(super) fn new(head: &Parts, inner: B, mut ending: Option<RequestGuard>) -> Self {
        if let Some(ending) = &ending {
            ending.begin_body(head);
        }
        let has_no_frames = inner.is_end_stream()
            || matches!(
                head.status,
                StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
            )
            || ending.as_ref().is_some_and(RequestGuard::answers_head);
        if has_no_frames {
            finish(&mut ending, EndOutcome::Complete);
        }
        Self {
            inner,
            lost: ending.as_ref().and_then(RequestGuard::loss),
            is_cut_off: false,
            ending,
        }
    }

    /// A body whose end changes nothing.
    const fn of(inner: B) -> Self {
        Self {
            inner,
            ending: None,
            lost: None,
            is_cut_off: false,
        }
    }
}

/// For rejections by an outer layer.
impl<B: Body + From<String>> From<String> for FollowedBody<B> {
    fn from(text: String) -> Self {
        Self::of(text.into())
    }
}

/// An empty body, for rejections by an outer layer.
impl<B: Body + Default> Default for FollowedBody<B> {
    fn default() -> Self {
        Self::of(B::default())
    }
}

/// Ends the response, unless it has ended.
fn finish(ending: &mut Option<RequestGuard>, outcome: EndOutcome) {
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
        if *this.is_cut_off {
            return Poll::Ready(None);
        }
        if let Some(lost) = this.lost
            && lost.as_mut().poll(cx).is_ready()
        {
            *this.is_cut_off = true;
            finish(this.ending, EndOutcome::Failed);
            return Poll::Ready(Some(Err(SLOT_LOST.into())));
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
            *this.lost = None; // no slot is held any more
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.is_cut_off || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
