//! Rules and policies in configuration files, through serde.
//!
//! A rule is a text. The rules of a policy are one string, or a list of strings. A single policy is
//! `{name, rules, strikes, ban, on_failure, shadow, unit, hidden}`, and you may leave out all but the first two. A set
//! is a map from name to rules, or to the same fields without the name.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{
        DeserializeSeed, Error, MapAccess, SeqAccess, Unexpected, Visitor,
        value::MapAccessDeserializer,
    },
};

use crate::domain::{
    FailurePolicy,
    block::Ban,
    policies::Policies,
    policy::{Policy, check_name, parse_rules},
    rule::Rule,
    unit::Unit,
};

/// A value whose text is its form in configuration.
macro_rules! as_text {
    ($($type:ty),+) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<str>::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }
    )+};
}
as_text!(Rule, Unit);

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = Some(self.name().to_owned());
        let fields = Fields::of(self);
        Fields { name, ..fields }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_struct("Policy", FIELDS, PolicyVisitor)
    }
}

const FIELDS: &[&str] = &[
    "name",
    "rules",
    "strikes",
    "ban",
    "on_failure",
    "shadow",
    "unit",
    "hidden",
];

/// Builds the policy while the map is read, so that an error has the position in the file.
struct PolicyVisitor;

impl<'de> Visitor<'de> for PolicyVisitor {
    type Value = Policy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a policy: its `name` and its `rules`")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Policy, A::Error> {
        let mut fields = Fields::deserialize(MapAccessDeserializer::new(map))?;
        let name = fields.name.take();
        fields.policy(&name.ok_or_else(|| A::Error::missing_field("name"))?)
    }
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

/// The fields of a policy; without the name in a set, where the name stands before them.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Policy", deny_unknown_fields)]
struct Fields {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    rules: Rules,
    /// The strikes and the time of a ban: both, or neither.
    #[serde(skip_serializing_if = "Option::is_none")]
    strikes: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ban: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_failure: Option<FailurePolicy>,
    #[serde(default, skip_serializing_if = "is_false")]
    shadow: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<Unit>,
    #[serde(default, skip_serializing_if = "is_false")]
    hidden: bool,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Field {
    Rules,
    Strikes,
    Ban,
    OnFailure,
    Shadow,
    Unit,
    Hidden,
}

impl Fields {
    fn of(policy: &Policy) -> Self {
        let ban = policy.ban_config();
        Self {
            name: None,
            rules: Rules(policy.to_string()),
            strikes: ban.map(|ban| ban.strikes().to_string()),
            ban: ban.map(|ban| ban.times_text()),
            on_failure: policy.failure_policy(),
            shadow: policy.is_shadow(),
            unit: policy.set_unit().cloned(),
            hidden: policy.is_hidden(),
        }
    }

