//! A limiter without HTTP: a job that sends mails, at most five in any two seconds for each customer.
//!
//!     cargo run --example background_job
//!
//! Twelve mails are sent to one customer: five at once, five after some two seconds, two after four. What a batch did
//! not use is given back.

use std::{error::Error, time::Instant};

use sluicegate::{Charge, Decision, Key, Limiter, MemoryStore, Policy};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new(MemoryStore::new());
    let mails = Policy::parse("mails", "5/2s")?;
    let customer = Key::new("customer", "acme");
    let start = Instant::now();

    let mut mail = 1;
    while mail <= 12 {
        let charge = Charge::new(&mails, customer.clone(), 1);
        // An error means that the store could not decide: a job can wait for it to come back.
        match limiter.check([charge]).await? {
            Decision::Allowed(usage) => {
                let left = usage.rules().map(|rule| rule.remaining()).min();
                println!("{:.1?}: mail {mail} sent, {left:?} left", start.elapsed());
                mail += 1;
            }
            Decision::Denied(denial) => match denial.retry_after() {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return Err("a mail costs more than the limit".into()),
            },
        }
    }

    // A batch is charged in advance, and settled with what it turned out to cost.
    let batch = Charge::new(&mails, customer, 3);
    if let Decision::Allowed(usage) = limiter.check([batch]).await? {
        let usage = limiter.settle(&usage, [1]).await?;
        let left = usage.rules().map(|rule| rule.remaining()).min();
        println!("a batch of three that sent one: {left:?} left");
    }
    Ok(())
}
