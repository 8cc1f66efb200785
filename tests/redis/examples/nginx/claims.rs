//! Header lines with which clients claim to be others.

use super::{INNER, LISTEN, OUTER, REFUSED, SERVED, SPELLINGS};

#[tokio::test]
async fn an_address_that_a_client_claims_is_not_believed() {
    for spelling in SPELLINGS {
        let values = ["IP", "IP, IP", "IP, 203.0.113.7, IP", "203.0.113.7,IP"];
        spelling.site().attack_by_values(&values).await;
    }
}

#[tokio::test]
async fn the_address_of_a_proxy_among_the_claimed_ones_does_not_make_them_trusted() {
    for spelling in SPELLINGS {
        let [inner, outer] = [INNER, OUTER].map(|ip| spelling.claim(ip));
        let values = [
            format!("IP, {inner}"),
            format!("IP, {outer}, {inner}"),
            inner.clone(),
            format!("{inner}, IP, {inner}"),
        ];
        let values = values.each_ref().map(String::as_str);
        spelling.site().attack_by_values(&values).await;
    }
}

#[tokio::test]
async fn several_lines_of_the_header_are_not_believed() {
    for spelling in SPELLINGS {
        let site = spelling.site();
        let line = |ip: &str| spelling.line(&spelling.claim(ip));
        let lines = |ip: &str| [line(ip), line("203.0.113.7"), line(ip)].concat();
        site.attack(SERVED, |ip| lines(ip).into_bytes()).await;
        site.attack(SERVED, |ip| line(ip).repeat(80).into_bytes())
            .await;
    }
}

#[tokio::test]
async fn other_headers_with_addresses_are_not_read() {
    let names = "x-forwarded-for forwarded x-real-ip cf-connecting-ip cf-connecting-ipv6 true-client-ip \
        fly-client-ip fastly-client-ip x-client-ip client-ip x-cluster-client-ip x-forwarded x-forwarded-by \
        forwarded-for x-original-forwarded-for x-envoy-external-address x-azure-clientip x-appengine-user-ip \
        x-remote-addr remote-addr x-host x-originating-ip cloudfront-viewer-address via";
    for spelling in SPELLINGS {
        let site = spelling.site();
        for claim in [|ip: &str| ip.to_owned(), |ip: &str| format!("for={ip}")] {
            let line = |name: &str, ip: &str| format!("{name}: {}\r\n", claim(ip));
            let lines =
                |ip: &str| -> String { names.split(' ').map(|name| line(name, ip)).collect() };
            site.attack(SERVED, |ip| lines(ip).into_bytes()).await;
        }
    }
}

#[tokio::test]
async fn names_in_other_spellings_are_the_header_or_no_header() {
    for spelling in SPELLINGS {
        let name = spelling.header;
        let names = [
            name.to_uppercase(),
            name.replace('-', "_"),
            name.to_uppercase().replace('-', "_"),
            name.replace('-', "."),
            format!("{name}-"),
            format!("http_{}", name.replace('-', "_")),
        ];
        for more in [
            "",
            "underscores_in_headers on;",
            "underscores_in_headers on; ignore_invalid_headers off;",
        ] {
            let site = spelling.site_with(&format!("{LISTEN} {more}"));
            for name in &names {
                let line = |ip: &str| format!("{name}: {}\r\n", spelling.claim(ip));
                site.attack_oddly(|ip| line(ip).into_bytes()).await;
            }
        }
    }
}

#[tokio::test]
async fn entries_that_are_no_addresses_are_not_read() {
    for spelling in SPELLINGS {
        let site = spelling.site();
        site.attack_by_values(&[
            "",
            ",",
            " , ,",
            "IP,",
            "IP,,,",
            "unknown",
            "IP, unknown",
            "_hidden",
            "for=unknown, for=_hidden",
            "unix:",
            "localhost",
            "IP IP",
            "IP;IP",
            "0.0.0.0",
            "0x7f000101",
            "127.1",
            "127.000.001.001",
            "<script>",
        ])
        .await;
    }
}

