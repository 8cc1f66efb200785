//! Replaces [`ReloadablePolicies`], and warns about counts that are lost by it and about misspelled names. Data of the
//! domain cannot warn.

use crate::{
    domain::{
        error::ConfigError,
        policies::{Policies, ReloadablePolicies},
    },
    warning,
};

impl ReloadablePolicies {
    /// Replaces all policies. You may add new names. A request that has read the old policies keeps them until it is
    /// decided.
    ///
    /// If a [calendar rule](crate::Rule::per_month) replaces one with another period, zone or first day, the new rule
    /// starts empty, and the log has a warning for each such policy (feature `tracing`).
    ///
    /// If a new name is similar to a current one, such as `logn` beside `login`, the log has a warning as well: no layer
    /// uses the new policy, so that its rules change nothing. The warning needs layers with [handles](Self::policy). If
    /// your code reads policies without them ([`get`](Self::get), [`load`](Self::load)), any name may be in use.
    ///
    /// # Errors
    ///
    /// When a current policy is missing from the new ones. Nothing is replaced then.
    pub fn replace(&self, policies: Policies) -> Result<(), ConfigError> {
        let misspelled = self.misspelled(&policies);
        for restart in self.swap(policies)? {
            warning::counts_restart(&restart);
        }
        if let Some((name, similar)) = misspelled {
            warning::unused_policy(&name, &similar);
        }
        Ok(())
    }
}
