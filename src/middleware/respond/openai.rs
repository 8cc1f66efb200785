//! [`OpenAiJson`]: rejections in the error form of services around language models.

use std::{borrow::Cow, time::Duration};

use http::{HeaderValue, Response, StatusCode, request::Parts};

use super::{
    MakeRejection, Rejection, grpc_answer,
    problem::{answer_with, detail, push_escaped},
    rejection::violated,
    seconds::milliseconds,
};
use crate::domain::decision::Denial;

/// Responds with the error form of OpenAI's interface, which the client libraries of language models show to their users.
/// The message names the limits and the wait; the status is [`Rejection::status`].
///
/// ```json
/// {"error":{"message":"The rate limit tokens is reached. Try again in 12.345s.","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}}
/// ```
///
/// A [hidden](crate::Policy::hidden) policy is not named. `HEAD` gets no body, but the content length of a `GET`. gRPC
/// calls get a response as from [`Grpc`](super::Grpc).
///
/// ```
/// use sluicegate::{Header, MemoryStore, Policy, RateLimitLayer, middleware::{HeaderStyle, OpenAiJson}};
///
/// let layer = RateLimitLayer::new(MemoryStore::new())
///     .limit(Policy::parse("requests", "60+60/1m@bucket")?, Header::new("authorization"))
///     .headers(HeaderStyle::X_RATE_LIMIT_BY_UNIT.and(HeaderStyle::RETRY_AFTER_MS))
///     .rejection(OpenAiJson);
/// # let _ = layer;
/// # Ok::<(), sluicegate::error::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenAiJson;

#[diagnostic::do_not_recommend]
impl<B: From<String>> MakeRejection<B> for OpenAiJson {
    fn make_rejection(&self, rejection: &Rejection, head: &Parts) -> Response<B> {
        if let Some(answer) = grpc_answer::answer(rejection, head, || B::from(String::new())) {
            return answer;
        }
        let status = rejection.status();
        let kind = HeaderValue::from_static("application/json");
        answer_with(error(rejection, status), kind, status, head)
    }
}

fn error(rejection: &Rejection, status: StatusCode) -> String {
    let (kind, code) = match status {
        StatusCode::TOO_MANY_REQUESTS => ("rate_limit_error", r#""rate_limit_exceeded""#),
        StatusCode::UNAUTHORIZED => ("authentication_error", "null"),
        StatusCode::FORBIDDEN => ("permission_error", "null"),
        status if status.is_client_error() => ("invalid_request_error", "null"),
        _ => ("server_error", "null"),
    };
    let mut json = String::from(r#"{"error":{"message":""#);
    push_escaped(&mut json, &message(rejection, status));
    json.extend([r#"","type":""#, kind]);
    json.extend([r#"","param":null,"code":"#, code, "}}"]);
    json
}

fn message(rejection: &Rejection, status: StatusCode) -> String {
    let (text, wait) = match rejection {
        Rejection::Denied(denial) | Rejection::NoSlot(denial) => {
            (Some(reached(denial)), denial.shown_retry_after())
        }
        Rejection::Blocked(blocked) => {
            let text = "This client is blocked.".to_owned();
            (Some(text), blocked.shown_retry_after())
        }
        _ => (status.canonical_reason().map(str::to_owned), None),
    };
    let detail = detail(rejection, status).map(Cow::into_owned);
    let mut message = detail.or(text).unwrap_or_default();
    if let Some(wait) = wait {
        let wait = Duration::from_millis(milliseconds(wait));
        message += &format!(" Try again in {wait:?}.");
    }
    message
}

fn reached(denial: &Denial) -> String {
    let names: Vec<String> = violated(denial).into_iter().map(|(name, _)| name).collect();
    match &names[..] {
        [] => "A rate limit is reached.".to_owned(),
        [name] => format!("The rate limit {name} is reached."),
        _ => format!("The rate limits {} are reached.", names.join(", ")),
    }
}
