//! What a thing costs: the figures that the simulation is fed with.

/// In µs, but for the ratios.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    /// Redis: to be woken, to read what a connection has sent and to write the replies; once for all calls that came
    /// together.
    pub(crate) server_read: f64,
    /// Redis: to parse a call and to find its script.
    pub(crate) server_call: f64,
    /// Redis: a script call of one check.
    pub(crate) check: f64,
    /// Redis: each further check in the call.
    pub(crate) further: f64,
    /// Redis: what a fill takes more than a check.
    pub(crate) fill: f64,
    /// Redis: a denied check, of an admitted one.
    pub(crate) denied_ratio: f64,
    /// Redis: the settlement that returns what is left of a lease, of a check.
    pub(crate) settle_ratio: f64,
    /// The service: all of a request but its check.
    pub(crate) request: f64,
    /// The service: a check that is not answered here, without the operation that it is sent in.
    pub(crate) process_check: f64,
    /// The service: an operation of a call, which identical checks share; half before it is sent.
    pub(crate) process_operation: f64,
    /// From the service to Redis and back, without the work of either.
    pub(crate) round_trip: f64,
}

impl Costs {
    /// Three rules; two cores of a virtual machine, Redis 7.0.15, all on loopback.
    pub(crate) const REFERENCE: Self = Self {
        // `cargo bench --bench script`: "3 rules"; what "3 rules, 16 a call" takes more, by 15; "a fill of 16" without
        // "3 rules"
        check: 14.65,
        further: 9.17,
        fill: 3.11,
        // The same: "3 rules, denied by the last / 3 rules", and "settling 20 ms later / a check"
        denied_ratio: 0.92,
        settle_ratio: 2.34,
        // `cargo bench --bench scaling -- compare`
        server_read: 6.6,
        server_call: 1.0,
        process_check: 1.9,
        process_operation: 1.8,
        // An estimate: the server of `cargo bench --bench server` takes 12 to 14 with the check.
        request: 10.0,
        // Assumed, for machines of one data centre.
        round_trip: 300.0,
    };

    /// The same with one rule.
    pub(crate) const ONE_RULE: Self = Self {
        // `cargo bench --bench script`: "1 rule", and what "1 rule, 16 a call" takes more, by 15
        check: 11.18,
        further: 5.07,
        ..Self::REFERENCE
    };
}
