//! [`Order`]: sorts requests by their times.
//!
//! Servers write a line when a request ends, and some of them log the time at which it began. So lines are slightly out
//! of order. `Order` holds requests back until it has read a line that is `wait` later. A request that comes even later
//! is replayed in the first second that is still to come, since the clock of a store does not step back either.
//!
//! Most logs have whole seconds. Unchanged, all requests of a second would come at once, and a limit of ten a second
//! would deny clients that keep to it. So the requests of one second are spread evenly over it, in their order.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::request::Request;

/// The maximum number of held requests with short keys, some 100 MB. Above it, the first second is replayed early.
const MAX_HELD: usize = 500_000;

/// This number of bytes in the keys counts as another request.
const LONG_KEYS: usize = 128;

const SECOND_MS: u64 = 1_000;

/// An odd number, so that there is a middle. Fewer than half of these lines may have wrong dates.
pub(super) const LAST: usize = 9;

pub(super) struct Order {
    wait: u64,
    spread: bool,
    most: usize,
    /// Indexed by the second.
    held: BTreeMap<u64, Vec<Request>>,
    count: usize,
    /// The latest second that most of the `LAST` lines have reached, so that some wrong dates do not end the waiting.
    newest: u64,
    last: VecDeque<u64>,
    /// The first second that has not been replayed.
    next: u64,
    /// The number of requests that came too late for their time.
    pub(super) late: u64,
}

impl Order {
    pub(super) fn new(wait: Duration, spread: bool) -> Self {
        Self {
            wait: wait.as_secs() + u64::from(wait.subsec_nanos() > 0),
            spread,
            most: MAX_HELD,
            held: BTreeMap::new(),
            count: 0,
            newest: 0,
            last: VecDeque::with_capacity(LAST),
            next: 0,
            late: 0,
        }
    }

    /// Adds a request. If its date is not believed, it does not count for the progress of the logs.
    pub(super) fn push(&mut self, mut request: Request, is_believed: bool) {
        let mut second = request.ms / SECOND_MS;
        if second < self.next {
            self.late += 1;
            second = self.next;
            request.ms = second * SECOND_MS;
            request.is_whole = false;
        }
        if is_believed {
            self.newest = self.newest.max(self.reached(second));
        }
        self.count += weight(&request);
        self.held.entry(second).or_default().push(request);
    }

    /// The second that most of the last lines have reached, including this line.
    fn reached(&mut self, second: u64) -> u64 {
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(second);
        let mut sorted = [0; LAST]; // those that are missing have reached nothing
        for (place, second) in sorted.iter_mut().zip(&self.last) {
            *place = *second;
        }
        sorted.sort_unstable();
        sorted[LAST / 2]
    }

    /// The requests of the next second, if no earlier request or another one of that second can still come.
    pub(super) fn ready(&mut self) -> Option<Vec<Request>> {
        let (first, _) = self.held.first_key_value()?;
        let is_over = first + self.wait < self.newest;
        (is_over || self.count > self.most)
            .then(|| self.pop())
            .flatten()
    }

    /// The requests of the next second.
    pub(super) fn pop(&mut self) -> Option<Vec<Request>> {
        let (second, mut requests) = self.held.pop_first()?;
        self.next = second + 1;
        self.count -= requests.iter().map(weight).sum::<usize>();
        if self.spread {
            spread(&mut requests);
        }
        requests.sort_by_key(|request| request.ms); // stable: the order of the lines decides
        Some(requests)
    }
}

fn weight(request: &Request) -> usize {
    let keys = request.keys.iter().flatten();
    1 + keys.map(|key| key.value().len()).sum::<usize>() / LONG_KEYS
}

fn spread(requests: &mut [Request]) {
    let whole = |request: &&mut Request| request.is_whole;
    let count = requests.iter().filter(|request| request.is_whole).count() as u64;
    for (index, request) in (0..).zip(requests.iter_mut().filter(whole)) {
        request.ms += index * SECOND_MS / count;
    }
}

#[cfg(test)]
mod tests {
    use sluicegate::Key;

    use super::*;

