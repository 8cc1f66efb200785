//! `sluicegate watch`: `inspect`, live.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use tokio::time::{MissedTickBehavior, interval};

use super::reading::{ReadArgs, Reader};
use super::report::Report;
use super::text::date_time;
use super::{DIM, Error, Output, Result, Settings, server, text};

#[derive(Args)]
#[command(after_help = include_str!("help/watch.txt"))]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    read: ReadArgs,

    /// The interval between two readings
    #[arg(long, short, value_name = "TIME", value_parser = text::parse_duration, default_value = "1s")]
    interval: Duration,
}

pub(crate) fn run(args: &WatchArgs, settings: &Settings, output: &mut Output) -> Result<bool> {
    server::inspect(settings, async |inspector| {
        let named = args.read.identities.one(settings.ipv6_prefix())?;
        let limits = args.read.limits(settings, &inspector).await?;
        let reader = args.read.reader(&inspector, &limits, named).await?;
        let page = output.is_terminal && !output.is_json;
        let screen = page.then(Screen::enter).transpose()?;
        let watching = watch(&reader, args.interval, screen.is_some(), output);
        tokio::select! {
            result = watching => result?,
            result = interrupted() => result?,
        }
        Ok(true)
    })
}

/// Draws a page at each interval, with any error of the server; or prints each change, and an outage once, on stderr.
/// Without end.
async fn watch(
    reader: &Reader<'_>,
    every: Duration,
    is_page: bool,
    output: &mut Output,
) -> Result<()> {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut latest, mut is_away) = (None, false);
    let mut last = String::new();
    loop {
        ticks.tick().await;
        let read = Report::read(reader, 1)
            .await
            .map(|report| latest = Some(report));
        let failed = read.err();
        if is_page {
            write(b"\x1b[H\x1b[J")?;
            // Keep the latest usage on the page while the server does not answer.
            let report = latest.as_ref();
            report.map_or(Ok(()), |report| report.write(output))?;
            if let Some(error) = failed {
                error.report();
            }
            output.styled(DIM, &format!("every {every:?}; Ctrl-C ends"))?;
        } else if let Some(error) = failed {
            if !is_away {
                error.report();
            }
            is_away = true;
            continue;
        } else if let Some(report) = &latest {
            is_away = false;
            let line = report.line();
            if last.is_empty() && report.policies.is_empty() {
                anstream::eprintln!("{}", reader.why_nothing().await.text);
            }
            if last == line {
                continue;
            }
            match output.is_json {
                true => output.document(report)?,
                false => output.line(format!("{} {line}", date_time(report.now_ms)))?,
            }
            last = line;
        }
        output.flush()?;
    }
}

/// Waits for Ctrl-C, or for another signal that ends programs.
async fn interrupted() -> Result<()> {
    let failed = |error| Error::usage(format_args!("Ctrl-C cannot be noticed: {error}"));
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminated = signal(SignalKind::terminate()).map_err(failed)?;
        let mut hung_up = signal(SignalKind::hangup()).map_err(failed)?;
        tokio::select! {
            result = tokio::signal::ctrl_c() => result.map_err(failed),
            _ = terminated.recv() => Ok(()),
            _ = hung_up.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await.map_err(failed)
}

/// The terminal's second page, without a cursor. Leaves the page when dropped.
///
/// Writes directly to stdout, because [`Output`] removes control sequences if colours are not wanted.
struct Screen;

impl Screen {
    fn enter() -> Result<Self> {
        write(b"\x1b[?1049h\x1b[?25l")?;
        Ok(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = write(b"\x1b[?25h\x1b[?1049l");
    }
}

fn write(bytes: &[u8]) -> Result<()> {
    let mut stdout = io::stdout();
    stdout.write_all(bytes)?;
    Ok(stdout.flush()?)
}
