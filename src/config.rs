//! Policies in configuration files, through serde.
//!
//! A policy's rules are one string, or a list of strings. A policy alone is `{name, rules}`; a set is a map from name to rules. A
//! shadow says so: `{name, rules, shadow: true}`, and in a set `{rules, shadow: true}` instead of the rules alone.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
    ser::SerializeStruct,
};

use crate::{policies::Policies, policy::Policy};

const FIELDS: &[&str] = &["name", "rules", "shadow"];
const ENTRY: &[&str] = &["rules", "shadow"];

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let len = FIELDS.len() - usize::from(!self.is_shadow());
        let mut policy = serializer.serialize_struct("Policy", len)?;
        policy.serialize_field("name", self.name())?;
        policy.serialize_field("rules", &self.to_string())?;
        if self.is_shadow() {
            policy.serialize_field("shadow", &true)?;
        } else {
            policy.skip_field("shadow")?;
        }
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
        serializer.collect_map(self.iter().map(|policy| (policy.name(), Unnamed(policy))))
    }
}

impl<'de> Deserialize<'de> for Policies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PoliciesVisitor)
    }
}

/// A policy of a set, whose name stands before it.
struct Unnamed<'a>(&'a Policy);

impl Serialize for Unnamed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rules = self.0.to_string();
        if !self.0.is_shadow() {
            return serializer.serialize_str(&rules);
        }
        let mut entry = serializer.serialize_struct("Policy", ENTRY.len())?;
        entry.serialize_field("rules", &rules)?;
        entry.serialize_field("shadow", &true)?;
        entry.end()
    }
}

/// All of a policy but its name.
struct Entry {
    rules: Rules,
    shadow: bool,
}

impl Entry {
    fn named<E: Error>(self, name: &str) -> Result<Policy, E> {
        let policy = Policy::parse(name, &self.rules.0).map_err(E::custom)?;
        Ok(if self.shadow { policy.shadow() } else { policy })
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
        f.write_str(
            "rules: `10/1s,120/1m`, a list of them, or `rules` and whether they are a `shadow`",
        )
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Entry, E> {
        let rules = RulesVisitor.visit_str(text)?;
        Ok(Entry {
            rules,
            shadow: false,
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Entry, A::Error> {
        let rules = RulesVisitor.visit_seq(list)?;
        Ok(Entry {
            rules,
            shadow: false,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Entry, A::Error> {
        Ok(read(map, ENTRY)?.1)
    }
}

/// The name, if it is one of the fields and stands there, and the rest.
fn read<'de, A: MapAccess<'de>>(
    mut map: A,
    fields: &'static [&'static str],
) -> Result<(Option<String>, Entry), A::Error> {
    let (mut name, mut rules, mut shadow) = (None, None, None);
    while let Some(field) = map.next_key::<Cow<'_, str>>()? {
        match &*field {
            it if !fields.contains(&it) => return Err(A::Error::unknown_field(it, fields)),
            "name" if name.is_none() => name = Some(map.next_value()?),
            "rules" if rules.is_none() => rules = Some(map.next_value()?),
            "shadow" if shadow.is_none() => shadow = Some(map.next_value()?),
            _ => return Err(A::Error::custom(format!("`{field}` stands twice"))),
        }
    }
    let rules = rules.ok_or_else(|| A::Error::missing_field("rules"))?;
    let shadow = shadow.unwrap_or(false);
    Ok((name, Entry { rules, shadow }))
}

/// The text of a policy's rules, as [`Policy::parse`] reads it.
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

struct PolicyVisitor;

impl<'de> Visitor<'de> for PolicyVisitor {
    type Value = Policy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a policy: its `name`, its `rules`, and whether it is a `shadow`")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Policy, A::Error> {
        let (name, entry) = read(map, FIELDS)?;
        let name = name.ok_or_else(|| A::Error::missing_field("name"))?;
        entry.named(&name)
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
            policies.push(entry.named(&name)?);
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
            (r#"{"ip":{"shadow":true}}"#, "missing field `rules`"),
            (
                r#"{"ip":{"rules":"1/1s","shadwo":true}}"#,
                "unknown field `shadwo`",
            ),
            (
                r#"{"ip":{"rules":"1/1s","name":"ip"}}"#,
                "unknown field `name`",
            ),
            (
                r#"{"ip":{"rules":"1/1s","shadow":1}}"#,
                "invalid type: integer `1`, expected a boolean",
            ),
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
                r#"{"name":"ip","rules":"1/1s","shadow":true,"shadow":true}"#,
                "`shadow` stands twice",
            ),
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
