//! Proves that no change of the script passes unnoticed: each mutant of the table answers or writes something wrong.
//!
//! The script and its mutants play the same random histories as the memory store. After each step, answers have to
//! agree, and each value that the plain script has written has to be as `lua/README.md` says.

mod edges;
mod table;

use std::{
    collections::HashMap,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
};

use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use support::{
    history::*,
    lua::LuaServer,
    prelude::*,
    root,
    stored::{assert_sections, assert_sizes, assert_written},
};
use table::MUTANTS;

/// How many histories of each kind are played.
const ROUNDS: usize = 20;

/// A history, and the answers of the memory store.
struct Case {
    history: History,
    right: Vec<Came>,
}

impl Case {
    fn new(history: History) -> Self {
        let clock = ManualClock::new(history.start_ms);
        let memory = MemoryStore::new().clock(clock.clone());
        let mut player = Player::new(&memory, &history).calls(Calls::Apart);
        let right = block_on(async {
            let mut right = Vec::new();
            for step in &history.steps {
                move_clock(&clock, step.gap_ms);
                right.push(player.come(&step.act).await);
            }
            right
        });
        Self { history, right }
    }
}

/// A text of a file of `lua/`, and another in its place.
#[derive(Debug)]
struct Mutant {
    file: &'static str,
    from: String,
    to: String,
}

fn mutants() -> Vec<Mutant> {
    let (mut mutants, mut file) = (Vec::new(), "");
    for line in MUTANTS.lines().filter(|it| !it.is_empty()) {
        match (line.strip_prefix("# "), line.split_once(" =>")) {
            (Some(name), _) => file = name,
            (None, change) => {
                let (from, to) = change.expect(line);
                let to = to.strip_prefix(' ').unwrap_or(to);
                let [from, to] = [from, to].map(|it| it.replace("\\n", "\n"));
                mutants.push(Mutant { file, from, to });
            }
        }
    }
    mutants
}

/// The same in each run.
fn cases() -> Vec<Case> {
    let mut runner = TestRunner::deterministic();
    let kinds = [
        (5, dense().boxed()),
        (1, days().boxed()),
        (1, calls_of_all_kinds().boxed()),
        (1, wild_kinds().boxed()),
        (1, wild().boxed()),
        (1, large().boxed()),
        (1, calls().boxed()),
        (1, spoiled_calls().boxed()),
    ];
    let mut histories = Vec::new();
    for _ in 0..ROUNDS {
        for (count, kind) in &kinds {
            let history = || kind.new_tree(&mut runner).unwrap().current();
            histories.extend(std::iter::repeat_with(history).take(*count));
        }
    }
    let history = || taken_back().new_tree(&mut runner).unwrap().current();
    histories.extend(std::iter::repeat_with(history).take(ROUNDS));
    histories.into_iter().map(Case::new).collect()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap().block_on(future)
}

/// The script or a mutant, in Lua 5.4: the plain script alone, or the whole.
struct Script {
    is_plain: bool,
    server: LuaServer,
    clock: ManualClock,
    store: RedisStore,
    /// The same store by the server's clock.
    unset: RedisStore,
}

impl Script {
    fn new(is_plain: bool, server: LuaServer) -> Self {
        let server = if is_plain { server.plain() } else { server };
        let unset = server.store();
        let clock = ManualClock::new(0);
        Self {
            is_plain,
            server,
            store: unset.clone().clock(clock.clone()),
            clock,
            unset,
        }
    }

    fn mutant(&self, Mutant { file, from, to }: &Mutant) -> Self {
        let text = fs::read_to_string(root().join("lua").join(file)).unwrap();
        let source = self.server.source();
        assert_eq!(
            text.matches(&**from).count(),
            1,
            "{file} has it once: {from}"
        );
        assert_eq!(source.matches(&text).count(), 1, "{file} is in the script");
        let mutant = text.replacen(&**from, to, 1);
        self.server.compile(&source.replacen(&text, &mutant, 1));
        Self::new(self.is_plain, LuaServer::new().changing(&text, &mutant))
    }

    /// Begins again, with nothing stored.
    fn start(&self, now_ms: u64) {
        self.server.clear();
        self.clock.set(now_ms);
    }

