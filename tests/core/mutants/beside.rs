//! Cases of the fast path that random histories hardly meet: the script and the memory store answer the same.

use std::time::Duration;

use sluicegate::{
    MemoryStore, Policy, Store, Usage,
    manual_clock::ManualClock,
    store::{Operation, Reply, Settlement, Slots, StoreExt},
};
use support::{history::START_MS, outcome::Outcome};

use super::{Script, edges::look};

/// The next event. Checks are counted from 0.
#[derive(Clone, Copy, Debug)]
enum Next {
    Check(u64),
    /// The check of this number costs this many units.
    Settle(usize, u64),
    /// The slots of the check of this number.
    Renew(usize),
    /// The same for several checks, in one call.
    Together(&'static [usize]),
    /// The store forgets all counts of the key.
    Reset,
    Wait(u64),
    /// The clock steps back.
    Back(u64),
}

use Next::{Back, Check, Renew, Reset, Settle, Together, Wait};

const CASES: &[(&str, &[Next])] = &[
    // Entries of more than 2 bytes, of which some are released, or too many are used.
    (
        "1000000/10s@1s",
        &[
            Check(70_000),
            Wait(1_000),
            Check(70_000),
            Wait(1_000),
            Check(70_000),
            Wait(9_500),
            Check(1),
            Check(999_999),
        ],
    ),
    (
        "200000/10s@1s",
        &[
            Check(70_000),
            Wait(1_000),
            Check(70_000),
            Wait(1_000),
            Check(60_000),
            Check(100_000),
        ],
    ),
    (
        "1000000/10s@1s",
        &[Check(70_000), Wait(1_000), Check(3), Settle(1, 0), Check(1)],
    ),
    // A refund takes no more than is left of its step, and no units of others.
    (
        "10/10s@1s",
        &[
            Check(5),
            Reset,
            Check(2),
            Wait(1_000),
            Check(3),
            Settle(0, 0),
            Check(9),
        ],
    ),
    // Two steps have to be released before two units fit.
    (
        "10/10s@1s",
        &[Check(1), Wait(1_000), Check(9), Wait(1_000), Check(2)],
    ),
    // A refund of all units of the newest step, with a step before it.
    (
        "10/10s@1s",
        &[Check(2), Wait(1_000), Check(3), Settle(1, 0), Check(9)],
    ),
    // A bucket while the clock is behind, and one that is filled to the last unit.
    (
        "10+10/10s@bucket",
        &[
            Check(3),
            Wait(2_000),
            Check(1),
            Back(500),
            Check(7),
            Check(1),
        ],
    ),
    (
        "10+10/10s@bucket",
        &[Check(3), Check(7), Wait(1_000), Check(1), Check(1)],
    ),
    // A bucket that is full a fraction of a millisecond after its key would expire.
    (
        "100000000+100000000/1s@bucket",
        &[
            Check(1),
            Wait(501),
            Check(50_000_001),
            Wait(500),
            Check(100_000_000),
        ],
    ),
    // Slots are renewed apart and together, and are lost.
    (
        "9/30s@concurrent",
        &[
            Check(2),
            Check(2),
            Check(1),
            Wait(10_000),
            Together(&[0, 2]),
            Wait(20_000),
            Together(&[0, 1, 2]),
            Check(7),
            Check(6),
            Renew(2),
            Wait(30_000),
            Check(9),
        ],
    ),
    (
        "9/30s@concurrent",
        &[
            Check(1),
            Check(2),
            Wait(1_000),
            Check(2),
            Back(1_500),
            Together(&[0, 1]),
            Check(9),
            Reset,
            Check(2),
            Together(&[0, 1, 2]),
            Wait(25_000),
            Check(9),
        ],
    ),
    // A slot that has a millisecond left is kept when others are dropped.
    (
        "9/30s@concurrent",
        &[Wait(1), Check(2), Wait(29_999), Check(2), Check(6)],
    ),
    // More slots than the server keeps in a short list, and some of them expire.
    (
        "300/30s@concurrent",
        &[
            Check(5),
            Wait(1),
            Check(130),
            Renew(1),
            Wait(29_999),
            Together(&[0, 1]),
            Check(171),
        ],
    ),
];

pub(super) async fn all(script: &Script) {
    for (rules, sequence) in CASES {
        script.start(START_MS);
        let policy = Policy::parse("p", rules).unwrap();
        let memory = MemoryStore::new().clock(script.clock.clone());
        let mut stores: [(&dyn Store, Vec<Usage>); 2] =
            [(&script.store, Vec::new()), (&memory, Vec::new())];
        for (place, next) in sequence.iter().enumerate() {
            pass(&script.clock, *next);
            let mut outcomes = Vec::new();
            for (store, usages) in &mut stores {
                outcomes.push(outcomes_of(*store, &policy, usages, *next).await);
            }
            assert_eq!(outcomes[0], outcomes[1], "{rules}: {next:?} ({place})");
        }
    }
}

fn pass(clock: &ManualClock, next: Next) {
    match next {
        Wait(ms) => clock.advance(Duration::from_millis(ms)),
        Back(ms) => clock.set(clock.now_ms() - ms),
        _ => {}
    }
}

async fn outcomes_of(
    store: &dyn Store,
    policy: &Policy,
    usages: &mut Vec<Usage>,
    next: Next,
) -> Vec<Outcome> {
    match next {
        Check(cost) => {
            let decision = store.check(&look(policy, cost)).await.unwrap();
            usages.push(decision.usage().clone());
            vec![Outcome::from(&decision)]
        }
        Settle(number, cost) => {
            let settlement = Settlement::new(&usages[number], |_| cost).unwrap();
            let usage = store.settle(&settlement).await.unwrap();
            vec![Outcome::from(&usage)]
        }
        Renew(number) => renew(store, usages, &[number]).await,
        Together(numbers) => renew(store, usages, numbers).await,
        Reset => {
            let look = look(policy, 0);
            store.reset(policy, look.charges()[0].key()).await.unwrap();
            Vec::new()
        }
        Wait(_) | Back(_) => Vec::new(),
    }
}

/// Renews the slots of these checks in one call.
async fn renew(store: &dyn Store, usages: &[Usage], numbers: &[usize]) -> Vec<Outcome> {
    let slots = numbers
        .iter()
        .flat_map(|number| Slots::of(&usages[*number]));
    let replies = store
        .call(slots.map(Operation::Renew).collect())
        .await
        .unwrap();
    let renewed = replies.into_iter().map(|reply| match reply {
        Ok(Reply::Renew(renewed)) => Outcome::from(&renewed),
        other => panic!("not renewed: {other:?}"),
    });
    renewed.collect()
}
