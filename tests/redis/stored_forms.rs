//! Two versions of this crate that store counts in different forms, side by side on one server.

use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn two_forms_under_load_are_each_exact() {
    let server = Server::start();
    // Two processes of each.
    let mut stores = Vec::new();
    for form in [1, 2, 1, 2] {
        stores.push((form, connect(&server).await.stored_form(form)));
    }
    let policy = api("50/1d,60/1d@fixed");
    let bucket = self::policy("bucket", "1000+1/1s@bucket");
    let check = check([charge(&policy, "alice", 1), charge(&bucket, "alice", 1)]);
    let admitted = async |form| {
        let of_form = stores.iter().filter(|it| it.0 == form);
        let asks = of_form.flat_map(|(_, store)| (0..100).map(|_| store.check(&check)));
        let decisions = join_all(asks.collect::<Vec<_>>()).await.into_iter();
        decisions
            .filter(|it| it.as_ref().unwrap().is_allowed())
            .count()
    };
    assert_eq!(futures::join!(admitted(1), admitted(2)), (50, 50));
    let mut names: Vec<String> = server.run("KEYS *");
    names.sort();
    let name = |end| format!("sluicegate:{{user=alice}}:{end}");
    let expected = ["api~1", "api~2", "bucket~1", "bucket~2"].map(name);
    assert_eq!(names, expected);
    stores[0].1.reset(&policy, &user("alice")).await.unwrap();
    for (form, store) in &stores[2..] {
        let decision = store.check(&check).await.unwrap();
        assert_eq!(decision.is_allowed(), *form == 1);
    }
}
