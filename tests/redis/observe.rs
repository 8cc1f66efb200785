//! The events of a server that denies access.

use sluicegate::observe::TracingObserver;

use crate::prelude::*;

#[tokio::test]
async fn a_wrong_password_is_told_of_once_and_nothing_of_it_is_shown() {
    let (trace, _guard) = traced_here();
    let server = Server::with(&["--requirepass", "mellon"]);
    let url = server.url().replace("//", "//:sesame@");
    let limiter = patient(RedisStore::connect_lazy(url).unwrap());
    let limiter = limiter.observer(TracingObserver::new());
    let api = api("1000000/1d");
    assert!(limiter.try_acquire(one(&api, "alice")).await);
    // For longer than the pause between two reports of failures.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1_100) {
        let denied = kind(limiter.check(one(&api, "alice")).await);
        assert_eq!(denied, Some(StoreErrorKind::AccessDenied));
    }
    server.run::<()>("CONFIG SET requirepass sesame");
    take(&limiter, &api, "alice").await;
    let error = |code| {
        let message = "the Redis server refuses this user or password";
        format!(r#"kind="access_denied" error={message} {code}cause="the authentication failed""#)
    };
    let (named, error) = (error(r#"code="WRONGPASS" "#), error(""));
    assert_eq!(
        *trace.lines.lock().unwrap(),
        [
            format!(
                "WARN the store could not decide about a request: failure policies apply as long as it cannot {named}"
            ),
            format!(
                r#"WARN failed call="check" policies=api shadow=false {error} outcome="passed" suppressed=0"#
            ),
        ]
    );
}
