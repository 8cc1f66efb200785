//! The events of a server that denies access.

use std::time::Duration;

use sluicegate::{Charge, Key, Limiter, Policy, RedisStore, observe::TracingObserver};

use support::{log::Log, redis::Server, trace::Trace};

#[test]
fn a_wrong_password_is_told_of_once_and_nothing_of_it_is_shown() {
    let server = Server::with(&["--requirepass", "mellon"]);
    let trace = Trace::default();
    trace.during(|| {
        support::runtime().block_on(async {
            let url = server.url().replace("//", "//:sesame@");
            let store = RedisStore::connect_lazy(url).unwrap();
            let told = Log::default();
            let limiter = Limiter::new(store)
                .probe_interval(Duration::from_millis(20))
                .timeout(Duration::from_secs(2))
                .observer((TracingObserver::new(), told.clone()));
            let api = Policy::parse("api", "1000000/1d").unwrap();
            let charge = || [Charge::new(&api, Key::new("user", "alice"), 1)];
            let is_denied = |it: &&String| it.contains("access_denied");
            let denied = || told.lines().iter().filter(is_denied).count();
            // The breaker opens, and probes also fail, for longer than the pause between two reports of failures.
            let start = std::time::Instant::now();
            let pause = Duration::from_millis(1_100);
            while denied() < 12 || start.elapsed() < pause {
                assert!(start.elapsed() < 20 * pause);
                assert!(limiter.try_acquire(charge()).await);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert!(told.lines().len() > 12);
            server.run::<()>("CONFIG SET requirepass sesame");
            let start = std::time::Instant::now();
            while limiter.check(charge()).await.is_err() {
                assert!(start.elapsed() < Duration::from_secs(1));
            }
        });
    });
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
