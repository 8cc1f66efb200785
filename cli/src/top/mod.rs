//! `sluicegate top`: the identities that use most, or are denied most.

mod denied;
mod networks;
mod ranking;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use sluicegate::Policy;
use sluicegate::store::redis::inspect::{Inspector, StoredName, StoredValue};

use self::networks::Networks;
use self::ranking::{Ranked, Ranking};
use super::block_report::BlockReport;
use super::hints::Hints;
use super::holders::Holder;
use super::published::Limits;
use super::report::other_rules;
use super::scan::{DEFAULT_LOAD, Scan, Share};
use super::text::{grouped, span, used};
use super::{BAD, Cell, Output, Result, Settings, Table, policies_file, published, server};

/// A longer list is not a ranking.
const MAX_ROWS: u16 = 1_000;

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
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_ROWS)))]
    number: u16,

    /// Add up addresses by networks of so many bits of IPv6
    #[arg(long, value_name = "BITS", value_parser = clap::value_parser!(u8).range(32..=128))]
    by_prefix: Option<u8>,

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

/// The maximum number of rules and policies that the limits do not have. There are few, unless the file belongs to
/// another service.
const MOST_OTHERS: usize = 100;

pub(crate) fn run(args: &TopArgs, settings: &Settings, output: &mut Output) -> Result<bool> {
    if args.denied {
        return denied::run(args, settings, output);
    }
    let file = settings.policies_or(args.policies.as_deref());
    server::inspect(settings, async |inspector| {
        let limits = published::limits(settings, args.policies.as_deref(), &inspector).await?;
        if let (Some(policies), Some(file), Some(name)) = (&limits.policies, file, &args.policy) {
            policies_file::named(policies, file, name)?;
        }
        let mut scan = Scan::new(&inspector, args.load).await?;
        let top = Top::read(args, limits, &inspector, &mut scan).await?;
        let mut why = String::new();
        // If nothing was read, find out why, which takes another look at the keys.
        if top.read == 0 && (args.policy.is_some() || !output.is_json()) {
            let hints = Hints::look(&inspector, settings, &top.limits.published).await;
            let policy = args.policy.as_deref().filter(|_| file.is_none());
            why = hints.why_none(policy)?;
        }
        output.report(&top.document(), |_, output| top.write(&why, output))?;
        scan.end().map(|()| true)
    })
}

struct Top<'a> {
    args: &'a TopArgs,
    limits: Limits,
    ranking: Ranking,
    networks: Option<Networks>,
    /// The clock of the last server that was read.
    now_ms: u64,
    /// The number of keys on all servers, and of those that were read.
    keys: u64,
    read: u64,
    unreadable: u64,
    blocked: u64,
    banned: u64,
    /// The number of keys for each policy and rule, or each policy, that the limits do not have.
    others: BTreeMap<(String, Option<String>), u64>,
    /// The labels of processes that hold slots.
    labels: HashMap<u64, String>,
}

impl<'a> Top<'a> {
    async fn read(
        args: &'a TopArgs,
        limits: Limits,
        inspector: &Inspector,
        scan: &mut Scan,
    ) -> Result<Self> {
        let networks = |bits| Networks::new(bits, ["full", "used"]);
        let mut top = Self {
            args,
            limits,
            ranking: Ranking::new(args.number.into()),
            networks: args.by_prefix.map(networks),
            now_ms: 0,
            keys: scan.total,
            read: 0,
            unreadable: 0,
            blocked: 0,
            banned: 0,
            others: BTreeMap::new(),
            // Without the right to read them, processes are shown by their numbers.
            labels: inspector.processes().await.unwrap_or_default(),
        };
        let selection = match args.policy.as_deref() {
            Some(policy) => inspector.all(Some(policy)),
            None => inspector.all_with_blocks(),
        };
        let batches = async |server: &Inspector, names| top.batch(server, names).await;
        scan.run(&selection, batches).await?;
        if top.now_ms == 0 {
            top.now_ms = inspector.index_now_ms().await?;
        }
        Ok(top)
    }

