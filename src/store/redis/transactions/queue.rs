//! [`Queue`]: who waits while others change the same keys. It knows nothing of Redis or of runtimes.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// How many jobs are done together at most.
const MOST: usize = 1_024;

/// In the place of a group's index: it was begun before.
const UNDER_WAY: usize = usize::MAX;

/// Jobs, each about some identities, of which no two groups under way share one. An identity is a hash here.
///
/// Those that wait for the same identity are done together as soon as it is free, first come, first served: nobody
/// overtakes a job that waits for an identity of theirs.
pub(super) struct Queue<J> {
    state: Mutex<State<J>>,
}

struct State<J> {
    /// Of each identity that a group under way is about, or that somebody waits for.
    lines: HashMap<u64, Line>,
    /// By ticket.
    waiting: HashMap<u64, Waiting<J>>,
    next_ticket: u64,
}

#[derive(Default)]
struct Line {
    group: Option<usize>,
    /// Oldest first. The ticket of a job that waits no more stays until it is the first.
    tickets: VecDeque<u64>,
}

struct Waiting<J> {
    identities: Vec<u64>,
    job: J,
}

/// Jobs that are done together.
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
            }),
        }
    }

    /// Answers a job whose identities are free, or lets it wait for them.
    pub(super) fn enter(&self, mut identities: Vec<u64>, job: J) -> Option<Group<J>> {
        identities.sort_unstable();
        identities.dedup();
        let mut state = self.lock();
        if !identities.iter().any(|it| state.lines.contains_key(it)) {
            state.serve(&identities, Some(UNDER_WAY));
            let jobs = vec![job];
            return Some(Group { identities, jobs });
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        for identity in &identities {
            state.line(*identity).tickets.push_back(ticket);
        }
        state.waiting.insert(ticket, Waiting { identities, job });
        None
    }

    /// Notes that a group about these identities has ended; answers those that are to begin.
    ///
    /// Jobs that `has_left` is true for are dropped; a group holds those that `is_alike` is true for.
    pub(super) fn end(
        &self,
        identities: Vec<u64>,
        has_left: impl Fn(&J) -> bool,
        is_alike: impl Fn(&J, &J) -> bool,
    ) -> Vec<Group<J>> {
        let mut state = self.lock();
        state.serve(&identities, None);
        let mut groups: Vec<Group<J>> = Vec::new();
        // Whose line has changed: its first may begin.
        let mut changed = identities;
        while let Some(identity) = changed.pop() {
            let Some((ticket, waiting)) = state.take_first(identity) else {
                continue;
            };
            if has_left(&waiting.job) {
                changed.extend(waiting.identities);
                continue;
            }
            let Some(place) = state.place(ticket, &waiting, &groups, &is_alike) else {
                state.waiting.insert(ticket, waiting);
                continue;
            };
            if place == groups.len() {
                let (identities, jobs) = (Vec::new(), Vec::new());
                groups.push(Group { identities, jobs });
            }
            let free = |it: &&u64| state.lines.get(*it).is_none_or(|it| it.group.is_none());
            let free = waiting.identities.iter().filter(free);
            groups[place].identities.extend(free);
            groups[place].jobs.push(waiting.job);
            state.serve(&waiting.identities, Some(place));
            changed.extend(waiting.identities);
        }
        for group in &groups {
            state.serve(&group.identities, Some(UNDER_WAY));
        }
        groups
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J> State<J> {
    fn line(&mut self, identity: u64) -> &mut Line {
        self.lines.entry(identity).or_default()
    }

    fn serve(&mut self, identities: &[u64], group: Option<usize>) {
        for identity in identities {
            self.line(*identity).group = group;
        }
    }

    /// Takes the first of a line out of those that wait; its ticket stays. Forgets a line that nobody is in.
    fn take_first(&mut self, identity: u64) -> Option<(u64, Waiting<J>)> {
        let Entry::Occupied(mut line) = self.lines.entry(identity) else {
            return None;
        };
        while let Some(ticket) = line.get().tickets.front().copied() {
            if let Some(waiting) = self.waiting.remove(&ticket) {
                return Some((ticket, waiting));
            }
            line.get_mut().tickets.pop_front();
        }
        if line.get().group.is_none() {
            line.remove();
        }
        None
    }

    /// Which of the groups a job goes with, or the next, which is to be begun; `None` if it has to wait.
    fn place(
        &self,
        ticket: u64,
        waiting: &Waiting<J>,
        groups: &[Group<J>],
        is_alike: impl Fn(&J, &J) -> bool,
    ) -> Option<usize> {
        let mut place = groups.len();
        for identity in &waiting.identities {
            let line = self.lines.get(identity)?;
            let is_first = line.tickets.front() == Some(&ticket);
            let other = line.group.unwrap_or(place);
            if !is_first || place != groups.len() && other != place {
                return None;
            }
            place = other;
        }
        let Some(group) = groups.get(place) else {
            return (place == groups.len()).then_some(place);
        };
        let fits = group.jobs.len() < MOST && is_alike(&group.jobs[0], &waiting.job);
        fits.then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: fn(&&str) -> bool = |_| false;
    const ALL: fn(&&str, &&str) -> bool = |_, _| true;

    fn enter(queue: &Queue<&'static str>, identities: &[u64], job: &'static str) -> bool {
        queue.enter(identities.to_vec(), job).is_some()
    }

    /// What begins when a group about these identities has ended.
    fn end(queue: &Queue<&'static str>, identities: &[u64]) -> Vec<(Vec<u64>, Vec<&'static str>)> {
        told(queue.end(identities.to_vec(), NOBODY, ALL))
    }

    fn told(groups: Vec<Group<&'static str>>) -> Vec<(Vec<u64>, Vec<&'static str>)> {
        let groups = groups.into_iter().map(|mut it| {
            it.identities.sort_unstable();
            (it.identities, it.jobs)
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
    fn a_group_is_of_one_kind() {
        let queue = Queue::new();
        for job in ["a", "b", "other", "c"] {
            assert_eq!(enter(&queue, &[1], job), job == "a");
        }
        let begun = queue.end(vec![1], NOBODY, |_, job| *job != "other");
        assert_eq!(told(begun), [(vec![1], vec!["b"])]);
        assert_eq!(end(&queue, &[1]), [(vec![1], vec!["other", "c"])]);
    }

    #[test]
    fn who_has_left_is_forgotten_and_who_waited_behind_it_begins() {
        let queue = Queue::new();
        assert!(enter(&queue, &[1], "a"));
        assert!(!enter(&queue, &[1, 2], "gone"));
        assert!(!enter(&queue, &[2], "b"));
        let begun = queue.end(vec![1], |job| *job == "gone", ALL);
        assert_eq!(told(begun), [(vec![2], vec!["b"])]);
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
}
