//! A server with the counts of a service, and the tool.

use std::time::Duration;

use serde_json::Value;
use sluicegate::{Charge, Key, Limiter, Policy, RedisStore};

use crate::tool::{Said, Tool};
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
        let limiter = Limiter::new(store).timeout(Duration::from_secs(30));
        let limiter = limiter.publish_policies(false);
        Self {
            server,
            tool,
            limiter,
        }
    }

    /// Charges `user=NAME`.
    pub(crate) async fn charge(&self, policy: &str, user: &str, cost: u64) {
        let charge = Charge::new(&self::policy(policy), Key::new("user", user), cost);
        assert!(self.limiter.check([charge]).await.unwrap().is_allowed());
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
