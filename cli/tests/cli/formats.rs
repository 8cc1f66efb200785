//! The formats of logs that `simulate` knows by name, and the strings of servers.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::tool::{Said, Tool};

/// A server: its format, the options, whether the time is when the request ended, a line before
/// all others, and the lines of one request.
type Server = (&'static str, &'static str, bool, &'static str, &'static str);

const PROXIES: &str = "--trusted-proxies 10.0.0.0/8";

/// The words in braces differ from request to request.
const SERVERS: &[Server] = &[
    (
        "common",
        "",
        false,
        "",
        r#"{ip} - {user} [{clf}] "GET /a HTTP/1.1" 200 2326"#,
    ),
    (
        "combined",
        "",
        false,
        "",
        r#"{ip} - {user} [{clf}] "GET /a HTTP/1.1" 200 2326 "https://a.example/" "curl/8""#,
    ),
    (
        "nginx-main",
        PROXIES,
        true,
        "",
        r#"10.0.0.1 - {user} [{end-clf}] "GET /a HTTP/1.1" 200 23 "-" "curl/8" "192.0.2.1, {ip}""#,
    ),
    (
        "vhost-combined",
        "",
        false,
        "",
        r#"www.example.org:443 {ip} - {user} [{clf}] "GET /a HTTP/1.1" 200 23 "-" "curl/8""#,
    ),
    (
        "elastic-beanstalk",
        PROXIES,
        false,
        "",
        r#"10.0.0.1 ({ip}, 10.0.0.1) - {user} [{clf}] "GET / HTTP/1.1" 200 975 "-" "x""#,
    ),
    (
        "ingress-nginx",
        "",
        false,
        "",
        r#"{ip} - {user} [{end-clf}] "GET / HTTP/1.1" 200 1 "-" "x" 123 {s} [default-web-80] [] 10.1.0.1:80, 10.1.0.2:80 0, 1 0.001, {s} 502, 200 4f5e"#,
    ),
    (
        "alb",
        "",
        false,
        "",
        r#"https {end-iso} app/lb/50dc {ip}:40001 10.0.0.1:80 0.000 {s} 0.000 200 200 34 366 "GET https://www.example.com:443/a HTTP/1.1" "curl/7.46.0" ECDHE TLSv1.2 arn:aws:x "Root=1-5" "www.example.com" "-" 0 {iso} "forward" "-" "-" "10.0.0.1:80" "200" "-" "-" TID_1234 "-" "-" "-""#,
    ),
    (
        "cloudfront",
        "",
        false,
        "",
        "{end-date}\t{end-time}\tLAX1\t392\t{ip}\tGET\td1.cloudfront.net\t/a\t200\t-\tcurl%20x\t-\t-\tHit\tSOX4==\td1.cloudfront.net\thttps\t23\t{s}\t-\tTLSv1.2\tECDHE\tHit\tHTTP/2.0\t-\t-\t11040\t0.001\tHit\ttext/html\t78\t-\t-",
    ),
    (
        "iis",
        "",
        false,
        "#Software: Microsoft Internet Information Services 10.0\n#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) cs(Referer) sc-status sc-substatus sc-win32-status time-taken",
        "{end-date} {end-time} 10.0.0.5 GET /a - 443 {user} {ip} curl/8+x - 200 0 0 {ms}",
    ),
    (
        "haproxy",
        "",
        false,
        "",
        r#"Feb  6 12:14:14 localhost haproxy[14389]: {ip}:33317 [{hap}] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "GET /a HTTP/1.1""#,
    ),
    (
        "envoy",
        PROXIES,
        false,
        "",
        r#"[{iso}] "GET /a HTTP/1.1" 200 - 0 10 {ms} 3 "192.0.2.1, {ip}" "curl/8" "cd-1" "a.example" "10.0.0.2:80""#,
    ),
    (
        "traefik",
        PROXIES,
        false,
        "",
        r#"{"ClientAddr":"10.0.0.1:4000","ClientHost":"{ip}","ClientUsername":"{user}","RequestMethod":"GET","RequestPath":"/a","DownstreamStatus":200,"StartUTC":"{iso}","Duration":{ms}000000,"time":"{end-iso}","level":"info","msg":""}"#,
    ),
    (
        "caddy",
        "",
        false,
        "",
        r#"{"level":"info","ts":{end-epoch},"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"{ip}","client_ip":"{ip}","method":"GET","uri":"/a"},"user_id":"{user}","duration":{s},"status":200}"#,
    ),
    (
        "fastify",
        "",
        false,
        "",
        r#"{"level":30,"time":{epoch}000,"pid":1,"hostname":"a","reqId":"req-1","req":{"method":"GET","url":"/a","remoteAddress":"{ip}","remotePort":5},"msg":"incoming request"}
{"level":30,"time":{end-epoch}000,"pid":1,"hostname":"a","reqId":"req-1","res":{"statusCode":200},"responseTime":{ms},"msg":"request completed"}"#,
    ),
    (
        "tower-http",
        "--key span.client",
        false,
        "",
        r#"{iso} DEBUG request{method=GET uri=/a version=HTTP/1.1 client={ip}}: tower_http::trace::on_request: started processing request
{end-iso}  INFO request{method=GET uri=/a version=HTTP/1.1 client={ip}}: tower_http::trace::on_response: finished processing request latency={ms} ms status=200"#,
    ),
    (
        "nginx-json",
        "",
        false,
        "",
        r#"{"time_local":"{end-clf}","remote_addr":"{ip}","remote_user":"{user}","request_uri":"/a","request_time":"{s}","status":"200"}"#,
    ),
    (
        "json",
        "",
        false,
        "",
        r#"{"time":"{iso}","ip":"{ip}","user":"{user}","path":"/a"}"#,
    ),
];

