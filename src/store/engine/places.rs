//! [`Places`]: how the section of a rule with steps keeps its totals.

use std::num::NonZeroU64;

use crate::domain::window::StepSpec;

/// How a section keeps the totals at the ends of the steps before the newest.
pub(in crate::store) enum Places {
    /// A fixed rule has no earlier steps.
    None,
    /// A place for each step that can count: the step with this number has the place `number % places`.
    Ring(NonZeroU64),
    /// An entry for each step that was charged.
    Queue,
}

impl Places {
    const MOST: u64 = 256;

    pub(in crate::store) fn of(spec: StepSpec) -> Self {
        let places = spec.retention_ms.div_ceil(spec.step_ms);
        match NonZeroU64::new(places) {
            None => Self::None,
            Some(places) if places.get() <= Self::MOST => Self::Ring(places),
            Some(_) => Self::Queue,
        }
    }

    /// The numbers of the steps in a ring of so many places, in their order.
    pub(in crate::store) fn steps(places: NonZeroU64, newest: u64) -> impl Iterator<Item = u64> {
        let places = places.get();
        (0..places)
            .map(move |place| newest.saturating_sub(1 + (newest + places - 1 - place) % places))
    }
}
