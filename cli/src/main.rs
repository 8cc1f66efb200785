//! `sluicegate`: the operators' tool. You find its documentation in the `README.md` of this package.

mod answer;
mod args;
mod block;
mod block_report;
mod blocks;
mod census;
mod check;
mod completions;
mod confirm;
mod contributors;
mod denied;
mod drift;
mod error;
mod explain;
mod hash;
mod holders;
mod identity;
mod inspect;
mod output;
mod period;
mod policies_file;
mod published;
mod reading;
mod reset;
mod scan;
mod server;
mod settings;
mod simulate;
mod sparkline;
mod style;
mod text;
mod top;
mod watch;

use std::process::ExitCode;

use clap::CommandFactory;

use self::{
    answer::Answer,
    args::{Cli, Command},
    error::Result,
    output::Output,
    settings::Settings,
};

fn main() -> ExitCode {
    match run(args::parse()) {
        Ok(Answer::Yes) => ExitCode::SUCCESS,
        Ok(Answer::No) => ExitCode::from(1),
        Err(error) => error.report(),
    }
}

fn run(cli: Cli) -> Result<Answer> {
    let output = &mut Output::new(cli.json);
    let settings = || Settings::load(cli.settings, cli.config.as_deref());
    match cli.command {
        Command::Inspect(args) => inspect::run(&args, &settings()?, output),
        Command::Explain(args) => explain::run(&args, &settings()?, output),
        Command::Top(args) => top::run(&args, &settings()?, output),
        Command::Watch(args) => watch::run(&args, &settings()?, output),
        Command::Block(args) => block::block(&args, &settings()?, output),
        Command::Unblock(args) => block::unblock(&args, &settings()?, output),
        Command::Blocks(args) => blocks::run(&args, &settings()?, output),
        Command::Policies(args) => published::run(&args, &settings()?, output),
        Command::Reset(args) => reset::run(&args, &settings()?, output),
        Command::Contributors(args) => contributors::run(&args, &settings()?, output),
        Command::Hash(args) => hash::run(&args, &settings()?, output),
        Command::Check(args) => check::run(&args, output),
        Command::Simulate(args) => simulate::run(&args, &settings()?, output),
        Command::Completions(args) => completions::run(&args, Cli::command(), output),
    }
}
