//! The ways of a request: IPv6 and translators, around the proxy, through two proxies, over a Unix socket.

use std::net::SocketAddr;

use axum::{Router, routing::get};
use sluicegate::{ForwardedIp, MemoryStore, Policy, RateLimitLayer, extract::TrustedProxies};
use tokio::net::{TcpListener, UnixListener, UnixStream};

use support::trace::traced_here;

use super::{
    FIRST, LISTEN, LISTS, PROXIES, SERVED, SPELLINGS, Spelling, Two, ask, ask_as, exchange,
    newcomer,
};

#[tokio::test]
async fn around_the_proxy_a_client_is_limited_by_the_address_that_it_calls_from() {
    for spelling in SPELLINGS {
        let site = spelling.site();
        let (attacker, victim) = (newcomer(), newcomer());
        let direct = site.service.address();
        for expected in SERVED {
            let line = spelling.line(&spelling.claim(&victim));
            assert_eq!(ask(direct, &attacker, line).await.status, expected);
        }
        assert_eq!(site.ask(&attacker, "").await.status, 429);
        assert_eq!(ask(direct, &victim, "").await, FIRST);
        assert_eq!(site.ask(&victim, "").await.left, Some(3));
    }
}

/// The reason why a trusted network must hold only proxies.
#[tokio::test]
async fn whoever_calls_from_a_trusted_network_is_believed() {
    for spelling in SPELLINGS {
        let service = spelling.example(&[PROXIES]);
        for nth in 0..8 {
            let line = spelling.line(&spelling.claim(&format!("203.0.113.{nth}")));
            assert_eq!(ask(service.address(), "127.0.1.99", line).await, FIRST);
        }
        let unnamed = ask(service.address(), "127.0.1.99", "").await;
        assert_eq!(unnamed.status, 400);
    }
}

/// Behind a load balancer without HTTP, so that clients can have any address.
const BALANCED: &str = "listen 127.0.0.1:PORT proxy_protocol; set_real_ip_from 127.0.0.0/8; real_ip_header proxy_protocol;";

#[tokio::test]
async fn a_new_ipv6_address_for_each_request_is_the_same_client() {
    for spelling in SPELLINGS {
        let site = spelling.site_with(BALANCED);
        let nginx = &site.nginx;
        let lie = spelling.line(&spelling.claim("2001:db8:9::7"));
        for (nth, expected) in SERVED.into_iter().enumerate() {
            let client = format!("2001:db8:1:2::{nth}");
            assert_eq!(ask_as(nginx, &client, &lie).await.status, expected);
        }
        // A new /64 of the same /56 does not help either.
        for (nth, expected) in (0..18).map(|it| (it, if it < 15 { 200 } else { 429 })) {
            let client = format!("2001:db8:1:{:x}::1", 0x10 + nth);
            assert_eq!(ask_as(nginx, &client, &lie).await.status, expected, "{nth}");
        }
        assert_eq!(ask_as(nginx, "2001:db8:9::8", "").await, FIRST);
    }
}

#[tokio::test]
async fn one_ipv4_client_is_the_same_through_translators_and_sockets_of_both_protocols() {
    for spelling in SPELLINGS {
        let site = spelling.site_with(BALANCED);
        let nginx = &site.nginx;
        let same = ["9.9.9.9", "::ffff:9.9.9.9", "64:ff9b::9.9.9.9"];
        for (client, expected) in same.into_iter().cycle().zip(SERVED) {
            let answer = ask_as(nginx, client, "").await;
            assert_eq!(answer.status, expected, "{client}");
        }
        for other in ["9.9.9.8", "64:ff9b::9.9.9.7"] {
            assert_eq!(ask_as(nginx, other, "").await, FIRST);
        }
    }
}

#[tokio::test]
async fn a_client_whose_address_translates_to_that_of_a_proxy_is_no_proxy() {
    for spelling in LISTS {
        let site = spelling.site_with(BALANCED);
        let nginx = &site.nginx;
        for expected in SERVED {
            let lie = spelling.line(&spelling.claim(&newcomer()));
            let answer = ask_as(nginx, "64:ff9b::127.0.1.1", &lie).await;
            assert_eq!(answer.status, expected);
        }
    }
}

/// Like from another program on nginx's machine: nginx then writes `unix:` or `unknown`.
#[tokio::test]
async fn a_client_without_an_address_is_rejected_and_not_whom_it_claims_to_be() {
    for spelling in SPELLINGS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nginx");
        let site = spelling.site_with(&format!("{LISTEN} listen unix:{};", path.display()));
        let victim = newcomer();
        for value in ["IP", "IP, IP", "\""] {
            let line = spelling.line(&value.replace("IP", &spelling.claim(&victim)));
            let stream = UnixStream::connect(&path).await.unwrap();
            let answer = exchange(stream, "", "/", line.as_bytes()).await;
            assert_eq!(answer.status, 400, "{value}");
        }
        assert_eq!(site.ask(&victim, "").await, FIRST);
    }
}

