//! Clients, proxies, names of users, prefixes and times in the logs that `simulate` reads, and the lines that a verdict
//! needs.

use crate::tool::{Said, Tool, rows};

/// A line in the combined format, from the time on.
const REST: &str = r#"[05/May/2020:21:25:27 +0000] "GET / HTTP/1.1" 200 1 "-" "-""#;

/// The proxies of these logs.
const PROXIES: &str = "--trusted-proxies 198.51.100.0/24,10.0.0.0/8";

const PEER: &str = "lines have several addresses: the last, the peer, was taken for the client";

fn said(policies: &str, lines: &[String], args: &str) -> Said {
    with_format(policies, lines, args, None)
}

fn with_format(policies: &str, lines: &[String], args: &str, format: Option<&str>) -> Said {
    let tool = Tool::new();
    tool.write("p.toml", policies);
    tool.write("access.log", lines.join("\n"));
    let mut command = tool.command();
    command.args("simulate p.toml access.log --factors 1".split(' '));
    command.args(args.split_whitespace());
    command.args(format.iter().flat_map(|it| ["--format", it]));
    crate::tool::said(&mut command, b"")
}

/// The refused identities under a limit of 0, and the notes.
fn identities(lines: &[String], args: &str, format: Option<&str>) -> (Vec<String>, String) {
    let said = with_format("ip = '0/1m'", lines, &format!("{args} --json"), format);
    assert_eq!(said.code, 0, "{said:?}");
    let outcome: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    let hit = outcome["hardest_hit"].as_array().unwrap().iter();
    let identities = hit.map(|it| it["identity"].as_str().unwrap().to_owned());
    (identities.collect(), outcome["notes"].to_string())
}

