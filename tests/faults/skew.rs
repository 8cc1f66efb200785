//! Clients with wrong clocks share one limit with clients with right clocks.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use support::{prelude::*, redis::Server};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::clock::Clock;

const LIMIT: usize = 50;

const A_DAY: Duration = Duration::from_secs(86_400);

/// The test that acts in a process of its own, and the variable with its part in that process.
const TEST: &str = "skew::a_process_with_a_clock_of_its_own";
const PART: &str = "SLUICEGATE_SKEWED_PART";

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
async fn admissions_of_skewed_clients(rule: &str, days: u32) -> usize {
    if !Clock::is_available() {
        return LIMIT;
    }
    let server = Server::start();
    let mut admitted = admissions(&server.url(), rule, 20).await;
    for ahead in [true, false] {
        let clock = Clock::new();
        clock.jump(A_DAY * days, ahead);
        admitted += admissions_of_a_process(&clock, &server, rule);
    }
    admitted + admissions(&server.url(), rule, LIMIT).await
}

/// This test program again with one test, by another clock, to play this part.
fn process(clock: &Clock, part: &str) -> Command {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args([TEST, "--exact", "--nocapture"]);
    process.env(PART, part).envs(clock.env());
    process
}

#[tokio::test]
async fn a_process_with_a_clock_of_its_own() {
    let part = std::env::var(PART).unwrap_or_default();
    match *part.split(' ').collect::<Vec<_>>() {
        ["asks", url, rule] => {
            let admitted = admissions(url, rule, 20).await;
            println!("\nclock {}\nadmitted {admitted}", now());
        }
        ["operates", url] => block_and_publish(url, "bob").await,
        ["holds"] => hold_a_slot().await,
        _ => {}
    }
}

fn admissions_of_a_process(clock: &Clock, server: &Server, rule: &str) -> usize {
    let mut client = process(clock, &format!("asks {} {rule}", server.url()));
    let output = client.output().unwrap();
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
async fn an_operator_whose_date_is_days_ahead_keeps_what_others_have_in_the_lists() {
    if !Clock::is_available() {
        return;
    }
    let server = Server::start();
    block_and_publish(&server.url(), "alice").await;
    let clock = Clock::new();
    clock.jump(A_DAY * 2, true);
    let mut operator = process(&clock, &format!("operates {}", server.url()));
    assert!(operator.output().unwrap().status.success());

    let store = RedisStore::connect(server.url()).await.unwrap();
    let listed = Limiter::new(store.clone()).blocks(9).await.unwrap();
    let mut listed: Vec<_> = listed.iter().map(|it| it.identity()).collect();
    listed.sort_unstable();
    assert_eq!(listed, ["user=alice", "user=bob"]);
    let published = store.inspector().policies().await.unwrap();
    assert_eq!(published.len(), 2);
    for policy in published {
        let apart = policy.seen_ms.abs_diff(now() * 1_000);
        assert!(apart < 3_600_000, "{apart} ms");
    }
}

/// Blocks a user, and publishes a policy of this name.
async fn block_and_publish(url: &str, name: &str) {
    let store = RedisStore::connect(url).await.unwrap();
    let limiter = Limiter::new(store).timeout(Duration::from_secs(10));
    let user = Key::new("user", name);
    limiter.block(&user, A_DAY / 24).await.unwrap();
    let policy = Policy::parse(name, "9/1d").unwrap();
    let charge = [Charge::new(&policy, Key::new("user", "carol"), 1)];
    limiter.check(charge).await.unwrap();
    limiter.policies_published().await.unwrap();
}

/// As on a machine that gets the time after its programs have started.
#[test]
fn a_date_that_is_set_ahead_loses_no_slot() {
    if !Clock::is_available() {
        return;
    }
    let clock = Clock::new();
    let mut holder = process(&clock, "holds");
    let mut holder = holder.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    let mut lines = lines.map(Result::unwrap);
    assert!(lines.any(|line| line == "holds"));
    clock.jump(A_DAY * 2, true);
    let held = lines.find_map(|line| Some(line.strip_prefix("held ")?.to_owned()));
    assert_eq!(held.as_deref(), Some("true"));
    assert!(holder.wait().unwrap().success());
}

/// Until a day has passed by its clock.
async fn hold_a_slot() {
    let limiter = Limiter::new(MemoryStore::new());
    let jobs = Policy::parse("jobs", "1/1h@concurrent").unwrap();
    let charge = [Charge::new(&jobs, Key::new("user", "alice"), 1)];
    let slot = limiter.acquire_slot(charge, Duration::ZERO).await.unwrap();
    let slot = slot.unwrap().unwrap();
    let begun = now();
    println!("\nholds");
    let start = std::time::Instant::now();
    while now() < begun + A_DAY.as_secs() {
        assert!(start.elapsed() < MINUTE, "the date is not set ahead");
        yield_now().await;
    }
    println!("\nheld {}", slot.is_held());
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
        let length = timeout(MINUTE, client.read(&mut bytes)).await;
        let length = length.expect("it sends").unwrap();
        assert!(length > 0, "the client left");
        let request = bytes[..length].to_vec();
        if contains(&request, b"EVALSHA") {
            sent.push(request);
            // Until the next request, each clock of the client must show another time.
            let (mark, clock) = (std::time::Instant::now(), std::time::SystemTime::now());
            while mark.elapsed() < Duration::from_millis(5)
                || clock.elapsed().is_ok_and(|it| it.as_millis() < 5)
            {
                yield_now().await;
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
