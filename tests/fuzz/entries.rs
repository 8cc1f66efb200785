//! Input from untrusted parties, and promises that hold for all of it. Each function is one fuzz target.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use http::{HeaderName, HeaderValue, Request};
use redis::Value;
use sluicegate::{
    Charge, Decision, ForwardedIp, Key, Policy, Rule,
    block::{BlockRequest, Until},
    extract::{Cidr, TrustedProxies},
    policies::Policies,
    store::{Check, CheckBatch, Operation, Reply, Settlement, redis::inspect::read_replies},
};

/// A valid rule or policy is written in a form with the same meaning.
pub(crate) fn rule_text(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    if let Ok(rule) = text.parse::<Rule>() {
        assert_eq!(rule.to_string().parse(), Ok(rule));
        assert!(!rule.step().is_zero() && rule.step() <= rule.window());
    }
    if let Ok(policy) = Policy::parse("p", text) {
        assert_eq!(Policy::parse("p", &policy.to_string()), Ok(policy));
    }
}

/// Valid configuration has the same meaning after it is written and read again.
pub(crate) fn configuration(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    if let Ok(policies) = toml::from_str::<Policies>(text) {
        let written = toml::to_string(&policies).unwrap();
        assert_eq!(toml::from_str::<Policies>(&written).unwrap(), policies);
    }
}

/// Text that a client writes further to the left does not change its identity. Lines end with a line feed; the peer is
/// a proxy.
pub(crate) fn forwarded(data: &[u8]) {
    let lines: Vec<_> = data.split(|byte| *byte == b'\n').collect();
    let ours: Cidr = "10.0.0.0/8".parse().unwrap();
    for trusted in [
        TrustedProxies::networks([ours]),
        TrustedProxies::count_including_peer(1),
        TrustedProxies::count_including_peer(3),
    ] {
        let is_count = format!("{trusted:?}").contains("Count");
        for (header, forged, extractor) in [
            (
                "x-forwarded-for",
                "6.6.6.6",
                ForwardedIp::x_forwarded_for(trusted.clone()),
            ),
            (
                "forwarded",
                "for=6.6.6.6",
                ForwardedIp::forwarded(trusted.clone()),
            ),
        ] {
            let honest = client(&extractor, header, lines.iter().copied());
            let forged = std::iter::once(forged.as_bytes()).chain(lines.iter().copied());
            let spoofed = client(&extractor, header, forged);
            if let Ok(ip) = honest {
                // If all entries are those of proxies, the leftmost counts. Then there is one more to the left.
                if is_count || !ours.contains(ip) {
                    assert_eq!(spoofed, Ok(ip));
                }
            }
        }
        let single = ForwardedIp::header(HeaderName::from_static("x-real-ip"), trusted);
        let _ = client(&single, "x-real-ip", lines.iter().copied());
    }
}

fn client<'a>(
    extractor: &ForwardedIp,
    header: &str,
    lines: impl Iterator<Item = &'a [u8]>,
) -> Result<IpAddr, ()> {
    let mut request = Request::new(());
    let peer = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 1), 50_000));
    request.extensions_mut().insert(peer);
    for line in lines.filter_map(|line| HeaderValue::from_bytes(line).ok()) {
        let name = HeaderName::from_bytes(header.as_bytes()).unwrap();
        request.headers_mut().append(name, line);
    }
    extractor.address(&request.into_parts().0).map_err(drop)
}

