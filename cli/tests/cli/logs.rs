//! The fields that `simulate` finds in the logs of servers behind proxies, and the lines that a verdict needs.

use crate::tool::{Said, Tool};

/// A line in the combined format, from the time on.
const REST: &str = r#"[05/May/2020:21:25:27 +0000] "GET / HTTP/1.1" 200 1 "-" "-""#;

/// The proxies of these logs.
const PROXIES: &str = "--trusted-proxies 198.51.100.0/24,10.0.0.0/8";

const GUESSED: &str = "the first is taken for the client";

fn said(policies: &str, lines: &[String], args: &str) -> Said {
    let tool = Tool::new();
    tool.write("p.toml", policies);
    tool.write("access.log", lines.join("\n"));
    tool.run(&format!("simulate p.toml access.log --factors 1 {args}"))
}

/// The refused identities under a limit of 0.
fn identities(lines: &[String], args: &str) -> (Vec<String>, String) {
    let said = said("ip = '0/1m'", lines, &format!("{args} --json"));
    assert_eq!(said.code, 0, "{said:?}");
    let outcome: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    let hit = outcome["hardest_hit"].as_array().unwrap().iter();
    let identities = hit.map(|it| it["identity"].as_str().unwrap().to_owned());
    (identities.collect(), said.stderr)
}

