//! Messages about a server that cannot be called: they name the server and the setting, and never a password.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    time::Duration,
};

use crate::{
    site::Site,
    tool::{Tool, rows, said},
};
use support::redis::Server;

const NOBODY: &str = "redis://alice:hunter2@127.0.0.1:1/";

#[test]
fn a_server_that_is_not_there_is_named_with_the_setting_that_names_it() {
    let tool = Tool::new();
    let file = |text: &str| tool.write("sluicegate.toml", text);
    let told = |args: &str, environment: &[(&str, &str)]| {
        let mut command = tool.command();
        command.args(["top", "--timeout", "30s"]);
        command.args(args.split_whitespace());
        let said = said(command.envs(environment.iter().copied()), b"");
        assert_eq!(said.code, 3, "{said:?}");
        says_not!(said.stderr => "hunter2", "alice");
        said.stderr
    };
    let table = "
        | --redis | error: 127.0.0.1:1 (--redis):
        redis = 'redis://alice:hunter2@127.0.0.1:1/' | | error: 127.0.0.1:1 (`redis` in sluicegate.toml):
        | --cluster | error: the cluster of 127.0.0.1:1 (--cluster):
        primary = 'redis://alice:hunter2@orders' | --sentinel | \
        error: the primary orders of the sentinels 127.0.0.1:1 (--sentinel):
    ";
    for [text, option, expected] in rows(table) {
        file(&text);
        let url = if option.is_empty() { "" } else { NOBODY };
        begins!(told(&format!("{option} {url}"), &[]) => &expected);
    }
    file("redis = 'redis://elsewhere'");
    begins!(told("", &[("SLUICEGATE_REDIS", NOBODY)]) => "error: 127.0.0.1:1 (SLUICEGATE_REDIS): ");
}

#[test]
fn what_is_no_url_is_told_with_its_setting_and_not_shown() {
    for option in ["--redis", "--cluster", "--sentinel"] {
        for url in [
            "hunter2",
            "127.0.0.1:6379",
            "http://hunter2@h",
            "redis://:hunter2@h:port",
        ] {
            let said = Tool::new().run(&format!("top {option} {url}"));
            assert_eq!(said.code, 2, "{url}: {said:?}");
            let expected =
                format!("error: {option}: this is no URL of a server: write redis://HOST:PORT");
            assert!(said.stderr.starts_with(&expected), "{url}: {said:?}");
            assert!(!said.stderr.contains("hunter2"), "{said:?}");
        }
    }
}

#[test]
fn a_part_of_a_url_that_is_not_known_is_named_with_its_setting() {
    for option in ["--redis", "--cluster", "--sentinel"] {
        let said = Tool::new().run(&format!("top {option} redis://:hunter2@h?db=3"));
        assert_eq!(said.code, 2, "{said:?}");
        let expected = format!("error: {option}: the Redis URL has a part that is not known");
        assert!(said.stderr.starts_with(&expected), "{said:?}");
        assert!(!said.stderr.contains("hunter2"), "{said:?}");
    }
}

#[tokio::test]
async fn a_slow_server_is_waited_for_as_long_as_the_timeout_says() {
    let site = Site::start().await;
    site.charge("api", "alice", 4).await;
    let url = slow(&site.server);
    let verb = format!("inspect user=alice --policy api --redis {url}");
    let said = site.tool.run(&format!("{verb} --timeout 60s"));
    assert_eq!(said.code, 0, "{said:?}");
    let said = site.tool.run(&format!("{verb} --timeout 100ms"));
    assert_eq!(said.code, 3, "{said:?}");
    says!(said.stderr => "did not answer in time: see --timeout");
}

/// A proxy that delays the first answer for longer than the library's own timeout.
fn slow(server: &Server) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let socket = server.socket_url().replace("unix://", "");
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = UnixStream::connect(&socket).unwrap();
            let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || forward(from, to));
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(1_500)); // the server's slowness
                forward(server, client);
            });
        }
    });
    url
}

fn forward(mut from: impl Read, mut to: impl Write + Close) {
    let _ = std::io::copy(&mut from, &mut to);
    to.close();
}

trait Close {
    fn close(&self);
}

impl Close for TcpStream {
    fn close(&self) {
        let _ = self.shutdown(std::net::Shutdown::Both);
    }
}

impl Close for UnixStream {
    fn close(&self) {
        let _ = self.shutdown(std::net::Shutdown::Both);
    }
}

#[test]
fn one_option_says_how_many_and_a_load_that_is_next_to_nothing_is_refused() {
    for verb in [
        "top",
        "blocks",
        "contributors user=a --policy api --window 1h",
        "simulate p.toml",
    ] {
        let help = Tool::new().run(&format!("{verb} --help")).stdout;
        assert!(help.contains("-n, --number <N>"), "{verb}: {help}");
    }
    for verb in ["top", "blocks"] {
        let help = Tool::new().run(&format!("{verb} --help")).stdout;
        assert!(help.contains("[default: 5%]"), "{verb}: {help}");
        let said = Tool::new().run(&format!("{verb} --load 0.01% --redis {NOBODY}"));
        assert_eq!(said.code, 2, "{said:?}");
        says!(said.stderr => "write a share from 0.1% to 100%");
    }
}
