//! Every small example keeps the promises of its head comment: each test starts it, runs the `curl` lines of the head,
//! and compares the answers with the text behind the `#`.

use std::{
    collections::BTreeSet,
    fs,
    process::Command,
    time::{Duration, Instant},
};

use futures::{SinkExt, StreamExt};
use support::{
    cluster::Cluster,
    example::{self, Example},
    redis::Server,
    sharing::wait,
};
use tokio_tungstenite::{connect_async, tungstenite::Message};

/// The examples that another file tests.
const ELSEWHERE: [&str; 2] = ["behind_a_proxy", "server"];

macro_rules! guides {
    ($tests:ident, $list:ident, $follow:path: $($example:ident)*) => {
        const $list: &[&str] = &[$(stringify!($example)),*];

        mod $tests {
            $(#[test]
            fn $example() {
                $follow(stringify!($example));
            })*
        }
    };
}

guides! { a_server_answers_what_its_head_says, SERVERS, super::serve_alone:
    api_key_and_ip custom_rejection hot_swap hyper_service language_model login_failures per_route prometheus routes_table
    tiers tiers_database
}

guides! { a_program_prints_what_its_head_says, PROGRAMS, super::print:
    background_job custom_extractor outbound custom_store
}

/// The examples with a separate test.
const OTHERS: [&str; 10] = [
    "cluster",
    "grpc",
    "jwt",
    "mcp",
    "pool",
    "shadow",
    "streaming_tokens",
    "upload",
    "usage",
    "websocket",
];

/// The head comment of an example, without the margin, and the rest of the source.
fn source(example: &str) -> (Vec<String>, String) {
    let source = fs::read_to_string(example::source(example)).unwrap();
    let head = source.lines().map_while(|it| it.strip_prefix("//!"));
    let code = source.lines().filter(|it| !it.starts_with("//!"));
    (
        head.map(str::to_owned).collect(),
        code.map(|it| format!("{it}\n")).collect(),
    )
}

/// The lines of the head with commands or output.
fn indented(example: &str) -> Vec<String> {
    let lines = source(example).0.into_iter();
    let lines = lines.filter_map(|it| it.strip_prefix("     ").map(str::to_owned));
    lines.collect()
}

fn serve_alone(example: &str) {
    serve(example, &[]);
}

/// Starts an example, and runs the commands in the head.
fn serve(example: &str, env: &[(&str, &str)]) -> Example {
    let mut command = Command::new(example::build(example));
    let server = Example::run(command.arg("127.0.0.1:0").envs(env.iter().copied()));
    ask_all(&server, example);
    server
}

/// Runs the commands in the head.
fn ask_all(server: &Example, example: &str) {
    let lines = indented(example);
    let asked = lines.iter().filter(|it| it.starts_with("curl "));
    let asked = asked.map(|line| {
        let (curl, expected) = line.split_once(" # ").expect("every curl is answered");
        let answer = ask(server, curl);
        assert!(answers(&answer, expected.trim()), "{line}\n{answer}");
    });
    assert_ne!(asked.count(), 0, "the head says what to ask");
}

/// The output of the shell for this line.
fn ask(server: &Example, curl: &str) -> String {
    let curl = curl.replace("localhost:3000", &server.address().to_string());
    let output = Command::new("sh")
        .args(["-c", &curl])
        .env("NO_PROXY", "*")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{curl}: {output:?}\ninstall curl (apt-get install curl)"
    );
    String::from_utf8(output.stdout).unwrap()
}

/// A number is the status. Any other item must occur in the head or the body.
fn answers(answer: &str, expected: &str) -> bool {
    expected.split(", ").all(|item| match item.parse::<u16>() {
        Ok(status) => answer.starts_with(&format!("HTTP/1.1 {status} ")),
        Err(_) => answer.contains(item),
    })
}

/// Runs an example to the end. Asserts that the texts behind a `#` in the head are printed in this order.
fn print(example: &str) {
    printed(example, &[]);
}

/// Uses the machine's clock, so two charges at once may be in different steps of a rule. Then the example is run again.
fn printed(example: &str, args: &[&str]) {
    let failed: Vec<String> = (0..4).map_while(|_| missing(example, args)).collect();
    assert!(failed.len() < 4, "{}", failed[0]);
}

/// The first line that the head promises and the example does not print, and the output.
fn missing(example: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(example::build(example)).args(args).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    let mut lines = stdout.lines();
    let expected = indented(example).into_iter();
    let mut expected = expected.filter_map(|it| it.strip_prefix("# ").map(str::to_owned));
    expected
        .find(|expected| !lines.any(|it| it.contains(expected.as_str())))
        .map(|expected| format!("no `{expected}`, or not here:\n{stdout}"))
}

#[test]
fn a_token_says_who_is_limited() {
    serve("jwt", &[("JWT_SECRET", "sesame")]);
}

#[test]
fn users_see_their_usage_and_operators_act_on_it() {
    serve("usage", &[("OPERATOR_TOKEN", "sesame")]);
}

#[test]
fn replicas_share_their_limits_through_a_cluster() {
    let cluster = Cluster::start(Duration::from_secs(5));
    let urls = [("REDIS_URLS", &*cluster.urls()[..2].join(","))];
    serve("cluster", &urls);
    // The first process has used up alice's limit.
    let second = example::build("cluster");
    let second = Example::run(Command::new(second).arg("127.0.0.1:0").envs(urls));
    let answer = ask(&second, "curl -i localhost:3000 -H 'x-api-key: alice'");
    assert!(answers(&answer, "429"), "{answer}");
}

