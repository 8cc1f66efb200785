//! The rights in the documentation are enough, and you can leave none of them out.

mod least_rights {
    support::contract!(support::served::Served::start_with_least_rights);
    support::contributors!(support::served::Served::start_with_contributors_rights);
    support::denials!(support::served::Served::start_with_contributors_rights);
    support::blocks!(support::served::Served::start_with_blocks_rights);
}

use support::served::{CONTRIBUTORS_RIGHTS, SLOTS_RIGHTS};

use crate::{
    prelude::*,
    transactions::{self, pool},
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Script,
    Transactions,
}

const BOTH: [By; 2] = [By::Script, By::Transactions];

impl By {
    fn least(self) -> &'static [&'static str] {
        match self {
            Self::Script => &LEAST_RIGHTS,
            Self::Transactions => &transactions::RIGHTS,
        }
    }

    /// A store of a user with the least rights and these, but not `missing`.
    async fn store(self, server: &Server, more: &[&str], missing: Option<&str>) -> Arc<dyn Store> {
        let rights = self.least().iter().chain(more).copied();
        let rights: Vec<_> = rights.filter(|&it| Some(it) != missing).collect();
        let url = limited(server, &rights);
        match self {
            Self::Script => Arc::new(RedisStore::connect(url).await.unwrap()),
            Self::Transactions => Arc::new(RedisStore::transactions(pool(url).await)),
        }
    }
}

fn limiter(store: Arc<dyn Store>) -> Limiter {
    Limiter::new(store).timeout(Duration::from_secs(30))
}

/// All operations of a limiter, on a server that does not know the script.
async fn everything(limiter: &Limiter) -> Result<(), StoreError> {
    let (policy, alice) = (api("10/1d"), user("alice"));
    let decision = limiter.check(one(&policy, "alice")).await?;
    limiter.settle(decision.usage(), |_| 2).await?;
    limiter.check(one(&policy, "alice")).await?;
    limiter.block(&alice, Duration::from_secs(60)).await?;
    assert!(is_blocked(&limiter.check(one(&policy, "alice")).await?));
    limiter.unblock(&alice).await?;
    assert_eq!(left(limiter, &policy, "alice").await, 7);
    limiter.reset(&policy, &alice).await
}

fn is_denied(error: &StoreError, missing: &str) {
    let said = (error.kind(), error.code());
    let expected = (StoreErrorKind::AccessDenied, Some("NOPERM"));
    assert_eq!(said, expected, "{missing}: {error}");
}

#[tokio::test]
async fn everything_works_with_these_and_without_any_one_something_fails_and_says_so() {
    // Without the right to ask whether there are blocks, each is read, and without that to read a part, the whole. An
    // expiry moves later.
    let optional = ["+exists", "+getrange", "+pexpireat"];
    let all = |by: By| by.least().iter().map(move |&it| (by, it));
    let cases = BOTH.into_iter().flat_map(all);
    for by in BOTH {
        let server = Server::start();
        let with_all = limiter(by.store(&server, &[], None).await);
        everything(&with_all).await.unwrap();
    }
    for (by, missing) in cases.filter(|(_, it)| !optional.contains(it)) {
        let server = Server::start();
        let limiter = limiter(by.store(&server, &[], Some(missing)).await);
        let error = everything(&limiter).await.expect_err(missing);
        is_denied(&error, missing);
        let message = "the Redis user lacks rights that this store needs";
        assert_eq!(error.to_string(), message, "{missing}");
        // A transaction is done wholly or not at all.
        if by == By::Transactions && missing != "+del" {
            assert_eq!(server.run::<u64>("DBSIZE"), 0, "{missing}");
        }
    }
}

#[test]
fn the_documentation_names_these() {
    let servers = include_str!("../../docs/guide/servers.md");
    let transactions = include_str!("../../docs/guide/transactions.md");
    let published = ["+hgetall", "+hset", "+hdel", "+pexpire"];
    for (page, before, rights, after) in [
        (servers, ">PASSWORD ", &LEAST_RIGHTS[..], "\n"),
        (servers, "- `", &BLOCKS_RIGHTS, "` where"),
        (servers, "- `", &SLOTS_RIGHTS, "` for"),
        (servers, "- `", &published, "` where"),
        (servers, "- `", &CONTRIBUTORS_RIGHTS, "` where"),
        (transactions, ">PASSWORD ", &transactions::RIGHTS, "\n"),
        (transactions, "and\n`", &BLOCKS_RIGHTS, "` to"),
        (transactions, "also `", &transactions::SLOTS_RIGHTS, "`."),
    ] {
        let text = format!("{before}{}{after}", rights.join(" "));
        assert!(page.contains(&text), "{text}");
    }
}

