//! `sluicegate inspect` shows everything that is stored for an identity.

use sluicegate::{Charge, Key, Policy};

use crate::site::Site;

#[tokio::test]
async fn what_was_charged_is_shown_and_what_is_left() {
    let site = Site::start().await;
    site.charge("api", "alice", 7).await;
    site.charge("login", "alice", 3).await;
    site.charge("api", "bob", 1).await;

    let said = site.json("inspect user=alice --policies policies.toml", 0);
    assert_eq!(said["identity"], "user=alice");
    let now_ms = said["now_ms"].as_u64().unwrap();
    let api = &said["policies"][0];
    assert_eq!(api["policy"], "api");
    for (rule, text, left, window_ms) in [
        (0, "10/1d", 3, 86_400_000_u64),
        (1, "100/2d", 93, 172_800_000),
    ] {
        let rule = &api["rules"][rule];
        assert_eq!(rule["rule"], text);
        has!(rule, { "used": 7, "left": left });
        assert_eq!(rule["window_ms"], window_ms);
        assert!(rule["fits_ms"].is_null());
        let step = &rule["steps"][0];
        let end_ms = step["end_ms"].as_u64().unwrap();
        assert!((now_ms + 1..=now_ms + window_ms / 60).contains(&end_ms));
        has!(step, { "units": 7, "release_ms": end_ms + window_ms });
        assert_eq!(rule["free_ms"], step["release_ms"]);
    }
    let login = &said["policies"][1]["rules"][0];
    has!(login, { "fits": false, "left": 0, "fits_ms": login["free_ms"] });
    assert!(said["policies"][2]["expires_ms"].is_null());
    has!(said, { "passes": false, "denied_by": { "rule": "3/1d@fixed" } });

    let text = site.text("inspect user=alice --policies policies.toml");
    says!(text => "user=alice", "10/1d", "93", "3/1d@fixed", "█", "no usage under rehearsal", "It is denied until");
    let widest = text.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{text}");
}

