//! [`Queue`]: orders jobs that change the same keys. This module knows nothing of Redis or of runtimes.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The maximum number of jobs in a group.
const MOST: usize = 1_024;

/// Jobs about some identities. No two groups under way share an identity, which is a hash here.
///
/// Jobs that wait for the same identity run in one group as soon as the identity is free, first come, first served.
pub(super) struct Queue<J> {
    state: Mutex<State<J>>,
}

struct State<J> {
    /// One line for each identity that a group under way has or a job waits for.
    lines: HashMap<u64, Line>,
    /// Keyed by ticket: an older ticket is smaller.
    waiting: HashMap<u64, Waiting<J>>,
    next_ticket: u64,
    next_group: u64,
}

#[derive(Default)]
struct Line {
    /// The number of the group that has the identity.
    group: Option<u64>,
    /// Oldest first. The ticket of a job that waits no more stays until it is the first.
    tickets: VecDeque<u64>,
}

struct Waiting<J> {
    identities: Vec<u64>,
    job: J,
}

/// Jobs that run together.
pub(super) struct Group<J> {
    pub(super) identities: Vec<u64>,
    pub(super) jobs: Vec<J>,
}

impl<J> Queue<J> {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                lines: HashMap::new(),
                waiting: HashMap::new(),
                next_ticket: 0,
                next_group: 0,
            }),
        }
    }

    /// Returns a group with the job if its identities are free. Otherwise the job waits for them.
    pub(super) fn enter(&self, mut identities: Vec<u64>, job: J) -> Option<Group<J>> {
        identities.sort_unstable();
        identities.dedup();
        let mut state = self.lock();
        // A line exists while a group or a waiting job has the identity, so a new job cannot overtake a waiting one.
        if !identities
            .iter()
            .any(|identity| state.lines.contains_key(identity))
        {
            let number = state.next_group;
            state.next_group += 1;
            state.serve(&identities, Some(number));
            return Some(Group {
                identities,
                jobs: vec![job],
            });
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        for identity in &identities {
            let line = state.lines.entry(*identity).or_default();
            line.tickets.push_back(ticket);
        }
        state.waiting.insert(ticket, Waiting { identities, job });
        None
    }

    /// Ends the group of these identities, and returns the groups that begin now.
    ///
    /// Drops the jobs for which `has_left` is true.
    pub(super) fn end(&self, identities: Vec<u64>, has_left: impl Fn(&J) -> bool) -> Vec<Group<J>> {
        self.lock().give_to_next(identities, has_left)
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J> State<J> {
    /// Frees these identities, and begins the groups that have waited for them.
    fn give_to_next(
        &mut self,
        identities: Vec<u64>,
        has_left: impl Fn(&J) -> bool,
    ) -> Vec<Group<J>> {
        self.serve(&identities, None);
        let mut groups: Vec<Group<J>> = Vec::new();
        // Identities with a changed line: the first job in each may begin.
        let mut changed = identities;
        while let Some(identity) = changed.pop() {
            let Some((ticket, waiting)) = self.take_first(identity, groups.len()) else {
                continue;
            };
            if has_left(&waiting.job) {
                changed.extend(waiting.identities);
                continue;
            }
            let Some(place) = self.place(ticket, &waiting, &groups) else {
                self.waiting.insert(ticket, waiting);
                continue;
            };
            if place == groups.len() {
                groups.push(Group {
                    identities: Vec::new(),
                    jobs: Vec::new(),
                });
            }
            let is_free = |identity: &&u64| {
                let line = self.lines.get(*identity);
                line.is_none_or(|line| line.group.is_none())
            };
            let free = waiting.identities.iter().filter(is_free);
            groups[place].identities.extend(free);
            groups[place].jobs.push(waiting.job);
            self.serve(&waiting.identities, Some(self.next_group + place as u64));
            changed.extend(waiting.identities);
        }
        self.next_group += groups.len() as u64;
        groups
    }

    fn serve(&mut self, identities: &[u64], group: Option<u64>) {
        for identity in identities {
            self.lines.entry(*identity).or_default().group = group;
        }
    }

    /// Removes the first job of a line from the waiting jobs; its ticket stays. A line of a group under way has none,
    /// unless the group is one of the `begun` that are about to begin. Removes an empty line.
    fn take_first(&mut self, identity: u64, begun: usize) -> Option<(u64, Waiting<J>)> {
        let line = self.lines.get_mut(&identity)?;
        // Jobs leave in any order, so their tickets are removed only here, when they are the first.
        while line
            .tickets
            .front()
            .is_some_and(|ticket| !self.waiting.contains_key(ticket))
        {
            line.tickets.pop_front();
        }
        if let Some(group) = line.group
            && place_of(group, self.next_group) >= begun
        {
            return None;
        }
        let ticket = line.tickets.front().copied();
        if line.group.is_none() && ticket.is_none() {
            self.lines.remove(&identity);
        }
        let waiting = self.waiting.remove(&ticket?)?;
        Some((ticket?, waiting))
    }

    /// The index of the group that the job joins: one of `groups`, or the next one. `None` if the job has to wait.
    fn place(&self, ticket: u64, waiting: &Waiting<J>, groups: &[Group<J>]) -> Option<usize> {
        let new = groups.len();
        let mut place = new;
        // The job must be the first in every line, and all lines free or of the group that it joins.
        for identity in &waiting.identities {
            let line = self.lines.get(identity)?;
            if line.tickets.front() != Some(&ticket) {
                return None;
            }
            if let Some(other) = line.group.map(|number| place_of(number, self.next_group)) {
                if place != new && place != other {
                    return None;
                }
                place = other;
            }
        }
        let fits = match groups.get(place) {
            Some(group) => group.jobs.len() < MOST,
            None => place == new,
        };
        fits.then_some(place)
    }
}

/// The index of a group among those that are about to begin, whose first number is `first`. Out of range for a group
/// under way.
fn place_of(group: u64, first: u64) -> usize {
    usize::try_from(group.wrapping_sub(first)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    type Names = Queue<&'static str>;
    type Groups = Vec<(Vec<u64>, Vec<&'static str>)>;

    fn enter(queue: &Names, identities: &[u64], job: &'static str) -> bool {
        queue.enter(identities.to_vec(), job).is_some()
    }

    /// The groups that begin when a group about these identities ends.
    fn end(queue: &Names, identities: &[u64]) -> Groups {
        let state = queue.lock();
        let group_of = |identity: &u64| state.lines[identity].group;
        assert!(identities.iter().all(|it| group_of(it).is_some()));
        drop(state);
        named(queue.end(identities.to_vec(), |_| false))
    }

    fn named(groups: Vec<Group<&'static str>>) -> Groups {
        let groups = groups.into_iter().map(|mut group| {
            group.identities.sort_unstable();
            (group.identities, group.jobs)
        });
        let mut groups: Vec<_> = groups.collect();
        groups.sort();
        groups
    }

    #[test]
    fn jobs_about_other_identities_begin_at_once_and_those_about_the_same_wait_and_go_together() {
        let queue = Queue::new();
        assert!(enter(&queue, &[1], "a"));
        assert!(enter(&queue, &[2, 2], "b"));
        for job in ["c", "d", "e"] {
            assert!(!enter(&queue, &[1], job));
        }
        assert_eq!(end(&queue, &[2]), []);
        assert_eq!(end(&queue, &[1]), [(vec![1], vec!["c", "d", "e"])]);
        assert!(!enter(&queue, &[1], "f"));
        assert!(enter(&queue, &[2], "g"));
    }

    #[test]
    fn jobs_that_share_no_identity_are_never_done_together() {
        let queue = Queue::new();
        assert!(enter(&queue, &[1, 2], "a"));
        assert!(!enter(&queue, &[1], "b"));
        assert!(!enter(&queue, &[2], "c"));
        let apart = [(vec![1], vec!["b"]), (vec![2], vec!["c"])];
        assert_eq!(end(&queue, &[1, 2]), apart);
    }

    #[test]
    fn nobody_overtakes_who_waits_for_an_identity_of_theirs() {
        let queue = Queue::new();
        assert!(enter(&queue, &[1], "a"));
        assert!(enter(&queue, &[2], "b"));
        assert!(!enter(&queue, &[1, 2, 3], "all"));
        assert!(!enter(&queue, &[3], "c"), "it would be overtaken");
        assert_eq!(end(&queue, &[1]), []);
        assert!(!enter(&queue, &[1], "d"));
        let mut begun = end(&queue, &[2]);
        begun[0].1[1..].sort_unstable();
        assert_eq!(begun, [(vec![1, 2, 3], vec!["all", "c", "d"])]);
    }

    #[test]
    fn a_group_ends_where_the_next_needs_another_identity_that_is_not_free() {
        let queue = Queue::new();
        assert!(enter(&queue, &[1], "a"));
        assert!(enter(&queue, &[2], "b"));
        assert!(!enter(&queue, &[1], "c"));
        assert!(!enter(&queue, &[1, 2], "both"));
        assert!(!enter(&queue, &[1], "d"));
        assert_eq!(end(&queue, &[1]), [(vec![1], vec!["c"])]);
        assert_eq!(end(&queue, &[2]), []);
        assert_eq!(end(&queue, &[1]), [(vec![1, 2], vec!["both", "d"])]);
        assert_eq!(end(&queue, &[1, 2]), []);
        assert!(queue.lock().lines.is_empty());
    }

    #[test]
    fn who_has_left_is_forgotten_and_who_waited_behind_it_begins() {
        let queue = Queue::new();
        assert!(enter(&queue, &[1], "a"));
        assert!(!enter(&queue, &[1, 2], "gone"));
        assert!(!enter(&queue, &[2], "b"));
        let begun = queue.end(vec![1], |job| *job == "gone");
        assert_eq!(named(begun), [(vec![2], vec!["b"])]);
        assert!(enter(&queue, &[1], "c"));
        assert_eq!(end(&queue, &[1]), []);
        assert_eq!(end(&queue, &[2]), []);
        assert!(queue.lock().lines.is_empty());
        assert!(queue.lock().waiting.is_empty());
    }

    #[test]
    fn a_group_is_bounded_and_the_rest_goes_with_the_next() {
        let queue = Queue::new();
        assert!(enter(&queue, &[1], "a"));
        for _ in 0..=MOST {
            assert!(!enter(&queue, &[1], "b"));
        }
        assert_eq!(end(&queue, &[1])[0].1.len(), MOST);
        assert_eq!(end(&queue, &[1])[0].1.len(), 1);
    }

    #[derive(Clone, Debug)]
    enum Act {
        Enter(Vec<u64>),
        /// Picks a waiting job.
        Leave(prop::sample::Index),
        /// Picks a group under way.
        End(prop::sample::Index),
    }

    fn acts() -> impl Strategy<Value = Act> {
        prop_oneof![
            4 => vec(0..5_u64, 0..4).prop_map(Act::Enter),
            1 => any::<prop::sample::Index>().prop_map(Act::Leave),
            3 => any::<prop::sample::Index>().prop_map(Act::End),
        ]
    }

    /// Jobs are numbers, in order of arrival.
    #[derive(Default)]
    struct Model {
        jobs: Vec<Vec<u64>>,
        waiting: Vec<usize>,
        left: HashSet<usize>,
        under_way: Vec<Group<usize>>,
        begun: Vec<usize>,
    }

    impl Model {
        fn meet(&self, job: usize, other: usize) -> bool {
            self.jobs[job]
                .iter()
                .any(|identity| self.jobs[other].contains(identity))
        }

        fn begin(&mut self, group: Group<usize>) {
            let of_all = group.jobs.iter().flat_map(|job| &self.jobs[*job]);
            let [all, named]: [HashSet<u64>; 2] = [
                of_all.copied().collect(),
                group.identities.iter().copied().collect(),
            ];
            assert_eq!(all, named);
            for job in &group.jobs {
                self.waiting.retain(|waiting| waiting != job);
            }
            let mut older = self.waiting.iter().filter(|job| **job < group.jobs[0]);
            let meets = |job: &usize| !self.left.contains(job) && self.meet(*job, group.jobs[0]);
            assert!(!older.any(meets), "whoever begins a group is the oldest");
            for older in &self.begun {
                let mut jobs = group.jobs.iter();
                assert!(
                    !jobs.any(|job| job < older && self.meet(*job, *older)),
                    "overtaken"
                );
            }
            self.begun.extend(&group.jobs);
            self.under_way.push(group);
        }

        fn end(&mut self, queue: &Queue<usize>, place: usize) {
            let ended = self.under_way.swap_remove(place);
            for group in queue.end(ended.identities, |job| self.left.contains(job)) {
                self.begin(group);
            }
        }

        fn assert_none_waits_in_vain(&self) {
            let under_way = self.under_way.iter().flat_map(|group| &group.identities);
            let busy: Vec<u64> = under_way.copied().collect();
            let distinct: HashSet<u64> = busy.iter().copied().collect();
            assert_eq!(distinct.len(), busy.len(), "two groups share an identity");
            for (place, job) in self.waiting.iter().enumerate() {
                let is_busy = self.jobs[*job]
                    .iter()
                    .any(|identity| busy.contains(identity));
                let mut older = self.waiting[..place].iter();
                assert!(
                    is_busy
                        || self.left.contains(job)
                        || older.any(|older| self.meet(*older, *job))
                );
            }
        }
    }

    proptest! {
        #[test]
        fn no_two_groups_share_an_identity_and_all_have_their_turn(acts in vec(acts(), 1..80)) {
            let (queue, mut model) = (Queue::new(), Model::default());
            for act in acts {
                match act {
                    Act::Enter(identities) => {
                        let job = model.jobs.len();
                        model.jobs.push(identities.clone());
                        match queue.enter(identities, job) {
                            Some(group) => model.begin(group),
                            None => model.waiting.push(job),
                        }
                    }
                    Act::Leave(place) if !model.waiting.is_empty() => {
                        model.left.insert(*place.get(&model.waiting));
                    }
                    Act::End(place) if !model.under_way.is_empty() => {
                        model.end(&queue, place.index(model.under_way.len()));
                    }
                    Act::Leave(_) | Act::End(_) => {}
                }
                model.assert_none_waits_in_vain();
            }
            while !model.under_way.is_empty() {
                model.end(&queue, 0);
            }
            prop_assert!(model.waiting.iter().all(|job| model.left.contains(job)));
            prop_assert!(queue.lock().lines.is_empty() && queue.lock().waiting.is_empty());
        }
    }
}
