//! `sluicegate completions`: a script for a shell.

use std::io::Write;

use clap::{Args, Command};
use clap_complete::Shell;

use super::{answer::Answer, error::Result, output::Output};

const EXAMPLES: &str = "\
Examples:
  source <(sluicegate completions bash)   # in ~/.bashrc
  sluicegate completions fish > ~/.config/fish/completions/sluicegate.fish";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Completes the arguments of this command.
pub(crate) fn run(
    args: &CompletionsArgs,
    mut command: Command,
    output: &mut Output,
) -> Result<Answer> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "sluicegate", &mut script);
    output.write_all(&script)?;
    Ok(Answer::Yes)
}
