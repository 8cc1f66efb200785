//! The promise: no span of a window holds more than the limit.

use std::collections::BTreeSet;

use sluicegate::{Rule, Store, manual_clock::ManualClock};

use super::history::{Act, History, Player, move_clock};

/// Admitted units: the time, the policy, the key, and their number.
pub type Admitted = (u64, usize, usize, u64);

/// Plays the checks of a history. The processes take turns.
pub async fn admitted(
    processes: &[&dyn Store],
    clock: &ManualClock,
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
        // Let the fetches in the background finish.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
    }
    admitted
}

pub fn assert_promise(history: &History, admitted: &[Admitted]) {
    let subjects: BTreeSet<_> = admitted.iter().map(|it| (it.1, it.2)).collect();
    for subject in subjects {
        let own = admitted.iter().filter(|it| (it.1, it.2) == subject);
        let units: Vec<_> = own.map(|it| (it.0, it.3)).collect();
        for rule in history.policies[subject.0][0].rules() {
            let window_ms = u64::try_from(rule.window().as_millis()).unwrap();
            if let Some(refill) = rule.refill() {
                assert_bucket(rule, window_ms.into(), refill.into(), &units);
                continue;
            }
            let most = most_within(window_ms, &units);
            assert!(
                rule.is_fixed() || most <= rule.limit().into(),
                "{most} units under {rule}"
            );
        }
    }
}

/// Any span admits at most the burst and the refill of that span.
fn assert_bucket(rule: &Rule, window_ms: u128, refill: u128, admitted: &[(u64, u64)]) {
    for (first, (from_ms, _)) in admitted.iter().enumerate() {
        let mut units = 0;
        for (at_ms, added) in &admitted[first..] {
            units += u128::from(*added);
            let refilled = refill * u128::from(at_ms - from_ms);
            let most = u128::from(rule.limit()) * window_ms + refilled;
            assert!(units * window_ms <= most, "{units} units under {rule}");
        }
    }
}

/// The most units in any span of the window, both ends included. `admitted` holds times and units, in order of time.
///
/// It is enough to look at the spans that end with an admission.
pub fn most_within(window_ms: u64, admitted: &[(u64, u64)]) -> u128 {
    let (mut first, mut units, mut most) = (0, 0, 0);
    for (at_ms, added) in admitted {
        units += u128::from(*added);
        while admitted[first].0 + window_ms < *at_ms {
            units -= u128::from(admitted[first].1);
            first += 1;
        }
        most = units.max(most);
    }
    most
}

#[test]
fn the_span_with_the_most_units_is_found() {
    let admitted = [(1, 2), (11, 3), (12, 4), (12, 1), (30, 1)];
    assert_eq!(most_within(10, &admitted), 8);
    assert_eq!(most_within(11, &admitted), 10);
    assert_eq!(most_within(10, &[(1, 1), (12, 1), (23, 1)]), 1);
    let ones = [1, 9, 18, 19, 20, 30, 31].map(|at_ms| (at_ms, 1));
    assert_eq!(most_within(10, &ones), 3);
    assert_eq!(most_within(10, &[]), 0);
}
