//! Instructions of the Redis server itself for one check, from the command's first byte to the last of the reply.
//!
//! The server runs under callgrind, and the calls send their time, so that each run sends the same bytes.

use std::{
    collections::BTreeMap,
    env,
    fmt::Write as _,
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, ExitCode},
};

use serde::{Deserialize, Serialize};
use sluicegate::{
    Charge, Key, Policy, RedisStore, Rule, Store,
    calendar::Period,
    manual_clock::ManualClock,
    store::{Check, Operation, Reply, Settlement, Slots},
};
use support::redis::{Server, program};

/// Names the file that callgrind writes, for the process that measures.
const OUTPUT: &str = "SLUICEGATE_BUDGET_OUTPUT";
const START_MS: u64 = 1_700_000_000_500;
const PLENTY: u64 = 1_000_000_000;
/// Users in turn; divisible by most sizes of calls.
const USERS: u64 = 84;
/// The checks of a call, where the row does not say how many.
const CALL: usize = 7;
/// Until the windows of a second are full.
const WARM_UP_ROUNDS: usize = 5;
const ROUNDS: u64 = 4;
/// In this time, steps of the rules end, as they have where a client is denied for long.
const LONG_MS: u64 = 7_000;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/budget/redis.toml");
const HEAD: &str = "\
# Instructions of the Redis server for one check of three rules, as `cargo bench --bench budget -- redis` counts them, with
# 7 checks a call unless the row says otherwise; `-- redis renew` writes this file. They hold for this version of Redis.

";
/// In percent.
const TOLERANCE: u64 = 3;

#[derive(Serialize, Deserialize)]
struct Budgets {
    redis: String,
    rows: BTreeMap<String, u64>,
}

/// Measures, and writes the file or compares with it.
pub(crate) fn check(renews: bool) -> ExitCode {
    let measured = measure();
    for (name, count) in &measured.rows {
        println!("{name:<40}{count:>10}");
    }
    if renews {
        let budgets = toml::to_string(&measured).unwrap();
        fs::write(FILE, format!("{HEAD}{budgets}")).unwrap();
        return ExitCode::SUCCESS;
    }
    let budgets: Budgets = toml::from_str(&fs::read_to_string(FILE).unwrap()).unwrap();
    if budgets.redis != measured.redis {
        let Budgets { redis, .. } = measured;
        println!(
            "not checked: the budgets hold for Redis {}, and this is {redis}",
            budgets.redis
        );
        return ExitCode::SUCCESS;
    }
    let mut code = ExitCode::SUCCESS;
    for (name, count) in &measured.rows {
        let budget = budgets.rows.get(name).copied().unwrap_or_default();
        if count.abs_diff(budget) * 100 > budget * TOLERANCE {
            println!("{name}: {count} instructions, and its budget is {budget} ± {TOLERANCE} %");
            code = ExitCode::FAILURE;
        }
    }
    code
}

/// Measures in a separate process, so that all Redis servers that it starts run under callgrind.
fn measure() -> Budgets {
    let folder = tempfile::tempdir().unwrap();
    let (output, wrapper) = (
        folder.path().join("out"),
        folder.path().join("redis-server"),
    );
    let script = format!(
        "#!/bin/sh\nexec valgrind --tool=callgrind --quiet --callgrind-out-file={} {} \"$@\"\n",
        output.display(),
        program()
    );
    fs::write(&wrapper, script).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .arg("in-redis")
        .env(OUTPUT, &output)
        .env("SLUICEGATE_REDIS_SERVER", &wrapper);
    let result = command.output().unwrap();
    let errors = String::from_utf8_lossy(&result.stderr);
    assert!(result.status.success(), "{errors}");
    let rows = String::from_utf8(result.stdout).unwrap();
    let (version, rows) = rows.split_once('\n').unwrap();
    let rows = rows.lines().map(|row| {
        let (name, count) = row.split_once('\t').unwrap();
        (name.to_owned(), count.parse().unwrap())
    });
    Budgets {
        redis: version.to_owned(),
        rows: rows.collect(),
    }
}

