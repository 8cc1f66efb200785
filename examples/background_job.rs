//! A limiter without HTTP: a job that sends mails, at most five in any two seconds for each customer.
//!
//! The job sends twelve mails to one customer: five at once, five after some two seconds, two after four. A batch gives
//! its unused units back.
//!
//!     cargo run --example background_job
//!     # 0.0 s: mail 1 sent, 4 left
//!     # 0.0 s: mail 5 sent, 0 left
//!     # mail 6 sent, 4 left
//!     # mail 12 sent, 3 left
//!     # a batch of three that sent one: 2 left
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add tokio -F tokio/full
//!     cargo add --path ../sluicegate

use std::{error::Error, time::Instant};

use sluicegate::{Charge, Decision, Key, Limiter, MemoryStore, Policy, Usage};

/// The units left under the tightest of the policy's rules.
fn left(usage: &Usage) -> u64 {
    let left = usage.rules().map(|rule| rule.remaining());
    left.min().unwrap_or(0)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new(MemoryStore::new());
    let mails = Policy::parse("mails", "5/2s")?;
    let customer = Key::new("customer", "acme");
    let start = Instant::now();

    let mut mail = 1;
    while mail <= 12 {
        let charge = Charge::new(&mails, customer.clone(), 1);
        // An error means that the store could not decide: a job can wait until the store is back.
        match limiter.check([charge]).await? {
            Decision::Allowed(usage) => {
                let seconds = start.elapsed().as_secs_f32();
                println!("{seconds:.1} s: mail {mail} sent, {} left", left(&usage));
                mail += 1;
            }
            Decision::Denied(denial) => match denial.retry_after() {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return Err("a mail costs more than the limit".into()),
            },
            _ => return Err("the job is blocked".into()),
        }
    }

    // A batch is charged in advance, and settled with its actual cost.
    let batch = Charge::new(&mails, customer, 3);
    if let Decision::Allowed(usage) = limiter.check([batch]).await? {
        let usage = limiter.settle(&usage, |_| 1).await?;
        println!("a batch of three that sent one: {} left", left(&usage));
    }
    Ok(())
}
