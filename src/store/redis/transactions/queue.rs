//! [`Queue`]: orders jobs that change the same keys. This module knows nothing of Redis or of runtimes.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// The maximum number of jobs in a group.
const MOST: usize = 1_024;

/// Jobs of some kinds `K`, each about some identities. No two groups under way share an identity, which is a hash here.
///
/// Jobs of one kind that wait for the same identity run in one group as soon as the identity is free, first come, first
/// served. A job overtakes another that waits for a shared identity only by joining a group of its kind past a job of
/// another kind.
///
/// A group of a kind that stands still never ends, so its identities can be [taken over](Self::take_over) once the
/// group is old. Two groups that share an identity then only disturb each other.
pub(super) struct Queue<J, K> {
    state: Mutex<State<J, K>>,
}

struct State<J, K> {
    /// One line for each identity that a group under way has or a job waits for.
    lines: HashMap<u64, Line<K>>,
    /// Keyed by ticket: an older ticket is smaller.
    waiting: HashMap<u64, Waiting<J, K>>,
    next_ticket: u64,
    under_way: HashMap<u64, UnderWay<K>>,
    next_group: u64,
}

struct UnderWay<K> {
    since: Instant,
    identities: Vec<u64>,
    kind: K,
}

struct Line<K> {
    /// The number of the group that has the identity.
    group: Option<u64>,
    /// Tickets of each kind, oldest first. The ticket of a job that waits no more stays until it is the first.
    tickets: Vec<(K, VecDeque<u64>)>,
}

struct Waiting<J, K> {
    identities: Vec<u64>,
    job: J,
    kind: K,
}

/// Jobs that run together.
pub(super) struct Group<J, K> {
    pub(super) number: u64,
    identities: Vec<u64>,
    pub(super) jobs: Vec<J>,
    kind: K,
}

