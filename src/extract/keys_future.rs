//! [`AsyncKeyExtractor`]: keys from a look-up that has to be awaited.

use std::pin::Pin;

use http::request::Parts;

use super::{IntoKeys, Keys};
use crate::domain::error::ExtractError;

/// The future that an [`AsyncKeyExtractor`] returns.
pub type KeysFuture = Pin<Box<dyn Future<Output = Result<Keys, ExtractError>> + Send>>;

/// Looks up the keys of a request when the head alone does not hold them.
///
/// Closures `Fn(&Parts) -> F` are such extractors if the output of the future is a type that a
/// [`KeyExtractor`](super::KeyExtractor) closure can return. The future must own the data that it uses: copy what you
/// need from the head.
///
/// The look-ups of one request run at the same time, after all extractors that need no future, and share [one
/// timeout](crate::RateLimitLayer::look_up_timeout): if a look-up takes longer, the failure policy applies to that
/// limit. The store's timeout starts afterwards. If your look-up fails, return [`ExtractError::unavailable`].
///
/// ```
/// use http::request::Parts;
/// use sluicegate::{Key, error::ExtractError, extract::AsyncKeyExtractor};
///
/// # async fn owner_of(_project: String) -> Result<String, std::io::Error> { Ok("alice".into()) }
/// let owner = |head: &Parts| {
///     let project = head.uri.path().trim_start_matches('/').to_owned();
///     async move {
///         match owner_of(project).await {
///             Ok(owner) => Ok(Key::new("user", owner)),
///             Err(_) => Err(ExtractError::unavailable("the directory did not answer")),
///         }
///     }
/// };
/// # let head = http::Request::get("/compiler").body(()).unwrap().into_parts().0;
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// assert_eq!(owner.extract(&head).await, Ok(Key::new("user", "alice").into()));
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not look up keys",
    note = "a closure needs its argument's type, `|head: &http::request::Parts| …`, and its future owns what it needs: \
            copy it from the head before an `async move`",
    note = "a key that the head alone holds goes to `limit`"
)]
pub trait AsyncKeyExtractor: Send + Sync + 'static {
    /// Looks up the keys of a request.
    fn extract(&self, head: &Parts) -> KeysFuture;
}

#[diagnostic::do_not_recommend]
impl<F, Fut> AsyncKeyExtractor for F
where
    F: Fn(&Parts) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoKeys> + Send + 'static,
{
    fn extract(&self, head: &Parts) -> KeysFuture {
        let answer = self(head);
        Box::pin(async { answer.await.into_keys() })
    }
}
