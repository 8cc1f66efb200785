//! A plan, else credits, near their ends: many callers at the same time.

use super::prelude::*;

pub const PLAN: u64 = 20;
pub const CREDITS: u64 = 15;

/// How many checks were charged under each, and how many were denied.
#[derive(Debug, PartialEq, Eq)]
pub struct Charged {
    pub plan: u64,
    pub credits: u64,
    pub denied: u64,
}

pub fn plan() -> Policy {
    Policy::parse("plan", "20/1h").unwrap()
}

pub fn credits() -> Policy {
    Policy::parse("credits", "15/36500d@fixed").unwrap()
}

pub fn user(value: &str) -> Key {
    Key::new("user", value)
}

/// The plan of this user, else the credits of that account, each beside a limit that never denies.
pub fn lists(of_plan: &Key, of_credits: &Key) -> [[Charge; 2]; 2] {
    let all = Policy::parse("all", "1000000/1h").unwrap();
    let all = Charge::new(&all, Key::new("service", "all"), 1);
    [
        [all.clone(), Charge::new(&plan(), of_plan.clone(), 1)],
        [all, Charge::new(&credits(), of_credits.clone(), 1)],
    ]
}

/// Eight tasks, each with one of these limiters, make six checks each.
pub async fn rush(limiters: &[Limiter], of_plan: &Key, of_credits: &Key) -> Charged {
    let task = |task: usize| {
        let limiter = limiters[task % limiters.len()].clone();
        let lists = lists(of_plan, of_credits);
        tokio::spawn(async move {
            let mut decisions = Vec::new();
            for _ in 0..6 {
                decisions.push(limiter.check_first(lists.clone()).await.unwrap());
            }
            decisions
        })
    };
    let tasks = join_all((0..8).map(task)).await;
    let decisions: Vec<Decision> = tasks.into_iter().flat_map(Result::unwrap).collect();
    let charged = |name| {
        let admitted = decisions.iter().filter(|it| it.is_allowed());
        admitted.filter(|it| names(it).contains(&name)).count() as u64
    };
    let denied = decisions.iter().filter(|it| !it.is_allowed()).count() as u64;
    Charged {
        plan: charged("plan"),
        credits: charged("credits"),
        denied,
    }
}

pub fn names(decision: &Decision) -> Vec<&str> {
    let policies = decision.usage().policies();
    policies.map(|it| it.policy().name()).collect()
}

pub async fn used(limiter: &Limiter, policy: &Policy, key: &Key) -> u64 {
    let usage = limiter.peek([Charge::new(policy, key.clone(), 0)]).await;
    let rule = *usage.unwrap().rules().next().unwrap();
    rule.rule().limit() - rule.remaining()
}
