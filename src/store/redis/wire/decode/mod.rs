//! [`replies`]: what the script has answered, read as `lua/README.md` describes it.

use redis::Value;
use smallvec::SmallVec;

use crate::{
    domain::{
        block::{Block, BlockedBy},
        charge::Charge,
        check::Check,
        decision::{BatchOutcome, Blocked, Count, Usage},
        error::StoreError,
        numbers,
        operation::{Operation, Reply},
        policy::Policy,
        slots::{HeldSlots, Slots},
    },
    store::redis::error,
};

/// How the reply to an operation begins.
const FAILED: u8 = 0;
const DONE: u8 = 1;
const NOT_ASKED: u8 = 2;
const BLOCKED: u8 = 3;

/// The first byte of a key's counts: without times if the newest steps are those of the time of the reply. Either with the
/// units of the check, also if it is denied; or without them, and with the times at which they fit rules that deny them.
const LONG: u8 = 1;
const BRIEF: u8 = 2;
const DENIED: u8 = 3;

/// Why an operation failed.
const WRONG_TYPE: u8 = 1;
const UNREADABLE: u8 = 2;
const OTHER_TIME: u8 = 4;
/// The server has refused a command of the operation. The second: a write may have come before.
const REFUSED: u8 = 5;
const REFUSED_LATER: u8 = 6;

/// The script's answers to a call.
#[derive(Debug)]
pub(in crate::store::redis) struct Replies {
    pub(in crate::store::redis) now_ms: u64,
    /// One for each operation.
    pub(in crate::store::redis) results: Vec<Result<Reply, StoreError>>,
    /// The operations that were not done since the time is in no period that was sent.
    pub(in crate::store::redis) elsewhere: Vec<usize>,
    /// Whether the server has refused a command for a reason for which the connection should be replaced.
    pub(in crate::store::redis) needs_another_connection: bool,
}

/// Reads the reply to these operations: one result for each, whatever the bytes are. Operations without keys need none.
pub(in crate::store::redis) fn read_replies(operations: &[Operation], reply: &Value) -> Replies {
    let bytes = match reply {
        Value::BulkString(bytes) => &bytes[..],
        _ => &[],
    };
    let mut reader = Reader {
        now_ms: 0,
        bytes,
        is_elsewhere: false,
        needs_another_connection: false,
    };
    // A time that is missing leaves nothing to read for the operations either.
    reader.now_ms = reader.number(6).unwrap_or_default();
    let (mut results, mut elsewhere) = (Vec::with_capacity(operations.len()), Vec::new());
    for operation in operations {
        reader.is_elsewhere = false;
        let reply = reader.reply(operation);
        if reply.is_err() && reader.is_elsewhere {
            elsewhere.push(results.len());
        }
        results.push(reply);
    }
    Replies {
        now_ms: reader.now_ms,
        results,
        elsewhere,
        needs_another_connection: reader.needs_another_connection,
    }
}

/// The counts of an operation: most have no more than these.
type ReadCounts = SmallVec<[Count; 8]>;

/// The part of a reply that has not been read yet; empty after an error.
struct Reader<'a> {
    now_ms: u64,
    bytes: &'a [u8],
    /// Whether the time is in no period that was sent.
    is_elsewhere: bool,
    needs_another_connection: bool,
}