impl<J, K: Copy + Eq> Queue<J, K> {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                lines: HashMap::new(),
                waiting: HashMap::new(),
                next_ticket: 0,
                under_way: HashMap::new(),
                next_group: 0,
            }),
        }
    }

    /// Returns a group with the job if its identities are free. Otherwise the job waits for them.
    pub(super) fn enter(&self, mut identities: Vec<u64>, kind: K, job: J) -> Option<Group<J, K>> {
        identities.sort_unstable();
        identities.dedup();
        let mut state = self.lock();
        // A line exists while a group or a waiting job has the identity, so a new job cannot overtake a waiting one.
        if !identities
            .iter()
            .any(|identity| state.lines.contains_key(identity))
        {
            let number = state.next_group;
            let group = Group {
                number,
                identities,
                jobs: vec![job],
                kind,
            };
            state.serve(&group.identities, Some(number));
            state.begin(&group);
            return Some(group);
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        for identity in &identities {
            state.line(*identity).push(kind, ticket);
        }
        let waiting = Waiting {
            identities,
            job,
            kind,
        };
        state.waiting.insert(ticket, waiting);
        None
    }

    /// Ends a group, and returns the groups that begin now.
    ///
    /// Drops the jobs for which `has_left` is true.
    pub(super) fn end(&self, number: u64, has_left: impl Fn(&J) -> bool) -> Vec<Group<J, K>> {
        let mut state = self.lock();
        match state.under_way.remove(&number) {
            Some(ended) => state.give_to_next(ended.identities, |job, _| has_left(job)),
            // The identities of this group were taken over.
            None => Vec::new(),
        }
    }

    /// Gives up the groups that have held one of these identities for at least `after`, and returns the groups that
    /// begin now.
    ///
    /// Drops the jobs of the same kinds that wait for these identities, which would stand still as well.
    pub(super) fn take_over(
        &self,
        identities: &[u64],
        after: Duration,
        has_left: impl Fn(&J) -> bool,
    ) -> Vec<Group<J, K>> {
        let mut state = self.lock();
        let (mut freed, mut kinds) = (Vec::new(), Vec::new());
        for identity in identities {
            let group = state.lines.get(identity).and_then(|line| line.group);
            let Some(number) = group else { continue };
            let is_old = |group: &mut UnderWay<K>| group.since.elapsed() >= after;
            if state.under_way.get_mut(&number).is_some_and(is_old)
                && let Some(old) = state.under_way.remove(&number)
            {
                freed.extend(old.identities);
                kinds.push(old.kind);
            }
        }
        state.give_to_next(freed, |job, kind| has_left(job) || kinds.contains(&kind))
    }

    fn lock(&self) -> MutexGuard<'_, State<J, K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J, K: Copy + Eq> State<J, K> {
    /// Frees these identities, and begins the groups that have waited for them.
    fn give_to_next(
        &mut self,
        identities: Vec<u64>,
        is_dropped: impl Fn(&J, K) -> bool,
    ) -> Vec<Group<J, K>> {
        self.serve(&identities, None);
        let mut groups: Vec<Group<J, K>> = Vec::new();
        // Identities with a changed line: the first job in each may begin.
        let mut changed = identities;
        while let Some(identity) = changed.pop() {
            let Some((ticket, waiting)) = self.take_first(identity, &groups) else {
                continue;
            };
            if is_dropped(&waiting.job, waiting.kind) {
                changed.extend(waiting.identities);
                continue;
            }
            let Some(place) = self.place(ticket, &waiting, &groups) else {
                self.waiting.insert(ticket, waiting);
                continue;
            };
            if place == groups.len() {
                groups.push(Group {
                    number: self.next_group + place as u64,
                    identities: Vec::new(),
                    jobs: Vec::new(),
                    kind: waiting.kind,
                });
            }
            let is_free = |identity: &&u64| {
                let line = self.lines.get(*identity);
                line.is_none_or(|line| line.group.is_none())
            };
            let free = waiting.identities.iter().filter(is_free);
            groups[place].identities.extend(free);
            groups[place].jobs.push(waiting.job);
            self.serve(&waiting.identities, Some(groups[place].number));
            changed.extend(waiting.identities);
        }
        for group in &groups {
            self.begin(group);
        }
        groups
    }

    fn begin(&mut self, group: &Group<J, K>) {
        let under_way = UnderWay {
            since: Instant::now(),
            identities: group.identities.clone(),
            kind: group.kind,
        };
        self.under_way.insert(group.number, under_way);
        self.next_group = group.number + 1;
    }

    fn line(&mut self, identity: u64) -> &mut Line<K> {
        self.lines.entry(identity).or_insert_with(|| Line {
            group: None,
            tickets: Vec::new(),
        })
    }

    fn serve(&mut self, identities: &[u64], group: Option<u64>) {
        for identity in identities {
            self.line(*identity).group = group;
        }
    }

    /// Removes the first job of a line from the waiting jobs; its ticket stays. If one of `groups` has the line, this
    /// takes the first job of the group's kind. Removes an empty line.
    fn take_first(
        &mut self,
        identity: u64,
        groups: &[Group<J, K>],
    ) -> Option<(u64, Waiting<J, K>)> {
        let line = self.lines.get_mut(&identity)?;
        // Jobs leave in any order, so their tickets are removed only here, when they are the first.
        for (_, tickets) in &mut line.tickets {
            while tickets
                .front()
                .is_some_and(|ticket| !self.waiting.contains_key(ticket))
            {
                tickets.pop_front();
            }
        }
        line.tickets.retain(|(_, tickets)| !tickets.is_empty());
        let ticket = match line.group {
            Some(number) => line.first_of(groups.get(place_of(number, self.next_group))?.kind),
            None => line.first(),
        };
        if line.group.is_none() && ticket.is_none() {
            self.lines.remove(&identity);
        }
        let waiting = self.waiting.remove(&ticket?)?;
        Some((ticket?, waiting))
    }

    /// The index of the group that the job joins: one of `groups`, or the next one. `None` if the job has to wait.
    fn place(&self, ticket: u64, waiting: &Waiting<J, K>, groups: &[Group<J, K>]) -> Option<usize> {
        let new = groups.len();
        let mut place = new;
        // The job must be the first in every line, or the first of its kind in the lines of the group that it joins.
        for identity in &waiting.identities {
            let line = self.lines.get(identity)?;
            let first = match line.group.map(|number| place_of(number, self.next_group)) {
                Some(other) if place == new || place == other => {
                    place = other;
                    line.first_of(waiting.kind)
                }
                Some(_) => None,
                None => line.first(),
            };
            if first != Some(ticket) {
                return None;
            }
        }
        let fits = match groups.get(place) {
            Some(group) => group.kind == waiting.kind && group.jobs.len() < MOST,
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

impl<K: Copy + Eq> Line<K> {
    fn push(&mut self, kind: K, ticket: u64) {
        match self.tickets.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, tickets)) => tickets.push_back(ticket),
            None => self.tickets.push((kind, VecDeque::from([ticket]))),
        }
    }

    fn first(&self) -> Option<u64> {
        let firsts = self
            .tickets
            .iter()
            .filter_map(|(_, tickets)| tickets.front());
        firsts.min().copied()
    }

    fn first_of(&self, kind: K) -> Option<u64> {
        let (_, tickets) = self.tickets.iter().find(|(known, _)| *known == kind)?;
        tickets.front().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    type Names = Queue<&'static str, u8>;
    type Groups = Vec<(Vec<u64>, Vec<&'static str>)>;

    fn enter(queue: &Names, identities: &[u64], job: &'static str) -> bool {
        queue.enter(identities.to_vec(), 0, job).is_some()
    }

    /// The groups that begin when a group about these identities ends.
    fn end(queue: &Names, identities: &[u64]) -> Groups {
        named(queue.end(number(queue, identities), |_| false))
    }

    fn number(queue: &Names, identities: &[u64]) -> u64 {
        let state = queue.lock();
        let mut groups = state.under_way.iter();
        let is_asked = |group: &UnderWay<u8>| {
            group.identities.len() == identities.len()
                && identities.iter().all(|id| group.identities.contains(id))
        };
        *groups.find(|(_, group)| is_asked(group)).unwrap().0
    }

    fn named(groups: Vec<Group<&'static str, u8>>) -> Groups {
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
    fn a_group_is_of_one_kind_and_each_kind_has_its_turn() {
        let queue = Queue::new();
        assert!(enter(&queue, &[1], "a"));
        for (kind, job) in [(0, "b"), (1, "c"), (0, "d"), (1, "e"), (2, "f"), (0, "g")] {
            assert!(queue.enter(vec![1], kind, job).is_none());
        }
        assert_eq!(end(&queue, &[1]), [(vec![1], vec!["b", "d", "g"])]);
        assert!(!enter(&queue, &[1], "late"));
        assert_eq!(end(&queue, &[1]), [(vec![1], vec!["c", "e"])]);
        assert_eq!(end(&queue, &[1]), [(vec![1], vec!["f"])]);
        assert_eq!(end(&queue, &[1]), [(vec![1], vec!["late"])]);
    }

    #[test]
    fn a_group_passes_another_kind_only_where_it_has_begun() {
        let queue = Queue::new();
        assert!(enter(&queue, &[1], "a"));
        assert!(enter(&queue, &[2], "b"));
        assert!(queue.enter(vec![2], 1, "other").is_none());
        assert!(!enter(&queue, &[1], "c"));
        assert!(!enter(&queue, &[1, 2], "both"));
        let apart = [(vec![1], vec!["c"]), (vec![2], vec!["other"])];
        assert_eq!(end(&queue, &[1])[..], apart[..1]);
        assert_eq!(end(&queue, &[2])[..], apart[1..]);
        assert_eq!(end(&queue, &[1]), []);
        assert_eq!(end(&queue, &[2]), [(vec![1, 2], vec!["both"])]);
    }

    #[test]
    fn who_has_left_is_forgotten_and_who_waited_behind_it_begins() {
        let queue = Queue::new();
        assert!(enter(&queue, &[1], "a"));
        assert!(!enter(&queue, &[1, 2], "gone"));
        assert!(!enter(&queue, &[2], "b"));
        let begun = queue.end(number(&queue, &[1]), |job| *job == "gone");
        assert_eq!(named(begun), [(vec![2], vec!["b"])]);
        assert!(enter(&queue, &[1], "c"));
        assert_eq!(end(&queue, &[1]), []);
        assert_eq!(end(&queue, &[2]), []);
        assert!(queue.lock().lines.is_empty());
        assert!(queue.lock().waiting.is_empty());
    }

    #[test]
    fn a_group_that_is_old_is_taken_over_and_ends_nothing_any_more() {
        let queue = Names::new();
        let take_over = |after| named(queue.take_over(&[1], after, |_| false));
        assert!(enter(&queue, &[1, 2], "parked"));
        let parked = number(&queue, &[1, 2]);
        assert!(!enter(&queue, &[2], "parked, too"));
        assert!(queue.enter(vec![1], 1, "a").is_none());
        assert_eq!(take_over(Duration::from_secs(60)), []);
        assert_eq!(take_over(Duration::ZERO), [(vec![1], vec!["a"])]);
        assert!(
            enter(&queue, &[2], "b"),
            "what waited for it has been dropped"
        );
        assert!(!enter(&queue, &[1], "c"));
        assert_eq!(named(queue.end(parked, |_| false)), []);
        assert_eq!(end(&queue, &[1]), [(vec![1], vec!["c"])]);
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
        Enter(Vec<u64>, u8),
        /// Picks a waiting job.
        Leave(prop::sample::Index),
        /// Picks a group under way.
        End(prop::sample::Index),
    }

    fn acts() -> impl Strategy<Value = Act> {
        prop_oneof![
            4 => (vec(0..5_u64, 0..4), 0..3_u8).prop_map(|(of, kind)| Act::Enter(of, kind)),
            1 => any::<prop::sample::Index>().prop_map(Act::Leave),
            3 => any::<prop::sample::Index>().prop_map(Act::End),
        ]
    }

    /// Jobs are numbers, in order of arrival.
    #[derive(Default)]
    struct Model {
        jobs: Vec<(Vec<u64>, u8)>,
        waiting: Vec<usize>,
        left: HashSet<usize>,
        under_way: Vec<Group<usize, u8>>,
        begun: Vec<usize>,
    }

    impl Model {
        fn meet(&self, job: usize, other: usize) -> bool {
            self.jobs[job]
                .0
                .iter()
                .any(|identity| self.jobs[other].0.contains(identity))
        }

        fn begin(&mut self, group: Group<usize, u8>) {
            let of_all = group.jobs.iter().flat_map(|job| &self.jobs[*job].0);
            let [all, named]: [HashSet<u64>; 2] = [
                of_all.copied().collect(),
                group.identities.iter().copied().collect(),
            ];
            assert_eq!(all, named);
            for job in &group.jobs {
                assert_eq!(self.jobs[*job].1, group.kind);
                self.waiting.retain(|waiting| waiting != job);
            }
            let mut older = self.waiting.iter().filter(|job| **job < group.jobs[0]);
            let meets = |job: &usize| !self.left.contains(job) && self.meet(*job, group.jobs[0]);
            assert!(!older.any(meets), "whoever begins a group is the oldest");
            let before = self
                .begun
                .iter()
                .filter(|job| self.jobs[**job].1 == group.kind);
            for older in before {
                let mut jobs = group.jobs.iter();
                assert!(
                    !jobs.any(|job| job < older && self.meet(*job, *older)),
                    "overtaken"
                );
            }
            self.begun.extend(&group.jobs);
            self.under_way.push(group);
        }

        fn end(&mut self, queue: &Queue<usize, u8>, place: usize) {
            let ended = self.under_way.swap_remove(place);
            for group in queue.end(ended.number, |job| self.left.contains(job)) {
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
                    .0
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
                    Act::Enter(identities, kind) => {
                        let job = model.jobs.len();
                        model.jobs.push((identities.clone(), kind));
                        match queue.enter(identities, kind, job) {
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
