//! Networks, and answers about many identities, in bounded memory.

use std::{fs, process::Stdio, thread, time::Duration};

use sluicegate::{Charge, Key, PeerIp};

use crate::site::{Site, policy};

/// The tool may need so much for any number of identities.
const MEMORY_KIB: u64 = 64 * 1_024;

/// The most keys that a SCAN looks at, and its time in µs.
const MOST_KEYS: f64 = 500.0;
const SCAN_US: f64 = 2_000.0;

/// Writes 200 000 identities, each of a network of its own, with the value of one that was charged.
async fn fill(site: &Site) {
    let ip = PeerIp.key("2001:db8:1:2::7".parse().unwrap());
    let charge = Charge::new(&policy("api"), ip, 3);
    site.limiter.check([charge]).await.unwrap();
    let fill = "local value = redis.call('GET', KEYS[1]) for i = 0, 199999 do redis.call('SET', string.format(\
                'sluicegate:{ip=2001:%x:%x::/64}:api~1', math.floor(i / 65536) + 256, i % 65536), value, 'EX', 3600) end";
    let client = redis::Client::open(site.server.socket_url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut eval = redis::cmd("EVAL");
    eval.arg(fill)
        .arg(1)
        .arg("sluicegate:{ip=2001:db8:1:2::/64}:api~1");
    eval.exec(&mut connection).unwrap();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn of_200_000_identities_top_takes_bounded_memory_and_no_long_scan() {
    let site = Site::start().await;
    fill(&site).await;
    let () = site.server.run("CONFIG RESETSTAT");
    for args in [
        "top --load 100% --json",
        "top --load 100% --by-prefix 48 --json",
    ] {
        let mut command = site.tool.command();
        let command = command.args(args.split(' ')).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (mut peak_kib, status) = (0, format!("/proc/{}/status", child.id()));
        while child.try_wait().unwrap().is_none() {
            let status = fs::read_to_string(&status).unwrap_or_default();
            let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let peak = peak.and_then(|it| it.trim().strip_suffix(" kB")?.parse().ok());
            peak_kib = peak_kib.max(peak.unwrap_or(0));
            thread::sleep(Duration::from_millis(5));
        }
        let said = child.wait_with_output().unwrap();
        let document: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
        has!(document, { "read": 200_001 });
        assert!(
            (1..MEMORY_KIB).contains(&peak_kib),
            "{args}: {peak_kib} KiB"
        );
    }
    // Of all calls, since a busy machine delays some: `cmdstat_scan:calls=1604,usec=…,usec_per_call=…`.
    let stats: String = site.server.run("INFO commandstats");
    let scans = stats
        .lines()
        .find_map(|it| it.strip_prefix("cmdstat_scan:"));
    let number = |name: &str| {
        let field = scans
            .unwrap()
            .split(',')
            .find_map(|it| it.strip_prefix(name));
        field.unwrap().parse::<f64>().unwrap()
    };
    let (calls, mean_us) = (number("calls="), number("usec_per_call="));
    assert!(calls > 2.0 * 200_001.0 / MOST_KEYS, "{stats}");
    assert!(mean_us < SCAN_US, "{stats}");
}

#[tokio::test]
async fn networks_add_up_what_their_addresses_use_and_how_often_they_are_denied() {
    let site = Site::start().await;
    for (address, cost) in [
        ("2001:db8:1:1::7", 10),
        ("2001:db8:1:2::7", 4),
        ("2001:db8:2:1::7", 9),
        ("203.0.113.7", 1),
    ] {
        let ip = PeerIp.key(address.parse().unwrap());
        let charge = |cost| [Charge::new(&policy("api"), ip.clone(), cost)];
        assert!(site.limiter.check(charge(cost)).await.unwrap().is_allowed());
        if cost > 8 {
            assert!(!site.limiter.check(charge(5)).await.unwrap().is_allowed());
        }
    }
    site.charge("api", "alice", 10).await;
    site.limiter.denials().await.unwrap();
    let said = site.json("top --by-prefix 48 --policies policies.toml", 0);
    has!(said["top"][0], { "network": "ip=2001:db8:1::/48", "policy": "api", "addresses": 2, "full": 1, "used": 14 });
    has!(said["top"][1], { "network": "ip=2001:db8:2::/48", "addresses": 1, "full": 0, "used": 9 });
    has!(said["top"][2], { "network": "ip=203.0.113.7", "used": 1 });
    assert_eq!(said["top"].as_array().unwrap().len(), 3);
    let said = site.json("top --denied --by-prefix 32", 0);
    has!(said["denied"][0], { "network": "ip=2001:db8::/32", "addresses": 2, "last_minute": 2, "last_hour": 2 });
    site.tool.told(
        "
        top --by-prefix 48 | 0 | network | addresses | ip=2001:db8:1::/48
        top --by-prefix 8 | 2 | 8 is not in 32..=128
        ",
    );
}

#[tokio::test]
async fn of_a_long_list_a_warning_is_given_once_with_its_number() {
    let site = Site::start().await;
    site.charge("api", "alice", 1).await;
    let list: String = (0..500).map(|user| format!("user={user}\n")).collect();
    site.tool.write("list.txt", list);
    let said = site.tool.run("block -f list.txt --for 1h");
    assert_eq!(
        (said.code, said.stdout.matches("is blocked").count()),
        (0, 500),
        "{said:?}"
    );
    assert_eq!(said.stderr.lines().count(), 2, "{}", said.stderr);
    says!(said.stderr => "No counts are stored for user=0", "warning: for 499 more: No counts are stored for it");
}

#[tokio::test]
async fn contributors_need_no_window_of_a_policy_that_is_published() {
    let site = Site::start().await;
    let service = site.service().await;
    let acme = || Key::new("account", "acme");
    let by_alice =
        Charge::new(&policy("api"), acme(), 3).with_contributor(Key::new("user", "alice"));
    service.check([by_alice]).await.unwrap();
    service.contributors(&policy("api"), &acme()).await.unwrap();
    let contributors = "contributors account=acme --policy api";
    site.tool.told(&format!(
        "{contributors} | 2 | the window is needed, and no service publishes this policy"
    ));
    service.policies_published().await.unwrap();
    site.tool.told(&format!(
        "{contributors} | 0 | user=alice | in the last 2d to"
    ));
}
