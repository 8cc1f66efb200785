//! Proves that the store over `Values` keeps the contract, and that a month's quota is exact through a `kill -9`.

use std::{
    env,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use proptest::prelude::*;
use sqlite_store::SqliteStore;
use support::{history::*, prelude::*, vectors::replay_all};

support::contracts!(new: contract calls blocks kinds);

async fn new() -> (SqliteStore, ManualClock) {
    let clock = ManualClock::new(0);
    let now_ms = {
        let clock = clock.clone();
        move || clock.now_ms()
    };
    let store = SqliteStore::with_clock(":memory:", u64::MAX, now_ms);
    (store.unwrap(), clock)
}

#[tokio::test]
async fn the_store_agrees_with_the_vectors() {
    replay_all(new).await;
}

fn agrees_with_the_memory_store(history: &History) {
    support::runtime().block_on(async {
        let (store, clock) = new().await;
        let memory = MemoryStore::new().clock(clock.clone());
        agree(&store, &memory, &clock, history).await;
    });
}

proptest! {
    #![proptest_config(few_cases())]

    #[test]
    fn the_store_agrees_with_the_memory_store_whatever_happens(
        plain in wild(), any in wild_kinds(), calls in calls_of_all_kinds(), large in large()
    ) {
        for history in [plain, any, calls, large] {
            agrees_with_the_memory_store(&history);
        }
    }
}

const LIMIT: u64 = 2_000;
const PROCESSES: u64 = 4;

fn quota() -> (Policy, [Charge; 1]) {
    let policy = policy("quota", &format!("{LIMIT}/month@UTC"));
    let charge = charge(&policy, "alice", 1);
    (policy, [charge])
}

/// A process of the test below: prints a line for each unit that it is admitted, until it is denied.
#[tokio::test]
async fn spends_the_quota() {
    let Ok(path) = env::var("QUOTA_OF_A_TEST") else {
        return;
    };
    let (limiter, (_, alice)) = (limiter(path), quota());
    while limiter.check(alice.clone()).await.unwrap().is_allowed() {
        println!("admitted");
    }
}

fn limiter(path: impl AsRef<Path>) -> Limiter {
    support::limiter(SqliteStore::open(path).unwrap()).timeout(MINUTE)
}

/// A process, and the lines that it prints.
struct Spending(Child, BufReader<ChildStdout>);

fn processes(path: &Path) -> Vec<Spending> {
    let start = |_| {
        let mut test = Command::new(env::current_exe().unwrap());
        test.args(["--exact", "spends_the_quota", "--nocapture"]);
        test.env("QUOTA_OF_A_TEST", path).stdout(Stdio::piped());
        let mut process = test.spawn().unwrap();
        let output = process.stdout.take().unwrap();
        Spending(process, BufReader::new(output))
    };
    (0..PROCESSES).map(start).collect()
}

impl Spending {
    /// Waits for so many lines, or for the end, and returns how many units were admitted in them.
    fn admitted(&mut self, most_lines: usize) -> u64 {
        let lines = self.1.by_ref().lines().take(most_lines);
        let units = lines.filter(|line| line.as_ref().is_ok_and(|it| it.contains("admitted")));
        units.count() as u64
    }
}

#[tokio::test]
async fn a_months_quota_is_exact_through_a_kill_and_a_restart_with_four_processes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counts.db");
    let (limiter, (policy, alice)) = (limiter(&path), quota());
    let mut killed = processes(&path);
    let mut before = killed[0].admitted(100);
    for Spending(process, _) in &mut killed {
        process.kill().unwrap();
    }
    for spending in &mut killed {
        before += spending.admitted(usize::MAX);
        spending.0.wait().unwrap();
    }
    let used = LIMIT - left(&limiter, &policy, "alice").await;
    assert!(used < LIMIT, "they were killed too late");
    // Each may die between its commit and its line.
    assert!(
        (before..=before + PROCESSES).contains(&used),
        "{used} {before}"
    );
    let mut after = 0;
    for mut spending in processes(&path) {
        after += spending.admitted(usize::MAX);
        assert!(spending.0.wait().unwrap().success());
    }
    assert_eq!(used + after, LIMIT);
    assert!(is_denied(&limiter.check(alice).await.unwrap()));
}
