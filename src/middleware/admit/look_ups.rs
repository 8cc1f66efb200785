//! Runs the look-ups of one request at the same time.

use std::time::Duration;

use crate::{
    domain::{charge::Charge, error::ExtractError},
    extract::ChargesFuture,
    store::maybe_ready::join_all,
    timer::within,
};

/// The result of one look-up.
pub(in crate::middleware) type LookedUp = Result<Vec<Charge>, ExtractError>;

/// Waits for the look-ups of one request, each within the same time; the results are in their order.
pub(super) async fn all(look_ups: Vec<ChargesFuture>, timeout: Duration) -> Vec<LookedUp> {
    let look_ups = look_ups.into_iter();
    let all = look_ups.map(|look_up| Box::pin(within(timeout, look_up)));
    let all_found = join_all(all.collect()).await.into_iter();
    let found = all_found.map(|found| found.unwrap_or(Err(TOO_LATE)));
    found.collect()
}

const TOO_LATE: ExtractError = ExtractError::unavailable("a look-up took longer than its timeout");
