//! `sluicegate watch`: `inspect`, live.

use std::{
    io::{self, Write},
    time::Duration,
};

use clap::Args;
use tokio::time::{MissedTickBehavior, interval};

use super::{
    answer::Answer,
    error::{Error, Result},
    identity::IdentityArgs,
    inspect::Report,
    output::{DIM, Output},
    reading::{ReadArgs, Reader},
    server,
    settings::Settings,
    text::{self, date_time},
};

const EXAMPLES: &str = "\
Examples:
  sluicegate watch user=alice --policies policies.toml
  sluicegate watch user=alice --policy api --interval 200ms | tee alice.log
  sluicegate watch user=alice --json | jq -c '.policies[].rules[].used'

At a terminal, the tool redraws the page at each interval. In a pipe, it prints
one line for each change, with the time of the server's clock in UTC, or one
JSON document like `inspect`. Stop with Ctrl-C.

If you name no policies and give no file, the tool looks for policies once, at
the start.

Rights: as for `inspect`. Nothing is written.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    identity: IdentityArgs,

    #[command(flatten)]
    read: ReadArgs,

    /// The interval between two readings
    #[arg(long, short, value_name = "TIME", value_parser = text::parse_duration, default_value = "1s")]
    interval: Duration,
}

pub(crate) fn run(args: &WatchArgs, settings: &Settings, output: &mut Output) -> Result<Answer> {
    let key = args.identity.key(settings.ipv6_prefix())?;
    server::inspect(settings, async |inspector| {
        let reader = args.read.reader(settings, inspector, key).await?;
        let page = output.is_terminal() && !output.is_json();
        let screen = page.then(Screen::enter).transpose()?;
        let watching = async {
            match &screen {
                Some(_) => draw(&reader, args.interval, output).await,
                None => print(&reader, args.interval, settings, output).await,
            }
        };
        tokio::select! {
            result = watching => result?,
            result = interrupted() => result?,
        }
        Ok(Answer::Yes)
    })
}

/// Draws a page at each interval, without end. Shows an error of the server on the page.
async fn draw(reader: &Reader, interval: Duration, output: &mut Output) -> Result<()> {
    let mut ticks = ticks(interval);
    let mut latest = None;
    loop {
        ticks.tick().await;
        let read = reader.read().await;
        Screen::clear()?;
        let failed = match read {
            Ok(reading) => {
                latest = Some(Report::of(&reading)?);
                None
            }
            Err(error) => Some(error),
        };
        // Keep the latest usage on the page while the server does not answer.
        if let Some(report) = &latest {
            report.write(output)?;
        }
        if let Some(error) = failed {
            error.report();
        }
        writeln!(output, "{DIM}every {interval:?}; Ctrl-C ends{DIM:#}")?;
        output.flush()?;
    }
}

/// Prints each change, without end. Reports an outage once, on stderr.
async fn print(
    reader: &Reader,
    interval: Duration,
    settings: &Settings,
    output: &mut Output,
) -> Result<()> {
    let mut ticks = ticks(interval);
    let mut is_away = false;
    let mut last: Option<String> = None;
    loop {
        ticks.tick().await;
        let reading = match reader.read().await {
            Ok(reading) => reading,
            Err(error) => {
                // Report an outage once, and not at each reading.
                if !is_away {
                    error.report();
                }
                is_away = true;
                continue;
            }
        };
        is_away = false;
        if last.is_none() && reading.entries.is_empty() {
            anstream::eprintln!("{}", reader.why_nothing(settings).await);
        }
        let report = Report::of(&reading)?;
        let line = line(&report);
        if last.as_ref() == Some(&line) {
            continue;
        }
        if output.is_json() {
            output.document(&report)?;
        } else {
            writeln!(output, "{} {line}", date_time(report.now_ms))?;
        }
        output.flush()?;
        last = Some(line);
    }
}

/// The usage without times: `api 10/1s 3, 120/1m 120 full`. The text of a block comes first.
fn line(report: &Report) -> String {
    match &report.blocked {
        Some(block) => format!("{}; {}", block.text_without_span(), used(report)),
        None => used(report),
    }
}

fn used(report: &Report) -> String {
    let policies = report.policies.iter().map(|policy| {
        if policy.error.is_some() {
            return format!("{} unreadable", policy.policy);
        }
        if policy.is_empty() {
            return format!("{} nothing", policy.policy);
        }
        // A change is one line of output, so all rules go on one line.
        let rules = policy.rules.iter().map(|rule| {
            let full = if rule.is_exceeded() { " full" } else { "" };
            let used = text::used(rule.used, rule.limit, rule.slots);
            format!("{} {used}{full}", rule.rule)
        });
        format!("{} {}", policy.policy, rules.collect::<Vec<_>>().join(", "))
    });
    let line = policies.collect::<Vec<_>>().join("; ");
    if line.is_empty() {
        "nothing is stored".into()
    } else {
        line
    }
}

fn ticks(every: Duration) -> tokio::time::Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
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

    fn clear() -> Result<()> {
        write(b"\x1b[H\x1b[J")
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
