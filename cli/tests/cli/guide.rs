//! Runs the guide "Operating it", `docs/guide/operating.md`, from the first command to the last, and compares the
//! output.

use std::{fs, path::Path};

use sluicegate::{Charge, Decision, Key, Limiter, Policy, RedisStore, policies::Policies};

use crate::tool::Tool;
use support::redis::Server;

/// A fenced block of the page: its language and its lines.
pub(crate) fn fenced(page: &str) -> Vec<(&str, Vec<&str>)> {
    let mut blocks: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut is_inside = false;
    for line in page.lines() {
        match (line.strip_prefix("```"), is_inside) {
            (Some(language), false) => blocks.push((language, Vec::new())),
            (None, true) => blocks.last_mut().unwrap().1.push(line),
            _ => {}
        }
        is_inside ^= line.starts_with("```");
    }
    blocks
}

/// The commands of the page, each with the output that the page shows.
fn commands(page: &str) -> Vec<(String, String)> {
    let mut commands: Vec<(String, String)> = Vec::new();
    let consoles = fenced(page)
        .into_iter()
        .filter(|block| block.0 == "console");
    for line in consoles.flat_map(|block| block.1) {
        match (line.strip_prefix("$ sluicegate "), commands.last_mut()) {
            (Some(command), _) => commands.push((command.to_owned(), String::new())),
            (None, Some((_, said))) => *said += &format!("{line}\n"),
            (None, None) => panic!("no command before: {line}"),
        }
    }
    commands
}

/// Ignores digits, and the lengths of blanks and pictures, because times and alignment vary.
fn shape(said: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in said.split_whitespace() {
        let shape = shape_of_word(word);
        // A time leaves out the second unit if that is zero.
        if !(shape == SPAN && words.last().is_some_and(|last| last == SPAN)) {
            words.push(shape);
        }
    }
    words.join(" ")
}

const SPAN: &str = "a span";

fn shape_of_word(word: &str) -> String {
    let mut shape = String::new();
    for char in word.chars() {
        let char = match char {
            '0'..='9' => '0',
            '▁'..='█' | '·' => '▁',
            other => other,
        };
        if !(matches!(char, '0' | '─' | '▁') && shape.ends_with(char)) {
            shape.push(char);
        }
    }
    let bare = shape.trim_matches(['(', ')', ',', '.']);
    let is_span = ["0ms", "0s", "0.0s", "0m", "0h", "0d"].contains(&bare);
    if is_span { SPAN.to_owned() } else { shape }
}

/// The traffic in the page's story.
pub(crate) async fn happens(server: &Server, policies: &Policies) {
    let limiter = Limiter::new(RedisStore::connect(server.url()).await.unwrap());
    let policy = |name: &str| -> Policy { policies.get(name).unwrap().clone() };
    for (user, cost) in [("batch-7", 4_700), ("alice", 221), ("bob", 79)] {
        let of_account = Charge::new(&policy("account"), Key::new("account", "acme"), cost);
        let of_user = Charge::new(&policy("user"), Key::new("user", user), cost);
        let charges = [of_account.with_contributor(Key::new("user", user)), of_user];
        assert!(limiter.check(charges).await.unwrap().is_allowed());
    }
    for _ in 0..36 {
        let charge = Charge::new(&policy("account"), Key::new("account", "acme"), 1);
        assert!(!limiter.check([charge]).await.unwrap().is_allowed());
    }
    // Returns after the contributions are stored.
    limiter
        .contributors(&policy("account"), &Key::new("account", "acme"))
        .await
        .unwrap();
    let login = || Charge::new(&policy("login"), Key::new("ip", "203.0.113.7"), 1);
    for _ in 0..25 {
        limiter.check([login()]).await.unwrap();
        limiter.strikes_counted().await;
    }
    assert!(matches!(
        limiter.check([login()]).await,
        Ok(Decision::Blocked(_))
    ));
    // Returns after the denials are stored.
    limiter.denials().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_guide_says_what_the_guide_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/operating.md");
    let page = fs::read_to_string(path).unwrap();
    let blocks = fenced(&page);
    let files: Vec<String> = blocks.iter().map(|block| block.1.join("\n")).collect();
    let [settings, policies, ..] = &files[..] else {
        panic!("the page has lost its files");
    };
    let (server, tool) = (Server::start(), Tool::new());
    tool.write(
        "sluicegate.toml",
        settings.replace("redis://10.0.0.5/", &server.url()),
    );
    tool.write("policies.toml", policies);
    happens(&server, &toml::from_str(policies).unwrap()).await;

    let mut wrong = String::new();
    for (command, expected) in commands(&page) {
        let said = tool.run(&command);
        assert!(said.code < 2, "{command}: {said:?}");
        let said = said.stdout + &said.stderr;
        if shape(&said) != shape(&expected) {
            wrong += &format!("$ sluicegate {command}\n{said}\n");
        }
    }
    assert!(wrong.is_empty(), "the guide has to say:\n{wrong}");
}
