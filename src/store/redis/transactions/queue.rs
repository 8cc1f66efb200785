//! [`Queue`]: who waits while others change the same keys. It knows nothing of Redis or of runtimes.

use std::{
    collections::VecDeque,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// How many jobs are done together at most.
const MOST: usize = 1_024;

/// Jobs, each about some of 64 stripes of all identities, of which no two groups under way share one.
///
/// Those that have to wait are done together as soon as their stripes are free, first come, first served: nobody
/// overtakes a job that waits for a stripe of theirs.
pub(super) struct Queue<J> {
    state: Mutex<State<J>>,
}

struct State<J> {
    /// The stripes of groups under way.
    busy: u64,
    waiting: VecDeque<(u64, J)>,
}

/// Jobs that are done together.
pub(super) struct Group<J> {
    pub(super) stripes: u64,
    pub(super) jobs: Vec<J>,
}

impl<J> Queue<J> {
    pub(super) const fn new() -> Self {
        Self {
            state: Mutex::new(State {
                busy: 0,
                waiting: VecDeque::new(),
            }),
        }
    }

    /// Lets a job wait for its stripes; answers it if they are free.
    pub(super) fn enter(&self, stripes: u64, job: J) -> Option<Group<J>> {
        let mut state = self.lock();
        let wanted = state.waiting.iter().fold(state.busy, |all, it| all | it.0);
        if stripes & wanted == 0 {
            state.busy |= stripes;
            let jobs = vec![job];
            return Some(Group { stripes, jobs });
        }
        state.waiting.push_back((stripes, job));
        None
    }

    /// Notes that a group of these stripes has ended; answers those that are to begin.
    ///
    /// Jobs that `has_left` is true for are dropped; a group holds those that `is_alike` is true for.
    pub(super) fn end(
        &self,
        stripes: u64,
        has_left: impl Fn(&J) -> bool,
        is_alike: impl Fn(&J, &J) -> bool,
    ) -> Vec<Group<J>> {
        let mut state = self.lock();
        state.busy &= !stripes;
        let mut taken = state.busy;
        let mut groups: Vec<Group<J>> = Vec::new();
        for (stripes, job) in mem::take(&mut state.waiting) {
            if has_left(&job) {
                continue;
            }
            let joined = groups.iter_mut().find(|it| {
                let is_free = stripes & taken & !it.stripes == 0;
                let meets = stripes & it.stripes != 0;
                meets && is_free && it.jobs.len() < MOST && is_alike(&it.jobs[0], &job)
            });
            if let Some(group) = joined {
                group.stripes |= stripes;
                group.jobs.push(job);
            } else if stripes & taken == 0 {
                let jobs = vec![job];
                groups.push(Group { stripes, jobs });
            } else {
                state.waiting.push_back((stripes, job));
            }
            taken |= stripes;
        }
        state.busy |= groups.iter().fold(0, |all, it| all | it.stripes);
        groups
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: fn(&&str) -> bool = |_| false;
    const ALL: fn(&&str, &&str) -> bool = |_, _| true;

    fn told(groups: Vec<Group<&'static str>>) -> Vec<(u64, Vec<&'static str>)> {
        let groups = groups.into_iter();
        groups.map(|it| (it.stripes, it.jobs)).collect()
    }

    #[test]
    fn jobs_about_other_keys_begin_at_once_and_those_about_the_same_wait_and_go_together() {
        let queue = Queue::new();
        assert!(queue.enter(0b01, "a").is_some());
        assert!(queue.enter(0b10, "b").is_some());
        for job in ["c", "d", "e"] {
            assert!(queue.enter(0b01, job).is_none());
        }
        assert_eq!(told(queue.end(0b10, NOBODY, ALL)), []);
        assert_eq!(
            told(queue.end(0b01, NOBODY, ALL)),
            [(0b01, vec!["c", "d", "e"])]
        );
        assert!(queue.enter(0b01, "f").is_none());
        assert!(queue.enter(0b10, "g").is_some());
    }

    #[test]
    fn nobody_overtakes_who_waits_for_a_key_of_theirs() {
        let queue = Queue::new();
        assert!(queue.enter(0b001, "a").is_some());
        assert!(queue.enter(0b010, "b").is_some());
        assert!(queue.enter(0b111, "all").is_none());
        assert!(queue.enter(0b100, "c").is_none(), "it would be overtaken");
        assert_eq!(told(queue.end(0b001, NOBODY, ALL)), []);
        assert!(queue.enter(0b001, "d").is_none());
        let together = vec!["all", "c", "d"];
        assert_eq!(told(queue.end(0b010, NOBODY, ALL)), [(0b111, together)]);
    }

    #[test]
    fn a_group_ends_where_it_would_overtake_or_be_of_two_kinds() {
        let queue = Queue::new();
        assert!(queue.enter(0b011, "a").is_some());
        assert!(queue.enter(0b100, "b").is_some());
        for (stripes, job) in [
            (0b001, "c"),
            (0b101, "both"),
            (0b001, "d"),
            (0b010, "other"),
        ] {
            assert!(queue.enter(stripes, job).is_none());
        }
        let begun = queue.end(0b011, NOBODY, |_, job| *job != "other");
        // "d" shares its only stripe with the group, which has begun before "both" could.
        assert_eq!(
            told(begun),
            [(0b001, vec!["c", "d"]), (0b010, vec!["other"])]
        );
        assert_eq!(told(queue.end(0b100, NOBODY, ALL)), []);
        assert_eq!(told(queue.end(0b001, NOBODY, ALL)), [(0b101, vec!["both"])]);
    }

    #[test]
    fn who_has_left_is_forgotten() {
        let queue = Queue::new();
        assert!(queue.enter(1, "a").is_some());
        assert!(queue.enter(1, "gone").is_none());
        assert_eq!(told(queue.end(1, |job| *job == "gone", ALL)), []);
        assert!(queue.enter(1, "b").is_some());
    }

    #[test]
    fn a_group_is_bounded_and_the_rest_goes_with_the_next() {
        let queue = Queue::new();
        assert!(queue.enter(1, "a").is_some());
        for _ in 0..=MOST {
            assert!(queue.enter(1, "b").is_none());
        }
        assert_eq!(queue.end(1, NOBODY, ALL)[0].jobs.len(), MOST);
        assert_eq!(queue.end(1, NOBODY, ALL)[0].jobs.len(), 1);
    }
}
