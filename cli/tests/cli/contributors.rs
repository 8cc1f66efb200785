//! `sluicegate contributors`.

use serde_json::{Value, json};
use sluicegate::{Charge, Key, Limiter, Policy, RedisStore};

use crate::tool::{Said, Tool};
use support::redis::Server;

const POLICIES: &str = "api = ['100/1m', '1000/1h']";

/// A server with the contributors of the account `acme`.
async fn server() -> Server {
    let server = Server::start();
    let store = RedisStore::connect(server.url()).await.unwrap();
    let limiter = Limiter::new(store).timeout(std::time::Duration::from_secs(30));
    let (policy, acme) = (policy(), Key::new("account", "acme"));
    for (user, cost) in [("alice", 60), ("bob", 10), ("alice", 5), ("carol", 25)] {
        let charge =
            Charge::new(&policy, acme.clone(), cost).with_contributor(Key::new("user", user));
        assert!(limiter.check([charge]).await.unwrap().is_allowed());
    }
    limiter.contributors(&policy, &acme).await.unwrap();
    server
}

fn policy() -> Policy {
    Policy::parse("api", "100/1m,1000/1h").unwrap()
}

fn run(server: &Server, args: &str) -> Said {
    let tool = Tool::new();
    tool.write("policies.toml", POLICIES);
    let url = server.url();
    tool.run(&format!("contributors {args} --redis {url}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_used_most_comes_first() {
    let server = server().await;
    let said = run(
        &server,
        "account=acme --policy api --policies policies.toml",
    );
    assert_eq!((said.code, said.stderr.as_str()), (0, ""), "{said:?}");
    let expected = "100 units under `api` in the last 1h to 1h 10m

  contributor   units   share
───────────────────────────────
  user=alice       65     65%
  user=carol       25     25%
  user=bob         10     10%
";
    assert_eq!(said.stdout, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_gets_json_and_as_many_as_it_wants() {
    let server = server().await;
    let said = run(&server, "account=acme --policy api --window 1h -n 1 --json");
    assert_eq!(said.code, 0, "{said:?}");
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    let expected = json!({
        "policy": "api",
        "window_ms": 3_600_000,
        "total": 100,
        "contributors": [{ "label": "user=alice", "units": 65 }],
    });
    assert_eq!(report, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_known_of_another_account_or_another_window() {
    let server = server().await;
    let tool = Tool::new();
    let url = server.url();
    tool.told(&format!(
        "
        contributors account=globex --policy api --window 1h --redis {url} | 1 | Nobody is known
        contributors account=acme --policy other --window 1h --redis {url} | 1 | Nobody is known
        contributors account=acme --policy api --window 1m --redis {url} | 1 | Nobody is known
        "
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_window_of_a_bucket_is_the_time_of_a_full_refill() {
    let server = Server::start();
    let store = RedisStore::connect(server.url()).await.unwrap();
    let limiter = Limiter::new(store).timeout(std::time::Duration::from_secs(30));
    let policy = Policy::parse("api", "600+1/1s@bucket,9000/1m").unwrap();
    let acme = Key::new("account", "acme");
    let charge = Charge::new(&policy, acme.clone(), 5).with_contributor(Key::new("user", "alice"));
    assert!(limiter.check([charge]).await.unwrap().is_allowed());
    limiter.contributors(&policy, &acme).await.unwrap();
    let tool = Tool::new();
    tool.write("policies.toml", "api = ['600+1/1s@bucket', '9000/1m']");
    let (url, period) = (
        server.url(),
        "5 units under `api` in the last 10m to 11m 40s",
    );
    for window in ["--policies policies.toml", "--window 10m"] {
        let args = format!("contributors account=acme --policy api {window} --redis {url}");
        tool.told(&format!("{args} | 0 | {period}"));
    }
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    let tool = Tool::new();
    tool.write("policies.toml", POLICIES);
    tool.write("sluicegate.toml", "redis = 'redis://127.0.0.1:1'");
    tool.told(
        "
        contributors account=acme --policy api --window 1w | 2 | write a time as
        contributors account=acme --policy other --policies policies.toml | 2 | policies.toml has no policy `other`
        contributors account=acme --window 1h | 2 | --policy <NAME>
        contributors acme --policy api --window 1h | 2 | write KIND=VALUE
        contributors account=acme --policy api --window 1h -n 0 | 2 | 0 is not in 1..
        ",
    );
}
