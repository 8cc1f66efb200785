//! [`Block`]: an identity that is denied whatever it asks, until a time. [`Ban`]: a block that is made by itself, for
//! who was denied too often.
//!
//! ```
//! use std::time::Duration;
//! use sluicegate::{Charge, Decision, Key, Limiter, MemoryStore, Policy};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let limiter = Limiter::new(MemoryStore::new());
//! let policy = Policy::parse("api", "10/1s")?;
//! let check = async || limiter.check([Charge::new(&policy, Key::new("ip", "203.0.113.7"), 1)]).await;
//!
//! limiter.block(&Key::new("ip", "203.0.113.7"), Duration::from_secs(3600)).await?;
//! assert!(matches!(check().await?, Decision::Blocked(_)));
//!
//! limiter.unblock(&Key::new("ip", "203.0.113.7")).await?;
//! assert!(check().await?.is_allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Blocks
//!
//! [`Limiter::block`](crate::Limiter::block) blocks an identity, [`unblock`](crate::Limiter::unblock) ends all its
//! blocks. The store keeps blocks: every replica enforces them from its next check on, and they outlast restarts of the
//! service; in Redis, as far as it saves its data. Of two blocks the later end holds. A block ends at exactly its time,
//! by the store's clock.
//!
//! Limiters enforce blocks [unless you switch it off](crate::Limiter::enforce_blocks). A check is blocked if one of the
//! keys that its charges count for is blocked; then nothing is charged at all. The middleware answers an operator's
//! block with a 403, and a ban with a 429 and `Retry-After`. [Shadows](crate::Policy::shadow) are not looked up.
//!
//! In Redis, checking for blocks adds one `GET` for each identity of a check, in the same call: 15 % server CPU to a
//! one-rule check and 9 % to a three-rule check. A store that keeps no blocks decides by its limits alone, and
//! `Limiter::block` is an error there.
//!
//! # Where blocks hold
//!
//! **A block holds only where a layer checks a key of that kind.** A block of `ip=203.0.113.7` denies nothing on a route
//! that is limited by API key alone, or not at all. To deny blocked addresses everywhere, put a layer with
//! [`deny_blocked`](crate::RateLimitLayer::deny_blocked) around the whole router: it looks the keys up, and limits
//! nothing.
//!
//! | arrangement | calls of the store for a request |
//! |---|---|
//! | one layer around everything, with `deny_blocked(PeerIp)` and the limits, those by route from [`Routes`](crate::middleware::Routes) | one |
//! | a layer with `deny_blocked(PeerIp)` alone, around layers with limits | one for each layer |
//! | no `deny_blocked`: each layer limits by a key of that kind | one for each layer |
//!
//! In one layer, a key that is both limited and looked up is read once. Where an outer layer looks up every key that
//! the inner ones limit, [`enforce_blocks(false)`](crate::RateLimitLayer::enforce_blocks) on the inner ones spares a
//! second look-up.
//!
//! # When the store cannot decide
//!
//! A block that this process knows holds on until it ends, whatever the [failure policy](crate::FailurePolicy): a 403
//! stays a 403 while Redis is down. A process knows the blocks that one of its limiters made, by `block` or by a ban,
//! and those that denied one of its checks. Clones of a limiter share what they know; other limiters do not. A process
//! forgets a block when you [`unblock`](crate::Limiter::unblock) the identity there, even if that call fails; and when
//! the store answers a later check of the identity without a block.
//!
//! - The end is measured by the monotonic clock of the process, from the time that was left by the store's; of a block
//!   until a [time](Until::At) that no check has met, from the process's clock.
//! - If `block` fails, the block may have been made, and the process does not know it until a check meets it: call
//!   `block` again.
//! - A block that was ended elsewhere during the outage holds here until the store answers again.
//! - At most 10 000 blocks are known. Then a quarter leaves: first bans, then operators' blocks, and of each those that
//!   end first.
//!
//! To all other identities the failure policy applies.
//!
//! # Bans
//!
//! A policy with a [`Ban`] counts a *strike* for each of its denials, and blocks who has had too many:
//!
//! ```
//! use sluicegate::{Policy, block::Ban};
//!
//! // Who is denied five times within ten minutes is blocked for an hour.
//! let ban: Ban = "5/10m=1h".parse()?;
//! let login = Policy::parse("login", "10/1m")?.ban(ban);
//! assert_eq!(login.banned_by().unwrap().to_string(), "5/10m=1h");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A ban is one of the identity, not of the policy: it denies whatever the identity asks, wherever its blocks are
//! looked up. A check with such a policy enforces the blocks of all its identities, whatever its limiter does. Strikes
//! belong to the identity, too: those under other policies with a ban whose strikes have the same window count as well,
//! and a denial by several of them is one strike. They are counted in the store by a task of its own, after the answer
//! to the request: so a burst can be denied a few times more before the ban holds. A ban begins with the denial that
//! was the last strike, forgets the strikes, and lasts exactly its time. What is denied by a block is no strike. Keys
//! on an [allow list](crate::RateLimitLayer::skip_keys) are never denied, and so never banned. A ban that is being made
//! while the identity is unblocked is not made, or is ended; strikes that are not counted yet count after that.
//!
//! To ban from one route alone, limit that route by keys of a kind of their own, such as
//! `Key::new("login-ip", PeerIp.key(address).value())`: no other policy charges them.
//!
//! Ban only by keys that a client cannot choose. Who may name another's key, such as the user of a login that has not
//! succeeded, can have that other banned; and a ban of an address is one of all who share it.
//!
//! At most 1024 identities wait for their strikes to be counted; those of others are dropped, as are strikes that the
//! store cannot count, and those outside of a tokio runtime.

