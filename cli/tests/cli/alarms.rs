//! The drill: each alarm of `docs/guide/operating.md`, by a server brought into that state. The commands are those that the
//! page prints, from the first to the last; then the mend that it names, until the server is well again.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use sluicegate::{
    Charge, Decision, FailurePolicy, Header, Key, Limiter, PeerIp, Policy, RedisStore,
    block::Until, policies::Policies,
};

use crate::{
    guide::fenced,
    tool::{Said, Tool, said},
};
use support::{redis::Server, served::limited};

const PAGE: &str = include_str!("../../../docs/guide/operating.md");

/// A server, a process of the service, and the tool with the files of the page.
struct Drill {
    server: Server,
    service: Limiter,
    policies: Policies,
    tool: Tool,
}

impl Drill {
    async fn start() -> Self {
        let (server, tool) = (Server::start(), Tool::new());
        let store = RedisStore::connect(server.url()).await.unwrap();
        let service = Limiter::new(store).timeout(Duration::from_secs(10));
        let service = service.on_failure(FailurePolicy::Closed);
        let files: Vec<String> = fenced(PAGE).iter().map(|it| it.1.join("\n")).collect();
        let settings = files[0].replace("redis://10.0.0.5/", &server.url());
        assert_ne!(settings, files[0], "the page has its settings");
        tool.write("sluicegate.toml", settings + "\ntimeout = '1s'");
        tool.write("policies.toml", &files[1]);
        let policies = toml::from_str(&files[1]).unwrap();
        Self {
            server,
            service,
            policies,
            tool,
        }
    }

    async fn check(&self, policy: &str, key: Key, cost: u64) -> Decision {
        let policy: &Policy = self.policies.get(policy).unwrap();
        let charge = Charge::new(policy, key, cost);
        let decision = self.service.check([charge]).await.unwrap();
        self.service.strikes_counted().await;
        decision
    }

    /// Runs the commands of an alarm: the first one of all, and those of its section. There are as many as `expected`: an
    /// exit code and a part of the output for each.
    fn runs(&self, alarm: &str, expected: &[(i32, &str)]) {
        let commands = commands(alarm);
        assert_eq!(commands.len(), expected.len(), "{alarm}: {commands:?}");
        for (command, (code, part)) in commands.iter().zip(expected) {
            let said = self.run(command);
            assert_eq!(said.code, *code, "{alarm}: {command}: {said:?}");
            let output = said.stdout + &said.stderr;
            let words: Vec<&str> = output
                .split([' ', '\n'])
                .filter(|it| !it.is_empty())
                .collect();
            says!(words.join(" ") => part);
        }
    }

    fn run(&self, command: &str) -> Said {
        let mut words = shell(command);
        let stdin = words
            .iter()
            .position(|it| it == "<")
            .map(|at| words.split_off(at));
        let stdin = stdin.map(|it| std::fs::read(self.tool.folder().join(&it[1])).unwrap());
        said(self.tool.command().args(words), &stdin.unwrap_or_default())
    }

    /// After the mend, the first command says that all is well.
    fn is_well(&self) {
        let said = self.run(&first());
        assert_eq!(said.code, 0, "{said:?}");
        says_not!(said.stdout => "wrong");
    }
}

