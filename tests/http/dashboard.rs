//! The dashboard and the alert rules in the examples use only metrics that exist, and show all of them. The guide's table
//! has each.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    time::Duration,
};

use http::{Request, Response};
use metrics_exporter_prometheus::PrometheusBuilder;
use sluicegate::{
    Charge, FailurePolicy, Header, Key, Limiter, MemoryStore, Policy, RateLimitLayer,
    block::BlockRequest,
    observe::{Event, MetricsObserver, Observer},
};
use support::scripted::Scripted;
use tower::{Layer, ServiceExt, service_fn};

const DASHBOARD: &str = include_str!("../../examples/grafana/dashboard.json");
const ALERTS: &str = include_str!("../../examples/grafana/alerts.yml");
const GUIDE: &str = include_str!("../../docs/guide/operating.md");
const PAGE: &str = "https://docs.rs/sluicegate/latest/sluicegate/operating/index.html";
const SOURCE: &str = include_str!("../../src/observe/metrics.rs");
const TABLE: &str = include_str!("../../docs/guide/observers.md");

fn policy(name: &str, rules: &str) -> Policy {
    Policy::parse(name, rules).unwrap()
}

/// Requests that are allowed, denied, denied again, blocked, banned and without a key, a pause, a caller that waits for a
/// slot, and a store that fails until the breaker opens.
async fn traffic() {
    let limiter = Limiter::new(MemoryStore::new()).cache_denials(true);
    let limiter = limiter.observer(MetricsObserver::new());
    let layer = RateLimitLayer::new(limiter)
        .limit(policy("api", "1/1d"), Header::new("x-user"))
        .limit(policy("trial", "0/1d").shadow(), Header::new("x-user"))
        .deny(|head| head.headers.get("x-user").is_some_and(|it| it == "mallory"));
    let inner =
        service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let service = layer.layer(inner);
    for user in ["alice", "alice", "alice", "mallory", ""].map(|it| (!it.is_empty()).then_some(it))
    {
        let mut request = Request::get("/");
        if let Some(user) = user {
            request = request.header("x-user", user);
        }
        let request = request.body(String::new()).unwrap();
        service.clone().oneshot(request).await.unwrap();
    }

    let limiter = Limiter::new(MemoryStore::new()).observer(MetricsObserver::new());
    let login = policy("login", "1/1d").ban("1/1d=1h".parse().unwrap());
    for _ in 0..2 {
        let charge = Charge::new(&login, Key::new("user", "mallory"), 2);
        let _ = limiter.check([charge]).await;
        limiter.strikes_counted().await;
    }

    let limiter = Limiter::new(MemoryStore::new()).observer(MetricsObserver::new());
    let pause = BlockRequest::pause(Duration::from_secs(1));
    let _ = limiter.block(&Key::new("account", "ours"), pause).await;

    let jobs = policy("jobs", "1/30s@concurrent");
    MetricsObserver::new().on_event(&Event::Policy(&jobs));
    let job = [Charge::new(&jobs, Key::new("user", "alice"), 1)];
    let acquire = || limiter.acquire_slot(job.clone(), Duration::from_secs(9));
    let held = acquire().await.unwrap();
    let mut waits = Box::pin(acquire());
    assert!(futures::poll!(&mut waits).is_pending());
    drop((waits, held));

    let limiter = Limiter::new(Scripted::failing()).observer(MetricsObserver::new());
    let limiter = limiter.on_failure(FailurePolicy::Local).replicas(1);
    // The breaker counts one failure in each half of the timeout.
    let limiter = limiter.timeout(Duration::from_nanos(1));
    let charge = Charge::new(&policy("api", "1/1d"), Key::new("user", "bob"), 1);
    for _ in 0..8 {
        let _ = limiter.check([charge.clone()]).await;
    }
}

/// The exporter's page.
fn page() -> String {
    let recorder = PrometheusBuilder::new()
        .set_buckets(&[0.001, 0.01])
        .unwrap()
        .build_recorder();
    let runtime = support::runtime();
    metrics::with_local_recorder(&recorder, || runtime.block_on(traffic()));
    recorder.handle().render()
}

/// The metrics on the exporter's page, each with its labels.
fn emitted() -> BTreeMap<String, BTreeSet<String>> {
    let page = page();
    let samples = page
        .lines()
        .filter(|it| !it.is_empty() && !it.starts_with('#'));
    samples
        .map(|sample| {
            let selector = Selector::read(sample);
            let labels = selector.matchers.into_iter().map(|it| it.label);
            (selector.metric, labels.collect())
        })
        .collect()
}

