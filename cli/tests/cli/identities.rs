//! The tool checks identities before it writes anything: `block` reports no success without an effect.

use serde_json::Value;
use sluicegate::{Charge, Decision, Key, Limiter, PeerIp, RedisStore, block::Until};

use crate::{
    site::{Site, policy},
    tool::rows,
};

#[tokio::test]
async fn text_that_names_no_identity_is_refused_before_anything_is_written() {
    let site = Site::start().await;
    site.charge("api", "alice", 1).await;
    for (identity, expected) in [
        ("header=bob", "Write header:NAME=bob"),
        ("cookie=bob", "`sluicegate hash cookie:NAME=-`"),
        ("header=#72047c877111b0c2…", "was cut"),
        ("header=#72047c877111b0c2", "was cut"),
        ("user=alice-the-great-and-…", "was cut"),
        ("user=alice ", "there is a blank too many"),
        (" user=alice", "there is a blank too many"),
        ("IP=203.0.113.7", "write ip="),
        ("ip=203.0.113.7:40001", "is no IP address"),
        ("ip=203.0.112.0/22", "one by one"),
    ] {
        for verb in [
            "block --forever user=carol",
            "unblock user=carol",
            "inspect",
        ] {
            // The same beside correct identities.
            let mut command = site.tool.command();
            command.args(verb.split(' ')).arg(identity);
            let said = crate::tool::said(&mut command, b"");
            assert_eq!(said.code, 2, "{identity}: {said:?}");
            says!(said.stderr => expected);
        }
    }
    assert_eq!(site.server.run::<u64>("DBSIZE"), 1);
    // A value that really looks like this comes from stdin.
    let said = site.tool.run_with("block user=- --for 1h", b"alice \n");
    assert_eq!(said.code, 0, "{said:?}");
    let blocked = Charge::new(&policy("api"), Key::new("user", "alice "), 1);
    let decision = site.limiter.check([blocked]).await.unwrap();
    assert!(matches!(decision, Decision::Blocked(_)));
}

#[tokio::test]
async fn a_block_that_no_identity_falls_under_needs_force_and_an_unknown_identity_a_warning() {
    let site = Site::start().await;
    site.charge("api", "alice", 1).await;
    let network = PeerIp.key("2001:db8:1:2::7".parse().unwrap());
    let charge = Charge::new(&policy("api"), network, 1);
    assert!(site.limiter.check([charge]).await.unwrap().is_allowed());
    let table = "
        usr=alice | the kinds are `ip`, `user`
        User=alice | the kinds are `ip`, `user`
        ip=2001:db8:1::/48 | stored as networks of `/64`
        ip=2001:db8:1:2::7 --ipv6-prefix 48 | see --ipv6-prefix
    ";
    for [args, expected] in rows(table) {
        let block = format!("block {args} --for 1h");
        site.tool.told(&format!(
            "{block} | 2 | nothing was blocked: | {expected} | --force"
        ));
        assert_eq!(site.json("blocks", 0)["total"], 0);
        let says = format!("warning: | {expected} | is blocked by an operator");
        site.tool.told(&format!("{block} --force | 0 | {says}"));
        site.tool.run("unblock --all --yes");
    }
    site.tool.told(
        "block user=bob --for 1h | 0 | warning: No counts are stored for user=bob | is blocked by an operator",
    );
    let other = "block user=alice --for 1h --prefix sluicegat";
    let expected = "under the prefix `sluicegat`, but under `sluicegate`: see --prefix";
    for _ in 0..2 {
        site.tool
            .told(&format!("{other} | 2 | {expected} | nothing was blocked"));
    }
    assert_eq!(site.json("blocks --prefix sluicegat", 0)["total"], 0);
    site.tool.told(&format!("{other} --force | 0 | {expected}"));
    // A block does not make an identity known.
    site.text("block usr=alice --for 1h --force");
    let said = site.json("block usr=alice --for 2h --force", 0);
    says!(said["warning"].as_str().unwrap() => "the kinds are");
    for known in ["user=alice", "ip=2001:db8:1:2::9"] {
        site.tool
            .told(&format!("block {known} --for 1h | 0 | !warning"));
    }
}

#[tokio::test]
async fn several_identities_and_a_file_of_them_are_blocked_and_unblocked_at_once() {
    let site = Site::start().await;
    for user in ["alice", "bob", "carol"] {
        site.charge("api", user, 1).await;
    }
    site.tool.write(
        "list.txt",
        "# from the incident\nuser=bob\n\nuser=carol\r\nuser=alice\n",
    );
    let said = site.text("block user=alice -f list.txt --for 1h");
    let count = said.matches(" is blocked by an operator until ").count();
    assert_eq!(count, 3, "{said}");
    assert_eq!(site.json("blocks", 0)["total"], 3);
    let list = b"user=bob\nuser=carol\n";
    let listed = site.tool.run_with("unblock --file - --json", list);
    let report: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(report["identities"][1]["identity"], "user=carol");
    assert_eq!(site.json("blocks", 0)["total"], 1);
    // One of them was not blocked.
    let unblocked = r"user=alice is no longer blocked.\nuser=bob was not blocked.\n";
    site.tool
        .told(&format!("unblock user=alice user=bob | 1 | {unblocked}"));
}

