//! The operators' tool, run as a program.

#[path = "../common/mod.rs"]
mod common;

mod block;
mod blocks;
mod check;
mod connect;
mod contributors;
mod explain;
mod guide;
mod inspect;
mod places;
mod policies;
mod readme;
mod reset;
mod rights;
mod scaffold;
mod simulate;
mod site;
mod tool;
mod top;
mod watch;