#[tokio::test]
async fn policies_are_found_where_none_are_named() {
    let site = Site::start().await;
    for user in ["alice", "alice2", "al*"] {
        site.charge("api", user, 2).await;
    }
    site.charge("login", "alice", 1).await;
    let names = |args| {
        let said = site.json(args, 0);
        let policies = said["policies"].as_array().unwrap().iter();
        policies
            .map(|it| it["policy"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("inspect user=alice"), ["api", "login"]);
    assert_eq!(names("inspect user=alice --policy login"), ["login"]);
    assert_eq!(names("inspect user=al*"), ["api"]);
    assert_eq!(names("inspect user=nobody"), [""; 0]);
    says!(site.text("inspect user=nobody") => "Nothing is stored.");

    let text = site.text("inspect user=alice");
    says!(text => "?/1d", "--policies FILE has it");
}

#[tokio::test]
async fn of_a_hundred_policies_the_last_is_found_too() {
    let site = Site::start().await;
    for number in 0..100 {
        let policy = Policy::parse(format!("p{number:02}"), "10/1d").unwrap();
        let user = if number == 99 { "alice" } else { "bob" };
        let charge = Charge::new(&policy, Key::new("user", user), 1);
        site.limiter.check([charge]).await.unwrap();
    }
    let said = site.json("inspect user=alice --policies policies.toml", 0);
    assert_eq!(said["other_policies"], serde_json::json!(["p99"]));
    assert!(said["why"].is_null(), "{said}");
}

#[tokio::test]
async fn json_too_says_why_there_is_nothing() {
    let site = Site::start().await;
    site.charge("api", "alice", 1).await;
    for (command, code) in [("inspect", 0), ("explain", 1)] {
        let args = format!("{command} usr=alice --policies policies.toml");
        let why = site.json(&args, code)["why"].clone();
        let why = why.as_str().unwrap();
        says!(why => "the kinds are `user`");
        let unknown = "It is not known whether it passes: nothing is stored under this name.";
        site.tool
            .told(&format!("{args} | {code} | {why} | {unknown}"));
    }
}

#[tokio::test]
async fn what_a_process_with_other_rules_counts_is_shown_without_a_limit() {
    let site = Site::start().await;
    let other = Policy::parse("api", "10/1d,9/3d@1h").unwrap();
    let charge = Charge::new(&other, Key::new("user", "alice"), 4);
    site.limiter.check([charge]).await.unwrap();
    site.charge("api", "alice", 1).await;
    let inspect = "inspect user=alice --policies policies.toml --policy api";
    let rules = site.json(inspect, 0)["policies"][0]["rules"].clone();
    has!(rules[0], { "rule": "10/1d", "used": 5 });
    has!(rules[1], { "rule": "100/2d", "used": 1 });
    has!(rules[2], { "rule": "?/3d@1h", "used": 4 });
}

#[tokio::test]
async fn a_value_that_cannot_be_read_is_told_and_the_others_are_shown() {
    let site = Site::start().await;
    site.charge("login", "alice", 1).await;
    for (command, why) in [
        (
            "SET sluicegate:{user=alice}:api~1 garbage",
            "cannot be read",
        ),
        (
            "SET sluicegate:{user=alice}:api~1 \x01\x01",
            "cannot be read",
        ),
        ("DEL sluicegate:{user=alice}:api~1", "another type"),
    ] {
        let () = site.server.run(command);
        if why == "another type" {
            let () = site.server.run("LPUSH sluicegate:{user=alice}:api~1 1");
        }
        let said = site.json("inspect user=alice", 0);
        says!(said["policies"][0]["error"].as_str().unwrap() => why);
        assert_eq!(said["policies"][1]["rules"][0]["used"], 1);
        site.tool.told(&format!("inspect user=alice | 0 | {why}"));
    }
}

#[tokio::test]
async fn counts_of_another_form_are_named_and_left_alone() {
    let site = Site::start().await;
    site.charge("login", "alice", 1).await;
    let () = site.server.run("SET sluicegate:{user=alice}:api~2 x");
    for verb in ["inspect user=alice", "reset user=alice --yes"] {
        let said = site.tool.run(verb);
        says!(said.stderr => "another stored form", "api has form 2");
        assert_eq!(said.code, 0, "{said:?}");
    }
    assert_eq!(
        site.server
            .run::<usize>("EXISTS sluicegate:{user=alice}:api~2"),
        1
    );
    assert_eq!(
        site.server
            .run::<usize>("EXISTS sluicegate:{user=alice}:login~1"),
        0
    );
}

#[tokio::test]
async fn an_identity_with_slots_alone_is_shown() {
    let site = Site::start().await;
    let jobs = Policy::parse("jobs", "5/10m@concurrent").unwrap();
    let charge = Charge::new(&jobs, Key::new("user", "alice"), 1);
    let taken = site
        .limiter
        .acquire_slot([charge], std::time::Duration::ZERO)
        .await;
    let slot = taken.unwrap().unwrap();
    let said = site.json("inspect user=alice", 0);
    assert_eq!(said["policies"][0]["policy"], "jobs");
    drop(slot);
}

#[tokio::test]
async fn a_secret_is_read_from_stdin_and_shown_as_its_hash() {
    let site = Site::start().await;
    let key = sluicegate::Header::new("x-api-key").key("s3cret");
    let charge = Charge::new(&crate::site::policy("api"), key, 5);
    site.limiter.check([charge]).await.unwrap();
    let verb = "inspect header:x-api-key=- --policy api";
    let said = site.tool.run_with(verb, b"s3cret\n");
    assert_eq!(said.code, 0, "{said:?}");
    says!(said.stdout => "=#", " 5 ");
    says_not!(said.stdout => "s3cret");
}

#[tokio::test]
async fn what_cannot_be_asked_is_an_error_of_its_kind() {
    let site = Site::start().await;
    site.tool.told(
        "
        inspect alice | 2 | KIND=VALUE
        inspect user=alice --policies policies.toml --policy nope | 2 | policies.toml has no policy `nope`
        inspect user=alice --policies nope.toml | 2 | nope.toml
        inspect user=alice --redis redis://127.0.0.1:1 | 3 | does not accept connections: connection refused
        ",
    );
}

#[tokio::test]
async fn strikes_are_shown_beside_how_many_ban() {
    let site = Site::start().await;
    site.tool.write(
        "bans.toml",
        "login = { rules = \"1/1d\", strikes = \"5/10m\", ban = \"1h\" }",
    );
    let policy = Policy::parse("login", "1/1d").unwrap();
    let policy = policy.ban("5/10m=1h".parse().unwrap());
    let charge = || Charge::new(&policy, Key::new("user", "alice"), 2);
    for _ in 0..3 {
        site.limiter.check([charge()]).await.unwrap();
    }
    site.limiter.strikes_counted().await;
    site.tool.told(
        r"
        inspect user=alice --policies bans.toml | 0 | \n3 of 5 strikes in 10m\n
        inspect user=alice | 0 | \n3 strikes in 10m\n
        ",
    );
    for _ in 3..5 {
        site.limiter.check([charge()]).await.unwrap();
    }
    site.limiter.strikes_counted().await;
    let text = site.text("inspect user=alice --policies bans.toml");
    says!(text => "\nbanned until ", " UTC, by 1/1d of login\n");
    says_not!(text => "strikes");
}
