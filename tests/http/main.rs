//! Without a Redis server: the middleware with extractors, answers and observers.

mod answers;
mod blocks;
mod body_end;
mod calendar;
mod combine;
mod contributors;
#[cfg(unix)]
mod cut_streams;
mod dashboard;
mod drop_in;
mod extract;
mod first_of;
mod forwarded;
mod grpc;
mod handlers;
mod hosts;
mod language_models;
mod listed;
mod look_ups;
mod middleware;
mod mistakes;
mod near_limit;
mod obey;
mod observe;
mod proxies;
mod read_body;
mod readiness;
mod routes_unmet;
mod rules;
mod servers;
mod settle;
mod slots;
mod stack;
mod streams;
mod units;
mod wiring;
