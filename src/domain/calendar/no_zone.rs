//! [`Zone`] without the feature `calendar`: there is none.

use std::borrow::Cow;

use super::{Boundaries, Calendar, Periods};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Zone {}

impl Zone {
    pub(crate) fn parse(_: &str) -> Result<Self, Cow<'static, str>> {
        Err("calendar rules need the feature `calendar` of the crate".into())
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        std::iter::empty()
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {}
    }

    pub(super) const fn periods(self, _: Calendar, _: u64) -> Periods {
        match self {}
    }

    pub(super) const fn boundaries_ms(self, _: Calendar, _: u64, _: u64) -> Boundaries {
        match self {}
    }
}
