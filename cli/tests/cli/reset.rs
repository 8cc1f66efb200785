//! `sluicegate reset` deletes the named counts, and nothing else.

use std::process::Command;

use sluicegate::{Charge, Key};

use crate::{
    site::{Site, policy},
    tool::{self},
};

async fn used(site: &Site) {
    for (policy, user) in [("api", "alice"), ("login", "alice"), ("api", "bob")] {
        site.charge(policy, user, 2).await;
    }
}

fn keys(site: &Site) -> Vec<String> {
    let mut keys: Vec<String> = site.server.run("KEYS *");
    keys.sort();
    keys
}

#[tokio::test]
async fn only_what_is_named_is_deleted() {
    let site = Site::start().await;
    used(&site).await;
    let said = site.text("reset user=alice --policy api --yes");
    assert_eq!(said, "Deleted what user=alice had used under api.\n");
    assert_eq!(
        keys(&site),
        [
            "sluicegate:{user=alice}:login~1",
            "sluicegate:{user=bob}:api~1"
        ]
    );
    let said = site.json("reset user=alice --policies policies.toml -y", 0);
    assert_eq!(said["deleted"].as_array().unwrap(), &["login"]);
    assert_eq!(keys(&site), ["sluicegate:{user=bob}:api~1"]);
    site.tool
        .told("reset user=alice --policies policies.toml --yes | 1 | nothing was deleted");
    let said = site.json("reset user=alice --policies policies.toml --yes", 1);
    let warning = said["warning"].as_str().unwrap();
    assert!(warning.contains("nothing was deleted"), "{warning}");
}

#[tokio::test]
async fn a_block_that_a_reset_leaves_is_warned_of() {
    let site = Site::start().await;
    used(&site).await;
    site.text("block user=alice --for 1h");
    let stays = "user=alice stays blocked by an operator until ";
    let reset = "reset user=alice --policy api --yes";
    site.tool.told(&format!(
        "{reset} | 0 | warning: {stays} | `sluicegate unblock` does"
    ));
    for (policy, code) in [("login", 0), ("login", 1)] {
        let said = site.json(&format!("reset user=alice --policy {policy} --yes"), code);
        assert!(said["warning"].as_str().unwrap().contains(stays), "{said}");
    }
    site.tool
        .told("reset user=bob --policy api --yes | 0 | !warning");
}

#[tokio::test]
async fn where_nothing_is_named_all_of_the_identity_are_found() {
    let site = Site::start().await;
    used(&site).await;
    let () = site.server.run("SET sluicegate:{user=alice}:old~1 garbage");
    let said = site.json("reset user=alice --yes", 0);
    has!(said, { "deleted": ["api", "login", "old"] });
    assert_eq!(keys(&site), ["sluicegate:{user=bob}:api~1"]);
}

#[tokio::test]
async fn without_a_terminal_it_needs_a_yes() {
    let site = Site::start().await;
    used(&site).await;
    let said = site.tool.run_with("reset user=alice", b"y\n");
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.stderr.contains("--yes is needed"), "{said:?}");
    assert_eq!(keys(&site).len(), 3);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn at_a_terminal_it_asks() {
    let site = Site::start().await;
    used(&site).await;
    for (answer, code, left) in [("n", 1, 3), ("", 1, 3), ("y", 0, 2)] {
        let program = env!("CARGO_BIN_EXE_sluicegate");
        let mut command = Command::new("script");
        command.current_dir(site.tool.folder());
        command.args([
            "-qec",
            &format!("{program} reset user=alice --policy api"),
            "/dev/null",
        ]);
        let said = tool::said(&mut command, format!("{answer}\n").as_bytes());
        assert_eq!(said.code, code, "{said:?}");
        says!(said.stdout => "Delete what user=alice has used under api? [y/N]");
        assert_eq!(keys(&site).len(), left, "{said:?}");
    }
}

#[tokio::test]
async fn what_is_left_under_policies_that_are_not_published_is_named() {
    let site = Site::start().await;
    let service = site.service().await;
    let charge = || Charge::new(&policy("api"), Key::new("user", "alice"), 1);
    service.check([charge()]).await.unwrap();
    service.policies_published().await.unwrap();
    site.charge("login", "alice", 1).await;
    let said = site.json("reset user=alice --yes", 0);
    has!(said, { "deleted": ["api"], "other_policies": ["login"] });
    service.check([charge()]).await.unwrap();
    let left = "counts are stored under policies that the published policies do not have: login";
    site.tool
        .told(&format!("reset user=alice --yes | 0 | {left}"));
}
