//! `sluicegate top`: the identities that use most, or are denied most.

mod denied;
mod rows;
mod usage;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use sluicegate::store::redis::inspect::{Inspector, StoredName};

use self::rows::Rows;
use self::usage::Usage;
use super::block_report::BlockReport;
use super::hints::Hints;
use super::published::Limits;
use super::report::other_rules;
use super::scan::{LOAD, Scan, parse_load, parse_share};
use super::text::{grouped, hash};
use super::{BAD, Output, Result, Settings, Table, published, server};

#[derive(Args)]
#[command(after_help = include_str!("../help/top.txt"))]
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
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    number: u16,

    /// Add up addresses by network: for IPv6, of this prefix length
    #[arg(long, value_name = "BITS", value_parser = clap::value_parser!(u8).range(32..=128))]
    by_prefix: Option<u8>,

    /// Do not cut long identities at the edge of the terminal
    #[arg(long)]
    wide: bool,

    /// The share of the keys to read
    #[arg(long, value_name = "SHARE", default_value = "100%", value_parser = parse_share)]
    sample: f64,

    /// The share of the time in which a server may be busy, from 0.1%
    #[arg(long, value_name = "SHARE", default_value = LOAD, value_parser = parse_load)]
    load: f64,
}

/// The maximum number of rules and policies that the limits do not have. There are few, unless the file belongs to
/// another service.
const MOST_OTHERS: usize = 100;

pub(crate) fn run(args: &TopArgs, settings: &Settings, output: &mut Output) -> Result<bool> {
    server::inspect(settings, async |inspector| match args.denied {
        true => denied::run(args, &inspector, output).await,
        false => Top::run(args, settings, &inspector, output).await,
    })
}

struct Top<'a> {
    args: &'a TopArgs,
    limits: Limits,
    rows: Rows,
    seen: Seen,
    /// The number of keys for each policy and rule, or each policy, that the limits do not have.
    others: BTreeMap<(String, Option<String>), u64>,
    /// The labels of processes that hold slots.
    labels: HashMap<u64, String>,
}

/// The numbers of keys that were read, as JSON.
#[derive(Default, Serialize)]
struct Seen {
    /// The clock of the last server that was read.
    now_ms: u64,
    /// The number of keys on all servers, and of those that were read.
    keys: u64,
    read: u64,
    /// The number of keys with units that count.
    counting: u64,
    /// The number of keys at a limit, where one more unit does not fit; `None` if no limits are known.
    full: Option<u64>,
    unreadable: u64,
    /// `None` with `--policy`: a block is of an identity, under all policies.
    blocked: Option<u64>,
    banned: Option<u64>,
}

impl<'a> Top<'a> {
    async fn run(
        args: &'a TopArgs,
        settings: &Settings,
        inspector: &Inspector,
        output: &mut Output,
    ) -> Result<bool> {
        let (file, policy) = (args.policies.as_deref(), args.policy.as_deref());
        let limits = published::limits(settings, file, inspector, args.policy.as_slice()).await?;
        let mut scan = Scan::new(inspector, args.load).await?;
        let of_all = policy.is_none().then_some(0);
        let mut top = Self {
            args,
            seen: Seen {
                keys: scan.total,
                full: limits.policies.as_ref().map(|_| 0),
                blocked: of_all,
                banned: of_all,
                ..Seen::default()
            },
            limits,
            rows: Rows::new(args, ["full", "used"]),
            others: BTreeMap::new(),
            // Without the right to read them, processes are shown by their numbers.
            labels: inspector.processes().await.unwrap_or_default(),
        };
        let selection = match policy {
            Some(policy) => inspector.all(Some(policy)),
            None => inspector.all_with_blocks(),
        };
        let batches = async |server: &Inspector, names| top.batch(server, names).await;
        scan.run(&selection, batches).await?;
        if top.seen.now_ms == 0 {
            top.seen.now_ms = inspector.index_now_ms().await?;
        }
        let mut why = String::new();
        // If nothing was read, find out why, which takes another look at the keys.
        if top.seen.read == 0 && (policy.is_some() || !output.is_json) {
            let hints = Hints::look(inspector, &top.limits.published).await;
            why = hints.why_none(policy.filter(|_| settings.policies_or(file).is_none()))?;
        }
        let (rows, table) = top.rows.shown(match top.seen.full {
            Some(_) => &["identity", "policy", "rule", "used", "", "denied for"],
            None => &["identity", "policy", "rule", "used", "steps"],
        });
        output.report(&top.document(&rows), |_, output| {
            top.write(&why, table, output)
        })?;
        scan.end().map(|()| true)
    }

    async fn batch(&mut self, server: &Inspector, mut names: Vec<StoredName>) -> Result<()> {
        // Drop the names first: a key outside of the sample is not read.
        names.retain(|name| is_chosen(name, self.args.sample));
        let has_limits = self.limits.policies.is_some();
        names.retain(|name| {
            let has_plans = || !self.limits.of(name.policy()).is_empty();
            let is_known = !has_limits || name.is_of_block() || has_plans();
            if !is_known {
                add_other(&mut self.others, name.policy(), None);
            }
            is_known
        });
        if names.is_empty() {
            return Ok(());
        }
        let now_ms = server.index_now_ms().await?;
        self.seen.now_ms = now_ms;
        let is_block = StoredName::is_of_block;
        let (blocks, names): (Vec<_>, Vec<_>) = names.into_iter().partition(is_block);
        self.count_blocks(server, &blocks).await?;
        if names.is_empty() {
            return Ok(());
        }
        for (name, stored) in names.iter().zip(server.read_all(&names).await?) {
            self.seen.read += 1;
            self.seen.unreadable += u64::from(stored.is_err());
            let Ok(Some(value)) = stored else {
                continue;
            };
            let plans = self.limits.of(name.policy());
            if !plans.is_empty() {
                for rule in other_rules(&value, &plans, now_ms) {
                    add_other(&mut self.others, name.policy(), Some(rule));
                }
            }
            let Some(usage) = Usage::of(&value, &plans, now_ms) else {
                continue;
            };
            self.seen.counting += 1;
            count(&mut self.seen.full, usage.is_full());
            let numbers = [u64::from(usage.is_full()), usage.used];
            let of = (name.identity(), name.policy());
            let row = || usage.row(name, &value, &self.labels, now_ms);
            self.rows.offer(of, numbers, usage.rank, Some(name), row);
        }
        Ok(())
    }

