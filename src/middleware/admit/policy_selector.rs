//! [`PolicySelector`]: selects the policy of a limit for each request.

use std::{borrow::Cow, fmt, iter, sync::Arc};

use http::request::Parts;

use super::Routes;
use crate::domain::{
    error::{ConfigError, ExtractError},
    policies::{PoliciesRead, PolicyHandle, ReloadablePolicies},
    policy::Policy,
};

/// Selects the policy of a limit.
///
/// You can use
///
/// - a [`Policy`]: the same for all requests;
/// - a [`PolicyHandle`]: a policy that you can replace while the service runs;
/// - a closure over the head of the request: a policy by client, for instance by the tier that authentication has
///   found;
/// - [`by_name`](Self::by_name): the same from policies that you can replace;
/// - [`Routes`](super::Routes): a policy by method and path.
///
/// A closure returns a `Policy`, an `Option` or a `Result` of one. *No policy never means no limit:* `None` rejects the
/// request with a 400, as a missing key does, and so does an error, except for
/// [`Unavailable`](crate::error::ExtractErrorKind::Unavailable), which follows the failure policy. If you do not want
/// to limit a client, return [`Keys::skip`](crate::extract::Keys::skip) from the extractor: then no policy is selected.
/// A closure must not block: look up a tier in a database with [`charge_async`](crate::RateLimitLayer::charge_async). If
/// one closure is to choose policy and key, use [`charge`](crate::RateLimitLayer::charge).
///
/// Counts belong to the policy's name. Policies of different names are counted separately; policies of one name share
/// their counts, so that a client that changes its tier keeps its usage. A request must not charge one key under two
/// policies of one name that differ (rules, ban, failure policy or shadow): the response is a 500.
///
/// ```
/// use http::request::Parts;
/// use sluicegate::{Header, MemoryStore, Policy, RateLimitLayer};
///
/// /// Inserted into the extensions by the layer that authenticates.
/// #[derive(Clone)]
/// struct Tier(String);
///
/// let (free, pro) = (Policy::parse("requests", "60/1m")?, Policy::parse("requests", "600/1m")?);
/// let tier = move |head: &Parts| {
///     let Tier(name) = head.extensions.get()?;
///     match &**name {
///         "free" => Some(free.clone()),
///         "pro" => Some(pro.clone()),
///         _ => None,
///     }
/// };
/// let layer = RateLimitLayer::new(MemoryStore::new()).limit(tier, Header::new("x-api-key"));
/// # let _ = layer;
/// # Ok::<(), sluicegate::error::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct PolicySelector(pub(in crate::middleware) PolicySource);

type ChoosePolicy = dyn Fn(&Parts, &mut PoliciesRead) -> Result<Policy, ExtractError> + Send + Sync;

#[derive(Clone)]
pub(in crate::middleware) enum PolicySource {
    Fixed(Policy),
    Live(PolicyHandle),
    Closure(Arc<ChoosePolicy>),
    Routes(Arc<Routes>),
}

/// The policy of a request, and the factor of its cost; `None` if this limit does not apply.
pub(super) type Chosen<'a> = Option<(Cow<'a, Policy>, u64)>;

impl PolicySelector {
    /// Selects the policy of a name that depends on the request, such as `pro.requests` of
    /// [plans](crate::policies#plans), from policies that you can replace while the service runs. All limits of a layer
    /// that take policies of one set see the same version of the set.
    ///
    /// Without a name, or if no policy has the name, the request is rejected with a 400.
    pub fn by_name<N: AsRef<str>>(
        all: &ReloadablePolicies,
        name: impl Fn(&Parts) -> Option<N> + Send + Sync + 'static,
    ) -> Self {
        let _ = all.load(); // as code does that may ask for any name
        let all = all.clone();
        let choose = move |head: &Parts, read: &mut PoliciesRead| {
            let name = name(head);
            name.and_then(|it| read.of(&all).get(it.as_ref()).cloned())
                .into_policy()
        };
        Self(PolicySource::Closure(Arc::new(choose)))
    }

    pub(super) fn choose(
        &self,
        head: &Parts,
        read: &mut PoliciesRead,
    ) -> Result<Chosen<'_>, ExtractError> {
        let policy = match &self.0 {
            PolicySource::Fixed(policy) => Cow::Borrowed(policy),
            PolicySource::Live(policy) => Cow::Owned(read.load(policy)),
            PolicySource::Closure(choose) => Cow::Owned(choose(head, read)?),
            PolicySource::Routes(routes) => return routes.choose(head, read),
        };
        Ok(Some((policy, 1)))
    }

    /// The source of the policy, or those of all routes.
    pub(super) fn sources(&self) -> Box<dyn Iterator<Item = &PolicySource> + '_> {
        match &self.0 {
            PolicySource::Routes(routes) => Box::new(routes.sources()),
            source => Box::new(iter::once(source)),
        }
    }

    /// All policies that are known before the first request.
    pub(in crate::middleware) fn known(&self) -> impl Iterator<Item = Policy> {
        self.sources().filter_map(PolicySource::load)
    }

    /// The first error of a table of routes.
    pub(in crate::middleware) fn mistake(&self) -> Option<ConfigError> {
        match &self.0 {
            PolicySource::Routes(routes) => routes.mistake.clone(),
            _ => None,
        }
    }

    /// Fails if a request could be charged under two policies of one name that differ, now or after a reload.
    pub(in crate::middleware) fn agrees_with(&self, other: &Self) -> Result<(), ConfigError> {
        let mut both = self
            .sources()
            .flat_map(|one| other.sources().map(move |twin| (one, twin)));
        both.try_for_each(|(one, twin)| one.agrees_with(twin))
    }
}

