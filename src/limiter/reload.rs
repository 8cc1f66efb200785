//! Replaces [`ReloadablePolicies`], and warns about counts that are lost by it. Data of the domain cannot warn.

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
    /// # Errors
    ///
    /// When a current policy is missing from the new ones. Nothing is replaced then.
    pub fn replace(&self, policies: Policies) -> Result<(), ConfigError> {
        for restart in self.swap(policies)? {
            warning::counts_restart(&restart);
        }
        Ok(())
    }
}
