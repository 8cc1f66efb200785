//! The table: each case runs for a while in turn, several times, and the figure of a case is the median. A bar compares
//! two cases. They take turns that are so short that a busy machine disturbs both alike, and the figure is the median
//! of the ratios. Ends with 1 when a bar is missed.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};

use redis::aio::MultiplexedConnection;
use sluicegate::{
    Charge, Key, Policy, RedisStore, Rule, Store,
    block::Until,
    calendar::Period,
    manual_clock::ManualClock,
    store::{Check, CheckBatch, Operation, Settlement},
};
use support::{redis::Server, store_ext::StoreExt};

use crate::{
    crowded::crowded,
    figures::{Error, Figures, bar, bar_and_aim, median},
    picture,
    renewing::renewing,
};

const IDENTITIES: u64 = 10_000;
/// Odd, so that the median is one of them.
const TURNS: usize = 5;
/// Each case runs until steps begin and end before it is measured.
const WARM_UP: Duration = Duration::from_millis(1_500);
const TURN: Duration = Duration::from_millis(500);
/// The rounds of a comparison. Also odd.
const SHORT_TURNS: usize = 61;
const SHORT_TURN: Duration = Duration::from_millis(50);
const CALLERS: u64 = 32;

const GET_SET: &str = "local v = redis.call('GET', KEYS[1]) redis.call('SET', KEYS[1], ARGV[1], 'PX', 60000) return 1";
const HASH_LAYOUT: &str = include_str!("hash_layout.lua");

const PLENTY: u64 = 1_000_000_000;

/// One way to use the server, repeated again and again.
struct Case {
    name: String,
    /// The number of decisions in a call.
    checks: usize,
    work: Work,
    turns: Vec<Figures>,
}

enum Work {
    Script {
        script: redis::Script,
        args: Vec<Vec<u8>>,
    },
    /// Checks that charge a key under each of the policies.
    Checks {
        store: RedisStore,
        policies: Vec<Policy>,
        blocks: Blocks,
    },
    /// This number of checks of one key.
    CheckBatch { store: RedisStore, policy: Policy },
}

