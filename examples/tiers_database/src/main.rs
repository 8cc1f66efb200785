//! Tiers in a database, here SQLite, with a cache in front.
//!
//!     cargo run -p example-tiers-database
//!
//! The service looks up the user's plan by the API key, and remembers it for a minute:
//!
//!     curl -i localhost:3000 -H 'x-api-key: key-of-alice'    # 200, "requests";r=1
//!     curl -i localhost:3000 -H 'x-api-key: key-of-bob'      # 200, "requests";r=599
//!     curl -i localhost:3000 -H 'x-api-key: made-up'         # 401, www-authenticate: ApiKey
//!     curl -i localhost:3000                                 # 401, www-authenticate: ApiKey
//!
//! All plans have one policy name, so that an upgrade keeps the counts. All requests of one user count together,
//! whichever of the user's keys they use:
//!
//!     curl -i localhost:3000 -H 'x-api-key: key-of-alice'    # 200, "requests";r=0
//!     curl -i localhost:3000 -H 'x-api-key: 2nd-of-alice'    # 429, "violated-policies":["requests"]
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum moka tokio tracing-subscriber -F moka/future,tokio/full
//!     cargo add rusqlite --no-default-features -F bundled
//!     cargo add --path ../sluicegate -F axum

use std::{
    collections::HashMap,
    env,
    error::Error,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, http::request::Parts, routing::get};
use moka::future::Cache;
use rusqlite::{Connection, OptionalExtension};
use sluicegate::{
    Charge, FailurePolicy, Key, Limiter, MemoryStore, Policy, RateLimitLayer, error::ExtractError,
};
use tokio::{net::TcpListener, task::spawn_blocking};

const ACCOUNTS: &str = "
    CREATE TABLE users (name TEXT PRIMARY KEY, plan TEXT NOT NULL);
    CREATE TABLE api_keys (api_key TEXT PRIMARY KEY, user TEXT NOT NULL REFERENCES users);
    INSERT INTO users VALUES ('alice', 'free'), ('bob', 'pro');
    INSERT INTO api_keys VALUES ('key-of-alice', 'alice'), ('2nd-of-alice', 'alice'), ('key-of-bob', 'bob');
";
const BY_API_KEY: &str =
    "SELECT name, plan FROM users JOIN api_keys ON user = name WHERE api_key = ?";

#[derive(Clone)]
struct User {
    name: String,
    plan: String,
}

#[derive(Clone)]
struct Accounts {
    database: Arc<Mutex<Connection>>,
    plans: Arc<HashMap<&'static str, Policy>>,
    cache: Cache<String, Option<User>>,
}

impl Accounts {
    /// Returns the charge for a request. The layer waits for it for a second; then, or if the database fails, the
    /// failure policy applies. A plan without a policy is a 500, and a warning in the log.
    async fn charge(self, api_key: Option<String>) -> Result<Charge, ExtractError> {
        let unauthenticated = ExtractError::unauthenticated("ApiKey");
        let api_key = api_key.ok_or(unauthenticated.clone())?;
        // Requests that come at the same time wait for one look-up. Made-up keys are remembered as well.
        let user = self
            .cache
            .try_get_with(api_key.clone(), self.clone().look_up(api_key))
            .await;
        let user = user.map_err(|_| ExtractError::unavailable("the database has failed"))?;
        let User { name, plan } = user.ok_or(unauthenticated)?;
        let plan = self.plans.get(&*plan);
        let plan = plan.ok_or(ExtractError::misconfigured("the user's plan has no policy"))?;
        Ok(Charge::new(plan, Key::new("user", name), 1))
    }

    async fn look_up(self, api_key: String) -> Result<Option<User>, Box<dyn Error + Send + Sync>> {
        let database = self.database;
        let user = spawn_blocking(move || {
            let database = database.lock().map_err(|_| "a query has panicked")?;
            let user = database.query_row(BY_API_KEY, [api_key], |row| {
                Ok(User {
                    name: row.get(0)?,
                    plan: row.get(1)?,
                })
            });
            Ok(user.optional()?)
        });
        user.await?
    }
}

fn api_key(head: &Parts) -> Option<String> {
    Some(head.headers.get("x-api-key")?.to_str().ok()?.to_owned())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Shows the warnings: that a limit is misconfigured, or that the store does not answer.
    tracing_subscriber::fmt::init();

    let database = Connection::open_in_memory()?; // or Connection::open("accounts.db")
    database.execute_batch(ACCOUNTS)?;
    let accounts = Accounts {
        database: Arc::new(Mutex::new(database)),
        plans: Arc::new(HashMap::from([
            // These do not need the database: while the store is down, each process counts alone.
            (
                "free",
                Policy::parse("requests", "2/1m")?.on_failure(FailurePolicy::Local),
            ),
            (
                "pro",
                Policy::parse("requests", "600/1m")?.on_failure(FailurePolicy::Local),
            ),
        ])),
        cache: Cache::builder()
            .max_capacity(100_000)
            .time_to_live(Duration::from_secs(60))
            .build(),
    };
    // The failure policy of charges without a policy: while the database is down, the plan of a caller is unknown, and
    // an open failure policy would let everyone in.
    let limiter = Limiter::new(MemoryStore::new()).on_failure(FailurePolicy::Closed);
    let layer = RateLimitLayer::new(limiter)
        .charge_async(move |head| accounts.clone().charge(api_key(head)));
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .layer(layer);

    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