/// Logs of one client whose requests arrive through two edges of a network, in each form that servers write.
fn through_edges() -> Vec<([String; 2], &'static str, Option<&'static str>)> {
    let json = |name: &str, value: &str| format!(r#"{{"time":1588713927,"{name}":{value}}}"#);
    let xff = r#"$http_x_forwarded_for - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent""#;
    let both = r#""%{X-Forwarded-For}i" %h %l %u %t \"%r\" %>s %b "%{Referer}i" "%{User-Agent}i""#;
    let bracketed = r#"[$proxy_add_x_forwarded_for] - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent""#;
    let host = r#"$host $http_x_forwarded_for - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent""#;
    let forms = [
        (format!("203.0.113.7, EDGE - - {REST}"), "", Some(xff)),
        (format!("\"203.0.113.7\" EDGE - - {REST}"), "", Some(both)),
        (
            format!("\"192.0.2.1, 203.0.113.7, EDGE\" 10.2.1.185 - - {REST}"),
            "",
            Some(both),
        ),
        (
            format!("[203.0.113.7, EDGE] - - {REST}"),
            "",
            Some(bracketed),
        ),
        (
            format!("web_1  | a.example 203.0.113.7,EDGE - a {REST}"),
            "",
            Some(host),
        ),
        (format!("EDGE - - {REST} \"203.0.113.7\""), "", None),
        (format!("EDGE (203.0.113.7) - - {REST}"), "", None),
        (json("ip", "\"203.0.113.7, EDGE\""), "", None),
        (json("ip", "\"[203.0.113.7, EDGE]\""), "", None),
        (
            json("forwarded", "\"203.0.113.7, EDGE\""),
            "--key forwarded",
            None,
        ),
        (
            json("forwarded", "[\"203.0.113.7\",\"EDGE\"]"),
            "--key forwarded",
            None,
        ),
        (
            json("forwarded", "[\"203.0.113.7, EDGE\"]"),
            "--key forwarded",
            None,
        ),
    ];
    let through =
        |form: String| ["198.51.100.1", "198.51.100.2"].map(|edge| form.replace("EDGE", edge));
    let forms = forms.into_iter();
    forms
        .map(|(form, args, format)| (through(form), args, format))
        .collect()
}

#[test]
fn a_list_of_addresses_is_one_client_behind_the_proxies_in_every_format() {
    for (lines, args, format) in through_edges() {
        let kind = if args.is_empty() { "ip" } else { "forwarded" };
        let (found, notes) = identities(&lines, args, format);
        // Without the proxies, the peer is what nobody can make up.
        let is_peer = |it: &String| !it.contains("203.0.113");
        assert!(found.iter().all(is_peer), "{found:?} of {lines:?}");
        assert!(notes.contains(PEER), "{lines:?}: {notes}");
        let (found, notes) = identities(&lines, &format!("{args} {PROXIES}"), format);
        assert_eq!(
            (found, &*notes),
            (vec![format!("{kind}=203.0.113.7")], "[]"),
            "{lines:?}"
        );
        let lines = lines.map(|line| line.replace("203.0.113.7", "2001:db8::7"));
        let (found, _) = identities(&lines, &format!("{args} {PROXIES}"), format);
        assert_eq!(found, [format!("{kind}=2001:db8::/64")], "{lines:?}");
    }
}

#[test]
fn with_trusted_proxies_no_client_chooses_its_identity() {
    let line = |list: &str| [format!(r#"{{"time":1588713927,"ip":"{list}"}}"#)];
    for (list, client) in [
        ("192.0.2.1, 203.0.113.7, 198.51.100.1", Some("203.0.113.7")),
        ("x, 203.0.113.7:4711, 198.51.100.1:80", Some("203.0.113.7")),
        ("192.0.2.1, 203.0.113.7", Some("203.0.113.7")),
        ("-, 203.0.113.7", Some("203.0.113.7")),
        ("10.0.0.1, 198.51.100.1", Some("10.0.0.1")),
        ("203.0.113.7, unknown, 198.51.100.1", None),
    ] {
        let (found, notes) = identities(&line(list), PROXIES, None);
        let expected: Vec<String> = client.iter().map(|it| format!("ip={it}")).collect();
        assert_eq!((found, &*notes), (expected, "[]"), "{list}");
    }
    let wrong = said(
        "ip = '0/1m'",
        &line("203.0.113.7"),
        "--trusted-proxies 10.0.0.1/8",
    );
    assert_eq!(wrong.code, 2, "{wrong:?}");
    assert!(wrong.stderr.contains("write `10.0.0.0/8`"), "{wrong:?}");
}

#[test]
fn a_header_that_a_proxy_logs_as_its_client_says_nothing_without_the_peer() {
    let line = |n: u32| {
        format!(
            r#"{{"ClientAddr":"198.51.100.1:4000","ClientHost":"203.0.113.{n}","RequestMethod":"GET","RequestPath":"/","DownstreamStatus":200,"StartUTC":"2026-08-19T10:00:00.{n}Z"}}"#
        )
    };
    let lines: Vec<String> = (1..6).map(line).collect();
    let (found, notes) = identities(&lines, "", None);
    assert_eq!(found, ["ip=198.51.100.1"]);
    assert!(
        notes.contains(PEER) && notes.contains("has nearly all lines"),
        "{notes}"
    );
    assert_eq!(identities(&lines, PROXIES, None).0.len(), 5);
    let text =
        |n: u32| format!("203.0.113.{n} - - {REST} 1 \"a@docker\" \"http://10.0.0.9:80\" 1ms");
    let text: Vec<String> = (1..6).map(text).collect();
    assert!(
        identities(&text, "", None)
            .1
            .contains("what X-Forwarded-For says")
    );
}

#[test]
fn a_verdict_says_what_is_strange_about_its_clients() {
    let table = "
        host-a.example - - | | most values of `ip` are no addresses, such as ip=host-a.example
        203.0.113.N - 198.51.100.N | --key user | most values of `user` are addresses, such as user=198.51.100.1
        10.0.0.1 - - | | ip=10.0.0.1 has nearly all lines: is it a proxy?
        203.0.113.N - - | | !
    ";
    for [before, args, note] in rows(table) {
        let lines: Vec<String> = (1..9)
            .map(|n| format!("{before} {REST}").replace('N', &n.to_string()))
            .collect();
        let said = said("ip = '9/1m'", &lines, &args);
        assert_eq!(said.code, 0, "{said:?}");
        let odd = ["most values", "nearly all lines", "no key"];
        let expected = if note == "!" {
            &odd[3..]
        } else {
            &[&*note][..]
        };
        let missing = expected.iter().any(|it| !said.stdout.contains(it));
        let is_odd = odd.iter().any(|it| said.stdout.contains(it));
        assert!(!missing && is_odd == (note != "!"), "{said:?}");
    }
}

#[test]
fn a_name_with_blanks_hides_no_line_and_gives_no_verdict_if_there_are_many() {
    let forged = "a [10/Oct/2090:13:55:36 -0700]";
    for name in ["[", "a [", "[a] [b", "a ][", "a b", "- alice", forged] {
        let line = |name: &str, n: usize| format!("203.0.113.{n} - {name} {REST}");
        let few: Vec<String> = (1..30)
            .map(|n| line(if n == 1 { name } else { "-" }, n))
            .collect();
        let said = said("ip = '0/1m'", &few, "--json --max-refused 100%");
        assert_eq!(said.code, 0, "{name}: {said:?}");
        let outcome: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
        assert_eq!(outcome["refused"], 29, "{name}");
        assert!(
            outcome["to"].as_str().unwrap().starts_with("2020-05-05"),
            "{name}"
        );
        let many: Vec<String> = (1..30).map(|n| line("a b", n)).collect();
        let said = with_format("ip = '0/1m'", &many, "--max-refused 100%", Some("combined"));
        assert_eq!(said.code, 2, "{said:?}");
        says!(said.stderr => "of 29, 29 cannot be read");
    }
}

#[test]
fn what_collectors_add_is_taken_off() {
    let line = format!("203.0.113.7 - - {REST}");
    let escaped = line.replace('"', "\\\"");
    let forms = [
        "<190>1 2026-06-29T10:00:01.003Z web1 nginx 1234 - - LINE",
        "<190>1 2026-06-29T10:00:01.003Z web1 nginx - ID47 [a@1 b=\"c d\" e=\"[\\]\"][f@1] LINE",
        "<190>Jun 29 10:00:01 web1 nginx: LINE",
        "<190>Jun  9 10:00:01 nginx: LINE",
        "Jun 29 10:00:01 web1 nginx[12]: LINE",
        "2026-06-29T10:00:01.003+00:00 web1 nginx[12]: LINE",
        "2026-06-29T10:00:01+0200 web1 nginx[12]: LINE",
        "2026-06-29T10:00:01.003456789Z stdout F LINE",
        "2026-06-29T10:00:01.003456789Z LINE",
        "web_1  | LINE",
        "web-1 | 2026-06-29T10:00:01.003456789Z LINE",
        r#"{"log":"ESCAPED\n","stream":"stdout","time":"2026-06-29T10:00:01.003456789Z"}"#,
        r#"{"__REALTIME_TIMESTAMP":"1782727201003456","MESSAGE":"ESCAPED","_PID":"12"}"#,
        "2026-06-29T10:00:01.003456789Z stdout F <190>Jun 29 10:00:01 web1 nginx: LINE",
    ];
    for form in forms {
        let line = form.replace("LINE", &line).replace("ESCAPED", &escaped);
        let said = said("ip = '0/1m'", &[line], "--json");
        assert_eq!(said.code, 0, "{form}: {said:?}");
        says!(said.stdout => "\"ip=203.0.113.7\"", "combined, by time", "2020-05-05T21:25:27");
    }
}

/// Two lines for each request, as loggers of applications write them.
#[test]
fn a_request_with_two_lines_counts_once() {
    let req = r#""req":{"method":"GET","url":"/a","remoteAddress":"203.0.113.7"}"#;
    let both = |n: u64| {
        let started = format!(r#"{{"level":30,"time":178800000{n}000,{req},"msg":"started"}}"#);
        let done = r#""res":{"statusCode":200},"responseTime":10"#;
        [
            started,
            format!(r#"{{"level":30,"time":178800000{n}010,{req},{done},"msg":"finished"}}"#),
        ]
    };
    let fastify: Vec<String> = (1..6).flat_map(both).collect();
    let other = r#"{"level":30,"time":1788000000000,"pid":1,"msg":"Server listening"}"#.to_owned();
    let fastify = [vec![other], fastify].concat();
    let access = |n: u64| {
        let request = r#""request":{"method":"GET","uri":"/a","remote_ip":"203.0.113.7"}"#;
        let failed = format!(
            r#"{{"level":"error","ts":178800000{n}.5,"logger":"http.log.error","msg":"x",{request},"duration":0.1,"status":502,"err_id":"a","err_trace":"b"}}"#
        );
        [
            failed,
            format!(
                r#"{{"level":"info","ts":178800000{n}.5,"logger":"http.log.access","msg":"handled request",{request},"duration":0.1,"status":502}}"#
            ),
        ]
    };
    let caddy: Vec<String> = (1..6).flat_map(access).collect();
    let json = |n: u64| {
        let line = format!(r#"{{"time":178800000{n},"ip":"203.0.113.7","path":"/a"}}"#);
        [
            line.clone(),
            line.replace("\"/a\"", "\"/a\",\"status\":200"),
        ]
    };
    let json: Vec<String> = (1..6).flat_map(json).collect();
    for (lines, left_out) in [(fastify, 6), (caddy, 5), (json, 5)] {
        let said = said("ip = '5/1m'", &lines, "");
        says!(said.stdout => "5 requests, 0 refused", &format!("{left_out} lines left out"));
    }
}

#[test]
fn the_path_of_a_request_is_found_in_every_form() {
    let lines = |form: &str| [form.replace("PATH", "/api/a"), form.replace("PATH", "/b")];
    let alb = r#"https 2026-06-29T10:00:01.1Z app/lb/50dc 203.0.113.7:40001 10.0.0.1:80 0.000 0.001 0.000 200 200 34 366 "GET https://www.example.com:443PATH HTTP/1.1" "curl/7.46.0" - - arn:aws:x "Root=1-5" "-" "-" 0 2026-06-29T10:00:01.0Z "forward" "-" "-" "10.0.0.1:80" "200" "-" "-""#;
    let combined = format!("203.0.113.7 - - {}", REST.replace("GET /", "GET PATH"));
    let absolute = combined.replace("GET PATH", "GET http://a.examplePATH");
    let forms = [
        alb,
        &combined,
        &absolute,
        r#"{"time":1,"ip":"203.0.113.7","path":"http://a.examplePATH"}"#,
        r#"{"start_time":"2026-06-29T10:00:01.1Z","downstream_remote_address":"203.0.113.7:1","x-envoy-origin-path":"PATH","response_code":200}"#,
    ];
    for form in forms {
        let said = said("ip = '5/1m'", &lines(form), "--path /api");
        says!(said.stdout => "1 requests, 0 refused", "1 lines left out by --path");
    }
    let said = said(
        "ip = '5/1m'",
        &lines(&combined),
        "--path api --max-refused 0%",
    );
    assert_eq!(said.code, 2, "{said:?}");
    says!(said.stderr => "--max-refused 0%: --path leaves all lines out");
}

#[test]
fn the_time_is_when_the_request_came_and_the_output_says_so() {
    let caddy = |n: u64| {
        let (at, lasted) = (1_200 + n / 10, 1_200 - 60 * n);
        format!(
            r#"{{"ts":178800{at}.0{n},"request":{{"remote_ip":"203.0.113.7","method":"GET","uri":"/"}},"status":200,"duration":{lasted}}}"#
        )
    };
    let shipped = |n: u64| {
        format!(
            r#"{{"@timestamp":"2026-06-29T10:05:00Z","time_local":"29/Jun/2026:10:00:{n:02} +0000","remote_addr":"203.0.113.7","request":"GET / HTTP/1.1","status":200}}"#
        )
    };
    let traefik = |n: u64| {
        format!(
            r#"{{"ClientHost":"203.0.113.7","RequestMethod":"GET","RequestPath":"/","StartUTC":"2026-08-19T10:{n:02}:00Z","time":"2026-08-19T10:20:00Z"}}"#
        )
    };
    let logs: [(Vec<String>, &str, &str); 4] = [
        (
            (0..20).map(caddy).collect(),
            "ip = '10/1m'",
            "ts less duration: when a request came",
        ),
        (
            (0..60).map(shipped).collect(),
            "ip = '2/1s'",
            "time_local: when a request ended",
        ),
        (
            (0..20).map(traefik).collect(),
            "ip = '10/1m'",
            "StartUTC: when a request came",
        ),
        (
            vec![r#"{"@timestamp":1,"ip":"203.0.113.7"}"#.into()],
            "ip = '1/1s'",
            "@timestamp: perhaps only when the line was shipped",
        ),
    ];
    for (lines, policies, words) in logs {
        let said = said(policies, &lines, "");
        says!(said.stdout => ", 0 refused", words);
    }
    let named = said("ip = '10/1m'", &[caddy(1)], "--time request.at");
    assert_eq!(named.code, 2, "{named:?}");
}

#[test]
fn a_string_of_a_server_names_its_fields_or_shows_where_it_is_wrong() {
    let table = r#"
        $remote_addr$request | `$remote_addr` cannot be told from what follows: write a delimiter between them\n  $remote_addr$request\n  ^
        $remote_addr $http_a $http_b | `$http_b` cannot be told from `$http_a`: both may have blanks, so quote them\n  $remote_addr $http_a $http_b\n                       ^
        $remote_addr|$request_uri|$host | `$host` cannot be told from `$request_uri`
        %h %J | this directive is unknown\n  %h %J\n     ^
        %h%u | `$remote_addr` cannot be told from what follows
        nginx | --format nginx: write the string of your server, or one of common, combined
        $ | cannot be told
    "#;
    for [format, problem] in rows(&table.replace("|$", "\u{1}$")) {
        let format = format.replace('\u{1}', "|");
        let said = with_format("ip = '1/1s'", &["x".into()], "", Some(&format));
        assert_eq!(said.code, 2, "{format}: {said:?}");
        assert!(
            said.stderr.contains(&problem),
            "{format}: {problem}\n{}",
            said.stderr
        );
    }
    let line = r#"a.example 203.0.113.7 51234 bob [29/Jun/2026:10:00:01 +0000] "GET /a b HTTP/1.1" 404 0.250 "x \" y" {"#.to_owned() + "\t\"k\" 17";
    let nginx = r#"$host $remote_addr $remote_port $remote_user [$time_local] "$request" $status $request_time "$http_user_agent" {"#.to_owned() + "\t\"$http_x_api_key\" $my_id";
    let apache = r#"%V %h %{remote}p %u %t \"%r\" %>s %{UNIT}T \"%{User-Agent}i\" {\t\"%{X-Api-Key}i\" %{id}e"#;
    for (key, value) in [
        ("host", "a.example"),
        ("$host", "a.example"),
        ("agent", "x \\\" y"),
        ("http_x_api_key", "k"),
        ("%{X-Api-Key}i", "k"),
        ("path", "/a"),
        ("method", "GET"),
        ("status", "404"),
        ("my_id", "17"),
        ("user", "bob"),
        ("$remote_port", "51234"),
    ] {
        let said = with_format(
            "a = '0/1s'",
            std::slice::from_ref(&line),
            &format!("--key {key} --json"),
            Some(&nginx),
        );
        let outcome: serde_json::Value = serde_json::from_str(&said.stdout).expect(&said.stderr);
        let identity = outcome["hardest_hit"][0]["identity"]
            .as_str()
            .unwrap_or_default();
        assert_eq!(identity.split_once('='), Some((key, value)), "{said:?}");
    }
    let said = with_format("a = '0/1s'", &[line], "--key missing", Some(&nginx));
    assert_eq!(said.code, 2);
    says!(said.stderr => "your string has no field `missing`: it has host http_user_agent", "by its role: ip user");
    let unknown = with_format("a = '0/1s'", &["x".into()], "", Some(apache));
    says!(unknown.stderr => "this directive is unknown");
}

#[test]
fn two_formats_that_read_a_log_in_different_ways_are_not_chosen_between() {
    // Of the same number of fields: nginx's names, and those of any JSON.
    let line = r#"{"time":1,"ip":"203.0.113.7","remote_addr":"198.51.100.1"}"#;
    let said = said("ip = '1/1s'", &[line.into()], "");
    assert_eq!(said.code, 2, "{said:?}");
    says!(said.stderr => "read the lines in different ways: name the one with --format NAME");
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
        let said = said(
            policies,
            &lines,
            &format!("--format combined --max-refused {bound}"),
        );
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
