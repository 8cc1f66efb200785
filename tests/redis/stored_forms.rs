//! Two versions of this crate that store counts in different forms, side by side on one server.

use crate::prelude::*;

/// Two stores of each form.
async fn both_forms(server: &Server) -> [[RedisStore; 2]; 2] {
    let mut stores = Vec::new();
    for _ in 0..2 {
        stores.push(connect(server).await);
    }
    let [one, other] = <[RedisStore; 2]>::try_from(stores).unwrap();
    let next = [one.clone().stored_form(2), other.clone().stored_form(2)];
    [[one, other], next]
}

async fn is_admitted(store: &RedisStore, check: &Check) -> bool {
    store.check(check).await.unwrap().is_allowed()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_forms_under_load_are_each_exact() {
    let server = Server::start();
    let forms = both_forms(&server).await;
    let policy = api("50/1d,60/1d@fixed");
    let bucket = self::policy("bucket", "1000+1/1s@bucket");
    let check = check([charge(&policy, "alice", 1), charge(&bucket, "alice", 1)]);
    let asks = forms.iter().enumerate().flat_map(|(form, stores)| {
        let asks = stores
            .iter()
            .flat_map(|store| std::iter::repeat_n(store, 100));
        asks.map(move |store| (form, store))
    });
    let check = &check;
    let asks = asks.map(|(form, store)| async move { (form, is_admitted(store, check).await) });
    let mut admitted = [0, 0];
    for (form, is_admitted) in join_all(asks).await {
        admitted[form] += u32::from(is_admitted);
    }
    assert_eq!(admitted, [50, 50]);
    let mut names: Vec<String> = server.run("KEYS *");
    names.sort();
    let name = |end| format!("sluicegate:{{user=alice}}:{end}");
    let expected = ["api~1", "api~2", "bucket~1", "bucket~2"].map(name);
    assert_eq!(names, expected);
    forms[0][0].reset(&policy, &user("alice")).await.unwrap();
    assert!(is_admitted(&forms[0][1], check).await);
    assert!(!is_admitted(&forms[1][0], check).await);
}

#[tokio::test]
async fn a_block_of_one_form_holds_for_the_other() {
    let server = Server::start();
    let [[one, _], [next, _]] = both_forms(&server).await;
    let policy = api("9/1m");
    let check_of = |name| check([charge(&policy, name, 1)]).enforce_blocks(true);
    for (blocks, asks) in [(&one, &next), (&next, &one)] {
        blocks.block(&user("bob"), HOUR.into()).await.unwrap();
        assert!(!is_admitted(asks, &check_of("bob")).await);
        assert!(is_admitted(asks, &check_of("carol")).await);
        asks.unblock(&user("bob")).await.unwrap();
        assert!(is_admitted(blocks, &check_of("bob")).await);
    }
}
