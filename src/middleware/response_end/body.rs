//! [`FollowedBody`]: a body whose end the layer notices.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{StatusCode, response::Parts};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::ending::{EndOutcome, Ending, Following};

pin_project! {
    /// The body of a response that a [`RateLimitLayer`](crate::RateLimitLayer) follows to its end. Frames, trailers and
    /// sizes are those of the inner body.
    ///
    /// The response ends when the inner body has ended or failed, or when this body is dropped, for instance because
    /// the client has left.
    #[derive(Debug)]
    pub struct FollowedBody<B> {
        #[pin]
        inner: B,
        following: Option<Following>,
    }
}

impl<B: Body> FollowedBody<B> {
    pub(super) fn new(head: &Parts, inner: B, ending: Option<Ending>) -> Self {
        let mut following = ending.map(|ending| Following::new(ending, head));
        let has_no_frames = inner.is_end_stream()
            || matches!(
                head.status,
                StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
            )
            || following.as_ref().is_some_and(Following::answers_head);
        if has_no_frames {
            finish(&mut following, EndOutcome::Complete);
        }
        Self { inner, following }
    }
}

/// For rejections by an outer layer.
impl<B: Body + From<String>> From<String> for FollowedBody<B> {
    fn from(text: String) -> Self {
        Self {
            inner: text.into(),
            following: None,
        }
    }
}

/// An empty body, for rejections by an outer layer.
impl<B: Body + Default> Default for FollowedBody<B> {
    fn default() -> Self {
        Self {
            inner: B::default(),
            following: None,
        }
    }
}

/// Ends the response, unless it has ended.
fn finish(following: &mut Option<Following>, outcome: EndOutcome) {
    if let Some(following) = following.take() {
        following.end(outcome);
    }
}

impl<B: Body> Body for FollowedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.inner.as_mut().poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(following) = this.following {
                    following.see(frame);
                }
                // A server that knows the length does not poll again for the end.
                if this.inner.is_end_stream() {
                    finish(this.following, EndOutcome::Complete);
                }
            }
            Some(Err(_)) => finish(this.following, EndOutcome::Failed),
            None => finish(this.following, EndOutcome::Complete),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