struct Hit {
    begin: u64,
    ms: u64,
    ip: String,
    user: Option<String>,
}

/// 2026-11-21T22:00:00Z
const START: u64 = 1_795_298_400;

/// Requests of clients with different weights, of two IPv6 networks and with users, that began at whole seconds.
fn hits(count: usize) -> Vec<Hit> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut begin = START;
    let hits = (0..count).map(|_| {
        begin += u64::from(random.u8(..) < 120);
        let client = random.u32(..8) * random.u32(..8) / 8;
        Hit {
            begin,
            // The end of a request is a whole second in some logs: less than half of one does not change the begin.
            ms: 1_000 * random.u64(..3) + random.u64(1..400),
            ip: match client {
                5 => format!("2001:db8::{:x}", random.u8(1..)),
                6 => format!("2001:db8:0:1::{:x}", random.u8(1..)),
                _ => format!("203.0.113.{client}"),
            },
            user: random
                .bool()
                .then(|| format!("user{}", random.u32(..5) * random.u32(..2))),
        }
    });
    hits.collect()
}

/// The lines of a request.
fn lines(form: &str, hit: &Hit) -> String {
    let mut lines = form.to_owned();
    let end = hit.begin + hit.ms / 1_000;
    for (lead, time, ms) in [("", hit.begin, 0), ("end-", end, hit.ms % 1_000)] {
        let clock = (time - START) + 79_200;
        let (day, clock) = (21 + clock / 86_400, clock % 86_400);
        let clock = format!(
            "{:02}:{:02}:{:02}",
            clock / 3_600,
            clock / 60 % 60,
            clock % 60
        );
        for (word, value) in [
            ("clf", format!("{day}/Nov/2026:{clock} +0000")),
            ("hap", format!("{day}/Nov/2026:{clock}.{ms:03}")),
            ("iso", format!("2026-11-{day}T{clock}.{ms:03}Z")),
            ("date", format!("2026-11-{day}")),
            ("time", clock),
            ("epoch}000", format!("{time}{ms:03}")),
            ("epoch", format!("{time}.{ms:03}")),
        ] {
            let end = if word.ends_with('0') { "" } else { "}" };
            lines = lines.replace(&format!("{{{lead}{word}{end}"), &value);
        }
    }
    let seconds = format!("{}.{:03}", hit.ms / 1_000, hit.ms % 1_000);
    let user = hit.user.as_deref().unwrap_or("-");
    let own = [
        ("{ip}", hit.ip.as_str()),
        ("{user}", user),
        ("{s}", &seconds),
        ("{ms}", &hit.ms.to_string()),
    ];
    own.iter()
        .fold(lines, |lines, (word, value)| lines.replace(word, value))
        + "\n"
}

