//! `sluicegate simulate`, compared with the middleware over real stores.

use std::{
    collections::BTreeMap, convert::Infallible, fmt::Write as _, io::Write as _, net::SocketAddr,
    time::Duration,
};

use flate2::{Compression, write::GzEncoder};
use http::{Request, Response, StatusCode, header::RETRY_AFTER};
use proptest::prelude::*;
use serde_json::Value;
use sluicegate::{
    Header, KeyExtractor, Limiter, MemoryStore, PeerIp, RateLimitLayer, Store,
    manual_clock::ManualClock, policies::Policies,
};
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::tool::{Said, Tool, rows};
use support::served::Served;

const POLICIES: &str = "\
ip = '4/1s,30/1m,60/1h@fixed'
user = ['6/2s@exact', '50/1h']
trial = { rules = '3/1s', shadow = true }
";

/// 2026-11-21T22:00:00Z
const START: u64 = 1_795_298_400;

/// One request of a log.
struct Hit {
    second: u64,
    ip: String,
    user: Option<String>,
    path: &'static str,
}

/// Some thousand requests of a few clients in order, with bursts and pauses.
fn hits(seed: u64) -> Vec<Hit> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut second = START;
    (0..3_000)
        .map(|_| {
            second += match random.u8(..) {
                0..180 => 0,
                180..250 => random.u64(1..3),
                _ => random.u64(10..90),
            };
            let client = random.u8(..7) * random.u8(..2);
            Hit {
                second,
                ip: match client {
                    5 => "2001:db8::5".into(),
                    6 => format!("2001:db8::{}", random.u8(..)),
                    _ => format!("203.0.113.{client}"),
                },
                user: random.bool().then(|| format!("user{}", random.u8(..4))),
                path: random.choice(["/", "/api/a", "/login"]).unwrap(),
            }
        })
        .collect()
}

fn combined(hits: &[Hit]) -> String {
    let mut log = String::new();
    for Hit {
        second,
        ip,
        user,
        path,
    } in hits
    {
        let (day, second) = (
            21 + (second - START + 79_200) / 86_400,
            (second - START + 79_200) % 86_400,
        );
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        let user = user.as_deref().unwrap_or("-");
        writeln!(
            log,
            "{ip} - {user} [{day}/Nov/2026:{hour:02}:{minute:02}:{second:02} +0000] \"GET {path} HTTP/1.1\" 200 23 \"-\" \"curl\""
        ).unwrap();
    }
    log
}

fn json_lines(hits: &[Hit]) -> String {
    let lines = hits.iter().map(|it| {
        let time = it.second;
        serde_json::json!({"ts": time, "request": {"remote_ip": it.ip, "method": "GET", "uri": it.path}, "user_id": it.user}).to_string() + "\n"
    });
    lines.collect()
}

fn tool(policies: &str, log: impl AsRef<[u8]>) -> Tool {
    let tool = Tool::new();
    tool.write("p.toml", policies);
    tool.write("access.log", log);
    tool
}

fn outcome(said: &Said) -> Value {
    assert_eq!(said.code, 0, "{said:?}");
    serde_json::from_str(&said.stdout).unwrap()
}

fn simulated(tool: &Tool, args: &str) -> Value {
    let said = tool.run(&format!("simulate p.toml {args} --json"));
    assert_eq!(said.stderr, "");
    outcome(&said)
}

fn by_name<'a>(outcome: &'a Value, policy: &str) -> &'a Value {
    let mut policies = outcome["policies"].as_array().unwrap().iter();
    policies.find(|it| it["name"] == policy).unwrap()
}