    async fn count_blocks(&mut self, server: &Inspector, names: &[StoredName]) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        for block in server.blocks(names).await? {
            let block = BlockReport::of(&block, self.seen.now_ms);
            self.seen.unreadable += u64::from(block.is_err());
            let block = block.ok().flatten();
            count(&mut self.seen.blocked, block.is_some());
            count(&mut self.seen.banned, block.is_some_and(|it| it.is_ban()));
        }
        Ok(())
    }

    fn document(&self, rows: &[Value]) -> Value {
        let others = self.others.iter();
        let others = others
            .map(|((policy, rule), keys)| json!({ "policy": policy, "rule": rule, "keys": keys }));
        let (other_policies, other_rules): (Vec<Value>, Vec<Value>) =
            others.partition(|it| it["rule"].is_null());
        let mut document = json!(self.seen);
        document["top"] = json!(rows);
        document["other_rules"] = json!(other_rules);
        document["other_policies"] = json!(other_policies);
        document
    }

    fn write(&self, why: &str, table: Table, output: &mut Output) -> Result<()> {
        self.write_summary(output)?;
        output.hint(why)?;
        write_table(table, self.args, output)?;
        self.rows.notes().try_for_each(|note| output.hint(note))?;
        self.write_unranked(output)?;
        if self.seen.full.is_some() {
            return Ok(());
        }
        let why = self.limits.why_unlimited();
        output.hint(&format!("{why}: --policies FILE shows who is denied"))
    }

    /// Writes how many keys there are, how many are full, and how many identities are blocked.
    fn write_summary(&self, output: &mut Output) -> Result<()> {
        let seen = &self.seen;
        let [keys, read, counting] = [seen.keys, seen.read, seen.counting].map(grouped);
        let read = match seen.read == seen.keys {
            true => String::new(),
            false => format!(", {read} read"),
        };
        let full = match seen.full {
            Some(0) => ", none of them full now".to_owned(),
            Some(full) => format!(", {BAD}{} full{BAD:#}", grouped(full)),
            None => String::new(),
        };
        output.line(format!(
            "{keys} keys{read}, {counting} with units that count{full}"
        ))?;
        if seen.full == Some(0) {
            output.hint("`sluicegate top --denied` lists who was denied in the last hour")?;
        }
        let Some(blocked) = seen.blocked.filter(|blocked| *blocked > 0) else {
            return Ok(());
        };
        let banned = seen.banned.filter(|banned| *banned > 0).map(grouped);
        let banned = banned.map(|it| format!(", {it} of them by a ban"));
        let (blocked, banned) = (grouped(blocked), banned.unwrap_or_default());
        output.line(format!(
            "{BAD}{blocked} blocked{BAD:#}{banned}: `sluicegate blocks` lists them"
        ))
    }

    /// Writes which keys are not ranked.
    fn write_unranked(&self, output: &mut Output) -> Result<()> {
        // The file is not that of the service, or rules have changed.
        for ((policy, rule), keys) in &self.others {
            let (keys, lacks) = (grouped(*keys), self.limits.lacks);
            let what = match rule {
                Some(rule) => format!("the rule {rule} of {policy}"),
                None => format!("the policy {policy}"),
            };
            output.warn(format!(
                "{lacks} {what}, which the service counts: {keys} keys are not ranked by it"
            ))?;
        }
        if self.seen.unreadable > 0 {
            let count = grouped(self.seen.unreadable);
            output.line(format!(
                "{count} values could not be read: `inspect` says why"
            ))?;
        }
        Ok(())
    }
}

fn count(counter: &mut Option<u64>, is_one: bool) {
    *counter = counter.map(|count| count + u64::from(is_one));
}

fn add_other(
    others: &mut BTreeMap<(String, Option<String>), u64>,
    policy: &str,
    rule: Option<String>,
) {
    let other = (policy.to_owned(), rule);
    if others.len() < MOST_OTHERS || others.contains_key(&other) {
        *others.entry(other).or_default() += 1;
    }
}

/// Chooses by a hash of the identity: the same in each run, and for all policies of an identity.
fn is_chosen(name: &StoredName, sample: f64) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "for a share")]
    let place = hash(name.identity()) as f64 / u64::MAX as f64;
    place <= sample
}

/// Writes a ranking. At a terminal, each row takes one line, without --wide. Programs that read the output need whole
/// identities.
fn write_table(mut table: Table, args: &TopArgs, output: &mut Output) -> Result<()> {
    if output.is_terminal && !args.wide {
        table.shorten(output.width(), least);
    }
    match args.wide {
        true => output.line(table.text(usize::MAX).trim_end_matches('\n')),
        false => output.table(&table),
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
