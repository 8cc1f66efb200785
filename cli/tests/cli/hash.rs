//! `sluicegate hash`: from a hash to a name.

use sluicegate::{Charge, Decision, Header, Key, Limiter, RedisStore};

use crate::{
    site::{Site, policy},
    tool::Tool,
};

/// Charges the user in a header. The service has a secret.
async fn charge(site: &Site, user: &str) {
    let store = RedisStore::connect(site.server.url()).await.unwrap();
    let limiter = Limiter::new(store.secret("pepper"));
    let charge = Charge::new(&policy("api"), Header::new("x-user").key(user), 3);
    assert!(limiter.check([charge]).await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_hash_of_top_is_found_in_a_list_of_names() {
    let site = Site::start().await;
    charge(&site, "Zoë Müller").await;
    let top = site.json("top", 0);
    let hashed = top["top"][0]["identity"].as_str().unwrap();
    let users = "alice\nZoë Müller\r\n\nbob\n".as_bytes();

    let verb = "hash header:x-user=- --secret pepper";
    let said = site.tool.run_with(verb, users);
    assert_eq!((said.code, said.stdout.lines().count()), (0, 3), "{said:?}");
    says!(said.stdout => &format!("{hashed}  Zoë Müller\n"));

    for hash in [
        hashed,
        &hashed["header=".len()..],
        &hashed[.."header=#".len() + 8],
    ] {
        let said = site.tool.run_with(&format!("{verb} --find {hash}"), users);
        let expected = format!("{hashed}  Zoë Müller\n");
        assert_eq!((said.code, said.stdout), (0, expected), "{hash}");
    }
    let said = site
        .tool
        .run_with(&format!("{verb} --find {hashed} --json"), users);
    let expected = format!(r#"{{"identities":[{{"identity":"{hashed}","value":"Zoë Müller"}}]}}"#);
    assert_eq!(said.stdout.trim_end(), expected);
}

#[tokio::test]
async fn without_the_secret_of_the_service_no_name_is_found() {
    let site = Site::start().await;
    charge(&site, "alice").await;
    let top = site.json("top", 0);
    let hashed = top["top"][0]["identity"].as_str().unwrap();
    let find = format!("hash header:x-user=alice --find {hashed}");
    site.tool.told(&format!(
        "{find} | 1 | the service may use a secret, see --secret"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hashed_contributor_is_found_too_and_can_be_blocked_by_its_hash() {
    let site = Site::start().await;
    let (account, user) = (
        Key::new("account", "acme"),
        Header::new("x-user").key("alice"),
    );
    let charge = Charge::new(&policy("api"), account.clone(), 3).with_contributor(user.clone());
    assert!(site.limiter.check([charge]).await.unwrap().is_allowed());
    // The service limits this kind, too.
    let other = Charge::new(&policy("api"), Header::new("x-user").key("bob"), 1);
    site.limiter.check([other]).await.unwrap();
    site.limiter
        .contributors(&policy("api"), &account)
        .await
        .unwrap();
    let report = site.json(
        "contributors account=acme --policy api --policies policies.toml",
        0,
    );
    let label = report["contributors"][0]["label"].as_str().unwrap();
    let said = site.text(&format!("hash header:x-user=alice --find {label}"));
    assert_eq!(said, format!("{label}  alice\n"));
    site.text(&format!("block {label} --for 1h"));
    let charge = Charge::new(&policy("api"), user, 1);
    let decision = site.limiter.check([charge]).await.unwrap();
    assert!(matches!(decision, Decision::Blocked(_)));
}

#[test]
fn a_hash_is_no_value_and_leads_to_find() {
    Tool::new().told(
        "
        hash header=#5877c54e | 2 | was cut
        hash user=#5877c54e… | 2 | was cut
        hash header:x-user=alice --find #5877 | 2 | with 8 to 32 digits
        ",
    );
}

#[test]
fn several_hashes_are_found_in_one_list() {
    let tool = Tool::new();
    let hashes = tool.run_with("hash header:x-user=-", b"alice\nbob\ncarol\n");
    let hashes: Vec<&str> = hashes.stdout.lines().collect();
    let digits = |line: &str| line.split_once('#').unwrap().1[..8].to_owned();
    let (alice, carol) = (digits(hashes[0]), digits(hashes[2]));
    let find = format!("hash header:x-user=- --find #{alice} --find #{carol}");
    let said = tool.run_with(&find, b"alice\nbob\ncarol\n");
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(
        said.stdout.lines().collect::<Vec<_>>(),
        [hashes[0], hashes[2]]
    );
    let said = tool.run_with(&find, b"alice\nbob\n");
    assert_eq!(said.code, 1, "{said:?}");
    says!(said.stdout => &format!("No value has the hash #{carol}:"));
}

#[test]
fn a_value_that_is_not_found_is_explained_by_what_may_be_wrong() {
    let tool = Tool::new();
    let said = tool.run_with("hash user=- --find #5877c54e", b"alice\n");
    assert_eq!(said.code, 1, "{said:?}");
    says!(said.stdout => "values of the kind `user` are stored as they are");
    let said = tool.run_with("hash header:x-usr=- --find #5877c54e", b"alice\n");
    says!(said.stdout => "another header than `x-usr`");
    let said = tool.run_with("hash header:x-user=- --find #5877c54e", b"\n");
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.stderr.contains("stdin: there is no value"), "{said:?}");
}

#[test]
fn a_list_whose_reader_has_left_ends_quietly() {
    use std::{io::Write, process::Stdio};

    let tool = Tool::new();
    let mut command = tool.command();
    command
        .args(["hash", "header:x-user=-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().unwrap();
    // The tool ends at the first line that it cannot write.
    drop(stdin.write_all("alice\n".repeat(10_000).as_bytes()));
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.as_str()), (Some(0), ""));
}