#[derive(Clone, Copy, PartialEq)]
enum Blocks {
    /// The checks do not enforce blocks.
    Unread,
    /// The checks enforce blocks, and no identity is blocked.
    Enforced,
    /// All identities are blocked.
    All,
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run() -> Result<(), Error> {
    let server = Server::start();
    let store = RedisStore::connect(server.url()).await?;
    let mut cases = cases(&store)?;
    let chosen: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    for case in &cases {
        case.block_all().await?;
    }
    match chosen.first().map(String::as_str) {
        Some("settling") => return verdict(settling(&server, store).await?),
        Some("renewing") => return verdict(renewing(&server, store).await?),
        Some("silence") => return verdict(silence(&server, store).await?),
        Some("slots") => return verdict(crowded(&server).await?),
        Some(_) => return print_chosen(&server, &cases, &chosen).await,
        None => {}
    }
    // In turns, so that a slow moment of the machine meets all cases.
    for _ in 0..TURNS {
        for case in &mut cases {
            case.turn(&server).await?;
        }
    }
    print_cases(&cases);
    let how = format!("the median of {TURNS} turns, Redis {}", version(&server));
    picture::draw(|name| find(&cases, name).micros(), &how)?;
    let mut met = bars(&server, &cases).await?;
    met &= silence(&server, store.clone()).await?;
    met &= settling(&server, store.clone()).await?;
    met &= renewing(&server, store.clone()).await?;
    met &= memory().await?;
    met &= crowded(&server).await?;
    verdict(met)
}

fn verdict(met: bool) -> Result<(), Error> {
    if met {
        Ok(())
    } else {
        Err("a bar is missed".into())
    }
}

/// The default steps: 17 ms, 1 s and 1 min.
fn rules(limit: u64) -> [Rule; 3] {
    [
        Rule::per_second(limit),
        Rule::per_minute(limit),
        Rule::per_hour(limit),
    ]
}

/// Buckets that refill about as fast as they are charged.
fn buckets() -> [Rule; 3] {
    [
        Rule::per_second(10).bucket(PLENTY),
        Rule::per_minute(600).bucket(PLENTY),
        Rule::per_hour(36_000).bucket(PLENTY),
    ]
}

/// Steps of 1 s, 1 s and 1 min, since finer ones cost the hash layout twice as much.
fn coarse_rules(limit: u64) -> [Rule; 3] {
    let [second, minute, hour] = rules(limit);
    [second.precision(Duration::from_secs(1)), minute, hour]
}

/// The first two are the default, and the last is so small that it denies nearly everything.
fn denied_by_the_last() -> [Rule; 3] {
    let [second, minute, _] = rules(PLENTY);
    [second, minute, Rule::per_hour(1)]
}

fn case(name: impl Into<String>, checks: usize, work: Work) -> Case {
    Case {
        name: name.into(),
        checks,
        work,
        turns: Vec::new(),
    }
}

fn script(name: &str, text: &str, args: Vec<Vec<u8>>) -> Case {
    let script = redis::Script::new(text);
    case(name, 1, Work::Script { script, args })
}

fn hash_layout(name: &str, rules: &[Rule]) -> Case {
    let json = rules.iter().map(|rule| {
        let (window, precision) = (rule.window().as_millis(), rule.step().as_millis());
        format!("[{},{window},{precision}]", rule.limit())
    });
    let json = format!("[{}]", json.collect::<Vec<_>>().join(","));
    script(name, HASH_LAYOUT, vec![json.into(), b"1".to_vec()])
}

/// The prefix of a case's keys. All have the same length, since longer keys cost more.
fn prefix(name: &str) -> String {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// A call with `checks` checks of one key.
fn checks(store: &RedisStore, name: &str, checks: usize, rules: &[Rule]) -> Result<Case, Error> {
    let policies = vec![Policy::new("p", rules.iter().copied())?];
    let store = store.clone().prefix(prefix(name));
    let blocks = Blocks::Unread;
    Ok(case(
        name,
        checks,
        Work::Checks {
            store,
            policies,
            blocks,
        },
    ))
}

/// The same case with enforced blocks.
fn enforcing(mut case: Case, how: Blocks) -> Case {
    if let Work::Checks { store, blocks, .. } = &mut case.work {
        case.name += if how == Blocks::All {
            ", blocked"
        } else {
            ", enforcing blocks"
        };
        *store = store.clone().prefix(prefix(&case.name));
        *blocks = how;
    }
    case
}

/// A check of `count` keys, each under three rules, admitted or denied by the last key.
fn keys(store: &RedisStore, count: usize, denied: bool) -> Result<Case, Error> {
    let name = if denied {
        format!("{count} keys, denied by the last")
    } else {
        format!("{count} keys")
    };
    let mut policies = vec![Policy::new("p", rules(PLENTY))?; count];
    if denied {
        policies[count - 1] = Policy::new("p", denied_by_the_last())?;
    }
    // A prefix for each case, so that no case finds counts of another.
    let store = store.clone().prefix(prefix(&name));
    let blocks = Blocks::Unread;
    Ok(case(
        name,
        1,
        Work::Checks {
            store,
            policies,
            blocks,
        },
    ))
}

/// A check under three rules, which also takes a slot.
fn with_a_slot(store: &RedisStore) -> Result<Case, Error> {
    let mut case = checks(store, "3 rules and a slot", 1, &rules(PLENTY))?;
    if let Work::Checks { policies, .. } = &mut case.work {
        policies.push(Policy::new("s", [Rule::concurrent(PLENTY)])?);
    }
    Ok(case)
}

fn batch(store: &RedisStore) -> Result<Case, Error> {
    let policy = Policy::new("p", rules(PLENTY))?;
    let store = store.clone().prefix("batch");
    Ok(case(
        "a batch of 16",
        16,
        Work::CheckBatch { store, policy },
    ))
}

fn cases(store: &RedisStore) -> Result<Vec<Case>, Error> {
    let (plenty, coarse, last) = (rules(PLENTY), coarse_rules(PLENTY), denied_by_the_last());
    let first = [Rule::per_second(1), plenty[1], plenty[2]];
    let mut cases = vec![
        // The floor: any script, and one that reads and writes a value.
        script("an empty script", "return 0", vec![]),
        script("one GET, one SET PX", GET_SET, vec![vec![b'x'; 46]]),
        hash_layout("hash layout, 1 rule", &coarse[1..2]),
        hash_layout("hash layout, 3 rules", &coarse),
        hash_layout("hash layout, 3 rules, 17 ms", &plenty),
        checks(store, "1 rule", 1, &plenty[1..2])?,
        checks(store, "3 rules, coarse", 1, &coarse)?,
        checks(store, "3 rules", 1, &plenty)?,
        checks(store, "3 rules, denied", 1, &first)?,
        checks(store, "3 rules, denied by the last", 1, &last)?,
        checks(store, "1 rule, denied", 1, &[Rule::per_minute(1)])?,
        checks(store, "1 rule, 16 a call", 16, &plenty[1..2])?,
        checks(
            store,
            "1 rule, denied, 16 a call",
            16,
            &[Rule::per_minute(1)],
        )?,
        checks(store, "3 rules, denied by the last, 16 a call", 16, &last)?,
        checks(store, "3 rules, denied by the last, 512 a call", 512, &last)?,
        checks(store, "3 rules, coarse, 16 a call", 16, &coarse)?,
        checks(store, "3 rules, 16 a call", 16, &plenty)?,
        batch(store)?,
        checks(store, "1 rule of 1 s", 1, &plenty[..1])?,
        checks(store, "1 bucket of 1 s", 1, &buckets()[..1])?,
        checks(store, "1 bucket", 1, &buckets()[1..2])?,
        checks(store, "3 buckets", 1, &buckets())?,
        with_a_slot(store)?,
        checks(store, "1 fixed rule", 1, &[Rule::per_day(PLENTY).fixed()])?,
        checks(
            store,
            "1 calendar rule",
            1,
            &[Rule::calendar(PLENTY, Period::Day).in_zone("UTC")?],
        )?,
    ];
    for (name, count, rules) in [
        ("1 rule", 1, &plenty[1..2]),
        ("3 rules", 1, &plenty[..]),
        ("1 rule, 16 a call", 16, &plenty[1..2]),
        ("3 rules, 16 a call", 16, &plenty[..]),
    ] {
        for how in [Blocks::Enforced, Blocks::All] {
            cases.push(enforcing(checks(store, name, count, rules)?, how));
        }
    }
    for count in [2, 3, 8] {
        cases.push(keys(store, count, false)?);
        cases.push(keys(store, count, true)?);
    }
    Ok(cases)
}

impl Case {
    /// Blocks all identities of this case.
    async fn block_all(&self) -> Result<(), Error> {
        let Work::Checks {
            store,
            policies,
            blocks: Blocks::All,
        } = &self.work
        else {
            return Ok(());
        };
        for user in 0..IDENTITIES {
            for key in check_of(policies, user)?.keys() {
                store.block(key, Until::Forever.into()).await?;
            }
        }
        Ok(())
    }

    async fn turn(&mut self, server: &Server) -> Result<(), Error> {
        let connection = connect(server).await?;
        self.run(&connection, WARM_UP).await?;
        let figures = self.measure(server, &connection, TURN).await?;
        self.turns.push(figures);
        Ok(())
    }

    /// Calls without a break for a while, and reads the server's statistics.
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    async fn measure(
        &self,
        server: &Server,
        connection: &MultiplexedConnection,
        time: Duration,
    ) -> Result<Figures, Error> {
        server.run::<()>("CONFIG RESETSTAT");
        let before = cpu_micros(server);
        let decisions = self.run(connection, time).await?;
        let mut figures = Figures::read(server, decisions);
        figures.cpu = (cpu_micros(server) - before) / decisions as f64;
        Ok(figures)
    }

    /// The cost relative to another script, measured in turns.
    async fn ratio(
        &self,
        server: &Server,
        other: &Self,
        figure: fn(&Figures) -> f64,
    ) -> Result<f64, Error> {
        let connection = connect(server).await?;
        self.run(&connection, WARM_UP).await?;
        other.run(&connection, WARM_UP).await?;
        let mut ratios = Vec::new();
        for _ in 0..SHORT_TURNS {
            let own = self.measure(server, &connection, SHORT_TURN).await?;
            let others = other.measure(server, &connection, SHORT_TURN).await?;
            ratios.push(figure(&own) / figure(&others));
        }
        Ok(median(ratios))
    }

    async fn run(&self, connection: &MultiplexedConnection, time: Duration) -> Result<u64, Error> {
        let end = Instant::now() + time;
        let calls = (0..CALLERS).map(|seed| self.calls(connection.clone(), end, seed));
        Ok(futures::future::try_join_all(calls).await?.iter().sum())
    }

    async fn calls(
        &self,
        mut connection: MultiplexedConnection,
        end: Instant,
        seed: u64,
    ) -> Result<u64, Error> {
        // Seeded, so that all cases meet the same users.
        let mut random = fastrand::Rng::with_seed(seed);
        let mut user = || random.u64(..IDENTITIES);
        let (mut decisions, prefix) = (0, prefix(&self.name));
        while Instant::now() < end {
            match &self.work {
                Work::Script { script, args } => {
                    let key = format!("{prefix}:{{user={}}}", user());
                    let mut invocation = script.key(key);
                    for arg in args {
                        invocation.arg(&arg[..]);
                    }
                    invocation.invoke_async::<()>(&mut connection).await?;
                }
                Work::Checks {
                    store,
                    policies,
                    blocks,
                } => {
                    let checks = (0..self.checks).map(|_| check_of(policies, user()));
                    let enforces = *blocks != Blocks::Unread;
                    let checks =
                        checks.map(|check| check.map(|check| check.enforce_blocks(enforces)));
                    let operations = checks.map(|check| check.map(Operation::Check));
                    call(store, operations.collect::<Result<_, _>>()?).await?;
                }
                Work::CheckBatch { store, policy } => {
                    let count = u16::try_from(self.checks)?;
                    let check = check_of(std::slice::from_ref(policy), user())?;
                    let batch = CheckBatch::new(check, count);
                    call(store, vec![Operation::CheckBatch(batch)]).await?;
                }
            }
            decisions += self.checks as u64;
        }
        Ok(decisions)
    }

    /// The median over the turns.
    fn median(&self, figure: impl Fn(&Figures) -> f64) -> f64 {
        median(self.turns.iter().map(figure).collect())
    }

    fn micros(&self) -> f64 {
        self.median(|turn| turn.micros)
    }
}

/// A check with a charge under each policy, each with a different key. All checks of this user share the keys.
fn check_of(policies: &[Policy], user: u64) -> Result<Check, Error> {
    let charges = policies.iter().enumerate().map(|(place, policy)| {
        let key = Key::new("user", format!("{user}-{place}"));
        Charge::new(policy, key, 1)
    });
    Ok(Check::new(charges)?)
}

/// Fails if any operation fails.
async fn call(store: &RedisStore, operations: Vec<Operation>) -> Result<(), Error> {
    for result in store.call(operations).await? {
        result?;
    }
    Ok(())
}

/// Waits without a timeout, since a busy machine is no failure.
async fn connect(server: &Server) -> Result<MultiplexedConnection, Error> {
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(server.url())?;
    Ok(client
        .get_multiplexed_async_connection_with_config(&config)
        .await?)
}

fn print_cases(cases: &[Case]) {
    println!(
        "{:<40} {:>9} {:>9} {:>9}",
        "per decision", "script µs", "server µs", "commands"
    );
    for case in cases {
        let (micros, cpu) = (case.micros(), case.median(|turn| turn.cpu));
        let commands = case.median(|turn| turn.commands);
        println!("{:<40} {micros:>9.2} {cpu:>9.2} {commands:>9.2}", case.name);
    }
}

/// Compares the chosen cases with the first of them, as in `cargo bench --bench script -- "3 rules" "3 rules, enforcing
/// blocks"`. (`-- settling`, `-- renewing`, `-- silence` and `-- slots` are bars only.)
async fn print_chosen(server: &Server, cases: &[Case], chosen: &[String]) -> Result<(), Error> {
    let first = find(cases, &chosen[0]);
    for name in &chosen[1..] {
        let case = find(cases, name);
        let micros = case.ratio(server, first, |time| time.micros).await?;
        let cpu = case.ratio(server, first, |time| time.cpu).await?;
        println!(
            "{name} / {}: the script {micros:.2}, the server {cpu:.2}",
            first.name
        );
    }
    Ok(())
}

fn find<'cases>(cases: &'cases [Case], name: &str) -> &'cases Case {
    let case = cases.iter().find(|case| case.name == name);
    case.unwrap_or_else(|| panic!("no case: {name}"))
}

