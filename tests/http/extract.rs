//! Each request has the identity in its head, and never shares one by accident.

use axum::extract::{ConnectInfo, connect_info::MockConnectInfo};
use sluicegate::extract::{FromExtension, Host, RepeatedCookie};
use std::net::IpAddr;

use crate::prelude::*;

/// A head with these lines of a header.
fn lines(name: &'static str, values: &[&[u8]]) -> Parts {
    let mut head = head();
    for value in values {
        let value = HeaderValue::from_bytes(value).unwrap();
        head.headers.append(name, value);
    }
    head
}

fn with_header(value: &[u8]) -> Parts {
    lines("x-api-key", &[value])
}

fn with_cookies(text: &[&str]) -> Parts {
    let text: Vec<&[u8]> = text.iter().map(|it| it.as_bytes()).collect();
    lines("cookie", &text)
}

fn from(peer: &str) -> Parts {
    let mut head = head();
    head.extensions.insert(peer.parse::<SocketAddr>().unwrap());
    head
}

fn kind_of_error(result: Result<Keys, ExtractError>) -> ExtractErrorKind {
    result.unwrap_err().kind()
}

/// In each row: an extractor, lines that are sent in that header, and the only key, or the kind of the error.
const ROWS: &str = r#"
# A header is one line.
header | s3cret | s3cret
header | a && a | Malformed
header |  && a | Malformed
header | a &&  | Malformed
header | | Missing
# A cookie counts in whichever line it stands, and however it is written.
cookie | session=s3cret | s3cret
cookie | theme=dark; session=s3cret; x=y | s3cret
cookie | theme=dark && session=s3cret | s3cret
cookie | theme=dark;session=s3cret | s3cret
cookie | ; ;=;session; session = s3cret  | s3cret
cookie | Session=other; xsession=other; session="s3cret" | s3cret
cookie | | Missing
cookie | theme=session | Missing
cookie | session= | Missing
cookie | session="" | Missing
cookie | session | Missing
cookie | session=a; session=b | Malformed
cookie | session=a && session=a | Malformed
cookie | session=; session=a | Malformed
cookie | session =a;session=b | Malformed
# What one that stands there twice means can be chosen. With one cookie, all settings find the same.
malformed | theme=dark; session=mine && session=theirs | Malformed
first | theme=dark; session=mine && session=theirs | mine
last | theme=dark; session=mine && session=theirs | theirs
missing | theme=dark; session=mine && session=theirs | Missing
malformed, first, last, missing | session=mine | mine
"#;

#[test]
fn each_row_has_its_identity() {
    for row in ROWS.lines().filter(|it| it.contains(" | ")) {
        let cells: Vec<&str> = row.split('|').map(|it| it.trim_matches(' ')).collect();
        let [extractors, sent, expected] = cells[..] else {
            panic!("{row}");
        };
        let sent: Vec<&str> = match sent {
            "" => vec![],
            sent => sent.split("&&").map(|it| it.trim_matches(' ')).collect(),
        };
        for name in extractors.split(", ") {
            let sent: Vec<&[u8]> = sent.iter().map(|it| it.as_bytes()).collect();
            let session = |repeated| Box::new(Cookie::new("session").repeated(repeated));
            let (field, extractor): (_, Box<dyn KeyExtractor>) = match name {
                "header" => ("x-api-key", Box::new(Header::new("X-API-Key"))),
                "cookie" => ("cookie", Box::new(Cookie::new("session"))),
                "malformed" => ("cookie", session(RepeatedCookie::Malformed)),
                "first" => ("cookie", session(RepeatedCookie::First)),
                "last" => ("cookie", session(RepeatedCookie::Last)),
                _ => ("cookie", session(RepeatedCookie::Missing)),
            };
            let head = lines(field, &sent);
            let found = extractor.extract(&head).map(|keys| {
                let keys: Vec<Key> = keys.into_iter().collect();
                let [key] = &keys[..] else {
                    panic!("{row}: {keys:?}");
                };
                assert!(key.is_secret() && !format!("{key:?}").contains("s3cret"));
                let text = String::from_utf8(key.value().to_vec()).unwrap();
                text.split([':', '=']).next_back().unwrap().to_owned()
            });
            let found = found.unwrap_or_else(|error| format!("{:?}", error.kind()));
            assert_eq!(found, expected, "{name}: {row}");
        }
    }
}

#[test]
fn one_that_is_missing_when_it_stands_there_twice_leaves_the_client_to_another_extractor() {
    let session = || Cookie::new("session").repeated(RepeatedCookie::Missing);
    let mut head = with_cookies(&["session=mine; session=theirs"]);
    head.extensions = from("203.0.113.7:1").extensions;
    assert_eq!(session().or_skip().extract(&head), Ok(Keys::skip()));
    let by_address = session().or(PeerIp).extract(&head);
    assert_eq!(by_address, Ok(Key::new("ip", "203.0.113.7").into()));
}

