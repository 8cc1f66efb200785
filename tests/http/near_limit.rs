//! A handler warns a client that is near its limit, and the log and the metrics have the notice.

use crate::observe::recorded;

use crate::prelude::*;

/// Warns in a header that the layer does not write, when a fifth is left or less.
#[expect(clippy::needless_pass_by_value, reason = "a service owns its request")]
fn handler(request: Request<String>) -> Response<String> {
    let mut response = answer(200);
    let decisions = request.extensions().get::<Decisions>();
    let decisions = decisions.into_iter().flat_map(Decisions::iter);
    for used in decisions.flat_map(|decision| decision.usage().policies()) {
        let name = used.policy().name();
        let near = used
            .rules()
            .iter()
            .filter(|it| it.remaining() * 5 <= it.rule().limit());
        for rule in near {
            let warning = format!("{} of {name} left", rule.remaining());
            let warning = warning.parse().unwrap();
            response.headers_mut().append("x-quota-warning", warning);
        }
    }
    response
}

/// Six requests, of which the sixth is denied, and the two before it have a warning.
async fn is_warned(observer: impl Observer) {
    let limiter = support::limiter(MemoryStore::new()).observer(observer);
    let of = |name, rules| support::layer(limiter.clone()).limit(policy(name, rules), alice());
    let both = (of("month", "10/30d@fixed"), of("day", "5/1d@fixed"));
    let service = both.layer(answering(handler));
    for number in 1..=6 {
        let response = service.clone().oneshot(to("/")).await.unwrap();
        let expected = match number {
            4 => vec!["1 of day left"],
            5 => vec!["0 of day left"],
            _ => vec![],
        };
        assert_eq!(lines(response.headers(), "x-quota-warning"), expected);
    }
}

#[test]
fn a_client_is_warned_before_it_is_denied_and_the_observer_once() {
    let mut lines = traced(true, is_warned(TracingObserver::new()));
    lines.retain(|line| line.contains("near limit"));
    let expected = r#"DEBUG near limit policy="day" rule=5/1d@fixed shadow=false remaining=1"#;
    assert_eq!(lines, [expected]);
    let mut seen = recorded(is_warned);
    seen.retain(|it| it.starts_with("sluicegate_near_limit_total"));
    let expected = "sluicegate_near_limit_total policy=day rule=5/1d@fixed shadow=false = 1";
    assert_eq!(seen, [expected]);
}
