//! gRPC's `RetryInfo`.

use std::time::Duration;

use http::HeaderMap;

/// The retry delay in the details of the status, if the response consists of trailers alone.
#[cfg(feature = "tonic")]
pub(super) fn retry_delay(headers: &HeaderMap) -> Option<Duration> {
    use tonic_types::StatusExt;

    let status = tonic::Status::from_header_map(headers)?;
    let delay = status.get_details_retry_info()?.retry_delay?;
    Some(delay).filter(|delay| !delay.is_zero())
}

/// Without the feature `tonic`, the details cannot be read.
#[cfg(not(feature = "tonic"))]
pub(super) const fn retry_delay(_headers: &HeaderMap) -> Option<Duration> {
    None
}
