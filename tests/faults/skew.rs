//! Clients with wrong clocks share one limit with clients with right clocks.

use std::{process::Command, time::Duration};

use sluicegate::{Charge, Key, Limiter, Policy, RedisStore};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::clock::Clock;
use support::redis::Server;

const LIMIT: usize = 50;

/// The test that is a client.
const TEST: &str = "skew::a_client_with_a_clock_of_its_own";

/// The variables with the server's address and with the rule, in a client process.
const SERVER: &str = "SLUICEGATE_SKEWED_CLIENT_OF";
const RULE: &str = "SLUICEGATE_SKEWED_RULE";

fn charge(rule: &str) -> [Charge; 1] {
    let policy = Policy::parse("api", rule).unwrap();
    [Charge::new(&policy, Key::new("user", "alice"), 1)]
}

fn hourly() -> String {
    format!("{LIMIT}/1h")
}

async fn admissions(url: &str, rule: &str, requests: usize) -> usize {
    let store = RedisStore::connect(url).await.unwrap();
    let limiter = Limiter::new(store).timeout(Duration::from_secs(10));
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += usize::from(limiter.check(charge(rule)).await.unwrap().is_allowed());
    }
    admitted
}

#[tokio::test]
async fn clients_whose_clocks_are_a_day_apart_share_one_limit() {
    assert_eq!(admissions_of_skewed_clients(&hourly(), 1).await, LIMIT);
}

/// By their clocks it is another day, and so another period. Clocks that are further away than the periods that a call
/// sends are answered with the time, and the call is made again.
#[tokio::test]
async fn clients_whose_clocks_are_days_apart_share_one_quota() {
    // A zone with noon at about this time, so that no day ends during this test.
    let hour = i64::try_from(now() / 3_600 % 24).unwrap();
    let zone = match 12 - hour {
        0 => "UTC".to_owned(),
        // In these names, the sign is that of the way back to Greenwich.
        ahead @ 1.. => format!("Etc/GMT-{ahead}"),
        behind => format!("Etc/GMT+{}", -behind),
    };
    let daily = format!("{LIMIT}/day@{zone}");
    for days in [1, 9] {
        let admitted = admissions_of_skewed_clients(&daily, days).await;
        assert_eq!(admitted, LIMIT, "{daily}, {days} days apart");
    }
}

/// The admissions of clients with right clocks, and of two with clocks that are days ahead and behind.
async fn admissions_of_skewed_clients(rule: &str, days: u64) -> usize {
    if !Clock::is_available() {
        return LIMIT;
    }
    let server = Server::start();
    let mut admitted = admissions(&server.url(), rule, 20).await;
    for ahead in [true, false] {
        let clock = Clock::new();
        clock.jump(Duration::from_secs(days * 86_400), ahead);
        admitted += admissions_of_a_process(&clock, &server, rule);
    }
    admitted + admissions(&server.url(), rule, LIMIT).await
}

/// Runs this test program again with one test: a client that makes 20 requests.
fn admissions_of_a_process(clock: &Clock, server: &Server, rule: &str) -> usize {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program)
        .args([TEST, "--exact", "--nocapture"])
        .env(SERVER, server.url())
        .env(RULE, rule)
        .envs(clock.env())
        .output()
        .unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let [seconds, admitted] = ["clock ", "admitted "].map(|word| {
        let mut lines = output.lines().filter_map(|line| line.split_once(word));
        let (_, value) = lines.next().unwrap_or_else(|| panic!("{output}"));
        value.parse::<u64>().unwrap()
    });
    let is_wrong = seconds.abs_diff(now()) > 80_000;
    assert!(is_wrong, "the client's clock is right");
    admitted.try_into().unwrap()
}

/// The time of this process's clock.
fn now() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()
}

#[tokio::test]
async fn a_client_with_a_clock_of_its_own() {
    if let Ok(url) = std::env::var(SERVER) {
        let rule = std::env::var(RULE).unwrap();
        let admitted = admissions(&url, &rule, 20).await;
        println!("\nclock {}\nadmitted {admitted}", now());
    }
}

#[tokio::test]
async fn nothing_that_is_sent_depends_on_a_client_s_clock() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let limiter = Limiter::new(RedisStore::connect_lazy(url.as_str()).unwrap())
        .timeout(Duration::from_secs(10));
    let asking = tokio::spawn(async move {
        for _ in 0..2 {
            let _ = limiter.check(charge(&hourly())).await;
        }
    });
    let (mut client, _) = listener.accept().await.unwrap();
    let mut sent = Vec::new();
    let mut bytes = [0; 4_096];
    while sent.len() < 2 {
        let length = client.read(&mut bytes).await.unwrap();
        assert!(length > 0, "the client left");
        let request = bytes[..length].to_vec();
        if contains(&request, b"EVALSHA") {
            sent.push(request);
            // Until the next request, each clock of the client must show another time.
            let (mark, clock) = (std::time::Instant::now(), std::time::SystemTime::now());
            while mark.elapsed() < Duration::from_millis(5)
                || clock.elapsed().is_ok_and(|it| it.as_millis() < 5)
            {
                tokio::task::yield_now().await;
            }
            client.write_all(b"-ERR no\r\n").await.unwrap();
        } else {
            let commands = request.iter().filter(|&&byte| byte == b'*').count();
            let replies = "+OK\r\n".repeat(commands);
            client.write_all(replies.as_bytes()).await.unwrap();
        }
    }
    assert_eq!(sent[0], sent[1]);
    asking.abort();
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|it| it == part)
}
