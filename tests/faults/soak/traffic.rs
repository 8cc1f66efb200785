//! The callers of a stage.

use std::sync::{MutexGuard, atomic::Ordering::Relaxed};

use axum::body::{Body, Bytes};
use futures::stream;
use http_body_util::BodyExt;
use sluicegate::{
    Header,
    middleware::{CostMeter, Decisions},
    policies::{Policies, ReloadablePolicies},
};
use support::prelude::*;
use tokio::{runtime::Handle, task::JoinHandle};

use super::judge::Tally;

/// Of each key.
pub(super) const SLOTS: u64 = 5;

/// The rules that reloads set in turn.
const RULES: [[&str; 2]; 3] = [
    ["20/1s,90/10s,300/1m", "30/2s@exact,400/1m"],
    ["15/1s,90/10s,300/1m", "24/2s@exact,400/1m"],
    ["20/1s,60/10s,250/1m", "30/2s@exact,300/1m"],
];
/// Hot, so that leases pay.
const HOT: &str = "400/1s,3000/10s";
const SETTLED: &str = "200/1s,1500/10s";
const TOKENS: &str = "2000/1s,15000/10s,60000/1m";
/// Charged on arrival, at least as much as is metered in the end.
const ESTIMATE: u64 = 100;
/// Longer than the server is down.
const JOBS: &str = "5/10s@concurrent";

const KEYS: usize = 8;
const PACE: Duration = Duration::from_millis(10);

#[derive(Clone)]
pub(super) struct Traffic {
    limiter: Limiter,
    /// Denies while the server cannot decide: slots of this process would count apart.
    closed: Limiter,
    tally: Arc<Mutex<Tally>>,
    is_over: Arc<AtomicBool>,
    live: ReloadablePolicies,
    hot: Policy,
    settled: Policy,
    tokens: Policy,
    jobs: Policy,
}

fn policies(number: u32) -> Policies {
    let [ip, user] = RULES[number as usize % RULES.len()];
    Policies::new([policy("ip", ip), policy("user", user)]).unwrap()
}

fn below(most: u64) -> Duration {
    Duration::from_millis(fastrand::u64(..=most))
}