    /// Where an answer differs. Panics if a value that was written is wrong.
    async fn play(&self, case: &Case) -> Result<(), String> {
        let history = &case.history;
        self.start(history.start_ms);
        let spoil = |policy: &str, key: &Key, spoiled: Spoiled| {
            self.server.spoil(policy, key, spoiled);
        };
        let mut player = Player::new(&self.store, history).spoil(&spoil);
        let mut before = HashMap::new();
        for (index, (step, right)) in history.steps.iter().zip(&case.right).enumerate() {
            move_clock(&self.clock, step.gap_ms);
            let came = player.come(&step.act).await;
            if came != *right {
                return Err(format!("step {index}: {step:?}: {came:?}, not {right:?}"));
            }
            let written = self.server.written();
            if !matches!(step.act, Act::Spoil(..)) {
                self.assert_written(&before, &written, &player, history, &step.act);
            }
            before = written;
        }
        Ok(())
    }

    fn assert_written(
        &self,
        before: &HashMap<Vec<u8>, (Vec<u8>, u64)>,
        after: &HashMap<Vec<u8>, (Vec<u8>, u64)>,
        player: &Player<'_>,
        history: &History,
        act: &Act,
    ) {
        let now_ms = self.clock.now_ms();
        let policies = history.policies.iter().flatten();
        let rules: Vec<Rule> = policies.flat_map(|it| it.rules().to_vec()).collect();
        let changed = after
            .iter()
            .filter(|(name, it)| before.get(*name) != Some(*it));
        for (name, (value, gone_ms)) in changed {
            if name.ends_with(b":!block") {
                assert_eq!(value[8..14], now_ms.to_le_bytes()[..6], "when it was made");
                continue;
            }
            // In a call of several operations, a value may be written more than once.
            let was = before.get(name).map(|(was, _)| &was[..]);
            let was = (!matches!(act, Act::Call(_))).then_some(was);
            assert_written(value, *gone_ms, now_ms, was, &rules);
            if let Some(was) = was {
                assert_sizes(value, was);
            }
            if let Act::Check(charges) = act {
                let mut policies = charges.iter().map(|(policy, ..)| player.policy(*policy));
                let policy =
                    policies.find(|it| name.ends_with(format!("{}~1", it.name()).as_bytes()));
                assert_sections(value, policy.unwrap().rules());
            }
        }
    }

    /// Puts the case that fails before all others, since the next mutant is one of the same lines.
    fn is_caught(&self, cases: &mut [&Case]) -> bool {
        let fails = |case: &&Case| {
            let play = AssertUnwindSafe(|| block_on(self.play(case)));
            !catch_unwind(play).is_ok_and(|it| it.is_ok())
        };
        let fails_at_edges =
            || catch_unwind(AssertUnwindSafe(|| block_on(edges::all(self)))).is_err();
        // The edges take as long as a few of the histories, which catch most.
        let few = cases.len().min(26);
        let first = cases[..few].iter().position(fails);
        if first.is_none() && fails_at_edges() {
            return true;
        }
        let place = first.or_else(|| Some(few + cases[few..].iter().position(fails)?));
        place.is_some_and(|place| {
            cases[..=place].rotate_right(1);
            true
        })
    }
}

#[test]
fn each_mutant_of_the_script_is_caught() {
    let cases = cases();
    let [whole, plain] = [false, true].map(|is_plain| Script::new(is_plain, LuaServer::new()));
    let is_right = |script: &Script| {
        block_on(edges::all(script));
        let play = |case| block_on(script.play(case)).unwrap();
        cases.iter().for_each(play);
    };
    thread::scope(|scope| {
        scope.spawn(|| is_right(&whole));
        is_right(&plain);
    });

    let mutants = mutants().into_iter();
    let (mutants, survivors) = (Mutex::new(mutants), Mutex::new(Vec::new()));
    let work = || {
        let next = || mutants.lock().unwrap().next();
        let mut cases: Vec<_> = cases.iter().collect();
        while let Some(mutant) = next() {
            let is_plain = mutant.file.starts_with("plain/");
            let script = if is_plain { &plain } else { &whole };
            if !script.mutant(&mutant).is_caught(&mut cases) {
                survivors.lock().unwrap().push(mutant);
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    let survivors = survivors.into_inner().unwrap();
    assert!(survivors.is_empty(), "not caught: {survivors:#?}");
}