    async fn batch(&mut self, server: &Inspector, mut names: Vec<StoredName>) -> Result<()> {
        // Drop the names first: a key outside of the sample is not read.
        names.retain(|name| is_chosen(name, self.args.sample));
        let has_limits = self.limits.policies.is_some();
        names.retain(|name| {
            let is_other =
                has_limits && !name.is_of_block() && self.limits.of(name.policy()).is_empty();
            if is_other {
                add_other(&mut self.others, name.policy(), None);
            }
            !is_other
        });
        if names.is_empty() {
            return Ok(());
        }
        self.now_ms = server.index_now_ms().await?;
        let (blocks, names): (Vec<_>, Vec<_>) =
            names.into_iter().partition(StoredName::is_of_block);
        if !blocks.is_empty() {
            for block in server.blocks(&blocks).await? {
                let block = BlockReport::of(&block, self.now_ms);
                self.unreadable += u64::from(block.is_err());
                let block = block.ok().flatten();
                self.blocked += u64::from(block.is_some());
                self.banned += u64::from(block.is_some_and(|block| block.is_ban()));
            }
        }
        if names.is_empty() {
            return Ok(());
        }
        for (name, stored) in names.iter().zip(server.read_all(&names).await?) {
            self.read += 1;
            self.unreadable += u64::from(stored.is_err());
            let Ok(Some(value)) = stored else {
                continue;
            };
            let policies = self.limits.of(name.policy());
            if !policies.is_empty() {
                for rule in other_rules(&value, &policies, self.now_ms) {
                    add_other(&mut self.others, name.policy(), Some(rule));
                }
            }
            self.rank(name, &value, &policies);
        }
        Ok(())
    }

    fn rank(&mut self, name: &StoredName, value: &StoredValue, policies: &[Policy]) {
        let Some(mut ranked) = Ranked::of(name, value, policies, self.now_ms) else {
            return;
        };
        if let Some(networks) = &mut self.networks {
            let numbers = [u64::from(ranked.full), ranked.used];
            networks.add(name.identity(), name.policy(), numbers);
        }
        ranked.holders = Holder::all(Some(value), self.now_ms, &self.labels);
        self.ranking.offer(ranked);
    }

    /// The number of keys at a limit, where one more unit does not fit; `None` if no limits are known.
    fn full(&self) -> Option<u64> {
        self.limits.policies.as_ref().map(|_| self.ranking.full)
    }

    fn document(&self) -> Value {
        // A block is of an identity, under all policies.
        let of_all = self.args.policy.is_none();
        let networks = self.networks.as_ref();
        let rows = match networks.map(|it| it.first(self.args.number.into()).0) {
            Some(rows) => rows,
            None => self.ranking.first.iter().map(Ranked::document).collect(),
        };
        let others = self.others.iter();
        let others = others
            .map(|((policy, rule), keys)| json!({ "policy": policy, "rule": rule, "keys": keys }));
        let (other_policies, other_rules): (Vec<Value>, Vec<Value>) =
            others.partition(|it| it["rule"].is_null());
        json!({
            "now_ms": self.now_ms, "keys": self.keys, "read": self.read, "counting": self.ranking.seen,
            "full": self.full(), "unreadable": self.unreadable, "blocked": of_all.then_some(self.blocked),
            "banned": of_all.then_some(self.banned), "top": rows, "other_rules": other_rules,
            "other_policies": other_policies,
        })
    }

    fn write(&self, why: &str, output: &mut Output) -> Result<()> {
        self.write_summary(output)?;
        output.hint(why)?;
        if let Some(networks) = &self.networks {
            write_table(networks.first(self.args.number.into()).1, self.args, output)?;
            if networks.is_cut {
                output.hint("there are too many networks: those with little use are left out")?;
            }
            return self.write_unranked(output);
        }
        let titles = ["identity", "policy", "rule", "used"].into_iter();
        let mut table = match self.full() {
            Some(_) => Table::new(titles.chain(["", "denied for"])),
            None => Table::new(titles.chain(["steps"])),
        };
        for ranked in &self.ranking.first {
            ranked.add_to(&mut table, self.now_ms);
        }
        write_table(table, self.args, output)?;
        for Ranked { name, holders, .. } in &self.ranking.first {
            for holder in holders {
                let of = format!("{} under {}", name.identity(), name.policy());
                output.hint(&holder.text(&of, self.now_ms))?;
            }
        }
        self.write_unranked(output)?;
        if self.full().is_some() {
            return Ok(());
        }
        output.hint(&match &self.limits.unpublished {
            None => "the service publishes no limits: --policies FILE shows who is denied".to_owned(),
            Some(why) => format!(
                "the published policies could not be read ({}): --policies FILE shows who is denied",
                why.message()
            ),
        })
    }

