//! `block`, `unblock` and `blocks`: whom they hit.

use crate::site::Site;

#[tokio::test]
async fn without_a_value_on_stdin_nobody_is_hit() {
    let site = Site::start().await;
    for verb in ["block --forever", "unblock", "inspect --policy api"] {
        for stdin in [&b""[..], b"\n", b"\r\n"] {
            let said = site.tool.run_with(&format!("{verb} user=-"), stdin);
            assert_eq!(said.code, 2, "{verb}: {said:?}");
            assert!(said.stderr.contains("there is no value"), "{said:?}");
        }
    }
    assert_eq!(site.server.run::<u64>("DBSIZE"), 0);
}

#[tokio::test]
async fn a_block_that_cannot_be_read_is_named_and_hides_no_other() {
    let site = Site::start().await;
    let unreadable = "sluicegate:{user=mallory}:!block";
    site.server.run::<()>(&format!("SET {unreadable} strange"));
    site.text("block user=alice --for 1h");
    let listed = site.json("blocks", 0);
    assert_eq!(listed["blocks"][0]["identity"], "user=alice");
    assert_eq!(listed["unreadable"][0]["identity"], "user=mallory");
    let text = site.text("blocks");
    assert!(
        text.contains("the block of user=mallory cannot be read"),
        "{text}"
    );
    assert!(text.contains("user=alice"), "{text}");
    let said = site.tool.run("blocks --number 0");
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.stderr.contains("0 is not in 1.."), "{said:?}");
    site.text("unblock user=alice");
    let text = site.text("blocks");
    assert!(text.contains("user=mallory"), "{text}");
    assert!(!text.contains("Nobody is blocked"), "{text}");
    let said = site.text("unblock user=mallory");
    assert_eq!(
        said,
        "user=mallory: a block that could not be read was deleted.\n"
    );
    assert_eq!(site.json("blocks", 0)["unreadable"], serde_json::json!([]));
}
