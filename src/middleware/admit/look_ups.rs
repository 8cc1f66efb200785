//! Runs the look-ups of one request at the same time.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use crate::{
    domain::{charge::Charge, error::ExtractError},
    extract::ChargesFuture,
    timer::LazySleep,
};

/// The result of one look-up.
pub(in crate::middleware) type Found = Result<Vec<Charge>, ExtractError>;

/// Waits for the look-ups of one request under one timeout; the results are in their order.
pub(super) async fn all(mut look_ups: Vec<ChargesFuture>, timeout: Duration) -> Vec<Found> {
    let mut all_found: Vec<Option<Found>> = look_ups.iter().map(|_| None).collect();
    let mut end = pin!(LazySleep::new(timeout));
    poll_fn(|cx| {
        for (look_up, found) in look_ups.iter_mut().zip(&mut all_found) {
            if found.is_none()
                && let Poll::Ready(charges) = look_up.as_mut().poll(cx)
            {
                *found = Some(charges);
            }
        }
        match all_found.iter().all(Option::is_some) {
            true => Poll::Ready(()),
            false => end.as_mut().poll(cx),
        }
    })
    .await;
    let all_found = all_found.into_iter();
    let found = all_found.map(|found| found.unwrap_or(Err(TOO_LATE)));
    found.collect()
}

const TOO_LATE: ExtractError = ExtractError::unavailable("a look-up took longer than its timeout");