    /// Writes how many keys there are, how many are full, and how many identities are blocked.
    fn write_summary(&self, output: &mut Output) -> Result<()> {
        let (read, counting) = (grouped(self.read), grouped(self.ranking.seen));
        let read = match self.read == self.keys {
            true => String::new(),
            false => format!(", {read} read"),
        };
        let full = match self.full() {
            Some(0) => ", none of them full now".to_owned(),
            Some(full) => format!(", {BAD}{} full{BAD:#}", grouped(full)),
            None => String::new(),
        };
        let keys = grouped(self.keys);
        output.line(format!(
            "{keys} keys{read}, {counting} with units that count{full}"
        ))?;
        if self.full() == Some(0) {
            output.hint("`sluicegate top --denied` lists who was denied in the last hour")?;
        }
        if self.blocked > 0 && self.args.policy.is_none() {
            let of_bans = match self.banned {
                0 => String::new(),
                banned => format!(", {} of them by a ban", grouped(banned)),
            };
            let blocked = grouped(self.blocked);
            output.line(format!(
                "{BAD}{blocked} blocked{BAD:#}{of_bans}: `sluicegate blocks` lists them"
            ))?;
        }
        Ok(())
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
        if self.unreadable > 0 {
            let count = grouped(self.unreadable);
            output.line(format!(
                "{count} values could not be read: `inspect` says why"
            ))?;
        }
        Ok(())
    }
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
fn is_chosen(name: &StoredName, sample: Share) -> bool {
    use std::hash::{DefaultHasher, Hash, Hasher};

    let mut hasher = DefaultHasher::new();
    name.identity().hash(&mut hasher);
    #[expect(clippy::cast_precision_loss, reason = "for a share")]
    let place = hasher.finish() as f64 / u64::MAX as f64;
    place <= sample.fraction()
}

impl Ranked {
    fn document(&self) -> Value {
        json!({
            "identity": self.name.identity(), "policy": self.name.policy(), "rule": self.rule, "limit": self.limit,
            "slots": self.is_of_slots, "used": self.used, "steps": self.steps, "full": self.limit.map(|_| self.full),
            "fits_ms": self.fits_ms, "holders": self.holders,
        })
    }

    fn add_to(&self, table: &mut Table, now_ms: u64) {
        let [identity, policy, rule] =
            [self.name.identity(), self.name.policy(), &self.rule].map(Cell::from);
        let used = Cell::right(used(self.used, self.limit, self.is_of_slots));
        let Some(limit) = self.limit else {
            return table.row([identity, policy, rule, used, (self.steps as u64).into()]);
        };
        let percent = u128::from(self.used) * 100 / u128::from(limit.max(1));
        let denied = match (self.full, self.fits_ms) {
            // Full, without a time: not even one unit will ever fit.
            (true, None) => "ever".to_owned(),
            (_, None) => String::new(),
            (_, Some(_)) if self.is_of_slots => "as long as all run".to_owned(),
            (_, Some(ms)) => span(ms.saturating_sub(now_ms)),
        };
        let percent = Cell::right(format!("{percent}%"));
        let denied = Cell::from(denied).style(BAD);
        table.row([identity, policy, rule, used, percent, denied]);
    }
}

/// Writes a ranking. At a terminal, each row takes one line, without --wide. Programs that read the output need whole
/// identities.
fn write_table(mut table: Table, args: &TopArgs, output: &mut Output) -> Result<()> {
    if output.is_terminal() && !args.wide {
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