fn decisions(tool: &Tool) -> Vec<Value> {
    let text = std::fs::read_to_string(tool.folder().join("d.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The middleware's answers to the same requests at the same times: the status, and the seconds to wait.
async fn served(
    policies: &str,
    (store, clock): (impl Store, ManualClock),
    hits: &[Hit],
    decisions: &[Value],
) -> Vec<(StatusCode, Option<u64>)> {
    let policies: Policies = toml::from_str(policies).unwrap();
    let policy = |name| policies.get(name).unwrap().clone();
    let limiter = Limiter::new(store).timeout(Duration::from_secs(10));
    let layer = RateLimitLayer::new(limiter.clone())
        .limit(policy("ip"), PeerIp)
        .limit(policy("trial"), PeerIp)
        .limit(policy("user"), Header::new("x-user").or_skip());
    let service = ServiceBuilder::new()
        .layer(layer)
        .service(service_fn(|_: Request<()>| async {
            Ok::<_, Infallible>(Response::new(String::new()))
        }));
    let mut answers = Vec::new();
    for decision in decisions {
        clock.set(decision["time_ms"].as_u64().unwrap());
        let hit = &hits[usize::try_from(decision["line"].as_u64().unwrap()).unwrap() - 1];
        let mut request = Request::get(hit.path);
        if let Some(user) = &hit.user {
            request = request.header("x-user", user);
        }
        let mut request = request.body(()).unwrap();
        request
            .extensions_mut()
            .insert(SocketAddr::new(hit.ip.parse().unwrap(), 50_000));
        let response = service.clone().oneshot(request).await.unwrap();
        limiter.strikes_counted().await;
        let retry = response
            .headers()
            .get(RETRY_AFTER)
            .map(|it| it.to_str().unwrap().parse().unwrap());
        answers.push((response.status(), retry));
    }
    answers
}

fn assert_same(outcome: &Value, decisions: &[Value], answers: &[(StatusCode, Option<u64>)]) {
    for (decision, (status, retry)) in decisions.iter().zip(answers) {
        let expected = if decision["allowed"] == true {
            StatusCode::OK
        } else {
            StatusCode::TOO_MANY_REQUESTS
        };
        assert_eq!(*status, expected, "{decision}");
        let wait = decision["retry_after_ms"]
            .as_u64()
            .map(|ms| ms.div_ceil(1_000));
        assert_eq!(*retry, wait, "{decision}");
    }
    let refused = answers.iter().filter(|it| it.0 != StatusCode::OK).count();
    assert!(refused > 200, "{refused}");
    assert_eq!(outcome["requests"], answers.len());
    assert_eq!(outcome["refused"], refused);
}

#[tokio::test]
async fn a_simulation_admits_exactly_what_the_middleware_admits() {
    for (seed, args) in [(1, ""), (2, "--no-spread"), (3, "")] {
        let hits = hits(seed);
        let tool = tool(POLICIES, combined(&hits));
        let outcome = simulated(&tool, &format!("access.log --decisions d.jsonl {args}"));
        let decisions = decisions(&tool);

        for answers in [
            served(POLICIES, memory(), &hits, &decisions).await,
            served(POLICIES, Served::start().await, &hits, &decisions).await,
        ] {
            assert_same(&outcome, &decisions, &answers);
        }

        for policy in outcome["policies"].as_array().unwrap() {
            assert!(policy["refused"].as_u64() > Some(0), "{policy}");
        }
        let shadows = decisions
            .iter()
            .filter(|it| it["shadow_refused"][0] == "trial");
        has!(by_name(&outcome, "trial"), { "refused": shadows.count() });
    }
}

#[tokio::test]
async fn a_simulation_bans_as_the_middleware_does() {
    let policies = POLICIES.replace(
        "ip = '4/1s,30/1m,60/1h@fixed'",
        "ip = { rules = '4/1s,30/1m', strikes = '6/5m', ban = '20m' }",
    );
    let hits = hits(4);
    let tool = tool(&policies, combined(&hits));
    let outcome = simulated(&tool, "access.log --decisions d.jsonl");
    let decisions = decisions(&tool);
    for answers in [
        served(&policies, memory(), &hits, &decisions).await,
        served(&policies, Served::start().await, &hits, &decisions).await,
    ] {
        assert_same(&outcome, &decisions, &answers);
    }
    let banned = decisions.iter().filter(|it| it.get("banned").is_some());
    let banned = banned.count();
    assert!(banned > 100, "{banned}");
    assert_eq!(outcome["banned"], banned);
    // Under another limit, other identities are banned.
    let other = &outcome["policies"][0]["rules"][1]["other_limits"][0];
    assert!(other["refused"].as_u64() > outcome["refused"].as_u64());
    let said = tool.run("simulate p.toml access.log --report report.html");
    says!(said.stdout => " requests refused by a ban");
    let page = std::fs::read_to_string(tool.folder().join("report.html")).unwrap();
    says!(page.replace('\u{202f}', "") => &format!("<p>{banned} requests refused by a ban</p>"));
}

fn memory() -> (MemoryStore, ManualClock) {
    let clock = ManualClock::new(0);
    (MemoryStore::new().clock(clock.clone()), clock)
}

#[test]
fn every_format_of_the_same_requests_gives_the_same_outcome() {
    let hits = hits(4);
    let log = combined(&hits);
    let tool = tool(POLICIES, &log);
    let expected = simulated(&tool, "access.log");

    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(log.as_bytes()).unwrap();
    tool.write("access.log.gz", encoder.finish().unwrap());
    assert_eq!(simulated(&tool, "access.log.gz"), expected);

    let said = tool.run_with("simulate p.toml --json", log.as_bytes());
    assert_eq!(outcome(&said), expected);

    // Two files, the later one first.
    let half = log.match_indices('\n').nth(1_500).unwrap().0 + 1;
    tool.write("old.log", &log[..half]);
    tool.write("new.log", &log[half..]);
    let both = simulated(&tool, "new.log old.log");
    assert_eq!(
        (&both["requests"], &both["lines"]),
        (&expected["requests"], &expected["lines"])
    );

    tool.write("app.jsonl", json_lines(&hits));
    let mut of_json = simulated(&tool, "app.jsonl");
    has!(of_json, { "formats": ["caddy, by ts: when a request ended"] });
    of_json["formats"] = expected["formats"].clone();
    assert_eq!(of_json, expected);
    let named = simulated(
        &tool,
        "app.jsonl --time ts --key ip=request.remote_ip --key trial=request.remote_ip",
    );
    assert_eq!(
        (&named["refused"], &named["over_time"]),
        (&expected["refused"], &expected["over_time"])
    );
}

#[test]
fn other_limits_tell_what_a_replay_with_them_would() {
    let hits = hits(5);
    let tool = tool("ip = '4/1s,30/1m'", combined(&hits));
    let first = simulated(&tool, "access.log");
    let rules = |outcome: &Value| outcome["policies"][0]["rules"].clone();
    for (rule, [before, after]) in [(0, ["", "/1s,30/1m"]), (1, ["4/1s,", "/1m"])] {
        for other in rules(&first)[rule]["other_limits"].as_array().unwrap() {
            tool.write(
                "p.toml",
                format!("ip = '{before}{}{after}'", other["limit"]),
            );
            has!(simulated(&tool, "access.log --factors 1"), { "refused": other["refused"] });
        }
    }
    let nobody = [0, 1].map(|rule| rules(&first)[rule]["nobody_refused_at"].as_u64().unwrap());
    for (lower, refuses) in [([0, 0], false), ([1, 0], true), ([0, 1], true)] {
        let limits = [0, 1].map(|rule| nobody[rule] - lower[rule]);
        tool.write(
            "p.toml",
            format!("ip = '{}/1s,{}/1m'", limits[0], limits[1]),
        );
        let refused = simulated(&tool, "access.log")["refused"].as_u64();
        assert_eq!(refused > Some(0), refuses, "{nobody:?}");
    }
}

/// A policy of one rule whose window is longer than the log.
#[derive(Clone, Copy)]
struct Model {
    name: &'static str,
    limit: u64,
    shadow: bool,
    key: fn(&Hit) -> Option<String>,
}

impl Model {
    fn toml(&self) -> String {
        format!(
            "{} = {{ rules = '{}/30d', shadow = {} }}\n",
            self.name, self.limit, self.shadow
        )
    }
}

/// The number of refused requests of each policy. Shadows are decided only if no other policy refuses, and charge all
/// or nothing.
fn refused_by(policies: &[Model], hits: &[Hit]) -> Vec<u64> {
    let mut used: BTreeMap<(usize, String), u64> = BTreeMap::new();
    let mut refused = vec![0; policies.len()];
    for hit in hits {
        for shadow in [false, true] {
            let those = (0..).zip(policies).filter(|(_, it)| it.shadow == shadow);
            let keys: Vec<(usize, String)> = those
                .filter_map(|(index, it)| Some((index, (it.key)(hit)?)))
                .collect();
            let is_full = |key: &&(usize, String)| used.get(key) == Some(&policies[key.0].limit);
            let full: Vec<usize> = keys.iter().filter(is_full).map(|it| it.0).collect();
            full.iter().for_each(|index| refused[*index] += 1);
            if !full.is_empty() {
                break;
            }
            keys.into_iter()
                .for_each(|key| *used.entry(key).or_default() += 1);
        }
    }
    refused
}

/// Compares all refusals of a policy under other limits, by the tool and by the model.
fn assert_other_limits(policies: &[Model], hits: &[Hit], tool: &Tool, args: &str) {
    let toml: String = policies.iter().map(Model::toml).collect();
    tool.write("p.toml", toml);
    let outcome = simulated(tool, &format!("access.log {args}"));
    let refused = refused_by(policies, hits);
    for (index, policy) in policies.iter().enumerate() {
        let told = by_name(&outcome, policy.name);
        assert_eq!(told["refused"], refused[index], "{}", policy.name);
        let others = told["rules"][0]["other_limits"].as_array().unwrap();
        assert_eq!(others.len(), 4);
        for other in others {
            let mut changed = policies.to_vec();
            changed[index].limit = other["limit"].as_u64().unwrap();
            let expected = refused_by(&changed, hits)[index];
            assert_eq!(other["refused"], expected, "{}: {other}", policy.name);
        }
    }
}

#[test]
fn other_limits_of_several_shadows_are_what_a_model_says() {
    let hits = hits(5);
    let tool = tool("", combined(&hits));
    let policy = |name, limit, shadow, key| Model {
        name,
        limit,
        shadow,
        key,
    };
    let ip: fn(&Hit) -> Option<String> = |hit| {
        let network = hit
            .ip
            .starts_with("2001:db8::")
            .then(|| "2001:db8::".into());
        network.or_else(|| Some(hit.ip.clone()))
    };
    let policies = [
        policy("ip", 900, false, ip),
        policy("by-ip", 150, true, ip),
        policy("by-user", 120, true, |hit| hit.user.clone()),
        policy("by-path", 700, true, |hit| Some(hit.path.to_owned())),
    ];
    let args = "--key by-user=user";
    assert_other_limits(&policies[..3], &hits, &tool, args);
    assert_other_limits(
        &policies,
        &hits,
        &tool,
        &format!("{args} --key by-path=path"),
    );
}

#[test]
fn the_lowest_limit_that_refuses_nothing_does_not_depend_on_other_rules() {
    for policies in [
        "low = '1/1d'\nhigh = '2/1d'",
        "low = { rules = '1/1d', shadow = true }\nhigh = { rules = '2/1d', shadow = true }",
    ] {
        let outcome = simulated(&tool(policies, LINE.repeat(150)), "access.log");
        let lowest = |policy| &by_name(&outcome, policy)["rules"][0]["nobody_refused_at"];
        assert_eq!([lowest("low"), lowest("high")], [&Value::Null, &150.into()]);
    }
    let outcome = simulated(&tool("ip = '1/1h,2/1d'", LINE.repeat(150)), "access.log");
    assert_eq!(outcome["policies"][0]["rules"][1]["nobody_refused_at"], 150);
}

const LINE: &str = "203.0.113.7 - - [21/Nov/2026:22:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n";

#[test]
fn lines_that_cannot_be_read_are_counted_and_shown() {
    let mut log = combined(&hits(6)[..100]).into_bytes();
    for line in [&b"\n\x1b[31mnonsense\n"[..], b"{\"ip\":\n", b"\xff\xfe\n"] {
        log.extend_from_slice(line);
    }
    log.extend(vec![b'x'; 1 << 20]);
    log.extend(b"\n{\"time\":1,\"ip\":\"203.0.113.1\"}\n");
    let tool = tool("ip = '1/1s'", &log);
    let said = tool.run("simulate p.toml access.log --json");
    let outcome = outcome(&said);
    has!(outcome, { "requests": 100, "lines": { "unreadable": 5, "late": 0 } });
    assert_eq!(said.stderr.lines().count(), 5, "{}", said.stderr);
    begins!(said.stderr => "access.log:102: it does not fit combined: ");
    assert!(!said.stderr.contains('\x1b') && said.stderr.len() < 1_000);
}

#[test]
fn what_a_path_leaves_out_is_counted() {
    let hits = hits(7);
    let tool = tool("ip = '1/1s'", combined(&hits));
    let outcome = simulated(&tool, "access.log --path /api");
    let api = hits.iter().filter(|it| it.path.starts_with("/api")).count();
    has!(outcome, { "requests": api, "lines": { "filtered": hits.len() - api } });
}

#[test]
fn policies_that_are_not_named_are_left_out() {
    let tool = tool(
        "ip = '1/1s'\nlogin = '0/1s'\nuser = '2/1s'",
        combined(&hits(7)),
    );
    let outcome = simulated(&tool, "access.log --policy ip --policy user");
    let policies = outcome["policies"].as_array().unwrap().iter();
    let names: Vec<_> = policies.map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["ip", "user"]);
}

#[test]
fn the_page_has_nothing_of_a_log_as_html() {
    let mut log = String::new();
    for _ in 0..3 {
        writeln!(log, "203.0.113.1 - <img/src=x> [21/Nov/2026:22:00:00 +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"<script>alert('1')</script>&\"").unwrap();
    }
    let tool = tool("agent = '1/1m'\nuser = '1/1m'", log);
    let outcome = simulated(
        &tool,
        "access.log --key agent --key user=user --report report.html",
    );
    assert_eq!(outcome["refused"], 2);
    let page = std::fs::read_to_string(tool.folder().join("report.html")).unwrap();
    assert!(page.contains("&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;"));
    assert!(!page.contains("<script") && !page.contains("<img"));
    for elsewhere in ["http://", "https://", "url(", "@import", "src=\"", "href="] {
        let without = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!without.contains(elsewhere), "{elsewhere}");
    }
}

/// The part of a page under a heading.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("<h2>{heading}</h2>")).unwrap();
    rest.split("<h2>").next().unwrap()
}

