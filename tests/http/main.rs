//! Without a Redis server: the middleware with extractors, answers and observers.

#[macro_use]
mod asking;

mod answers;
mod blocks;
mod body_end;
mod calendar;
mod chat_bodies;
mod combine;
mod contributors;
mod dashboard;
mod drop_in;
mod extract;
mod first_of;
mod forwarded;
mod grpc;
mod handlers;
mod hosts;
mod language_models;
mod late;
mod look_ups;
mod middleware;
mod mistakes;
mod obey;
mod observe;
mod prelude;
mod proxies;
mod read_body;
mod readiness;
mod routes_unmet;
mod rules;
mod settle;
mod shadow;
mod slots;
mod stack;
mod streams;
mod units;
mod wiring;