/// A query to Prometheus, and the text that shows its result: `{{policy}}` in a legend.
struct Query {
    expression: String,
    text: String,
}

fn queries() -> Vec<Query> {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|it| it["targets"].as_array().unwrap());
    let targets = targets.map(|it| Query {
        expression: it["expr"].as_str().unwrap().to_owned(),
        text: it["legendFormat"].as_str().unwrap().to_owned(),
    });
    let rules = ALERTS.split("- alert: ").skip(1).map(|rule| {
        let (head, annotations) = rule.split_once("annotations:").unwrap();
        let (_, expression) = head.split_once("expr: ").unwrap();
        let (expression, _) = expression.split_once("labels:").unwrap();
        Query {
            expression: expression.to_owned(),
            text: annotations.replace("$labels.", "").replace("$value", ""),
        }
    });
    targets.chain(rules).collect()
}

impl Query {
    fn selectors(&self) -> impl Iterator<Item = Selector> {
        let starts = self.expression.match_indices("sluicegate_");
        starts.map(|(start, _)| Selector::read(&self.expression[start..]))
    }

    /// The labels in the result.
    fn grouped(&self) -> BTreeSet<&str> {
        let groups = self.expression.split("by (").skip(1);
        let groups = groups.map(|it| it.split_once(')').unwrap().0);
        groups.flat_map(|it| it.split(", ")).collect()
    }

    /// The labels in the text.
    fn written(&self) -> impl Iterator<Item = &str> {
        let places = self.text.split("{{").skip(1);
        let places = places.map(|it| it.split_once("}}").unwrap().0);
        places
            .map(|it| it.split('|').next().unwrap().trim())
            .filter(|it| !it.is_empty())
    }
}

/// `metric{label="value", ...}`
struct Selector {
    metric: String,
    matchers: Vec<Matcher>,
}

struct Matcher {
    label: String,
    values: Vec<String>,
}