    fn policy<E: Error>(self, name: &str) -> Result<Policy, E> {
        // An error names the policy, since the position in the file may be that of a whole map.
        let mut policy = Policy::parse(name, &self.rules.0).map_err(E::custom)?;
        let wrong = |why: &dyn fmt::Display| E::custom(format_args!("policy `{name}`: {why}"));
        policy = match (self.strikes, self.ban) {
            (None, None) => policy,
            (Some(strikes), Some(time)) => {
                let ban = Ban::from_parts(&strikes, &time);
                policy.ban(ban.map_err(|why| wrong(&why))?)
            }
            (Some(_), None) => {
                return Err(wrong(&"`strikes` needs `ban`: for how long, such as `1h`"));
            }
            (None, Some(_)) => {
                return Err(wrong(
                    &"`ban` needs `strikes`: after how many, such as `5/10m`; `ban` itself is only the time, such as `1h`",
                ));
            }
        };
        if let Some(error) = policy.idle_ban() {
            return Err(E::custom(error));
        }
        if let Some(on_failure) = self.on_failure {
            policy = policy.on_failure(on_failure);
        }
        if let Some(unit) = self.unit {
            policy = policy.unit(unit);
        }
        if self.hidden {
            policy = policy.hidden();
        }
        Ok(if self.shadow { policy.shadow() } else { policy })
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_false(it: &bool) -> bool {
    !*it
}

/// The value of one name in a set, in the form that is written.
#[derive(Serialize)]
#[serde(untagged)]
enum Entry {
    Rules(Rules),
    Fields(Fields),
}

impl Entry {
    fn of(policy: &Policy) -> Self {
        let is_plain = policy.failure_policy().is_none()
            && policy.ban_config().is_none()
            && policy.set_unit().is_none()
            && !policy.is_shadow()
            && !policy.is_hidden();
        if is_plain {
            Self::Rules(Rules(policy.to_string()))
        } else {
            Self::Fields(Fields::of(policy))
        }
    }
}

/// Reads the value of one name in a set. An untagged enum would hide the cause of an error. The policy is built while
/// the value is read, so that an error has the position in the file.
#[derive(Clone, Copy)]
struct Named<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Named<'_> {
    type Value = Policy;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Policy, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Named<'_> {
    type Value = Policy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "rules: `10/1s,120/1m`, a list of them, or `rules`, `strikes`, `ban`, `on_failure`, `shadow`, `unit` and \
             `hidden`",
        )
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Policy, E> {
        Policy::parse(self.0, text).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Policy, A::Error> {
        let Rules(rules) = RulesOf::policy(self.0).visit_seq(list)?;
        Policy::parse(self.0, &rules).map_err(A::Error::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Policy, A::Error> {
        // Not derived: a derived struct would report an error of a rule without its position.
        let (mut rules, mut strikes, mut ban) = (None, None, None);
        let (mut on_failure, mut shadow) = (None, None);
        let (mut unit, mut hidden) = (None, None);
        while let Some(field) = map.next_key()? {
            match field {
                Field::Rules => {
                    let value = map.next_value_seed(RulesOf::policy(self.0))?;
                    once(&mut rules, value, "rules")?;
                }
                Field::Strikes => once(&mut strikes, map.next_value()?, "strikes")?,
                Field::Ban => once(&mut ban, map.next_value()?, "ban")?,
                Field::OnFailure => once(&mut on_failure, map.next_value()?, "on_failure")?,
                Field::Shadow => once(&mut shadow, map.next_value()?, "shadow")?,
                Field::Unit => once(&mut unit, map.next_value()?, "unit")?,
                Field::Hidden => once(&mut hidden, map.next_value()?, "hidden")?,
            }
        }
        let fields = Fields {
            name: None,
            rules: rules.ok_or_else(|| A::Error::missing_field("rules"))?,
            strikes,
            ban,
            on_failure,
            shadow: shadow.unwrap_or(false),
            unit,
            hidden: hidden.unwrap_or(false),
        };
        fields.policy(self.0)
    }
}

fn once<T, E: Error>(field: &mut Option<T>, value: T, name: &'static str) -> Result<(), E> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(E::duplicate_field(name)),
    }
}

/// Reads the rules of a policy, or one text in a list of them. If the name of the policy is known, a wrong rule is an
/// error at once, so that the error has the position of that text.
#[derive(Default)]
struct RulesOf<'a> {
    policy: Option<&'a str>,
    in_list: bool,
}

impl<'a> RulesOf<'a> {
    const fn policy(name: &'a str) -> Self {
        Self {
            policy: Some(name),
            in_list: false,
        }
    }
}

impl<'de> DeserializeSeed<'de> for RulesOf<'_> {
    type Value = Rules;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Rules, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for RulesOf<'_> {
    type Value = Rules;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rules: `10/1s,120/1m`, or a list of them")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Rules, E> {
        // Errors about several rules, or the name, appear when the policy is built.
        if let Some(name) = self.policy {
            parse_rules(name, text).map_err(E::custom)?;
        }
        Ok(Rules(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Rules, A::Error> {
        if self.in_list {
            return Err(A::Error::invalid_type(Unexpected::Seq, &"a rule"));
        }
        let one = || Self {
            in_list: true,
            ..self
        };
        let mut rules = Vec::new();
        while let Some(Rules(rule)) = list.next_element_seed(one())? {
            rules.push(rule);
        }
        Ok(Rules(rules.join(",")))
    }
}

/// The name of a policy.
struct Name<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<str>::deserialize(deserializer)?;
        check_name(&name).map_err(D::Error::custom)?;
        Ok(Self(name))
    }
}

/// The text of a policy's rules, in the form that [`Policy::parse`] reads.
#[derive(Serialize)]
struct Rules(String);

impl<'de> Deserialize<'de> for Rules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        RulesOf::default().deserialize(deserializer)
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
        while let Some(Name(name)) = map.next_key()? {
            policies.push(map.next_value_seed(Named(&name))?);
        }
        Policies::new(policies).map_err(A::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_and_written_back() {
        let text = r#"{"ip":["10/1s","120/60s"],"user":"1/1d@fixed,5+1/2s@bucket"}"#;
        let policies: Policies = serde_json::from_str(text).unwrap();
        let written = serde_json::to_string(&policies).unwrap();
        assert_eq!(
            written,
            r#"{"ip":"10/1s,120/1m","user":"1/1d@fixed,5+1/2s@bucket"}"#
        );
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
    fn a_ban_is_read_and_written_back() {
        let text = r#"{"login":{"rules":"10/1m","strikes":"5/10m","ban":"1h"}}"#;
        let policies: Policies = serde_json::from_str(text).unwrap();
        let login = policies.get("login").unwrap();
        assert_eq!(login.ban_config(), Some("5/10m=1h".parse().unwrap()));
        assert_eq!(serde_json::to_string(&policies).unwrap(), text);
        let toml = toml::to_string(&policies).unwrap();
        assert_eq!(toml::from_str::<Policies>(&toml).unwrap(), policies);

        let text = r#"{"name":"login","rules":"10/1m","strikes":"5/10m@exact","ban":"90s,1d","on_failure":"closed","shadow":true}"#;
        let policy: Policy = serde_json::from_str(text).unwrap();
        assert_eq!(
            policy.ban_config(),
            Some("5/10m@exact=90s,1d".parse().unwrap())
        );
        assert!(policy.is_shadow());
        assert_eq!(serde_json::to_string(&policy).unwrap(), text);
        let text = r#"{"name":"login","rules":"10/1m","ban":"1h"}"#;
        let error = serde_json::from_str::<Policy>(text).unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("policy `login`: `ban` needs `strikes`"),
            "{error}"
        );
    }

    #[test]
    fn a_unit_and_a_hidden_policy_are_read_and_written_back() {
        let text = r#"{"tokens":{"rules":"100/1m","unit":"tokens","hidden":true}}"#;
        let policies: Policies = serde_json::from_str(text).unwrap();
        let tokens = policies.get("tokens").unwrap();
        assert_eq!((tokens.counted_in(), tokens.is_hidden()), ("tokens", true));
        assert_eq!(serde_json::to_string(&policies).unwrap(), text);
        let toml = toml::to_string(&policies).unwrap();
        assert_eq!(toml::from_str::<Policies>(&toml).unwrap(), policies);

        let text = r#"{"name":"bytes","rules":"9/1m","unit":"content-bytes"}"#;
        let policy: Policy = serde_json::from_str(text).unwrap();
        assert_eq!(policy.set_unit(), Some(&Unit::CONTENT_BYTES));
        assert_eq!(serde_json::to_string(&policy).unwrap(), text);
        let error = toml::from_str::<Policies>("a = { rules = '1/1s', unit = 'Two words' }");
        let error = error.unwrap_err();
        assert!(
            error.message().starts_with("`Two words` is no unit"),
            "{error}"
        );
    }

    #[cfg(feature = "calendar")]
    #[test]
    fn concurrency_and_calendar_rules_are_read_and_written_back() {
        let text = r#"{"jobs":"20/30s@concurrent","plan":"9/1s,500/month:15@Europe/Berlin"}"#;
        let policies: Policies = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&policies).unwrap(), text);
        let toml = toml::to_string(&policies).unwrap();
        assert_eq!(toml::from_str::<Policies>(&toml).unwrap(), policies);
        for (text, at) in [
            ("plan = ['1/1s', '500/day']", "'500/day'"),
            (
                "plan = { rules = ['1/1s', '500/day@Mars'] }",
                "'500/day@Mars'",
            ),
            (
                "plan = ['1/1s', '5/30s@concurrent']",
                "['1/1s', '5/30s@concurrent']",
            ),
        ] {
            let error = toml::from_str::<Policies>(text).unwrap_err();
            assert_eq!(text.get(error.span().unwrap()), Some(at), "{error}");
        }
    }

    #[test]
    fn in_a_file_an_error_is_told_at_the_rule_that_is_wrong() {
        for (text, at) in [
            ("ip = '10'", "'10'"),
            ("ip = '1/1s'\nuser = ['1/1s', '2']", "'2'"),
            ("ip = { shadow = true, rules = '10' }", "'10'"),
            ("ip = { rules = ['1/1s', '10'] }", "'10'"),
            ("[ip]\nrules = '10'\nshadow = true", "'10'"),
            ("ip = ['1/1s', '2/1s']", "['1/1s', '2/1s']"),
            ("ip = { rules = '1/1s', shadw = true }", "shadw"),
            ("ip = '1/1s'\n'a b' = '1/1s'", "'a b'"),
        ] {
            let error = toml::from_str::<Policies>(text).unwrap_err();
            assert_eq!(text.get(error.span().unwrap()), Some(at), "{error}");
        }
        let text = "{\"ip\": [\"1/1s\",\n \"10\",\n \"2/1m\"]}";
        let error = serde_json::from_str::<Policies>(text).unwrap_err();
        assert_eq!((error.line(), error.column()), (2, 5), "{error}");
    }

    #[test]
    fn a_wrong_entry_is_named_with_its_policy_and_rule() {
        for (text, expected) in [
            (
                r#"{"ip":{"rules":"1/1s","strikes":"5/10m"}}"#,
                "policy `ip`: `strikes` needs `ban`: for how long",
            ),
            (
                r#"{"ip":{"rules":"1/1s","ban":"1h"}}"#,
                "policy `ip`: `ban` needs `strikes`: after how many",
            ),
            (
                r#"{"ip":{"rules":"1/1s","strikes":"5","ban":"1h"}}"#,
                "policy `ip`: strikes: rule `5`: write it as",
            ),
            (
                r#"{"ip":{"rules":"1/1s","strikes":"5/10m","ban":"0s"}}"#,
                "policy `ip`: the time of a ban is a number and a unit",
            ),
            (
                r#"{"ip":{"rules":"1/9s@concurrent","strikes":"5/10m","ban":"1h"}}"#,
                "policy `ip`: a missing slot is no strike: give the ban",
            ),
            (
                r#"{"ip":{"rules":"1/1s","strikes":"0/10m","ban":"1h"}}"#,
                "policy `ip`: a ban needs at least one strike",
            ),
            (
                r#"{"ip":{"rules":"1/1s","strikes":5,"ban":"1h"}}"#,
                "invalid type: integer `5`, expected a string",
            ),
            (r#"{"ip":"10"}"#, "policy `ip`: rule `10`: write it as"),
            (
                r#"{"ip":["1/1s","1/1d@"]}"#,
                "policy `ip`: rule `1/1d@`: write it as",
            ),
            (
                r#"{"ip":["1/1s","2/1s"]}"#,
                "policy `ip`: rules `1/1s` and `2/1s` have the same",
            ),
            (
                r#"{"ip":[["1/1s"]]}"#,
                "invalid type: sequence, expected a rule",
            ),
            (r#"{"i p":"1/1s"}"#, "policy name `i p` must be"),
            (r#"{"ip":"1/1s","ip":"2/1s"}"#, "policy `ip` is named twice"),
            (r#"{"ip":""}"#, "policy `ip`: rule ``: there is no text"),
            (r#"{"ip":[]}"#, "policy `ip`: rule ``: there is no text"),
            (r#"{"ip":{"on_failure":"open"}}"#, "missing field `rules`"),
            (
                r#"{"ip":{"rules":"1/1s","on_failure":"ajar"}}"#,
                "unknown variant `ajar`, expected one of `open`, `local`, `closed`",
            ),
            (
                r#"{"ip":{"rules":"1/1s","name":"ip"}}"#,
                "unknown field `name`, expected one of `rules`, `strikes`, `ban`, `on_failure`, `shadow`, `unit`, `hidden`",
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