/// The log of a server, written when requests end, and the requests in this order.
fn log(server: &Server, mut hits: Vec<Hit>) -> (String, Vec<Hit>) {
    hits.sort_by_key(|hit| hit.begin * 1_000 + hit.ms);
    let (header, form) = (server.3, server.4);
    let lines: String = hits.iter().map(|hit| lines(form, hit)).collect();
    let header = if header.is_empty() {
        String::new()
    } else {
        format!("{header}\n")
    };
    (header + &lines, hits)
}

fn said(policies: &str, log: &str, args: &[&str]) -> (Said, Tool) {
    let tool = Tool::new();
    tool.write("p.toml", policies);
    tool.write("access.log", log);
    let mut command = tool.command();
    command
        .args(["simulate", "p.toml", "access.log", "--factors", "1"])
        .args(args);
    (crate::tool::said(&mut command, b""), tool)
}

fn words(args: &str) -> Vec<&str> {
    args.split_whitespace().collect()
}

fn outcome(said: &Said) -> Value {
    assert_eq!(said.code, 0, "{said:?}");
    serde_json::from_str(&said.stdout).unwrap()
}

/// Which requests pass under `5/10s@exact` by network and `4/10s@exact` by user, all or nothing.
fn admitted(hits: &[Hit], is_end: bool, has_users: bool) -> Vec<bool> {
    let mut used: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut order: Vec<usize> = (0..hits.len()).collect();
    let time = |hit: &Hit| hit.begin + if is_end { hit.ms / 1_000 } else { 0 };
    order.sort_by_key(|at| time(&hits[*at]));
    let mut passed = vec![false; hits.len()];
    for at in order {
        let (hit, now) = (&hits[at], time(&hits[at]) * 1_000);
        let network = match hit.ip.split_once("::") {
            Some((network, _)) => network.to_owned(),
            None => hit.ip.clone(),
        };
        let user = hit.user.clone().filter(|_| has_users);
        let keys: Vec<(String, usize)> = [(network, 5)]
            .into_iter()
            .chain(user.map(|it| (it, 4)))
            .collect();
        let is_free = |(key, limit): &(String, usize)| {
            let times = used.get(key).map_or(&[][..], |it| it);
            times.iter().filter(|time| *time + 1 + 10_000 > now).count() < *limit
        };
        passed[at] = keys.iter().all(is_free);
        if passed[at] {
            keys.into_iter()
                .for_each(|(key, _)| used.entry(key).or_default().push(now));
        }
    }
    passed
}

#[test]
fn each_format_decides_as_a_brute_force_over_the_same_requests() {
    for server in SERVERS {
        let (name, args, is_end, _, form) = *server;
        let (log, hits) = log(server, hits(200));
        let policies = "ip = '5/10s@exact'\nuser = '4/10s@exact'";
        let named = format!("{args} --format {name}");
        for args in [args, &named] {
            let args = format!("{args} --no-spread --reorder 30s --decisions d.jsonl --json");
            let (said, tool) = said(policies, &log, &words(&args.replace("--key ", "--key ip=")));
            let outcome = outcome(&said);
            let words = outcome["formats"][0].as_str().unwrap();
            assert!(
                words.starts_with(&format!("{name}, by ")),
                "{name}: {words}"
            );
            let when = match name {
                "json" => "as the log says",
                _ if is_end => "when a request ended",
                _ => "when a request came",
            };
            assert!(words.contains(when), "{words}");
            let expected = admitted(&hits, is_end, form.contains("{user}"));
            let decisions = std::fs::read_to_string(tool.folder().join("d.jsonl")).unwrap();
            let decisions = decisions
                .lines()
                .map(|it| serde_json::from_str::<Value>(it).unwrap());
            let header = server.3.lines().count() as u64;
            let pairs = form.lines().count() as u64;
            let mut passed = vec![None; hits.len()];
            for decision in decisions {
                let line = (decision["line"].as_u64().unwrap() - 1 - header) / pairs;
                passed[usize::try_from(line).unwrap()] = decision["allowed"].as_bool();
            }
            let expected: Vec<Option<bool>> = expected.into_iter().map(Some).collect();
            assert_eq!(passed, expected, "{name}");
            let refused = expected.iter().filter(|it| **it == Some(false)).count();
            assert!(refused > 20, "{name}: {refused}");
        }
    }
}