/// The total processor time of the thread that executes commands.
fn cpu_micros(server: &Server) -> f64 {
    let info: String = server.run("INFO cpu");
    let seconds = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.parse::<f64>().ok())
            .expect("a server tells of its processor")
    };
    let parts = ["used_cpu_user_main_thread:", "used_cpu_sys_main_thread:"];
    parts.map(seconds).iter().sum::<f64>() * 1e6
}

fn version(server: &Server) -> String {
    let info: String = server.run("INFO server");
    let version = info
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"));
    version.expect("a server has a version").into()
}

async fn bars(server: &Server, cases: &[Case]) -> Result<bool, Error> {
    let mut met = true;
    for (one, other, most, aim) in [
        ("3 rules, coarse", "hash layout, 3 rules", 0.50, 0.40),
        ("3 rules", "hash layout, 3 rules, 17 ms", 0.40, 0.40),
        ("3 rules", "one GET, one SET PX", 3.0, 2.0),
        (
            "3 rules, coarse, 16 a call",
            "hash layout, 3 rules",
            0.30,
            0.30,
        ),
        (
            "3 rules, 16 a call",
            "hash layout, 3 rules, 17 ms",
            0.30,
            0.30,
        ),
        ("a batch of 16", "3 rules, 16 a call", 0.15, 0.15),
        ("3 rules, denied", "3 rules", 1.2, 1.0),
        ("3 rules, denied by the last", "3 rules", 1.3, 1.0),
        ("1 rule, denied", "1 rule", 1.3, 1.0),
        ("1 rule, denied, 16 a call", "1 rule, 16 a call", 1.3, 1.0),
        (
            "3 rules, denied by the last, 16 a call",
            "3 rules, 16 a call",
            1.3,
            1.0,
        ),
        (
            "3 rules, denied by the last, 512 a call",
            "3 rules, denied by the last, 16 a call",
            1.5,
            1.5,
        ),
        ("1 bucket of 1 s", "1 rule of 1 s", 1.25, 1.0),
        ("1 bucket", "1 rule", 1.45, 1.0),
        ("3 buckets", "3 rules", 1.35, 1.0),
        ("3 rules and a slot", "3 rules", 2.1, 1.3),
        ("1 calendar rule", "1 fixed rule", 2.0, 1.1),
        ("2 keys, denied by the last", "2 keys", 1.35, 1.0),
        ("3 keys, denied by the last", "3 keys", 1.35, 1.0),
        ("8 keys, denied by the last", "8 keys", 1.45, 1.0),
    ] {
        let ratio = find(cases, one).ratio(server, find(cases, other), |time| time.micros);
        met &= bar_and_aim(&format!("{one} / {other}"), ratio.await?, most, aim);
    }
    // The server has another string to parse, so compare the time of the whole server.
    for (one, other, most, aim) in [
        ("1 rule, enforcing blocks", "1 rule", 1.3, 1.15),
        ("3 rules, enforcing blocks", "3 rules", 1.3, 1.15),
        (
            "1 rule, 16 a call, enforcing blocks",
            "1 rule, 16 a call",
            1.45,
            1.15,
        ),
        (
            "3 rules, 16 a call, enforcing blocks",
            "3 rules, 16 a call",
            1.3,
            1.15,
        ),
    ] {
        let ratio = find(cases, one).ratio(server, find(cases, other), |time| time.cpu);
        let what = format!("{one} / {other}, the whole server");
        met &= bar_and_aim(&what, ratio.await?, most, aim);
    }
    Ok(met)
}

