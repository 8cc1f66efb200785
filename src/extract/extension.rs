use std::fmt;

use http::request::Parts;

use super::{IntoKeys, KeyExtractor, Keys};
use crate::error::ExtractError;

type Read<T> = dyn Fn(&T) -> Result<Keys, ExtractError> + Send + Sync;

/// An identity that an outer layer, such as authentication, has inserted into the request's extensions.
///
/// The limit must be *inside* that layer: without a `T` in the extensions, the key is missing.
///
/// ```
/// use sluicegate::{Key, KeyExtractor, extract::{Extension, Keys}};
///
/// #[derive(Clone)]
/// struct User { id: u64 }
///
/// let user = Extension::new(|user: &User| Key::new("user", user.id.to_string()));
///
/// let mut head = http::Request::get("/").body(())?.into_parts().0;
/// assert!(user.extract(&head).is_err());
/// head.extensions.insert(User { id: 7 });
/// assert_eq!(user.extract(&head)?, Keys::from(Key::new("user", "7")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Extension<T> {
    read: Box<Read<T>>,
}

impl<T: Clone + Send + Sync + 'static> Extension<T> {
    /// Creates an extractor that makes keys from a `T`. `read` may answer what any extractor's closure may answer.
    #[must_use]
    pub fn new<R: IntoKeys>(read: impl Fn(&T) -> R + Send + Sync + 'static) -> Self {
        Self {
            read: Box::new(move |value| read(value).into_keys()),
        }
    }
}

impl<T: Clone + Send + Sync + 'static> KeyExtractor for Extension<T> {
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        match head.extensions.get::<T>() {
            Some(value) => (self.read)(value),
            None => Err(ExtractError::missing(
                "no identity in the extensions: the layer that inserts it must be outside this one",
            )),
        }
    }
}

impl<T> fmt::Debug for Extension<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extension<{}>", std::any::type_name::<T>())
    }
}
