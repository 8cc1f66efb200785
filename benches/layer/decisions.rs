//! The cost of one decision without HTTP, the check and its keys built each time: in the store, through a `Limiter`,
//! and by two limiters of other crates, in nanoseconds and allocations.
//!
//! One rule must cost at most 3.2 times a decision of `rate-net`, and three rules at most 5 times; what a `Limiter` adds to
//! its store may cost one such decision, and is to cost a fifth.

use std::{
    hint::black_box,
    num::NonZeroU32,
    process::ExitCode,
    task::{Context, Poll, Waker},
    time::Instant,
};

use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy, Store, store::Check};

use crate::measure::{ONE, THREE};

const USERS: usize = 10_000;
/// Few decisions in a row and many rounds, so that no other program disturbs most rounds.
const DECISIONS: usize = 500;
const ROUNDS: usize = 1_000;

const ONE_TO_OTHERS: f64 = 3.2;
const THREE_TO_OTHERS: f64 = 5.0;
const LIMITER_TO_OTHERS: f64 = 1.0;
const AIM_OF_LIMITER: f64 = 0.2;

struct Row {
    name: &'static str,
    decide: Box<dyn FnMut(&str) -> bool>,
    best_ns: f64,
    allocations: f64,
}

impl Row {
    fn new(name: &'static str, decide: impl FnMut(&str) -> bool + 'static) -> Self {
        Self {
            name,
            decide: Box::new(decide),
            best_ns: f64::INFINITY,
            allocations: 0.0,
        }
    }

    fn decide_all(&mut self, users: &[String]) {
        for user in users {
            assert!(black_box((self.decide)(user)), "a limit that is never met");
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn time(&mut self, users: &[String]) {
        let start = Instant::now();
        allocation_counter::opt_out(|| self.decide_all(users));
        let ns = start.elapsed().as_secs_f64() * 1e9 / users.len() as f64;
        self.best_ns = self.best_ns.min(ns);
    }

    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn count(&mut self, users: &[String]) {
        let counted = allocation_counter::measure(|| self.decide_all(users));
        self.allocations = (counted.count_total as f64 / users.len() as f64).round();
    }
}

/// The answer of a store in memory, which never has to be waited for.
fn ready<T>(answer: impl Future<Output = T>) -> T {
    let mut cx = Context::from_waker(Waker::noop());
    match std::pin::pin!(answer).poll(&mut cx) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("a store in memory answers at once"),
    }
}

fn charge(policy: &Policy, user: &str) -> Charge {
    Charge::new(policy, Key::new("user", user), 1)
}

fn by_store(name: &'static str, rules: &str) -> Row {
    let (store, policy) = (MemoryStore::new(), Policy::parse("api", rules).unwrap());
    Row::new(name, move |user| {
        let check = Check::new([charge(&policy, user)]).unwrap();
        ready(store.check(&check)).unwrap().is_allowed()
    })
}

fn by_limiter(name: &'static str, rules: &str) -> Row {
    let limiter = Limiter::new(MemoryStore::new());
    let policy = Policy::parse("api", rules).unwrap();
    Row::new(name, move |user| {
        ready(limiter.check([charge(&policy, user)]))
            .unwrap()
            .is_allowed()
    })
}

fn by_rate_net() -> Row {
    let limiter = rate_net::RateLimiter::per_minute(1_000_000_000);
    Row::new("rate-net", move |user| limiter.check(user).is_allow())
}

fn by_governor() -> Row {
    let quota = governor::Quota::per_second(NonZeroU32::MAX);
    let limiter = governor::RateLimiter::keyed(quota);
    Row::new("governor", move |user| {
        limiter.check_key(&user.to_owned()).is_ok()
    })
}

pub(crate) fn run() -> ExitCode {
    let users: Vec<String> = (0..USERS).map(|n| format!("user-{n:06}")).collect();
    let mut rows = [
        by_rate_net(),
        by_governor(),
        by_store("store, 1 rule", ONE),
        by_store("store, 3 rules", THREE),
        by_store("store, a bucket", "1000000000+1000000/1s@bucket"),
        by_limiter("limiter, 1 rule", ONE),
        by_limiter("limiter, 3 rules", THREE),
    ];
    for users in users.chunks(DECISIONS).cycle().take(ROUNDS) {
        for row in &mut rows {
            row.time(users);
        }
    }
    println!("{:<26}{:>10}{:>26}", "", "ns", "allocations");
    for row in &mut rows {
        row.count(&users);
        println!(
            "{:<26}{:>10.0}{:>26.1}",
            row.name, row.best_ns, row.allocations
        );
    }
    let ns = |name: &str| rows.iter().find(|row| row.name == name).unwrap().best_ns;
    let other = ns("rate-net");
    let mut is_met = within("one rule", ns("store, 1 rule"), ONE_TO_OTHERS * other);
    is_met &= within("three rules", ns("store, 3 rules"), THREE_TO_OTHERS * other);
    let adds = ns("limiter, 1 rule") - ns("store, 1 rule");
    let what = format!(
        "a limiter adds to one rule, aim {:.0}",
        AIM_OF_LIMITER * other
    );
    is_met &= within(&what, adds, LIMITER_TO_OTHERS * other);
    if is_met {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn within(name: &str, ns: f64, budget: f64) -> bool {
    let is_met = ns <= budget;
    let verdict = if is_met { "within" } else { "MISSES" };
    println!("{name}: {ns:.0} ns, {verdict} the bar of {budget:.0}");
    is_met
}
