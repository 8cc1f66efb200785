//! `sluicegate top`: the identities that use most, or are denied most.

mod denied;
mod ranking;

use std::{
    collections::{BTreeMap, HashMap},
    io::Write,
    path::PathBuf,
};

use clap::Args;
use comfy_table::{Cell, Color, ColumnConstraint, ContentArrangement, Table};
use serde::Serialize;
use sluicegate::store::redis::inspect::{Inspector, Server, StoredName};

use self::ranking::{Ranked, Ranking};
use super::{
    answer::Answer,
    block_report::BlockReport,
    census::{self, Census},
    drift::OtherRule,
    error::{Error, Result},
    holders::Holder,
    output::{BAD, Output, WARN, align_right},
    policies_file,
    published::{self, Limits, Source},
    scan::{DEFAULT_LOAD, Scan, Share},
    server,
    settings::Settings,
    text::{grouped, span, used, without_limit},
};

const EXAMPLES: &str = "\
Examples:
  sluicegate top --denied                   most denied requests
  sluicegate top --policies policies.toml   nearest to a limit
  sluicegate top --policy api -n 50         most units
  sluicegate top --policies policies.toml --sample 1% --load 1%
  sluicegate top --json | jq -r '.top[].identity'

Looks at all keys of the server, or of each primary of a cluster: SCAN in small
batches with pauses between them, so that the server is busy for at most the
share of time in --load. With the default, a million keys take three minutes or
more. Memory does not grow with their number.

With the service's policies, the tool sorts by the used share of the fullest
rule, and shows for how long a request with cost 1 would be denied. Without
policies it sorts by units, since limits are not stored.

--denied lists the identities that the service denied most in the last minute
and hour, including blocked identities, with the share of their requests. It
reads only a few keys and needs no policies: the service counts denials and
reports them once a second.

--sample reads a random share of the keys. Use it for shares and totals: it
misses most single users.

Rights: GET of the keys `PREFIX:*`, SCAN, DBSIZE and TIME, and HGETALL for
published policies; with --denied GET, ZRANGE and TIME. Nothing is written.";

/// A longer list is not a ranking.
const MAX_ROWS: u16 = 1_000;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// The identities that were denied most in the last minute and hour
    #[arg(long, conflicts_with_all = ["policies", "sample", "load"])]
    denied: bool,

    /// The service's policies: their limits are not stored [default: `policies` of the configuration file]
    #[arg(long, value_name = "FILE")]
    policies: Option<PathBuf>,

    /// Only keys under this policy
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,

    /// The maximum number to show, at most 1000
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_ROWS)))]
    number: u16,

    /// Do not cut long identities at the edge of the terminal
    #[arg(long)]
    wide: bool,

    /// The share of the keys to read
    #[arg(long, value_name = "SHARE", default_value = "100%", value_parser = Share::parse)]
    sample: Share,

    /// The share of the time in which a server may be busy, from 0.1%
    #[arg(long, value_name = "SHARE", default_value_t = DEFAULT_LOAD, value_parser = Share::parse_load)]
    load: Share,
}

/// The answer as JSON; fields are only ever added.
#[derive(Serialize)]
struct Report {
    /// The clock of the last server that was read, in ms since the Unix epoch.
    now_ms: u64,
    /// The number of keys on all servers.
    keys: u64,
    /// The number of keys that were read.
    read: u64,
    /// The number of keys with units that count.
    counting: u64,
    /// The number of keys at a limit, where one more unit does not fit; null if no limits are known.
    full: Option<u64>,
    unreadable: u64,
    /// The number of blocked identities; null with --policy.
    blocked: Option<u64>,
    /// The number of these that are banned.
    banned: Option<u64>,
    top: Vec<Row>,
    /// Rules that the service counts, but the file does not have.
    other_rules: Vec<OtherRow>,
    /// Policies with stored keys that the file does not have.
    other_policies: Vec<OtherRow>,
    #[serde(skip)]
    source: Source,
    /// The reason why the published policies could not be read; `None` if they were.
    #[serde(skip)]
    unpublished: Option<String>,
    /// The reason why nothing was read.
    #[serde(skip)]
    why: String,
}

#[derive(Serialize)]
struct OtherRow {
    policy: String,
    /// Null if the file does not have the policy.
    rule: Option<String>,
    keys: u64,
}

/// The maximum number of these rows. There are few, unless the file belongs to another service.
const MOST_OTHERS: usize = 100;

