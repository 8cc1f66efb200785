//! Asks for confirmation before a change that you cannot undo.

use std::io::{IsTerminal, Write};
use std::{fmt, io};

use super::{Error, Result};

/// An error if there is no terminal to ask at. The message begins with `not_done`.
pub(crate) fn possible(not_done: &str) -> Result<()> {
    if io::stdin().is_terminal() && io::stderr().is_terminal() {
        return Ok(());
    }
    Err(Error::usage(format_args!(
        "{not_done}: there is no terminal to ask at, so --yes is needed"
    )))
}

/// Whether the answer is yes.
pub(crate) fn asked(question: impl fmt::Display) -> Result<bool> {
    anstream::eprint!("{question} [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