/// A ban, a shadow that would refuse, and rules that refuse.
#[test]
fn the_page_shows_bans_and_shadows_apart_and_other_limits_with_their_change() {
    let policies = "\
        ip = { rules = '4/1s,30/1m', strikes = '6/5m', ban = '20m' }\n\
        trial = { rules = '3/1s', shadow = true }\n";
    let tool = tool(policies, combined(&hits(4)));
    let outcome = simulated(&tool, "access.log --report report.html");
    let page = std::fs::read_to_string(tool.folder().join("report.html")).unwrap();
    let page = page.replace('\u{202f}', "");
    // On a phone, wide content scrolls inside its own box.
    says!(page => "name=\"viewport\" content=\"width=device-width, initial-scale=1\"");
    let wide = page.matches("<table").count() + page.matches("<svg").count();
    assert_eq!(page.matches("class=\"scroll\"").count(), wide);

    let spans = outcome["over_time"]["spans"].as_array().unwrap().iter();
    let banned: u64 = spans.map(|it| it["banned"].as_u64().unwrap()).sum();
    assert!(banned > 100 && outcome["banned"] == banned, "{banned}");
    let over_time = section(&page, "Refusals over time");
    says!(over_time => "<span class=\"key k6\"></span>bans", "class=\"line k6\"");
    let by_rule = section(&page, "Refusals by rule");
    let mut rows = by_rule.split("<tr>");
    let bans = rows.find(|it| it.contains("<td class=\"\">bans")).unwrap();
    says!(bans => "number real", &format!(">{banned}<"));

    let others = section(&page, "Tighter and looser limits");
    for section in [by_rule, others] {
        let (real, shadow) = section.split_once("trial").unwrap();
        says!(real => "number real");
        says_not!(real => "number shadow");
        says!(shadow => "number shadow");
    }
    let rules = outcome["policies"][0]["rules"].as_array().unwrap().iter();
    for other in rules.flat_map(|rule| rule["other_limits"].as_array().unwrap()) {
        let [now, then] = [&outcome, other].map(|it| it["refused"].as_i64().unwrap());
        let change = match then - now {
            0 => "=".to_owned(),
            more @ 1.. => format!("+{more}"),
            fewer => format!("−{}", -fewer),
        };
        says!(others => &format!("<td class=\"number\">{change}<"));
    }
    says!(others => "<td class=\"number\">now<");
}

