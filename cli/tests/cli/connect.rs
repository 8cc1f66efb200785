//! Messages about a server that cannot be called: they name the server and the setting, and never a password.

use std::{
    io::{Read, Write},
    net::TcpListener,
};

use support::redis::Server;

use crate::{
    site::Site,
    tool::{Tool, rows, said},
};
use support::{sentinel::Group, served::limited};

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
fn what_is_no_url_or_has_an_unknown_part_is_told_with_its_setting_and_not_shown() {
    let table = "
        hunter2 | this is no URL of a server: write redis://HOST:PORT
        127.0.0.1:6379 | this is no URL of a server
        http://hunter2@h | this is no URL of a server
        redis://:hunter2@h:port | this is no URL of a server
        redis://:hunter2@h?db=3 | the Redis URL has a part that is not known
    ";
    for [url, expected] in rows(table) {
        for option in ["--redis", "--cluster", "--sentinel"] {
            let said = Tool::new().run(&format!("top {option} {url}"));
            assert_eq!(said.code, 2, "{url}: {said:?}");
            begins!(said.stderr => &format!("error: {option}: {expected}"));
            says_not!(said.stderr => "hunter2");
        }
    }
}

#[test]
fn the_password_of_the_user_is_read_from_a_file() {
    let server = Server::with(&["--requirepass", "sesame"]);
    let tool = Tool::new();
    tool.write("secret", "sesame\n");
    let table = "
        | 3 | wants a password
        --password-file secret | 0 |
        --password-file nowhere | 3 | the source of credentials gives none that the server accepts
    ";
    for [option, code, expected] in rows(table) {
        let said = tool.run(&format!("top --redis {} {option}", server.url()));
        assert_eq!(said.code.to_string(), code, "{said:?}");
        says!(said.stderr => &*expected);
    }
    tool.write("sluicegate.toml", "password_file = 'secret'");
    assert_eq!(tool.run(&format!("top --redis {}", server.url())).code, 0);
}

#[tokio::test]
async fn a_slow_server_is_waited_for_as_long_as_the_timeout_says() {
    let site = Site::start().await;
    for (timeout, expected) in [
        ("60s", "0"),
        ("100ms", "3 | did not answer in time: see --timeout"),
    ] {
        // For longer than the library's own timeout.
        let () = site.server.run("CLIENT PAUSE 1500");
        site.tool.told(&format!(
            "inspect user=alice --policy api --timeout {timeout} | {expected}"
        ));
    }
}

#[test]
fn one_option_says_how_many_and_a_load_that_is_next_to_nothing_is_refused() {
    Tool::new().told(&format!(
        "
        top --help | 0 | -n, --number <N> | [default: 5%]
        blocks --help | 0 | -n, --number <N> | [default: 5%]
        contributors --help | 0 | -n, --number <N>
        simulate --help | 0 | -n, --number <N>
        top --load 0.01% --redis {NOBODY} | 2 | write a share from 0.1% to 100%
        blocks --load 0.01% --redis {NOBODY} | 2 | write a share from 0.1% to 100%
        "
    ));
}

#[tokio::test]
async fn what_is_no_redis_server_or_has_no_address_is_told_in_its_words() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let web = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut request = [0; 1_024];
            let _ = client.read(&mut request);
            let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let group = Group::start(&[]);
    let sentinel = &group.urls()[0];
    Tool::new().told(&format!(
        "
        top --redis redis://{web} | 3 | cannot be read: is there a Redis server at this port?
        top --redis redis://no-such-host.invalid --timeout 30s | 3 | cannot be reached: the name of the host is not known
        top --redis {sentinel} | 2 | this is a sentinel: name it by --sentinel, with --primary
        doctor --redis {sentinel} | 2 | this is a sentinel
        "
    ));
}

#[tokio::test]
async fn the_right_that_is_missing_first_is_named() {
    let site = Site::start().await;
    let url = limited(&site.server, &["~sluicegate:*", "+get", "+time"]);
    site.tool.told(&format!(
        "inspect user=alice --redis {url} | 3 | the published policies could not be read | the right `+hgetall` is missing"
    ));
}
