//! [`Sign`]: what the values of a field look like, for the notes beside a verdict.

use sluicegate::Key;

use crate::text::{grouped, identity};

/// Fewer requests say nothing about the others.
const FEW: u64 = 5;

#[derive(Default)]
pub(super) struct Sign {
    keyed: u64,
    /// The number of odd values, the first of them, and its oddity.
    odd: u64,
    example: Option<(Key, &'static str)>,
    /// The values that were a list of several addresses, without trusted proxies.
    pub(super) lists: u64,
    /// A value that has more lines than all others together, if there is one, and by how many.
    lead: Option<Key>,
    ahead: u64,
}

impl Sign {
    pub(super) fn count(&mut self, key: &Key, oddity: Option<&'static str>) {
        self.keyed += 1;
        if let Some(oddity) = oddity {
            self.odd += 1;
            self.example.get_or_insert_with(|| (key.clone(), oddity));
        }
        match &self.lead {
            Some(lead) if lead == key => self.ahead += 1,
            Some(_) if self.ahead > 0 => self.ahead -= 1,
            _ => (self.lead, self.ahead) = (Some(key.clone()), 1),
        }
    }

    /// Facts to know about a field before you trust a verdict.
    pub(super) fn notes(&self, field: &str) -> Vec<String> {
        let mut notes = Vec::new();
        if self.lists > 0 {
            notes.push(format!(
                "{} lines have several addresses: the last, the peer, was taken for the client; to find clients behind \
                 your proxies, add --trusted-proxies CIDR,…",
                grouped(self.lists)
            ));
        }
        if let Some((key, oddity)) = self.example.as_ref().filter(|_| self.odd * 2 > self.keyed) {
            let key = identity(key);
            notes.push(format!(
                "most values of `{field}` {oddity}, such as {key}: is this the right field?"
            ));
        }
        let is_client = !["method", "path", "status", "referer", "agent"].contains(&field);
        let is_most = is_client && self.keyed >= FEW && self.ahead * 10 >= self.keyed * 8;
        if let Some(lead) = self.lead.as_ref().filter(|_| is_most) {
            let lead = identity(lead);
            notes.push(format!("{lead} has nearly all lines: is it a proxy?"));
        }
        notes
    }
}
