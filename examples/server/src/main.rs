//! An axum server whose requests are limited by several rules at once; `--help` lists the options.
//!
//! ```text
//! cargo run --release -p example-server
//! cargo run --release -p example-server -- --limit header:x-api-key=600/1m --redis redis://127.0.0.1/
//! cargo run --release -p example-server -- --redis redis://127.0.0.1/ --on-failure local --replicas 2
//! ```
//!
//! Open the address that it prints in a browser, or use `for i in $(seq 12); do curl -i http://127.0.0.1:3000/; done`:
//! ten requests are served, and two denied.
//!
//! The page sends as many requests as you ask for, and shows your remaining units under each rule and whether the store
//! answers. The page uses `GET /limits`, which is not limited, and the JSON that its requests accept, so it works with
//! every style of the quota headers. The page itself is limited as any request is: a browser whose request is denied
//! gets a 429 whose body is the page.

mod app;
mod config;
mod limits;
mod options;
mod report;

use std::{error::Error, process::ExitCode, sync::Arc, time::Duration};

use axum::{
    http::{request::Parts, response::Parts as Head},
    response::{IntoResponse, Response},
};
use redis::ConnectionInfo;
use sluicegate::{
    Charge, Decision, FailurePolicy, ForwardedIp, Header, Key, KeyExtractor, Limiter, MemoryStore,
    Policy, RateLimitLayer, RedisServer, RedisStore, Store,
    error::ConfigError,
    extract::TrustedProxies,
    middleware::{MakeRejection, PolicySelector, ProblemJson, Rejection},
    policies::ReloadablePolicies,
    store::{Leases, redis::inspect::Inspector},
};

use tracing_subscriber::filter::LevelFilter;

use limits::Limits;
use options::{Counted, Options, USAGE, Who};

