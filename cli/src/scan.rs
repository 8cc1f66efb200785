//! [`Scan`]: looks at all keys of the servers, slowly enough that other clients do not notice.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use sluicegate::store::redis::inspect::{Inspector, Selection, StoredName};

use super::text::grouped;
use super::{Error, Result};

/// The number of keys for each SCAN. A server serves nothing else during a SCAN, for less than half a millisecond.
const BATCH: u32 = 250;

/// Between two lines about the progress. A shorter scan has none.
const PROGRESS: Duration = Duration::from_secs(1);

/// The default share of the time in which a server is busy, for arguments and for verbs without one.
pub(crate) const LOAD: &str = "5%";
pub(crate) const DEFAULT_LOAD: f64 = 0.05;

/// With a smaller share, each pause would be too long to wait for.
const MIN_LOAD: f64 = 0.001;

/// Reads a share of a whole, above 0: `5%` or `0.5%`.
pub(crate) fn parse_share(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').and_then(|it| it.parse::<f64>().ok());
    let percent = percent.filter(|percent| *percent > 0.0 && *percent <= 100.0);
    percent
        .map(|it| it / 100.0)
        .ok_or_else(|| "write a share as 5% or 0.5%, up to 100%".into())
}

/// Reads a share of the time in which a server is busy: at least 0.1%.
pub(crate) fn parse_load(text: &str) -> Result<f64, String> {
    match parse_share(text)? {
        load if load >= MIN_LOAD => Ok(load),
        _ => Err("write a share from 0.1% to 100%".into()),
    }
}

/// A scan of all keys of all servers.
pub(crate) struct Scan {
    servers: Vec<Inspector>,
    load: f64,
    is_shown: bool,
    /// The number of keys on all servers that answer.
    pub(crate) total: u64,
    /// The first error of a node that does not answer.
    missing: Option<Error>,
}

impl Scan {
    /// Creates a scan that keeps a server busy for at most this share of the time. Shows the progress if stderr is a
    /// terminal, otherwise one line.
    pub(crate) async fn new(inspector: &Inspector, load: f64) -> Result<Self> {
        let mut scan = Self {
            servers: Vec::new(),
            load,
            is_shown: false,
            total: 0,
            missing: None,
        };
        for server in inspector.servers().await? {
            match server.key_count().await.map_err(Error::from) {
                Ok(count) => {
                    scan.total += count;
                    scan.servers.push(server);
                }
                Err(error) => scan.miss(error, &server)?,
            }
        }
        Ok(scan)
    }

    /// Notes that a node of a cluster does not answer. Any other error stays one.
    fn miss(&mut self, error: Error, server: &Inspector) -> Result<()> {
        let (is_away, error) = (error.is_away, error.at(server.address()));
        if !is_away || server.address().is_none() {
            return Err(error);
        }
        let missing = format_args!("{}; its identities are missing above", error.message);
        self.missing.get_or_insert(Error::server(missing));
        Ok(())
    }

    /// An error if a node did not answer, for the end of an answer that has the identities of the others.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.missing.take().map_or(Ok(()), Err)
    }

    /// Calls `found` with each batch of selected keys. A key may come twice.
    pub(crate) async fn run(
        &mut self,
        selection: &Selection,
        mut found: impl AsyncFnMut(&Inspector, Vec<StoredName>) -> Result<()>,
    ) -> Result<()> {
        let (started, mut next) = (Instant::now(), PROGRESS);
        let servers = std::mem::take(&mut self.servers);
        for (at, server) in (1..).zip(&servers) {
            let mut cursor = 0;
            loop {
                let begun = Instant::now();
                let batch = async {
                    let (next, names) = server.scan(cursor, selection, BATCH).await?;
                    if !names.is_empty() {
                        found(server, names).await?;
                    }
                    Ok(next)
                };
                match batch.await {
                    Ok(next) => cursor = next,
                    Err(error) => {
                        self.miss(error, server)?;
                        break;
                    }
                }
                if started.elapsed() > next {
                    next = self.progress((at, servers.len()), cursor, started.elapsed());
                }
                if cursor == 0 {
                    break;
                }
                // This time includes the network, so the server is idle for longer than `load` requires.
                let busy = begun.elapsed();
                tokio::time::sleep(busy.mul_f64(1.0 / self.load - 1.0)).await;
            }
        }
        Ok(())
    }

    /// Prints the progress of the server with this number to a terminal, otherwise one line. Returns when to print
    /// again. The bits of the cursor show the progress, from the lowest bit to the highest.
    fn progress(&mut self, at: (usize, usize), cursor: u64, elapsed: Duration) -> Duration {
        let (total, load, (server, servers)) = (grouped(self.total), self.load * 100.0, at);
        if !io::stderr().is_terminal() {
            anstream::eprintln!("looking at {total} keys, with a load of {load}%: see --load");
            return Duration::MAX;
        }
        self.is_shown = true;
        let percent = ((cursor.reverse_bits() >> 32) * 100) >> 32;
        let seconds = elapsed.as_secs();
        eprint!("\r{percent}% of {total} keys, server {server} of {servers}, {seconds}s so far ");
        elapsed + PROGRESS
    }
}

impl Drop for Scan {
    /// Leaves no line about the progress.
    fn drop(&mut self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages() {
        assert_eq!(parse_share("1%"), Ok(0.01));
        assert_eq!(parse_share("100%"), Ok(1.0));
        assert_eq!(parse_load(LOAD), Ok(DEFAULT_LOAD));
        for text in ["", "5", "0%", "-1%", "101%", "%", "NaN%"] {
            assert!(parse_share(text).is_err(), "{text}");
        }
        assert!(parse_share("0.01%").is_ok() && parse_load("0.1%").is_ok());
        assert!(parse_load("0.09%").is_err() && parse_load("1e-300%").is_err());
    }
}