#[test]
fn text_fits_eighty_columns() {
    let tool = tool(POLICIES, combined(&hits(8)));
    let said = tool.run("simulate p.toml access.log");
    let widest = said.stdout.lines().map(|line| line.chars().count()).max();
    assert!(said.code == 0 && widest <= Some(80), "{said:?}");
}

#[test]
fn where_no_limit_that_was_tried_is_enough_the_highest_is_told() {
    for (policy, requests, expected) in [
        ("ip = '0/1m'", 101, " > 100\n"),
        ("ip = '1/1m'", 101, " > 100\n"),
        ("ip = '0/1m'", 100, " 100\n"),
    ] {
        let said = tool(policy, LINE.repeat(requests)).run("simulate p.toml access.log");
        assert!(said.stdout.contains(expected), "{policy}: {said:?}");
    }
}

#[test]
fn what_cannot_be_simulated_is_a_usage_error() {
    let tool = tool("ip = '1/1s'", "");
    tool.write("wrong.toml", "ip = '1'");
    tool.write("cut.gz", b"\x1f\x8b\x08");
    tool.told(
        "
        simulate nowhere.toml access.log | 2 | error: nowhere.toml
        simulate wrong.toml access.log | 2 | error: wrong.toml:1:7
        simulate p.toml nowhere.log | 2 | error: nowhere.log
        simulate p.toml access.log --key user=ip | 2 | error: --key
        simulate p.toml access.log --policy user | 2 | error: p.toml has no policy `user`
        simulate p.toml access.log --factors -1 | 2 | error:
        simulate p.toml access.log --factors NaN | 2 | error: --factors
        simulate p.toml access.log --keys 0 | 2 | error:
        simulate p.toml access.log --report nowhere/report.html | 2 | error: nowhere/report.html
        simulate p.toml cut.gz | 2 | error: cut.gz
        ",
    );
    assert_eq!(simulated(&tool, "access.log")["requests"], 0);
}

