//! The operators' tool, run as a program.

mod scaffold;
mod tool;
