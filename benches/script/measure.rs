//! Every case runs for a while in turn, many times over, so that a noisy machine disturbs all alike. The figure of a case is
//! its median; ratios are medians of the ratios within one turn. Ends in 1 when a bar is missed.

#[path = "../../tests/common/redis.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::must_use_candidate,
    reason = "made for the tests"
)]
mod redis_server;

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis_server::Server;
use sluicegate::{
    Charge, Key, Policy, RedisStore, Rule, Store, StoreError,
    store::{Check, Operation},
    test_util::TestClock,
};

const IDENTITIES: u64 = 10_000;
/// Odd, so that the median is one of them.
const TURNS: usize = 9;
/// Each turn runs until steps come and go before it is measured.
const WARM_UP: Duration = Duration::from_millis(1_500);
const TURN: Duration = Duration::from_millis(500);
const CALLERS: u64 = 32;

const GET_SET: &str = "local v = redis.call('GET', KEYS[1]) redis.call('SET', KEYS[1], ARGV[1], 'PX', 60000) return 1";
const HASH_LAYOUT: &str = include_str!("hash_layout.lua");

type Error = Box<dyn std::error::Error>;

/// One way to use the server, called again and again.
struct Case {
    name: &'static str,
    /// Decisions in a call.
    checks: usize,
    work: Work,
    turns: Vec<Figures>,
}

enum Work {
    Script {
        script: redis::Script,
        args: Vec<String>,
    },
    Checks {
        store: RedisStore,
        policy: Policy,
    },
}

#[derive(Clone, Copy)]
struct Figures {
    micros: f64,
    commands: f64,
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run() -> Result<(), Error> {
    let server = Server::start();
    let store = RedisStore::connect(server.url()).await?;
    let mut cases = cases(&store)?;
    for _ in 0..TURNS {
        for case in &mut cases {
            case.turn(&server).await?;
        }
    }
    print_cases(&cases);
    let mut met = bars(&cases);
    met &= silence(&server, store.clone()).await?;
    met &= memory().await?;
    if met {
        Ok(())
    } else {
        Err("a bar is missed".into())
    }
}

/// As they come: in steps of 17 ms, 1 s and 1 min.
fn rules(limit: u64) -> [Rule; 3] {
    [
        Rule::per_second(limit),
        Rule::per_minute(limit),
        Rule::per_hour(limit),
    ]
}

/// In steps of 1 s, 1 s and 1 min: finer ones cost the hash layout twice as much.
fn coarse_rules(limit: u64) -> [Rule; 3] {
    let [second, minute, hour] = rules(limit);
    [second.precision(Duration::from_secs(1)), minute, hour]
}

fn cases(store: &RedisStore) -> Result<Vec<Case>, Error> {
    const PLENTY: u64 = 1_000_000_000;
    let hash = |rules: &[Rule]| {
        let json = rules.iter().map(|rule| {
            let (window, precision) = (rule.window().as_millis(), rule.step().as_millis());
            format!("[{},{window},{precision}]", rule.limit())
        });
        let json = format!("[{}]", json.collect::<Vec<_>>().join(","));
        Work::Script {
            script: redis::Script::new(HASH_LAYOUT),
            args: vec![json, "1".into()],
        }
    };
    let checks = |name, rules: &[Rule]| -> Result<Work, Error> {
        Ok(Work::Checks {
            store: store.clone(),
            policy: Policy::new(name, rules.iter().copied())?,
        })
    };
    let script = |text, args| Work::Script {
        script: redis::Script::new(text),
        args,
    };
    let (plenty, coarse) = (rules(PLENTY), coarse_rules(PLENTY));
    let case = |name, checks, work| Case {
        name,
        checks,
        work,
        turns: Vec::new(),
    };
    Ok(vec![
        case("an empty script", 1, script("return 0", vec![])),
        case(
            "one GET, one SET PX",
            1,
            script(GET_SET, vec!["x".repeat(46)]),
        ),
        case("hash layout, 1 rule", 1, hash(&coarse[1..2])),
        case("hash layout, 3 rules", 1, hash(&coarse)),
        case("hash layout, 3 rules, 17 ms", 1, hash(&plenty)),
        case("1 rule", 1, checks("one", &plenty[1..2])?),
        case("3 rules, coarse", 1, checks("coarse", &coarse)?),
        case("3 rules", 1, checks("three", &plenty)?),
        case(
            "3 rules, refused",
            1,
            checks("refused", &[Rule::per_second(1), plenty[1], plenty[2]])?,
        ),
        case(
            "3 rules, refused by the last",
            1,
            checks("last", &[plenty[0], plenty[1], Rule::per_hour(1)])?,
        ),
        case(
            "3 rules, coarse, refused",
            1,
            checks(
                "coarse-refused",
                &[
                    Rule::per_second(1).precision(Duration::from_secs(1)),
                    coarse[1],
                    coarse[2],
                ],
            )?,
        ),
        case(
            "3 rules, coarse, refused by the last",
            1,
            checks("coarse-last", &[coarse[0], coarse[1], Rule::per_hour(1)])?,
        ),
        case(
            "1 rule, refused",
            1,
            checks("one-refused", &[Rule::per_minute(1)])?,
        ),
        case("1 rule, 16 a call", 16, checks("one-of-16", &plenty[1..2])?),
        case(
            "1 rule, refused, 16 a call",
            16,
            checks("one-refused-of-16", &[Rule::per_minute(1)])?,
        ),
        case(
            "3 rules, refused by the last, 16 a call",
            16,
            checks("last-of-16", &[plenty[0], plenty[1], Rule::per_hour(1)])?,
        ),
        case(
            "3 rules, refused by the last, 512 a call",
            512,
            checks("last-of-512", &[plenty[0], plenty[1], Rule::per_hour(1)])?,
        ),
        case(
            "3 rules, coarse, 16 a call",
            16,
            checks("coarse-of-16", &coarse)?,
        ),
        case("3 rules, 16 a call", 16, checks("three-of-16", &plenty)?),
    ])
}

impl Case {
    /// Calls as fast as it goes for a while, and reads the server's statistics.
    async fn turn(&mut self, server: &Server) -> Result<(), Error> {
        let connection = connect(server).await?;
        self.run(&connection, WARM_UP).await?;
        server.run::<()>("CONFIG RESETSTAT");
        let decisions = self.run(&connection, TURN).await?;
        self.turns.push(Figures::read(server, decisions));
        Ok(())
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
        let mut random = fastrand::Rng::with_seed(seed);
        let mut decisions = 0;
        while Instant::now() < end {
            match &self.work {
                Work::Script { script, args } => {
                    let key = format!("{}:{{user={}}}", self.name, random.u64(..IDENTITIES));
                    script
                        .key(key)
                        .arg(args)
                        .invoke_async::<()>(&mut connection)
                        .await?;
                }
                Work::Checks { store, policy } => {
                    let user = || Key::new("user", random.u64(..IDENTITIES).to_string());
                    let charges =
                        std::iter::repeat_with(user).map(|key| Charge::new(policy, key, 1));
                    let checks: Result<Vec<Check>, _> = charges
                        .take(self.checks)
                        .map(|charge| Check::new([charge]))
                        .collect();
                    check_all(store, checks?).await?;
                }
            }
            decisions += self.checks as u64;
        }
        Ok(decisions)
    }