/// Logs of one client whose requests arrive through two edges of a network, in each form that servers write.
fn through_edges() -> Vec<([String; 2], &'static str)> {
    let through =
        |form: &str| ["198.51.100.1", "198.51.100.2"].map(|edge| form.replace("EDGE", edge));
    let json = |name: &str, value: &str| format!(r#"{{"time":1588713927,"{name}":{value}}}"#);
    vec![
        (through(&format!("203.0.113.7, EDGE - - {REST}")), ""),
        (
            through(&format!("\"203.0.113.7, EDGE\" 10.2.1.185 - - {REST}")),
            "",
        ),
        (through(&format!("\"203.0.113.7\" EDGE - - {REST}")), ""),
        (through(&format!("\"203.0.113.7, EDGE\" - - {REST}")), ""),
        (
            through(&format!("web_1  | a.example 203.0.113.7,EDGE - a b {REST}")),
            "",
        ),
        (
            through(&format!("10.0.0.9 - - {REST} \"203.0.113.7, EDGE\"")),
            "--key ip=extra1",
        ),
        (through(&json("client_ip", "\"203.0.113.7, EDGE\"")), ""),
        (
            through(&json("forwarded", "\"203.0.113.7, EDGE\"")),
            "--key forwarded",
        ),
        (
            through(&json("forwarded", "[\"203.0.113.7\",\"EDGE\"]")),
            "--key forwarded",
        ),
        (
            through(&json("forwarded", "[\"203.0.113.7, EDGE\"]")),
            "--key forwarded",
        ),
    ]
}

#[test]
fn a_list_of_addresses_is_one_client_in_every_format() {
    for (lines, args) in through_edges() {
        let kind = args
            .rsplit(['=', ' '])
            .next()
            .filter(|kind| !kind.is_empty());
        let expected = [format!("{}=203.0.113.7", kind.unwrap_or("ip"))];
        let (found, stderr) = identities(&lines, args);
        assert_eq!(found, expected, "{lines:?}");
        assert_eq!(stderr.matches(GUESSED).count(), 1, "{lines:?}: {stderr}");
        let (found, stderr) = identities(&lines, &format!("{args} {PROXIES}"));
        assert_eq!((&found[..], &*stderr), (&expected[..], ""), "{lines:?}");
        let lines = lines.map(|line| line.replace("203.0.113.7", "2001:db8::7"));
        let (found, _) = identities(&lines, &format!("{args} {PROXIES}"));
        let expected = format!("{}=2001:db8::/64", kind.unwrap_or("ip"));
        assert_eq!(found, [expected], "{lines:?}");
    }
}

#[test]
fn a_line_that_names_its_server_first_names_its_client_next() {
    for (before, client) in [
        (
            "www.example.org:443 host-a.isp.example - -",
            "host-a.isp.example",
        ),
        ("198.51.100.1 203.0.113.7 - -", "203.0.113.7"),
        ("nginx.1 | www.example.org 203.0.113.7 - -", "203.0.113.7"),
    ] {
        let (found, stderr) = identities(&[format!("{before} {REST}")], "");
        assert_eq!((found, &*stderr), (vec![format!("ip={client}")], ""));
    }
}

#[test]
fn with_trusted_proxies_no_client_chooses_its_identity() {
    let line = |list: &str| [format!("{list} - - {REST}")];
    for (list, client) in [
        ("192.0.2.1, 203.0.113.7, 198.51.100.1", Some("203.0.113.7")),
        ("x, 203.0.113.7:4711, 198.51.100.1:80", Some("203.0.113.7")),
        ("192.0.2.1, 203.0.113.7", Some("203.0.113.7")),
        ("-, 203.0.113.7", Some("203.0.113.7")),
        ("10.0.0.1, 198.51.100.1", Some("10.0.0.1")),
        ("203.0.113.7, unknown, 198.51.100.1", None),
    ] {
        let (found, stderr) = identities(&line(list), PROXIES);
        let expected: Vec<String> = client.iter().map(|it| format!("ip={it}")).collect();
        assert_eq!((found, &*stderr), (expected, ""), "{list}");
    }
    let (found, _) = identities(&line("-, 203.0.113.7"), "");
    assert_eq!(found, ["ip=203.0.113.7"]);
    let wrong = said(
        "ip = '0/1m'",
        &line("203.0.113.7"),
        "--trusted-proxies 10.0.0.1/8",
    );
    assert_eq!(wrong.code, 2, "{wrong:?}");
    assert!(wrong.stderr.contains("write `10.0.0.0/8`"), "{wrong:?}");
}

/// A number of lines for each form of the part before the time.
fn mixed(parts: &[(usize, &str)]) -> Vec<String> {
    let lines = parts.iter().flat_map(|(count, form)| vec![*form; *count]);
    lines
        .enumerate()
        .map(|(at, form)| form.replace("N", &at.to_string()) + REST)
        .collect()
}

#[test]
fn a_verdict_needs_nine_tenths_of_the_lines_read_and_keyed() {
    let policies = "ip = '100/1m'\nuser = '100/1m'";
    let unreadable = "what a new format writes";
    for (parts, bound, reason) in [
        (
            &[(1, "203.0.113.N - - "), (200, unreadable)][..],
            "0%",
            Some("of 201, 200 cannot be read, and 0 have no key"),
        ),
        (
            &[(89, "203.0.113.N - - "), (11, unreadable)],
            "0%",
            Some("of 100, 11 cannot be read, and 0 have no key"),
        ),
        (&[(90, "203.0.113.N - - "), (10, unreadable)], "0%", None),
        (
            &[(80, "203.0.113.N - - "), (9, unreadable), (11, "- - - ")],
            "0%",
            Some("of 100, 9 cannot be read, and 11 have no key"),
        ),
        (&[(80, "203.0.113.N - - "), (20, "- - bob ")], "0%", None),
        (
            &[(80, "203.0.113.N - - "), (20, "- - bob ")],
            "ip=0%",
            Some("of 100, 0 cannot be read, and 20 have no key"),
        ),
        // Most requests are of no user.
        (
            &[(80, "203.0.113.N - - "), (20, "- - bob ")],
            "user=0%",
            None,
        ),
        (
            &[(80, "203.0.113.N - bob "), (20, unreadable)],
            "user=0%",
            Some("of 100, 20 cannot be read, and 0 have no key"),
        ),
    ] {
        let lines: Vec<String> = mixed(parts)
            .into_iter()
            .map(|line| {
                if line.starts_with(unreadable) {
                    unreadable.to_owned()
                } else {
                    line
                }
            })
            .collect();
        let said = said(policies, &lines, &format!("--max-refused {bound}"));
        assert_eq!(
            said.code,
            if reason.is_some() { 2 } else { 0 },
            "{bound}: {said:?}"
        );
        assert_eq!(said.stdout.contains("kept: "), reason.is_none(), "{said:?}");
        assert!(said.stderr.contains(reason.unwrap_or_default()), "{said:?}");
        assert!(
            said.stdout.contains("Refusals by rule"),
            "the outcome is shown: {said:?}"
        );
    }
}

#[test]
fn lines_that_the_path_leaves_out_are_not_missing_for_a_verdict() {
    let line = |path: &str| {
        format!(
            "203.0.113.7 - - {}",
            REST.replace("GET /", &format!("GET {path}"))
        )
    };
    let mut lines = vec![line("/static"); 99];
    lines.push(line("/api"));
    let said = said("ip = '1/1m'", &lines, "--path /api --max-refused 0%");
    assert_eq!(said.code, 0, "{said:?}");
}
