//! The compiler's messages for the likeliest mistakes. Each mistake is compiled against the same library as this
//! program. The test looks for the decisive lines only, since the rest differs between versions of the compiler.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
    time::SystemTime,
};

use tempfile::TempDir;

/// The code in front of each mistake.
const PRELUDE: &str = r#"
#![allow(warnings)]
use axum::http::{Response, request::Parts};
use sluicegate::{*, middleware::*, policies::Policies};

fn policy() -> Policy { Policy::parse("ip", "10/1s").unwrap() }
fn layer() -> RateLimitLayer { RateLimitLayer::new(MemoryStore::new()) }
fn respond<B>(_: impl MakeRejection<B>) {}
"#;

/// Not a mistake: compiles with the right libraries.
const CORRECT: &str = r#"
fn right() {
    let layer = layer().limit(policy(), PeerIp).reject_with(|rejection, _head| rejection.status());
    let _: axum::Router = axum::Router::new().layer(layer);
}
"#;

/// The libraries to compile mistakes against.
struct Libraries {
    folder: PathBuf,
    sluicegate: PathBuf,
    axum: PathBuf,
}

impl Libraries {
    /// Takes the libraries beside this program. Others may be left from builds with other features.
    fn find() -> Self {
        let program = env::current_exe().unwrap();
        let folder = program.parent().unwrap();
        for sluicegate in newest(folder, "libsluicegate-") {
            for axum in newest(folder, "libaxum-") {
                let found = Self {
                    folder: folder.to_owned(),
                    sluicegate: sluicegate.clone(),
                    axum,
                };
                if found.compile(CORRECT).status.success() {
                    return found;
                }
            }
        }
        panic!(
            "no library in {} compiles what is correct",
            folder.display()
        );
    }

    fn shared() -> &'static Self {
        static FOUND: OnceLock<Libraries> = OnceLock::new();
        FOUND.get_or_init(Self::find)
    }

    fn compile(&self, code: &str) -> Output {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("mistake.rs");
        fs::write(&file, [PRELUDE, code].concat()).unwrap();
        Command::new(rustc())
            .args([
                "--edition",
                "2024",
                "--crate-type",
                "lib",
                "--emit",
                "metadata",
            ])
            .arg("-o")
            .arg(folder.path().join("mistake.rmeta"))
            .arg("-L")
            .arg(format!("dependency={}", self.folder.display()))
            .args([
                "--extern",
                &format!("sluicegate={}", self.sluicegate.display()),
            ])
            .args(["--extern", &format!("axum={}", self.axum.display())])
            .arg(&file)
            .output()
            .unwrap()
    }
}

/// The `rustc` of the cargo that runs this test.
fn rustc() -> PathBuf {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Path::new(&cargo).with_file_name("rustc")
}

/// The libraries with this prefix, the newest first.
fn newest(folder: &Path, name: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap());
    let mut found: Vec<(SystemTime, PathBuf)> = files
        .filter(|file| {
            let file_name = file.file_name();
            let file_name = file_name.to_string_lossy();
            file_name.starts_with(name) && file_name.ends_with(".rlib")
        })
        .map(|file| (file.metadata().unwrap().modified().unwrap(), file.path()))
        .collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

/// Asserts that the function does not compile, and that the message contains all of these hints.
fn assert_said(body: &str, hints: &[&str]) {
    let output = Libraries::shared().compile(&format!("fn mistake() {{ {body} }}"));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "this compiles: {body}");
    for hint in hints {
        assert!(
            said.contains(hint),
            "`{hint}` is missing for {body}\n{said}"
        );
    }
}

#[test]
fn rules_in_place_of_a_policy_are_to_be_parsed() {
    let hint = r#"`Policy::parse("name", "10/1s,240/1h")?`"#;
    assert_said(
        r#"layer().limit("10/1s", PeerIp);"#,
        &["`&str` chooses no policy", hint],
    );
    let forgotten = r#"layer().limit(Policy::parse("ip", "10/1s"), PeerIp);"#;
    assert_said(forgotten, &["chooses no policy", hint]);
}

#[test]
fn a_reference_to_a_policy_is_to_be_cloned() {
    assert_said(
        r#"let all = Policies::new([policy()]).unwrap();
           layer().limit(move |_: &Parts| all.get("ip"), PeerIp);"#,
        &["chooses no policy", "`policies.get(name).cloned()`"],
    );
}

#[test]
fn a_name_in_place_of_an_extractor_is_that_of_a_header() {
    assert_said(
        r#"layer().limit(policy(), "x-api-key");"#,
        &[
            "`&str` does not extract keys",
            r#"`Header::new("x-api-key")`"#,
        ],
    );
}

#[test]
fn a_text_is_no_key() {
    assert_said(
        r#"layer().limit(policy(), |_: &Parts| "alice");"#,
        &[
            "does not extract keys",
            "it answers a `Key`, an `Option<Key>`",
        ],
    );
}

#[test]
fn an_extractor_that_waits_goes_elsewhere() {
    assert_said(
        r#"layer().limit(policy(), |_: &Parts| async { Some(Key::new("a", "b")) });"#,
        &["does not extract keys", "goes to `charge_async`"],
    );
}

#[test]
fn a_closure_needs_the_type_of_its_argument() {
    let untyped = r#"|head| Some(Key::new("host", head.uri.host()?))"#;
    assert_said(
        &format!("layer().limit(policy(), {untyped});"),
        &["error[E0282]"],
    );
    let typed = format!("layer().limit(policy(), extract::from_fn({untyped}));");
    let output = Libraries::shared().compile(&format!("fn right() {{ {typed} }}"));
    assert!(output.status.success(), "`from_fn` says the type");
}

#[test]
fn a_store_has_to_be_connected() {
    let hint = "`RedisStore::connect(url).await?`";
    assert_said(
        r#"RateLimitLayer::new("redis://127.0.0.1/");"#,
        &["`&str` is neither a store nor a `Limiter`", hint],
    );
    assert_said(
        r#"RateLimitLayer::new(RedisStore::connect("redis://127.0.0.1/"));"#,
        &["is neither a store nor a `Limiter`", hint],
    );
    let cached = r#"store::Leases::new(RedisStore::connect("redis://127.0.0.1/"));"#;
    assert_said(cached, &["is not a store", hint]);
}

#[test]
fn a_body_that_is_not_made_of_text_needs_another_rejection() {
    assert_said(
        "struct BoxBody; respond::<BoxBody>(ProblemJson::default());",
        &[
            "makes no response with a body of type `BoxBody`",
            "`StatusOnly` needs `BoxBody: Default`",
            "in a tonic server: `.rejection(Grpc::new())`",
        ],
    );
}

#[test]
fn a_rejection_with_another_body_is_pointed_to_axums_way() {
    assert_said(
        "let closure = |_: &Rejection, _: &Parts| Response::new(String::new());
         let _: axum::Router = axum::Router::new().layer(layer().rejection(closure));",
        &[
            "makes no response with a body of type",
            "`RateLimitLayer::reject_with`",
        ],
    );
}

#[test]
fn a_look_up_of_charges_says_what_it_may_answer() {
    assert_said(
        "layer().charge_async(|_| async { 5 });",
        &[
            "is no answer of a look-up of charges",
            "answer a `Charge`, an `Option<Charge>`",
        ],
    );
}

#[test]
fn a_cost_takes_the_head_and_the_policy() {
    assert_said("layer().cost(|_head| 1);", &["error[E0593]", "2 arguments"]);
}
