//! `sluicegate completions`: a script for a shell.

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Answer, args::Cli, error::Result, output::Output};

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

pub(crate) fn run(args: &CompletionsArgs, output: &mut Output) -> Result<Answer> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "sluicegate", &mut script);
    output.write_all(&script)?;
    Ok(Answer::Yes)
}
