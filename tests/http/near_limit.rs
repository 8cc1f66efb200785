//! A handler warns a client that is near its limit, and the log and the metrics have the notice.

use crate::observe::recorded;

use crate::prelude::*;

/// Warns in a header that the layer does not write.
#[expect(clippy::needless_pass_by_value, reason = "a service owns its request")]
fn handler(request: Request<String>) -> Response<String> {
    let mut response = answer(200);
    let decisions = request.extensions().get::<Decisions>();
    let decisions = decisions.into_iter().flat_map(Decisions::iter);
    for (charge, rule) in decisions.flat_map(|decision| decision.usage().near_limit()) {
        let warning = format!("{} of {} left", rule.remaining(), charge.policy().name());
        let warning = warning.parse().unwrap();
        response.headers_mut().append("x-quota-warning", warning);
    }
    response
}

/// Six requests, of which the sixth is denied, and the fourth has the only warning.
async fn is_warned(observer: impl Observer) {
    let limiter = support::limiter(MemoryStore::new()).observer(observer);
    let of = |name, rules| support::layer(limiter.clone()).limit(policy(name, rules), alice());
    let both = (of("month", "10/30d@fixed"), of("day", "5/1d@fixed"));
    let service = both.layer(answering(handler));
    for number in 1..=6 {
        let response = service.clone().oneshot(to("/")).await.unwrap();
        let expected = vec!["1 of day left"; usize::from(number == 4)];
        assert_eq!(lines(response.headers(), "x-quota-warning"), expected);
    }
}

#[test]
fn a_client_is_warned_once_before_it_is_denied() {
    let mut lines = traced(true, is_warned(TracingObserver::new()));
    lines.retain(|line| line.contains("near limit"));
    let expected = r#"DEBUG near limit policy="day" rule=5/1d@fixed shadow=false remaining=1"#;
    assert_eq!(lines, [expected]);
    let mut seen = recorded(is_warned);
    seen.retain(|it| it.starts_with("sluicegate_near_limit_total"));
    let expected = "sluicegate_near_limit_total policy=day rule=5/1d@fixed shadow=false = 1";
    assert_eq!(seen, [expected]);
}
