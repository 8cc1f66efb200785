//! [`Scan`]: looks at all keys of the servers, slowly enough that other clients do not notice.

use std::{
    cell::Cell,
    fmt,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sluicegate::{
    Key,
    store::redis::inspect::{Inspector, Selection, Server, StoredName},
};

use super::{
    error::{Error, Result},
    text::grouped,
};

/// The number of keys for each SCAN. A server serves nothing else during a SCAN, for less than half a millisecond.
const BATCH: u32 = 250;

/// A shorter scan shows no bar.
const NO_PROGRESS: Duration = Duration::from_secs(1);

/// The default share of the time in which a server is busy.
pub(crate) const DEFAULT_LOAD: Share = Share::percent(5);

/// With a smaller share, each pause would be too long to wait for.
const MIN_LOAD: f64 = 0.001;

/// A share of a whole, above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share(f64);

impl Share {
    pub(crate) const fn percent(percent: u8) -> Self {
        Self(percent as f64 / 100.0)
    }

    /// Reads `5%` or `0.5%`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let percent = text
            .strip_suffix('%')
            .and_then(|number| number.parse::<f64>().ok());
        match percent {
            Some(percent) if percent > 0.0 && percent <= 100.0 => Ok(Self(percent / 100.0)),
            _ => Err("write a share as 5% or 0.5%, up to 100%".into()),
        }
    }

    /// Reads a share of the time in which a server is busy: at least 0.1%.
    pub(crate) fn parse_load(text: &str) -> Result<Self, String> {
        match Self::parse(text) {
            Ok(Self(load)) if load < MIN_LOAD => Err("write a share from 0.1% to 100%".into()),
            share => share,
        }
    }

    pub(crate) const fn fraction(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0 * 100.0)
    }
}

/// Adds the address of the node to an error, if there are several nodes.
pub(crate) fn of_node(error: Error, server: &Server) -> Error {
    of_address(error, server.node_address())
}

/// Adds the address of the node that keeps this identity.
pub(crate) fn of_home(error: Error, inspector: &Inspector, key: &Key) -> Error {
    of_address(error, inspector.node_address(key))
}

fn of_address(error: Error, address: Option<String>) -> Error {
    match address {
        Some(address) => error.about(format_args!("its node {address}")),
        None => error,
    }
}

/// A scan of all keys of all servers.
pub(crate) struct Scan {
    servers: Vec<Server>,
    load: Share,
    progress: ProgressBar,
    /// Whether a bar or a message has announced the scan.
    is_announced: Cell<bool>,
    /// The number of keys on all servers.
    pub(crate) total: u64,
}

impl Scan {
    /// Creates a scan that keeps a server busy for at most this share of the time. Shows the progress if stderr is a
    /// terminal.
    pub(crate) async fn new(inspector: &Inspector, load: Share) -> Result<Self> {
        let servers = inspector.servers().await?;
        let mut total = 0;
        for server in &servers {
            let count = server.key_count().await;
            total += count.map_err(|error| of_node(error.into(), server))?;
        }
        let style = "{bar:30} {percent:>3}% of {human_len} keys, {elapsed} so far, {eta} to go";
        let style =
            ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        let progress = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        let progress = progress.with_style(style);
        Ok(Self {
            servers,
            load,
            progress,
            is_announced: Cell::new(false),
            total,
        })
    }

    /// Calls `found` with each batch of selected keys. A key may come twice.
    pub(crate) async fn run(
        &self,
        selection: &Selection,
        mut found: impl AsyncFnMut(&Server, Vec<StoredName>) -> Result<()>,
    ) -> Result<()> {
        for server in &self.servers {
            let mut cursor = 0;
            loop {
                let begun = Instant::now();
                let batch = async {
                    let (next, names) = server.scan(cursor, selection, BATCH).await?;
                    self.progress(next, names.len());
                    if !names.is_empty() {
                        found(server, names).await?;
                    }
                    Ok(next)
                };
                let next = batch.await.map_err(|error| of_node(error, server))?;
                cursor = next;
                if cursor == 0 {
                    break;
                }
                // This time includes the network, so the server is idle for longer than `load` requires.
                let busy = begun.elapsed();
                tokio::time::sleep(busy.mul_f64(1.0 / self.load.fraction() - 1.0)).await;
            }
        }
        self.progress.finish_and_clear();
        Ok(())
    }

    /// With one server, the bits of the cursor show the progress, from the lowest bit to the highest.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "for a bar"
    )]
    fn progress(&self, cursor: u64, found: usize) {
        if !self.is_announced.get() && self.progress.elapsed() > NO_PROGRESS {
            self.is_announced.set(true);
            self.progress.set_draw_target(ProgressDrawTarget::stderr());
            if self.progress.is_hidden() {
                // Without a terminal there is no bar, so print one line.
                let (total, load) = (grouped(self.total), self.load);
                anstream::eprintln!("looking at {total} keys, with a load of {load}: see --load");
            }
        }
        if self.servers.len() > 1 {
            self.progress.inc(found as u64);
        } else {
            let part = cursor.reverse_bits() as f64 / u64::MAX as f64;
            self.progress
                .set_position((part * self.total as f64) as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages() {
        assert_eq!(Share::parse("1%"), Ok(Share(0.01)));
        assert_eq!(Share::parse("100%"), Ok(Share::percent(100)));
        for text in ["", "5", "0%", "-1%", "101%", "%", "NaN%"] {
            assert!(Share::parse(text).is_err(), "{text}");
        }
        assert!(Share::parse("0.01%").is_ok() && Share::parse_load("0.1%").is_ok());
        assert!(Share::parse_load("0.09%").is_err() && Share::parse_load("1e-300%").is_err());
    }
}
