//! The dashboard and the alert rules in the examples use only metrics that exist, and show all of them. The guide's table
//! has each.

use metrics_exporter_prometheus::PrometheusBuilder;
use sluicegate::block::BlockRequest;
use std::collections::{BTreeMap, BTreeSet};

use crate::prelude::*;
use support::fated::{Fate, Fated};

const DASHBOARD: &str = include_str!("../../examples/grafana/dashboard.json");
const ALERTS: &str = include_str!("../../examples/grafana/alerts.yml");
const GUIDE: &str = include_str!("../../docs/guide/operating.md");
const PAGE: &str = "https://docs.rs/sluicegate/latest/sluicegate/operating/index.html";
const SOURCE: &str = include_str!("../../src/observe/metrics.rs");
const TABLE: &str = include_str!("../../docs/guide/observers.md");

fn observed() -> Limiter {
    support::limiter(MemoryStore::new()).observer(MetricsObserver::new())
}

/// Requests that are allowed, denied, denied again, blocked, banned and without a key, a pause, a caller that waits for a
/// slot, an answer that is late, and a store that fails until the breaker opens.
async fn traffic() {
    let layer = support::layer(observed().cache_denials(true))
        .limit(policy("api", "1/1d"), Header::new("x-user"))
        .limit(policy("trial", "0/1d").shadow(), Header::new("x-user"))
        .deny(|head| head.headers.get("x-user").is_some_and(|it| it == "mallory"));
    for user in ["alice", "alice", "alice", "mallory"] {
        send(&layer, with(&[("x-user", user)])).await;
    }
    send(&layer, to("/")).await;

    let limiter = observed();
    let login = policy("login", "1/1d").ban("1/1d=1h".parse().unwrap());
    for _ in 0..2 {
        let _ = limiter.check([Charge::new(&login, alice(), 2)]).await;
        limiter.strikes_counted().await;
    }
    let pause = BlockRequest::pause(Duration::from_secs(1));
    let _ = observed().block(&Key::new("account", "ours"), pause).await;

    let (limiter, jobs) = (observed(), policy("jobs", "1/30s@concurrent"));
    MetricsObserver::new().on_event(&Event::Policy(&jobs));
    let acquire = || limiter.acquire_slot([Charge::new(&jobs, alice(), 1)], Duration::from_secs(9));
    let held = acquire().await.unwrap();
    let mut waits = Box::pin(acquire());
    assert!(futures::poll!(&mut waits).is_pending());
    drop((waits, held));

    let late = Fated::new(MemoryStore::new(), |_| {
        Fate::Late(Duration::from_millis(500))
    });
    let limiter = support::limiter(late).observer(MetricsObserver::new());
    let limiter = limiter.timeout(Duration::from_millis(1));
    let api = Charge::new(&policy("api", "1/1d"), alice(), 1);
    assert!(limiter.check([api]).await.is_err());
    support::finished(&limiter).await;

    let limiter = support::limiter(Scripted::failing()).observer(MetricsObserver::new());
    let limiter = limiter.on_failure(FailurePolicy::Local).replicas(1);
    // The breaker counts one failure in each half of the timeout.
    let limiter = limiter.timeout(Duration::from_nanos(1));
    for _ in 0..8 {
        let _ = limiter
            .check([Charge::new(&policy("api", "1/1d"), alice(), 1)])
            .await;
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
    let samples = page.lines().filter(|it| it.starts_with("sluicegate_"));
    let selectors = samples.map(Selector::read);
    let labels = |it: Selector| it.matchers.into_iter().map(|(label, _)| label).collect();
    selectors
        .map(|it| (it.metric.clone(), labels(it)))
        .collect()
}

fn alerts() -> impl Iterator<Item = &'static str> {
    ALERTS.split("- alert: ").skip(1)
}

/// The queries to Prometheus.
fn queries() -> Vec<String> {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|it| it["targets"].as_array().unwrap());
    let targets = targets.map(|it| it["expr"].as_str().unwrap().to_owned());
    targets.chain(alerts().map(asked)).collect()
}

/// The query of an alert.
fn asked(alert: &str) -> String {
    let (_, query) = alert.split_once("expr: ").unwrap();
    query.split("labels:").next().unwrap().to_owned()
}

/// The labels in the result of a query.
fn grouped(query: &str) -> impl Iterator<Item = &str> {
    let groups = query.split("by (").skip(1);
    let groups = groups.map(|it| it.split_once(')').unwrap().0);
    groups.flat_map(|it| it.split(", "))
}