#[tokio::test]
async fn a_list_of_blocks_needs_four_more_and_without_them_blocks_hold_all_the_same() {
    let all = |by| BLOCKS_RIGHTS.map(|it| (by, it));
    for (by, missing) in BOTH.into_iter().flat_map(all) {
        let server = Server::start();
        let limiter = limiter(by.store(&server, &BLOCKS_RIGHTS, Some(missing)).await);
        everything(&limiter).await.expect(missing);
        limiter.block(&user("alice"), HOUR).await.unwrap();
        let listed = limiter.blocks(10).await;
        match missing {
            "+zscan" => assert_eq!(kind(listed), Some(StoreErrorKind::AccessDenied)),
            "+zadd" => assert_eq!(listed.unwrap().len(), 0),
            _ => assert_eq!(listed.unwrap().len(), 1, "{missing}"),
        }
    }
}

async fn every_operation_with_slots(store: &dyn Store) -> Result<(), StoreError> {
    let policy = policy("jobs", "300/1h@concurrent");
    let check = |cost| check([charge(&policy, "alice", cost)]);
    let few = store.check(&check(100)).await?;
    let many = store.check(&check(150)).await?;
    let more = store.check(&check(1)).await?;
    assert!(few.is_allowed() && many.is_allowed() && more.is_allowed());
    assert!(!store.check(&check(150)).await?.is_allowed());
    for slots in [few, many].iter().flat_map(|it| Slots::of(it.usage())) {
        store.execute(Operation::Renew(slots.clone())).await?;
        store.execute(Operation::Return(slots)).await?;
    }
    store.check(&check(150)).await.map(drop)
}

#[tokio::test]
async fn slots_need_these_as_well() {
    let refused = |missing: Option<&str>| missing.map(|_| StoreErrorKind::AccessDenied);
    // A check drops expired entries in one millisecond of eight, for which a test needs its own clock. Keys then expire
    // by `PEXPIRE`.
    let cases = SLOTS_RIGHTS.map(|it| (Some(it), it == "+zremrangebyscore"));
    for (missing, own_clock) in cases.into_iter().chain([(None, false), (None, true)]) {
        let server = Server::start();
        let rights = LEAST_RIGHTS.into_iter().chain(SLOTS_RIGHTS);
        let rights = rights.filter(|&it| Some(it) != missing);
        let rights: Vec<_> = rights.chain(own_clock.then_some("+pexpire")).collect();
        let store = RedisStore::connect(limited(&server, &rights)).await;
        let mut store = store.unwrap();
        if own_clock {
            store = store.clock(ManualClock::new(1_700_000_000_000));
        }
        let done = every_operation_with_slots(&store).await;
        assert_eq!(kind(done), refused(missing), "{missing:?}");
    }
    let rights = transactions::SLOTS_RIGHTS;
    for missing in rights.map(Some).into_iter().chain([None]) {
        let server = Server::start();
        let store = By::Transactions.store(&server, &rights, missing).await;
        let done = every_operation_with_slots(&store).await;
        assert_eq!(kind(done), refused(missing), "{missing:?}");
    }
}

#[tokio::test]
async fn contributors_need_four_more_and_without_them_checks_work_all_the_same() {
    let (policy, acme) = (api("10/1d"), user("acme"));
    for missing in CONTRIBUTORS_RIGHTS {
        let server = Server::start();
        let store = By::Script.store(&server, &CONTRIBUTORS_RIGHTS, Some(missing));
        let limiter = limiter(store.await);
        everything(&limiter).await.expect(missing);
        let [unit] = one(&policy, "acme");
        let admitted = limiter.check([unit.with_contributor(user("alice"))]).await;
        assert!(admitted.unwrap().is_allowed());
        let told = limiter.contributors(&policy, &acme).await;
        is_denied(&told.expect_err(missing), missing);
        let above = limiter.check([charge(&policy, "acme", 11)]).await;
        assert!(!above.unwrap().is_allowed());
        let denials = limiter.denials().await;
        is_denied(&denials.expect_err(missing), missing);
    }
}

#[tokio::test]
async fn for_a_database_other_than_0_one_more_is_needed() {
    let server = Server::start();
    let connect = async |rights: &[&str]| {
        RedisStore::connect(format!("{}/1", limited(&server, rights))).await
    };
    let refused = connect(&LEAST_RIGHTS).await;
    assert_eq!(kind(refused), Some(StoreErrorKind::AccessDenied));
    let store = connect(&[&LEAST_RIGHTS[..], &["+select"]].concat()).await;
    everything(&limiter(Arc::new(store.unwrap())))
        .await
        .unwrap();
}