/// The fields of a line of text: quotes and brackets stay whole.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut closing) = (vec![String::new()], None);
    for char in line.chars() {
        match (char, closing) {
            (' ' | '\t', None) => {
                fields.push(String::new());
                continue;
            }
            ('[', None) => closing = Some(']'),
            ('(', None) => closing = Some(')'),
            ('"', None) => closing = Some('"'),
            (char, Some(end)) if char == end => closing = None,
            _ => {}
        }
        fields.last_mut().unwrap().push(char);
    }
    fields
}

/// The refused identities under a limit of 0, of a policy with this name; or the notes and errors.
fn identities(log: &str, policy: &str, args: &str) -> Result<Vec<String>, String> {
    let bound = format!("{policy}=100%");
    let mut args = words(args);
    args.extend(["--json", "--number", "100", "--max-refused", &bound]);
    let (said, _) = said(&format!("{policy} = '0/1m'"), log, &args);
    if said.code == 2 {
        return Err(said.stderr);
    }
    let outcome = outcome(&said);
    if let Some(note) = outcome["notes"][0].as_str() {
        return Err(note.to_owned());
    }
    let hit = outcome["hardest_hit"].as_array().unwrap().iter();
    let mut identities: Vec<String> = hit
        .map(|it| it["identity"].as_str().unwrap().to_owned())
        .collect();
    identities.sort();
    Ok(identities)
}

/// Changes lines by adding, removing or exchanging a field at a place.
fn changed(line: &str, kind: usize, at: usize, delimiter: &str) -> String {
    let mut fields = fields(line);
    match kind {
        0 => fields.insert(
            at,
            ["10.9.9.9", "www.example.org", "1234", "\"x\""][at % 4].to_owned(),
        ),
        1 => drop(fields.remove(at)),
        _ => fields.swap(at, at + 1),
    }
    fields.join(delimiter)
}

#[test]
fn a_field_added_removed_or_exchanged_never_gives_a_verdict_about_another_field() {
    let text = SERVERS
        .iter()
        .filter(|it| !(it.4.starts_with('{') && it.4.contains("\":")) && it.0 != "tower-http");
    let mut changes = 0;
    for server in text {
        let (name, args, _, header, form) = *server;
        let form = form
            .strip_prefix("Feb  6 12:14:14 localhost haproxy[14389]: ")
            .unwrap_or(form);
        let header = if header.is_empty() {
            String::new()
        } else {
            format!("{header}\n")
        };
        let delimiter = if name == "cloudfront" { "\t" } else { " " };
        let lines: Vec<String> = hits(10)
            .iter()
            .map(|hit| lines(form, hit).trim_end().to_owned())
            .collect();
        let policy = if form.contains("{user}") {
            "user"
        } else {
            "ip"
        };
        let with_users: Vec<String> = lines
            .iter()
            .map(|it| it.replace(" - [", " bob ["))
            .collect();
        let original = header.clone() + &lines.join("\n");
        for policy in ["ip", policy] {
            let lines = if policy == "user" {
                &with_users
            } else {
                &lines
            };
            let expected = identities(&original, policy, args);
            let count = fields(&lines[0]).len();
            for (kind, at) in
                (0..3).flat_map(|kind| (0..count.min(14) - 1).map(move |at| (kind, at)))
            {
                let changed: Vec<String> = lines
                    .iter()
                    .map(|line| changed(line, kind, at, delimiter))
                    .collect();
                changes += 1;
                if let Ok(found) = identities(&(header.clone() + &changed.join("\n")), policy, args)
                {
                    let all = expected.clone().unwrap_or_default();
                    let is_known = |it: &String| all.contains(it) || *it == "user=bob";
                    assert!(
                        found.iter().all(is_known),
                        "{name} {kind} {at}: {found:?}\n{}",
                        changed[0]
                    );
                }
            }
        }
    }
    assert!(changes > 500, "{changes}");
}

