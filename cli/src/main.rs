//! `sluicegate`: the operators' tool. The `README.md` of this package documents the tool.

mod args;
mod block;
mod block_report;
mod blocks;
mod check;
mod confirm;
mod contributors;
mod denied;
mod doctor;
mod error;
mod hash;
mod hints;
mod holders;
mod identity;
mod inspect;
mod output;
mod policies_file;
mod published;
mod reading;
mod report;
mod reset;
mod scan;
mod server;
mod settings;
mod simulate;
mod style;
mod table;
mod text;
mod top;
mod watch;

use std::{io::Write, process::ExitCode};

use clap::CommandFactory;

// Most verbs import these names from here.
use self::{
    args::{Cli, Command},
    error::{Error, Result},
    output::{BAD, BOLD, DIM, GOOD, Output, WARN},
    settings::Settings,
    style::PLAIN,
    table::{Cell, Table},
};

fn main() -> ExitCode {
    match run(args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => error.report(),
    }
}

/// Whether the verb is done, or its answer is "yes". Each verb returns this.
fn run(cli: Cli) -> Result<bool> {
    let output = &mut Output::new(cli.json);
    let settings = || Settings::load(cli.settings, cli.config.as_deref());
    match cli.command {
        Command::Inspect(args) => inspect::run(&args, &settings()?, output),
        Command::Explain(args) => inspect::explain(&args, &settings()?, output),
        Command::Top(args) => top::run(&args, &settings()?, output),
        Command::Watch(args) => watch::run(&args, &settings()?, output),
        Command::Doctor(args) => doctor::run(&args, &settings()?, output),
        Command::Block(args) => block::block(&args, &settings()?, output),
        Command::Unblock(args) => block::unblock(&args, &settings()?, output),
        Command::Blocks(args) => blocks::run(&args, &settings()?, output),
        Command::Policies => published::run(&settings()?, output),
        Command::Reset(args) => reset::run(&args, &settings()?, output),
        Command::Contributors(args) => contributors::run(&args, &settings()?, output),
        Command::Hash(args) => hash::run(&args, &settings()?, output),
        Command::Check(args) => check::run(&args, output),
        Command::Simulate(args) => simulate::run(&args, &settings()?, output),
        Command::Completions { shell } => {
            let (mut command, mut script) = (Cli::command(), Vec::new());
            clap_complete::generate(shell, &mut command, "sluicegate", &mut script);
            output.write_all(&script)?;
            Ok(true)
        }
    }
}
