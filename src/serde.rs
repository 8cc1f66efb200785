//! Policies in configuration files, through serde.
//!
//! A policy's rules are one string, or a list of strings. A policy alone is `{name, rules, on_failure, shadow}`, the last two of
//! which may be left out; a set is a map from name to rules, or to `{rules, on_failure, shadow}`.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
    ser::SerializeStruct,
};

use crate::{failure::FailurePolicy, policies::Policies, policy::Policy};

const FIELDS: &[&str] = &["name", "rules", "on_failure", "shadow"];
const ENTRY: &[&str] = &["rules", "on_failure", "shadow"];

impl Serialize for FailurePolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for FailurePolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        [Self::Open, Self::Local, Self::Closed]
            .into_iter()
            .find(|it| it.as_str() == text)
            .ok_or_else(|| D::Error::unknown_variant(&text, &["open", "local", "closed"]))
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entry = Entry::of(self);
        let mut policy = serializer.serialize_struct("Policy", 2 + entry.options())?;
        policy.serialize_field("name", self.name())?;
        entry.write(&mut policy)?;
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
        let entries = self.iter().map(|policy| (policy.name(), Entry::of(policy)));
        serializer.collect_map(entries)
    }
}

/// All of a policy but its name.
struct Entry {
    rules: Rules,
    on_failure: Option<FailurePolicy>,
    shadow: bool,
}

impl Entry {
    fn of(policy: &Policy) -> Self {
        Self {
            rules: Rules(policy.to_string()),
            on_failure: policy.failure_policy(),
            shadow: policy.is_shadow(),
        }
    }

    /// How many of the fields are said that may be left out.
    fn options(&self) -> usize {
        usize::from(self.on_failure.is_some()) + usize::from(self.shadow)
    }

    fn write<S: SerializeStruct>(&self, fields: &mut S) -> Result<(), S::Error> {
        fields.serialize_field("rules", &self.rules.0)?;
        match self.on_failure {
            Some(on_failure) => fields.serialize_field("on_failure", &on_failure)?,
            None => fields.skip_field("on_failure")?,
        }
        if self.shadow {
            fields.serialize_field("shadow", &true)
        } else {
            fields.skip_field("shadow")
        }
    }

    fn policy<E: Error>(self, name: &str) -> Result<Policy, E> {
        let mut policy = Policy::parse(name, &self.rules.0).map_err(E::custom)?;
        if let Some(on_failure) = self.on_failure {
            policy = policy.on_failure(on_failure);
        }
        Ok(if self.shadow { policy.shadow() } else { policy })
    }
}

impl From<Rules> for Entry {
    fn from(rules: Rules) -> Self {
        Self {
            rules,
            on_failure: None,
            shadow: false,
        }
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.options() == 0 {
            return serializer.serialize_str(&self.rules.0);
        }
        let mut entry = serializer.serialize_struct("Entry", 1 + self.options())?;
        self.write(&mut entry)?;
        entry.end()
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
        RulesVisitor.visit_str(text).map(Entry::from)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Entry, A::Error> {
        RulesVisitor.visit_seq(list).map(Entry::from)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Entry, A::Error> {
        read_fields(map, ENTRY).map(|(_, entry)| entry)
    }
}

/// A name, if that is one of `fields`, and an entry.
fn read_fields<'de, A: MapAccess<'de>>(
    mut map: A,
    fields: &'static [&'static str],
) -> Result<(String, Entry), A::Error> {
    let (mut name, mut rules, mut on_failure, mut shadow) = (None, None, None, None);
    while let Some(field) = map.next_key::<Cow<'_, str>>()? {
        match &*field {
            other if !fields.contains(&other) => {
                return Err(A::Error::unknown_field(other, fields));
            }
            "name" if name.is_none() => name = Some(map.next_value()?),
            "rules" if rules.is_none() => rules = Some(map.next_value()?),
            "on_failure" if on_failure.is_none() => on_failure = Some(map.next_value()?),
            "shadow" if shadow.is_none() => shadow = Some(map.next_value()?),
            _ => return Err(A::Error::custom(format!("`{field}` stands twice"))),
        }
    }
    if name.is_none() && fields.contains(&"name") {
        return Err(A::Error::missing_field("name"));
    }
    let rules = rules.ok_or_else(|| A::Error::missing_field("rules"))?;
    let entry = Entry {
        rules,
        on_failure,
        shadow: shadow.unwrap_or_default(),
    };
    Ok((name.unwrap_or_default(), entry))
}

impl<'de> Deserialize<'de> for Policies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PoliciesVisitor)
    }
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
        f.write_str("a policy: its `name` and its `rules`")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Policy, A::Error> {
        let (name, entry) = read_fields(map, FIELDS)?;
        entry.policy(&name)
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