#[test]
fn names_and_values_do_not_flow_into_each_other_nor_into_those_of_others() {
    let (long, longer) = (vec![b'a'; 65_536], vec![b'a'; 65_537]);
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
    let header = |name: &'static str, value| Header::new(name).extract(&lines(name, &[value]));
    let cookie = |name: &'static str, line| Cookie::new(name).extract(&with_cookies(&[line]));
    let mut keys: Vec<_> = values.map(|value| header("x-api-key", value)).into();
    keys.extend([
        header("x-user", b"a"),
        header("x", b"y:z"),
        header("x-y", b"z"),
        cookie("a", "a=1"),
        cookie("b", "b=1"),
        cookie("a", "a=2"),
        cookie("a", "a=b=1"),
        cookie("a", "a=%31"),
        cookie("a:b", "a:b=c"),
        cookie("a", "a=b:c"),
    ]);
    for (index, key) in keys.iter().enumerate() {
        assert!(key.is_ok());
        assert!(!keys[..index].contains(key), "key {index} meets another");
    }
}

#[test]
fn an_empty_field_is_missing_for_every_extractor() {
    let proxies = || TrustedProxies::networks(["192.0.2.0/24".parse().unwrap()]);
    let count = || TrustedProxies::count_including_peer(2);
    let single = |trusted| ForwardedIp::header(HeaderName::from_static("x-real-ip"), trusted);
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
fn a_cookie_may_have_each_name_that_browsers_send_back() {
    for name in r#"express:sess koa:sess auth:token a{b} a,b "a" ä"#.split(' ') {
        let cookie = name.parse::<Cookie>().unwrap();
        let head = with_cookies(&[&format!("x=y; {name}=s3cret")]);
        assert_eq!(cookie.extract(&head), Ok(cookie.key("s3cret").into()));
    }
    for name in [
        "", "a=b", "a;b", "a b", " a", "a\t", "a\u{a0}", "a\u{7f}", "a\n",
    ] {
        assert!(name.parse::<Cookie>().is_err(), "{name:?}");
    }
}

#[test]
fn a_name_from_a_configuration_is_parsed() {
    let header = "X-Api-Key".parse::<Header>().unwrap();
    assert_eq!(header.key("s3cret"), Header::new("x-api-key").key("s3cret"));
    let cookie = "session".parse::<Cookie>().unwrap();
    assert_eq!(cookie.key("s3cret"), Cookie::new("session").key("s3cret"));

    let header = |name: &str| name.parse::<Header>().unwrap_err().to_string();
    let cookie = |name: &str| name.parse::<Cookie>().unwrap_err().to_string();
    let of_header = "`x api key` cannot be the name of a header";
    assert_eq!(header("x api key"), of_header);
    let of_cookie = "`my session` cannot be the name of a cookie";
    assert_eq!(cookie("my session"), of_cookie);
    assert_eq!(cookie(""), "`` cannot be the name of a cookie");
    assert_eq!(header(&"ä".repeat(100)).matches('ä').count(), 64);
}

panics! {
    a_name_that_no_header_has_is_an_error_when_built: Header::new("x api key") => "`x api key` cannot be the name of a header";
    a_name_that_no_cookie_has_is_an_error_when_built: Cookie::new("my session") => "`my session` cannot be the name of a cookie";
    a_network_that_is_too_wide_is_an_error_when_built: PeerIp.ipv6_prefix(31) => "32 to 128 bits";
}

