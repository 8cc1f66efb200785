//! Rules and policies in configuration files, through serde.
//!
//! A rule is its text. A policy's rules are one string, or a list of strings. A policy alone is `{name, rules,
//! on_failure, shadow}`, the last two of which may be left out; a set is a map from name to rules, or to `{rules,
//! on_failure, shadow}`.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};

use crate::{failure::FailurePolicy, policies::Policies, policy::Policy, rule::Rule};

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let named = Named {
            name: self.name().into(),
            rules: Rules(self.to_string()),
            on_failure: self.failure_policy(),
            shadow: self.is_shadow(),
        };
        named.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_struct("Policy", FIELDS, PolicyVisitor)
    }
}

const FIELDS: &[&str] = &["name", "rules", "on_failure", "shadow"];

/// Makes the policy while the map is read, so that an error tells where it is.
struct PolicyVisitor;

impl<'de> Visitor<'de> for PolicyVisitor {
    type Value = Policy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a policy: its `name` and its `rules`")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Policy, A::Error> {
        let it = Named::deserialize(MapAccessDeserializer::new(map))?;
        policy(&it.name, &it.rules, it.on_failure, it.shadow)
    }
}

fn policy<E: Error>(
    name: &str,
    rules: &Rules,
    on_failure: Option<FailurePolicy>,
    shadow: bool,
) -> Result<Policy, E> {
    let mut policy = Policy::parse(name, &rules.0).map_err(E::custom)?;
    if let Some(on_failure) = on_failure {
        policy = policy.on_failure(on_failure);
    }
    Ok(if shadow { policy.shadow() } else { policy })
}

impl Serialize for Policies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entries = self.iter().map(|policy| (policy.name(), Entry::of(policy)));
        serializer.collect_map(entries)
    }
}

impl<'de> Deserialize<'de> for Policies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PoliciesVisitor)
    }
}

/// A policy alone.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Policy", deny_unknown_fields)]
struct Named {
    name: String,
    rules: Rules,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_failure: Option<FailurePolicy>,
    #[serde(default, skip_serializing_if = "is_false")]
    shadow: bool,
}

/// All of a policy but its name: serde's `flatten` would let unknown fields pass.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    rules: Rules,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_failure: Option<FailurePolicy>,
    #[serde(default, skip_serializing_if = "is_false")]
    shadow: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_false(it: &bool) -> bool {
    !*it
}

/// The value of one name in a set. Not read as an untagged enum, whose errors do not say what is wrong, or where.
#[derive(Serialize)]
#[serde(untagged)]
enum Entry {
    Rules(Rules),
    Fields(Fields),
}

impl Entry {
    fn of(policy: &Policy) -> Self {
        let rules = Rules(policy.to_string());
        match (policy.failure_policy(), policy.is_shadow()) {
            (None, false) => Self::Rules(rules),
            (on_failure, shadow) => Self::Fields(Fields {
                rules,
                on_failure,
                shadow,
            }),
        }
    }

    fn policy<E: Error>(self, name: &str) -> Result<Policy, E> {
        match self {
            Self::Rules(rules) => policy(name, &rules, None, false),
            Self::Fields(it) => policy(name, &it.rules, it.on_failure, it.shadow),
        }
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EntryVisitor)
    }
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rules: `10/1s,120/1m`, a list of them, or `rules`, `on_failure` and `shadow`")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Entry, E> {
        RulesVisitor.visit_str(text).map(Entry::Rules)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Entry, A::Error> {
        RulesVisitor.visit_seq(list).map(Entry::Rules)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Entry, A::Error> {
        Fields::deserialize(MapAccessDeserializer::new(map)).map(Entry::Fields)
    }
}

/// The text of a policy's rules, as [`Policy::parse`] reads it.
#[derive(Serialize)]
struct Rules(String);

impl<'de> Deserialize<'de> for Rules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RulesVisitor)
    }
}

struct RulesVisitor;