use std::{
    error::Error,
    fmt,
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::rule::{DurationText, Rule, RuleError, millis, parse_duration};

/// What stands for a policy's name where blocks and strikes are kept: no policy can have such a name.
#[cfg(feature = "redis")]
pub(crate) const BLOCKS: &str = "!block";
pub(crate) const STRIKES: &str = "!strikes";
/// The policy of identities whose blocks are looked up; nothing is ever kept under it.
pub(crate) const LOOK_UPS: &str = "!look-ups";

/// In ms since the Unix epoch: a block that ends then is one for ever. What six bytes can hold.
const FOR_EVER_MS: u64 = (1 << 48) - 1;

/// Who made a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockedBy {
    /// Somebody, by [`Limiter::block`](crate::Limiter::block) or the tool.
    Operator,
    /// A policy's [`Ban`].
    Ban,
}

impl BlockedBy {
    /// As it is stored in Redis.
    #[cfg(feature = "redis")]
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Operator => 1,
            Self::Ban => 2,
        }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn of_code(code: u8) -> Option<Self> {
        [Self::Operator, Self::Ban]
            .into_iter()
            .find(|it| it.code() == code)
    }

    /// In one lower-case word: `operator`, `ban`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Ban => "ban",
        }
    }
}

/// Until when an identity is to be blocked. A `Duration` is [`After`](Self::After), a `SystemTime` is
/// [`At`](Self::At).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// From now on for so long, by the store's clock. Fractions of a millisecond are rounded up.
    After(Duration),
    /// Until this time, rounded up to milliseconds. One that has passed blocks nobody.
    At(SystemTime),
    /// Until it is unblocked.
    ForEver,
}

impl Until {
    /// How long it is until then, by the clock of this process; `None` if it is for ever.
    pub(crate) fn span(self) -> Option<Duration> {
        match self {
            Self::After(span) => Some(span),
            Self::At(time) => Some(time.duration_since(SystemTime::now()).unwrap_or_default()),
            Self::ForEver => None,
        }
    }