impl Traffic {
    pub(super) fn new(limiter: Limiter, tally: Arc<Mutex<Tally>>) -> Self {
        Self {
            closed: limiter.clone().on_failure(FailurePolicy::Closed),
            limiter: limiter.on_failure(FailurePolicy::Local),
            tally,
            is_over: Arc::default(),
            live: ReloadablePolicies::new(policies(0)),
            hot: policy("hot", HOT),
            settled: policy("settled", SETTLED),
            tokens: policy("tokens", TOKENS),
            jobs: policy("jobs", JOBS),
        }
    }

    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap()
    }

    pub(super) fn reload(&self, number: u32) {
        self.live.replace(policies(number)).unwrap();
    }

    pub(super) fn stop(&self) {
        self.is_over.store(true, Relaxed);
    }

    pub(super) fn start(
        &self,
        runtime: &Handle,
        tasks: impl IntoIterator<Item = usize>,
    ) -> Vec<JoinHandle<()>> {
        let spawn = |task| {
            let this = self.clone();
            runtime.spawn(async move { this.ask_on(task).await })
        };
        tasks.into_iter().map(spawn).collect()
    }

    async fn ask_on(&self, task: usize) {
        let key = format!("key-{}", task % KEYS);
        let services = (self.metered(), self.streams());
        while !self.is_over.load(Relaxed) {
            let asked = async {
                match task / 4 {
                    0..4 => self.three(&key).await,
                    4 => self.hot().await,
                    5 => self.settled(&key).await,
                    6 | 7 => self.request("metered", &services.0, &key).await,
                    8 => self.slot(&key).await,
                    _ => self.request("streams", &services.1, &key).await,
                }
            };
            // A third of the callers leave.
            if task / 4 == 8 || fastrand::u8(..3) > 0 {
                asked.await;
            } else if timeout(below(15), asked).await.is_err() {
                self.tally().leaves();
            }
            if task / 4 == 4 {
                sleep(below(2)).await;
            } else {
                sleep(PACE + below(5)).await;
            }
        }
    }

    async fn three(&self, key: &str) {
        let policies = self.live.load();
        let charges = policies
            .iter()
            .map(|it| Charge::new(it, Key::new("key", key), 1));
        let charges: Vec<_> = charges.collect();
        let result = self.limiter.check(charges).await;
        self.tally().note("three", key, 1, &result);
    }

    async fn hot(&self) {
        let charge = Charge::new(&self.hot, Key::new("key", "hot"), 1);
        let result = self.limiter.check([charge]).await;
        self.tally().note("hot", "hot", 1, &result);
    }

    /// Charges more than it costs in the end.
    async fn settled(&self, key: &str) {
        let charge = Charge::new(&self.settled, Key::new("key", key), 5);
        let result = self.limiter.check([charge]).await;
        self.tally().note("settled", key, 2, &result);
        if let Ok(Decision::Allowed(usage)) = result {
            let _ = self.limiter.settle(&usage, |_| 2).await;
        }
    }

    async fn slot(&self, key: &str) {
        let charge = Charge::new(&self.jobs, Key::new("key", key), 1);
        match self.closed.acquire_slot([charge], below(50)).await {
            Ok(Ok(slot)) => {
                self.tally().admits("slots");
                self.tally().takes_slot(key);
                sleep(below(200)).await;
                self.tally().returns_slot(key);
                drop(slot);
            }
            Ok(Err(_)) => self.tally().denies(),
            Err(error) => self.tally().fails(&error),
        }
    }

    /// Each response costs the units that its handler meters.
    fn metered(&self) -> HttpService {
        let layer = RateLimitLayer::new(self.limiter.clone())
            .limit(self.tokens.clone(), Header::new("x-api-key"))
            .cost(|_, _| ESTIMATE)
            .meter_costs();
        let this = self.clone();
        let handler = move |request: Request<String>| {
            let key = request.headers()["x-api-key"].to_str().unwrap().to_owned();
            let decisions: &Decisions = request.extensions().get().unwrap();
            let meter: &CostMeter = request.extensions().get().unwrap();
            let units = fastrand::u64(1..=ESTIMATE);
            meter.set(units);
            let usage = decisions.by_policy("tokens").unwrap().usage();
            this.tally().charge(&key, units, usage);
            ready(Ok::<_, Infallible>(frames()))
        };
        HttpService::new(
            layer
                .layer(service_fn(handler))
                .map_response(|it| it.map(Body::new)),
        )
    }

    fn streams(&self) -> HttpService {
        let layer = RateLimitLayer::new(self.closed.clone())
            .limit_concurrent(self.jobs.clone(), Header::new("x-api-key"))
            .max_wait(Duration::from_millis(20));
        let handler = |_: Request<String>| ready(Ok::<_, Infallible>(frames()));
        HttpService::new(
            layer
                .layer(service_fn(handler))
                .map_response(|it| it.map(Body::new)),
        )
    }

    /// Reads a response, at times not to its end.
    async fn request(&self, kind: &'static str, service: &HttpService, key: &str) {
        let request = Request::get("/").header("x-api-key", key);
        let request = request.body(String::new()).unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        match response.status() {
            StatusCode::OK => self.tally().admits(kind),
            _ => self.tally().denies(),
        }
        let mut body = response.into_body();
        let mut frames = fastrand::u8(..8);
        while frames > 0 && body.frame().await.is_some() {
            frames -= 1;
        }
    }
}

type HttpService = BoxCloneSyncService<Request<String>, Response<Body>, Infallible>;

/// Four frames, with pauses.
fn frames() -> Response<Body> {
    let frames = stream::unfold(0, |sent| async move {
        if sent == 4 {
            return None;
        }
        sleep(below(5)).await;
        Some((Ok::<_, Infallible>(Bytes::from_static(b"frame")), sent + 1))
    });
    Response::new(Body::from_stream(frames))
}
