//! Sentences about stores, as rows of a table: a line with the sentence, and below it acts, which every store has to
//! answer so.
//!
//! Acts are separated by `;`. Times are milliseconds from the start of the row, or have a unit: `1500`, `-30s`, `2h`.
//!
//! | act | meaning |
//! |---|---|
//! | `p = 5/1m,9/1h` | the policy `p`; `few = p 5/1m` is another of this name, `p = 5/1m shadow` a shadow, and `p = 1/1d 3/1m=1h` has a ban |
//! | `+30s`, `-1s`, `@1150`, `@2024-05-10` | the clock goes forward or back, or is set |
//! | `p alice 4` | a check is admitted; `3* p alice 4` does so three times, and `p alice 4 & q bob 1` has two charges |
//! | `p alice 4 !2100` | it is denied for so long; `!never` has no end, `!` any, `!operator` is a block by one, and `!ban:500` a ban, with the rest |
//! | `p alice 4 = 6 1/500` | the units left under each rule, and with `/` when all are back |
//! | `p alice = 6` | a look at that, which is neither admitted nor denied |
//! | `x: p alice 4` | gives this check a name, for the acts below; `again x` repeats the message |
//! | `settle x 7 = 3` | settles it; `!` is an error, and `settle x back` takes it back |
//! | `renew x y`, `return x` | renews or returns their slots, all of which were held; `!` none, `!1+2-` the first of three |
//! | `reset p alice` | forgets the counts |
//! | `strike p alice & q bob !` | a check with costs of 2 in a process of its own, after which its strikes are counted |
//! | `block alice 5s`, `unblock alice` | an operator's block, for ever with `forever`, or until a time with `@` |
//! | `pause alice 5s`, `ban alice @1s 1/1m=1h` | other blocks, and with `= 5s` when the block in force ends |
//! | `bans alice 2/10s` | bans for an hour if there are so many strikes, else `!` |
//! | `elsewhere p alice 4` | the same, but by another process than the limiter that the row is about, if it is about one |
//! | `down`, `hangs`, `up` | what becomes of calls of the store from now on; an undecided check is `!error` |
//! | `p alice 4 !~`, `p alice 4 ^` | a denial that a cache repeats, and a decision of this process alone |
//! | `listed level = 2/9s` | the level of the only block that is listed, and until when it is kept; `!` if none is listed |

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    time::UNIX_EPOCH,
};

use super::{
    blocks::ban_until,
    contract::patient,
    flaky::{Flaky, State},
    paused_runtime,
    prelude::*,
};

pub type Row = (&'static str, Vec<&'static str>);

pub fn rows(table: &'static str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for line in table.lines().filter(|it| !it.trim().is_empty()) {
        match line.strip_prefix(' ') {
            None => rows.push((line, Vec::new())),
            Some(acts) if acts.trim().starts_with('#') => {}
            Some(acts) => {
                let acts = acts.split(';').map(str::trim);
                let last = rows.last_mut().expect("a sentence comes first");
                last.1.extend(acts.filter(|it| !it.is_empty()));
            }
        }
    }
    rows
}

/// Plays a row on an empty store. Panics at the first answer that is not as the row says, and shows the row and the act.
pub async fn play(store: &Arc<dyn Store>, clock: &ManualClock, row: &Row) {
    play_and(store, clock, row, &mut |_| {}).await;
}

/// Plays each row through a limiter over a store that can be down, with a paused clock, and names all that do not hold.
pub fn hold(table: &'static str, limiter: impl Fn(&Flaky, &ManualClock) -> Limiter) {
    each_holds(&rows(table), |row| {
        paused_runtime().block_on(async {
            let (flaky, clock) = Flaky::new();
            let limiter = limiter(&flaky, &clock);
            let store: Arc<dyn Store> = Arc::new(flaky.clone());
            let play = Play {
                limiter: Some((limiter, flaky)),
                ..Play::new(&store, &clock)
            };
            play.row(row, &mut |_| {}).await;
        });
    });
}

/// Plays each row, and names all that do not hold.
pub fn each_holds(rows: &[Row], play: impl Fn(&Row)) {
    let holds = |row: &&Row| catch_unwind(AssertUnwindSafe(|| play(row))).is_ok();
    let wrong = rows.iter().filter(|row| !holds(row)).map(|row| row.0);
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "these rows do not hold: {wrong:#?}");
}

