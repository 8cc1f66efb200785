//! gRPC's `RetryInfo`.

use std::time::Duration;

use http::HeaderMap;

/// The retry delay in the details of the status, if the response consists of trailers alone.
///
/// Reads the field alone: `Status::from_header_map` panics if its value is no base64.
#[cfg(feature = "tonic")]
pub(super) fn retry_delay(headers: &HeaderMap) -> Option<Duration> {
    use tonic::{Code, Status, metadata::MetadataMap};
    use tonic_types::StatusExt;

    const DETAILS: &str = "grpc-status-details-bin";
    let mut field = HeaderMap::new();
    field.insert(DETAILS, headers.get(DETAILS)?.clone());
    let details = MetadataMap::from_headers(field);
    let details = details.get_bin(DETAILS)?.to_bytes().ok()?;
    let status = Status::with_details(Code::ResourceExhausted, "", details);
    let delay = status.get_details_retry_info()?.retry_delay?;
    Some(delay).filter(|delay| !delay.is_zero())
}

/// Without the feature `tonic`, the details cannot be read.
#[cfg(not(feature = "tonic"))]
pub(super) const fn retry_delay(_headers: &HeaderMap) -> Option<Duration> {
    None
}
