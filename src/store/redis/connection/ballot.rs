//! [`Ballot`]: the addresses that sentinels name.

use std::collections::BTreeMap;

/// A host and a port.
pub(super) type Address = (String, u16);

/// Counts the sentinels that name each address.
pub(super) struct Ballot {
    voters: usize,
    /// How many name an address, and whether it was tried.
    named: BTreeMap<Address, (usize, bool)>,
}

impl Ballot {
    pub(super) fn new(voters: usize) -> Self {
        Self {
            voters,
            named: BTreeMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    pub(super) fn add(&mut self, address: Address) {
        self.named.entry(address).or_default().0 += 1;
    }

    /// The next address to try: the address that most sentinels name, or, when all have answered, the one named most
    /// often.
    pub(super) fn next(&mut self, all_answered: bool) -> Option<Address> {
        let rest = self.named.iter_mut().filter(|(_, (_, tried))| !tried);
        let (address, (votes, tried)) = rest.max_by_key(|(_, (votes, _))| *votes)?;
        *tried = all_answered || 2 * *votes > self.voters;
        tried.then(|| address.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: &str) -> Address {
        (host.into(), 6379)
    }

    #[test]
    fn what_most_name_is_tried_at_once_and_the_others_when_all_have_answered() {
        let mut ballot = Ballot::new(5);
        for host in ["old", "new", "new"] {
            ballot.add(address(host));
        }
        assert_eq!(ballot.next(false), None);
        ballot.add(address("new"));
        assert_eq!(ballot.next(false), Some(address("new")));
        ballot.add(address("new"));
        assert_eq!(ballot.next(false), None);
        assert_eq!(ballot.next(true), Some(address("old")));
        assert_eq!(ballot.next(true), None);
    }
}
