//! The command line: [`Cli`]. The file of each verb defines its arguments.

use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use super::reading::ReadArgs;
use super::{
    Settings, block, blocks, check, contributors, doctor, hash, inspect, reset, simulate, top,
    watch,
};

/// See, explain and rehearse the limits of sluicegate.
#[derive(Parser)]
#[command(name = "sluicegate", version, max_term_width = 80, after_long_help = include_str!("help/all.txt"))]
#[command(after_help = "`sluicegate --help` says more: settings, and what the exit codes mean.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,

    /// Write one JSON document instead of tables
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,

    /// The configuration file [env: SLUICEGATE_CONFIG] [default: sluicegate.toml, if there is one]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help_heading = "Server options"
    )]
    pub(crate) config: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// Parses the command line. Ends the process if it is wrong, or if it asks for help.
pub(crate) fn parse() -> Cli {
    let matches = command().get_matches();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// Hides the options that all verbs share in the help of each verb. You find them in the long help of the tool.
fn command() -> clap::Command {
    let of_server = |arg: &clap::Arg| arg.get_help_heading() == Some("Server options");
    let mut command = Cli::command().mut_args(|arg| {
        let is_hidden = of_server(&arg);
        arg.hide_short_help(is_hidden)
    });
    command.build();
    command.mut_subcommands(|verb| {
        let help = verb.get_after_help().map(ToString::to_string);
        let common = "`sluicegate --help` has the options that name the server and its keys.";
        let verb = verb.mut_args(|arg| {
            let is_hidden = of_server(&arg);
            arg.hide(is_hidden)
        });
        match help {
            Some(help) => verb.after_help(format!("{help}\n\n{common}")),
            None => verb,
        }
    })
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Say what is wrong with the server, or with the user's rights
    Doctor(doctor::DoctorArgs),
    /// Show the usage of an identity, and when it is free again
    #[command(after_help = include_str!("help/inspect.txt"))]
    Inspect(ReadArgs),
    /// Say whether a request would pass now, and if not, why and until when
    Explain(inspect::ExplainArgs),
    /// Show the identities that use most, or are denied
    Top(top::TopArgs),
    /// Show the usage of an identity, live
    Watch(watch::WatchArgs),
    /// Deny all requests of an identity for a time
    Block(block::BlockArgs),
    /// End all blocks of an identity
    Unblock(block::UnblockArgs),
    /// List the blocked identities
    Blocks(blocks::BlocksArgs),
    /// List the policies that services publish
    #[command(after_help = include_str!("help/policies.txt"))]
    Policies,
    /// Delete the counts of an identity
    Reset(reset::ResetArgs),
    /// Show the contributors that use up a shared limit
    Contributors(contributors::ContributorsArgs),
    /// Print the stored form of an identity, to get from a hash to a name
    Hash(hash::HashArgs),
    /// Check a file of policies: errors with line and column, and warnings
    Check(check::CheckArgs),
    /// Replay access logs against policies: see the requests that would be denied, when, and by which rule
    Simulate(simulate::SimulateArgs),
    /// Print a script that completes the tool's arguments in a shell
    #[command(after_help = include_str!("help/completions.txt"))]
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_of_a_help_is_broken_at_the_edge_of_a_page() {
        let command = command();
        let of_tool = command.get_after_long_help().map(ToString::to_string);
        let verbs = command.get_subcommands();
        let of_verbs = verbs.filter_map(|verb| verb.get_after_help().map(ToString::to_string));
        for help in of_tool.into_iter().chain(of_verbs) {
            for line in help.lines() {
                assert!(line.chars().count() <= 80, "{line}");
            }
        }
    }
}
