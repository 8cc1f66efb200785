//! The users: the identity of each check.

use fastrand::Rng;

/// The number of identities, without attackers.
pub(crate) const IDENTITIES: u32 = 100_000;
/// Attackers have the numbers behind the others, and have used up their limit.
const ATTACKERS: u32 = 100;
/// The share of attackers' requests.
const ATTACK_SHARE: f64 = 0.9;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Users {
    /// All identities are equally likely.
    Random,
    /// By Zipf's law, exponent 1: the second is half as likely as the first.
    Zipf,
    /// Random identities, and nine times as many requests of 100 attackers that are all denied.
    Attack,
    /// A single identity.
    One,
}

pub(crate) struct Traffic {
    users: Users,
    /// The probability of an identity with at most this number.
    shares: Vec<f64>,
}

impl Traffic {
    pub(crate) fn new(users: Users) -> Self {
        let shares = if users == Users::Zipf {
            zipf()
        } else {
            Vec::new()
        };
        Self { users, shares }
    }

    pub(crate) fn draw(&self, random: &mut Rng) -> u32 {
        match self.users {
            Users::One => 0,
            Users::Random => random.u32(..IDENTITIES),
            Users::Attack if random.f64() < ATTACK_SHARE => IDENTITIES + random.u32(..ATTACKERS),
            Users::Attack => random.u32(..IDENTITIES),
            Users::Zipf => {
                let drawn = random.f64();
                let place = self.shares.partition_point(|share| *share < drawn);
                u32::try_from(place).map_or(0, |place| place.min(IDENTITIES - 1))
            }
        }
    }
}

pub(crate) const fn is_attacker(identity: u32) -> bool {
    identity >= IDENTITIES
}

fn zipf() -> Vec<f64> {
    let weights = (1..=IDENTITIES).map(|rank| 1.0 / f64::from(rank));
    let sum: f64 = weights.clone().sum();
    let mut share = 0.0;
    let shares = weights.map(|weight| {
        share += weight / sum;
        share
    });
    shares.collect()
}

/// The server that has the counts of an identity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Placement {
    /// The server with the highest hash of both. Checks for a server share calls.
    Rendezvous,
    /// One of 16 384 slots, with the same number on each server. Checks for a slot share calls.
    Cluster,
}

const SLOTS: u64 = 16_384;

/// The line in which checks of an identity wait, and the server of that line.
pub(crate) fn place(placement: Placement, servers: usize, identity: u32) -> (usize, usize) {
    match placement {
        Placement::Rendezvous => {
            let hash = |server: &usize| mix(u64::from(identity) << 16 | *server as u64);
            let server = (0..servers).max_by_key(hash).unwrap_or(0);
            (server, server)
        }
        Placement::Cluster => {
            let slot = usize::try_from(mix(u64::from(identity)) % SLOTS).unwrap_or(0);
            (slot, slot * servers / 16_384)
        }
    }
}

/// The finalizer of splitmix64.
const fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
