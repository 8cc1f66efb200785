//! What all verbs have in common.

use std::process::Stdio;

use crate::tool::Tool;

#[test]
fn help_names_every_verb_and_every_exit_code() {
    let said = Tool::new().run("--help");
    assert_eq!(said.code, 0, "{said:?}");
    for part in [
        "completions",
        "--redis",
        "--json",
        "Exit codes:",
        "SLUICEGATE_SECRET",
    ] {
        assert!(said.stdout.contains(part), "{part}: {}", said.stdout);
    }
    assert!(said.stdout.lines().all(|line| line.chars().count() <= 120));
}

#[test]
fn a_wrong_argument_is_a_usage_error() {
    for args in [
        "",
        "frobnicate",
        "completions",
        "--timeout 0s completions bash",
    ] {
        let said = Tool::new().run(args);
        assert_eq!(said.code, 2, "{args}: {said:?}");
        assert_eq!(said.stdout, "", "{args}");
    }
}

#[test]
fn completions_are_printed_for_a_shell() {
    let said = Tool::new().run("completions bash");
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.stdout.contains("_sluicegate()"));
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let tool = Tool::new();
    let mut command = tool.command();
    command
        .args(["completions", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), output.stderr.as_slice()),
        (Some(0), &b""[..])
    );
}