#[test]
fn a_field_that_was_named_and_that_no_line_has_is_an_error() {
    let tool = tool("ip = '1/1s'\nuser = '1/1s'", json_lines(&hits(9)));
    tool.told(
        "
        simulate p.toml access.log --key clientpi | 2 | no line has a field | nothing would be limited by `ip`
        simulate p.toml access.log --key user=usr | 2 | no line has a field `usr` | nothing would be limited by `user`
        ",
    );
    simulated(&tool, "access.log --key ip --key user=user");
}

#[test]
fn the_report_s_place_is_tried_first_and_what_stands_there_stays_until_there_is_one() {
    let tool = tool("ip = '1/1s'", "");
    tool.write("report.html", "old");
    let report = || std::fs::read_to_string(tool.folder().join("report.html")).unwrap();
    tool.told(
        "
        simulate p.toml nowhere.log --report nowhere/report.html | 2 | nowhere/report.html
        simulate p.toml nowhere.log --report report.html | 2 | error: nowhere.log
        ",
    );
    assert_eq!(report(), "old");
    simulated(&tool, "access.log --report report.html");
    assert!(report().starts_with("<!doctype html>"));
}

/// Slightly out of order, like a server's log.
#[test]
fn several_logs_are_merged_by_time() {
    let line = |second: u64| format!("{{\"time\":{second},\"ip\":\"203.0.113.1\"}}\n");
    let tool = tool("ip = '1/100ms'", "");
    let mut logs = String::new();
    for log in 0..12 {
        let mut lines: Vec<String> = (log..1_200).step_by(12).map(line).collect();
        (60..90).step_by(3).for_each(|at| lines.swap(at, at + 1));
        tool.write(&format!("{log}.log"), lines.concat());
        write!(logs, "{log}.log ").unwrap();
    }
    let outcome = simulated(&tool, &format!("{logs} --reorder 30s"));
    has!(outcome, { "requests": 1_200, "refused": 0, "lines": { "late": 0 } });
    has!(simulated(&tool, &format!("{logs} --reorder 1s")), { "requests": 1_200, "lines": { "late": 100 } });
}

