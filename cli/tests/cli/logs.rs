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
    let forms = [
        format!("203.0.113.7, EDGE - - {REST}"),
        format!("\"203.0.113.7, EDGE\" 10.2.1.185 - - {REST}"),
        format!("\"203.0.113.7\" EDGE - - {REST}"),
        format!("\"203.0.113.7, EDGE\" - - {REST}"),
        format!("web_1  | a.example 203.0.113.7,EDGE - a b {REST}"),
        json("client_ip", "\"203.0.113.7, EDGE\""),
    ];
    let forwarded = [
        "\"203.0.113.7, EDGE\"",
        "[\"203.0.113.7\",\"EDGE\"]",
        "[\"203.0.113.7, EDGE\"]",
    ];
    let forwarded = forwarded.map(|it| (json("forwarded", it), "--key forwarded"));
    let extra = (
        format!("10.0.0.9 - - {REST} \"203.0.113.7, EDGE\""),
        "--key ip=extra1",
    );
    let all = forms
        .map(|it| (it, ""))
        .into_iter()
        .chain(forwarded)
        .chain([extra]);
    all.map(|(form, args)| (through(&form), args)).collect()
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

#[test]
fn a_verdict_needs_nine_tenths_of_the_lines_read_and_keyed() {
    let policies = "ip = '100/1m'\nuser = '100/1m'";
    let unreadable = "what a new format writes";
    // The numbers of lines with an address, with an address and a user, with a user, without a key, and unreadable; the
    // bound, and the reason why there is no verdict.
    let rows = "
1 0 0 0 200 | 0% | of 201, 200 cannot be read, and 0 have no key
89 0 0 0 11 | 0% | of 100, 11 cannot be read, and 0 have no key
90 0 0 0 10 | 0% |
80 0 0 11 9 | 0% | of 100, 9 cannot be read, and 11 have no key
80 0 20 0 0 | 0% |
80 0 20 0 0 | ip=0% | of 100, 0 cannot be read, and 20 have no key
80 0 20 0 0 | user=0% |
0 80 0 0 20 | user=0% | of 100, 20 cannot be read, and 0 have no key
";
    for row in rows.lines().filter(|it| !it.is_empty()) {
        let [counts, bound, reason] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let forms = [
            "203.0.113.N - - ",
            "203.0.113.N - bob ",
            "- - bob ",
            "- - - ",
        ];
        let forms = forms.map(|form| form.to_owned() + REST);
        let forms = forms.into_iter().chain([unreadable.to_owned()]);
        let counts = counts.split(' ').map(|it| it.parse::<usize>().unwrap());
        let lines = forms
            .zip(counts)
            .flat_map(|(form, count)| vec![form; count]);
        let lines = lines
            .enumerate()
            .map(|(at, line)| line.replace('N', &at.to_string()));
        let lines: Vec<String> = lines.collect();
        let said = said(policies, &lines, &format!("--max-refused {bound}"));
        let code = if reason.is_empty() { 0 } else { 2 };
        assert_eq!(said.code, code, "{row}: {said:?}");
        assert_eq!(said.stdout.contains("kept: "), code == 0, "{said:?}");
        assert!(said.stderr.contains(reason), "{row}: {said:?}");
        says!(said.stdout => "Refusals by rule");
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