/// The same, and calls this with all rules of the row after each act.
pub async fn play_and(
    store: &Arc<dyn Store>,
    clock: &ManualClock,
    row: &Row,
    after: &mut dyn FnMut(&[Rule]),
) {
    clock.set(START_MS);
    Play::new(store, clock).row(row, after).await;
}

/// Shows the text of a row, and which act it is at, if that panics.
struct At<'a> {
    row: &'a Row,
    act: usize,
}

impl Drop for At<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let (sentence, acts) = self.row;
        eprintln!("{sentence}");
        for (place, act) in acts.iter().enumerate() {
            let mark = if place == self.act {
                "──▶"
            } else {
                "   "
            };
            eprintln!("{mark} {act}");
        }
    }
}

struct Play<'a> {
    store: &'a Arc<dyn Store>,
    clock: &'a ManualClock,
    policies: HashMap<&'static str, Policy>,
    checks: HashMap<&'static str, (Check, Usage)>,
    limiter: Option<(Limiter, Flaky)>,
    is_elsewhere: bool,
}

impl<'a> Play<'a> {
    fn new(store: &'a Arc<dyn Store>, clock: &'a ManualClock) -> Self {
        let (policies, checks) = (HashMap::new(), HashMap::new());
        Self {
            store,
            clock,
            policies,
            checks,
            limiter: None,
            is_elsewhere: false,
        }
    }

    async fn row(mut self, row: &Row, after: &mut dyn FnMut(&[Rule])) {
        let mut at = At { row, act: 0 };
        for (place, act) in row.1.iter().enumerate() {
            at.act = place;
            let (times, act) = act.split_once("* ").unwrap_or(("1", act));
            for time in 1..=times.parse::<usize>().unwrap() {
                if let Some(wrong) = self.act(act).await {
                    panic!("time {time} of {times}, the answer is {wrong}");
                }
                let rules = self.policies.values().flat_map(|it| it.rules().to_vec());
                after(&rules.collect::<Vec<_>>());
            }
        }
    }

    /// The limiter that the act goes through, or none for the store itself.
    fn limiter(&self) -> Option<&Limiter> {
        let limiter = self.limiter.as_ref().filter(|_| !self.is_elsewhere);
        limiter.map(|it| &it.0)
    }

    /// Returns the answer if it is wrong.
    async fn act(&mut self, act: &'static str) -> Option<String> {
        let words: Vec<&str> = act.split_whitespace().collect();
        let expected = words
            .iter()
            .position(|it| *it == "=" || it.starts_with(['!', '^', '~']));
        let (asked, expected) = words.split_at(expected.unwrap_or(words.len()));
        self.is_elsewhere = asked.first() == Some(&"elsewhere");
        match &asked[usize::from(self.is_elsewhere)..] {
            [label] if expected.first() == Some(&"=") => self.define(label, &expected[1..]),
            [change] => self.change(change).await,
            ["reset" | "unblock", ..] => return self.forget(asked, expected).await,
            ["strike", charges @ ..] => return self.strike(charges, expected).await,
            [kind @ ("block" | "pause" | "ban"), name, until, ban @ ..] => {
                return self.block(kind, name, until, ban, expected).await;
            }
            ["bans", name, strikes] => return self.ban(name, strikes, expected).await,
            ["listed", "level"] => {
                let level = self.level(expected.first() == Some(&"!")).await;
                return differs(expected, level.is_none(), "", &Vec::from_iter(level));
            }
            ["settle", label, cost] => return self.settle(label, cost, expected).await,
            [message @ ("renew" | "return"), labels @ ..] => {
                return self.ask_about_slots(message, labels, expected).await;
            }
            ["again", label] => {
                let check = self.checks[label].0.clone();
                return self.check(check, None, expected).await;
            }
            [label, charges @ ..] if label.ends_with(':') => {
                let check = self.check_of(charges);
                return self.check(check, label.strip_suffix(':'), expected).await;
            }
            // A look has no cost.
            look @ [_, _] => return self.look(look, expected).await,
            charges => return self.check(self.check_of(charges), None, expected).await,
        }
        None
    }

