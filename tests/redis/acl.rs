//! The rights in the documentation are enough, and you can leave none of them out.

mod least_rights {
    support::contract!(support::served::Served::start_with_least_rights);
    support::contributors!(support::served::Served::start_with_contributors_rights);
    support::denials!(support::served::Served::start_with_contributors_rights);
    support::blocks!(support::served::Served::start_with_blocks_rights);
}

use std::time::Duration;

use sluicegate::{
    Charge, Key, Limiter, Policy, RedisStore, Store, StoreError,
    error::StoreErrorKind,
    manual_clock::ManualClock,
    store::{Check, Operation, Slots},
};
use support::{
    redis::Server,
    served::{BLOCKS_RIGHTS, CONTRIBUTORS_RIGHTS, LEAST_RIGHTS, SLOTS_RIGHTS, limited},
};

/// All operations of a limiter, on a server that does not know the script.
async fn everything(store: &RedisStore) -> Result<(), StoreError> {
    let policy = Policy::parse("api", "10/1d").unwrap();
    let alice = Key::new("user", "alice");
    let limiter = Limiter::new(store.clone());
    let charge = || [Charge::new(&policy, alice.clone(), 1)];
    let decision = limiter.check(charge()).await?;
    limiter.settle(decision.usage(), |_| 2).await?;
    limiter.check(charge()).await?;
    limiter.block(&alice, Duration::from_secs(60)).await?;
    limiter.check(charge()).await?;
    limiter.unblock(&alice).await?;
    limiter.reset(&policy, &alice).await
}

#[tokio::test]
async fn without_any_one_of_them_something_fails_and_says_so() {
    // Without the right to ask whether there are blocks, each is read, and without that to read a part, the whole. An
    // expiry moves later.
    let rights = LEAST_RIGHTS.into_iter();
    for missing in rights.filter(|it| !["+exists", "+getrange", "+pexpireat"].contains(it)) {
        let server = Server::start();
        let rights: Vec<_> = LEAST_RIGHTS
            .into_iter()
            .filter(|&it| it != missing)
            .collect();
        let store = RedisStore::connect(limited(&server, &rights))
            .await
            .unwrap();
        let error = everything(&store).await.expect_err(missing);
        assert_eq!(
            error.kind(),
            StoreErrorKind::AccessDenied,
            "{missing}: {error}"
        );
        assert_eq!(
            error.to_string(),
            "the Redis user lacks rights that this store needs",
            "{missing}"
        );
    }
}

#[test]
fn the_documentation_names_these() {
    let page = include_str!("../../docs/guide/servers.md");
    assert!(page.contains(&format!(">PASSWORD {}\n", LEAST_RIGHTS.join(" "))));
    assert!(page.contains(&format!("- `{}` where", BLOCKS_RIGHTS.join(" "))));
    assert!(page.contains(&format!("- `{}` for", SLOTS_RIGHTS.join(" "))));
    assert!(page.contains("- `+hgetall +hset +hdel +pexpire` where"));
    assert!(page.contains(&format!("- `{}` where", CONTRIBUTORS_RIGHTS.join(" "))));
}

#[tokio::test]
async fn a_list_of_blocks_needs_four_more_and_without_them_blocks_hold_all_the_same() {
    for missing in BLOCKS_RIGHTS {
        let server = Server::start();
        let rights = LEAST_RIGHTS.into_iter().chain(BLOCKS_RIGHTS);
        let rights: Vec<_> = rights.filter(|&it| it != missing).collect();
        let store = RedisStore::connect(limited(&server, &rights))
            .await
            .unwrap();
        everything(&store).await.expect(missing);
        let limiter = Limiter::new(store);
        let alice = Key::new("user", "alice");
        limiter
            .block(&alice, Duration::from_secs(60))
            .await
            .unwrap();
        let listed = limiter.blocks(10).await;
        match missing {
            "+zscan" => assert_eq!(listed.unwrap_err().kind(), StoreErrorKind::AccessDenied),
            "+zadd" => assert_eq!(listed.unwrap().len(), 0),
            _ => assert_eq!(listed.unwrap().len(), 1, "{missing}"),
        }
    }
}

#[tokio::test]
async fn slots_need_these_as_well() {
    let policy = Policy::parse("jobs", "300/1h@concurrent").unwrap();
    let alice = Key::new("user", "alice");
    let check = |cost| Check::new([Charge::new(&policy, alice.clone(), cost)]).unwrap();
    let every_operation = async |store: &RedisStore| {
        let few = store.check(&check(100)).await?;
        let many = store.check(&check(150)).await?;
        let more = store.check(&check(1)).await?;
        assert!(few.is_allowed() && many.is_allowed() && more.is_allowed());
        assert!(!store.check(&check(150)).await?.is_allowed());
        for slots in Slots::of(few.usage())
            .into_iter()
            .chain(Slots::of(many.usage()))
        {
            store.execute(Operation::Renew(slots.clone())).await?;
            store.execute(Operation::Return(slots)).await?;
        }
        Ok::<_, StoreError>(())
    };
    // A check drops what has expired in one millisecond of eight, for which a test needs its own clock. Keys then expire
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
        let done = every_operation(&store).await;
        let refused = done.err().map(|error| error.kind());
        assert_eq!(
            refused,
            missing.map(|_| StoreErrorKind::AccessDenied),
            "{missing:?}"
        );
    }
}

#[tokio::test]
async fn contributors_need_four_more_and_without_them_checks_work_all_the_same() {
    let policy = Policy::parse("api", "10/1d").unwrap();
    let acme = Key::new("account", "acme");
    for missing in CONTRIBUTORS_RIGHTS {
        let server = Server::start();
        let rights = LEAST_RIGHTS.into_iter().chain(CONTRIBUTORS_RIGHTS);
        let rights: Vec<_> = rights.filter(|&it| it != missing).collect();
        let url = limited(&server, &rights);
        let store = RedisStore::connect(url).await.unwrap();
        everything(&store).await.expect(missing);
        let limiter = Limiter::new(store);
        let charge =
            Charge::new(&policy, acme.clone(), 1).with_contributor(Key::new("user", "alice"));
        assert!(limiter.check([charge]).await.unwrap().is_allowed());
        let told = limiter.contributors(&policy, &acme).await;
        let error = told.expect_err(missing);
        assert_eq!(error.kind(), StoreErrorKind::AccessDenied, "{missing}");
        assert_eq!(error.code(), Some("NOPERM"), "{missing}");
        let above = Charge::new(&policy, acme.clone(), 11);
        assert!(!limiter.check([above]).await.unwrap().is_allowed());
        let error = limiter.denials().await.expect_err(missing);
        assert_eq!(error.kind(), StoreErrorKind::AccessDenied, "{missing}");
    }
}

#[tokio::test]
async fn for_a_database_other_than_0_one_more_is_needed() {
    let server = Server::start();
    let connect = async |rights: &[&str]| {
        RedisStore::connect(format!("{}/1", limited(&server, rights))).await
    };
    let error = connect(&LEAST_RIGHTS).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::AccessDenied, "{error}");
    let store = connect(&[&LEAST_RIGHTS[..], &["+select"]].concat()).await;
    everything(&store.unwrap()).await.unwrap();
}
