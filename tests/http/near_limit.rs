//! A handler warns a client that is near its limit, and the log and the metrics have the notice.

use std::convert::Infallible;

use http::{Request, Response};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use sluicegate::{
    Key, Limiter, MemoryStore, Policy, RateLimitLayer,
    middleware::Decisions,
    observe::{MetricsObserver, TracingObserver},
};
use tower::{Layer, ServiceExt, service_fn};

use support::trace::traced;

/// Warns in a header that the layer does not write.
async fn handler(request: Request<()>) -> Result<Response<String>, Infallible> {
    let mut response = Response::new(String::new());
    let decisions = request.extensions().get::<Decisions>();
    let decisions = decisions.into_iter().flat_map(Decisions::iter);
    for (charge, rule) in decisions.flat_map(|decision| decision.usage().near_limit()) {
        let warning = format!("{} of {} left", rule.remaining(), charge.policy().name());
        let warning = warning.parse().unwrap();
        response.headers_mut().append("x-quota-warning", warning);
    }
    Ok(response)
}

async fn warnings() -> Vec<Vec<String>> {
    let observer = (TracingObserver::new(), MetricsObserver::new());
    let limiter = Limiter::new(MemoryStore::new()).observer(observer);
    let day = Policy::parse("day", "5/1d@fixed").unwrap();
    let month = Policy::parse("month", "10/30d@fixed").unwrap();
    let outer = RateLimitLayer::new(limiter.clone()).limit(month, Key::new("user", "alice"));
    let service = RateLimitLayer::new(limiter)
        .limit(day, Key::new("user", "alice"))
        .layer(service_fn(handler));
    let service = outer.layer(service);
    let mut warnings = Vec::new();
    for _ in 0..6 {
        let response = service.clone().oneshot(Request::new(())).await.unwrap();
        let values = response.headers().get_all("x-quota-warning").iter();
        warnings.push(values.map(|it| it.to_str().unwrap().to_owned()).collect());
    }
    warnings
}

#[test]
fn a_client_is_warned_once_before_it_is_denied() {
    let recorder = DebuggingRecorder::new();
    let lines = metrics::with_local_recorder(&recorder, || {
        traced(true, async {
            let warned = warnings().await;
            let expected = [0, 0, 0, 1, 0, 0].map(|count| vec!["1 of day left".to_owned(); count]);
            assert_eq!(warned, expected);
        })
    });
    let notices: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("near limit"))
        .collect();
    assert_eq!(
        notices,
        [r#"DEBUG near limit policy="day" rule=5/1d@fixed shadow=false remaining=1"#]
    );
    let seen = recorder.snapshotter().snapshot().into_vec();
    let mut counts = seen.iter().filter_map(|(key, .., value)| {
        let key = key.key();
        let policy = key.labels().find(|label| label.key() == "policy")?;
        (key.name() == "sluicegate_near_limit_total").then(|| (policy.value().to_owned(), value))
    });
    let of_day = counts.find(|(policy, _)| policy == "day").unwrap();
    assert_eq!(of_day.1, &DebugValue::Counter(1));
}
