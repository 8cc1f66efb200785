//! The server example: it starts, and several processes share one limit over every kind of connection.

use tokio::task::JoinSet;

use crate::prelude::*;

fn browser() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

/// The status, the quota in the headers, and the body.
async fn get(
    browser: &reqwest::Client,
    server: &Example,
    path: &str,
    [name, value]: [&str; 2],
) -> (u16, String, String) {
    let request = browser.get(format!("http://{}{path}", server.address()));
    let response = request.header(name, value).send().await.unwrap();
    let status = response.status().as_u16();
    let quota = response.headers().get("ratelimit-policy").cloned();
    let quota = quota.map(|it| it.to_str().unwrap().to_owned());
    (
        status,
        quota.unwrap_or_default(),
        response.text().await.unwrap(),
    )
}

#[tokio::test]
async fn three_rules_limit_every_address_unless_told_otherwise_and_a_page_shows_them() {
    let (server, browser) = (Example::start(&[]), browser());
    let rules = r#""ip/1s";q=10;w=1, "ip/10s";q=40;w=10, "ip/1m";q=120;w=60"#;
    for (path, accept, quota, begins) in [
        ("/", "*/*", rules, "ok\n"),
        ("/", "text/html,*/*;q=0.8", rules, "<!doctype html>"),
        ("/limits", "application/json", "", r#"{"#),
        ("/health", "*/*", "", ""),
    ] {
        let (status, told, body) = get(&browser, &server, path, ["accept", accept]).await;
        assert_eq!((status, &*told), (200, quota), "{path}");
        assert!(body.starts_with(begins), "{path}: {body}");
    }
}

#[tokio::test]
async fn the_password_of_the_user_is_read_from_a_file() {
    let redis = Server::with(&["--requirepass", "sesame"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "sesame\n").unwrap();
    let (url, file) = (redis.url(), file.path().to_str().unwrap());
    let args = ["--redis", &url, "--on-failure", "closed"];
    for (more, expected) in [(&[][..], 503), (&["--redis-password-file", file], 200)] {
        let server = Example::start(&[&args[..], more].concat());
        let (status, ..) = get(&browser(), &server, "/", ["accept", "*/*"]).await;
        assert_eq!(status, expected);
    }
}

#[tokio::test]
async fn two_processes_admit_exactly_the_limit_of_thousands_of_concurrent_requests() {
    let redis = Server::start();
    for (more, limit) in [
        (&[][..], 701),
        (&["--pool", "2"], 702),
        (&["--in-flight", "0"], 703),
        (&["--in-flight", "1"], 704),
        (&["--transactions"], 705),
        (&["--transactions", "--pool", "2"], 706),
    ] {
        let rules = format!("header:x-api-key={limit}/1d,1000000/1h,1000000/1m");
        let url = redis.url();
        let args = ["--redis", &url, "--limit", &rules, "--timeout", "30s"];
        let args = [&args[..], &["--on-failure", "closed"], more].concat();
        let servers = Arc::new([Example::start(&args), Example::start(&args)]);
        let (browser, mut tasks) = (browser(), JoinSet::new());
        // 64 at a time, 1 000 to each server.
        for task in 0..64 {
            let (servers, browser) = (servers.clone(), browser.clone());
            tasks.spawn(async move {
                let mut admitted = 0;
                for _ in (task..2_000).step_by(64) {
                    let key = limit.to_string();
                    let header = ["x-api-key", &key];
                    match get(&browser, &servers[task % 2], "/", header).await.0 {
                        200 => admitted += 1,
                        other => assert_eq!(other, 429),
                    }
                }
                admitted
            });
        }
        let admitted: usize = tasks.join_all().await.into_iter().sum();
        assert_eq!(admitted, limit, "{more:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_says_when_redis_goes_away_and_when_it_is_back() {
    let (mut redis, browser) = (Server::start(), browser());
    let mut server = Example::start(&["--redis", &redis.url()]);
    let request = async || get(&browser, &server, "/", ["accept", "*/*"]).await.0;
    assert_eq!(request().await, 200);
    redis.kill();
    assert_eq!(request().await, 200);
    let address = server.address();
    redis.restart();
    let requests = tokio::spawn(async move {
        loop {
            let _ = browser.get(format!("http://{address}/")).send().await;
            sleep(Duration::from_millis(100)).await;
        }
    });
    for line in [
        "could not decide about a request",
        "decides about all requests again",
    ] {
        let log = tokio::task::block_in_place(|| logged(&mut server, line));
        assert!(log.contains(line), "{log}");
    }
    requests.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn it_publishes_its_policies_for_the_tool() {
    let redis = Server::start();
    let server = Example::start(&["--redis", &redis.url()]);
    let (status, ..) = get(&browser(), &server, "/", ["accept", "*/*"]).await;
    assert_eq!(status, 200);
    let are_published = || redis.run::<u64>("EXISTS sluicegate:!policies") == 1;
    tokio::task::block_in_place(|| wait("its policies are published", are_published));
}

/// The log up to a line that has this text, or the first lines without it.
fn logged(server: &mut Example, text: &str) -> String {
    let mut log = String::new();
    for _ in 0..10 {
        log += &(server.complaint() + "\n");
        if log.contains(text) {
            break;
        }
    }
    log
}

#[test]
fn at_its_start_it_names_the_right_that_is_missing() {
    let redis = Server::start();
    // Redis 7.0 does not name a command that a script lacks.
    let rights = LEAST_RIGHTS.into_iter().filter(|it| *it != "+evalsha");
    let rights: Vec<&str> = rights.collect();
    let url = limited(&redis, &rights);
    let mut server = Example::start(&["--redis", &url]);
    let said = logged(&mut server, "no limits through Redis at 127.0.0.1");
    assert!(said.contains("the right `+evalsha` is missing"), "{said}");
}