#[test]
fn a_pool_is_limited_as_soon_as_redis_is_back() {
    let mut redis = Server::start();
    let server = serve("pool", &[("REDIS_URL", &redis.url())]);
    let ask = || ask(&server, "curl -i localhost:3000");
    redis.kill();
    wait("requests pass", || answers(&ask(), "200"));
    redis.restart();
    wait("requests are limited", || answers(&ask(), "\"ip\";r=0"));
    assert!(answers(&ask(), "429"));
}

#[test]
fn what_a_shadow_would_deny_is_logged() {
    let mut server = serve("shadow", &[]);
    let logged = server.complaint();
    assert!(indented("shadow").contains(&logged), "{logged}");
}

#[test]
fn a_call_is_told_when_to_call_again() {
    let server = Example::run(Command::new(example::build("grpc")).arg("127.0.0.1:0"));
    printed("grpc", &["call", &format!("http://{}", server.address())]);
}

#[test]
fn a_client_of_mcp_learns_when_to_call_a_tool_again() {
    let server = Example::run(Command::new(example::build("mcp")).arg("127.0.0.1:0"));
    printed("mcp", &["call", &format!("http://{}", server.address())]);
    ask_all(&server, "mcp");
}

#[test]
fn a_stream_costs_what_was_sent_of_it() {
    serve("streaming_tokens", &[]);
}

#[test]
fn an_upload_takes_as_long_as_its_bandwidth_says() {
    let bytes = fs::metadata(support::root().join("Cargo.lock"))
        .unwrap()
        .len();
    let start = Instant::now();
    serve("upload", &[]);
    let least = Duration::from_secs(bytes.saturating_sub(65_536)) / 50_000;
    assert!(!least.is_zero() && start.elapsed() >= least);
}

#[tokio::test]
async fn messages_over_all_websockets_of_an_address_are_answered_as_the_head_says() {
    let server = Example::run(Command::new(example::build("websocket")).arg("127.0.0.1:0"));
    let url = format!("ws://{}/chat", server.address());
    let mut sockets = Vec::new();
    for _ in 0..2 {
        sockets.push(connect_async(&url).await.unwrap().0);
    }
    let mut answers = Vec::new();
    for (number, text) in ["one", "two", "three", "four"].into_iter().enumerate() {
        let socket = &mut sockets[number % 2];
        socket.send(Message::text(text)).await.unwrap();
        answers.push(socket.next().await.unwrap().unwrap().into_text().unwrap());
    }
    let promised = indented("websocket").into_iter();
    let promised: Vec<_> = promised.filter(|it| it.starts_with("# ")).collect();
    assert_eq!(answers.len(), promised.len());
    for (answer, promised) in answers.iter().zip(promised) {
        assert!(answer.starts_with(&promised[2..]), "{answers:?}");
    }
}

#[test]
fn every_example_is_tried() {
    let folder = fs::read_dir(support::root().join("examples")).unwrap();
    let paths = folder.map(|it| it.unwrap().path());
    let examples = paths.filter(|it| !it.is_dir() || it.join("Cargo.toml").exists());
    let names: BTreeSet<String> = examples
        .map(|it| it.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let tried = [SERVERS, PROGRAMS, &OTHERS, &ELSEWHERE].concat();
    let tried: BTreeSet<String> = tried.into_iter().map(str::to_owned).collect();
    assert_eq!(names, tried);
}

/// A newcomer types these lines.
#[test]
fn every_head_says_how_to_run_it_and_what_it_needs() {
    let manifest = fs::read_to_string(support::root().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let default = words(&manifest["features"]["default"]);
    for example in [SERVERS, PROGRAMS, &OTHERS].concat() {
        let (head, code) = source(example);
        let head = head.join("\n");
        let runs = head.lines().find(|it| it.contains("cargo run"));
        let runs = runs.expect(example);
        let package = example::package(example);
        let selected = match &package {
            Some(package) => format!("-p {package}"),
            None => format!("--example {example}"),
        };
        assert!(runs.contains(&selected), "{runs}");

        let head = head.replace('-', "_");
        let adds = head.lines().filter(|it| it.contains("cargo add"));
        let adds: Vec<&str> = adds.flat_map(|it| it.split([' ', ',', '/'])).collect();
        let roots = code.lines().filter_map(|it| it.strip_prefix("use "));
        for root in roots.map(|it| it.split([':', ';']).next().unwrap()) {
            let known = root == "std" || adds.contains(&root);
            assert!(known, "{example}: cargo add {root}");
        }

        for feature in needed(example, &manifest) {
            let told = package.is_some() || runs.split([' ', ',']).any(|it| it == feature);
            let told = told && adds.contains(&&*feature);
            assert!(told || default.contains(&feature), "{example}: {feature}");
        }
    }
}

/// The features of the library that an example needs, according to the manifest of the package.
fn needed(example: &str, library: &toml::Table) -> Vec<String> {
    if example::package(example).is_some() {
        let source = example::source(example);
        let manifest = source.ancestors().nth(2).unwrap().join("Cargo.toml");
        let manifest: toml::Table = fs::read_to_string(manifest).unwrap().parse().unwrap();
        return words(&manifest["dependencies"]["sluicegate"]["features"]);
    }
    let mut targets = library["example"].as_array().unwrap().iter();
    let target = targets.find(|it| it["name"].as_str() == Some(example));
    target.map_or(Vec::new(), |it| words(&it["required-features"]))
}

fn words(list: &toml::Value) -> Vec<String> {
    let list = list.as_array().unwrap().iter();
    list.map(|it| it.as_str().unwrap().to_owned()).collect()
}
