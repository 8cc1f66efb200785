//! Every small example keeps the promises of its head comment: each test starts it, runs the `curl` lines of the head,
//! and compares the answers with the text behind the `#`.

use std::{collections::BTreeSet, fs, process::Command};

use futures::{SinkExt, StreamExt};
use tokio_tungstenite::{connect_async, tungstenite::Message};

use crate::prelude::*;

/// The examples that another file tests.
const ELSEWHERE: [&str; 4] = ["behind_a_proxy", "server", "sqlite", "start"];

macro_rules! guides {
    ($tests:ident, $list:ident, $follow:path: $($example:ident)*) => {
        const $list: &[&str] = &[$(stringify!($example)),*];

        mod $tests {
            $(#[test]
            fn $example() {
                $follow(stringify!($example), &[]);
            })*
        }
    };
}

guides! { a_server_answers_what_its_head_says, SERVERS, super::serve:
    api_key_and_ip custom_rejection graphql hot_swap hyper_service json_rpc language_model login max_tokens per_route
    routes_table streaming_tokens tiers tiers_database
}

guides! { a_program_prints_what_its_head_says, PROGRAMS, super::printed:
    background_job custom_extractor outbound custom_store
}

/// The examples with a separate test.
const OTHERS: &str = "cluster grpc jwt mcp pool prometheus shadow upload usage websocket";

fn small_ones() -> Vec<&'static str> {
    let others: Vec<_> = OTHERS.split(' ').collect();
    [SERVERS, PROGRAMS, &others].concat()
}

/// The head comment of an example, without the margin, and the rest of the source.
pub(super) fn source(example: &str) -> (Vec<String>, String) {
    let source = fs::read_to_string(example::source(example)).unwrap();
    let head = source.lines().map_while(|it| it.strip_prefix("//!"));
    let code = source.lines().filter(|it| !it.starts_with("//!"));
    (
        head.map(str::to_owned).collect(),
        code.map(|it| format!("{it}\n")).collect(),
    )
}

/// The lines of the head with commands or output.
pub(super) fn indented(example: &str) -> Vec<String> {
    let lines = source(example).0.into_iter();
    lines
        .filter_map(|it| it.strip_prefix("     ").map(str::to_owned))
        .collect()
}

fn serve(example: &str, env: &[(&str, &str)]) -> Example {
    let server = start(example, env);
    ask_all(&server, example);
    server
}

fn ask_all(server: &Example, example: &str) {
    let lines = indented(example);
    let asked = lines.iter().filter(|it| it.contains("curl -"));
    let asked = asked.map(|line| {
        let (curl, expected) = line.split_once(" # ").expect("every curl is answered");
        let answer = ask(server, curl);
        assert!(answers(&answer, expected.trim()), "{line}\n{answer}");
    });
    assert_ne!(asked.count(), 0, "the head says what to ask");
}

fn ask(server: &Example, curl: &str) -> String {
    shell(&curl.replace("localhost:3000", &server.address().to_string()))
}

pub(super) fn shell(line: &str) -> String {
    let mut sh = Command::new("sh");
    let output = sh.args(["-c", line]).env("NO_PROXY", "*").output().unwrap();
    let failed = "install curl (apt-get install curl)";
    assert!(output.status.success(), "{line}: {output:?}\n{failed}");
    String::from_utf8(output.stdout).unwrap()
}

fn start(example: &str, env: &[(&str, &str)]) -> Example {
    let mut command = Command::new(example::build(example));
    Example::run(command.arg("127.0.0.1:0").envs(env.iter().copied()))
}

/// A number is the status. Any other item must occur in the head or the body.
fn answers(answer: &str, expected: &str) -> bool {
    expected.split(", ").all(|item| match item.parse::<u16>() {
        Ok(status) => answer.starts_with(&format!("HTTP/1.1 {status} ")),
        Err(_) => answer.contains(item),
    })
}

/// Runs an example to the end. Asserts that the texts behind a `#` in the head are printed in this order.
///
/// By the machine's clock, two charges at once may be in different steps of a rule. Then the example is run again.
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
fn a_token_says_who_is_limited_and_users_and_operators_see_usage() {
    serve("jwt", &[("JWT_SECRET", "sesame")]);
    serve("usage", &[("OPERATOR_TOKEN", "sesame")]);
}

#[test]
fn prometheus_reads_a_histogram_and_no_address_of_a_client() {
    let server = serve("prometheus", &[]);
    let page = ask(&server, "curl -s localhost:3000/metrics");
    assert!(
        page.contains("# TYPE sluicegate_store_seconds histogram\n"),
        "{page}"
    );
    assert!(!page.contains("127.0.0.1"), "{page}");
}

#[test]
fn replicas_share_their_limits_through_a_cluster() {
    let cluster = Cluster::start(Duration::from_secs(5));
    let urls = [("REDIS_URLS", &*cluster.urls()[..2].join(","))];
    serve("cluster", &urls);
    // The first process has used up alice's limit.
    let second = start("cluster", &urls);
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
fn a_client_of_grpc_and_one_of_mcp_learn_when_to_call_again() {
    for example in ["grpc", "mcp"] {
        let server = start(example, &[]);
        printed(example, &["call", &format!("http://{}", server.address())]);
        if example == "mcp" {
            ask_all(&server, example);
        }
    }
}

#[test]
fn an_upload_takes_as_long_as_its_bandwidth_says() {
    let bytes = fs::metadata(support::root().join("Cargo.lock"));
    let start = Instant::now();
    serve("upload", &[]);
    let beyond = bytes.unwrap().len().saturating_sub(65_536);
    let least = Duration::from_secs(beyond) / 50_000;
    assert!(!least.is_zero() && start.elapsed() >= least);
}

#[tokio::test]
async fn messages_over_all_websockets_of_an_address_are_answered_as_the_head_says() {
    let server = start("websocket", &[]);
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
    let tried = small_ones().into_iter().chain(ELSEWHERE).map(str::to_owned);
    let tried: BTreeSet<String> = tried.collect();
    assert_eq!(names, tried);
}

/// A newcomer types these lines.
#[test]
fn every_head_says_how_to_run_it_and_what_it_needs() {
    let manifest = fs::read_to_string(support::root().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let default = words(&manifest["features"]["default"]);
    for example in small_ones() {
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