/// Prints the version of the server, and then a line for each row.
pub(crate) fn run() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let server = Server::with(&["--hz", "1"]); // since what it does between calls counts too
    let info: String = server.run("INFO server");
    let version = info
        .lines()
        .find_map(|it| it.strip_prefix("redis_version:"))
        .unwrap();
    let mut rows = format!("{version}\n");
    let mut add = |name: &str, work: Work| {
        let count = runtime.block_on(work.count(&server));
        writeln!(rows, "{name}\t{count}").unwrap();
    };
    let three = [
        Rule::per_second(PLENTY),
        Rule::per_minute(PLENTY),
        Rule::per_hour(PLENTY),
    ];
    for checks in [1, 4, CALL, 16] {
        let work = Work {
            checks,
            ..Work::new(&three)
        };
        add(&format!("none due, {checks} a call"), work.clone());
        add(
            &format!("2/s, {checks} a call"),
            Work {
                gap_ms: 500,
                ..work
            },
        );
    }
    let work = Work::new(&three);
    add(
        "none due, blocks",
        Work {
            blocks: true,
            ..work.clone()
        },
    );
    add(
        "2/s, blocks",
        Work {
            blocks: true,
            gap_ms: 500,
            ..work.clone()
        },
    );
    add(
        "new",
        Work {
            is_new: true,
            ..work.clone()
        },
    );
    add(
        "new, 1 a call",
        Work {
            is_new: true,
            checks: 1,
            ..work.clone()
        },
    );
    add(
        "warm and new",
        Work {
            beside_new: true,
            ..work
        },
    );
    let full = [Rule::per_second(2), Rule::per_minute(2), Rule::per_hour(2)];
    add(
        "denied by all, due",
        Work {
            gap_ms: 100,
            ..Work::new(&full)
        },
    );
    let last = [three[0], three[1], full[2]];
    let denied = [
        ("denied by all", &full[..], 0),
        ("denied by the last", &last, 0),
        ("denied by the last, late", &last, LONG_MS),
        ("one rule, denied", &full[1..2], 0),
        ("one rule, denied, late", &full[1..2], LONG_MS),
    ];
    for (name, rules, gap_ms) in denied {
        for (checks, size) in [(1, ", 1 a call"), (CALL, ""), (16, ", 16 a call")] {
            let work = Work {
                checks,
                gap_ms,
                ..Work::new(rules)
            };
            add(&format!("{name}{size}"), work);
        }
    }
    let exact = [Rule::per_second(PLENTY).exact()];
    for (name, rules, gap_ms) in [
        ("one rule, none due", &three[..1], 0),
        ("one rule, 2/s", &three[..1], 500),
        ("one rule, 60/s", &three[..1], 17),
        ("exact, 2/s", &exact, 500),
    ] {
        let work = Work {
            gap_ms,
            ..Work::new(rules)
        };
        add(name, work);
    }
    add(
        "denied by the last beside a new one",
        Work {
            beside_new: true,
            ..Work::new(&last)
        },
    );
    let bucket = [Rule::per_second(1).bucket(PLENTY)];
    add(
        "bucket, 2/s",
        Work {
            gap_ms: 500,
            ..Work::new(&bucket)
        },
    );
    let month = [Rule::calendar(PLENTY, Period::Month)
        .in_zone("UTC")
        .unwrap()];
    add("month", Work::new(&month));
    let slot = [Rule::concurrent(PLENTY)];
    add("slot", Work::new(&slot));
    add(
        "slot, returned",
        Work {
            after: After::Return,
            ..Work::new(&slot)
        },
    );
    add(
        "settled",
        Work {
            after: After::Settle,
            ..Work::new(&three)
        },
    );
    // Two identities, each under a policy of its own. The second denies by its last rule, or admits. An attacker may have
    // a new first one each time.
    let other = [three[0], three[1], Rule::per_hour(PLENTY - 1)];
    for (checks, size) in [(1, ", 1 a call"), (CALL, "")] {
        for (is_new, gap_ms, first) in [
            (false, 0, "two"),
            (false, 500, "two, 2/s"),
            (false, LONG_MS, "two, late"),
            (true, 0, "new and warm"),
        ] {
            for (rules, is_denied) in [
                (other, ""),
                (last, ", denied by the second"),
                (full, ", denied by all of the second"),
            ] {
                let work = Work {
                    checks,
                    gap_ms,
                    is_new,
                    second: Some(Policy::new("account", rules).unwrap()),
                    ..Work::new(&three)
                };
                add(&format!("{first}{is_denied}{size}"), work);
            }
        }
    }
    print!("{rows}");
}

#[derive(Clone, Copy, PartialEq)]
enum After {
    Nothing,
    /// Counts the returns, not the checks.
    Return,
    /// Counts the settlements, not the checks.
    Settle,
}

/// Calls of checks that charge each user in turn.
#[derive(Clone)]
struct Work {
    policy: Policy,
    checks: usize,
    /// The time between two checks of a user.
    gap_ms: u64,
    blocks: bool,
    is_new: bool,
    /// Each check has a second key, which is new.
    beside_new: bool,
    /// Each check has a second key, which is not new, under this policy.
    second: Option<Policy>,
    after: After,
}

