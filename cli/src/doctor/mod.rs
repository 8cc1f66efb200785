//! `sluicegate doctor`: whether the server is as a service needs it, with what is wrong in the words of the guide.

mod rights;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use serde_json::json;
use sluicegate::error::StoreErrorKind;
use sluicegate::policies::PublishedPolicy;
use sluicegate::store::redis::inspect::Inspector;
use sluicegate::{Charge, FailurePolicy, Key, Limiter, Policy, StoreError};

use self::rights::FEATURES;
use super::hints::{Hints, listed};
use super::text::{millis, span};
use super::{BAD, Cell, DIM, Error, GOOD, Output, Result, Settings, Table, WARN, server};

const EXAMPLES: &str = include_str!("../help/doctor.txt");

#[derive(Args)]
#[command(after_help = EXAMPLES)]
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

const WRONG: &str = "wrong";
const NOT_TRIED: &str = "not tried";
const NOTE: &str = "note";
const WELL: &str = "well";

#[derive(Serialize)]
struct Finding {
    level: &'static str,
    /// Null if it is about no single server.
    server: Option<String>,
    text: String,
}

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
        let (store, inspector) = server::connect(settings).await?;
        let limiter = server::limiter(store, settings).on_failure(FailurePolicy::Closed);
        let mut doctor = Doctor {
            args,
            settings,
            inspector: &inspector,
            limiter: limiter.publish_policies(false),
            servers: Vec::new(),
            findings: Vec::new(),
        };
        for server in inspector.servers().await? {
            let before = doctor.findings.len();
            let name = server.address();
            let name = name.map_or_else(|| server::name(settings).map(|it| it.0), Ok)?;
            doctor.look_at(&server, &name).await;
            let of_server = &mut doctor.findings[before..];
            of_server
                .iter_mut()
                .for_each(|it| it.server = Some(name.clone()));
        }
        doctor.reports().await;
        let well = doctor.findings.iter().all(|it| it.level != WRONG);
        doctor.write(well, output)?;
        Ok(well)
    })
}

