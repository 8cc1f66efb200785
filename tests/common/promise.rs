//! The promise: no span of a window holds more than the limit.

use sluicegate::{Store, test_util::TestClock};

use super::history::{Act, History, Player, move_clock};

/// Units that were admitted: when, by which policy and key, how many.
pub(crate) type Admitted = (u64, usize, usize, u64);

/// Plays the checks of a history, each by the next of some processes.
pub(crate) async fn admitted(
    processes: &[&dyn Store],
    clock: &TestClock,
    history: &History,
) -> Vec<Admitted> {
    let players = processes.iter().map(|it| Player::new(*it, history));
    let mut players: Vec<_> = players.collect();
    let mut admitted = Vec::new();
    clock.set(history.start_ms);
    for (index, step) in history.steps.iter().enumerate() {
        move_clock(clock, step.gap_ms);
        let Act::Check(charges) = &step.act else {
            continue;
        };
        let player = index % processes.len();
        let outcome = players[player].play(&step.act).await.unwrap();
        if outcome.denied.is_none() {
            let charges = charges.iter();
            let now_ms = clock.now_ms();
            admitted.extend(charges.map(|&(policy, key, cost)| (now_ms, policy, key, cost)));
        }
        // What is fetched in the background.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
    }
    admitted
}

/// It is enough to look at the spans that begin with an admission.
pub(crate) fn assert_promise(history: &History, admitted: &[Admitted]) {
    for &(from_ms, policy, key, _) in admitted {
        for rule in history.policies[policy][0].rules() {
            let span = from_ms..=from_ms + u64::try_from(rule.window().as_millis()).unwrap();
            let within = admitted.iter().filter(|(at_ms, of, whose, _)| {
                (*of, *whose) == (policy, key) && span.contains(at_ms)
            });
            let units: u128 = within.map(|(.., cost)| u128::from(*cost)).sum();
            assert!(
                rule.is_fixed() || units <= rule.limit().into(),
                "{units} units under {rule} from {from_ms}"
            );
        }
    }
}
