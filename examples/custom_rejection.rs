//! A rejection of your own: a message for each client that is rejected, and an answer when the store cannot decide.
//!
//!     cargo run --example custom_rejection
//!
//! No server: four requests are made, and the answers printed. Two are served, the third is asked to wait, and the
//! fourth, which costs more than the limit, is told that it will never pass. `Retry-After` is there although the
//! closure does not set it.

use std::{convert::Infallible, error::Error};

use http::{Request, Response, request::Parts};
use sluicegate::{Key, MemoryStore, Policy, RateLimitLayer, middleware::Rejection};
use tower::{ServiceBuilder, ServiceExt};

fn explain(rejection: &Rejection, head: &Parts) -> Response<String> {
    let path = head.uri.path();
    let text = match rejection {
        Rejection::Denied(denial) => match denial.retry_after() {
            Some(wait) => format!("{path} is busy, please wait {} s", wait.as_secs() + 1),
            None => format!("{path} is too much at once"),
        },
        Rejection::MissingKey(_) => "who are you?".to_owned(),
        _ => "please try again later".to_owned(),
    };
    let mut response = Response::new(text);
    *response.status_mut() = rejection.status();
    response
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let layer = RateLimitLayer::new(MemoryStore::new())
        .limit(
            Policy::parse("exports", "2/1m")?,
            Key::new("service", "exports"),
        )
        .cost(|head| {
            if head.uri.path() == "/everything" {
                100
            } else {
                1
            }
        })
        .rejection(explain);
    let service = ServiceBuilder::new()
        .layer(layer)
        .service_fn(async |_| Ok::<_, Infallible>(Response::new("served".to_owned())));
    for path in ["/some", "/some", "/some", "/everything"] {
        let request = Request::get(path).body(String::new())?;
        let response = service.clone().oneshot(request).await?;
        let retry_after = response.headers().get("retry-after");
        println!(
            "{} {}, retry-after: {retry_after:?}",
            response.status(),
            response.body()
        );
    }
    Ok(())
}