/// How long the process waits at its end until slots are returned and costs are settled.
const SLOTS_ARE_RETURNED: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::read(std::env::args_os().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("server: {message}\nserver: --help tells the options");
            return ExitCode::from(2);
        }
    };
    if options.help {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    // The library logs that Redis goes away or is back, and mistakes in the wiring.
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr);
    log.with_max_level(LevelFilter::WARN).init();
    match run(&options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("server: {message}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> Result<(), String> {
    let (limiter, inspector) = limiter(options).await?;
    let ending = limiter.clone();
    let live = ReloadablePolicies::new(config::policies(&options.limits)?);
    let as_text = |error: ConfigError| error.to_string();
    let layer = layer(options, limiter.clone());
    let metered = limited(layer.clone().meter_costs(), options, &live).map_err(as_text)?;
    // A response that may hold a slot is followed to its end, even if it meters nothing.
    let limits = if may_hold_slots(options) {
        None
    } else {
        Some(limited(layer, options, &live).map_err(as_text)?)
    };
    let shown = Limits::new(options, limiter, inspector, live.clone()).map_err(as_text)?;
    if let Some(file) = &options.config {
        config::follow(file, live).map_err(|error| format!("--config: {error}"))?;
    }
    let app = app::app(|routes, metering| {
        let routes = match limits {
            Some(limits) => routes.route_layer(limits),
            None => routes.route_layer(metered.clone()),
        };
        let metering = metering.route_layer(metered);
        routes.merge(metering).merge(shown.routes())
    });
    let listen = options.listen;
    app::serve(listen, app)
        .await
        .map_err(|error| format!("cannot listen on {listen}: {error}"))?;
    // Responses that have just ended return slots in the background. Without this, these are free when they expire.
    ending.finish(SLOTS_ARE_RETURNED).await;
    Ok(())
}

/// The layer without its limits.
fn layer(options: &Options, limiter: Limiter) -> RateLimitLayer<Reject> {
    let mut layer = RateLimitLayer::new(limiter)
        .cost(cost)
        .headers(options.headers)
        .rejection(reject as Reject);
    if options.count == Counted::Failures {
        layer = layer.settle(failures);
    }
    if options.shadow {
        layer = layer.shadow();
    }
    layer
}

/// Whether a policy has slots, or may have: a file may be read again.
fn may_hold_slots(options: &Options) -> bool {
    let mut limits = options.limits.iter();
    options.config.is_some() || limits.any(|limit| options::is_of_slots(&limit.policy))
}

fn limited<E>(
    mut layer: RateLimitLayer<Reject, E>,
    options: &Options,
    live: &ReloadablePolicies,
) -> Result<RateLimitLayer<Reject, E>, ConfigError> {
    for limit in &options.limits {
        // A policy of the file is looked up at each request, because the file may be read again.
        let policy = match &options.config {
            Some(_) => PolicySelector::from(live.policy(limit.policy.name())?),
            None => limit.policy.clone().into(),
        };
        layer = layer.try_limit(policy, extractor(&limit.who, options))?;
        if let Some(name) = options.contributors.clone() {
            let contributor =
                move |head: &Parts| Some(Key::new("header", head.headers.get(&name)?));
            layer = layer.contributors(contributor);
        }
    }
    Ok(layer)
}

fn extractor(who: &Who, options: &Options) -> Arc<dyn KeyExtractor> {
    match who {
        // The address at the other end of the connection, unless that is a trusted proxy.
        Who::Ip => {
            let proxies = options.trusted_proxies.iter().copied();
            Arc::new(ForwardedIp::x_forwarded_for(TrustedProxies::networks(
                proxies,
            )))
        }
        Who::Header(name) => Arc::new(Header::from(name.clone()).or_skip()),
        Who::All => Arc::new(|_: &Parts| Some(Key::new("all", "everybody"))),
    }
}

type Reject = fn(&Rejection, &Parts) -> Response;

/// A browser gets the page, which shows the rule that denies. The page's script gets the decision, and all other
/// clients get the crate's own answer.
fn reject(rejection: &Rejection, head: &Parts) -> Response {
    let mut response = match rejection {
        Rejection::Denied(_) | Rejection::Blocked(_) | Rejection::Undecided(_)
            if app::wants_page(&head.uri, &head.headers) =>
        {
            app::page()
        }
        Rejection::Denied(denial) if app::wants_json(&head.headers) => {
            report(&Decision::Denied(denial.clone()))
        }
        Rejection::Blocked(blocked) if app::wants_json(&head.headers) => {
            report(&Decision::Blocked(blocked.clone()))
        }
        _ => ProblemJson::default().make_rejection(rejection, head),
    };
    *response.status_mut() = rejection.status();
    response
}

fn report(decision: &Decision) -> Response {
    (app::VARY, report::decision(Some(decision))).into_response()
}

/// A request that succeeds costs nothing in the end.
fn failures(response: &Head, charge: &Charge) -> u64 {
    let failed = response.status.is_client_error() || response.status.is_server_error();
    if failed { charge.cost() } else { 0 }
}

/// An unreadable cost counts as 0, because the handler rejects the request. A request of any cost takes one
/// slot.
fn cost(head: &Parts, policy: &Policy) -> u64 {
    if options::is_of_slots(policy) {
        return 1;
    }
    app::cost(&head.uri).unwrap_or(0)
}

/// Returns the limiter, and what reads the slots of all replicas if they share a server.
async fn limiter(options: &Options) -> Result<(Limiter, Option<Inspector>), String> {
    let (store, inspector) = innermost(options)?;
    let store = match options.leases {
        true => Arc::new(Leases::new(store)),
        false => store,
    };
    let limiter = |store| {
        Limiter::new(store)
            .timeout(options.timeout)
            .on_failure(options.on_failure)
            .replicas(options.replicas)
            .cache_denials(options.deny_cache)
            .enforce_blocks(!options.no_blocks)
    };
    if let Some(server) = options.redis.first() {
        // Another limiter, because this one publishes no policies, and neither do its clones.
        greet(limiter(Arc::clone(&store)), server, options).await;
    }
    Ok((limiter(store), inspector))
}

fn innermost(options: &Options) -> Result<(Arc<dyn Store>, Option<Inspector>), String> {
    let with_password = |server: RedisServer| match &options.password_file {
        Some(file) => server.password_file(file),
        None => server,
    };
    let store = match (&options.redis[..], &options.sentinel) {
        ([], _) => return Ok((Arc::new(MemoryStore::new()), None)),
        (sentinels, Some(name)) => behind(sentinels, with_password(name.as_str().into()))?,
        (nodes, None) if options.cluster => {
            cluster(nodes.iter().map(|node| with_password(node.clone().into())))?
        }
        ([server, ..], None) if options.transactions => {
            let pool = pool(server.clone(), options.pool.unwrap_or(8))?;
            return Ok((Arc::new(RedisStore::transactions(pool)), None));
        }
        ([server, ..], None) => match options.pool {
            Some(size) => pool(server.clone(), size)?.into(),
            None => RedisStore::connect_lazy(with_password(server.clone().into()))
                .map_err(|error| format!("--redis: {error}"))?,
        },
    };
    let store = match options.in_flight {
        Some(calls) => store.in_flight(calls),
        None => store,
    };
    let inspector = store.inspector();
    Ok((Arc::new(store), Some(inspector)))
}

/// Returns a pool that connects on demand.
fn pool(
    server: ConnectionInfo,
    size: u32,
) -> Result<bb8::Pool<bb8_redis::RedisConnectionManager>, String> {
    // Prepares for TLS.
    RedisStore::connect_lazy(server.clone()).map_err(|error| format!("--redis: {error}"))?;
    let tcp = server.tcp_settings().clone().set_nodelay(true);
    let manager = bb8_redis::RedisConnectionManager::new(server.set_tcp_settings(tcp))
        .map_err(|error| format!("--redis: {error}"))?;
    let pool = bb8::Pool::builder().max_size(size);
    Ok(pool.test_on_check_out(false).build_unchecked(manager))
}

fn cluster(nodes: impl Iterator<Item = RedisServer>) -> Result<RedisStore, String> {
    RedisStore::connect_lazy_cluster(nodes).map_err(|error| format!("--redis: {error}"))
}

/// The store over the primary that these sentinels name.
fn behind(sentinels: &[ConnectionInfo], primary: RedisServer) -> Result<RedisStore, String> {
    RedisStore::connect_lazy_sentinel(sentinels.to_vec(), primary)
        .map_err(|error| format!("--sentinel: {error}"))
}

/// Connects, or prints that no server answers, or the right that is missing. Until then, the failure policy applies.
async fn greet(limiter: Limiter, server: &ConnectionInfo, options: &Options) {
    // The server itself must answer here, not the memory of this process.
    let limiter = limiter.on_failure(FailurePolicy::Closed);
    let Ok(policy) = Policy::parse("start", "1000/1m") else {
        unreachable!("it is a rule");
    };
    let charge = Charge::new(&policy, Key::new("server", "start"), 1);
    if let Err(error) = limiter.publish_policies(false).check([charge]).await {
        let (address, policy) = (server.addr(), options.on_failure.as_str());
        let cause = error
            .source()
            .map_or_else(String::new, |cause| format!(": {cause}"));
        eprintln!(
            "server: no limits through Redis at {address} yet: {error}{cause}; failure policy: {policy}"
        );
    }
}