/// Any answer of a server, to a check and then to its settlement, leads to a sound decision or an error.
///
/// The first byte chooses the check, and the form of the answers: RESP, or bytes from the script.
pub(crate) fn script_reply(data: &[u8]) {
    let Some((&choice, answer)) = data.split_first() else {
        return;
    };
    let check = check(choice);
    let answer = if choice & 0x80 == 0 {
        Ok(Value::BulkString(answer.to_vec()))
    } else {
        redis::parse_redis_value(answer)
    };
    let Ok(answer) = answer else { return };
    let read = |operations: &[Operation]| read_replies(operations, &answer);
    let reply = read(&[Operation::Check(check.clone())]).pop();
    if let Some(Ok(Reply::Check(decision))) = reply {
        assert_sound(&decision);
        let settlement = Settlement::new(decision.usage(), |charge| charge.cost() / 2);
        let _ = settlement.map(|it| read(&[Operation::Settle(it)]));
    }
    let fill = Operation::CheckBatch(CheckBatch::new(check.clone(), u16::from(choice)));
    let key = check.charges()[0].key().clone();
    let enforcing = Operation::Check(check.clone().enforce_blocks(true));
    let unblock = Operation::Unblock { key: key.clone() };
    let request = BlockRequest::new(Until::Forever);
    let ban = Operation::Ban {
        key: key.clone(),
        strikes: Rule::per_minute(1),
        request: request.clone(),
    };
    let block = Operation::Block { key, request };
    let first = if choice & 0x40 == 0 {
        Operation::Check(check)
    } else {
        enforcing
    };
    let all = [first, block, ban, unblock, fill];
    assert_eq!(read(&all).len(), all.len());
}

/// Any stored value leads to steps that add up, or to an error. The first six bytes are the time in seconds.
pub(crate) fn stored_value(data: &[u8]) {
    use sluicegate::{
        rule::MAX_UNITS,
        store::redis::inspect::{StoredValue, decide},
    };

    let Some((time, value)) = data.split_at_checked(6) else {
        return;
    };
    let seconds = time
        .iter()
        .rev()
        .fold(0, |time: u64, byte| time << 8 | u64::from(*byte));
    let Ok(value) = StoredValue::read(value) else {
        return;
    };
    for now_ms in [seconds * 1_000, u64::MAX] {
        for section in value.sections() {
            let rule = section.rule(7);
            // No rule of this process has the calendar of a later release.
            if rule == Rule::new(7, Duration::from_millis(1)) {
                continue;
            }
            assert!(section.is_of(&rule), "{section:?}");
            assert!(!rule.step().is_zero() && rule.step() <= rule.window());
            let steps = section.steps(now_ms);
            let used = section.used(now_ms);
            assert!(used <= MAX_UNITS);
            assert!(section.fits_at_ms(now_ms, used, used) <= section.reset_at_ms(now_ms));
            if rule.refill().is_some() {
                assert!(steps.is_empty());
                continue;
            }
            assert_eq!(steps.iter().map(|step| step.units).sum::<u64>(), used);
            for pair in steps.windows(2) {
                assert!(pair[0].end_ms < pair[1].end_ms && pair[0].release_ms < pair[1].release_ms);
            }
            if let Some(newest) = steps.last() {
                assert!(newest.end_ms <= section.newest_end_ms());
                // If all steps must be released, the last one decides.
                let fits_at_ms = section.fits_at_ms(now_ms, used, used);
                assert_eq!(fits_at_ms, newest.release_ms);
            }
        }
        let check = check(time[0]);
        let values = vec![Some(&value); check.charges().len()];
        assert_sound(&decide(&check, now_ms, &values).unwrap());
    }
}

fn check(choice: u8) -> Check {
    let rules = ["5/1s", "5/1s,120/1m", "2/1h@fixed", "0/1d", "3/1m@exact"];
    let charges = (0..=choice % 4).map(|index| {
        let rules = rules[usize::from(choice / 4 + index) % rules.len()];
        let policy = Policy::parse("p", rules).unwrap();
        Charge::new(&policy, Key::new("user", [index]), u64::from(index) * 2)
    });
    Check::new(charges).unwrap()
}

fn assert_sound(decision: &Decision) {
    for usage in decision.usage().rules() {
        assert!(usage.remaining() <= usage.rule().limit());
    }
    let _ = format!("{decision:?}");
}
