//! A month's quota that survives restarts without Redis, by the store in `lib.rs`: 3 exports, whichever process asks.
//!
//!     cargo run -p example-sqlite -- counts.db        # 2 exports are left
//!     cargo run -p example-sqlite -- counts.db        # 1 exports are left
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add tokio -F full
//!     cargo add rusqlite --no-default-features -F bundled,cache
//!     cargo add --path ../sluicegate -F calendar

use std::{env, error::Error};

use sluicegate::{Charge, Decision, Key, Limiter, Policy};
use sqlite_store::SqliteStore;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).unwrap_or_else(|| "counts.db".to_owned());
    let limiter = Limiter::new(SqliteStore::open(path)?);
    let policy = Policy::parse("exports", "3/month@UTC")?;
    let alice = Charge::new(&policy, Key::new("user", "alice"), 1);
    match limiter.check([alice]).await? {
        Decision::Allowed(usage) => {
            let left = usage.rules().next().map_or(0, |rule| rule.remaining());
            println!("{left} exports are left");
        }
        Decision::Denied(denial) => println!("none is left for {:?}", denial.retry_after()),
        _ => println!("alice is blocked"),
    }
    Ok(())
}