#[tokio::test]
async fn a_mistake_in_a_file_is_named_with_its_line_and_blocks_no_identity() {
    let site = Site::start().await;
    let table = r"
        user=bob\nbob | list.txt:2: write KIND=VALUE
        user=bob\n\nheader=bob | list.txt:3: `header=bob` is no identity
        user=- | list.txt:1: a value of - is for the command line
        user=bob\nuser=carol \n | list.txt:2: there is a blank too many
        # \n user=carol | list.txt:2: there is a blank too many
        # nobody | no identity is named
    ";
    for [wrong, expected] in rows(table) {
        site.tool.write("list.txt", wrong);
        site.tool
            .told(&format!("block -f list.txt --for 1h | 2 | {expected}"));
    }
    site.tool.told(
        "
        block user=- -f - --for 1h | 2 | only one value can be read from stdin
        block --for 1h | 2 | no identity is named
        ",
    );
    assert_eq!(site.server.run::<u64>("DBSIZE"), 0);
}

#[tokio::test]
async fn all_blocks_are_ended_after_a_yes() {
    let site = Site::start().await;
    for key in [Key::new("user", "alice"), Key::secret("api-key", "s3cret")] {
        site.limiter.block(&key, Until::Forever).await.unwrap();
    }
    let unreadable = "SET sluicegate:{user=mallory}:!block strange";
    let () = site.server.run(unreadable);
    site.tool
        .told("unblock --all | 2 | nothing was unblocked: there is no terminal");
    assert_eq!(site.json("blocks", 0)["total"], 2);
    let said = site.text("unblock --all --yes");
    assert_eq!(said.lines().count(), 3, "{said}");
    assert_eq!(site.server.run::<u64>("DBSIZE"), 0);
    site.tool.told(
        "
        unblock --all --yes | 1 | Nobody is blocked.
        unblock --all user=alice | 2 | cannot be used with
        ",
    );
}

#[tokio::test]
async fn the_span_that_was_asked_for_is_the_span_that_is_shown() {
    let site = Site::start().await;
    for _ in 0..5 {
        let said = site.text("block user=alice --for 20s");
        let first = said.lines().next().unwrap();
        assert!(first.ends_with(" (20s)."), "{said}");
        site.text("unblock user=alice");
    }
}

#[tokio::test]
async fn a_shorter_block_says_that_the_longer_one_stays() {
    let site = Site::start().await;
    site.charge("api", "alice", 1).await;
    site.text("block user=alice --for 65s");
    for shorter in ["--for 60s", "--for 1s"] {
        let block = format!("block user=alice {shorter}");
        site.tool.told(&format!(
            "{block} | 0 | that block was there before and stays"
        ));
        has!(site.json(&block, 0), { "kept": true });
    }
    let said = site.tool.run("block user=alice --for 1h");
    assert_eq!((said.code, said.stderr.as_str()), (0, ""), "{said:?}");
    assert_eq!(site.json("block user=alice --forever", 0)["kept"], false);
    assert_eq!(site.json("block user=alice --forever", 0)["kept"], false);
}

#[tokio::test]
async fn an_identity_is_shown_as_it_was_typed_and_as_it_is_stored() {
    let site = Site::start().await;
    let title = "header:x-tenant=acme (header=#";
    site.tool.told(&format!(
        "
        block header:x-tenant=acme --for 1h | 0 | {title}
        inspect header:x-tenant=acme | 0 | {title}
        explain header:x-tenant=acme --policies policies.toml | 1 | {title}
        unblock header:x-tenant=acme | 0 | {title}
        reset header:x-tenant=acme --yes | 1 | {title}
        "
    ));
    let block = "block header:x-tenant=- --for 1h";
    let said = site.tool.run_with(block, b"acme");
    says!(said.stdout => "header:x-tenant (header=#");
    says_not!(said.stdout => "acme");
}

#[tokio::test]
async fn a_forgotten_prefix_is_refused_and_a_fresh_server_is_not() {
    let site = Site::start().await;
    for prefix in ["", " --prefix shop"] {
        site.tool.told(&format!(
            "block user=alice --for 1h{prefix} | 0 | No counts are stored: is this"
        ));
        let () = site.server.run("FLUSHALL");
    }
    let shop = RedisStore::connect(site.server.url()).await.unwrap();
    let shop = Limiter::new(shop.prefix("shop")).publish_policies(false);
    let charge = Charge::new(&policy("api"), Key::new("user", "alice"), 1);
    assert!(shop.check([charge]).await.unwrap().is_allowed());
    let expected = "under the prefix `sluicegate`, but under `shop`: see --prefix";
    site.tool.told(&format!(
        "block user=alice --for 1h | 2 | {expected} | nothing was blocked"
    ));
    site.text("block user=alice --for 1h --prefix shop");

    // More keys than the tool looks at.
    let keys: String = (0..30_000)
        .map(|number| format!(" session:{number} x"))
        .collect();
    let () = site.server.run(&format!("MSET{keys}"));
    site.tool
        .told("block user=alice --for 1h --prefix blog | 0 |  among 10\u{202f}000 of ");
}