#[derive(Serialize)]
struct Row {
    identity: String,
    policy: String,
    /// The rule as text; without a limit if that is not known: `?/1m`.
    rule: String,
    limit: Option<u64>,
    /// Whether the units are slots, each held by a request that runs.
    slots: bool,
    used: u64,
    steps: usize,
    /// Whether one more unit does not fit; null if the limit is not known.
    full: Option<bool>,
    /// The time when one more unit fits; null if that is now or never, or if the limit is not known.
    fits_ms: Option<u64>,
    /// The processes that hold slots, those that have held one for longest first.
    holders: Vec<Holder>,
}

pub(crate) fn run(args: &TopArgs, settings: &Settings, output: &mut Output) -> Result<Answer> {
    if args.denied {
        return denied::run(args, settings, output);
    }
    let file = settings.policies_or(args.policies.as_deref());
    let report = server::inspect(settings, async |inspector| {
        let limits = published::limits(settings, args.policies.as_deref(), &inspector).await?;
        if let (Some(policies), Some(file), Some(name)) = (&limits.policies, file, &args.policy) {
            policies_file::named(policies, file, name)?;
        }
        let mut report = Top::new(args, limits).run(&inspector).await?;
        if report.read > 0 || output.is_json() && args.policy.is_none() {
            return Ok(report);
        }
        // Nothing was read. Find out why, which takes another look at the keys.
        if let Some(policy) = args.policy.as_deref().filter(|_| file.is_none()) {
            let census = Census::take(&inspector, settings).await?;
            if let Some(why) = census.why_no_policy(policy) {
                return Err(Error::usage(why));
            }
        }
        report.why = census::why_empty(&inspector, settings).await;
        Ok(report)
    })?;
    output.report(&report, |report, output| write(report, args, output))?;
    Ok(Answer::Yes)
}

struct Top<'a> {
    args: &'a TopArgs,
    limits: Limits,
    ranking: Ranking,
    now_ms: u64,
    read: u64,
    unreadable: u64,
    blocked: u64,
    banned: u64,
    /// The number of keys for each policy and rule, or each policy, that the file does not have.
    others: BTreeMap<(String, Option<String>), u64>,
    /// The labels of processes that hold slots.
    labels: HashMap<u64, String>,
}

impl<'a> Top<'a> {
    fn new(args: &'a TopArgs, limits: Limits) -> Self {
        Self {
            args,
            limits,
            ranking: Ranking::new(args.number.into()),
            now_ms: 0,
            read: 0,
            unreadable: 0,
            blocked: 0,
            banned: 0,
            others: BTreeMap::new(),
            labels: HashMap::new(),
        }
    }

    async fn run(mut self, inspector: &Inspector) -> Result<Report> {
        // Without the right to read them, processes are shown by their numbers.
        self.labels = inspector.processes().await.unwrap_or_default();
        let scan = Scan::new(inspector, self.args.load).await?;
        let selection = match self.args.policy.as_deref() {
            Some(policy) => inspector.all(Some(policy)),
            None => inspector.all_with_blocks(),
        };
        let batches = async |server: &Server, names| self.batch(server, names).await;
        scan.run(&selection, batches).await?;
        if self.now_ms == 0
            && let Some(server) = inspector.servers().await?.first()
        {
            // If no key was read, ask any server for the time.
            self.now_ms = server.now_ms().await?;
        }
        Ok(self.report(scan.total))
    }

    async fn batch(&mut self, server: &Server, mut names: Vec<StoredName>) -> Result<()> {
        // Drop the names first: a key outside of the sample is not read.
        names.retain(|name| is_chosen(name, self.args.sample));
        let (blocks, mut names): (Vec<_>, Vec<_>) =
            names.into_iter().partition(StoredName::is_of_block);
        self.count_blocks(server, &blocks).await?;
        if let Some(policies) = &self.limits.policies {
            let (known, other): (Vec<_>, Vec<_>) = names
                .into_iter()
                .partition(|name| policies.get(name.policy()).is_some());
            names = known;
            for name in other {
                self.add_other(name.policy(), None);
            }
        }
        if names.is_empty() {
            return Ok(());
        }
        self.now_ms = server.now_ms().await?;
        for (name, stored) in names.iter().zip(server.read(&names).await?) {
            self.read += 1;
            let value = match stored {
                Ok(Some(value)) => value,
                Ok(None) => continue,
                Err(_) => {
                    self.unreadable += 1;
                    continue;
                }
            };
            let policies = self.limits.of(name.policy());
            if !policies.is_empty() {
                let others = OtherRule::of(&value, &policies, self.now_ms).into_iter();
                for other in others.filter(|other| other.is_charged) {
                    self.add_other(name.policy(), Some(other.rule));
                }
            }
            if let Some(mut ranked) = Ranked::of(name, &value, &policies, self.now_ms) {
                ranked.holders = Holder::all(Some(&value), self.now_ms, &self.labels);
                self.ranking.offer(ranked);
            }
        }
        Ok(())
    }