impl Work {
    fn new(rules: &[Rule]) -> Self {
        Self {
            policy: Policy::new("api", rules.iter().copied()).unwrap(),
            checks: CALL,
            gap_ms: 0,
            blocks: false,
            is_new: false,
            beside_new: false,
            second: None,
            after: After::Nothing,
        }
    }

    /// The instructions of the server for one check.
    async fn count(&self, server: &Server) -> u64 {
        let clock = ManualClock::new(START_MS);
        let store = RedisStore::connect(server.url()).await.unwrap();
        let store = store.clock(clock.clone());
        server.run::<()>("FLUSHALL");
        let mut fresh = 10_000_000;
        let mut replies = Vec::new();
        for _ in 0..WARM_UP_ROUNDS {
            replies = self.round(&store, &clock, &mut fresh).await;
        }
        let counter = Counter::start(server);
        let rounds = match self.after {
            After::Nothing => {
                for _ in 0..ROUNDS {
                    self.round(&store, &clock, &mut fresh).await;
                }
                ROUNDS
            }
            After::Return | After::Settle => {
                for replies in replies.chunks(self.checks) {
                    let operations = replies.iter().map(|it| self.second(it));
                    call(&store, operations.collect()).await;
                }
                1
            }
        };
        counter.stop() / (rounds * replies.len() as u64)
    }

    /// Checks each user once.
    async fn round(&self, store: &RedisStore, clock: &ManualClock, fresh: &mut u64) -> Vec<Reply> {
        let users: Vec<u64> = (0..USERS / self.checks as u64 * self.checks as u64).collect();
        let (calls, start) = (users.len() / self.checks, clock.now_ms());
        let mut replies = Vec::new();
        for (n, users) in users.chunks(self.checks).enumerate() {
            clock.set(start + self.gap_ms * (n as u64 + 1) / calls as u64);
            let checks = users.iter().map(|&user| {
                *fresh += 1;
                Operation::Check(self.check(user, *fresh))
            });
            replies.extend(call(store, checks.collect()).await);
        }
        replies
    }

    fn check(&self, user: u64, fresh: u64) -> Check {
        let key = |user: u64| Key::new("user", format!("user-{user:08}"));
        let first = if self.is_new { fresh } else { user };
        let mut charges = vec![Charge::new(&self.policy, key(first), 1)];
        if let Some(policy) = &self.second {
            let account = Key::new("account", format!("account-{user:05}"));
            charges.push(Charge::new(policy, account, 1));
        }
        if self.beside_new {
            charges.push(Charge::new(&self.policy, key(fresh), 1));
        }
        Check::new(charges).unwrap().enforce_blocks(self.blocks)
    }

    /// Returns the operation that follows a check.
    fn second(&self, reply: &Reply) -> Operation {
        let Reply::Check(decision) = reply else {
            panic!("not of a check: {reply:?}");
        };
        if self.after == After::Return {
            let slots = Slots::of(decision.usage()).remove(0);
            return Operation::Return(slots);
        }
        Operation::Settle(Settlement::new(decision.usage(), |_| 3).unwrap())
    }
}

/// Sends one call.
async fn call(store: &RedisStore, operations: Vec<Operation>) -> Vec<Reply> {
    let replies = store.call(operations).await.unwrap();
    replies.into_iter().map(|it| it.unwrap()).collect()
}

/// Counts from now on.
struct Counter {
    server: String,
    output: String,
}

impl Counter {
    fn start(server: &Server) -> Self {
        let counter = Self {
            server: server.id().to_string(),
            output: env::var(OUTPUT).unwrap(),
        };
        counter.control("--zero");
        counter
    }

    fn control(&self, what: &str) {
        let output = Command::new("callgrind_control")
            .args([what, &self.server])
            .output();
        assert!(output.unwrap().status.success(), "callgrind_control {what}");
    }

    fn stop(self) -> u64 {
        self.control("--dump");
        let output = Path::new(&self.output);
        let name = output.file_name().unwrap().to_str().unwrap();
        let is_dump = |path: &Path| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with(&format!("{name}."))
        };
        let files = fs::read_dir(output.parent().unwrap()).unwrap();
        let mut dumps = files.map(|it| it.unwrap().path()).filter(|it| is_dump(it));
        let dump = dumps.next().expect("callgrind dumps its counts");
        let text = fs::read_to_string(&dump).unwrap();
        fs::remove_file(&dump).unwrap();
        let total = text
            .lines()
            .find_map(|it| it.strip_prefix("totals: ").or(it.strip_prefix("summary: ")));
        total.unwrap().trim().parse().unwrap()
    }
}