/// Lines as the documentation of servers has them, with the client.
const DOCUMENTED: &[(&str, &str, &str)] = &[
    (
        "common",
        "127.0.0.1",
        r#"127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326"#,
    ),
    (
        "combined",
        "127.0.0.1",
        r#"127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326 "http://www.example.com/start.html" "Mozilla/4.08 [en] (Win98; I ;Nav)""#,
    ),
    (
        "combined",
        "172.31.24.3",
        r#"172.31.24.3 - - [23/Jul/2015:00:21:20 +0000] "GET / HTTP/1.1" 200 11 "-" "curl/7.22.0 (x86_64-pc-linux-gnu) libcurl/7.22.0""#,
    ),
    (
        "combined",
        "203.0.113.9",
        r#"203.0.113.9 - - [23/Jul/2015:00:21:20 +0000] "\x16\x03\x01\x00" 400 0 "-" "-""#,
    ),
    (
        "alb",
        "192.168.131.39",
        r#"http 2018-07-02T22:23:00.186641Z app/my-loadbalancer/50dc6c495c0c9188 192.168.131.39:2817 10.0.0.1:80 0.000 0.001 0.000 200 200 34 366 "GET http://www.example.com:80/ HTTP/1.1" "curl/7.46.0" - - arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067 "Root=1-58337262-36d228ad5d99923122bbe354" "-" "-" 0 2018-07-02T22:22:48.364000Z "forward" "-" "-" "10.0.0.1:80" "200" "-" "-" TID_1234abcd5678ef90 "-" "-" "-""#,
    ),
    (
        "alb",
        "10.0.0.140",
        r#"ws 2018-07-02T22:23:00.186641Z app/my-loadbalancer/50dc6c495c0c9188 10.0.0.140:40914 10.0.1.192:8010 0.001 0.003 0.000 101 101 218 587 "GET http://10.0.0.30:80/ HTTP/1.1" "-" - - arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067 "Root=1-58337364-23a8c76965a2ef7629b185e3" "-" "-" 1 2018-07-02T22:22:48.364000Z "forward" "-" "-" "10.0.1.192:8010" "101" "-" "-""#,
    ),
    (
        "alb",
        "192.168.131.39",
        r#"http 2018-07-02T22:23:00.186641Z app/my-loadbalancer/50dc6c495c0c9188 192.168.131.39:2817 - 0.000 0.001 0.000 502 - 34 366 "GET http://www.example.com:80/ HTTP/1.1" "curl/7.46.0" - - arn:aws:x "Root=1-58337364" "-" "-" 0 2018-07-02T22:22:48.364000Z "forward" "-" "LambdaInvalidResponse" "-" "-" "-" "-" TID_1234abcd5678ef90"#,
    ),
    (
        "cloudfront",
        "192.0.2.100",
        "2019-12-04\t21:02:31\tLAX1\t392\t192.0.2.100\tGET\td111111abcdef8.cloudfront.net\t/index.html\t200\t-\tMozilla/5.0%20(Windows%20NT%2010.0;%20Win64;%20x64)\t-\t-\tHit\tSOX4xwn4XV6Q4rgb7XiVGOHms_BGlTAC4KyHmureZmBNrjGdRLiNIQ==\td111111abcdef8.cloudfront.net\thttps\t23\t0.001\t-\tTLSv1.2\tECDHE-RSA-AES128-GCM-SHA256\tHit\tHTTP/2.0\t-\t-\t11040\t0.001\tHit\ttext/html\t78\t-\t-",
    ),
    (
        "haproxy",
        "10.0.1.2",
        r#"Feb  6 12:14:14 localhost haproxy[14389]: 10.0.1.2:33317 [06/Feb/2009:12:14:14.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "GET /index.html HTTP/1.1""#,
    ),
    (
        "haproxy",
        "127.0.0.1",
        r#"haproxy[18113]: 127.0.0.1:34548 [15/Oct/2003:15:19:06.103] px-http px-http/<NOSRV> -1/-1/-1/-1/+50001 408 +2750 - - cR-- 2/2/2/0/+2 0/0 """#,
    ),
    (
        "envoy",
        "10.0.35.28",
        r#"[2016-04-15T20:17:00.310Z] "POST /api/v1/locations HTTP/2" 204 - 154 0 226 100 "10.0.35.28" "nsq2http" "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations" "tcp://10.0.2.1:80""#,
    ),
    (
        "envoy",
        "127.0.0.1",
        r#"[2020-11-25T21:26:18.409Z] "GET /status/418 HTTP/1.1" 418 - via_upstream - "-" 0 135 3 1 "-" "curl/7.73.0-DEV" "84961386-6d84-929d-98bd-c5aee93b5c88" "httpbin:8000" "127.0.0.1:80" inbound|8000|| 127.0.0.1:41854 10.44.1.27:80 127.0.0.1:37652 outbound_.8000_._.httpbin.foo.svc.cluster.local default"#,
    ),
    (
        "envoy",
        "10.0.1.38",
        r#"{"downstream_remote_address":"10.0.1.38:35842","path":"/status/418","duration":"2","response_code":"418","start_time":"2020-12-08T03:24:22.162Z","method":"GET","x_forwarded_for":"-"}"#,
    ),
    (
        "traefik",
        "203.0.113.7",
        r#"203.0.113.7 - - [29/Jun/2026:10:00:01 +0000] "GET / HTTP/1.1" 200 12 "-" "curl/8" 7 "web@docker" "http://10.0.0.9:80" 3ms"#,
    ),
    (
        "caddy",
        "127.0.0.1",
        r#"{"level":"info","ts":1646861401.5241024,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"127.0.0.1","remote_port":"41342","client_ip":"127.0.0.1","proto":"HTTP/2.0","method":"GET","host":"localhost","uri":"/","headers":{"User-Agent":["curl/7.82.0"]}},"bytes_read":0,"user_id":"","duration":0.000929675,"size":10900,"status":200}"#,
    ),
    (
        "fastify",
        "127.0.0.1",
        r#"{"level":30,"time":1650464206557,"pid":83317,"hostname":"a","reqId":"req-1","req":{"method":"GET","url":"/","hostname":"localhost:8080","remoteAddress":"127.0.0.1","remotePort":44616},"msg":"incoming request"}"#,
    ),
    (
        "ingress-nginx",
        "10.44.0.1",
        r#"10.44.0.1 - [203.0.113.7] - - [29/Jun/2026:10:00:01 +0000] "GET / HTTP/1.1" 200 612 "-" "curl/8" 78 0.001 [default-web-80] 10.44.0.9:80 612 0.001 200"#,
    ),
];

#[test]
fn lines_of_the_documentation_of_servers_are_read_by_their_format() {
    for (name, client, line) in DOCUMENTED {
        let (said, _) = said("ip = '0/1m'", line, &["--json"]);
        let outcome = outcome(&said);
        assert_eq!(
            outcome["hardest_hit"][0]["identity"],
            format!("ip={client}"),
            "{line}"
        );
        let words = outcome["formats"][0].as_str().unwrap();
        assert!(
            words.starts_with(&format!("{name}, by ")),
            "{words}: {line}"
        );
    }
    let text = |line: &str| format!("203.0.113.7 | 29/Jun/2026:10:00:01 +0000 | {line}");
    let (said, _) = said(
        "ip = '0/1m'",
        &text("200"),
        &["--format", "$remote_addr | $time_local | $status", "--json"],
    );
    assert_eq!(
        outcome(&said)["hardest_hit"][0]["identity"],
        "ip=203.0.113.7"
    );
}
