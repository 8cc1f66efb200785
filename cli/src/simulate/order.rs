//! [`Order`]: sorts requests by their times.
//!
//! Servers write a line when a request ends, and some of them log the time at which it began. So lines are slightly out
//! of order. `Order` holds requests back until it has read a line that is `wait` later. A request that comes even later
//! is replayed in the first second that is still to come, since the clock of a store does not step back either.
//!
//! Most logs have whole seconds. Unchanged, all requests of a second would come at once, and a limit of ten a second
//! would deny clients that keep to it. So the requests of one second are spread evenly over it, in their order.

use std::collections::BTreeMap;
use std::time::Duration;

use super::request::Request;

/// The maximum number of held requests with short keys, some 100 MB. Above it, the first second is replayed early.
const MAX_HELD: usize = 500_000;

/// This number of bytes in the keys counts as another request.
const LONG_KEYS: usize = 128;

const SECOND_MS: u64 = 1_000;

#[derive(Default)]
pub(super) struct Order {
    wait: u64,
    spread: bool,
    most: usize,
    /// Indexed by the second.
    held: BTreeMap<u64, Vec<Request>>,
    count: usize,
    /// The latest second that was read.
    newest: u64,
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
            ..Self::default()
        }
    }

    pub(super) fn push(&mut self, mut request: Request) {
        let mut second = request.ms / SECOND_MS;
        if second < self.next {
            self.late += 1;
            second = self.next;
            request.ms = second * SECOND_MS;
            request.is_whole = false;
        }
        self.newest = self.newest.max(second);
        self.count += weight(&request);
        self.held.entry(second).or_default().push(request);
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
            order.push(request);
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
        let times = [5_000, 4_500, 7_999, 5_100, 8_000, 8_001, 4_000];
        let times = times.map(|ms| (ms, false));
        // The last comes when its second and the next have been replayed.
        let expected = [
            (2, 4_500),
            (1, 5_000),
            (4, 5_100),
            (7, 6_000),
            (3, 7_999),
            (5, 8_000),
            (6, 8_001),
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
            order.push(request);
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
            order.push(request);
            while order.ready().is_some() {}
            assert!(order.held.len() <= 11, "{}", order.held.len());
        }
    }
}