impl<'de> Visitor<'de> for RulesVisitor {
    type Value = Rules;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rules: `10/1s,120/1m`, or a list of them")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Rules, E> {
        Ok(Rules(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Rules, A::Error> {
        let mut rules: Vec<Cow<'_, str>> = Vec::new();
        while let Some(rule) = list.next_element()? {
            rules.push(rule);
        }
        Ok(Rules(rules.join(",")))
    }
}

struct PoliciesVisitor;

impl<'de> Visitor<'de> for PoliciesVisitor {
    type Value = Policies;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from policies' names to their rules")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Policies, A::Error> {
        let mut policies = Vec::new();
        while let Some((name, entry)) = map.next_entry::<Cow<'_, str>, Entry>()? {
            policies.push(entry.policy(&name)?);
        }
        Policies::new(policies).map_err(A::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_and_written_back() {
        let text = r#"{"ip":["10/1s","120/60s"],"user":"1/1d@fixed"}"#;
        let policies: Policies = serde_json::from_str(text).unwrap();
        let written = serde_json::to_string(&policies).unwrap();
        assert_eq!(written, r#"{"ip":"10/1s,120/1m","user":"1/1d@fixed"}"#);
        assert_eq!(
            serde_json::from_str::<Policies>(&written).unwrap(),
            policies
        );

        for text in [
            r#"{"ip":{"rules":"10/1s","on_failure":"local"},"user":"1/1d"}"#,
            r#"{"login":{"rules":"10/1s","on_failure":"closed"}}"#,
        ] {
            let policies: Policies = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&policies).unwrap(), text);
        }
        let text = r#"{"name":"ip","rules":"10/1s","on_failure":"open"}"#;
        let policy: Policy = serde_json::from_str(text).unwrap();
        assert_eq!(policy.failure_policy(), Some(FailurePolicy::Open));
        assert_eq!(serde_json::to_string(&policy).unwrap(), text);

        let policy: Policy = serde_json::from_str(r#"{"rules":"10/1s","name":"ip"}"#).unwrap();
        let written = serde_json::to_string(&policy).unwrap();
        assert_eq!(written, r#"{"name":"ip","rules":"10/1s"}"#);
        assert_eq!(serde_json::from_str::<Policy>(&written).unwrap(), policy);
    }

    #[test]
    fn a_shadow_stays_one_when_it_is_read_and_written_back() {
        let text =
            r#"{"now":{"rules":["10/1s"],"shadow":false},"soon":{"shadow":true,"rules":"5/1s"}}"#;
        let policies: Policies = serde_json::from_str(text).unwrap();
        let shadows: Vec<bool> = policies.iter().map(Policy::is_shadow).collect();
        assert_eq!(shadows, [false, true]);
        let json = serde_json::to_string(&policies).unwrap();
        assert_eq!(
            json,
            r#"{"now":"10/1s","soon":{"rules":"5/1s","shadow":true}}"#
        );
        assert_eq!(serde_json::from_str::<Policies>(&json).unwrap(), policies);
        let toml = toml::to_string(&policies).unwrap();
        assert_eq!(toml::from_str::<Policies>(&toml).unwrap(), policies);

        let soon = policies.get("soon").unwrap();
        let json = serde_json::to_string(soon).unwrap();
        assert_eq!(json, r#"{"name":"soon","rules":"5/1s","shadow":true}"#);
        assert_eq!(&serde_json::from_str::<Policy>(&json).unwrap(), soon);

        let text = r#"{"both":{"rules":"5/1s","on_failure":"closed","shadow":true}}"#;
        let policies: Policies = serde_json::from_str(text).unwrap();
        assert!(policies.get("both").unwrap().is_shadow());
        assert_eq!(serde_json::to_string(&policies).unwrap(), text);
    }

    #[test]
    fn a_wrong_entry_is_named_with_its_policy_and_rule() {
        for (text, expected) in [
            (r#"{"ip":"10"}"#, "policy `ip`: rule `10`: write it as"),
            (
                r#"{"ip":["1/1s","1/1d@"]}"#,
                "policy `ip`: rule `1/1d@`: write it as",
            ),
            (
                r#"{"ip":["1/1s","2/1s"]}"#,
                "policy `ip`: rules `1/1s` and `2/1s` have the same",
            ),
            (r#"{"i p":"1/1s"}"#, "policy name `i p` must be"),
            (r#"{"ip":"1/1s","ip":"2/1s"}"#, "policy `ip` is named twice"),
            (r#"{"ip":""}"#, "policy `ip`: rule ``: write it as"),
            (r#"{"ip":[]}"#, "policy `ip`: rule ``: write it as"),
            (r#"{"ip":{"on_failure":"open"}}"#, "missing field `rules`"),
            (
                r#"{"ip":{"rules":"1/1s","on_failure":"ajar"}}"#,
                "unknown variant `ajar`, expected one of `open`, `local`, `closed`",
            ),
            (
                r#"{"ip":{"rules":"1/1s","name":"ip"}}"#,
                "unknown field `name`, expected one of `rules`, `on_failure`, `shadow`",
            ),
            (r#"{"ip":{"shadow":true}}"#, "missing field `rules`"),
            (
                r#"{"ip":{"rules":"1/1s","shadwo":true}}"#,
                "unknown field `shadwo`",
            ),
            (
                r#"{"ip":{"rules":"1/1s","shadow":1}}"#,
                "invalid type: integer `1`, expected a boolean",
            ),
            (r#"{"ip":10}"#, "invalid type: integer `10`, expected rules"),
            (
                r#"["10/1s"]"#,
                "invalid type: sequence, expected a map from policies' names",
            ),
        ] {
            let error = serde_json::from_str::<Policies>(text)
                .unwrap_err()
                .to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
            assert!(error.contains(" at line 1 column "), "{text}: {error}");
        }
        for (text, expected) in [
            (r#"{"name":"ip"}"#, "missing field `rules`"),
            (r#"{"rules":"1/1s"}"#, "missing field `name`"),
            (r#"{"name":"ip","rule":"1/1s"}"#, "unknown field `rule`"),
            (
                r#"{"name":"ip","rules":"1/1s","shadow":true,"shadow":true}"#,
                "duplicate field `shadow`",
            ),
            (
                r#"{"name":"ip","name":"ip","rules":"1/1s"}"#,
                "duplicate field `name`",
            ),
            (
                r#"{"name":"ip","rules":"1/s/1"}"#,
                "policy `ip`: rule `1/s/1`",
            ),
            (
                r#"["ip","1/1s"]"#,
                "invalid type: sequence, expected a policy: its `name` and its `rules`",
            ),
        ] {
            let error = serde_json::from_str::<Policy>(text)
                .unwrap_err()
                .to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
            assert!(error.contains(" at line 1 column "), "{text}: {error}");
        }
    }
}