/// The cost of settling a check to more at once, and 20 ms later, when the first rule mostly opens a step. Relative to a
/// check, on keys full of steps.
async fn settling(server: &Server, store: RedisStore) -> Result<bool, Error> {
    const KEYS: u64 = 500;
    let clock = ManualClock::new(1_700_000_000_000);
    let store = store.prefix("settling").clock(clock.clone());
    let policies = [Policy::new("settling", rules(1_000_000))?];
    let mut ratios = [Vec::new(), Vec::new()];
    for turn in 0..100 {
        for (pause, ratios) in [0, 20].into_iter().zip(&mut ratios) {
            clock.advance(Duration::from_millis(300));
            server.run::<()>("CONFIG RESETSTAT");
            let mut usages = Vec::new();
            for user in 0..KEYS {
                let check = check_of(&policies, user)?;
                usages.push(store.check(&check).await?.usage().clone());
            }
            let check = Figures::read(server, KEYS).micros;
            clock.advance(Duration::from_millis(pause));
            if pause > 0 {
                for user in 0..KEYS {
                    store.check(&check_of(&policies, user)?).await?;
                }
            }
            server.run::<()>("CONFIG RESETSTAT");
            for usage in &usages {
                store.settle(&Settlement::new(usage, |_| 3)?).await?;
            }
            // Before, the keys are not yet full of steps.
            if turn >= 60 {
                ratios.push(Figures::read(server, KEYS).micros / check);
            }
        }
    }
    let mut met = true;
    for (ratios, (what, most)) in ratios
        .into_iter()
        .zip([("the newest step", 2.0), ("20 ms later", 3.0)])
    {
        let what = format!("settling {what} / a check");
        met &= bar(&what, median(ratios), most);
    }
    Ok(met)
}