    /// Changes the clock, or what becomes of calls.
    async fn change(&self, change: &str) {
        if let Some(time) = change.strip_prefix('@') {
            return self.clock.set(time_ms(time));
        }
        let state = match change {
            "down" => State::Down,
            "hangs" => State::Hanging,
            "up" => State::Up,
            time => {
                let now_ms = self.clock.now_ms().saturating_add_signed(millis(time));
                self.clock.set(now_ms);
                if self.limiter.is_some() {
                    advance(ms(millis(time).unsigned_abs())).await;
                }
                return;
            }
        };
        self.limiter.as_ref().expect("a limiter").1.is_now(state);
    }

    async fn forget(&self, asked: &[&str], expected: &[&str]) -> Option<String> {
        let key = key(asked.last().expect("a name"));
        let forgotten = match (asked, self.limiter()) {
            ([.., policy, _], limiter) if self.policies.contains_key(*policy) => {
                let policy = &self.policies[*policy];
                match limiter {
                    Some(limiter) => limiter.reset(policy, &key).await,
                    None => self.store.reset(policy, &key).await,
                }
            }
            (_, Some(limiter)) => limiter.unblock(&key).await,
            (_, None) => self.store.unblock(&key).await,
        };
        differs(expected, forgotten.is_err(), "", &[])
    }