impl Reader<'_> {
    fn reply(&mut self, operation: &Operation) -> Result<Reply, StoreError> {
        match operation {
            Operation::Check(check) => {
                let decision = self.decide(check, 1, |filled, shadows| filled.decision(shadows));
                decision.map(Reply::Check)
            }
            Operation::CheckBatch(batch) => {
                let decisions = self.decide(batch.check(), batch.count(), |filled, shadows| {
                    filled.decisions(batch, shadows)
                });
                decisions.map(Reply::CheckBatch)
            }
            Operation::Settle(settlement) => {
                let check = settlement.check().without_shadows();
                // Without charges, nothing was sent.
                if !check.charges().is_empty() {
                    self.done()?;
                }
                let counts = self.counts(&check)?;
                Usage::settled(&check, self.now_ms, &counts).map(Reply::Settle)
            }
            Operation::Renew(slots) => self.slots(slots).map(Reply::Renew),
            Operation::Return(slots) => self.slots(slots).map(Reply::Return),
            Operation::Reset { .. } => self.done().map(|()| Reply::Reset),
            Operation::Block { .. } => {
                self.done()?;
                self.block().map(Reply::Block)
            }
            Operation::Ban { .. } => match self.bytes {
                [NOT_ASKED, rest @ ..] => {
                    self.bytes = rest;
                    Ok(Reply::Ban(None))
                }
                _ => {
                    self.done()?;
                    self.block().map(|block| Reply::Ban(Some(block)))
                }
            },
            Operation::Unblock { .. } => {
                // It was sent as two resets: read both, also if the first failed.
                let (block, strikes) = (self.done(), self.done());
                let is_unsent =
                    |done: &Result<_, StoreError>| done.as_ref().is_err_and(StoreError::is_unsent);
                let are_unsent = is_unsent(&block) && is_unsent(&strikes);
                let both = block.and(strikes).map(|()| Reply::Unblock);
                both.map_err(|error| error.maybe_sent().unsent_if(are_unsent))
            }
            other => Err(other.unsupported()),
        }
    }

    /// Reads the reply to a message about slots: behind the count, a bit for each id.
    fn slots(&mut self, slots: &Slots) -> Result<HeldSlots, StoreError> {
        self.done()?;
        let counts = self.counts(slots.check())?;
        let mut held = Vec::with_capacity(slots.ids().len());
        for ids in slots.ids().chunks(8) {
            let byte = self.byte()?;
            held.extend((0..ids.len()).map(|bit| byte >> bit & 1 == 1));
        }
        slots.reply(held, self.now_ms, &counts)
    }

    /// Reads the reply to `count` identical checks, and then that to their shadows, of which as many were asked as
    /// checks were admitted. `answer` gets both.
    fn decide<T>(
        &mut self,
        check: &Check,
        count: u16,
        answer: impl FnOnce(BatchOutcome<'_>, Option<BatchOutcome<'_>>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let shadows = check.shadow_check();
        let (mut counts, mut shadow_counts) = (ReadCounts::new(), ReadCounts::new());
        let filled = self.fill(check, count, &mut counts);
        let admitted = filled.as_ref().map_or(0, |filled| filled.admitted);
        let shadows = shadows.as_ref();
        let shadows = shadows.map(|shadows| self.fill(shadows, admitted, &mut shadow_counts));
        answer(filled?, shadows.and_then(Result::ok))
    }

    /// Reads how many checks of a batch were admitted, and the counts after them. A check without charges has no
    /// reply: all are admitted.
    fn fill<'a>(
        &mut self,
        check: &'a Check,
        count: u16,
        counts: &'a mut ReadCounts,
    ) -> Result<BatchOutcome<'a>, StoreError> {
        let mut blocked = None;
        let admitted = match self.bytes {
            _ if check.charges().is_empty() => count,
            // Shadows, of which no check was admitted.
            [NOT_ASKED, rest @ ..] => {
                self.bytes = rest;
                0
            }
            [BLOCKED, rest @ ..] if check.enforces_blocks() => {
                self.bytes = rest;
                blocked = Some(self.blocked(check)?);
                0
            }
            _ => {
                self.done()?;
                let admitted = self.number(4)?;
                self.add_counts(check, admitted == 0, counts)?;
                u16::try_from(admitted).map_err(|_| self.garbled())?
            }
        };
        Ok(BatchOutcome {
            blocked,
            ..BatchOutcome::new(check, count, admitted, self.now_ms, counts)
        })
    }

    /// Reads which key of a check is blocked, and how.
    fn blocked(&mut self, check: &Check) -> Result<Blocked, StoreError> {
        let (place, block) = (self.byte()?, self.block()?);
        match check.keys().nth(place.into()) {
            Some(key) => Ok(Blocked::new(key.clone(), block, self.now_ms)),
            None => Err(self.garbled()),
        }
    }

    fn block(&mut self) -> Result<Block, StoreError> {
        let (until_ms, by, _version) = (self.number(6)?, self.byte()?, self.byte()?);
        match BlockedBy::of_code(by) {
            Some(by) => Ok(Block::new(until_ms, by)),
            None => Err(failure(UNREADABLE).maybe_sent()),
        }
    }

    /// Reads that an operation was done, or why not.
    fn done(&mut self) -> Result<(), StoreError> {
        match self.byte()? {
            DONE => Ok(()),
            FAILED => {
                let reason = self.byte()?;
                self.is_elsewhere |= reason == OTHER_TIME;
                Err(match reason {
                    REFUSED => self.refusal()?.unsent(),
                    REFUSED_LATER => self.refusal()?,
                    _ => failure(reason).unsent(),
                })
            }
            _ => Err(self.garbled()),
        }
    }

    /// Reads the server's error to a command of an operation.
    fn refusal(&mut self) -> Result<StoreError, StoreError> {
        let length = self.byte()?.into();
        let Some((text, rest)) = self.bytes.split_at_checked(length) else {
            return Err(self.garbled());
        };
        self.bytes = rest;
        let error = error::within_script(&String::from_utf8_lossy(text));
        self.needs_another_connection |= error::needs_another_connection(&error);
        Ok(error::store_error(&error).maybe_sent())
    }

    /// Reads the count under each rule of each charge.
    fn counts(&mut self, check: &Check) -> Result<ReadCounts, StoreError> {
        let mut counts = ReadCounts::new();
        self.add_counts(check, false, &mut counts)?;
        Ok(counts)
    }

    fn add_counts(
        &mut self,
        check: &Check,
        is_denied: bool,
        counts: &mut ReadCounts,
    ) -> Result<(), StoreError> {
        counts.reserve(check.rule_count());
        for charge in check.charges() {
            let (policy, first) = (charge.policy(), counts.len());
            match self.byte()? {
                LONG => self.counts_of(policy, true, counts)?,
                BRIEF => {
                    self.counts_of(policy, false, counts)?;
                    if is_denied {
                        take_off(charge, &mut counts[first..]);
                    }
                }
                DENIED => {
                    self.counts_of(policy, false, counts)?;
                    for (count, rule) in counts[first..].iter_mut().zip(policy.rules()) {
                        let room = rule.limit().checked_sub(charge.cost());
                        if room.is_none_or(|room| count.used > room) {
                            count.fits_at_ms = self.number(6)?;
                        }
                    }
                }
                _ => return Err(self.garbled()),
            }
        }
        Ok(())
    }

    fn counts_of(
        &mut self,
        policy: &Policy,
        is_long: bool,
        counts: &mut ReadCounts,
    ) -> Result<(), StoreError> {
        for rule in policy.rules() {
            let used = self.number(7)?;
            let [newest_end_ms, fits_at_ms] = match rule.refill() {
                _ if is_long => [self.number(6)?, self.number(6)?],
                Some(_) => [self.now_ms, 0],
                None => [rule.step_end_ms(self.now_ms), 0],
            };
            counts.push(Count {
                used,
                newest_end_ms,
                fits_at_ms,
            });
        }
        Ok(())
    }

    fn byte(&mut self) -> Result<u8, StoreError> {
        Ok(self.number(1)?.to_le_bytes()[0])
    }

    #[inline]
    fn number(&mut self, size: usize) -> Result<u64, StoreError> {
        numbers::number(&mut self.bytes, size).ok_or_else(|| self.garbled())
    }

    fn garbled(&mut self) -> StoreError {
        self.bytes = &[];
        StoreError::protocol("the script's reply cannot be read")
    }
}

/// Takes the units of a charge off, which was not made.
fn take_off(charge: &Charge, counts: &mut [Count]) {
    for (count, rule) in counts.iter_mut().zip(charge.policy().rules()) {
        *count = count.before(rule, charge.cost());
        if count.used == 0 && rule.refill().is_none() {
            count.newest_end_ms = 0;
        }
    }
}

fn failure(reason: u8) -> StoreError {
    match reason {
        WRONG_TYPE => {
            StoreError::protocol("a key holds a value of another type, not written by this crate")
        }
        OTHER_TIME => {
            StoreError::protocol("the store's time is in no period of the calendar that was sent")
        }
        _ => error::UNREADABLE,
    }
}

#[cfg(test)]
mod tests;