impl Selector {
    fn read(text: &str) -> Self {
        let end = text.find(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        let (metric, rest) = text.split_at(end.unwrap_or(text.len()));
        let matchers = rest.strip_prefix('{').and_then(|it| it.split_once('}'));
        let matchers = matchers.map_or("", |it| it.0).split(',');
        let matchers = matchers.filter(|it| !it.is_empty()).map(|matcher| {
            let (label, value) = matcher.split_once('=').unwrap();
            let values = value.trim_matches(['~', '"']).split('|');
            Matcher {
                label: label.trim().trim_end_matches('!').to_owned(),
                values: values.map(str::to_owned).collect(),
            }
        });
        Self {
            metric: metric.to_owned(),
            matchers: matchers.collect(),
        }
    }
}

/// The metric that a sample of a histogram belongs to.
fn family(metric: &str) -> &str {
    let suffixes = ["_bucket", "_count", "_sum"];
    suffixes
        .iter()
        .find_map(|it| metric.strip_suffix(it))
        .unwrap_or(metric)
}

#[test]
fn what_the_dashboard_and_the_alerts_ask_for_is_emitted() {
    let emitted = emitted();
    for query in queries() {
        let expression = &query.expression;
        assert_ne!(query.selectors().count(), 0, "{expression}");
        for selector in query.selectors() {
            let known = emitted.get(&selector.metric);
            let known =
                known.unwrap_or_else(|| panic!("{} is not emitted: {expression}", selector.metric));
            for Matcher { label, values } in selector.matchers {
                assert!(known.contains(&label), "{label} is no label: {expression}");
                let row = Row::of(&selector.metric);
                for value in values.iter().filter(|it| *it != "$policy") {
                    let documented = row.labels().contains(&format!("`{value}`"));
                    assert!(documented, "{label} is never {value}: {expression}");
                }
            }
            for label in query.grouped() {
                assert!(known.contains(label), "{label} is no label: {expression}");
            }
        }
        // Prometheus adds the instance, unless a sum drops it.
        let instance = (!expression.contains("sum")).then_some("instance");
        for label in query.written() {
            let has = query.grouped().contains(label) || instance == Some(label);
            assert!(has || label == query.text, "{label}: {expression}");
        }
    }
}

#[test]
fn every_alert_links_to_its_paragraph_of_the_guide() {
    let headings = GUIDE.lines().filter_map(|it| it.strip_prefix("## "));
    let headings: Vec<String> = headings.map(str::to_lowercase).collect();
    let alerts = ALERTS.split("- alert: ").skip(1);
    let names = alerts
        .clone()
        .map(|it| it.lines().next().unwrap().to_lowercase());
    assert!(names.eq(headings.clone()), "{headings:?}");
    for (alert, name) in alerts.zip(headings) {
        let link = format!("runbook_url: {PAGE}#{name}\n");
        assert!(alert.contains(&link), "{link}: {alert}");
    }
}

#[test]
fn the_dashboard_shows_every_metric() {
    let emitted = emitted();
    let emitted: BTreeSet<&str> = emitted.keys().map(|it| family(it)).collect();
    let dashboard = DASHBOARD.match_indices("sluicegate_");
    let shown: BTreeSet<String> = dashboard
        .map(|(start, _)| family(&Selector::read(&DASHBOARD[start..]).metric).to_owned())
        .collect();
    let named: BTreeSet<&str> = SOURCE
        .split('"')
        .filter(|it| it.starts_with("sluicegate_") && !it.contains(' '))
        .collect();
    assert_eq!(emitted, named, "the traffic of this test causes all");
    assert!(shown.iter().eq(&emitted), "{shown:?} {emitted:?}");
}

/// A line of the guide's table of metrics, in its cells.
struct Row(Vec<&'static str>);

impl Row {
    fn all() -> impl Iterator<Item = Self> {
        let rows = TABLE.lines().filter(|it| it.starts_with("| `sluicegate_"));
        rows.map(|it| Self(it.trim_matches('|').split('|').map(str::trim).collect()))
    }

    fn of(metric: &str) -> Self {
        let row = Self::all().find(|it| it.name() == family(metric));
        row.unwrap_or_else(|| panic!("{metric} is not in the table"))
    }

    fn name(&self) -> &str {
        self.0[0].trim_matches('`')
    }

    /// The labels and their values, as the table has them.
    fn labels(&self) -> &str {
        self.0[3]
    }

    /// The labels alone: the first code of each part.
    fn label_names(&self) -> BTreeSet<&str> {
        let parts = self.labels().split(';').filter(|it| !it.is_empty());
        parts.map(|it| it.split('`').nth(1).unwrap()).collect()
    }
}

#[test]
fn the_guides_table_has_every_metric_with_its_type_labels_and_alerts() {
    let page = page();
    let types = page.lines().filter_map(|it| it.strip_prefix("# TYPE "));
    let types: BTreeSet<&str> = types.collect();
    let in_table: Vec<String> = Row::all()
        .map(|it| format!("{} {}", it.name(), it.0[1]))
        .collect();
    assert_eq!(in_table.len(), types.len(), "each once");
    assert_eq!(
        in_table.iter().map(String::as_str).collect::<BTreeSet<_>>(),
        types
    );

    for (metric, labels) in emitted() {
        let row = Row::of(&metric);
        let labels = labels.iter().map(String::as_str).filter(|it| *it != "le");
        assert_eq!(
            labels.collect::<BTreeSet<_>>(),
            row.label_names(),
            "{metric}"
        );
        assert_eq!(row.0.len(), 8, "{metric}");
        let open_telemetry = row.0[5].trim_matches('`');
        assert!(open_telemetry.starts_with("sluicegate."), "{metric}");
    }
}

#[test]
fn the_guides_table_links_to_the_alerts_of_each_metric() {
    let mut expected = BTreeSet::new();
    for alert in ALERTS.split("- alert: ").skip(1) {
        let name = alert.lines().next().unwrap();
        let (expression, _) = alert.split_once("labels:").unwrap();
        for (start, _) in expression.match_indices("sluicegate_") {
            let selector = Selector::read(&expression[start..]);
            let link = format!("[{name}](crate::operating#{})", name.to_lowercase());
            expected.insert((family(&selector.metric).to_owned(), link));
        }
    }
    let linked = Row::all().flat_map(|row| {
        let links: Vec<_> = row.0[7].split(", ").map(str::to_owned).collect();
        let links = links.into_iter().filter(|it| !it.is_empty());
        let name = row.name().to_owned();
        links.map(move |link| (name.clone(), link))
    });
    assert_eq!(linked.collect::<BTreeSet<_>>(), expected);
}
