//! Proves that replicas share hashed identities if they share a secret, and that names of keys do not show them.

use crate::prelude::*;

#[tokio::test]
async fn replicas_share_hashed_identities_only_if_they_share_a_secret() {
    let server = Server::start();
    let replica = async |secret: &str| patient(connect(&server).await.secret(secret));
    let (blue, also_blue) = (replica("blue").await, replica("blue").await);
    let green = replica("green").await;
    let policy = api("1/1d");
    let long = "alice".repeat(20);
    for (key, hashed) in [
        (Key::secret("api-key", "alice"), true),
        (Key::new("session", &long), true),
        (Key::new("name", "alice liddell"), true),
        (Key::new("user", "alice"), false),
    ] {
        let kind = key.kind().to_owned();
        for (replica, admitted) in [(&blue, true), (&also_blue, false), (&green, hashed)] {
            let charge = [Charge::new(&policy, key.clone(), 1)];
            let decision = replica.check(charge).await.unwrap();
            assert_eq!(decision.is_allowed(), admitted, "{kind}");
        }
        assert_eq!(
            names(&server, "*:api~1", &kind, hashed),
            if hashed { 2 } else { 1 }
        );
    }
    assert_eq!(server.run::<u64>("DBSIZE"), 7);

    let key = Key::secret("api-key", "alice");
    blue.block(&key, HOUR).await.unwrap();
    for (replica, expected) in [(&also_blue, true), (&green, false)] {
        let charge = [Charge::new(&policy, key.clone(), 1)];
        let decision = replica.check(charge).await.unwrap();
        assert_eq!(is_blocked(&decision), expected);
        assert!(!format!("{decision:?}").contains("alice"));
    }
    assert_eq!(names(&server, "*:!block", "api-key", true), 1);
}

/// The number of keys of this kind of identity with this end of their names. Names show an identity that is not hashed.
fn names(server: &Server, end: &str, kind: &str, hashed: bool) -> usize {
    let names: Vec<String> = server.run(&format!("KEYS sluicegate:{{{kind}={end}"));
    for name in &names {
        assert_eq!(name.contains("alice"), !hashed, "{name}");
    }
    names.len()
}
