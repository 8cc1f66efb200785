//! The operators' tool, run as a program.

mod check;
mod scaffold;
mod tool;