#[test]
fn a_key_made_by_hand_is_that_of_a_request() {
    let is = |extractor: &dyn KeyExtractor, head: &Parts, key: Key| {
        assert_eq!(extractor.extract(head), Ok(key.into()), "{head:?}");
    };
    let header = Header::new("X-Api-Key");
    for value in ["s3cret", " s3cret\t", "a:b", &"x".repeat(4_096)] {
        is(&header, &with_header(value.as_bytes()), header.key(value));
    }
    is(&header, &with_header(b"\xff"), header.key(b"\xff"));
    assert_ne!(header.key("a"), Header::new("x-other").key("a"));

    let session = Cookie::new("session");
    assert_eq!(session.key("a").kind(), "cookie");
    for (sent, value) in [
        ("session=s3cret", "s3cret"),
        ("a=b; session= s3cret ", " s3cret "),
        ("session=\"s3cret\"", "s3cret"),
        ("session=\"s3cret\"", "\"s3cret\""),
    ] {
        is(&session, &with_cookies(&[sent]), session.key(value));
    }

    let proxies = || TrustedProxies::networks(["192.0.2.0/24".parse().unwrap()]);
    let addresses = "203.0.113.7 ::ffff:203.0.113.7 64:ff9b::8.8.8.8 64:ff9b::10.0.0.1 \
                     2001:db8:1:2ff::7 2002:cb00:7107:5::1";
    for address in addresses.split(' ') {
        let ip: IpAddr = address.parse().unwrap();
        let direct = from(&SocketAddr::new(ip, 1).to_string());
        assert_eq!(PeerIp.key(ip), PeerIp.ipv6_prefix(64).key(ip));
        let mut proxied = from("192.0.2.1:1");
        let value = HeaderValue::from_str(address).unwrap();
        proxied.headers.insert("x-forwarded-for", value);
        for bits in [32, 56, 64, 128] {
            let peer = PeerIp.ipv6_prefix(bits);
            let forwarded = ForwardedIp::x_forwarded_for(proxies()).ipv6_prefix(bits);
            is(&peer, &direct, peer.key(ip));
            is(&forwarded, &proxied, forwarded.key(ip));
            assert_eq!(peer.key(ip), forwarded.key(ip));
            let mut both = with_header(b"s3cret");
            both.extensions = direct.extensions.clone();
            let pair = header.clone().and(peer);
            is(&pair, &both, pair.key(&header.key("s3cret"), &peer.key(ip)));
        }
    }
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
    let peer: SocketAddr = "203.0.113.7:1".parse().unwrap();
    let (mut real, mut mock) = (head(), head());
    real.extensions.insert(ConnectInfo(peer));
    mock.extensions.insert(MockConnectInfo(peer));
    // As an acceptor of the PROXY protocol inserts it, behind a load balancer.
    let mut told = head();
    let balancer: SocketAddr = "10.0.0.1:1".parse().unwrap();
    told.extensions.insert(ConnectInfo(balancer));
    told.extensions.insert(peer);
    for head in [real, mock, told] {
        let key = Key::new("ip", "203.0.113.7");
        assert_eq!(PeerIp.extract(&head), Ok(key.into()));
    }
}

#[test]
fn only_a_missing_identity_is_skipped_or_shared() {
    let shared = Key::new("anonymous", "all");
    let skip = Header::new("x-api-key").or_skip();
    let share = Header::new("x-api-key").or_shared(shared.clone());
    assert_eq!(skip.extract(&head()), Ok(Keys::skip()));
    assert_eq!(share.extract(&head()), Ok(shared.into()));

    let twice = lines("x-api-key", &[b"a", b"b"]);
    for result in [skip.extract(&twice), share.extract(&twice)] {
        assert_eq!(kind_of_error(result), ExtractErrorKind::Malformed);
    }
    let failed = |_: &Parts| Err::<Key, _>(ExtractError::unavailable("the directory is down"));
    let result = failed.or_skip().extract(&head());
    assert_eq!(kind_of_error(result), ExtractErrorKind::Unavailable);
}

#[test]
fn closures_answer_a_key_several_none_or_an_error() {
    let key = || Key::new("user", "a");
    let one = move |_: &Parts| key();
    let perhaps = move |_: &Parts| Some(key());
    let fallible = move |_: &Parts| Ok::<_, ExtractError>(key());
    let extractors: [&dyn KeyExtractor; 4] = [&one, &perhaps, &fallible, &key()];
    for extractor in extractors {
        assert_eq!(extractor.extract(&head()), Ok(key().into()));
    }
    let none = |_: &Parts| None::<Key>;
    let missing = kind_of_error(none.extract(&head()));
    assert_eq!(missing, ExtractErrorKind::Missing);
    let both = move || [key(), Key::new("team", "a")];
    let expected = Ok(Keys::from_iter(both()));
    assert_eq!(
        (move |_: &Parts| Keys::from(both())).extract(&head()),
        expected
    );
    assert_eq!((move |_: &Parts| both()).extract(&head()), expected);
    assert_eq!(
        (move |_: &Parts| both().to_vec()).extract(&head()),
        expected
    );
    assert_eq!((move |_: &Parts| Some(both())).extract(&head()), expected);
    let nobody = |_: &Parts| Vec::<Key>::new();
    assert_eq!(nobody.extract(&head()), Ok(Keys::skip()));
    // The number of keys that are kept is bounded.
    let endless = std::iter::repeat_with(key);
    assert_eq!(Keys::from_iter(endless).into_iter().count(), 65);
}

#[test]
fn an_extension_is_an_identity_nobody_or_a_mistake_of_the_service() {
    #[derive(Clone)]
    struct User(Option<&'static str>);

    fn with<T: Clone + Send + Sync + 'static>(user: T) -> Parts {
        let mut head = head();
        head.extensions.insert(user);
        head
    }

    let user = FromExtension::new(|user: &User| user.0.map(|name| Key::new("user", name)));
    for head in [with(User(Some("a"))), with(Some(User(Some("a"))))] {
        assert_eq!(user.extract(&head), Ok(Key::new("user", "a").into()));
    }
    for head in [with(User(None)), with(None::<User>)] {
        let kind = kind_of_error(user.extract(&head));
        assert_eq!(kind, ExtractErrorKind::Missing);
    }
    let error = user.extract(&head()).unwrap_err();
    assert_eq!(error.kind(), ExtractErrorKind::Misconfigured);
    assert!(error.to_string().contains("::User`: "), "{error}");
}
