//! Each request has the identity in its head, and never shares one by accident.

use std::{net::SocketAddr, sync::Arc};

use axum::{Router, routing::any};
use http::{HeaderValue, Request, request::Parts};
use sluicegate::{
    Charge, ForwardedIp, Header, Key, KeyExtractor, Limiter, MemoryStore, PeerIp, Policy,
    RateLimitLayer,
    error::{ExtractError, ExtractErrorKind},
    extract::{BearerToken, Cookie, FromExtension, Host, Keys, RepeatedCookie, TrustedProxies},
};
use support::site::Site;

fn head() -> Parts {
    Request::new(()).into_parts().0
}

fn with_header(values: &[&[u8]]) -> Parts {
    let mut head = head();
    for value in values {
        let value = HeaderValue::from_bytes(value).unwrap();
        head.headers.append("x-api-key", value);
    }
    head
}

fn from(peer: &str) -> Parts {
    let mut head = head();
    head.extensions.insert(peer.parse::<SocketAddr>().unwrap());
    head
}

fn kind_of_error(result: Result<Keys, ExtractError>) -> ExtractErrorKind {
    result.unwrap_err().kind()
}

#[test]
fn a_header_is_a_secret_identity() {
    let keys = Header::new("X-API-Key").extract(&with_header(&[b"s3cret"]));
    let keys: Vec<Key> = keys.unwrap().into_iter().collect();
    assert!(matches!(&keys[..], [key] if key.is_secret()));
    assert!(!format!("{keys:?}").contains("s3cret"));
}

#[test]
fn a_header_that_stands_there_twice_is_malformed() {
    for values in [[&b"a"[..], b"a"], [b"", b"a"], [b"a", b""]] {
        let result = Header::new("x-api-key").extract(&with_header(&values));
        assert_eq!(kind_of_error(result), ExtractErrorKind::Malformed);
    }
}

#[test]
fn hostile_header_values_are_different_identities() {
    let long = vec![b'a'; 65_536];
    let longer = vec![b'a'; 65_537];
    let values: [&[u8]; 9] = [
        b"a",
        b"A",
        b"{a}",
        b"a:b",
        b"a,b",
        b"\xff",
        b"\xff\xfe",
        &long,
        &longer,
    ];
    let keys = values.map(|value| {
        Header::new("x-api-key")
            .extract(&with_header(&[value]))
            .unwrap()
    });
    for (index, key) in keys.iter().enumerate() {
        assert!(!keys[..index].contains(key), "value {index} meets another");
    }
}

#[test]
fn two_headers_with_one_value_are_two_identities() {
    let mut head = with_header(&[b"a"]);
    head.headers.insert("x-user", HeaderValue::from_static("a"));
    assert_ne!(
        Header::new("x-api-key").extract(&head).unwrap(),
        Header::new("x-user").extract(&head).unwrap()
    );
}

#[test]
fn names_and_values_of_headers_do_not_flow_into_each_other() {
    let mut head = head();
    head.headers.insert("x", HeaderValue::from_static("y:z"));
    head.headers.insert("x-y", HeaderValue::from_static("z"));
    assert_ne!(
        Header::new("x").extract(&head).unwrap(),
        Header::new("x-y").extract(&head).unwrap()
    );
}

#[test]
#[should_panic(expected = "`x api key` cannot be the name of a header")]
fn a_name_that_no_header_has_is_an_error_when_built() {
    let _ = Header::new("x api key");
}

