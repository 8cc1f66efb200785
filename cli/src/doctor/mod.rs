//! `sluicegate doctor`: whether the server is as a service needs it, with what is wrong in the words of the guide.

mod rights;

use std::collections::HashMap;
use std::time::Instant;

use anstyle::Style;
use clap::Args;
use serde_json::{Value, json};
use sluicegate::denials::DeniedIdentity;
use sluicegate::error::StoreErrorKind;
use sluicegate::policies::PublishedPolicy;
use sluicegate::store::redis::inspect::Inspector;
use sluicegate::{Charge, FailurePolicy, Key, Limiter, Policy, StoreError};

use self::rights::FEATURES;
use super::hints::{Hints, listed};
use super::text::{millis, span};
use super::{BAD, Cell, DIM, Error, GOOD, Output, Result, Settings, Table, WARN, server};

#[derive(Args)]
#[command(after_help = include_str!("../help/doctor.txt"))]
pub(crate) struct DoctorArgs {
    /// A feature whose rights the user needs, beside those of checks; may be repeated
    #[arg(long = "feature", value_name = "NAME", value_parser = FEATURES)]
    features: Vec<String>,
}

/// A check that takes longer is slow for `RateLimitStoreSlow`.
const SLOW_MS: u64 = 25;

/// The number of checks that are timed.
const TIMED: u64 = 20;

/// A service publishes at least every five minutes while it is used.
const LATE_MS: u64 = 15 * 60_000;

/// The rank of a finding, the worst first, a name and a style.
type Level = (u8, &'static str, Style);
const WRONG: Level = (0, "wrong", BAD);
const NOT_TRIED: Level = (1, "not tried", DIM);
const NOTE: Level = (2, "note", WARN);
const WELL: Level = (3, "well", GOOD);

/// A level, the server if it is about a single one, and the text.
type Finding = (Level, Option<String>, String);

struct Doctor<'a> {
    args: &'a DoctorArgs,
    settings: &'a Settings,
    inspector: &'a Inspector,
    limiter: Limiter,
    /// The fields of each server, under these titles.
    servers: Vec<[String; 7]>,
    findings: Vec<Finding>,
}

const TITLES: [&str; 7] = [
    "server", "kind", "role", "version", "memory", "of", "evicts",
];

pub(crate) fn run(args: &DoctorArgs, settings: &Settings, output: &mut Output) -> Result<bool> {
    server::block_on(settings, async {
        let (limiter, inspector) = server::connect(settings).await?;
        let limiter = limiter.on_failure(FailurePolicy::Closed);
        let mut doctor = Doctor {
            args,
            settings,
            inspector: &inspector,
            limiter: limiter.publish_policies(false),
            servers: Vec::new(),
            findings: Vec::new(),
        };
        for server in inspector.servers().await? {
            let address = server.address();
            let name = address.map_or_else(|| server::name(settings).map(|it| it.0), Ok)?;
            doctor.look_at(&server, &name).await;
            let own = doctor.findings.iter_mut().filter(|it| it.1.is_none());
            own.for_each(|it| it.1 = Some(name.clone()));
        }
        let published = doctor.reports().await;
        doctor.others(&published).await;
        doctor.findings.sort_by_key(|it| it.0.0);
        let well = doctor.findings.iter().all(|it| it.0 != WRONG);
        doctor.write(well, output)?;
        Ok(well)
    })
}

