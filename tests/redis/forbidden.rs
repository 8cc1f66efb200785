//! Servers that forbid a command, answer with unknown errors, or evict counts: the log says so, once.

use std::error::Error;

use support::trace::{Trace, traced_here};

use crate::prelude::*;

fn lines(trace: &Trace, with: &str) -> Vec<String> {
    let lines = trace.lines.lock().unwrap();
    // Redis 6.2 quotes commands otherwise.
    let lines = lines
        .iter()
        .filter(|it| it.replace('`', "'").contains(with));
    lines.cloned().collect()
}

async fn error(store: &impl Store) -> StoreError {
    let answer = store.check(&check(one(&api("9/1h"), "alice"))).await;
    answer.unwrap_err()
}

#[tokio::test]
async fn a_command_that_the_server_forbids_is_named_and_its_words_are_in_the_log_once() {
    for (command, words) in [
        ("EVALSHA", "words=\"ERR unknown command 'EVALSHA'\""),
        ("TIME", "command called from"),
    ] {
        let (trace, _guard) = traced_here();
        let server = Server::with(&["--rename-command", command, ""]);
        let store = connect(&server).await;
        for _ in 0..3 {
            let error = error(&store).await;
            assert_eq!(error.kind(), StoreErrorKind::AccessDenied, "{command}");
            let source = error.source().unwrap().to_string();
            assert!(source.contains(&format!("`{command}`")), "{source}");
        }
        assert_eq!(lines(&trace, words).len(), 1, "{command}");
        assert_eq!(lines(&trace, "alice"), [""; 0]);
    }
    let server = Server::with(&["--rename-command", "WATCH", ""]);
    let store = RedisStore::transactions(crate::transactions::pool(server.url()).await);
    let source = error(&store).await.source().unwrap().to_string();
    assert_eq!(source, "the command `WATCH`");
}

/// A server that answers this command with an unknown error, and everything else with `OK`.
async fn odd(command: &'static str) -> String {
    let error = format!("-ERR it's odd:\x1b[31m sesame {}\r\n", "x".repeat(300));
    replying(move |sent| match sent.contains(command) {
        true => error.clone(),
        false => "+OK\r\n".repeat(sent.matches('*').count()),
    })
    .await
}

#[tokio::test]
async fn the_words_of_an_unknown_error_are_in_the_log_once_and_never_those_of_a_greeting() {
    let (trace, _guard) = traced_here();
    let greeting = odd("AUTH").await.replace("//", "//:sesame@");
    let store = RedisStore::connect_lazy(greeting).unwrap();
    assert_eq!(error(&store).await.kind(), StoreErrorKind::Protocol);
    assert_eq!(lines(&trace, "odd"), [""; 0]);

    let store = RedisStore::connect_lazy(odd("EVALSHA").await).unwrap();
    for _ in 0..3 {
        let error = error(&store).await;
        assert_eq!(error.kind(), StoreErrorKind::Protocol);
        assert!(!format!("{error:?}").contains("odd"));
    }
    let logged = lines(&trace, "odd");
    assert_eq!(logged.len(), 1, "{logged:?}");
    let (_, words) = logged[0].split_once("words=\"").unwrap();
    let (words, _) = words.split_once('"').unwrap();
    assert!(words.starts_with("ERR it's odd:[31m sesame xxx"), "{words}");
    assert_eq!(words.len(), 200);
}

const EVICTS: &str = "policy=\"allkeys-lru\"";

#[tokio::test]
async fn a_server_that_evicts_counts_is_warned_about_once_for_each_store() {
    let (trace, _guard) = traced_here();
    let (limit, policy) = (["--maxmemory", "100mb"], "--maxmemory-policy");
    let server = Server::with(&[&limit[..], &[policy, "allkeys-lru"]].concat());
    let store = connect(&server).await;
    assert_eq!(lines(&trace, EVICTS).len(), 1);
    let lazy = RedisStore::connect_lazy(server.url()).unwrap();
    for (store, warnings) in [(store, 1), (lazy, 2)] {
        for store in [store.clone(), store.prefix("other")] {
            let limiter = patient(store).publish_policies(true);
            take(&limiter, &api("9/1h"), "alice").await;
            limiter.policies_published().await.unwrap();
            let is_warned = || lines(&trace, EVICTS).len() >= warnings;
            eventually("there is a warning", is_warned).await;
        }
        assert_eq!(lines(&trace, EVICTS).len(), warnings);
    }
}

#[tokio::test]
async fn the_right_to_ask_whether_a_server_evicts_is_optional_and_asked_for_once() {
    let (trace, _guard) = traced_here();
    let server = Server::with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let store = RedisStore::connect(limited(&server, &LEAST_RIGHTS)).await;
    let limiter = patient(store.unwrap()).publish_policies(false);
    let refused = || {
        let log: Vec<redis::Value> = server.run("ACL LOG");
        format!("{log:?}").matches("'\"info\"'").count()
    };
    for _ in 0..3 {
        assert!(take(&limiter, &api("9/1h"), "alice").await.is_allowed());
    }
    assert_eq!(refused(), 1);
    assert_eq!(*trace.lines.lock().unwrap(), [""; 0]);
}
