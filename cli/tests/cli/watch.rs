//! `sluicegate watch` prints each change, and leaves the terminal unchanged.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use sluicegate::{Charge, Key};

use crate::site::{Site, policy};

/// Far more than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

struct Watching {
    child: Child,
    lines: Receiver<String>,
}

impl Watching {
    fn start(site: &Site, args: &str) -> Self {
        let mut command = site.tool.command();
        command.args(args.split_whitespace());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (send, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        Self { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap()
    }

    /// Ends the tool like Ctrl-C. Returns the exit code and the output on stderr.
    fn interrupt(mut self) -> (Option<i32>, String) {
        let id = self.child.id().to_string();
        let killed = Command::new("kill").args(["-INT", &id]).status();
        assert!(killed.unwrap().success());
        let mut stderr = String::new();
        let mut pipe = self.child.stderr.take().unwrap();
        pipe.read_to_string(&mut stderr).unwrap();
        (self.child.wait().unwrap().code(), stderr)
    }
}

/// A failed test leaves no program behind.
impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn in_a_pipe_there_is_a_line_for_each_change() {
    let site = Site::start().await;
    let watching = Watching::start(
        &site,
        "watch user=alice --policies policies.toml --policy api --interval 10ms",
    );
    assert!(watching.line().ends_with(" api nothing"));
    site.charge("api", "alice", 4).await;
    let line = watching.line();
    assert!(line.ends_with(" UTC api 10/1d 4, 100/2d 4"), "{line}");
    begins!(line => "20"); // it has a date
    site.charge("api", "alice", 6).await;
    assert!(watching.line().ends_with(" api 10/1d 10 full, 100/2d 10"));
    assert_eq!(watching.interrupt(), (Some(0), String::new()));
}

#[tokio::test]
async fn a_block_and_its_end_are_changes() {
    let site = Site::start().await;
    let watching = Watching::start(&site, "watch user=alice --policy api --interval 10ms");
    let alice = Key::new("user", "alice");
    assert!(watching.line().ends_with(" api nothing"));
    let hour = Duration::from_secs(3_600);
    site.limiter.block(&alice, hour).await.unwrap();
    let line = watching.line();
    says!(line => " blocked by an operator until ", "; api nothing");
    site.limiter.unblock(&alice).await.unwrap();
    let line = watching.line();
    assert!(line.ends_with(" UTC api nothing"), "{line}");
    assert_eq!(watching.interrupt(), (Some(0), String::new()));
}

#[tokio::test]
async fn as_json_there_is_a_document_for_each_change() {
    let site = Site::start().await;
    let watching = Watching::start(
        &site,
        "watch user=alice --policy api --interval 10ms --json",
    );
    let used = || {
        let document: serde_json::Value = serde_json::from_str(&watching.line()).unwrap();
        document["policies"][0]["rules"][0]["used"].as_u64()
    };
    assert_eq!(used(), None);
    site.charge("api", "alice", 4).await;
    assert_eq!(used(), Some(4));
    assert_eq!(watching.interrupt().0, Some(0));
}

#[tokio::test]
async fn a_server_that_is_away_is_told_of_once_and_waited_for() {
    let mut site = Site::start().await;
    let watching = Watching::start(&site, "watch user=alice --policy api --interval 10ms");
    assert!(watching.line().ends_with(" api nothing"));
    site.server.kill();
    std::thread::sleep(Duration::from_millis(200)); // several intervals
    site.server.restart();
    let looks = || [Charge::new(&policy("api"), Key::new("user", "x"), 0)];
    while site.limiter.peek(looks()).await.is_err() {}
    site.charge("api", "alice", 4).await;
    assert!(watching.line().ends_with(" api ?/1d 4, ?/2d 4"));
    let (code, stderr) = watching.interrupt();
    assert_eq!((code, stderr.lines().count()), (Some(0), 1), "{stderr}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_terminal_is_left_as_it_was() {
    let site = Site::start().await;
    site.charge("api", "alice", 4).await;
    let program = env!("CARGO_BIN_EXE_sluicegate");
    let watch = format!("timeout -s INT 1 {program} watch user=alice --policy api --interval 10ms");
    let mut command = Command::new("script");
    command
        .current_dir(site.tool.folder())
        .args(["-qec", &watch, "/dev/null"]);
    command.env("TERM", "xterm").stdin(Stdio::null());
    let page = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let start: String = page.chars().take(40).collect();
    assert!(start.starts_with("\x1b[?1049h\x1b[?25l"), "{start:?}");
    assert!(page.ends_with("\x1b[?25h\x1b[?1049l"));
    assert!(page.matches("\x1b[H\x1b[J").count() > 1);
    assert!(page.contains("?/1d") && page.contains("Ctrl-C ends"));
}
