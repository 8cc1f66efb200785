//! The costs of single operations: the input of the simulation.

/// In µs, except for the ratios.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    /// Redis: wakes up, reads from a connection and writes the replies, once for all calls that arrive together.
    pub(crate) server_read: f64,
    /// Redis: parses a call and finds its script.
    pub(crate) server_call: f64,
    /// Redis: a script call of one check.
    pub(crate) check: f64,
    /// Redis: each further check in the call.
    pub(crate) further: f64,
    /// Redis: the additional cost of a batch over a check.
    pub(crate) batch: f64,
    /// Redis: the cost of a denied check, relative to an admitted one.
    pub(crate) denied_ratio: f64,
    /// Redis: the cost of the settlement that returns the rest of a lease, relative to a check.
    pub(crate) settle_ratio: f64,
    /// The service: everything about a request except its check.
    pub(crate) request: f64,
    /// The service: a check that needs a call, without the operation in the call.
    pub(crate) process_check: f64,
    /// The service: an operation of a call, which identical checks share. Half of the cost comes before sending.
    pub(crate) process_operation: f64,
    /// From the service to Redis and back, without the work of either.
    pub(crate) round_trip: f64,
}

impl Costs {
    /// Three rules; two cores of a virtual machine, Redis 7.0.15, all on loopback.
    pub(crate) const REFERENCE: Self = Self {
        // `cargo bench --bench script`: "3 rules"; the additional cost of "3 rules, 16 a call", divided by 15; "a batch
        // of 16" minus "3 rules"
        check: 14.65,
        further: 9.17,
        batch: 3.11,
        // The same bench: "3 rules, denied by the last / 3 rules", and "settling 20 ms later / a check"
        denied_ratio: 0.92,
        settle_ratio: 2.34,
        // `cargo bench --bench scaling -- compare`
        server_read: 6.6,
        server_call: 1.0,
        process_check: 1.9,
        process_operation: 1.8,
        // An estimate: the server of `cargo bench --bench server` takes 12 to 14 with the check.
        request: 10.0,
        // An assumption for machines in one data centre.
        round_trip: 300.0,
    };

    /// The same costs with one rule.
    pub(crate) const ONE_RULE: Self = Self {
        // `cargo bench --bench script`: "1 rule", and the additional cost of "1 rule, 16 a call", divided by 15
        check: 11.18,
        further: 5.07,
        ..Self::REFERENCE
    };
}
