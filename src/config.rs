//! Policies in configuration files, through serde.
//!
//! A policy's rules are one string, or a list of strings. A policy alone is `{name, rules}`; a set is a map from name to rules.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
    ser::SerializeStruct,
};

use crate::{policies::Policies, policy::Policy};

const FIELDS: &[&str] = &["name", "rules"];

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut policy = serializer.serialize_struct("Policy", FIELDS.len())?;
        policy.serialize_field("name", self.name())?;
        policy.serialize_field("rules", &self.to_string())?;
        policy.end()
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_struct("Policy", FIELDS, PolicyVisitor)
    }
}

impl Serialize for Policies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rules = self
            .iter()
            .map(|policy| (policy.name(), policy.to_string()));
        serializer.collect_map(rules)
    }
}

impl<'de> Deserialize<'de> for Policies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PoliciesVisitor)
    }
}

/// The text of a policy's rules, as [`Policy::parse`] reads it.
struct Rules(String);

impl Rules {
    fn of<E: Error>(self, name: &str) -> Result<Policy, E> {
        Policy::parse(name, &self.0).map_err(E::custom)
    }
}

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

struct PolicyVisitor;

impl<'de> Visitor<'de> for PolicyVisitor {
    type Value = Policy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a policy: its `name` and its `rules`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Policy, A::Error> {
        let (mut name, mut rules) = (None::<String>, None::<Rules>);
        while let Some(field) = map.next_key::<Cow<'_, str>>()? {
            match &*field {
                "name" if name.is_none() => name = Some(map.next_value()?),
                "rules" if rules.is_none() => rules = Some(map.next_value()?),
                "name" | "rules" => {
                    return Err(A::Error::custom(format!("`{field}` stands twice")));
                }
                other => return Err(A::Error::unknown_field(other, FIELDS)),
            }
        }
        let name = name.ok_or_else(|| A::Error::missing_field("name"))?;
        let rules = rules.ok_or_else(|| A::Error::missing_field("rules"))?;
        rules.of(&name)
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
        while let Some((name, rules)) = map.next_entry::<Cow<'_, str>, Rules>()? {
            policies.push(rules.of(&name)?);
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

        let policy: Policy = serde_json::from_str(r#"{"rules":"10/1s","name":"ip"}"#).unwrap();
        let written = serde_json::to_string(&policy).unwrap();
        assert_eq!(written, r#"{"name":"ip","rules":"10/1s"}"#);
        assert_eq!(serde_json::from_str::<Policy>(&written).unwrap(), policy);
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
        }
        for (text, expected) in [
            (r#"{"name":"ip"}"#, "missing field `rules`"),
            (r#"{"rules":"1/1s"}"#, "missing field `name`"),
            (r#"{"name":"ip","rule":"1/1s"}"#, "unknown field `rule`"),
            (
                r#"{"name":"ip","name":"ip","rules":"1/1s"}"#,
                "`name` stands twice",
            ),
            (
                r#"{"name":"ip","rules":"1/s/1"}"#,
                "policy `ip`: rule `1/s/1`",
            ),
        ] {
            let error = serde_json::from_str::<Policy>(text)
                .unwrap_err()
                .to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
