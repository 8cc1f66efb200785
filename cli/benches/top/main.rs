//! The cost of `sluicegate top` over a million keys, for the checks of a service that keeps its server busy.
//!
//! `cargo bench -p sluicegate-cli --bench top` fills a server, and lets the tool read all keys while 64 tasks check without
//! a pause: in pairs of spans, one of them with the tool stopped. Fails when checks take more than 1.05 times as long
//! while the tool runs, or when the tool needs more than 64 MiB. The load and Redis share the machine with the tool.

use std::{
    fs,
    process::{Child, Command, ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
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

    let load = Load::start(&server).await;
    let mut tool = Tool::start(&server, policies.to_str().unwrap());
    let mut pairs = Vec::new();
    for pair in 0..PAIRS {
        let mut rates = [0; 2]; // checks without the tool, and with it
        // In turns, so that a slow drift of the machine favours neither.
        let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
        for running in order {
            if tool.has_ended() {
                tool = Tool::start(&server, policies.to_str().unwrap());
            }
            tool.signal(if running == 1 { "-CONT" } else { "-STOP" });
            rates[running] = load.measure().await;
        }
        pairs.push(rates);
    }
    tool.has_ended();
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    let mut ratios: Vec<f64> = { pairs.iter() }
        .map(|[without, with]| *without as f64 / *with as f64)
        .collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let (ratio, kib) = (ratios[ratios.len() / 2], tool.peak_kib);
    println!("checks take {ratio:.3} times as long while the tool runs; budget {BUDGET}");
    println!("the tool needed {kib} KiB at most; budget {MEMORY_KIB}");
    ExitCode::from(u8::from(ratio > BUDGET || kib > MEMORY_KIB))
}

/// Values in the script's form, for identities that were busy in the last hour. Each value gets many names.
async fn fill(server: &Server) {
    let clock = ManualClock::new(0);
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let now_ms = u64::try_from(now.as_millis()).unwrap();
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
        // Only the copies are measured.
        let value = redis::cmd("GETDEL").arg(name).query(&mut connection);
        values.push(value.unwrap());
    }
    for first in (0..KEYS).step_by(1_000) {
        let mut sets = redis::pipe();
        for user in first..first + 1_000 {
            let value = values[user % KINDS].as_slice();
            sets.pset_ex(name(user), value, 7_200_000).ignore();
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
    checks: Arc<AtomicU64>,
}

impl Load {
    async fn start(server: &Server) -> Self {
        let store = RedisStore::connect(server.url()).await.unwrap();
        let limiter = Limiter::new(store).timeout(Duration::from_secs(5));
        let checks = Arc::new(AtomicU64::new(0));
        for task in 0..TASKS {
            let (limiter, checks) = (limiter.clone(), Arc::clone(&checks));
            let (policy, mut rng) = (policy(), fastrand::Rng::with_seed(task as u64));
            tokio::spawn(async move {
                loop {
                    let key = Key::new("user", rng.usize(0..KEYS).to_string());
                    limiter.check([Charge::new(&policy, key, 1)]).await.unwrap();
                    checks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Self { checks }
    }

    async fn measure(&self) -> u64 {
        tokio::time::sleep(SETTLE).await;
        let before = self.checks.load(Ordering::Relaxed);
        tokio::time::sleep(MEASURED).await;
        self.checks.load(Ordering::Relaxed) - before
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
