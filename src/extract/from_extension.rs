//! [`FromExtension`]: keys from an identity in the request's extensions.

use std::{any::type_name, fmt};

use http::request::Parts;

use super::{IntoKeys, KeyExtractor, Keys};
use crate::domain::error::ExtractError;

type Read<T> = dyn Fn(&T) -> Result<Keys, ExtractError> + Send + Sync;

/// An identity that an outer layer, such as authentication, has inserted into the request's extensions.
///
/// Put the layer that inserts the identity outside this one, and insert something into **each** request: a `T`, or an
/// `Option<T>` that is `None` when no user has signed in. [Here](crate::middleware#authentication-in-axum) are both
/// layers in axum. You choose the answer to a request without a user:
///
/// | in the extensions | the key |
/// |---|---|
/// | a `T`, or `Some` of one | the key that the closure returns |
/// | `None::<T>` | [missing](crate::error::ExtractErrorKind::Missing): a 400, or see [`or_skip`](KeyExtractor::or_skip), [`or_unauthorized`](KeyExtractor::or_unauthorized), [`or`](KeyExtractor::or) |
/// | neither | [misconfigured](crate::error::ExtractErrorKind::Misconfigured): a 500, and a warning that names `T`; nothing above changes that |
///
/// ```
/// use sluicegate::{Key, KeyExtractor, error::ExtractErrorKind, extract::{FromExtension, Keys}};
///
/// #[derive(Clone)]
/// struct User { id: u64 }
///
/// let user = FromExtension::new(|user: &User| Key::new("user", user.id.to_string())).or_skip();
///
/// let mut head = http::Request::get("/").body(())?.into_parts().0;
/// assert_eq!(user.extract(&head).unwrap_err().kind(), ExtractErrorKind::Misconfigured);
/// head.extensions.insert(None::<User>);
/// assert_eq!(user.extract(&head)?, Keys::skip());
/// head.extensions.insert(Some(User { id: 7 }));
/// assert_eq!(user.extract(&head)?, Keys::from(Key::new("user", "7")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// If your authentication inserts nothing for requests without a user, and you cannot change that, use a closure
/// instead: `|head: &Parts| head.extensions.get::<User>().map(…)`. You then get no error if the layers are in the wrong
/// order.
pub struct FromExtension<T> {
    read: Box<Read<T>>,
}

impl<T: Clone + Send + Sync + 'static> FromExtension<T> {
    /// Creates an extractor that makes keys from a `T`. `read` returns one of the types that an extractor's closure can
    /// return.
    #[must_use]
    pub fn new<R: IntoKeys>(read: impl Fn(&T) -> R + Send + Sync + 'static) -> Self {
        Self {
            read: Box::new(move |value| read(value).into_keys()),
        }
    }
}

impl<T: Clone + Send + Sync + 'static> KeyExtractor for FromExtension<T> {
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        if let Some(value) = head.extensions.get::<T>() {
            return (self.read)(value);
        }
        match head.extensions.get::<Option<T>>() {
            Some(Some(value)) => (self.read)(value),
            Some(None) => Err(ExtractError::missing("no user has signed in")),
            None => Err(NOT_INSERTED.about(type_name::<T>())),
        }
    }
}

const NOT_INSERTED: ExtractError = ExtractError::misconfigured(
    "no request has one in its extensions: the layer that inserts it must be outside the limit, and insert an `Option` \
     for requests without a user",
);

impl<T> fmt::Debug for FromExtension<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FromExtension<{}>", type_name::<T>())
    }
}