#[tokio::test]
async fn nginx_that_writes_ipv4_as_ipv6_does_not_make_a_second_client() {
    if std::net::TcpListener::bind("[::]:0").is_err() {
        return eprintln!("NOT TRIED: this machine has no IPv6");
    }
    for spelling in SPELLINGS {
        let site = spelling.site_with("listen [::]:PORT ipv6only=off;");
        site.attack_by_values(&["IP", "::ffff:IP", "\""]).await;
        let client = newcomer();
        assert_eq!(site.ask(&client, "").await, FIRST);
        let direct = ask(site.service.address(), &client, "").await;
        assert_eq!(direct.left, Some(3));
    }
}

#[tokio::test]
async fn behind_two_proxies_in_a_row_nobody_is_believed_but_them() {
    for spelling in LISTS {
        let service = spelling.example(&[PROXIES]);
        let Two { outer, inner } = spelling.two(&service.address().to_string());
        for value in [
            "IP",
            "IP, 127.0.1.2",
            "IP, for=127.0.1.2",
            "for=\"",
            "unknown, ,",
        ] {
            let line = |ip: &str| spelling.line(&value.replace("IP", &spelling.claim(ip)));
            // Through both proxies, around the outer one, and around both, it is the same client.
            let (attacker, victim) = (newcomer(), newcomer());
            let ways = [outer.address(), inner.address(), service.address()];
            for (way, expected) in ways.into_iter().cycle().zip(SERVED) {
                let answer = ask(way, &attacker, line(&victim)).await;
                assert_eq!(answer.status, expected, "{value}");
            }
            for (way, left) in ways.into_iter().zip([4, 3, 2]) {
                assert_eq!(ask(way, &victim, "").await.left, Some(left), "{value}");
            }
        }
    }
}

/// A service that trusts a number of proxies.
pub(super) fn counting(spelling: &Spelling, proxies: usize) -> Router {
    trusting(spelling, TrustedProxies::count_including_peer(proxies))
}

pub(super) fn trusting(spelling: &Spelling, proxies: TrustedProxies) -> Router {
    let ip = match spelling.header {
        "forwarded" => ForwardedIp::forwarded(proxies),
        "x-forwarded-for" => ForwardedIp::x_forwarded_for(proxies),
        one_address => ForwardedIp::header(one_address.parse().unwrap(), proxies),
    };
    let policy = Policy::parse("ip-64", "5/1m").unwrap();
    let layer = RateLimitLayer::new(MemoryStore::new()).limit(policy, ip);
    Router::new().route("/", get(async || "hello")).layer(layer)
}

pub(super) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async { axum::serve(listener, app).await });
    address
}

#[tokio::test]
async fn two_proxies_are_counted_as_two() {
    let (trace, _tracing) = traced_here();
    for spelling in LISTS {
        let service = serve(counting(spelling, 2)).await;
        let two = spelling.two(&service.to_string());
        for value in ["IP", "IP, IP, IP", "IP, 127.0.1.2", "\"", "unknown", "IP,"] {
            let (attacker, victim) = (newcomer(), newcomer());
            let line = spelling.line(&value.replace("IP", &spelling.claim(&victim)));
            for expected in SERVED {
                let answer = ask(two.outer.address(), &attacker, &line).await;
                assert_eq!(answer.status, expected, "{value}");
            }
            assert_eq!(
                ask(two.outer.address(), &victim, "").await,
                FIRST,
                "{value}"
            );
        }
    }
    assert_eq!(*trace.lines.lock().unwrap(), [""; 0]);
}

/// The reason why networks are better than a count.
#[tokio::test]
async fn a_count_that_is_wrong_shares_one_limit_or_believes_clients() {
    for spelling in LISTS {
        let too_low = serve(counting(spelling, 1)).await;
        let two = spelling.two(&too_low.to_string());
        for expected in SERVED {
            let answer = ask(two.outer.address(), &newcomer(), "").await;
            assert_eq!(answer.status, expected);
        }

        let too_high = serve(counting(spelling, 3)).await;
        let two = spelling.two(&too_high.to_string());
        let client = newcomer();
        for nth in 0..8 {
            let line = spelling.line(&spelling.claim(&format!("203.0.113.{nth}")));
            assert_eq!(ask(two.outer.address(), &client, line).await, FIRST);
        }
        // Honest clients have no entry at this place.
        assert_eq!(ask(two.outer.address(), &client, "").await.status, 400);
    }
}

#[tokio::test]
async fn behind_a_unix_socket_one_proxy_is_counted() {
    let (trace, _tracing) = traced_here();
    for spelling in LISTS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("service");
        let listener = UnixListener::bind(&path).unwrap();
        let app = counting(spelling, 1);
        tokio::spawn(async { axum::serve(listener, app).await });
        let nginx = spelling.nginx(&format!("unix:{}", path.display()), "off", LISTEN);
        let (attacker, victim) = (newcomer(), newcomer());
        for expected in SERVED {
            let line = spelling.line(&spelling.claim(&victim));
            let answer = ask(nginx.address(), &attacker, line).await;
            assert_eq!(answer.status, expected);
        }
        assert_eq!(ask(nginx.address(), &victim, "").await, FIRST);
    }
    assert_eq!(*trace.lines.lock().unwrap(), [""; 0]);
}