#[test]
fn what_is_read_is_never_written_over() {
    let log = combined(&hits(5)[..10]);
    let tool = tool("ip = '1/1s'", &log);
    let path = |file: &str| tool.folder().join(file);
    std::fs::hard_link(path("access.log"), path("linked.log")).unwrap();
    tool.told(
        "
        simulate p.toml access.log --decisions access.log | 2 | would be written over
        simulate p.toml access.log --report ./access.log | 2 | would be written over
        simulate p.toml access.log --decisions p.toml | 2 | would be written over
        simulate p.toml access.log --decisions linked.log | 2 | would be written over
        simulate p.toml access.log --decisions both --report both | 2 | name the same file
        ",
    );
    let stdin = std::fs::File::open(tool.folder().join("access.log")).unwrap();
    let mut command = tool.command();
    command.args(["simulate", "p.toml", "--decisions", "access.log"]);
    let output = command.stdin(stdin).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    tool.write("d.jsonl", "old");
    tool.told("simulate p.toml nowhere.log --decisions d.jsonl | 2 | error: nowhere.log");
    let text = |file: &str| std::fs::read_to_string(tool.folder().join(file)).unwrap();
    assert_eq!(
        [text("access.log"), text("d.jsonl")],
        [log, "old".to_owned()]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_bytes_are_read_to_their_end(log in prop::collection::vec(prop_oneof![
        Just(b"203.0.113.1 - - [21/Nov/2026:22:00:00 +0000] \"GET / HTTP/1.1\" 200 1".to_vec()),
        Just(b"{\"time\":1}".to_vec()),
        prop::collection::vec(any::<u8>(), 0..200),
    ], 0..30)) {
        let tool = tool("ip = '1/1s'", log.join(&b'\n'));
        let said = tool.run("simulate p.toml access.log --format common --json");
        // Bytes that begin like a packed file, but are not one.
        if said.code == 0 {
            let outcome = outcome(&said);
            let [read, unreadable, requests] = [&outcome["lines"]["read"], &outcome["lines"]["unreadable"], &outcome["requests"]]
                .map(|it| it.as_u64().unwrap());
            prop_assert_eq!(read, unreadable + requests);
        } else {
            prop_assert_eq!(said.code, 2);
        }
    }
}

/// One client's requests, one in each second: those above 100 within 100 s are refused under `100/1000s`.
fn steady(requests: u64) -> Vec<Hit> {
    let hits = (0..requests).map(|second| Hit {
        second: START + second,
        ip: "203.0.113.1".into(),
        user: None,
        path: "/",
    });
    hits.collect()
}

#[test]
fn a_verdict_is_no_above_a_bound_and_yes_at_it() {
    // 200 of 400 requests under `ip` are refused: after 200, the window is full until the end of the log.
    let tool = tool("ip = '200/1000s@exact'", combined(&steady(400)));
    let table = r"
        0 | kept: --max-refused 50%: 200 of 400 refused (50.0 %); it allows 200
        0 | kept: --max-refused 100%: 200 of 400 refused (50.0 %); it allows 400
        1 | broken: --max-refused 49.999999%: 200 of 400 refused (50.0 %); it allows 199
        1 | broken: --max-refused 0%: 200 of 400 refused (50.0 %); it allows 0
        1 | kept: --max-refused 60%: 200 of 400 refused (50.0 %); it allows 240\nbroken: --max-refused ip=0.5%: 200 of 400 refused (50.0 %); it allows 2
    ";
    for [code, verdicts] in rows(table) {
        let code: i32 = code.parse().unwrap();
        let lines: Vec<&str> = verdicts.lines().collect();
        let bound = |line: &str| line.split(": ").nth(1).unwrap().to_owned();
        let bounds: Vec<String> = lines.iter().map(|line| bound(line)).collect();
        let bounds = bounds.join(" ");
        let said = tool.run(&format!("simulate p.toml access.log {bounds}"));
        assert_eq!((said.code, said.stderr.as_str()), (code, ""), "{bounds}");
        for line in &lines {
            let shown = said.stdout.contains(&format!("\n{line}"));
            assert!(shown, "{line}: {said:?}");
        }
        let shown = said.stdout.matches("--max-refused").count();
        assert_eq!(shown, lines.len(), "{said:?}");
    }
}

#[test]
fn a_verdict_is_part_of_the_document() {
    let tool = tool(
        "ip = '200/1000s@exact'\ntrial = { rules = '100/1000s@exact', shadow = true }",
        combined(&steady(400)),
    );
    let said =
        tool.run("simulate p.toml access.log --json --max-refused 50% --max-refused trial=1%");
    assert_eq!(said.code, 1);
    let outcome: Value = serde_json::from_str(&said.stdout).unwrap();
    has!(outcome, { "verdicts": [
        {"policy": null, "max_refused": "50%", "requests": 400, "refused": 200, "most": 200, "kept": true},
        // A shadow is decided for the 200 requests that the other policy admits.
        {"policy": "trial", "max_refused": "trial=1%", "requests": 400, "refused": 100, "most": 4, "kept": false},
    ] });
    has!(simulated(&tool, "access.log"), { "verdicts": [] });
}

#[test]
fn a_bound_that_cannot_be_read_or_judged_is_a_usage_error() {
    let tool = tool("ip = '1/1s'\nuser = '1/1s'", combined(&steady(10)));
    tool.write("empty.log", "");
    tool.told(
        "
        simulate p.toml access.log --max-refused 0.5 | 2 | error: | write a share of 0% to 100%
        simulate p.toml access.log --max-refused 101% | 2 | error: | write a share of 0% to 100%
        simulate p.toml access.log --max-refused ip= | 2 | error: | write a share of 0% to 100%
        simulate p.toml access.log --max-refused usr=1% | 2 | error: | no policy `usr` is replayed
        simulate p.toml access.log --policy ip --max-refused user=1% | 2 | no policy `user` is replayed
        simulate p.toml access.log --max-refused 1% --max-refused 2% | 2 | the second bound of the same requests
        simulate p.toml empty.log --max-refused 1% | 2 | error: | there is nothing to judge
        simulate p.toml access.log --max-refused user=1% | 2 | error: | there is nothing to judge
        ",
    );
}

#[test]
fn no_verdict_is_yes_if_a_store_was_full() {
    let mut hits = steady(400);
    for (index, hit) in hits.iter_mut().enumerate() {
        hit.ip = format!("203.0.{}.{}", index / 200, index % 200);
    }
    let tool = tool("ip = '1/1d'", combined(&hits));
    tool.told(
        "
        simulate p.toml access.log --keys 100 --max-refused 1% | 2 | give it more --keys | !no key | Refusals by rule
        simulate p.toml access.log --max-refused 0% | 0
        ",
    );
}

#[test]
fn limits_of_concurrency_are_left_out_with_a_warning_and_never_in_silence() {
    let tool = tool(
        "ip = '3/10s'\nuploads = '1/30s@concurrent'",
        combined(&steady(10)),
    );
    let said = tool.run("simulate p.toml access.log --json");
    let why = "a log does not say when responses ended";
    begins!(said.stderr => &format!("warning: policy `uploads` is left out: {why}"));
    let outcome = outcome(&said);
    assert_eq!(outcome["policies"].as_array().unwrap().len(), 1);
    tool.write("slots.toml", "uploads = '1/30s@concurrent'");
    tool.told(&format!(
        "
        simulate p.toml access.log --policy uploads | 2 | error: --policy uploads: {why}
        simulate slots.toml access.log | 2 | error: {why}
        simulate p.toml access.log --max-refused uploads=1% | 2 | no policy `uploads` is replayed
        "
    ));
    let said = tool.run("simulate p.toml access.log --policy ip");
    assert_eq!((said.code, said.stderr.as_str()), (0, ""));
}

#[test]
fn a_calendar_rule_is_replayed_in_its_zone_by_the_clock_of_the_log() {
    // A request each hour from 21 November 22:00 UTC on. December begins in Berlin at 23:00 UTC of the 30th, and in UTC
    // an hour later.
    let mut hits = steady(24 * 20);
    for (hour, hit) in (0..).zip(&mut hits) {
        hit.second = START + hour * 3_600;
    }
    let log: String = hits
        .iter()
        .map(|it| {
            serde_json::json!({"ts": it.second, "request": {"remote_ip": it.ip, "method": "GET", "uri": it.path}})
                .to_string()
                + "\n"
        })
        .collect();
    for (rule, in_november) in [
        ("100/month@Europe/Berlin", 24 * 9 + 1),
        ("100/month@UTC", 24 * 9 + 2),
    ] {
        let tool = tool(&format!("ip = '{rule}'"), &log);
        let outcome = simulated(&tool, "access.log --decisions d.jsonl");
        let refused = (in_november - 100) + (24 * 20 - in_november - 100);
        assert_eq!(outcome["refused"], refused, "{rule}");
        let own = &outcome["policies"][0]["rules"][0];
        assert_eq!(own["rule"], rule);
        assert_eq!(own["nobody_refused_at"], 24 * 20 - in_november);
        // Each limit of a table is a replay: half of the limit refuses 50 more in each month.
        has!(own["other_limits"][0], { "limit": 50, "refused": refused + 100 });
        let first = decisions(&tool)
            .into_iter()
            .find(|it| it["allowed"] == false)
            .unwrap();
        let end_ms = (START + in_november * 3_600) * 1_000;
        assert_eq!(
            first["retry_after_ms"],
            end_ms - first["time_ms"].as_u64().unwrap()
        );
    }
}