fn with_cookies(lines: &[&'static str]) -> Parts {
    let mut head = head();
    for line in lines {
        let line = HeaderValue::from_static(line);
        head.headers.append("cookie", line);
    }
    head
}

#[test]
fn a_cookie_is_a_secret_identity_in_whichever_line_it_stands() {
    let session = Cookie::new("session");
    let plain = session.extract(&with_cookies(&["session=s3cret"]));
    for lines in [
        &["theme=dark; session=s3cret; x=y"][..],
        &["theme=dark", "session=s3cret"],
        &["theme=dark;session=s3cret"],
        &["; ;=;session; session = s3cret "],
        &["Session=other; xsession=other; session=\"s3cret\""],
    ] {
        assert_eq!(session.extract(&with_cookies(lines)), plain, "{lines:?}");
    }
    let keys: Vec<Key> = plain.unwrap().into_iter().collect();
    assert!(matches!(&keys[..], [key] if key.is_secret() && key.kind() == "cookie"));
}

#[test]
fn an_absent_or_empty_cookie_is_missing() {
    for lines in [
        &[][..],
        &["theme=session"],
        &["session="],
        &["session=\"\""],
        &["session"],
    ] {
        let result = Cookie::new("session").extract(&with_cookies(lines));
        assert_eq!(
            kind_of_error(result),
            ExtractErrorKind::Missing,
            "{lines:?}"
        );
    }
}

#[test]
fn a_cookie_that_stands_there_twice_is_malformed() {
    for lines in [
        &["session=a; session=b"][..],
        &["session=a", "session=a"],
        &["session=; session=a"],
        &["session =a;session=b"],
    ] {
        let result = Cookie::new("session").extract(&with_cookies(lines));
        assert_eq!(
            kind_of_error(result),
            ExtractErrorKind::Malformed,
            "{lines:?}"
        );
    }
}

#[test]
fn what_a_cookie_that_stands_there_twice_means_can_be_chosen() {
    let twice = with_cookies(&["theme=dark; session=mine", "session=theirs"]);
    let session = |repeated| Cookie::new("session").repeated(repeated);
    let key = |value| Ok(Keys::from(Cookie::new("session").key(value)));
    let malformed = session(RepeatedCookie::Malformed).extract(&twice);
    assert_eq!(kind_of_error(malformed), ExtractErrorKind::Malformed);
    assert_eq!(session(RepeatedCookie::First).extract(&twice), key("mine"));
    assert_eq!(session(RepeatedCookie::Last).extract(&twice), key("theirs"));
    let missing = || session(RepeatedCookie::Missing);
    assert_eq!(missing().or_skip().extract(&twice), Ok(Keys::skip()));
    let by_address = missing().or(PeerIp);
    let mut from_peer = with_cookies(&["session=mine; session=theirs"]);
    let peer: SocketAddr = "203.0.113.7:1".parse().unwrap();
    from_peer.extensions.insert(peer);
    assert_eq!(
        by_address.extract(&from_peer),
        Ok(Key::new("ip", "203.0.113.7").into())
    );
    // With one cookie, all settings find the same.
    let once = with_cookies(&["session=mine"]);
    for repeated in [
        RepeatedCookie::Malformed,
        RepeatedCookie::Missing,
        RepeatedCookie::First,
        RepeatedCookie::Last,
    ] {
        assert_eq!(session(repeated).extract(&once), key("mine"));
    }
}

// Keys by hand

#[test]
fn a_key_made_by_hand_is_that_of_a_request() {
    let is = |extractor: &dyn KeyExtractor, head: &Parts, key: Key| {
        assert_eq!(extractor.extract(head), Ok(key.into()), "{head:?}");
    };
    let header = Header::new("X-Api-Key");
    for value in ["s3cret", " s3cret\t", "a:b", &"x".repeat(4_096)] {
        is(
            &header,
            &with_header(&[value.as_bytes()]),
            header.key(value),
        );
    }
    is(&header, &with_header(&[b"\xff"]), header.key(b"\xff"));
    assert_ne!(header.key("a"), Header::new("x-other").key("a"));

    let session = Cookie::new("session");
    for (sent, value) in [
        ("session=s3cret", "s3cret"),
        ("a=b; session= s3cret ", " s3cret "),
        ("session=\"s3cret\"", "s3cret"),
        ("session=\"s3cret\"", "\"s3cret\""),
    ] {
        is(&session, &with_cookies(&[sent]), session.key(value));
    }

    let proxies = || TrustedProxies::networks(["192.0.2.0/24".parse().unwrap()]);
    for address in [
        "203.0.113.7",
        "::ffff:203.0.113.7",
        "64:ff9b::8.8.8.8",
        "64:ff9b::10.0.0.1",
        "2001:db8:1:2ff::7",
        "2002:cb00:7107:5::1",
    ] {
        let ip: std::net::IpAddr = address.parse().unwrap();
        let direct = from(&SocketAddr::new(ip, 1).to_string());
        let mut proxied = from("192.0.2.1:1");
        let value = HeaderValue::from_str(address).unwrap();
        proxied.headers.insert("x-forwarded-for", value);
        for bits in [32, 56, 64, 128] {
            let peer = PeerIp.ipv6_prefix(bits);
            let forwarded = ForwardedIp::x_forwarded_for(proxies()).ipv6_prefix(bits);
            is(&peer, &direct, peer.key(ip));
            is(&forwarded, &proxied, forwarded.key(ip));
            assert_eq!(peer.key(ip), forwarded.key(ip));
            let mut both = direct.clone();
            both.headers
                .insert("x-api-key", HeaderValue::from_static("s3cret"));
            let pair = header.clone().and(peer);
            is(&pair, &both, pair.key(&header.key("s3cret"), &peer.key(ip)));
        }
    }
}

#[tokio::test]
async fn one_client_is_peeked_at_reset_and_blocked_by_its_key() {
    let header = || Header::new("x-api-key");
    let policy = || Policy::parse("api", "1/1d").unwrap();
    let limiter = Limiter::new(MemoryStore::new());
    let limits = RateLimitLayer::new(limiter.clone()).limit(policy(), header());
    let app = |limits: RateLimitLayer| {
        Router::new()
            .route("/", any(async || "hello"))
            .layer(limits)
    };
    let site = Site::start(app(limits.clone())).await;
    let ask = async |site: &Site| site.get("/", &[("x-api-key", "s3cret")]).await.0.as_u16();
    let key = header().key("s3cret");
    let left = async || {
        let usage = limiter.peek([Charge::new(&policy(), key.clone(), 1)]).await;
        usage.unwrap().rules().next().unwrap().remaining()
    };
    assert_eq!((left().await, ask(&site).await), (1, 200));
    assert_eq!((left().await, ask(&site).await), (0, 429));
    limiter.reset(&policy(), &key).await.unwrap();
    assert_eq!((left().await, ask(&site).await), (1, 200));
    let blocked = key.clone();
    let site = Site::start(app(limits.deny_keys(move |it| *it == blocked))).await;
    assert_eq!(ask(&site).await, 403);
}

#[test]
fn cookies_are_different_identities_by_name_and_value() {
    let key = |name: &'static str, line| Cookie::new(name).extract(&with_cookies(&[line])).unwrap();
    assert_ne!(key("a", "a=1"), key("b", "b=1"));
    assert_ne!(key("a", "a=1"), key("a", "a=2"));
    assert_ne!(key("a", "a=b=1"), key("a", "a=1"));
    assert_ne!(key("a", "a=%31"), key("a", "a=1"));
    assert_ne!(key("a:b", "a:b=c"), key("a", "a=b:c"));
}

#[test]
fn a_cookie_may_have_each_name_that_browsers_send_back() {
    for name in [
        "express:sess",
        "koa:sess",
        "auth:token",
        "a{b}",
        "a,b",
        "\"a\"",
        "ä",
    ] {
        let cookie = name.parse::<Cookie>().unwrap();
        let mut head = head();
        let line = HeaderValue::from_bytes(format!("x=y; {name}=s3cret").as_bytes());
        head.headers.insert("cookie", line.unwrap());
        assert_eq!(cookie.extract(&head), Ok(cookie.key("s3cret").into()));
    }
    for name in [
        "", "a=b", "a;b", "a b", " a", "a\t", "a\u{a0}", "a\u{7f}", "a\n",
    ] {
        assert!(name.parse::<Cookie>().is_err(), "{name:?}");
    }
}

#[test]
fn an_empty_field_is_missing_for_every_extractor() {
    let proxies = || TrustedProxies::networks(["192.0.2.0/24".parse().unwrap()]);
    let count = || TrustedProxies::count_including_peer(2);
    let one = http::HeaderName::from_static("x-real-ip");
    let single = |trusted| ForwardedIp::header(one.clone(), trusted);
    let extractors: [(_, &dyn KeyExtractor); 10] = [
        ("x-api-key", &Header::new("x-api-key")),
        ("cookie", &Cookie::new("session")),
        ("authorization", &BearerToken),
        ("host", &Host),
        ("x-forwarded-for", &ForwardedIp::x_forwarded_for(proxies())),
        ("x-forwarded-for", &ForwardedIp::x_forwarded_for(count())),
        ("forwarded", &ForwardedIp::forwarded(proxies())),
        ("forwarded", &ForwardedIp::forwarded(count())),
        ("x-real-ip", &single(proxies())),
        ("x-real-ip", &single(count())),
    ];
    for (name, extractor) in extractors {
        let is_list = name.contains("forwarded");
        let values = ["", " ", "\t", ",", " , ,"];
        for value in &values[..if is_list { 5 } else { 3 }] {
            let mut head = from("192.0.2.1:1");
            head.headers.insert(name, HeaderValue::from_static(value));
            let kind = kind_of_error(extractor.extract(&head));
            assert_eq!(kind, ExtractErrorKind::Missing, "{name}: {value:?}");
        }
    }
}

#[test]
fn a_name_from_a_configuration_is_parsed() {
    let header = "X-Api-Key".parse::<Header>().unwrap();
    assert_eq!(header.key("s3cret"), Header::new("x-api-key").key("s3cret"));
    let cookie = "session".parse::<Cookie>().unwrap();
    assert_eq!(cookie.key("s3cret"), Cookie::new("session").key("s3cret"));

    let long = "ä".repeat(100);
    for (error, expected) in [
        (
            "x api key".parse::<Header>().map(|_| ()),
            "`x api key` cannot be the name of a header",
        ),
        (
            "my session".parse::<Cookie>().map(|_| ()),
            "`my session` cannot be the name of a cookie",
        ),
        (
            "".parse::<Cookie>().map(|_| ()),
            "`` cannot be the name of a cookie",
        ),
    ] {
        assert_eq!(error.unwrap_err().to_string(), expected);
    }
    let shown = long.parse::<Header>().unwrap_err().to_string();
    assert_eq!(shown.matches('ä').count(), 64);
}

#[test]
#[should_panic(expected = "`my session` cannot be the name of a cookie")]
fn a_name_that_no_cookie_has_is_an_error_when_built() {
    let _ = Cookie::new("my session");
}

#[test]
fn one_ipv6_network_is_one_identity() {
    let key = |peer| PeerIp.extract(&from(peer)).unwrap();
    assert_eq!(key("[2001:db8:1:2::1]:1"), key("[2001:db8:1:2:ffff::2]:2"));
    assert_ne!(key("[2001:db8:1:2::1]:1"), key("[2001:db8:1:3::1]:1"));
}

#[test]
fn mapped_and_plain_ipv4_are_one_identity() {
    let key = |peer| PeerIp.extract(&from(peer)).unwrap();
    assert_eq!(key("[::ffff:203.0.113.7]:1"), key("203.0.113.7:2"));
    assert_ne!(key("[::ffff:203.0.113.7]:1"), key("[::ffff:203.0.113.8]:1"));
}

#[test]
fn the_width_of_an_ipv6_network_is_configurable() {
    let key = |peer| PeerIp.ipv6_prefix(56).extract(&from(peer)).unwrap();
    assert_eq!(key("[2001:db8:1:200::1]:1"), key("[2001:db8:1:2ff::1]:1"));
    let single = |peer| PeerIp.ipv6_prefix(128).extract(&from(peer)).unwrap();
    assert_ne!(single("[2001:db8::1]:1"), single("[2001:db8::2]:1"));
}

#[test]
#[should_panic(expected = "32 to 128 bits")]
fn a_network_that_is_too_wide_is_an_error_when_built() {
    let _ = PeerIp.ipv6_prefix(31);
}

#[test]
fn no_peer_or_an_unspecified_one_is_a_mistake_of_the_service_and_says_what_to_do() {
    for (head, mend) in [
        (head(), "into_make_service_with_connect_info"),
        (from("0.0.0.0:1"), "MockConnectInfo"),
        (from("[::]:1"), "MockConnectInfo"),
        (from("[::ffff:0.0.0.0]:1"), "MockConnectInfo"),
    ] {
        let error = PeerIp.extract(&head).unwrap_err();
        assert_eq!(error.kind(), ExtractErrorKind::Misconfigured);
        assert!(error.to_string().contains(mend));
    }
}

#[test]
fn the_peer_of_an_axum_connection_is_found() {
    use axum::extract::{ConnectInfo, connect_info::MockConnectInfo};

    let peer: SocketAddr = "203.0.113.7:1".parse().unwrap();
    let (mut real, mut mock) = (head(), head());
    real.extensions.insert(ConnectInfo(peer));
    mock.extensions.insert(MockConnectInfo(peer));
    for head in [real, mock] {
        assert_eq!(
            PeerIp.extract(&head),
            Ok(Key::new("ip", "203.0.113.7").into())
        );
    }
}

#[test]
fn only_a_missing_identity_is_skipped_or_shared() {
    let shared = Key::new("anonymous", "all");
    let skip = Header::new("x-api-key").or_skip();
    let share = Header::new("x-api-key").or_shared(shared.clone());

    assert_eq!(skip.extract(&head()), Ok(Keys::skip()));
    assert_eq!(share.extract(&head()), Ok(shared.into()));

    let twice = with_header(&[b"a", b"b"]);
    assert_eq!(
        kind_of_error(skip.extract(&twice)),
        ExtractErrorKind::Malformed
    );
    assert_eq!(
        kind_of_error(share.extract(&twice)),
        ExtractErrorKind::Malformed
    );

    let failed = |_: &Parts| Err::<Key, _>(ExtractError::unavailable("the directory is down"));
    let result = failed.or_skip().extract(&head());
    assert_eq!(kind_of_error(result), ExtractErrorKind::Unavailable);
}

#[test]
fn closures_answer_a_key_several_none_or_an_error() {
    let key = || Key::new("user", "a");
    let one = move |_: &Parts| key();
    let perhaps = move |_: &Parts| Some(key());
    let several = move |_: &Parts| Keys::from_iter([key(), Key::new("team", "a")]);
    let fallible = move |_: &Parts| Ok::<_, ExtractError>(key());
    let none = |_: &Parts| None::<Key>;

    assert_eq!(one.extract(&head()), Ok(key().into()));
    assert_eq!(perhaps.extract(&head()), Ok(key().into()));
    assert_eq!(several.extract(&head()).unwrap().into_iter().count(), 2);
    assert_eq!(fallible.extract(&head()), Ok(key().into()));
    assert_eq!(
        kind_of_error(none.extract(&head())),
        ExtractErrorKind::Missing
    );
}

#[test]
fn the_number_of_keys_that_are_kept_is_bounded() {
    let endless = std::iter::repeat_with(|| Key::new("user", "a"));
    assert_eq!(Keys::from_iter(endless).into_iter().count(), 65);
}

#[test]
fn an_extension_is_an_identity_nobody_or_a_mistake_of_the_service() {
    #[derive(Clone)]
    struct User(Option<&'static str>);

    let user = FromExtension::new(|user: &User| user.0.map(|name| Key::new("user", name)));
    let with = |user: User| {
        let mut head = head();
        head.extensions.insert(user);
        head
    };
    let with_option = |user: Option<User>| {
        let mut head = head();
        head.extensions.insert(user);
        head
    };
    for head in [with(User(Some("a"))), with_option(Some(User(Some("a"))))] {
        assert_eq!(user.extract(&head), Ok(Key::new("user", "a").into()));
    }
    for head in [with(User(None)), with_option(None)] {
        assert_eq!(
            kind_of_error(user.extract(&head)),
            ExtractErrorKind::Missing
        );
    }
    let error = user.extract(&head()).unwrap_err();
    assert_eq!(error.kind(), ExtractErrorKind::Misconfigured);
    assert!(error.to_string().contains("::User`: "), "{error}");
}

#[test]
fn a_key_is_shared_by_everybody() {
    let all = || Key::new("service", "all");
    assert_eq!(all().extract(&head()), Ok(all().into()));
}

#[test]
fn extractors_are_trait_objects() {
    let boxed: Box<dyn KeyExtractor> = Box::new(PeerIp);
    let header: Box<dyn KeyExtractor> = Box::new(Header::new("x-api-key"));
    let shared: Arc<dyn KeyExtractor> = Arc::new(header.or_skip());
    assert_eq!(shared.extract(&head()), Ok(Keys::skip()));
    let shared: Arc<dyn KeyExtractor> = Arc::new(boxed.or_skip());
    assert!(shared.extract(&head()).is_err());
}

#[test]
fn public_types_are_send_and_sync() {
    fn check<T: Send + Sync + ?Sized>() {}
    check::<PeerIp>();
    check::<Header>();
    check::<Cookie>();
    check::<FromExtension<String>>();
    check::<Keys>();
    check::<sluicegate::extract::OnMissing<PeerIp>>();
    check::<dyn KeyExtractor>();
}
