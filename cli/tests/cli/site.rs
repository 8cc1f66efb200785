//! A server with the counts of a service, and the tool.

use std::{process::Command, time::Duration};

use serde_json::Value;
use sluicegate::{Charge, Key, Limiter, Policy, RedisStore};

use crate::tool::{Said, Tool, said};
use support::redis::Server;

/// The service's policies. Their windows are so long that no unit is released during a test.
pub(crate) const POLICIES: &str = "\
api = \"10/1d,100/2d\"
login = \"3/1d@fixed\"
rehearsal = { rules = \"2/1d\", shadow = true }
";

pub(crate) struct Site {
    pub(crate) server: Server,
    pub(crate) tool: Tool,
    pub(crate) limiter: Limiter,
}

impl Site {
    /// The tool's configuration names the server, but not the policies, which are in `policies.toml`.
    pub(crate) async fn start() -> Self {
        let server = Server::start();
        let tool = Tool::new();
        tool.write("sluicegate.toml", format!("redis = \"{}\"", server.url()));
        tool.write("policies.toml", POLICIES);
        let store = RedisStore::connect(server.url()).await.unwrap();
        // Publishes only when a test asks for it.
        let limiter = Limiter::new(store).publish_policies(false);
        let limiter = limiter.timeout(Duration::from_secs(30));
        Self {
            server,
            tool,
            limiter,
        }
    }

    /// A process of the service, which publishes policies.
    pub(crate) async fn service(&self) -> Limiter {
        let store = RedisStore::connect(self.server.url()).await.unwrap();
        Limiter::new(store).timeout(Duration::from_secs(30))
    }

    /// Charges `user=NAME`.
    pub(crate) async fn charge(&self, policy: &str, user: &str, cost: u64) {
        let charge = Charge::new(&self::policy(policy), Key::new("user", user), cost);
        assert!(self.limiter.check([charge]).await.unwrap().is_allowed());
    }

    /// The output at a terminal with this number of columns.
    #[cfg(target_os = "linux")]
    pub(crate) fn at_terminal(&self, columns: u16, args: &str) -> String {
        let program = env!("CARGO_BIN_EXE_sluicegate");
        let shell = format!("stty cols {columns}; {program} {args}");
        let mut script = Command::new("script");
        script.current_dir(self.tool.folder()).env("NO_COLOR", "1");
        said(script.args(["-qec", &shell, "/dev/null"]), b"").stdout
    }

    /// Runs the tool with `--json`. Asserts the exit code, and returns the document.
    pub(crate) fn json(&self, args: &str, code: i32) -> Value {
        let said = self.tool.run(&format!("{args} --json"));
        assert_eq!(said.code, code, "{said:?}");
        serde_json::from_str(&said.stdout).unwrap()
    }

    /// Runs the tool. Asserts the exit code 0, and returns the text.
    pub(crate) fn text(&self, args: &str) -> String {
        let said: Said = self.tool.run(args);
        assert_eq!(said.code, 0, "{said:?}");
        assert!(!said.stdout.contains('\x1b'), "{said:?}");
        said.stdout
    }
}

/// A policy of [`POLICIES`].
pub(crate) fn policy(name: &str) -> Policy {
    let policies: sluicegate::policies::Policies = toml::from_str(POLICIES).unwrap();
    policies.get(name).unwrap().clone()
}