impl Doctor<'_> {
    fn find(&mut self, level: Level, text: impl Into<String>) {
        self.findings.push((level, None, text.into()));
    }

    /// Notes an error: a right that the tool lacks itself proves nothing about the service.
    fn failed(&mut self, what: &str, error: StoreError) {
        let is_right = error.kind() == StoreErrorKind::AccessDenied;
        let level = if is_right { NOT_TRIED } else { WRONG };
        self.find(level, format!("{what}: {}", Error::from(error).message));
    }

    async fn look_at(&mut self, server: &Inspector, name: &str) {
        let greeting = match server.greeting().await {
            Ok(greeting) => greeting,
            Err(error) => return self.failed("it does not answer", error),
        };
        let info = server::info(server, "memory").await;
        if info.is_none() {
            self.find(NOT_TRIED, "its memory: the right `+info` is missing");
        }
        let of_info = |it: &str| info.as_ref()?.get(it);
        let field = |it: &str| greeting.get(it).cloned().or_else(|| of_info(it));
        let text = |it: &str| field(it).unwrap_or_else(|| "?".to_owned());
        let number = |it: &str| field(it).and_then(|it| it.parse().ok()).unwrap_or(0_u64);
        let [mode, role, version] = ["mode", "role", "version"].map(text);
        let [used, most] = ["used_memory_human", "maxmemory_human"].map(text);
        let evicts = text("maxmemory_policy");
        let limit = number("maxmemory");
        if limit > 0 && evicts != "noeviction" {
            let text = format!("it evicts counts and blocks by {evicts}");
            self.find(WRONG, text + ": set `maxmemory-policy noeviction`");
        } else if limit > 0 && number("used_memory") / 9 >= limit / 10 {
            let text = "it is nearly full: raise `maxmemory`, or limit larger networks";
            self.find(NOTE, text);
        }
        if role == "replica" {
            let lag = server::lag(server).await;
            self.find(WRONG, lag + ". Let the address lead to the primary");
        }
        let server_row = [name.to_owned(), mode, role, version, used, most, evicts];
        self.servers.push(server_row);
        match self.key_of(server) {
            Some(key) => self.try_rights(server, &key).await,
            None => self.find(NOT_TRIED, "the script: it keeps no key of the tool's own"),
        }
    }

    /// A key of the tool's own that this server keeps.
    fn key_of(&self, server: &Inspector) -> Option<Key> {
        let process = std::process::id();
        let mut own = (0..1_000).map(|it| Key::new("doctor", format!("{process}.{it}")));
        let address = server.address();
        own.find(|key| self.inspector.node_address(key) == address)
    }

    /// Tries the rights and the script.
    async fn try_rights(&mut self, server: &Inspector, key: &Key) {
        let (prefix, value) = (self.settings.prefix(), String::from_utf8_lossy(key.value()));
        let name = format!("{prefix}:{{doctor={value}}}:!doctor");
        let (missing, refused) = match rights::tried(server, &name).await {
            Ok(rights) => rights,
            Err(error) => return self.failed("it does not answer", error),
        };
        for (feature, missing) in &missing {
            let mut needed = self.args.features.iter().map(String::as_str);
            let is_needed = *feature == FEATURES[0] || needed.any(|it| it == *feature);
            let text = format!("the user lacks rights for {feature}: {}", missing.join(" "));
            self.find([NOTE, WRONG][usize::from(is_needed)], text);
        }
        if missing.is_empty() {
            self.find(WELL, "the user has all rights of the service");
        }
        if let Some(error) = refused {
            let help = error.code().map_or("", help);
            let why = Error::from(error);
            let text = format!("it takes no writes: {}. {help}", why.message);
            return self.find(WRONG, text);
        }
        let (level, text) = match self.script(key).await {
            Ok([half, most]) if half <= SLOW_MS => {
                let text = format!("the script decides, in {half} ms, or {most} ms at most");
                (WELL, text)
            }
            Ok([half, most]) => {
                let text = format!("the script takes {half} ms, or up to {most} ms");
                (WRONG, text + ": see `SLOWLOG` and `redis-cli --latency`")
            }
            Err(error) => (WRONG, format!("the script fails: {}", error.message)),
        };
        self.find(level, text);
    }

    /// The time that half of some checks of a key stay below, and the longest, in ms. A single check may wait for a busy
    /// machine, so half of them have to be slow.
    async fn script(&self, key: &Key) -> Result<[u64; 2]> {
        let policy = Policy::parse("doctor", "1000/1m").map_err(Error::usage)?;
        let mut times = Vec::new();
        for _ in 0..TIMED {
            let begun = Instant::now();
            let charge = Charge::new(&policy, key.clone(), 1);
            self.limiter.check([charge]).await?;
            times.push(millis(begun.elapsed()));
        }
        times.sort_unstable();
        let name = self.inspector.name(key, "doctor");
        let is_stored = matches!(self.inspector.read(&name).await?, Ok(Some(_)));
        self.limiter.reset(&policy, key).await?;
        match is_stored {
            true => Ok([times[times.len() / 2], times[times.len() - 1]]),
            false => Err(Error::server("the count that it wrote is not there")),
        }
    }

    /// Looks for published policies and reports of denials.
    async fn reports(&mut self) -> Vec<PublishedPolicy> {
        let now_ms = self.inspector.index_now_ms().await.unwrap_or_default();
        let published = self.inspector.policies().await;
        let published = published.map_err(|error| self.failed("published policies", error));
        if let Ok(published) = &published {
            self.published(published, now_ms);
        }
        let denials = self.inspector.denials(now_ms).await;
        // The store adds up reports in spans of 10 s and of 10 minutes: they have no exact age.
        match denials.map(|all| all.iter().map(DeniedIdentity::last_minute).max()) {
            Err(error) => self.failed("reports of denials", error),
            Ok(None) => self.find(WELL, "no denial was reported within the hour"),
            Ok(Some(minute)) => {
                let when = ["minute (up to 70 s)", "hour (up to 70 m)"][usize::from(minute == 0)];
                let text = format!("denials were reported within the {when}");
                self.find(WELL, text + ": see `sluicegate top --denied`");
            }
        }
        published.unwrap_or_default()
    }

    fn published(&mut self, published: &[PublishedPolicy], now_ms: u64) {
        let newest_ms = published.iter().map(|it| it.seen_ms).max();
        let Some(newest_ms) = newest_ms else {
            return self.find(NOTE, "no policies are published: verbs need a file of them");
        };
        let (count, age_ms) = (published.len(), now_ms.saturating_sub(newest_ms));
        let text = format!("{count} policies are published, {} ago", span(age_ms));
        match age_ms < LATE_MS {
            true => self.find(WELL, text),
            false => self.find(NOTE, text + ": does the service use this server?"),
        }
    }

    /// Looks for keys of another prefix or form.
    async fn others(&mut self, published: &[PublishedPolicy]) {
        let hints = Hints::look(self.inspector, published).await;
        if let Some(why) = hints.why_empty() {
            let levels = [NOTE, NOT_TRIED][usize::from(hints.unchecked.is_some())];
            return self.find(if why.is_proven { WRONG } else { levels }, why.text);
        }
        let prefix = self.settings.prefix();
        let others = listed(hints.prefixes.iter().filter(|it| *it != prefix));
        if !others.is_empty() {
            let text = format!("there are counts under other prefixes: {others}");
            self.find(NOTE, text);
        }
        let own = self.inspector.name(&Key::new("doctor", "1"), "p").form();
        if let Some(form) = hints.forms.iter().find(|form| Some(**form) != own) {
            let text = format!("another release, of the stored form {form}");
            self.find(NOTE, text + ", keeps counts in its own keys, which expire");
        }
    }

    fn write(&self, well: bool, output: &mut Output) -> Result<()> {
        let mut table = Table::new(TITLES);
        let rows = self.servers.iter().cloned();
        rows.for_each(|row| table.row(row.map(Cell::from)));
        let servers = self.servers.iter().map(|it| TITLES.into_iter().zip(it));
        let servers: Vec<HashMap<&str, &String>> = servers.map(Iterator::collect).collect();
        let findings = self.findings.iter();
        let findings = findings.map(|((_, level, _), server, text)| {
            json!({ "level": level, "server": server, "text": text })
        });
        let findings: Vec<Value> = findings.collect();
        let document = json!({ "well": well, "servers": servers, "findings": findings });
        output.report(&document, |_, output| {
            output.table(&table)?;
            for ((_, word, style), server, text) in &self.findings {
                let server = server.as_ref().filter(|_| self.servers.len() > 1);
                let server = server.map_or(String::new(), |it| format!(" {it}:"));
                output.line(format!("{style}{word}:{style:#}{server} {text}"))?;
            }
            Ok(())
        })
    }
}

/// The way out, by the code with which a server refuses writes.
fn help(code: &str) -> &'static str {
    match code {
        "OOM" => "Raise `maxmemory`, or delete keys: `unblock`, `reset` and `DEL` still work",
        "MISCONF" => "Make room on its disk, or set `stop-writes-on-bgsave-error no`",
        "NOREPLICAS" => "Bring its replicas back, or lower `min-replicas-to-write`",
        "READONLY" => "Let the address lead to the primary",
        _ => "Wait",
    }
}