    async fn strike(&self, charges: &[&'static str], expected: &[&str]) -> Option<String> {
        let another = || patient(Arc::clone(self.store));
        let limiter = self.limiter().cloned().unwrap_or_else(another);
        let charges = charges.split(|it| *it == "&").map(|words| {
            let cost = words.get(2).map_or(2, |it| it.parse().unwrap());
            Charge::new(&self.policies[words[0]], key(words[1]), cost)
        });
        let decision = limiter.check(charges.collect::<Vec<_>>()).await;
        limiter.strikes_counted().await;
        answer(expected, &decision, &[])
    }

    async fn block(
        &self,
        kind: &str,
        name: &str,
        until: &str,
        ban: &[&str],
        expected: &[&str],
    ) -> Option<String> {
        let until = match until.strip_prefix('@') {
            Some(time) => Until::At(UNIX_EPOCH + ms(time_ms(time))),
            None if until == "forever" => Until::Forever,
            None => Until::After(ms(millis(until).unsigned_abs())),
        };
        let request = match (kind, until) {
            ("pause", Until::After(length)) => BlockRequest::pause(length),
            ("ban", until) => ban_until(ban[0], until),
            (_, until) => until.into(),
        };
        let block = match self.limiter() {
            Some(limiter) => limiter.block(&key(name), request).await,
            None => self.store.block(&key(name), request).await,
        };
        let end = block.as_ref().map(|it| (since_start(it.until_ms()), 0));
        differs(expected, end.is_err(), "", &Vec::from_iter(end))
    }

    async fn ban(&self, name: &str, strikes: &str, expected: &[&str]) -> Option<String> {
        let until = Until::At(UNIX_EPOCH + ms(self.clock.now_ms()) + HOUR);
        let request = ban_until("3/10m=1h", until);
        let strikes = strikes.parse().unwrap();
        let ban = self.store.ban(&key(name), strikes, request).await.unwrap();
        let ban = ban.map(|it| (since_start(it.until_ms()), 0));
        differs(expected, ban.is_none(), "", &Vec::from_iter(ban))
    }

    async fn settle(&self, label: &str, cost: &str, expected: &[&str]) -> Option<String> {
        let is_back = cost == "back";
        let cost = if is_back {
            0
        } else {
            cost.parse().unwrap_or(u64::MAX)
        };
        let usage = &self.checks[label].1;
        let settled = match self.limiter().filter(|_| !is_back) {
            Some(limiter) => limiter.settle(usage, |_| cost).await.ok(),
            None => match Settlement::new(usage, |_| cost) {
                Ok(it) if is_back => self.store.settle(&it.taking_back()).await.ok(),
                Ok(settlement) => self.store.settle(&settlement).await.ok(),
                Err(_) => None,
            },
        };
        let left = settled.as_ref().map_or_else(Vec::new, left_of);
        differs(expected, settled.is_none(), "", &left)
    }

    async fn ask_about_slots(
        &self,
        message: &str,
        labels: &[&str],
        expected: &[&str],
    ) -> Option<String> {
        let slots = labels
            .iter()
            .flat_map(|label| Slots::of(&self.checks[label].1));
        let messages = slots.map(|slots| match message {
            "renew" => Operation::Renew(slots),
            _ => Operation::Return(slots),
        });
        let replies = self.store.call(messages.collect()).await.unwrap();
        let (mut held, mut left) = (Vec::new(), Vec::new());
        for reply in replies {
            let (Reply::Renew(answer) | Reply::Return(answer)) = reply.unwrap() else {
                panic!("not an answer about slots");
            };
            held.extend(answer.held());
            left.extend(left_of(answer.usage()));
        }
        let all = !held.is_empty() && held.iter().all(|it| *it);
        let none = held.iter().all(|it| !it);
        let runs = held.chunk_by(|one, next| one == next);
        let runs = runs.map(|it| format!("{}{}", it.len(), if it[0] { '+' } else { '-' }));
        let lost = if all {
            String::new()
        } else {
            format!("!{}", runs.collect::<String>())
        };
        differs(expected, none, &lost, &left)
    }

    async fn look(&self, look: &[&'static str], expected: &[&str]) -> Option<String> {
        let check = self.check_of(look).without_cost();
        let usage = match self.limiter() {
            Some(limiter) => limiter.peek(check.charges().to_vec()).await.unwrap(),
            None => self.store.check(&check).await.unwrap().usage().clone(),
        };
        differs(expected, false, flags(&usage), &left_of(&usage))
    }

    /// In a cluster, the index may be on another node, and a first connection to that node takes longer than the
    /// timeout.
    async fn level(&self, is_none: bool) -> Option<(u64, u64)> {
        for _ in 0..if is_none { 1 } else { 200 } {
            let listed = self.store.blocks(10).await.unwrap();
            if let Some(first) = listed.first() {
                assert_eq!(listed.len(), 1, "{listed:?}");
                let details = first.details();
                return Some((
                    details.ban_level()?.into(),
                    since_start(details.ban_level_until_ms()),
                ));
            }
        }
        None
    }

    fn define(&mut self, label: &'static str, words: &[&'static str]) {
        let (name, words) = match words {
            [name, ..] if !name.contains('/') => (*name, &words[1..]),
            _ => (label, words),
        };
        let policy = Policy::parse(name, words[0]).unwrap();
        let policy = match words.get(1) {
            Some(&"shadow") => policy.shadow(),
            Some(ban) => policy.ban(ban.parse().unwrap()),
            None => policy,
        };
        self.policies.insert(label, policy);
    }

    fn check_of(&self, words: &[&'static str]) -> Check {
        let charges = words.split(|it| *it == "&").map(|words| {
            let cost = words.get(2).map_or(0, |it| it.parse().unwrap_or(u64::MAX));
            Charge::new(&self.policies[words[0]], key(words[1]), cost)
        });
        Check::new(charges).unwrap().enforce_blocks(true)
    }

    async fn check(
        &mut self,
        check: Check,
        label: Option<&'static str>,
        expected: &[&str],
    ) -> Option<String> {
        let charges = check.charges().iter().chain(check.shadow_charges());
        let decision = match self.limiter() {
            Some(limiter) => limiter.check(charges.cloned().collect::<Vec<_>>()).await,
            None => self.store.check(&check).await,
        };
        let left = decision
            .as_ref()
            .map_or_else(|_| Vec::new(), |it| left_of(it.usage()));
        if let Some(usage) = decision.as_ref().ok().map(Decision::usage)
            && !usage.is_local()
        {
            assert_eq!(usage.decided_at_ms(), self.clock.now_ms());
        }
        if let (Some(label), Ok(decision)) = (label, &decision) {
            self.checks.insert(label, (check, decision.usage().clone()));
        }
        answer(expected, &decision, &left)
    }
}

/// The answer to a check if it differs.
fn answer(
    expected: &[&str],
    decision: &Result<Decision, StoreError>,
    left: &[(u64, u64)],
) -> Option<String> {
    let decision = match decision {
        Ok(decision) => decision,
        Err(error) => {
            return differs(
                expected,
                false,
                &format!("!error:{}", error.kind().as_str()),
                &[],
            );
        }
    };
    assert!(
        left.is_empty() || !is_blocked(decision),
        "a block tells no counts"
    );
    let refusal = refusal(decision) + flags(decision.usage());
    differs(expected, is_denied(decision), &refusal, left)
}

fn flags(usage: &Usage) -> &'static str {
    match (usage.is_cached(), usage.is_local()) {
        (true, _) => "~",
        (_, true) => "^",
        _ => "",
    }
}

/// As in a row: `!500`, `!never` or `!operator:500`.
fn refusal(decision: &Decision) -> String {
    let kind = match decision {
        Decision::Denied(it) => {
            let rule = it.rule();
            assert!(rule.is_exceeded(), "by {}", rule.rule());
            assert_eq!(rule.retry_after(), it.retry_after(), "by {}", rule.rule());
            String::new()
        }
        Decision::Blocked(it) => format!("{}:", it.block().source().as_str()),
        _ => return String::new(),
    };
    let wait = retry_after(decision);
    let wait = wait.map_or("never".into(), |it| it.as_millis().to_string());
    format!("!{kind}{wait}")
}

/// The answer if it differs from the words that a row expects.
fn differs(
    expected: &[&str],
    is_refused: bool,
    refusal: &str,
    left: &[(u64, u64)],
) -> Option<String> {
    let (refused, units) = match expected {
        [refused, "=", units @ ..] => (*refused, units),
        ["=", units @ ..] => ("", units),
        [refused] => (*refused, &[][..]),
        _ => ("", &[][..]),
    };
    let refusal = if is_refused && refusal.is_empty() {
        "!"
    } else {
        refusal
    };
    let flags: &[char] = &['~', '^'];
    let (expected, said) = (
        refused.trim_end_matches(flags),
        refusal.trim_end_matches(flags),
    );
    let has_flags = refused[expected.len()..] == refusal[said.len()..];
    let time = expected.find(|it: char| it.is_ascii_digit());
    let is_kind = match (expected, time.map(|at| expected.split_at(at))) {
        _ if said == expected => true,
        ("!", _) => is_refused,
        ("!operator" | "!ban" | "!pause" | "!error", _) => said.starts_with(expected),
        (_, Some((kind, time))) => said == format!("{kind}{}", millis(time)),
        (_, None) => false,
    };
    let is_left = units.iter().zip(left).all(|(expected, (left, reset_ms))| {
        let (units, reset) = expected.split_once('/').unwrap_or((expected, ""));
        (units.is_empty() || millis(units).unsigned_abs() == *left)
            && (reset.is_empty() || millis(reset).unsigned_abs() == *reset_ms)
    });
    let is_right =
        is_kind && has_flags && is_left && (units.is_empty() || units.len() == left.len());
    (!is_right).then(|| format!("{refusal:?} {left:?}"))
}

/// The units left under each rule, and in how many ms all are back.
fn left_of(usage: &Usage) -> Vec<(u64, u64)> {
    let rules = usage.rules();
    rules
        .map(|it| (it.remaining(), super::outcome::ms(it.reset_after())))
        .collect()
}

fn since_start(until_ms: Option<u64>) -> u64 {
    until_ms.map_or(u64::MAX, |it| it.saturating_sub(START_MS))
}

fn key(name: &str) -> Key {
    let (kind, name) = name.split_once('/').unwrap_or(("user", name));
    match kind {
        "ip" => Key::new("ip", name),
        "secret" => Key::secret("user", name),
        _ => user(name),
    }
}

/// A time after the start, or one of the calendar.
fn time_ms(text: &str) -> u64 {
    let midnight = if text.len() == 10 { "T00:00:00Z" } else { "" };
    match format!("{text}{midnight}").parse::<jiff::Timestamp>() {
        Ok(time) => time.as_millisecond().unsigned_abs(),
        Err(_) => START_MS.saturating_add_signed(millis(text)),
    }
}

pub fn millis(text: &str) -> i64 {
    let unit = text
        .find(|it: char| it.is_alphabetic())
        .unwrap_or(text.len());
    let number: i64 = text[..unit]
        .parse()
        .unwrap_or_else(|_| panic!("not a time: {text}"));
    number
        * match &text[unit..] {
            "" | "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            other => panic!("not a unit: {other}"),
        }
}
