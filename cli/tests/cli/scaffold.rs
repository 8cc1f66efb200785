//! The common behaviour of all verbs.

use crate::tool::{Tool, rows, said};

#[test]
fn help_names_every_verb_and_every_exit_code_within_eighty_columns() {
    let tool = Tool::new();
    tool.told("--help | 0 | completions | --redis <URL> | --json | Exit codes: | SLUICEGATE_SECRET | SLUICEGATE_REDIS");
    for args in [
        "--help",
        "-h",
        "check --help",
        "simulate --help",
        "completions --help",
    ] {
        let help = tool.run(args).stdout;
        let widest = help.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{args}: {help}");
    }
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
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{args}");
    }
}

#[test]
fn completions_are_printed_for_a_shell() {
    Tool::new().told("completions bash | 0 | _sluicegate()");
}

/// Fails before it calls a server: `simulate` reads the settings, and there is no log.
fn settings(tool: &Tool, environment: &[(&str, &str)], args: &[&str]) -> (i32, String) {
    let mut command = tool.command();
    command
        .args(["simulate", "nowhere.toml"])
        .args(args)
        .envs(environment.iter().copied());
    let said = said(&mut command, b"");
    (said.code, said.stderr)
}

#[test]
fn a_wrong_setting_is_told_with_its_place_and_without_the_secret() {
    let tool = Tool::new();
    let table = r"
        redis = 'redis://:hunter2@h'\nsecrets = 'hunter2' | sluicegate.toml:2:1: unknown field `secrets`
        secret = 'hunter2'\ntimeout = '1 x' | sluicegate.toml:2:11: write a time such as
        secret = 'hunter2' x | sluicegate.toml:1:20:
        ipv6_prefix = 16 | sluicegate.toml:1:15: the prefix of an IPv6 network
        redis = 'redis://:hunter2@h'\ncluster = [] | the configuration file names several of
    ";
    for [text, expected] in rows(table) {
        tool.write("sluicegate.toml", text);
        let (code, stderr) = settings(&tool, &[], &[]);
        assert_eq!(code, 2, "{stderr}");
        begins!(stderr => &format!("error: {expected}"));
        says_not!(stderr => "hunter2");
    }
}

#[test]
fn the_environment_is_read_and_its_secret_is_never_shown() {
    let tool = Tool::new();
    // A variable without a value is as if it were not set, so the tool misses the next file.
    let table = r"
        SLUICEGATE_TIMEOUT | soon | SLUICEGATE_TIMEOUT: write a time
        SLUICEGATE_IPV6_PREFIX | 129 | SLUICEGATE_IPV6_PREFIX: the prefix
        SLUICEGATE_CONFIG | other.toml | other.toml:
        SLUICEGATE_CONFIG | | nowhere.toml:
    ";
    for [name, value, expected] in rows(table) {
        let (code, stderr) = settings(&tool, &[(&name, &value)], &[]);
        assert_eq!(code, 2, "{stderr}");
        begins!(stderr => &format!("error: {expected}"));
    }
    let mut command = tool.command();
    command.arg("--help").envs([
        ("SLUICEGATE_SECRET", "hunter2"),
        ("SLUICEGATE_REDIS", "redis://:hunter2@h"),
    ]);
    assert!(!said(&mut command, b"").stdout.contains("hunter2"));
}

/// The options that name the server take 30 lines. They work with each verb, but only the tool's own help has them.
#[test]
fn the_help_of_a_verb_is_about_the_verb() {
    let tool = Tool::new();
    for verb in [
        "inspect",
        "block",
        "blocks",
        "top",
        "contributors",
        "hash",
        "check",
    ] {
        let help = tool.run(&format!("{verb} --help")).stdout;
        says!(help => "`sluicegate --help` has the options that name the server");
        says_not!(help => "--redis", "--sentinel");
        assert!(help.lines().count() <= 80, "{verb}: {help}");
    }
}
