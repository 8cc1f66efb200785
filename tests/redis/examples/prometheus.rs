//! The prometheus example: a page of metrics for scraping.

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};

use support::example::{self, Example};

#[tokio::test]
async fn prometheus_reads_in_the_example_what_was_allowed_and_rejected() {
    let program = example::build("prometheus");
    let site = Example::run(std::process::Command::new(program).arg("127.0.0.1:0"));
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let get = async |path: &str| {
        let url = format!("http://{}{path}", site.address());
        let response = client.get(url.parse().unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };
    for expected in [200, 200, 200, 429] {
        assert_eq!(get("/").await.0, expected);
    }
    let (status, page) = get("/metrics").await;
    assert_eq!(status, 200);
    for line in [
        "# TYPE sluicegate_decisions_total counter",
        r#"sluicegate_decisions_total{policy="ip",outcome="allowed"} 3"#,
        r#"sluicegate_decisions_total{policy="ip",outcome="denied"} 1"#,
        r#"sluicegate_decisions_total{policy="stricter",outcome="allowed"} 1"#,
        r#"sluicegate_decisions_total{policy="stricter",outcome="shadow_denied"} 2"#,
        r#"sluicegate_denials_total{policy="ip",rule="3/1m",shadow="false"} 1"#,
        r#"sluicegate_units_charged_total{policy="ip"} 3"#,
        r#"sluicegate_settlements_total{policy="ip",outcome="failed"} 0"#,
        "# TYPE sluicegate_store_seconds histogram",
        r#"sluicegate_store_seconds_count{call="check"} 4"#,
    ] {
        assert!(page.lines().any(|it| it == line), "{line}:\n{page}");
    }
    // The page contains no client's address.
    assert!(!page.contains("127.0.0.1"), "{page}");
}