    /// The median over the turns of what `figure` makes of each, next to the same turn of another case.
    fn median(&self, other: &Self, figure: impl Fn(Figures, Figures) -> f64) -> f64 {
        let turns = self.turns.iter().zip(&other.turns);
        let mut figures: Vec<f64> = turns.map(|(own, other)| figure(*own, *other)).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    }
}

/// Waits as long as it takes: a busy machine is no failure.
async fn connect(server: &Server) -> Result<MultiplexedConnection, Error> {
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(server.url())?;
    Ok(client
        .get_multiplexed_async_connection_with_config(&config)
        .await?)
}

impl Figures {
    /// Reads what the server counted since its statistics were reset: the time of script calls, and all commands, those
    /// inside scripts too.
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn read(server: &Server, decisions: u64) -> Self {
        let info: String = server.run("INFO commandstats");
        let (mut micros, mut commands) = (0, 0);
        for line in info
            .lines()
            .filter_map(|line| line.strip_prefix("cmdstat_"))
        {
            let field = |name: &str| {
                line.split([',', ':'])
                    .find_map(|field| field.strip_prefix(name)?.parse::<u64>().ok())
            };
            let calls = field("calls=").unwrap_or(0);
            match line.split(':').next() {
                Some("evalsha" | "eval") => micros += field("usec=").unwrap_or(0),
                Some("info" | "config|resetstat" | "client|setinfo" | "command") => continue,
                _ => {}
            }
            commands += calls;
        }
        Self {
            micros: micros as f64 / decisions as f64,
            commands: commands as f64 / decisions as f64,
        }
    }
}

fn print_cases(cases: &[Case]) {
    println!(
        "{:<40} {:>9} {:>9} {:>9} {:>9}",
        "per decision", "µs", "commands", "/ GET+SET", "/ hash"
    );
    for case in cases {
        let micros = case.median(case, |own, _| own.micros);
        let commands = case.median(case, |own, _| own.commands);
        let to = |other: usize| case.median(&cases[other], |own, other| own.micros / other.micros);
        println!(
            "{:<40} {micros:>9.2} {commands:>9.2} {:>9.2} {:>9.2}",
            case.name,
            to(1),
            to(3)
        );
    }
}

fn bars(cases: &[Case]) -> bool {
    let find = |name: &str| {
        cases
            .iter()
            .find(|case| case.name == name)
            .unwrap_or(&cases[0])
    };
    let ratio = |one: &str, other: &str| {
        find(one).median(find(other), |own, other| own.micros / other.micros)
    };
    let mut met = true;
    for (one, other, most) in [
        ("3 rules, coarse", "hash layout, 3 rules", 0.40),
        ("3 rules", "hash layout, 3 rules, 17 ms", 0.40),
        ("3 rules", "one GET, one SET PX", 3.0),
        ("3 rules, coarse, 16 a call", "hash layout, 3 rules", 0.30),
        ("3 rules, 16 a call", "hash layout, 3 rules, 17 ms", 0.30),
        ("3 rules, refused", "3 rules", 1.0),
        ("3 rules, refused by the last", "3 rules", 1.0),
        ("1 rule, refused", "1 rule", 1.0),
        ("1 rule, refused, 16 a call", "1 rule, 16 a call", 1.0),
        (
            "3 rules, refused by the last, 16 a call",
            "3 rules, 16 a call",
            1.0,
        ),
        (
            "3 rules, refused by the last, 512 a call",
            "3 rules, refused by the last, 16 a call",
            1.5,
        ),
    ] {
        met &= bar(&format!("{one} / {other}"), ratio(one, other), most);
    }
    met
}

fn bar(what: &str, figure: f64, most: f64) -> bool {
    let met = figure <= most;
    println!(
        "{} {what}: {figure:.2}, at most {most:.2}",
        if met { "ok    " } else { "MISSED" }
    );
    met
}

/// What the first check after an hour of silence costs beside others, on keys full of steps: one 59 s later, like those that
/// filled them, and one 17 ms later, which opens a step under the first rule alone and so may cost less.
async fn silence(server: &Server, store: RedisStore) -> Result<bool, Error> {
    const KEYS: u64 = 500;
    const PAUSES: [Duration; 3] = [
        Duration::from_secs(59),
        Duration::from_millis(17),
        Duration::from_secs(3_600),
    ];
    let clock = TestClock::new(1_700_000_000_000);
    let store = store.prefix("silence").clock(clock.clone());
    let policy = Policy::new("silence", rules(1_000_000))?;
    let checks = || -> Result<Vec<Check>, _> {
        (0..KEYS)
            .map(|user| Check::new([Charge::new(&policy, Key::new("user", user.to_string()), 1)]))
            .collect()
    };
    let mut ratios = [Vec::new(), Vec::new()];
    for _ in 0..31 {
        for _ in 0..70 {
            clock.advance(Duration::from_secs(59));
            check_all(&store, checks()?).await?;
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
    for (mut ratios, (other, most)) in ratios
        .into_iter()
        .zip([("one a minute", 1.2), ("the next after 17 ms", 1.5)])
    {
        ratios.sort_by(f64::total_cmp);
        let what = format!("first check after an hour of silence / {other}");
        met &= bar(&what, ratios[ratios.len() / 2], most);
    }
    Ok(met)
}

/// The memory of 100 000 identities with 60 live steps each, on a server that has no others.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
async fn memory() -> Result<bool, Error> {
    const KEYS: u64 = 100_000;
    let server = Server::start();
    let clock = TestClock::new(1_700_000_000_000);
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
        .arg("memory:{user=0}:api")
        .query_async(&mut connection)
        .await?;
    let before = server.info("memory", "used_memory");
    for thousand in 0..KEYS / 1_000 {
        let mut pipeline = redis::pipe();
        for user in thousand * 1_000..(thousand + 1) * 1_000 {
            let name = format!("memory:{{user={}}}:api", 1_000_000 + user);
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

/// Decides these checks in one call.
async fn check_all(store: &RedisStore, checks: Vec<Check>) -> Result<(), StoreError> {
    let operations = checks.into_iter().map(Operation::Check).collect();
    for reply in store.call(operations).await? {
        reply?;
    }
    Ok(())
}