/// The words of a command, as a shell reads them.
fn shell(command: &str) -> Vec<String> {
    command
        .replace('\'', "")
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

/// The part of the page under a heading.
fn section(heading: &str) -> &str {
    let (_, rest) = PAGE.split_once(&format!("\n{heading}\n")).expect(heading);
    rest.split("\n#").next().unwrap()
}

/// The commands within a text.
fn commands_in(text: &str) -> Vec<String> {
    let text = text.replace('\n', " ");
    let code = text.split('`').skip(1).step_by(2);
    code.filter_map(|it| Some(it.strip_prefix("sluicegate ")?.to_owned()))
        .collect()
}

/// The command that each alarm begins with.
fn first() -> String {
    let commands = commands_in(section("## The alerts"));
    assert_eq!(commands.len(), 1);
    commands[0].clone()
}

fn commands(alarm: &str) -> Vec<String> {
    let own = commands_in(section(&format!("### {alarm}")));
    std::iter::once(first()).chain(own).collect()
}

#[test]
fn every_alarm_of_the_page_is_drilled() {
    let drills = include_str!("alarms.rs");
    let mut alarms = 0;
    for alarm in PAGE.lines().filter_map(|line| line.strip_prefix("### ")) {
        assert!(drills.contains(&format!("\"{alarm}\"")), "{alarm}");
        alarms += 1;
    }
    assert!(alarms >= 11);
}

#[tokio::test(flavor = "multi_thread")]
async fn breaker_open_the_server_is_away() {
    let mut drill = Drill::start().await;
    drill.server.kill();
    drill.runs(
        "RateLimitBreakerOpen",
        &[(3, "does not accept connections: connection refused")],
    );
    drill.server.restart();
    drill.is_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_pass_unlimited_the_server_is_full() {
    let drill = Drill::start().await;
    let full = || Key::new("account", "acme");
    drill.check("account", full(), 5_000).await;
    let () = drill.server.run("CONFIG SET maxmemory 1");
    drill.runs(
        "RateLimitRequestsPassUnlimited",
        &[(
            1,
            "it takes no writes: the Redis server is out of memory: OOM",
        )],
    );
    // An identity at a limit stays denied, a block is an error, and verbs that delete work.
    assert!(!drill.check("account", full(), 1).await.is_allowed());
    drill.tool.told(
        "
        block account=acme --for 1h | 3 | out of memory: OOM
        unblock account=acme | 1 | was not blocked
        reset account=acme --policy account --yes | 0 | Deleted what account=acme had used under account.
        ",
    );
    let () = drill.server.run("CONFIG SET maxmemory 0");
    drill.is_well();
    drill
        .tool
        .told("block account=acme --for 1h --force | 0 | is blocked by an operator");
    assert!(matches!(
        drill.check("account", full(), 1).await,
        Decision::Blocked(_)
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_rejected_the_server_hangs() {
    let drill = Drill::start().await;
    drill.server.stop();
    drill.runs(
        "RateLimitRequestsRejectedForFailure",
        &[(3, "did not answer in time: see --timeout")],
    );
    drill.server.cont();
    drill.is_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn decided_locally_the_server_has_too_few_replicas() {
    let drill = Drill::start().await;
    let () = drill.server.run("CONFIG SET min-replicas-to-write 1");
    drill.runs(
        "RateLimitDecidedLocally",
        &[(1, "too few replicas to accept writes: NOREPLICAS")],
    );
    let () = drill.server.run("CONFIG SET min-replicas-to-write 0");
    drill.is_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn settlements_fail_the_server_became_a_replica() {
    let drill = Drill::start().await;
    let primary = Server::start();
    let port = primary.address().port();
    let () = drill.server.run(&format!("REPLICAOF 127.0.0.1 {port}"));
    drill.runs(
        "RateLimitSettlementsFail",
        &[(1, "this server is a replica of 127.0.0.1")],
    );
    let () = drill.server.run("REPLICAOF NO ONE");
    drill.is_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn store_misused_a_right_is_missing_and_another_program_writes_under_the_prefix() {
    let drill = Drill::start().await;
    drill.check("user", Key::new("user", "alice"), 1).await;
    let () = drill.server.run("SET sluicegate:{user=bob}:user~1 garbage");
    let rights = "~sluicegate:* +evalsha +eval +time +get +exists +set +setrange +pexpireat +del +scan +dbsize +hgetall";
    let rights: Vec<&str> = rights.split(' ').collect();
    let settings = |url: &str| {
        let text = format!("redis = '{url}'\npolicies = 'policies.toml'");
        drill.tool.write("sluicegate.toml", text);
    };
    settings(&limited(&drill.server, &rights));
    drill.runs(
        "RateLimitStoreMisused",
        &[
            (1, "wrong: the user lacks rights for checks: +getrange"),
            (0, "1 values could not be read: `inspect` says why"),
        ],
    );
    drill.tool.told("reset user=bob --policy user --yes | 0");
    settings(&limited(
        &drill.server,
        &[&rights[..], &["+getrange"]].concat(),
    ));
    drill.is_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn misconfigured_the_server_is_well_so_the_log_has_the_cause() {
    let drill = Drill::start().await;
    drill.runs("RateLimitMisconfigured", &[(0, "well: the script decides")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn store_slow_another_program_keeps_the_server_busy() {
    let drill = Drill::start().await;
    let (is_over, url) = (AtomicBool::new(false), drill.server.socket_url());
    let keeps_busy = || {
        let client = redis::Client::open(&*url).unwrap();
        let mut connection = client.get_connection().unwrap();
        let script = "local s = redis.call('TIME')[2] + 0 local n = s while (n - s) % 1000000 < 60000 do \
                      n = redis.call('TIME')[2] + 0 end";
        while !is_over.load(Relaxed) {
            let mut eval = redis::cmd("EVAL");
            let _ = eval.arg(script).arg(0).exec(&mut connection);
        }
    };
    thread::scope(|scope| {
        // Two, so that the server always has the next script when one ends.
        (0..2).for_each(|_| drop(scope.spawn(keeps_busy)));
        let says = [(1, "ms: see `SLOWLOG` and `redis-cli --latency`")];
        let run = catch_unwind(AssertUnwindSafe(|| drill.runs("RateLimitStoreSlow", &says)));
        is_over.store(true, Relaxed);
        run.unwrap();
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn denies_many_one_account_is_full_and_a_network_rotates_its_addresses() {
    let drill = Drill::start().await;
    let acme = || Key::new("account", "acme");
    drill.check("account", acme(), 5_000).await;
    for host in 0..40_u16 {
        let address = format!("2001:db8:1:{host:x}::7").parse().unwrap();
        let ip = PeerIp.key(address);
        drill.check("ip", ip.clone(), 300).await;
        assert!(!drill.check("ip", ip, 1).await.is_allowed());
    }
    drill
        .check("ip", PeerIp.key("2001:db8:2::7".parse().unwrap()), 1)
        .await;
    drill.service.denials().await.unwrap();
    drill.runs(
        "RateLimitDeniesMany",
        &[
            (0, "well: denials were reported within the minute"),
            (0, "account=acme account 5000/1h 5\u{202f}000 100%"),
            (0, "ip=2001:db8:1::/48 ip 40 40 40"),
        ],
    );
    // No block holds for all of it, and no hint leads to one.
    let stored = "stored as networks of `/64` | deny a larger network in the service (`RateLimitLayer::deny_keys`)";
    drill.tool.told(&format!(
        "
        block ip=2001:db8:1::/48 --for 1h | 2 | nothing was blocked | {stored}
        explain ip=2001:db8:1::/48 | 1 | It is not known whether it passes | see --ipv6-prefix
        top --by-prefix 48 | 0 | ip=2001:db8:1::/48 | 12\u{202f}000
        "
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_many_an_office_is_unblocked() {
    let drill = Drill::start().await;
    let office = || Key::new("ip", "203.0.113.7");
    drill.check("ip", office(), 1).await;
    drill
        .service
        .block(&office(), Until::Forever)
        .await
        .unwrap();
    drill.runs(
        "RateLimitBlocksMany",
        &[(0, "well:"), (0, "ip=203.0.113.7 operator")],
    );
    drill
        .tool
        .told("unblock ip=203.0.113.7 | 0 | is no longer blocked");
    assert!(drill.check("ip", office(), 1).await.is_allowed());
}

#[tokio::test(flavor = "multi_thread")]
async fn bans_many_a_customer_is_banned_and_complains() {
    let drill = Drill::start().await;
    let ip = || Key::new("ip", "203.0.113.7");
    drill.check("user", Key::new("user", "alice"), 1).await;
    for _ in 0..25 {
        drill.check("login", ip(), 1).await;
    }
    drill.runs(
        "RateLimitBansMany",
        &[(0, "well:"), (0, "ip=203.0.113.7 ban")],
    );

    // The customer names a user; the address of the same request is banned.
    let complaint = commands_in(section("## A customer who complains"));
    let [explain, hash] = &complaint[..] else {
        panic!("{complaint:?}");
    };
    let said = drill.run(explain);
    assert_eq!(said.code, 1, "{said:?}");
    says!(said.stdout => "It passes.", "banned until", "does not pass: see ip=203.0.113.7.");
    let said = drill.run(&format!("{explain} --json"));
    let said: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    has!(said, { "passes": false });
    has!(said["identities"][0], { "identity": "user=alice", "passes": true });
    drill
        .tool
        .told("unblock ip=203.0.113.7 | 0 | is no longer blocked");
    assert!(matches!(
        drill.check("ip", ip(), 1).await,
        Decision::Allowed(_)
    ));
    let said = drill.run("explain user=alice ip=203.0.113.7 --policy ip");
    assert_eq!(said.code, 0, "{said:?}");
    says!(said.stdout => "A request of all of these passes.");

    // An identity that is stored as a hash, and its name in a list. The page shows the digits of this one.
    let alice = Header::new("x-user").key("alice");
    drill.check("user", alice.clone(), 10_000).await;
    assert!(!drill.check("user", alice, 1).await.is_allowed());
    drill.tool.write("users.txt", "bob\nalice\n");
    drill.tool.told("top -n 1 | 0 | header=#b414a690");
    let said = drill.run(hash);
    assert_eq!(said.code, 0, "{said:?}");
    says!(said.stdout => "header=#b414a690", "  alice\n");
    // With another secret, or of a kind that no policy has, nothing is known.
    let unknown = "It is not known whether it passes";
    drill.tool.told(&format!(
        "
        explain header:x-user=alice | 1 | It is denied until
        explain header:x-user=alice --secret other | 1 | {unknown}: nothing is stored under this name.
        explain usr=alice | 1 | the kinds are `header`, `ip`, `user` | {unknown}
        explain user=carol | 0 | It passes.
        "
    ));
}