impl Doctor<'_> {
    fn find(&mut self, level: &'static str, text: impl Into<String>) {
        let (server, text) = (None, text.into());
        self.findings.push(Finding {
            level,
            server,
            text,
        });
    }

    /// Notes an error: a right that the tool lacks itself proves nothing about the service.
    fn failed(&mut self, what: &str, error: StoreError) {
        let is_right = error.kind() == StoreErrorKind::AccessDenied;
        let level = if is_right { NOT_TRIED } else { WRONG };
        self.find(level, format!("{what}: {}", Error::from(error).message()));
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
        let info = info.unwrap_or_default();
        let field = |it: &str| greeting.get(it).or(info.get(it)).cloned();
        let fields = [
            "mode",
            "role",
            "version",
            "used_memory_human",
            "maxmemory_human",
            "maxmemory_policy",
        ];
        let [mode, role, version, used, most, evicts] =
            fields.map(|it| field(it).unwrap_or_else(|| "?".to_owned()));
        let of_policy = "set `maxmemory-policy noeviction`";
        let bytes = |it: &str| field(it).and_then(|it| it.parse::<u64>().ok()).unwrap_or(0);
        if bytes("maxmemory") > 0 && evicts != "noeviction" {
            self.find(
                WRONG,
                format!("it evicts counts and blocks by {evicts}: {of_policy}"),
            );
        } else if bytes("maxmemory") > 0 && bytes("used_memory") / 9 >= bytes("maxmemory") / 10 {
            self.find(
                NOTE,
                "it is nearly full: raise `maxmemory`, or limit larger networks",
            );
        }
        if role == "replica" {
            let lag = server::lag(server).await;
            self.find(WRONG, format!("{lag}. Let the address lead to the primary"));
        }
        self.servers
            .push([name.to_owned(), mode, role, version, used, most, evicts]);
        self.try_rights(server).await;
    }

    /// Tries the rights, and the script, on keys that this server keeps.
    async fn try_rights(&mut self, server: &Inspector) {
        let mut own =
            (0..1_000).map(|it| Key::new("doctor", format!("{}.{it}", std::process::id())));
        let (inspector, address) = (self.inspector, server.address());
        let Some(key) = own.find(|key| inspector.node_address(key) == address) else {
            return self.find(NOT_TRIED, "the script: it keeps no key of the tool's own");
        };
        let (prefix, value) = (self.settings.prefix(), String::from_utf8_lossy(key.value()));
        let rights = rights::tried(server, &format!("{prefix}:{{doctor={value}}}:!doctor")).await;
        let rights = match rights {
            Ok(rights) => rights,
            Err(error) => return self.failed("it does not answer", error),
        };
        for (feature, missing) in &rights.missing {
            let is_needed =
                *feature == FEATURES[0] || self.args.features.iter().any(|it| it == feature);
            let (level, missing) = (if is_needed { WRONG } else { NOTE }, missing.join(" "));
            self.find(
                level,
                format!("the user lacks rights for {feature}: {missing}"),
            );
        }
        if rights.missing.is_empty() {
            self.find(WELL, "the user has all rights of the service");
        }
        match rights.refused {
            Some(error) => {
                let help = error.code().map_or("", help);
                let why = Error::from(error);
                self.find(
                    WRONG,
                    format!("it takes no writes: {}. {help}", why.message()),
                );
            }
            None => match self.script(&key).await {
                Ok(ms) if ms <= SLOW_MS => self.find(
                    WELL,
                    format!(
                        "the script decides, in {ms} ms at most; its count is read and deleted"
                    ),
                ),
                Ok(ms) => self.find(
                    WRONG,
                    format!(
                        "the script takes up to {ms} ms: see `SLOWLOG` and `redis-cli --latency`"
                    ),
                ),
                Err(error) => self.find(WRONG, format!("the script fails: {}", error.message())),
            },
        }
    }

    /// The longest time of some checks of a key, in ms.
    async fn script(&self, key: &Key) -> Result<u64> {
        let policy = Policy::parse("doctor", "1000/1m").map_err(Error::usage)?;
        let mut slowest = Duration::ZERO;
        for _ in 0..TIMED {
            let begun = Instant::now();
            let charge = Charge::new(&policy, key.clone(), 1);
            self.limiter.check([charge]).await?;
            slowest = slowest.max(begun.elapsed());
        }
        let name = self.inspector.name(key, "doctor");
        let is_stored = matches!(self.inspector.read(&name).await?, Ok(Some(_)));
        self.limiter.reset(&policy, key).await?;
        match is_stored {
            true => Ok(millis(slowest)),
            false => Err(Error::server("the count that it wrote is not there")),
        }
    }

    /// Looks for published policies, reports of denials, and keys of another prefix or form.
    async fn reports(&mut self) {
        let now_ms = self.inspector.index_now_ms().await.unwrap_or_default();
        let published = self.inspector.policies().await;
        match &published {
            Ok(published) => {
                let newest_ms = published.iter().map(PublishedPolicy::seen_ms).max();
                let age_ms = newest_ms.map(|it| now_ms.saturating_sub(it));
                let count = published.len();
                match age_ms.map(|ms| (ms < LATE_MS, span(ms))) {
                    None => self.find(NOTE, "no policies are published: verbs need a file of them"),
                    Some((true, age)) => {
                        self.find(WELL, format!("{count} policies are published, {age} ago"));
                    }
                    Some((false, age)) => self.find(
                        NOTE,
                        format!(
                            "no policy was published for {age}: does the service use this server?"
                        ),
                    ),
                }
            }
            Err(error) => self.failed("published policies", error.clone()),
        }
        match self.inspector.denials(now_ms).await {
            Ok(denials) => {
                let latest = denials.iter().map(|it| it.last_minute()).max();
                let text = match latest {
                    None => "no denial was reported within the hour",
                    Some(0) => {
                        "denials were reported within the hour: see `sluicegate top --denied`"
                    }
                    Some(_) => {
                        "denials were reported within the minute: see `sluicegate top --denied`"
                    }
                };
                self.find(WELL, text);
            }
            Err(error) => self.failed("reports of denials", error),
        }
        let published = published.unwrap_or_default();
        let hints = Hints::look(self.inspector, self.settings, &published).await;
        if let Some(why) = hints.why_empty() {
            let is_unchecked = hints.unchecked.is_some();
            let level = if why.is_proven {
                WRONG
            } else if is_unchecked {
                NOT_TRIED
            } else {
                NOTE
            };
            return self.find(level, why.text);
        }
        let prefix = self.settings.prefix();
        let others = listed(hints.prefixes.iter().filter(|it| *it != prefix));
        if !others.is_empty() {
            self.find(
                NOTE,
                format!("there are counts under other prefixes: {others}"),
            );
        }
        let own = self.inspector.name(&Key::new("doctor", "1"), "p").form();
        if let Some(form) = hints.forms.iter().find(|form| Some(**form) != own) {
            let text = "keeps counts, in keys of its own, which expire";
            self.find(
                NOTE,
                format!("another release, of the stored form {form}, {text}"),
            );
        }
    }

    fn write(&mut self, well: bool, output: &mut Output) -> Result<()> {
        let levels = [WRONG, NOT_TRIED, NOTE, WELL];
        self.findings
            .sort_by_key(|it| levels.iter().position(|level| *level == it.level));
        let servers = self.servers.iter().map(|it| TITLES.into_iter().zip(it));
        let servers: Vec<HashMap<&str, &String>> = servers.map(Iterator::collect).collect();
        let (findings, mut table) = (&self.findings, Table::new(TITLES));
        for fields in self.servers.clone() {
            table.row(fields.map(Cell::from));
        }
        let document = json!({ "well": well, "servers": servers, "findings": findings });
        output.report(&document, |_, output| {
            output.table(&table)?;
            for it in findings {
                let styles = [BAD, DIM, WARN, GOOD].into_iter().zip(levels);
                let style = { styles }
                    .find(|(_, level)| *level == it.level)
                    .map_or(DIM, |it| it.0);
                let server = it.server.as_ref().filter(|_| servers.len() > 1);
                let server = server.map_or(String::new(), |it| format!(" {it}:"));
                output.line(format!("{style}{}:{style:#}{server} {}", it.level, it.text))?;
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
