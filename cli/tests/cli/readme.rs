//! The tool's page: runs the examples, and compares their output.

use crate::tool::{Tool, said};

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
