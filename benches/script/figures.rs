//! The figures of a case, by the server's statistics, and the bars that they have to meet.

use support::redis::Server;

pub(crate) type Error = Box<dyn std::error::Error>;

#[derive(Clone, Copy)]
pub(crate) struct Figures {
    /// The time of scripts.
    pub(crate) micros: f64,
    /// The processor time of the whole server, which also reads, parses and answers calls.
    pub(crate) cpu: f64,
    pub(crate) commands: f64,
}

impl Figures {
    /// Reads the server's statistics since their reset: the time of script calls, and the number of all commands,
    /// including those inside scripts.
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    pub(crate) fn read(server: &Server, decisions: u64) -> Self {
        let info: String = server.run("INFO commandstats");
        let (mut micros, mut commands) = (0, 0);
        for line in info
            .lines()
            .filter_map(|line| line.strip_prefix("cmdstat_"))
        {
            let field = |name: &str| {
                line.split([',', ':'])
                    .find_map(|field| field.strip_prefix(name)?.parse::<u64>().ok())
            };
            let calls = field("calls=").unwrap_or(0);
            match line.split(':').next() {
                Some("evalsha" | "eval") => micros += field("usec=").unwrap_or(0),
                Some("info" | "config|resetstat" | "client|setinfo" | "command") => continue,
                _ => {}
            }
            commands += calls;
        }
        Self {
            micros: micros as f64 / decisions as f64,
            cpu: f64::NAN, // until it is measured
            commands: commands as f64 / decisions as f64,
        }
    }
}

pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// A bar is what holds. An aim is what is hoped for, and fails nothing.
pub(crate) fn bar_and_aim(what: &str, figure: f64, most: f64, aim: f64) -> bool {
    bar(&format!("{what}, aim {aim:.2}"), figure, most)
}

pub(crate) fn bar(what: &str, figure: f64, most: f64) -> bool {
    let met = figure <= most;
    println!(
        "{} {what}: {figure:.2}, at most {most:.2}",
        if met { "ok    " } else { "MISSED" }
    );
    met
}