/// The cost of the first check after an hour of silence, on keys full of steps, relative to two others: one after 59 s,
/// like those that filled the keys, and one after 17 ms, which opens a step only under the first rule and so may cost
/// less.
async fn silence(server: &Server, store: RedisStore) -> Result<bool, Error> {
    const KEYS: u64 = 500;
    const PAUSES: [Duration; 3] = [
        Duration::from_secs(59),
        Duration::from_millis(17),
        Duration::from_secs(3_600),
    ];
    let clock = ManualClock::new(1_700_000_000_000);
    let store = store.prefix("silence").clock(clock.clone());
    let policy = Policy::new("silence", rules(1_000_000))?;
    let checks = || -> Result<Vec<Check>, _> {
        (0..KEYS)
            .map(|user| Check::new([Charge::new(&policy, Key::new("user", user.to_string()), 1)]))
            .collect()
    };
    let mut ratios = [Vec::new(), Vec::new()];
    for _ in 0..31 {
        // Each check, 59 s after the one before, opens a step: 70 fill the keys.
        for _ in 0..70 {
            clock.advance(Duration::from_secs(59));
            call(
                &store,
                checks()?.into_iter().map(Operation::Check).collect(),
            )
            .await?;
        }
        let mut micros = Vec::new();
        for pause in PAUSES {
            clock.advance(pause);
            server.run::<()>("CONFIG RESETSTAT");
            for check in checks()? {
                store.check(&check).await?;
            }
            micros.push(Figures::read(server, KEYS).micros);
        }
        for (ratios, other) in ratios.iter_mut().zip(&micros) {
            ratios.push(micros[2] / other);
        }
    }
    let mut met = true;
    for (ratios, (other, most, aim)) in ratios.into_iter().zip([
        ("one a minute", 1.2, 1.0),
        ("the next after 17 ms", 2.5, 1.5),
    ]) {
        let what = format!("first check after an hour of silence / {other}");
        met &= bar_and_aim(&what, median(ratios), most, aim);
    }
    Ok(met)
}

