//! `sluicegate check`.

use serde_json::{Value, json};

use crate::tool::Tool;

fn checked(file: &str, text: &str, args: &str) -> (i32, Value) {
    let tool = Tool::new();
    tool.write(file, text);
    let said = tool.run(&format!("check {file} --json {args}"));
    assert_eq!(said.stderr, "");
    (said.code, serde_json::from_str(&said.stdout).unwrap())
}

#[test]
fn good_policies_are_good() {
    for (file, text) in [
        (
            "p.toml",
            "ip = '10/1s,120/1m'\nuser = ['600/1m', '100000/1d']",
        ),
        (
            "p.toml",
            "port = 80\n[policies]\nlogin = { rules = '5/1m', on_failure = 'closed' }\nip = '10/1s'",
        ),
        ("p.toml", "policies = { rules = '5/1m' }\nip = '10/1s'"),
        ("p.json", r#"{"ip": "10/1s", "user": ["600/1m"]}"#),
        (
            "p.JSON",
            r#"{"port": 80, "policies": {"ip": "10/1s", "user": "600/1m"}}"#,
        ),
    ] {
        let (code, report) = checked(file, text, "--strict");
        assert_eq!(code, 0, "{text}: {report}");
        has!(report, { "file": file, "policies": 2, "errors": [], "warnings": [], "notes": [] });
    }
}

#[test]
fn each_wrong_policy_is_told_with_its_place() {
    let text = "# limits\nip = '10/1s,10'\nuser = ['1/1s', '2/1s']\ntenant = { rules = '1/1s', shadw = true }\ngood = '1/1s'\n'a b' = '1/1s'\nnested = { rules = ['1/1s', '10'] }\n";
    let (code, report) = checked("p.toml", text, "");
    assert_eq!(code, 1);
    assert_eq!(report["policies"], 1);
    for (error, (line, column)) in [(2, 13), (3, 8), (4, 28), (6, 1), (7, 30)]
        .into_iter()
        .enumerate()
    {
        has!(report["errors"][error], { "line": line, "column": column });
    }
    assert!(report["errors"][5].is_null(), "{report}");
}

#[test]
fn what_cannot_be_parsed_is_told_with_its_place() {
    let (code, report) = checked("p.toml", "ip = '10/1s'\nuser = \n", "");
    assert_eq!(code, 1, "{report}");
    has!(report["errors"][0], { "line": 2 });
    let (code, report) = checked("p.json", "{\"ip\": \"10/1s\",\n \"user\": \"10\"}", "");
    assert_eq!(code, 1, "{report}");
    has!(report["errors"][0], { "line": 2 });
    assert_eq!(report["errors"][0]["column"], 11, "{report}");
    begins!(report["errors"][0]["message"].as_str().unwrap() => "policy `user`: rule `10`");
}

#[test]
fn warnings_fail_only_if_asked_to() {
    let text = "ip = '10/1s,1000/1m'";
    assert_eq!(checked("p.toml", text, "").0, 0);
    let (code, report) = checked("p.toml", text, "--strict");
    assert_eq!(code, 1);
    let warning = &report["warnings"][0];
    has!(warning, { "code": "never-denies", "rule": "1000/1m", "line": 1, "column": 13 });
    assert_eq!(checked("p.toml", "ip = '10/1m@fixed'", "--strict").0, 0);
    assert_eq!(checked("p.toml", "ip = '10/1m'", "--strict --cost 11").0, 1);
}

#[test]
fn a_person_is_shown_the_line() {
    let tool = Tool::new();
    tool.write("p.toml", "ip = \"10/1s,10\"\n");
    let said = tool.run("check p.toml");
    assert_eq!(said.code, 1);
    let expected = "\
p.toml:1:13: error: policy `ip`: rule `10`: write it as LIMIT/WINDOW, for instance 10/1s, 240/1h@1m, 20/1m@exact, 1000/1d@fixed, 20+10/1s@bucket, 20/30s@concurrent or 10000/month@UTC
  |
1 | ip = \"10/1s,10\"
  |             ^^

p.toml: 0 policies read, 1 error, 0 warnings
";
    assert_eq!(said.stdout, expected);
}

#[test]
fn a_line_of_a_stranger_does_nothing_to_a_terminal() {
    let tool = Tool::new();
    tool.write("p.toml", "ip = \"10\" #\ta\u{202e}b\n");
    tool.told("check p.toml | 1 | #\ta\u{fffd}b");
}

#[test]
fn a_file_that_is_not_there_is_a_usage_error() {
    Tool::new().told("check nowhere.toml | 2 | error: nowhere.toml: ");
}

/// The form of the example server's configuration.
#[test]
fn the_configuration_of_the_example_server_is_a_file_of_policies() {
    let config = "
        [limits]
        ip = '10/1s,40/10s,120/1m'
        'header:x-api-key' = ['600/1m', '100000/1d']
        'header:X-Tenant' = { rules = '100/1s', shadow = true }
        'header:x-user' = { rules = '9/1s', strikes = '5/10m', ban = '1h' }
    ";
    let tool = Tool::new();
    tool.write("server.toml", config);
    tool.write("access.log", "");
    tool.write("wrong.toml", "[limits]\n'header:x' = '1/x'");
    tool.told(
        "
        check server.toml | 0 | 4 policies read, 0 errors
        simulate server.toml access.log --policy header-x-tenant | 0 | 0 requests
        check wrong.toml | 1 | wrong.toml:2:
        ",
    );
}

#[test]
fn strikes_of_a_shadow_are_warned_of() {
    let login = "rules = '5/10m', strikes = '20/10m', ban = '1h'";
    let (code, report) = checked(
        "p.toml",
        &format!("login = {{ {login}, shadow = true }}"),
        "",
    );
    assert_eq!(code, 0);
    has!(report["warnings"][0], { "code": "shadow-bans-nobody" });
    let (_, report) = checked("p.toml", &format!("login = {{ {login} }}"), "");
    assert_eq!(report["warnings"], json!([]));
}