    fn add_other(&mut self, policy: &str, rule: Option<String>) {
        let other = (policy.to_owned(), rule);
        if self.others.len() < MOST_OTHERS || self.others.contains_key(&other) {
            *self.others.entry(other).or_default() += 1;
        }
    }

    async fn count_blocks(&mut self, server: &Server, names: &[StoredName]) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        self.now_ms = server.now_ms().await?;
        for block in server.blocks(names).await? {
            match BlockReport::of(block, self.now_ms) {
                Ok(Some(block)) => {
                    self.blocked += 1;
                    self.banned += u64::from(block.is_ban());
                }
                Ok(None) => {}
                Err(_) => self.unreadable += 1,
            }
        }
        Ok(())
    }

    fn report(self, keys: u64) -> Report {
        let has_limits = self.limits.policies.is_some();
        let rows = self.ranking.first.iter();
        let others = self.others.into_iter();
        let others = others.map(|((policy, rule), keys)| OtherRow { policy, rule, keys });
        let (other_rules, other_policies) = others.partition(|it| it.rule.is_some());
        Report {
            now_ms: self.now_ms,
            keys,
            read: self.read,
            counting: self.ranking.seen,
            full: has_limits.then_some(self.ranking.full),
            unreadable: self.unreadable,
            // A block is of an identity, under all policies.
            blocked: self.args.policy.is_none().then_some(self.blocked),
            banned: self.args.policy.is_none().then_some(self.banned),
            top: rows.map(|ranked| Row::of(ranked, has_limits)).collect(),
            other_rules,
            other_policies,
            source: self.limits.source,
            unpublished: self.limits.unpublished,
            why: String::new(),
        }
    }
}

/// Chooses by a hash of the identity: the same in each run, and for all policies of an identity.
fn is_chosen(name: &StoredName, sample: Share) -> bool {
    use std::hash::{DefaultHasher, Hash, Hasher};

    let mut hasher = DefaultHasher::new();
    name.identity().hash(&mut hasher);
    #[expect(clippy::cast_precision_loss, reason = "for a share")]
    let place = hasher.finish() as f64 / u64::MAX as f64;
    place <= sample.fraction()
}

impl Row {
    fn of(ranked: &Ranked, has_limits: bool) -> Self {
        Self {
            identity: ranked.name.identity().to_owned(),
            policy: ranked.name.policy().to_owned(),
            rule: if has_limits {
                ranked.rule.to_string()
            } else {
                without_limit(&ranked.rule)
            },
            limit: has_limits.then(|| ranked.rule.limit()),
            slots: ranked.rule.is_concurrency(),
            used: ranked.used,
            steps: ranked.steps,
            full: has_limits.then_some(ranked.full),
            fits_ms: ranked.fits_ms,
            holders: ranked.holders.clone(),
        }
    }

    fn cells(&self, now_ms: u64) -> Vec<String> {
        let mut cells = vec![
            self.identity.clone(),
            self.policy.clone(),
            self.rule.clone(),
            used(self.used, self.limit, self.slots),
        ];
        match self.limit {
            None => cells.push(self.steps.to_string()),
            Some(limit) => {
                let percent = u128::from(self.used) * 100 / u128::from(limit.max(1));
                let denied = match (self.full, self.fits_ms) {
                    // Full, without a time: not even one unit will ever fit.
                    (Some(true), None) => "ever".to_owned(),
                    (_, None) => String::new(),
                    (_, Some(_)) if self.slots => "as long as all run".to_owned(),
                    (_, Some(ms)) => span(ms.saturating_sub(now_ms)),
                };
                cells.extend([format!("{percent}%"), denied]);
            }
        }
        cells
    }
}

/// Shortens identities, so that each row takes one line. Keeps at least the part that you can still use.
fn shorten(rows: &mut [Vec<String>], header: &[&str], width: usize) {
    let longest = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].len()]).max().unwrap_or(0)
    };
    // Each column has a blank on both sides, and perhaps a line beside it.
    let others: usize = (1..header.len()).map(|column| longest(column) + 3).sum();
    let room = width.saturating_sub(others + 4).max(12);
    for row in rows {
        let room = room.max(least(&row[0]));
        if row[0].chars().count() > room {
            row[0] = row[0].chars().take(room - 1).chain(['…']).collect();
        }
    }
}

