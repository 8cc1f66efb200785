//! One server for each crate, limited as the crate's own example shows it: `peers NAME RULES URL`, with 1 or 3 rules
//! and the URL of a Redis. It prints the address that it listens at.
//!
//! Each limits by the header `x-api-key`: a million units a second, with three rules also 60 million a minute and a
//! thousand million an hour. tower-rate-limit-redis takes at most 65 535 units, of which one comes back each
//! millisecond, for each of its rules.

mod axum_limit;
mod floor;
mod layers;

use std::{env, error::Error};

use axum::{Router, routing::get};
use tokio::net::TcpListener;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

pub(crate) const KEY: &str = "x-api-key";

/// How many units in how many seconds.
pub(crate) const RULES: [(u32, u64); 3] =
    [(1_000_000, 1), (60_000_000, 60), (1_000_000_000, 3_600)];

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [name, rules, url] = &*arguments else {
        return Err("peers NAME RULES URL".into());
    };
    let rules = &RULES[..rules.parse()?];
    let app = match &**name {
        "bare" => bare(),
        "script" => floor::limit(bare(), url).await?,
        "sluicegate-memory" => layers::sluicegate_in_memory(bare(), rules)?,
        "sluicegate" => layers::sluicegate(bare(), rules, url).await?,
        "governor" => layers::governor(bare(), rules)?,
        "rate-limit-redis" => layers::rate_limit_redis(bare(), rules, url).await?,
        "rate-tier" => layers::rate_tier(bare(), rules, url).await?,
        "barnacle" => layers::barnacle(bare(), rules, url)?,
        "axum-limit" => axum_limit::app(rules, url).await?,
        name => return Err(format!("there is no server {name}").into()),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}

fn bare() -> Router {
    Router::new().route("/", get(answer))
}

pub(crate) async fn answer() -> &'static str {
    "ok\n"
}