    fn replayed(order: &mut Order, times: &[(u64, bool)]) -> Vec<(u64, u64)> {
        let mut replayed = Vec::new();
        for (line, (ms, is_whole)) in (1..).zip(times) {
            let request = Request {
                ms: *ms,
                is_whole: *is_whole,
                file: 0,
                line,
                keys: Box::default(),
            };
            order.push(request, true);
            while let Some(requests) = order.ready() {
                replayed.extend(requests);
            }
        }
        while let Some(requests) = order.pop() {
            replayed.extend(requests);
        }
        replayed
            .iter()
            .map(|request| (request.line, request.ms))
            .collect()
    }

    #[test]
    fn requests_are_put_in_order_within_the_time_that_is_waited() {
        let mut order = Order::new(Duration::from_secs(2), true);
        let times = [
            5_000, 4_500, 7_999, 5_100, 8_000, 8_001, 8_002, 8_003, 4_000,
        ];
        let times = times.map(|ms| (ms, false));
        let expected = [
            (2, 4_500),
            (1, 5_000),
            (9, 5_000),
            (4, 5_100),
            (3, 7_999),
            (5, 8_000),
            (6, 8_001),
            (7, 8_002),
            (8, 8_003),
        ];
        assert_eq!(replayed(&mut order, &times), expected);
        assert_eq!(order.late, 1);
    }

    #[test]
    fn requests_of_a_whole_second_are_spread_over_it() {
        let times = [
            (5_000, true),
            (5_000, true),
            (6_000, true),
            (5_000, true),
            (5_500, false),
        ];
        let spread = [(1, 5_000), (2, 5_333), (5, 5_500), (4, 5_666), (3, 6_000)];
        assert_eq!(
            replayed(&mut Order::new(Duration::from_secs(5), true), &times),
            spread
        );
        let as_it_stands = [(1, 5_000), (2, 5_000), (4, 5_000), (5, 5_500), (3, 6_000)];
        assert_eq!(
            replayed(&mut Order::new(Duration::from_secs(5), false), &times),
            as_it_stands
        );
    }

    #[test]
    fn some_lines_with_wrong_dates_disturb_no_other() {
        let wrong = (99_000_000, true);
        let mut times: Vec<_> = (0..40)
            .map(|second| (5_000 + second * 1_000, true))
            .collect();
        for at in [10, 11, 12, 25, 26, 27, 28] {
            times.insert(at, wrong);
        }
        // A request that is late by no more than the waiting time.
        times.insert(35, (32_000, true));
        let mut order = Order::new(Duration::from_secs(5), true);
        let replayed = replayed(&mut order, &times);
        assert_eq!(order.late, 0);
        assert!(replayed.is_sorted_by_key(|(_, ms)| *ms));
        assert!(replayed[41..].iter().all(|(_, ms)| *ms >= wrong.0));
    }

    #[test]
    fn one_line_with_a_wrong_date_disturbs_no_other() {
        let mut order = Order::new(Duration::from_secs(2), true);
        let times = [
            (5_000, true),
            (99_000_000, true),
            (5_000, true),
            (1_000, true),
            (6_000, true),
            (9_000, true),
            (9_000, true),
        ];
        let expected = [
            (4, 1_000),
            (1, 5_000),
            (3, 5_500),
            (5, 6_000),
            (6, 9_000),
            (7, 9_500),
            (2, 99_000_000),
        ];
        assert_eq!(replayed(&mut order, &times), expected);
        assert_eq!(order.late, 0);
    }

    #[test]
    fn what_is_held_back_is_bounded() {
        let mut order = Order::new(Duration::from_secs(1_000), true);
        order.most = 10;
        for second in 0..100 {
            let request = Request {
                ms: second * 1_000,
                is_whole: true,
                file: 0,
                line: second,
                keys: Box::default(),
            };
            order.push(request, true);
            while order.ready().is_some() {}
            assert!(order.count <= 10);
        }
    }

    #[test]
    fn long_keys_are_held_back_in_smaller_numbers() {
        let mut order = Order::new(Duration::from_secs(1_000), true);
        order.most = 100;
        for line in 0..100 {
            let key = Key::new("path", vec![b'x'; 1_024]);
            let request = Request {
                ms: line * 1_000,
                is_whole: true,
                file: 0,
                line,
                keys: [Some(key), None].into(),
            };
            order.push(request, true);
            while order.ready().is_some() {}
            assert!(order.held.len() <= 11, "{}", order.held.len());
        }
    }
}