/// The minimum length of a shortened identity. An address stays whole, since half of it may be another address. A hash
/// keeps as many digits as `hash --find` needs.
fn least(identity: &str) -> usize {
    const DIGITS: usize = 8;
    if identity.starts_with("ip=") {
        return usize::MAX;
    }
    let kind = identity.split_once("=#").map(|(kind, _)| kind);
    kind.map_or(0, |kind| {
        kind.chars().count() + "=#…".chars().count() + DIGITS
    })
}

/// A table that never breaks the names of identities and policies into lines. With `is_wide`, nothing is broken.
fn table(header: &[&str], is_wide: bool, output: &Output) -> Table {
    let mut table = output.table(header.iter().copied());
    if is_wide {
        table.set_content_arrangement(ContentArrangement::Disabled);
    }
    for column in 0..2 {
        if let Some(names) = table.column_mut(column) {
            names.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table
}

/// Adds rows with this column in red.
fn add_rows(table: &mut Table, rows: Vec<Vec<String>>, red: usize) {
    for row in rows {
        table.add_row(row.into_iter().enumerate().map(|(column, text)| {
            let cell = Cell::new(text);
            if column == red {
                cell.fg(Color::Red)
            } else {
                cell
            }
        }));
    }
}

fn write(report: &Report, args: &TopArgs, output: &mut Output) -> Result<()> {
    write!(output, "{} keys", grouped(report.keys))?;
    if report.read != report.keys {
        write!(output, ", {} read", grouped(report.read))?;
    }
    let counting = grouped(report.counting);
    write!(output, ", {counting} with units that count")?;
    match report.full {
        Some(0) => {
            writeln!(output, ", none of them full now")?;
            output.hint("`sluicegate top --denied` lists who was denied in the last hour")?;
        }
        Some(full) => writeln!(output, ", {BAD}{} full{BAD:#}", grouped(full))?,
        None => writeln!(output)?,
    }
    if let (Some(blocked @ 1..), Some(banned)) = (report.blocked, report.banned) {
        let blocked = grouped(blocked);
        let of_bans = match banned {
            0 => String::new(),
            banned => format!(", {} of them by a ban", grouped(banned)),
        };
        writeln!(
            output,
            "{BAD}{blocked} blocked{BAD:#}{of_bans}: `sluicegate blocks` lists them"
        )?;
    }
    output.hint(&report.why)?;
    if !report.top.is_empty() {
        write_rows(report, args.wide, output)?;
        for row in &report.top {
            for holder in &row.holders {
                let of = format!("{} under {}", row.identity, row.policy);
                output.hint(&holder.text(&of, report.now_ms))?;
            }
        }
    }
    write_others(report, output)?;
    if report.unreadable > 0 {
        let count = grouped(report.unreadable);
        writeln!(
            output,
            "{count} values could not be read: `inspect` says why"
        )?;
    }
    if report.full.is_none() {
        output.hint(&match &report.unpublished {
            None => "the service publishes no limits: --policies FILE tells who is denied".to_owned(),
            Some(why) => format!(
                "the published policies could not be read ({why}): --policies FILE tells who is denied"
            ),
        })?;
    }
    Ok(())
}

/// Warns about counts that the file does not have, since the file is not that of the service.
fn write_others(report: &Report, output: &mut Output) -> Result<()> {
    let lacks = report.source.lacks();
    for OtherRow { policy, rule, keys } in report.other_rules.iter().chain(&report.other_policies) {
        let keys = grouped(*keys);
        let what = match rule {
            Some(rule) => format!("the rule {rule} of {policy}"),
            None => format!("the policy {policy}"),
        };
        writeln!(
            output,
            "{WARN}{lacks} {what}, which the service counts: {keys} keys are not ranked by it{WARN:#}"
        )?;
    }
    Ok(())
}

fn write_rows(report: &Report, is_wide: bool, output: &mut Output) -> Result<()> {
    let mut header = vec!["identity", "policy", "rule", "used"];
    match report.full {
        Some(_) => header.extend(["", "denied for"]),
        None => header.push("steps"),
    }
    let rows = report.top.iter().map(|row| row.cells(report.now_ms));
    let mut rows: Vec<Vec<String>> = rows.collect();
    // Programs that read the output need whole identities.
    if output.is_terminal() && !is_wide {
        shorten(&mut rows, &header, output.width().into());
    }
    let mut table = table(&header, is_wide, output);
    add_rows(&mut table, rows, 5);
    align_right(&mut table, 3..=4);
    output.write_table(&table)
}
