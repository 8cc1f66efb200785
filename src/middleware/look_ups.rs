//! Keys that have to be looked up.

use std::{borrow::Cow, sync::Arc};

use http::request::Parts;
use tokio::time::Instant;

use super::{
    Rejection,
    decide::{AccessLists, Choice},
    plan::{Plan, add},
    shadow::Meant,
};
use crate::{
    check::CheckBuilder,
    error::ExtractError,
    extract::KeysFuture,
    limiter::{Limiter, by},
};

/// Look-ups that are to be made for one request.
pub(super) struct LookUps {
    pending: Vec<Pending>,
    access_lists: Arc<AccessLists>,
    cost: u64,
    /// Whether the whole layer is a shadow.
    shadow: bool,
}

struct Pending {
    choice: Result<Choice<'static>, ExtractError>,
    meant: Meant,
    look_up: KeysFuture,
}

impl Plan {
    /// Those of shadows, and the others.
    pub(super) fn look_ups(&self, head: &Parts, cost: u64) -> (LookUps, LookUps) {
        let pending = self.look_ups.iter().map(|(source, extractor)| {
            let choice = source.choose(head).map(owned);
            Pending {
                meant: Meant::new(&choice, self.shadow),
                choice,
                look_up: extractor.extract(head),
            }
        });
        let (shadows, others) = pending.partition(|it| it.meant.is_shadow());
        let of = |pending| LookUps {
            pending,
            access_lists: self.access_lists.clone(),
            cost,
            shadow: self.shadow,
        };
        (of(shadows), of(others))
    }
}

impl LookUps {
    /// Makes one after the other, and charges what they find.
    pub(super) async fn run(
        self,
        limiter: &Limiter,
        charges: &mut CheckBuilder,
        until: Instant,
    ) -> Result<(), Rejection> {
        for it in self.pending {
            let found = by(until, it.look_up).await;
            let keys = self.access_lists.charged(found.unwrap_or(Err(TOO_LATE)));
            let added =
                keys.and_then(|keys| add(charges, || it.choice, keys, self.cost, self.shadow));
            if let Err(rejection) = added {
                it.meant.excuse(limiter, rejection, it.meant.is_shadow())?;
            }
        }
        Ok(())
    }
}

const TOO_LATE: ExtractError = ExtractError::unavailable("no key was found within the timeout");

fn owned(choice: Choice<'_>) -> Choice<'static> {
    choice.map(|(policy, weight)| (Cow::Owned(policy.into_owned()), weight))
}
