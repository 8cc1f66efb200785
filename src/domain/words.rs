//! One lower-case word for each variant of an enum.

/// Gives an enum `ALL` of its variants, and `as_str` with these words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident: $($variant:ident $word:literal),+) => {
        impl $name {
            #[allow(dead_code, reason = "not every enum is listed, or with every feature")]
            pub(crate) const ALL: &[Self] = &[$(Self::$variant),+];

            $(#[$doc])*
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }
    };
}
pub(crate) use words;