#[tokio::test]
async fn ports_brackets_and_ipv6_forms_of_a_victims_address_are_not_believed() {
    for spelling in SPELLINGS {
        let site = spelling.site();
        for value in [
            "IP:50000",
            "IP:_hidden",
            "[IP]",
            "::ffff:IP",
            "[::ffff:IP]",
            "[::FFFF:IP]:50000",
            "64:ff9b::IP",
            "[64:ff9b::IP]:50000",
            "::IP",
            "fe80::1%IP",
            "2001:db8::7",
            "[2001:db8::7]:50000",
        ] {
            let forms: &[_] = match spelling.header {
                "forwarded" => &["for=ADDRESS", "for=\"ADDRESS\"", "FOR=ADDRESS;by=ADDRESS"],
                _ => &["ADDRESS"],
            };
            for form in forms {
                let value = form.replace("ADDRESS", value);
                let line = |ip: &str| spelling.line(&value.replace("IP", ip));
                site.attack(SERVED, |ip| line(ip).into_bytes()).await;
            }
        }
    }
}

#[tokio::test]
async fn bytes_that_are_no_text_and_loose_quotes_do_not_reach_what_nginx_wrote() {
    for spelling in SPELLINGS {
        let site = spelling.site();
        for bytes in [
            &b"\xff\xfe"[..],
            b"\xc3",
            b"\"",
            b"\\",
            b"\"\\",
            b"\\\"",
            b"for=\"",
            b"for=\"203.0.113.7",
            b"for=\"203.0.113.7, for=203.0.113.7",
            b"for=\"\\",
            b"for=203.0.113.7;by=\"",
            b"=",
            b";",
            b"(",
            b"\t",
            b"a\x7f",
        ] {
            let start = [spelling.header.as_bytes(), b": "].concat();
            let line = |_: &str| [&start, bytes, b"\r\n"].concat();
            let expected = match (bytes, spelling.header) {
                // No header may contain this, so the service's HTTP library rejects the request.
                (b"a\x7f", "x-forwarded-for" | "forwarded") => REFUSED,
                _ => SERVED,
            };
            site.attack(expected, line).await;
        }
    }
}

#[tokio::test]
async fn long_chains_are_read_from_the_right_or_refused_by_nginx() {
    for spelling in SPELLINGS {
        let site = spelling.site();
        let chain = |ip: &str, entries| vec![spelling.claim(ip); entries].join(",");
        for entries in [63, 64, 65, 300] {
            site.attack(SERVED, |ip| spelling.line(&chain(ip, entries)).into_bytes())
                .await;
        }
        let one = |ip: &str| spelling.line(&chain(ip, 1_000)).into_bytes();
        site.attack(REFUSED, one).await;
        let four = |ip: &str| spelling.line(&chain(ip, 300)).repeat(4).into_bytes();
        site.attack(SERVED, four).await;
        let word = |ip: &str| {
            let word = "x".repeat(8_000);
            spelling.line(&format!("{} {word}", spelling.claim(ip)))
        };
        site.attack(SERVED, |ip| word(ip).into_bytes()).await;
    }
}

#[tokio::test]
async fn a_client_cannot_make_nginx_drop_the_header() {
    for spelling in SPELLINGS {
        let site = spelling.site();
        let name = spelling.header;
        for lines in [
            format!("connection: {name}\r\n{name}: IP\r\n"),
            format!("connection: close, {name}\r\n{name}: IP\r\n"),
            format!("proxy-connection: {name}\r\n{name}: IP\r\n"),
            // In the trailers, behind the body.
            format!("transfer-encoding: chunked\r\ntrailer: {name}\r\n\r\n0\r\n{name}: IP\r\n"),
        ] {
            let lines = |ip: &str| lines.replace("IP", &spelling.claim(ip)).into_bytes();
            site.attack(SERVED, lines).await;
        }
    }
}

#[tokio::test]
async fn lines_that_servers_may_read_differently_move_nobody() {
    for spelling in SPELLINGS {
        let site = spelling.site();
        let name = spelling.header;
        for lines in [
            format!("{name} : IP\r\n"),
            format!("{name}\t: IP\r\n"),
            format!(" {name}: IP\r\n"),
            format!("x-other: a\r\n {name}: IP\r\n"),
            format!("{name}: a\r\n IP\r\n"),
            format!("{name}: IP\0\r\n"),
            format!("x-other: a\n{name}: IP\r\n"),
            format!("x-other: a\r{name}: IP\r\n"),
            format!("{name}\r\n"),
            ": IP\r\n".to_owned(),
        ] {
            let lines = |ip: &str| lines.replace("IP", &spelling.claim(ip)).into_bytes();
            site.attack_oddly(lines).await;
        }
    }
}