    /// The time in ms since the Unix epoch, or the span from now on in ms.
    pub(crate) fn ms(self) -> UntilMs {
        match self {
            Self::After(span) => UntilMs::After(ceil_millis(span).min(FOR_EVER_MS)),
            Self::At(time) => {
                let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
                UntilMs::At(ceil_millis(since).min(FOR_EVER_MS))
            }
            Self::ForEver => UntilMs::At(FOR_EVER_MS),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UntilMs {
    After(u64),
    At(u64),
}

impl From<Duration> for Until {
    fn from(span: Duration) -> Self {
        Self::After(span)
    }
}

impl From<SystemTime> for Until {
    fn from(time: SystemTime) -> Self {
        Self::At(time)
    }
}

fn ceil_millis(span: Duration) -> u64 {
    millis(span).saturating_add(u64::from(!span.subsec_nanos().is_multiple_of(1_000_000)))
}

/// A block: until when, and who made it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block {
    until_ms: u64,
    by: BlockedBy,
}

impl Block {
    /// For stores: a block until this time of the store, in ms since the Unix epoch; 2^48 - 1 or more is for ever.
    #[must_use]
    pub const fn new(until_ms: u64, by: BlockedBy) -> Self {
        let until_ms = if until_ms < FOR_EVER_MS {
            until_ms
        } else {
            FOR_EVER_MS
        };
        Self { until_ms, by }
    }

    /// For stores: the block that is asked for at this time of the store.
    pub(crate) fn begin(until: Until, by: BlockedBy, now_ms: u64) -> Self {
        let until_ms = match until.ms() {
            UntilMs::At(ms) => ms,
            UntilMs::After(ms) => now_ms.saturating_add(ms).min(FOR_EVER_MS),
        };
        Self { until_ms, by }
    }

    /// When it ends, in ms since the Unix epoch by the store's clock: the first at which a check can be admitted.
    /// `None` if it is for ever.
    #[must_use]
    pub const fn until_ms(&self) -> Option<u64> {
        match self.until_ms {
            FOR_EVER_MS.. => None,
            ms => Some(ms),
        }
    }

    /// When it ends, as it is stored: for ever is a time, too.
    #[cfg(feature = "bb8")]
    pub(crate) const fn stored_until_ms(self) -> u64 {
        self.until_ms
    }

    /// Who made it.
    #[must_use]
    pub const fn by(&self) -> BlockedBy {
        self.by
    }

    /// Whether it holds at this time of the store.
    pub(crate) const fn holds(&self, now_ms: u64) -> bool {
        self.until_ms > now_ms
    }

    /// The one that ends later; the first if both end at the same time.
    pub(crate) const fn or_later(self, other: Self) -> Self {
        if other.until_ms > self.until_ms {
            other
        } else {
            self
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.until_ms() {
            Some(ms) => write!(f, "Block({}, until {ms} ms)", self.by.as_str()),
            None => write!(f, "Block({}, for ever)", self.by.as_str()),
        }
    }
}

/// An identity that is blocked, as a store lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedIdentity {
    identity: Box<str>,
    block: Block,
}

impl BlockedIdentity {
    /// For stores: `identity` is the kind and the value, as they are stored.
    #[must_use]
    pub fn new(identity: impl Into<Box<str>>, block: Block) -> Self {
        Self {
            identity: identity.into(),
            block,
        }
    }

    /// Who is blocked: kind and value, such as `ip=203.0.113.7`; or `#` and a hash where the value is a secret, long or
    /// strange: what it was cannot be told.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The block.
    #[must_use]
    pub const fn block(&self) -> Block {
        self.block
    }
}

/// A block that is made by itself: who is denied as often as a rule says is blocked for a time. In text:
/// `5/10m=1h`, for five denials within ten minutes, and an hour.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ban {
    strikes: Rule,
    time: Duration,
}

impl Ban {
    /// Creates a ban for this time, in whole milliseconds, after as many denials as the limit of `strikes` within its
    /// window.
    ///
    /// # Errors
    ///
    /// When the rule is not valid or a bucket, when its limit is 0, or when the time is zero, longer than ten years, or
    /// has a fraction of a millisecond.
    pub fn new(strikes: Rule, time: Duration) -> Result<Self, BanError> {
        strikes.validate().map_err(BanError::Strikes)?;
        if strikes.limit() == 0 {
            return Err(BanError::NoStrikes);
        }
        if strikes.refill().is_some() {
            return Err(BanError::Bucket);
        }
        let is_whole = time.subsec_nanos().is_multiple_of(1_000_000);
        if time.is_zero() || time > LONGEST || !is_whole {
            return Err(BanError::Time);
        }
        Ok(Self { strikes, time })
    }

