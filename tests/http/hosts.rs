//! `Host` and `BearerToken` with requests from HTTP/1.1 and HTTP/2 servers.

use sluicegate::extract::Host;

use crate::prelude::*;

/// A server that answers with the results of the extractor.
async fn serve(extractor: impl KeyExtractor + Copy) -> SocketAddr {
    let service = service_fn(move |request: Request<Incoming>| {
        let found = found(&extractor, &request.into_parts().0);
        let body = Full::new(Bytes::from(found));
        ready(Ok::<_, Infallible>(Response::new(body)))
    });
    crate::asking::serve(move |_| service).await
}

/// Sends these lines over HTTP/1.1. Returns the body.
async fn ask(server: SocketAddr, lines: &str) -> String {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let request = format!("{lines}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response.rsplit("\r\n\r\n").next().unwrap().to_owned()
}

#[tokio::test]
async fn a_host_is_found_over_http_1_and_http_2() {
    let server = serve(Host).await;
    let rows = r"
        GET / HTTP/1.1\r\nhost: Acme.example.com | host=acme.example.com
        GET / HTTP/1.1\r\nhost: acme.example.com.:8080 | host=acme.example.com
        GET / HTTP/1.1\r\nHOST: [2001:DB8::7]:80 | host=[2001:db8::7]
        GET http://acme.example.com/ HTTP/1.1\r\nhost: acme.example.com:80 | host=acme.example.com
        GET http://acme.example.com/ HTTP/1.1\r\nhost: other.example.com | malformed
        GET / HTTP/1.1\r\nhost: a.example\r\nhost: b.example | malformed
        GET / HTTP/1.1\r\nhost: user@acme.example.com | malformed
        GET / HTTP/1.1\r\nhost: | missing
        GET / HTTP/1.0 | missing
    ";
    for row in rows.trim().lines() {
        let (lines, expected) = row.trim().split_once(" | ").unwrap();
        let lines = lines.replace(r"\r\n", "\r\n") + "\r\n";
        assert_eq!(ask(server, &lines).await, expected, "{row}");
    }

    let client = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http::<Empty<Bytes>>();
    let request = Request::get(format!("http://{server}/")).body(Empty::new());
    let response = client.request(request.unwrap()).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "host=127.0.0.1");
}

#[tokio::test]
async fn a_bearer_token_is_one_key_however_it_is_written() {
    let server = serve(BearerToken).await;
    let with = |value: &str| format!("GET / HTTP/1.1\r\nhost: a\r\nauthorization:{value}\r\n");
    let rows = r"
         Bearer abc.d-e_f~g+h/i== | bearer=abc.d-e_f~g+h/i==
        Bearer abc.d-e_f~g+h/i== | bearer=abc.d-e_f~g+h/i==
         bearer abc.d-e_f~g+h/i== | bearer=abc.d-e_f~g+h/i==
         BEARER   abc.d-e_f~g+h/i==   | bearer=abc.d-e_f~g+h/i==
         Bearer\tabc.d-e_f~g+h/i== | bearer=abc.d-e_f~g+h/i==
         Basic YWxpY2U6 | missing
         abc | missing
         Bearerabc | missing
         Bearer | missing
         Bearer   | missing
         | missing
         Bearer a b | malformed
         Bearer a,b | malformed
         Bearer ä | malformed
         Bearer a\r\nauthorization: Bearer a | malformed
    ";
    for row in rows.lines().filter_map(|it| it.strip_prefix("        ")) {
        let (value, expected) = row.split_once("| ").unwrap();
        let value = value.replace(r"\t", "\t").replace(r"\r\n", "\r\n");
        assert_eq!(ask(server, &with(&value)).await, expected, "{row}");
    }
    let issued = ask(server, &with(" Bearer 1|f4SwPYmyi0")).await;
    assert_eq!(issued, "bearer=1|f4SwPYmyi0");
    let without = ask(server, "GET / HTTP/1.1\r\nhost: a\r\n").await;
    assert_eq!(without, "missing");
}

#[test]
fn a_bearer_token_is_a_secret_and_its_absence_can_ask_for_one() {
    let key = BearerToken.key(" abc ");
    assert!(key.is_secret());
    assert_eq!(key, Key::secret("bearer", "abc"));
    let challenging = BearerToken.or_unauthorized(HeaderValue::from_static("Bearer"));
    let error = challenging.extract(&head()).unwrap_err();
    assert_eq!(error.kind(), ExtractErrorKind::Unauthenticated);
    assert_eq!(error.challenge(), Some("Bearer"));
}
