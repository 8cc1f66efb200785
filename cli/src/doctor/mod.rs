//! `sluicegate doctor`: whether the server is as a service needs it, with what is wrong in the words of the guide.

mod rights;

use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use sluicegate::error::StoreErrorKind;
use sluicegate::policies::PublishedPolicy;
use sluicegate::store::redis::inspect::Inspector;
use sluicegate::{Charge, FailurePolicy, Key, Limiter, Policy, StoreError};

use self::rights::{CHECKS, FEATURES};
use super::hints::{Hints, listed};
use super::text::{grouped, millis, span};
use super::{BAD, DIM, Error, GOOD, Output, Result, Settings, Table, WARN, server};

const EXAMPLES: &str = include_str!("../help/doctor.txt");

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// A feature whose rights the user needs, beside those of checks; may be repeated
    #[arg(long = "feature", value_name = "NAME", value_parser = FEATURES.map(|it| it.0))]
    features: Vec<String>,
}

/// One that takes longer than this is slow for `RateLimitStoreSlow`.
const SLOW_MS: u64 = 25;

/// The number of checks that are timed.
const TIMED: u64 = 20;

/// A service publishes at least every five minutes while it is used.
const LATE_MS: u64 = 15 * 60_000;

#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Level {
    Well,
    Note,
    NotTried,
    Wrong,
}

#[derive(Serialize)]
struct Finding {
    level: Level,
    /// Null if it is about no single server.
    server: Option<String>,
    text: String,
}

struct Doctor<'a> {
    args: &'a DoctorArgs,
    inspector: &'a Inspector,
    limiter: Limiter,
    prefix: &'a str,
    servers: Vec<Value>,
    table: Table,
    findings: Vec<Finding>,
    /// The server that is looked at.
    server: Option<String>,
}

pub(crate) fn run(args: &DoctorArgs, settings: &Settings, output: &mut Output) -> Result<bool> {
    server::block_on(settings, async {
        let (store, inspector) = server::connect(settings).await?;
        let limiter = server::limiter(store, settings).on_failure(FailurePolicy::Closed);
        let mut doctor = Doctor {
            args,
            inspector: &inspector,
            limiter: limiter.publish_policies(false),
            prefix: settings.prefix(),
            servers: Vec::new(),
            table: Table::new(["server", "kind", "role", "version", "memory", "evicts"]),
            findings: Vec::new(),
            server: None,
        };
        for server in inspector.servers().await? {
            let address = server.address();
            doctor.server =
                Some(address.map_or_else(|| server::name(settings).map(|it| it.0), Ok)?);
            doctor.look_at(&server).await;
        }
        doctor.server = None;
        let published = doctor.published().await;
        doctor.denials().await;
        doctor.keys(settings, &published).await;
        let is_well = doctor.findings.iter().all(|it| it.level != Level::Wrong);
        let document = json!({
            "well": is_well, "servers": doctor.servers, "findings": doctor.findings,
        });
        output.report(&document, |_, output| doctor.write(output))?;
        Ok(is_well)
    })
}

