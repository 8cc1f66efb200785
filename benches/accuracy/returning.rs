//! Clients that are alone on their key, are denied, and come back exactly when they may, or earlier.

use std::time::Duration;

use futures::future::join_all;
use sluicegate::{Key, Limiter, Policy, RedisStore};

use crate::{
    job::PATIENCE,
    judge::{Answer, ms},
    page::{Page, head, line},
    worker::{ask, timed},
};
use support::redis::Server;

const CLIENTS: u64 = 32;
const ROUNDS: u64 = 6;

/// The time by which impatient clients come back too early.
const EARLY: Duration = Duration::from_millis(5);

/// The number of requests, and the number of admissions.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    times: u64,
    admitted: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Returns {
    /// Clients that waited for the delay, and asked once.
    obedient: Asked,
    /// Clients that came back too early and kept asking, by the store's clock: before the millisecond, in it, after it.
    before: Asked,
    exactly: Asked,
    later: Asked,
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn returning(page: &mut Page) {
    head(
        "Coming back after `retry_after`, 32 clients, each alone on its key: admitted of those who asked",
        &[
            "rule",
            "after exactly that wait",
            "before the millisecond",
            "in it",
            "later",
        ],
    );
    let server = Server::start();
    let store = RedisStore::connect(server.url()).await.unwrap();
    let limiter = Limiter::new(store).timeout(PATIENCE);
    for text in ["20/1s", "20/1s@exact", "20/1s@250ms", "20/1s@fixed"] {
        let returns = returns(&limiter, text).await;
        let cells = [
            returns.obedient,
            returns.before,
            returns.exactly,
            returns.later,
        ]
        .map(|asked| format!("{} of {}", asked.admitted, asked.times));
        let text = format!("`{text}`");
        line(&[&text, &cells[0], &cells[1], &cells[2], &cells[3]]);
        page.promise(
            returns.keep_the_promise(),
            format!("{text}: a promise to who comes back"),
        );
    }
}

async fn returns(limiter: &Limiter, rule: &str) -> Returns {
    let policy = timed(0, rule);
    let clients = (0..CLIENTS).map(|client| {
        let policy = policy.clone();
        let key = Key::new("user", format!("{rule}-{client}"));
        async move { returns_of(limiter, &policy, &key).await }
    });
    join_all(clients)
        .await
        .into_iter()
        .fold(Returns::default(), Returns::and)
}

async fn returns_of(limiter: &Limiter, policy: &Policy, key: &Key) -> Returns {
    let mut returns = Returns::default();
    for round in 0..ROUNDS {
        let (told_at, wait) = until_denied(limiter, policy, key).await;
        // Every other round obeys. The rest asks too early, to find the millisecond from which on it is admitted.
        if round % 2 == 0 {
            tokio::time::sleep(wait).await;
            let (_, answer) = ask(limiter, policy, key.clone()).await;
            returns.obedient.note(answer);
            continue;
        }
        tokio::time::sleep(wait.saturating_sub(EARLY)).await;
        let opens = told_at + ms(wait);
        loop {
            let (at, answer) = ask(limiter, policy, key.clone()).await;
            let asked = match at.cmp(&opens) {
                std::cmp::Ordering::Less => &mut returns.before,
                std::cmp::Ordering::Equal => &mut returns.exactly,
                std::cmp::Ordering::Greater => &mut returns.later,
            };
            asked.note(answer);
            if answer == Answer::Admitted || at > opens {
                break;
            }
        }
    }
    returns
}

/// Asks until there is a denial. Returns the time and the delay.
async fn until_denied(limiter: &Limiter, policy: &Policy, key: &Key) -> (u64, Duration) {
    for _ in 0..1_000 {
        match ask(limiter, policy, key.clone()).await {
            (at, Answer::Denied(wait)) => return (at, wait),
            (_, Answer::Admitted) => {
                tokio::time::sleep(Duration::from_millis(fastrand::u64(..40))).await;
            }
            (_, answer) => panic!("{answer:?} from a server in peace"),
        }
    }
    panic!("{policy:?} denies no request");
}

impl Asked {
    fn note(&mut self, answer: Answer) {
        self.times += 1;
        self.admitted += u64::from(answer == Answer::Admitted);
    }

    fn and(self, other: Self) -> Self {
        Self {
            times: self.times + other.times,
            admitted: self.admitted + other.admitted,
        }
    }
}

impl Returns {
    fn and(self, other: Self) -> Self {
        Self {
            obedient: self.obedient.and(other.obedient),
            before: self.before.and(other.before),
            exactly: self.exactly.and(other.exactly),
            later: self.later.and(other.later),
        }
    }

    fn keep_the_promise(&self) -> bool {
        let all = |asked: Asked| asked.times == asked.admitted;
        self.before.admitted == 0 && all(self.obedient) && all(self.exactly) && all(self.later)
    }
}
