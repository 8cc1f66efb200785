//! The cost of `sluicegate top` over a million keys, for the checks of a service that keeps its server busy.
//!
//! `cargo bench -p sluicegate-cli --bench top` fills a server, and lets the tool read all keys without other load. Then
//! it repeats this while 64 tasks check without a pause: in pairs of spans, one of them with the tool stopped. Fails
//! when checks take more than 1.05 times as long while the tool runs, or when the tool needs more than 64 MiB. Takes
//! some five minutes; the load and Redis share the machine with the tool.

use std::{
    fs,
    process::{Child, Command, ExitCode, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use sluicegate::{Charge, Key, Limiter, Policy, RedisStore, manual_clock::ManualClock};
use support::redis::Server;

const RULES: &str = "1000/1s,20000/1m,300000/1h";
const KEYS: usize = 1_000_000;
/// The number of different values.
const KINDS: usize = 500;
const TASKS: usize = 64;
const PAIRS: usize = 30;
const SETTLE: Duration = Duration::from_millis(300);
const MEASURED: Duration = Duration::from_secs(2);
const BUDGET: f64 = 1.05;
const MEMORY_KIB: u64 = 64 * 1_024;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let folder = tempfile::tempdir().unwrap();
    let policies = folder.path().join("policies.toml");
    fs::write(&policies, format!("api = \"{RULES}\"")).unwrap();
    let server = Server::start();
    fill(&server).await;
    let bytes = server.info("memory", "used_memory") / KEYS as u64;
    println!("{KEYS} keys of {bytes} bytes with name and expiry");

    let mut tool = Tool::start(&server, policies.to_str().unwrap());
    let begun = Instant::now();
    while !tool.has_ended() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let idle = begun.elapsed();
    println!(
        "read in {:.0} s, {} KiB at most, while nothing else happens",
        idle.as_secs_f64(),
        tool.peak_kib
    );

    let load = Load::start(&server).await;
    let mut tool = Tool::start(&server, policies.to_str().unwrap());
    let mut pairs = Vec::new();
    for pair in 0..PAIRS {
        let mut spans = [Span::default(); 2]; // without the tool, and with it
        // In turns, so that a slow drift of the machine favours neither.
        let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
        for running in order {
            if tool.has_ended() {
                tool = Tool::start(&server, policies.to_str().unwrap());
            }
            tool.signal(if running == 1 { "-CONT" } else { "-STOP" });
            spans[running] = load.measure().await;
        }
        pairs.push(spans);
    }
    tool.has_ended();
    println!(
        "{:<10} {:>9} {:>9} {:>9}",
        "", "checks/s", "p50 us", "p99 us"
    );
    for (running, name) in ["without", "with top"].into_iter().enumerate() {
        let of = |figure: fn(&Span) -> f64| median(pairs.iter().map(|pair| figure(&pair[running])));
        let [rate, p50, p99] = [
            of(|span| span.rate),
            of(|span| span.p50_us),
            of(|span| span.p99_us),
        ];
        println!("{name:<10} {rate:>9.0} {p50:>9.0} {p99:>9.0}");
    }
    let ratio = median(pairs.iter().map(|[without, with]| without.rate / with.rate));
    let tail = median(
        pairs
            .iter()
            .map(|[without, with]| with.p99_us / without.p99_us),
    );
    println!(
        "checks take {ratio:.3} times as long while the tool runs, the 99th percentile {tail:.3}; budget {BUDGET}"
    );
    println!(
        "the tool needed {} KiB at most; budget {MEMORY_KIB}",
        tool.peak_kib
    );
    ExitCode::from(u8::from(ratio > BUDGET || tool.peak_kib > MEMORY_KIB))
}

/// Values in the script's form, for identities that were busy in the last hour. Each value gets many names.
async fn fill(server: &Server) {
    let clock = ManualClock::new(0);
    let now_ms = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let now_ms = u64::try_from(now_ms.as_millis()).unwrap();
    let store = RedisStore::connect(server.url())
        .await
        .unwrap()
        .prefix("kinds")
        .clock(clock.clone());
    let (limiter, policy) = (
        Limiter::new(store).timeout(Duration::from_secs(5)),
        policy(),
    );
    let mut rng = fastrand::Rng::with_seed(1);
    let client = redis::Client::open(server.socket_url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut values: Vec<Vec<u8>> = Vec::new();
    for kind in 0..KINDS {
        let mut ages: Vec<u64> = (0..rng.u64(1..30)).map(|_| rng.u64(0..3_600_000)).collect();
        ages.sort_unstable_by_key(|age| std::cmp::Reverse(*age));
        for age in ages {
            clock.set(now_ms - age);
            let charge = Charge::new(&policy, Key::new("user", kind.to_string()), rng.u64(1..50));
            limiter.check([charge]).await.unwrap();
        }
        let name = format!("kinds:{{user={kind}}}:api");
        values.push(
            // Only the copies are measured.
            redis::cmd("GETDEL")
                .arg(name)
                .query(&mut connection)
                .unwrap(),
        );
    }
    for first in (0..KEYS).step_by(1_000) {
        let mut sets = redis::pipe();
        for user in first..first + 1_000 {
            let value = values[user % KINDS].as_slice();
            sets.cmd("SET")
                .arg(name(user))
                .arg(value)
                .arg("PX")
                .arg(7_200_000)
                .ignore();
        }
        let () = sets.query(&mut connection).unwrap();
    }
}

fn name(user: usize) -> String {
    format!("sluicegate:{{user={user}}}:api")
}

fn policy() -> Policy {
    Policy::parse("api", RULES).unwrap()
}

/// Tasks that check one after another, each time for another identity.
struct Load {
    latencies_us: Arc<Mutex<Vec<u32>>>,
}

#[derive(Clone, Copy, Default)]
struct Span {
    rate: f64,
    p50_us: f64,
    p99_us: f64,
}

impl Load {
    async fn start(server: &Server) -> Self {
        let store = RedisStore::connect(server.url()).await.unwrap();
        let limiter = Limiter::new(store).timeout(Duration::from_secs(5));
        let latencies_us: Arc<Mutex<Vec<u32>>> = Arc::default();
        for task in 0..TASKS {
            let (limiter, latencies_us) = (limiter.clone(), Arc::clone(&latencies_us));
            let (policy, mut rng) = (policy(), fastrand::Rng::with_seed(task as u64));
            tokio::spawn(async move {
                loop {
                    let key = Key::new("user", rng.usize(0..KEYS).to_string());
                    let begun = Instant::now();
                    limiter.check([Charge::new(&policy, key, 1)]).await.unwrap();
                    let latency_us = u32::try_from(begun.elapsed().as_micros()).unwrap();
                    latencies_us.lock().unwrap().push(latency_us);
                }
            });
        }
        Self { latencies_us }
    }

    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    async fn measure(&self) -> Span {
        tokio::time::sleep(SETTLE).await;
        self.latencies_us.lock().unwrap().clear();
        let begun = Instant::now();
        tokio::time::sleep(MEASURED).await;
        let mut latencies_us = std::mem::take(&mut *self.latencies_us.lock().unwrap());
        let seconds = begun.elapsed().as_secs_f64();
        latencies_us.sort_unstable();
        let percentile =
            |percent: usize| f64::from(latencies_us[latencies_us.len() * percent / 100]);
        Span {
            rate: latencies_us.len() as f64 / seconds,
            p50_us: percentile(50),
            p99_us: percentile(99),
        }
    }
}

/// The running tool.
struct Tool {
    child: Child,
    peak_kib: u64,
}

impl Tool {
    fn start(server: &Server, policies: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
        command.args(["top", "--redis", &server.url(), "--policies", policies]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Self {
            child: command.spawn().unwrap(),
            peak_kib: 0,
        }
    }

    /// Also measures the tool's memory.
    fn has_ended(&mut self) -> bool {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse().ok());
        self.peak_kib = self.peak_kib.max(peak.unwrap_or(0));
        match self.child.try_wait().unwrap() {
            Some(status) => {
                assert!(status.success(), "{status}");
                true
            }
            None => false,
        }
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args([name, &id])
                .status()
                .unwrap()
                .success()
        );
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_unstable_by(f64::total_cmp);
    figures[figures.len() / 2]
}
