//! The compiler's messages for the likeliest mistakes. Each mistake is compiled against the same library as this
//! program. The test looks for the decisive lines only, since the rest differs between versions of the compiler.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
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
        let folder = folder.display();
        panic!("no library in {folder} compiles what is correct");
    }

    fn shared() -> &'static Self {
        static FOUND: OnceLock<Libraries> = OnceLock::new();
        FOUND.get_or_init(Self::find)
    }

    fn compile(&self, code: &str) -> Output {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("mistake.rs");
        fs::write(&file, [PRELUDE, code].concat()).unwrap();
        let mut rustc = Command::new(rustc());
        rustc.args("--edition 2024 --crate-type lib --emit metadata -o".split(' '));
        rustc.arg(folder.path().join("mistake.rmeta"));
        rustc.arg(format!("-Ldependency={}", self.folder.display()));
        for (name, path) in [("sluicegate", &self.sluicegate), ("axum", &self.axum)] {
            let library = format!("{name}={}", path.display());
            rustc.args(["--extern", &library]);
        }
        rustc.arg(&file).output().unwrap()
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
    let is_meant = |file: &fs::DirEntry| {
        let file = file.file_name();
        let file = file.to_string_lossy();
        file.starts_with(name) && file.ends_with(".rlib")
    };
    let modified = |file: &fs::DirEntry| file.metadata().unwrap().modified().unwrap();
    let found = files.filter(is_meant);
    let mut found: Vec<_> = found.map(|file| (modified(&file), file.path())).collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

/// A mistake in each line, and in the next one the hints in the compiler's message.
const MISTAKES: &str = r#"
layer().limit("10/1s", PeerIp);
> `&str` chooses no policy > `Policy::parse("name", "10/1s,240/1h")?`
layer().limit(Policy::parse("ip", "10/1s"), PeerIp);
> chooses no policy > `Policy::parse("name", "10/1s,240/1h")?`
let all = Policies::new([policy()]).unwrap(); layer().limit(move |_: &Parts| all.get("ip"), PeerIp);
> chooses no policy > `policies.get(name).cloned()`
layer().limit(policy(), "x-api-key");
> `&str` does not extract keys > `Header::new("x-api-key")`
layer().limit(policy(), |_: &Parts| "alice");
> does not extract keys > it answers a `Key`, an `Option<Key>`
layer().limit(policy(), |_: &Parts| async { Some(Key::new("a", "b")) });
> does not extract keys > goes to `charge_async`
layer().limit(policy(), |head| Some(Key::new("host", head.uri.host()?)));
> error[E0282]
RateLimitLayer::new("redis://127.0.0.1/");
> `&str` is neither a store nor a `Limiter` > `RedisStore::connect(url).await?`
RateLimitLayer::new(RedisStore::connect("redis://127.0.0.1/"));
> is neither a store nor a `Limiter` > `RedisStore::connect(url).await?`
store::Leases::new(RedisStore::connect("redis://127.0.0.1/"));
> is not a store > `RedisStore::connect(url).await?`
struct BoxBody; respond::<BoxBody>(ProblemJson::default());
> makes no response with a body of type `BoxBody` > `StatusOnly` needs `BoxBody: Default` > in a tonic server: `.rejection(Grpc::new())`
let c = |_: &Rejection, _: &Parts| Response::new(String::new()); let _: axum::Router = axum::Router::new().layer(layer().rejection(c));
> makes no response with a body of type > `RateLimitLayer::reject_with`
layer().limit(policy(), |_| None);
> error[E0282]
layer().limit_first_of([(policy(), Header::new("x-user")), (policy(), PeerIp)]);
> error[E0308] > expected `Header`, found `PeerIp`
fn denied(r: &Rejection, _: &Parts) -> impl axum::response::IntoResponse { r.status() } layer().reject_with(denied);
> opaque type
layer().charge_async(|_| async { 5 });
> is no answer of a look-up of charges > answer a `Charge`, a `Vec<Charge>`
layer().cost(|_head| 1);
> error[E0593] > 2 arguments
"#;

#[test]
fn each_mistake_is_answered_with_its_mend() {
    let lines: Vec<&str> = MISTAKES.trim().lines().collect();
    let mistakes = || lines.chunks(2).enumerate();
    // All in one file, each in a line of its own, which errors name.
    let code = mistakes().map(|(number, it)| format!("fn mistake_{number}() {{ {} }}\n", it[0]));
    let output = Libraries::shared().compile(&code.collect::<String>());
    let said = String::from_utf8(output.stderr).unwrap();
    for (number, mistake) in mistakes() {
        let place = format!("mistake.rs:{}:", PRELUDE.lines().count() + 1 + number);
        let (body, hints) = (mistake[0], mistake[1].strip_prefix("> ").unwrap());
        let errors = said.split("\n\n").filter(|it| it.contains(&place));
        let errors = errors.collect::<Vec<_>>().join("\n\n");
        assert!(errors.contains("error"), "this compiles: {body}\n{said}");
        for hint in hints.split(" > ") {
            assert!(errors.contains(hint), "no `{hint}` for {body}\n{errors}");
        }
    }
}

#[test]
fn from_fn_says_the_type_of_a_closures_argument() {
    let typed = r#"layer().limit(policy(), extract::from_fn(|head| Some(Key::new("host", head.uri.host()?))));"#;
    let output = Libraries::shared().compile(&format!("fn right() {{ {typed} }}"));
    assert!(output.status.success());
}