impl Doctor<'_> {
    fn find(&mut self, level: Level, text: impl Into<String>) {
        let (server, text) = (self.server.clone(), text.into());
        self.findings.push(Finding {
            level,
            server,
            text,
        });
    }

    /// Notes an error: a right that the tool lacks itself proves nothing about the service.
    fn failed(&mut self, what: &str, error: StoreError) {
        let level = match error.kind() {
            StoreErrorKind::AccessDenied => Level::NotTried,
            _ => Level::Wrong,
        };
        self.find(level, format!("{what}: {}", Error::from(error).message()));
    }

    async fn look_at(&mut self, server: &Inspector) {
        let greeting = match server.greeting().await {
            Ok(greeting) => greeting,
            Err(error) => return self.failed("it does not answer", error),
        };
        let field = |name: &str| greeting.get(name).cloned().unwrap_or_default();
        let [mode, role, version] = ["mode", "role", "version"].map(field);
        if role == "replica" {
            let lag = server::lag(server).await;
            self.find(
                Level::Wrong,
                format!("{lag}. Let the address lead to the primary"),
            );
        }
        let info = server::info(server, "memory").await;
        let memory = |name: &str| Some(info.as_ref()?.get(name)?.clone());
        let [used, most] = ["used_memory", "maxmemory"].map(|it| memory(it)?.parse::<u64>().ok());
        let evicts = memory("maxmemory_policy");
        let mb = |bytes: u64| grouped(bytes.div_ceil(1_000_000));
        let shown = used.zip(most).map(|(used, most)| match most {
            0 => format!("{} MB", mb(used)),
            most => format!("{} of {} MB", mb(used), mb(most)),
        });
        self.servers.push(json!({
            "server": self.server, "kind": mode, "role": role, "version": version, "used_memory": used,
            "maxmemory": most, "evicts": evicts,
        }));
        let address = self.server.clone().unwrap_or_default();
        let [shown, policy] = [shown, evicts.clone()].map(|it| it.unwrap_or("?".into()).into());
        self.table.row([
            address.into(),
            mode.into(),
            role.into(),
            version.into(),
            shown,
            policy,
        ]);
        match (evicts.as_deref(), used.zip(most)) {
            (None, _) => self.find(Level::NotTried, "its memory: the right `+info` is missing"),
            (Some("noeviction"), Some((used, most))) if most > 0 && used / 9 >= most / 10 => self
                .find(
                    Level::Note,
                    "it is nearly full: raise `maxmemory`, or limit larger networks",
                ),
            (Some("noeviction"), _) | (_, Some((_, 0))) => {}
            (Some(policy), _) => self.find(
                Level::Wrong,
                format!(
                    "it evicts counts and blocks by {policy}: set `maxmemory-policy noeviction`"
                ),
            ),
        }
        self.rights(server).await;
    }

    /// Tries the rights, and the script, on keys that this server keeps.
    async fn rights(&mut self, server: &Inspector) {
        let own =
            (0..1_000_u32).map(|it| Key::new("doctor", format!("{}.{it}", std::process::id())));
        let (inspector, address) = (self.inspector, server.address());
        let Some(key) = { own }.find(|key| inspector.node_address(key) == address) else {
            return self.find(
                Level::NotTried,
                "the script: no key of its own is kept there",
            );
        };
        let value = String::from_utf8_lossy(key.value());
        let name = format!("{}:{{doctor={value}}}:!doctor", self.prefix);
        let rights = match rights::tried(server, &name).await {
            Ok(rights) => rights,
            Err(error) => return self.failed("it does not answer", error),
        };
        for (feature, without, missing) in &rights.missing {
            let is_needed = *feature == CHECKS || self.args.features.iter().any(|it| it == feature);
            let level = [Level::Note, Level::Wrong][usize::from(is_needed)];
            let missing = missing.join(" ");
            self.find(
                level,
                format!("the user lacks rights for {feature}: {missing}; without, {without}"),
            );
        }
        if rights.missing.is_empty() {
            self.find(Level::Well, "the user has all rights of the service");
        }
        match rights.refused {
            Some(error) => {
                let help = error.code().map_or("", help);
                let why = Error::from(error);
                let text = format!("it takes no writes: {}. {help}", why.message());
                self.find(Level::Wrong, text.trim());
            }
            None => self.script(&key).await,
        }
    }

    async fn script(&mut self, key: &Key) {
        let timed = async {
            let policy = Policy::parse("doctor", "1000/1m").map_err(Error::usage)?;
            let mut slowest = Duration::ZERO;
            for _ in 0..TIMED {
                let begun = Instant::now();
                let charge = Charge::new(&policy, key.clone(), 1);
                self.limiter.check([charge]).await?;
                slowest = slowest.max(begun.elapsed());
            }
            let name = self.inspector.name(key, "doctor");
            let is_read = matches!(self.inspector.read(&name).await?, Ok(Some(_)));
            self.limiter.reset(&policy, key).await?;
            Ok::<_, Error>((millis(slowest), is_read))
        };
        match timed.await {
            Ok((ms, true)) if ms <= SLOW_MS => self.find(
                Level::Well,
                format!("the script decides, in {ms} ms at most; the count is read and deleted"),
            ),
            Ok((ms, true)) => self.find(
                Level::Wrong,
                format!("the script decides slowly, in up to {ms} ms: see `SLOWLOG` and `redis-cli --latency`"),
            ),
            Ok((_, false)) => self.find(Level::Wrong, "a count that the script wrote is not there"),
            Err(error) => self.find(Level::Wrong, format!("the script fails: {}", error.message())),
        }
    }

    async fn published(&mut self) -> Vec<PublishedPolicy> {
        let read = async {
            let now_ms = self.inspector.index_now_ms().await?;
            Ok::<_, StoreError>((self.inspector.policies().await?, now_ms))
        };
        let (published, now_ms) = match read.await {
            Ok(read) => read,
            Err(error) => {
                self.failed("published policies", error);
                return Vec::new();
            }
        };
        let age_ms = published.iter().map(PublishedPolicy::seen_ms).max();
        let age_ms = age_ms.map(|newest| now_ms.saturating_sub(newest));
        let count = published.len();
        match age_ms {
            None => self.find(
                Level::Note,
                "no policies are published, so verbs need a file of them",
            ),
            Some(ms) if ms < LATE_MS => {
                self.find(
                    Level::Well,
                    format!("{count} policies are published, {} ago", span(ms)),
                );
            }
            Some(ms) => self.find(
                Level::Note,
                format!(
                    "no policy was published for {}: does the service use this server?",
                    span(ms)
                ),
            ),
        }
        published
    }

    async fn denials(&mut self) {
        let read = async {
            let now_ms = self.inspector.index_now_ms().await?;
            self.inspector.denials(now_ms).await
        };
        match read.await {
            Err(error) => self.failed("reports of denials", error),
            Ok(denials) => {
                let is_new = denials.iter().any(|it| it.last_minute() > 0);
                let when = match (denials.is_empty(), is_new) {
                    (true, _) => "no denial was reported within the hour",
                    (_, true) => {
                        "denials were reported within the last minute: see `sluicegate top --denied`"
                    }
                    (_, false) => {
                        "denials were reported within the hour: see `sluicegate top --denied`"
                    }
                };
                self.find(Level::Well, when);
            }
        }
    }

    /// Looks for keys of another prefix or form.
    async fn keys(&mut self, settings: &Settings, published: &[PublishedPolicy]) {
        let hints = Hints::look(self.inspector, settings, published).await;
        if let Some(why) = hints.why_empty() {
            let level = match (&hints.unchecked, why.is_proven) {
                (Some(error), _) if error.is_away => Level::Wrong,
                (Some(_), _) => Level::NotTried,
                (None, true) => Level::Wrong,
                (None, false) => Level::Note,
            };
            return self.find(level, why.text);
        }
        let prefix = settings.prefix();
        let others = hints.prefixes.iter().filter(|it| *it != prefix);
        let others = listed(others);
        if !others.is_empty() {
            self.find(
                Level::Note,
                format!("other prefixes have counts, too: {others}"),
            );
        }
        let own = self.inspector.name(&Key::new("doctor", "1"), "p").form();
        if let Some(form) = hints.forms.iter().find(|form| Some(**form) != own) {
            self.find(
                Level::Note,
                format!("counts of another stored form ({form}) are of another release; their keys expire"),
            );
        }
    }

    fn write(&self, output: &mut Output) -> Result<()> {
        output.table(&self.table)?;
        for Finding {
            level,
            server,
            text,
        } in &self.findings
        {
            let (style, word) = match level {
                Level::Well => (GOOD, "well"),
                Level::Note => (WARN, "note"),
                Level::NotTried => (DIM, "not tried"),
                Level::Wrong => (BAD, "wrong"),
            };
            let server = server.as_ref().filter(|_| self.servers.len() > 1);
            let server = server.map_or(String::new(), |it| format!(" {it}:"));
            output.line(format!("{style}{word}:{style:#}{server} {text}"))?;
        }
        Ok(())
    }
}

/// The way out, by the code with which a server refuses writes.
fn help(code: &str) -> &'static str {
    match code {
        "OOM" => "Raise `maxmemory`, or delete keys: `unblock`, `reset` and `DEL` still work",
        "MISCONF" => "Make room on its disk, or set `stop-writes-on-bgsave-error no`",
        "NOREPLICAS" => "Bring its replicas back, or lower `min-replicas-to-write`",
        "READONLY" => "Let the address lead to the primary",
        "LOADING" | "BUSY" => "Wait",
        _ => "",
    }
}
