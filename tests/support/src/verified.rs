//! Acts through a limiter that caches denials. Each repeated denial is compared with the store's own decision.

use proptest::{collection::vec, prelude::*};

use super::prelude::*;

/// Users and policies are numbers.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// A user, a set of policies and a cost. Checks twice: if the first is denied, the second is repeated.
    Check(usize, usize, u64),
    /// Settles the last admission to a cost.
    Settle(u64),
    /// A user and a policy.
    Reset(usize, usize),
    /// A user and the ms.
    Block(usize, u64),
    Unblock(usize),
    Pass(u64),
}

const RULES: [&str; 3] = ["3/1s@100ms,9/10s", "4/400ms@exact", "5+3/2s@bucket"];

pub fn acts() -> impl Strategy<Value = Vec<Act>> {
    let check = (0..2_usize, 1..8_usize, 1..5_u64);
    let act = prop_oneof![
        12 => check.prop_map(|(user, policies, cost)| Act::Check(user, policies, cost)),
        2 => (0..6_u64).prop_map(Act::Settle),
        1 => (0..2_usize, 0..3_usize).prop_map(|(user, policy)| Act::Reset(user, policy)),
        1 => (0..2_usize, 1..1_500_u64).prop_map(|(user, ms)| Act::Block(user, ms)),
        1 => (0..2_usize).prop_map(Act::Unblock),
        6 => prop_oneof![0..5_u64, 0..1_200_u64].prop_map(Act::Pass),
    ];
    vec(act, 1..60)
}

/// Asks the store for each repeated denial, and panics if it would admit the check, or sooner. This changes nothing,
/// because a denied check is charged nowhere.
pub struct Verified {
    store: Arc<dyn Store>,
    limiter: Limiter,
    clock: ManualClock,
    admitted: Vec<Usage>,
    /// How many denials were repeated.
    pub repeated: u64,
}

impl Verified {
    /// The limiter and the store share one clock.
    pub fn new((store, clock): (impl Store, ManualClock)) -> Self {
        let store: Arc<dyn Store> = Arc::new(store);
        let limiter = crate::limiter(Arc::clone(&store)).cache_denials(true);
        Self {
            limiter: limiter
                .denial_clock(clock.clone())
                .timeout(Duration::from_secs(30)),
            store,
            clock,
            admitted: Vec::new(),
            repeated: 0,
        }
    }

    pub async fn play(&mut self, acts: &[Act]) {
        for act in acts {
            self.act(*act).await;
        }
    }

    async fn act(&mut self, act: Act) {
        match act {
            Act::Check(user, policies, cost) => {
                for _ in 0..2 {
                    self.check(user, policies, cost).await;
                }
            }
            Act::Settle(cost) => {
                if let Some(usage) = self.admitted.pop() {
                    self.limiter.settle(&usage, |_| cost).await.unwrap();
                }
            }
            Act::Reset(user, policy) => {
                let (policy, key) = (policy_of(policy), key_of(user));
                self.limiter.reset(&policy, &key).await.unwrap();
            }
            Act::Block(user, ms) => {
                let (key, length) = (key_of(user), Duration::from_millis(ms));
                self.limiter.block(&key, length).await.unwrap();
            }
            Act::Unblock(user) => self.limiter.unblock(&key_of(user)).await.unwrap(),
            Act::Pass(ms) => self.clock.advance(Duration::from_millis(ms)),
        }
    }

    async fn check(&mut self, user: usize, policies: usize, cost: u64) {
        let chosen = (0..RULES.len()).filter(|index| policies & 1 << index > 0);
        let charges: Vec<_> = chosen
            .map(|index| Charge::new(&policy_of(index), key_of(user), cost))
            .collect();
        let decision = self.limiter.check(charges.clone()).await.unwrap();
        if decision.usage().is_cached() {
            self.repeated += 1;
            let check = Check::new(charges).unwrap().enforce_blocks(true);
            assert_repeats(&decision, &self.store.check(&check).await.unwrap());
        } else if let Decision::Allowed(usage) = decision {
            self.admitted.push(usage);
        }
    }
}

fn policy_of(index: usize) -> Policy {
    Policy::parse(["a", "b", "c"][index], RULES[index]).unwrap()
}

fn key_of(user: usize) -> Key {
    Key::new("user", user.to_string())
}

/// Later charges may have made the store deny for longer, but never for a shorter time.
fn assert_repeats(repeated: &Decision, truth: &Decision) {
    let at_ms = [repeated, truth].map(|it| it.usage().decided_at_ms());
    assert_eq!(at_ms[0], at_ms[1]);
    match (repeated, truth) {
        (Decision::Denied(repeated), Decision::Denied(truth)) => {
            let times = [repeated, truth].map(|it| it.retry_after());
            let is_in_time = times[1].is_none_or(|truth| times[0].is_some_and(|it| it <= truth));
            assert!(is_in_time, "{repeated:?}, and not {truth:?}");
            let rules = repeated.usage().rules().zip(truth.usage().rules());
            for (repeated, truth) in rules {
                assert_eq!(repeated.rule(), truth.rule());
                let truth = truth.retry_after();
                assert!(repeated.retry_after() <= truth || truth.is_none());
            }
        }
        (Decision::Blocked(repeated), Decision::Blocked(truth)) => {
            assert_eq!(repeated.key(), truth.key());
            assert_eq!(repeated.block(), truth.block());
            assert_eq!(repeated.retry_after(), truth.retry_after());
        }
        _ => panic!("{repeated:?}, and not {truth:?}"),
    }
}