    /// How many denials in which window.
    #[must_use]
    pub const fn strikes(&self) -> Rule {
        self.strikes
    }

    /// For how long.
    #[must_use]
    pub const fn time(&self) -> Duration {
        self.time
    }
}

const LONGEST: Duration = Duration::from_secs(3650 * 86_400);

impl FromStr for Ban {
    type Err = BanError;

    fn from_str(text: &str) -> Result<Self, BanError> {
        let (strikes, time) = text.split_once('=').ok_or(BanError::Form)?;
        Self::from_parts(strikes, time)
    }
}

impl Ban {
    /// From the text of a rule and of a time.
    pub(crate) fn from_parts(strikes: &str, time: &str) -> Result<Self, BanError> {
        let strikes = strikes.parse().map_err(BanError::Strikes)?;
        Self::new(strikes, parse_duration(time).ok_or(BanError::Time)?)
    }

    /// The time as text: `1h`.
    pub(crate) fn time_text(&self) -> String {
        DurationText(self.time).to_string()
    }
}

impl fmt::Display for Ban {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.strikes, self.time_text())
    }
}

impl fmt::Debug for Ban {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ban({self})")
    }
}

/// Why a [`Ban`] could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BanError {
    /// It is not written as a rule, `=` and a time.
    Form,
    /// The rule that counts denials is not valid.
    Strikes(RuleError),
    /// The rule has a limit of 0: everybody would be blocked before being denied.
    NoStrikes,
    /// The rule is a bucket: denials are counted in a window.
    Bucket,
    /// The time is not one, is zero or longer than ten years, or has a fraction of a millisecond.
    Time,
}

impl fmt::Display for BanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form => f.write_str("write a ban as STRIKES/WINDOW=TIME, such as `5/10m=1h`"),
            Self::Strikes(error) => write!(f, "strikes: {error}"),
            Self::NoStrikes => f.write_str("a ban needs at least one strike"),
            Self::Bucket => f.write_str("strikes are counted in a window: write no bucket"),
            Self::Time => f.write_str(
                "the time of a ban is a number and a unit, such as `1h`: at least 1ms, at most 3650d",
            ),
        }
    }
}

// The rule's error is part of the message, so it is not repeated as a source.
impl Error for BanError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bans_are_read_and_written_back_and_bad_ones_are_named() {
        for text in ["5/10m=1h", "1/1s@exact=1d", "100/1h@30s=90s"] {
            assert_eq!(text.parse::<Ban>().unwrap().to_string(), text);
        }
        for (text, expected) in [
            ("5/10m", "write a ban as"),
            ("5+1/10m@bucket=1h", "strikes are counted in a window"),
            ("5=1h", "strikes: rule `5`: write it as"),
            ("0/10m=1h", "a ban needs at least one strike"),
            ("5/10m=", "the time of a ban"),
            ("5/10m=0s", "the time of a ban"),
            ("5/10m=3651d", "the time of a ban"),
            ("5/10m=forever", "the time of a ban"),
        ] {
            let error = text.parse::<Ban>().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        let fraction = Duration::from_micros(1_500);
        assert_eq!(Ban::new(Rule::per_minute(1), fraction), Err(BanError::Time));
    }

    #[test]
    fn times_are_rounded_up_and_never_overflow() {
        assert_eq!(Until::from(Duration::from_nanos(1)).ms(), UntilMs::After(1));
        assert_eq!(
            Until::from(UNIX_EPOCH + Duration::from_micros(1_001)).ms(),
            UntilMs::At(2)
        );
        assert_eq!(
            Until::from(UNIX_EPOCH - Duration::from_secs(1)).ms(),
            UntilMs::At(0)
        );
        let longest = Block::begin(Until::After(Duration::MAX), BlockedBy::Operator, 5);
        assert_eq!(longest.until_ms(), None);
        assert_eq!(
            Block::begin(Until::ForEver, BlockedBy::Operator, 5),
            longest
        );
        assert!(longest.holds(u64::MAX >> 17));
    }
}