/// The memory of 100 000 identities with 60 live steps each, on a server without other keys.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
async fn memory() -> Result<bool, Error> {
    const KEYS: u64 = 100_000;
    let server = Server::start();
    let clock = ManualClock::new(1_700_000_000_000);
    let store = RedisStore::connect(server.url()).await?;
    let store = store.prefix("memory").clock(clock.clone());
    let policy = Policy::new("api", [Rule::per_minute(1_000)])?;
    for _ in 0..60 {
        clock.advance(Duration::from_secs(1));
        store
            .check(&Check::new([Charge::new(
                &policy,
                Key::new("user", "0"),
                1,
            )])?)
            .await?;
    }
    let mut connection = connect(&server).await?;
    let value: Vec<u8> = redis::cmd("GET")
        .arg("memory:{user=0}:api~1")
        .query_async(&mut connection)
        .await?;
    // Copies of one value, since a hundred thousand identities with 60 checks each would take long.
    let before = server.info("memory", "used_memory");
    for thousand in 0..KEYS / 1_000 {
        let mut pipeline = redis::pipe();
        for user in thousand * 1_000..(thousand + 1) * 1_000 {
            let name = format!("memory:{{user={}}}:api~1", 1_000_000 + user);
            pipeline
                .cmd("SET")
                .arg(name)
                .arg(&value)
                .arg("PX")
                .arg(3_600_000)
                .ignore();
        }
        pipeline.query_async::<()>(&mut connection).await?;
    }
    let used = (server.info("memory", "used_memory") - before) as f64;
    println!(
        "memory per key: {:.0} bytes, of which value: {}",
        used / KEYS as f64,
        value.len()
    );
    Ok(bar(
        "MB for 100 000 identities with 60 live steps each",
        used / 1e6,
        100.0,
    ))
}