impl PolicySource {
    /// The policy as it is now; `None` if it depends on the request.
    pub(super) fn load(&self) -> Option<Policy> {
        match self {
            Self::Fixed(policy) => Some(policy.clone()),
            Self::Live(handle) => Some(handle.load()),
            Self::Closure(_) | Self::Routes(_) => None,
        }
    }

    fn agrees_with(&self, other: &Self) -> Result<(), ConfigError> {
        let (Some(policy), Some(twin)) = (self.load(), other.load()) else {
            return Ok(());
        };
        let error = match (self, other) {
            _ if policy.name() != twin.name() => return Ok(()),
            // A request reads each set once, so both policies are of the same version.
            (Self::Live(one), Self::Live(other)) if one.is_of_same_set(other) => return Ok(()),
            _ if policy != twin => ConfigError::new(format_args!(
                "two policies of one layer have the same name and differ: {policy:?}, {twin:?}"
            )),
            (Self::Fixed(_), Self::Fixed(_)) => return Ok(()),
            _ => ConfigError::new(format_args!(
                "two limits of one layer have a policy of the same name, `{}`, and a reload could change one of them \
                 alone: take both from one `ReloadablePolicies`",
                policy.name()
            )),
        };
        Err(error)
    }
}

impl From<Policy> for PolicySelector {
    fn from(policy: Policy) -> Self {
        Self(PolicySource::Fixed(policy))
    }
}

/// Clones the policy, which is cheap.
impl From<&Policy> for PolicySelector {
    fn from(policy: &Policy) -> Self {
        policy.clone().into()
    }
}

impl From<PolicyHandle> for PolicySelector {
    fn from(policy: PolicyHandle) -> Self {
        Self(PolicySource::Live(policy))
    }
}

impl<F, R> From<F> for PolicySelector
where
    F: Fn(&Parts) -> R + Send + Sync + 'static,
    R: IntoPolicy,
{
    fn from(choose: F) -> Self {
        let choose = move |head: &Parts, _: &mut PoliciesRead| choose(head).into_policy();
        Self(PolicySource::Closure(Arc::new(choose)))
    }
}

impl From<Routes> for PolicySelector {
    fn from(routes: Routes) -> Self {
        Self(PolicySource::Routes(Arc::new(routes)))
    }
}

/// The first argument of [`limit`](crate::RateLimitLayer::limit): any type that converts to a [`PolicySelector`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` chooses no policy",
    note = "the rules of a policy are parsed: `Policy::parse(\"name\", \"10/1s,240/1h\")?`",
    note = "a closure needs its argument's type: `|head: &http::request::Parts| …`, or `extract::from_fn(|head| …)`",
    note = "it answers a `Policy`, an `Option<Policy>` or a `Result<Policy, ExtractError>`: of a reference, a copy, \
            which is cheap: `policies.get(name).cloned()`"
)]
pub trait IntoPolicySelector {
    /// Converts the argument.
    fn into_selector(self) -> PolicySelector;
}

// Otherwise an error would name `Into`, whose notes cannot help you.
#[diagnostic::do_not_recommend]
impl<P: Into<PolicySelector>> IntoPolicySelector for P {
    fn into_selector(self) -> PolicySelector {
        self.into()
    }
}

/// The return types of a closure that chooses a policy.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no answer of a closure that chooses a policy",
    note = "answer a `Policy`, an `Option<Policy>` or a `Result<Policy, ExtractError>`: of a reference, a copy, which \
            is cheap: `policies.get(name).cloned()`"
)]
pub trait IntoPolicy {
    /// Converts the result.
    ///
    /// # Errors
    ///
    /// When the result is an error, or `None`, which becomes [`Missing`](crate::error::ExtractErrorKind::Missing).
    fn into_policy(self) -> Result<Policy, ExtractError>;
}

impl IntoPolicy for Policy {
    fn into_policy(self) -> Result<Policy, ExtractError> {
        Ok(self)
    }
}

impl IntoPolicy for Option<Policy> {
    fn into_policy(self) -> Result<Policy, ExtractError> {
        self.ok_or_else(|| ExtractError::missing("there is no policy for the request"))
    }
}

impl IntoPolicy for Result<Policy, ExtractError> {
    fn into_policy(self) -> Result<Policy, ExtractError> {
        self
    }
}

impl fmt::Debug for PolicySelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            PolicySource::Fixed(policy) => policy.fmt(f),
            PolicySource::Live(policy) => policy.fmt(f),
            PolicySource::Closure(_) => f.write_str("Closure"),
            PolicySource::Routes(routes) => routes.fmt(f),
        }
    }
}
