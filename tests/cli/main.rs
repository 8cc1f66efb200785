//! The operators' tool, run as a program.

#[path = "../common/mod.rs"]
mod common;

mod check;
mod contributors;
mod scaffold;
mod simulate;
mod tool;
