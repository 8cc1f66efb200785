//! The tool's page: runs the examples, and compares their output.

use std::collections::BTreeSet;

use serde_json::Value;
use sluicegate::{Charge, Key};

use crate::{
    site::{Site, policy},
    tool::{Tool, rows, said},
};

const PAGE: &str = include_str!("../../README.md");

/// The blocks of the page: the language behind the fence, and the content.
fn blocks() -> Vec<(&'static str, &'static str)> {
    let parts = PAGE.split("\n```");
    let blocks = parts
        .skip(1)
        .step_by(2)
        .map(|block| block.split_once('\n').unwrap());
    blocks.collect()
}

#[test]
fn the_page_tells_what_the_tool_says() {
    let tool = Tool::new();
    let mut examples = 0;
    for (info, content) in blocks() {
        if let Some((_, file)) = info.split_once(' ') {
            tool.write(file, format!("{content}\n"));
        }
        if info != "console" {
            continue;
        }
        let (command, expected) = content.split_once('\n').unwrap();
        let args = command
            .strip_prefix("$ sluicegate ")
            .unwrap()
            .split_whitespace();
        let said = said(tool.command().args(args), b"");
        assert_eq!(said.stdout.trim_end(), expected, "{command}");
        examples += 1;
    }
    assert!(examples >= 3);
}

/// The fields in the row of a table.
fn fields(row: &str) -> BTreeSet<&'static str> {
    let start = format!("| {row} | ");
    let (_, tables) = PAGE.split_once("## JSON").unwrap();
    let mut rows = tables.lines().filter_map(|line| line.strip_prefix(&start));
    let row = rows.next().unwrap_or_else(|| panic!("no row: {row}"));
    row.split('`').skip(1).step_by(2).collect()
}

#[tokio::test]
async fn the_page_names_the_fields_of_each_document() {
    let site = Site::start().await;
    site.charge("api", "alice", 1).await;
    let address = Charge::new(&policy("api"), Key::new("ip", "203.0.113.7"), 1);
    site.limiter.check([address]).await.unwrap();
    site.tool.write("access.log", "{\"time\":1,\"ip\":\"a\"}\n");
    let table = "
        `doctor` | doctor |
        a server of `doctor` | doctor | /servers/0
        a finding of `doctor` | doctor | /findings/0
        a row of `--by-prefix` | top --by-prefix 48 | /top/0
        `inspect`, `explain`, `watch` | inspect user=alice --policies policies.toml |
        a policy of `inspect` | explain user=alice --policies policies.toml | /policies/0
        a rule of `inspect` | inspect user=alice | /policies/0/rules/0
        `top` | top |
        `top --denied` | top --denied |
        `block` | block user=alice --for 1h |
        a block | inspect user=alice | /blocked
        `blocks` | blocks |
        `unblock` | unblock user=alice |
        `policies` | policies |
        `contributors` | contributors user=alice --policy api --window 1h |
        `reset` | reset user=alice --yes |
        `hash` | hash user=alice |
        `check` | check policies.toml |
        `simulate` | simulate policies.toml access.log --decisions d.jsonl |
        a policy of `simulate` | simulate policies.toml access.log | /policies/0
        a rule of `simulate` | simulate policies.toml access.log | /policies/0/rules/0
    ";
    for [row, command, pointer] in rows(table) {
        let said = site.tool.run(&format!("{command} --json"));
        let document: Value = serde_json::from_str(&said.stdout).expect(&command);
        let part = document.pointer(&pointer).unwrap().as_object().unwrap();
        let names: BTreeSet<&str> = part.keys().map(String::as_str).collect();
        assert_eq!(names, fields(&row), "{command}");
    }
    let line = std::fs::read_to_string(site.tool.folder().join("d.jsonl")).unwrap();
    let line: Value = serde_json::from_str(&line).unwrap();
    let names: BTreeSet<&str> = line
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert!(
        names.is_subset(&fields("a line of `--decisions`")),
        "{line}"
    );
}