/// `metric{label="value", ...}`: the labels, each with its values.
struct Selector {
    metric: String,
    matchers: Vec<(String, Vec<String>)>,
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
            let label = label.trim().trim_end_matches('!').to_owned();
            (label, values.map(str::to_owned).collect())
        });
        Self {
            metric: metric.to_owned(),
            matchers: matchers.collect(),
        }
    }

    /// All in a text.
    fn all(text: &str) -> impl Iterator<Item = Self> {
        let starts = text.match_indices("sluicegate_");
        starts.map(|(start, _)| Self::read(&text[start..]))
    }
}

/// The metric that a sample of a histogram belongs to.
fn family(metric: &str) -> &str {
    let suffixes = ["_bucket", "_count", "_sum"];
    let family = suffixes.iter().find_map(|it| metric.strip_suffix(it));
    family.unwrap_or(metric)
}

#[test]
fn what_the_dashboard_and_the_alerts_ask_for_is_emitted() {
    let emitted = emitted();
    for expression in &queries() {
        assert_ne!(Selector::all(expression).count(), 0, "{expression}");
        for selector in Selector::all(expression) {
            let metric = &selector.metric;
            let known = emitted.get(metric);
            let known = known.unwrap_or_else(|| panic!("{metric} is not emitted: {expression}"));
            for (label, values) in &selector.matchers {
                assert!(known.contains(label), "{label} is no label: {expression}");
                let row = row_of(&selector.metric);
                for value in values.iter().filter(|it| *it != "$policy") {
                    let documented = row[2].contains(&format!("`{value}`"));
                    assert!(documented, "{label} is never {value}: {expression}");
                }
            }
            for label in grouped(expression) {
                assert!(known.contains(label), "{label} is no label: {expression}");
            }
        }
    }
}

#[test]
fn every_alert_links_to_its_paragraph_of_the_guide() {
    let headings = GUIDE.lines().filter_map(|it| it.strip_prefix("### "));
    let headings: Vec<String> = headings.map(str::to_lowercase).collect();
    let names = alerts().map(|it| it.lines().next().unwrap().to_lowercase());
    assert!(names.eq(headings.clone()), "{headings:?}");
    for (alert, name) in alerts().zip(headings) {
        let link = format!("runbook_url: {PAGE}#{name}\n");
        assert!(alert.contains(&link), "{link}: {alert}");
    }
}

#[test]
fn the_dashboard_shows_every_metric() {
    let emitted = emitted();
    let emitted: BTreeSet<&str> = emitted.keys().map(|it| family(it)).collect();
    let shown: BTreeSet<String> = Selector::all(DASHBOARD)
        .map(|it| family(&it.metric).to_owned())
        .collect();
    let named: BTreeSet<&str> = SOURCE
        .split('"')
        .filter(|it| it.starts_with("sluicegate_") && !it.contains(' '))
        .collect();
    assert_eq!(emitted, named, "the traffic of this test causes all");
    assert!(shown.iter().eq(&emitted), "{shown:?} {emitted:?}");
}

/// The lines of the guide's table of metrics, in their cells.
fn rows() -> impl Iterator<Item = Vec<&'static str>> {
    let rows = TABLE.lines().filter(|it| it.starts_with("| `sluicegate_"));
    rows.map(|it| it.trim_matches('|').split('|').map(str::trim).collect())
}

fn name<'a>(row: &[&'a str]) -> &'a str {
    row[0].trim_matches('`')
}

fn row_of(metric: &str) -> Vec<&'static str> {
    let row = rows().find(|it| name(it) == family(metric));
    row.unwrap_or_else(|| panic!("{metric} is not in the table"))
}

#[test]
fn the_guides_table_has_every_metric_with_its_type_and_labels() {
    let page = page();
    let types = page.lines().filter_map(|it| it.strip_prefix("# TYPE "));
    let types: BTreeSet<&str> = types.collect();
    let in_table = || rows().map(|it| format!("{} {}", name(&it), it[1]));
    assert_eq!(in_table().count(), types.len(), "each once");
    let in_table: BTreeSet<String> = in_table().collect();
    assert!(in_table.iter().eq(types), "{in_table:?}");

    for (metric, labels) in emitted() {
        let row = row_of(&metric);
        let labels = labels.iter().map(String::as_str).filter(|it| *it != "le");
        let labels: BTreeSet<&str> = labels.collect();
        // The labels, each with its values: the first code of each part is the label.
        let parts = row[2].split(';').filter(|it| !it.is_empty());
        let documented = parts.map(|it| it.split('`').nth(1).unwrap());
        assert_eq!(labels, documented.collect(), "{metric}");
        assert_eq!(row.len(), 4, "{metric}");
    }
}
