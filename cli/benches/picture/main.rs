//! Draws the output of `inspect` at a terminal of 80 columns, for the README.
//!
//! `cargo bench -p sluicegate-cli --bench picture` writes `target/figures/inspect.svg`. This is a bench because Cargo
//! gives the paths of the tool's program and of the target folder to benches and tests alone.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use sluicegate::{Charge, Key, Limiter, Policy, RedisStore, manual_clock::ManualClock};
use support::redis::Server;

const POLICIES: &str = "\
api = \"10/1s,120/1m,2000/1h\"
login = \"5/15m\"
search = \"600/1h@1m,5000/1d\"
";

/// Charges a user that slept, came back and went too fast, with a clock that is behind the time.
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let server = Server::start();
    let place = tempfile::tempdir().unwrap();
    let write = |name, text: &str| fs::write(place.path().join(name), text).unwrap();
    write("sluicegate.toml", &format!("redis = \"{}\"", server.url()));
    write("policies.toml", POLICIES);
    let clock = ManualClock::new(0);
    let store = RedisStore::connect(server.url()).await.unwrap();
    let limiter = Limiter::new(store.clock(clock.clone()));
    let policies: sluicegate::policies::Policies = toml::from_str(POLICIES).unwrap();
    let before = Policy::parse("search", "900/2h").unwrap();
    let mut rng = fastrand::Rng::with_seed(11);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    for age_s in (0..14_000_u64).rev() {
        clock.set(
            u64::try_from((now - Duration::from_millis(age_s * 1_000 + 100)).as_millis()).unwrap(),
        );
        let busy = !(1_500..2_400).contains(&age_s) && (age_s / 90) % 7 != 3;
        let (often, odds) = if age_s < 45 {
            (8, 1)
        } else {
            (1, if busy { 2 } else { 60 })
        };
        for (name, units, odds) in [
            ("api", rng.u64(0..=often), odds),
            ("login", 1, 150),
            ("search", rng.u64(1..4), if busy { 7 } else { 200 }),
        ] {
            if rng.u64(0..odds) == 0 && units > 0 {
                let key = Key::new("ip", "203.0.113.7");
                let charge = Charge::new(policies.get(name).unwrap(), key, units);
                limiter.check([charge]).await.unwrap();
            }
        }
        if rng.u64(0..80) == 0 {
            let charge = Charge::new(&before, Key::new("ip", "203.0.113.7"), 2);
            limiter.check([charge]).await.unwrap();
        }
    }
    // The remaining logins.
    clock.set(u64::try_from((now - Duration::from_millis(50)).as_millis()).unwrap());
    for _ in 0..5 {
        let key = Key::new("ip", "203.0.113.7");
        let charge = Charge::new(policies.get("login").unwrap(), key, 1);
        limiter.check([charge]).await.unwrap();
    }
    let command = "sluicegate inspect ip=203.0.113.7 --policies policies.toml";
    let program = command.replacen("sluicegate", env!("CARGO_BIN_EXE_sluicegate"), 1);
    let mut script = Command::new("script");
    script
        .current_dir(place.path())
        .env("TERM", "xterm-256color")
        .env_remove("NO_COLOR");
    let shell = format!("stty columns 80; {program}");
    let output = script.args(["-qec", &shell, "/dev/null"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap().replace('\r', "");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("figures");
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("inspect.svg");
    fs::write(&file, svg(&format!("\x1b[2m$\x1b[0m {command}\n{text}"))).unwrap();
    println!("drawn: {}\n{text}", file.display());
}

const ROW: usize = 20;
const COLUMN: f64 = 8.43;
const MARGIN: usize = 16;

const STYLE: &str = "<style>
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #1f2328; white-space: pre; }
rect { fill: #f6f8fa; stroke: #d1d9e0; }
.bold { font-weight: 600; }
.dim { fill: #59636e; }
.red { fill: #cf222e; font-weight: 600; }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc; }
rect { fill: #151b23; stroke: #3d444d; }
.dim { fill: #9198a1; }
.red { fill: #f85149; }
}
</style>
";

/// Each run of text with one style has the width that it has at a terminal, with any font.
fn svg(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let (width, height) = (80.0 * COLUMN + 2.0 * 16.0, lines.len() * ROW + 2 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height}\" \
         viewBox=\"0 0 {width:.0} {height}\" role=\"img\" aria-labelledby=\"title\">\n\
         <title id=\"title\">What sluicegate inspect says of an address</title>\n{STYLE}\
         <rect x=\"0.5\" y=\"0.5\" width=\"{:.0}\" height=\"{}\" rx=\"6\"/>\n",
        width - 1.0,
        height - 1
    );
    for (row, line) in lines.iter().enumerate() {
        let (mut column, mut class) = (0, "");
        for part in line.split('\x1b') {
            let run = match part.strip_prefix('[').and_then(|code| code.split_once('m')) {
                Some((code, run)) => {
                    class = match code {
                        "1" => "bold",
                        "2" => "dim",
                        "31" | "38;5;9" | "1;31" => "red",
                        _ => "",
                    };
                    run
                }
                None => part,
            };
            // A text starts at its first letter, since SVG drops blanks in front of it.
            let length = run.chars().count();
            let blanks = run.chars().take_while(|c| *c == ' ').count();
            let shown = run.trim();
            if !shown.is_empty() {
                let x = 16.0 + f64::from(u32::try_from(column + blanks).unwrap()) * COLUMN;
                let wide = f64::from(u32::try_from(shown.chars().count()).unwrap()) * COLUMN;
                let y = MARGIN + row * ROW + 15;
                let shown = shown.replace('&', "&amp;").replace('<', "&lt;");
                writeln!(
                    svg,
                    "<text x=\"{x:.1}\" y=\"{y}\" textLength=\"{wide:.1}\" lengthAdjust=\"spacingAndGlyphs\" class=\"{class}\">{shown}</text>"
                )
                .unwrap();
            }
            column += length;
        }
    }
    svg + "</svg>\n"
}
