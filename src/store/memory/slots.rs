//! Renewing slots.

use super::{Inner, counts, locked::Locked};
use crate::{
    domain::{
        decision::RuleUsage,
        error::StoreError,
        slots::{Renewal, Renewed},
    },
    store::entry::by_charge,
};

impl Inner {
    pub(super) fn renew(&self, renewal: &Renewal) -> Result<Renewed, StoreError> {
        let (check, usage) = (renewal.check(), renewal.usage());
        let tokens = self.tokens(check);
        let mut counts = counts(check);
        let mut shards = Locked::new(&self.shards, &tokens, &self.clock);
        let now_ms = shards.now_ms;
        let mut slots = tokens.iter().zip(check.charges()).zip(usage.policies());
        let is_renewed = slots.all(|((token, charge), usage)| {
            let entry = shards.shard(*token).entry(*token);
            entry.has(usage, now_ms, charge.cost())
        });
        let charges = by_charge(check.charges(), &tokens, &mut counts);
        for ((charge, token, counts), usage) in charges.zip(usage.policies()) {
            let shard = shards.shard(token);
            if is_renewed {
                shard.write(token, |entry| {
                    entry.renew(usage, now_ms, charge.cost(), counts);
                    entry.standing(usage.rules().iter().map(RuleUsage::rule), counts, now_ms)
                });
            } else {
                shard.entry(token).look(charge, now_ms, counts);
            }
        }
        drop(shards);
        renewal.reply(is_renewed, now_ms, &counts)
    }
}
