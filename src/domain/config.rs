//! Rules and policies in configuration files, through serde.
//!
//! A rule is a text. The rules of a policy are one string, or a list of strings. A single policy is
//! `{name, rules, strikes, ban, on_failure, shadow, unit, hidden}`, and you may leave out all but the first two. A set
//! is a map from name to rules, or to the same fields without the name.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeSeed, Error, MapAccess, SeqAccess, Unexpected, Visitor},
    ser::SerializeMap,
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

/// Lists the fields of a policy, all of which may be absent.
macro_rules! fields {
    ($($field:ident: $type:ty),+) => {
        #[derive(Default, Serialize)]
        #[serde(rename = "Policy")]
        struct Fields {$(
            #[serde(skip_serializing_if = "Option::is_none")]
            $field: Option<$type>,
        )+}

        #[derive(Deserialize)]
        #[serde(field_identifier)]
        #[allow(non_camel_case_types, reason = "each is written as its field")]
        enum Field { $($field),+ }

        const FIELDS: &[&str] = &[$(stringify!($field)),+];

        impl Fields {
            fn read<'de, A: MapAccess<'de>>(&mut self, field: Field, map: &mut A) -> Result<(), A::Error> {
                match field {
                    $(Field::$field => once(&mut self.$field, map.next_value()?, stringify!($field))),+
                }
            }
        }
    };
}

// In a set, the name stands before the others. The strikes and the time of a ban are both given, or neither.
fields!(
    name: String, rules: String, strikes: String, ban: String, on_failure: FailurePolicy, shadow: bool, unit: Unit,
    hidden: bool
);

fn once<T, E: Error>(field: &mut Option<T>, value: Option<T>, name: &'static str) -> Result<(), E> {
    match field {
        None => {
            *field = value;
            Ok(())
        }
        Some(_) => Err(E::duplicate_field(name)),
    }
}

impl Fields {
    fn of(policy: &Policy) -> Self {
        let ban = policy.ban_config();
        Self {
            name: None,
            rules: Some(policy.to_string()),
            strikes: ban.map(|ban| ban.strikes().to_string()),
            ban: ban.map(|ban| ban.times_text()),
            on_failure: policy.failure_policy(),
            shadow: policy.is_shadow().then_some(true),
            unit: policy.set_unit().cloned(),
            hidden: policy.is_hidden().then_some(true),
        }
    }

    /// Builds the policy while the map is read, so that an error has the position in the file.
    fn policy<'de, A: MapAccess<'de>>(mut map: A, name: Option<&str>) -> Result<Policy, A::Error> {
        let mut fields = Self::default();
        while let Some(field) = map.next_key()? {
            match field {
                Field::name if name.is_some() => {
                    return Err(A::Error::unknown_field("name", &FIELDS[1..]));
                }
                Field::rules => {
                    let policy = name.or(fields.name.as_deref());
                    let rules = map.next_value_seed(RulesOf {
                        policy,
                        in_list: false,
                    })?;
                    once(&mut fields.rules, Some(rules), "rules")?;
                }
                field => fields.read(field, &mut map)?,
            }
        }
        let own = fields.name.take();
        let name = name.or(own.as_deref());
        fields.build(name.ok_or_else(|| A::Error::missing_field("name"))?)
    }

    fn build<E: Error>(self, name: &str) -> Result<Policy, E> {
        let rules = self.rules.ok_or_else(|| E::missing_field("rules"))?;
        // An error names the policy, since the position in the file may be that of a whole map.
        let mut policy = Policy::parse(name, &rules).map_err(E::custom)?;
        let wrong = |why: &dyn fmt::Display| E::custom(format_args!("policy `{name}`: {why}"));
        match (self.strikes, self.ban) {
            (None, None) => {}
            (Some(strikes), Some(time)) => {
                let ban = Ban::from_parts(&strikes, &time);
                policy = policy.ban(ban.map_err(|why| wrong(&why))?);
            }
            (Some(_), None) => {
                return Err(wrong(&"`strikes` needs `ban`: for how long, such as `1h`"));
            }
            (None, Some(_)) => {
                return Err(wrong(
                    &"`ban` needs `strikes`: after how many, such as `5/10m`; `ban` itself is only the time, such as `1h`",
                ));
            }
        }
        if let Some(error) = policy.idle_ban() {
            return Err(E::custom(error));
        }
        if let Some(on_failure) = self.on_failure {
            policy = policy.on_failure(on_failure);
        }
        if let Some(unit) = self.unit {
            policy = policy.unit(unit);
        }
        if self.hidden == Some(true) {
            policy = policy.hidden();
        }
        Ok(match self.shadow {
            Some(true) => policy.shadow(),
            _ => policy,
        })
    }
}

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

struct PolicyVisitor;

impl<'de> Visitor<'de> for PolicyVisitor {
    type Value = Policy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a policy: its `name` and its `rules`")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Policy, A::Error> {
        Fields::policy(map, None)
    }
}

impl Serialize for Policies {
    /// Writes the rules alone where nothing else is set.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.iter().count()))?;
        for (name, policy) in self.names().zip(self.iter()) {
            match policy.settings().nth(1) {
                None => map.serialize_entry(name, &policy.to_string())?,
                Some(_) => map.serialize_entry(name, &Fields::of(policy))?,
            }
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Policies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PoliciesVisitor)
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

/// The name of a policy.
struct Name<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<str>::deserialize(deserializer)?;
        check_name(&name).map_err(D::Error::custom)?;
        Ok(Self(name))
    }
}

/// Reads the value of one name in a set. An untagged enum would hide the cause of an error.
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
        let policy = Some(self.0);
        let rules = RulesOf {
            policy,
            in_list: false,
        }
        .visit_seq(list)?;
        self.visit_str(&rules)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Policy, A::Error> {
        Fields::policy(map, Some(self.0))
    }
}

/// Reads the rules of a policy, or one text in a list of them. If the name of the policy is known, a wrong rule is an
/// error at once, so that the error has the position of that text.
struct RulesOf<'a> {
    policy: Option<&'a str>,
    in_list: bool,
}

impl<'de> DeserializeSeed<'de> for RulesOf<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for RulesOf<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rules: `10/1s,120/1m`, or a list of them")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        // Errors about several rules, or the name, appear when the policy is built.
        if let Some(name) = self.policy {
            parse_rules(name, text).map_err(E::custom)?;
        }
        Ok(text.to_owned())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<String, A::Error> {
        if self.in_list {
            return Err(A::Error::invalid_type(Unexpected::Seq, &"a rule"));
        }
        let (policy, in_list) = (self.policy, true);
        let mut rules = Vec::new();
        while let Some(rule) = list.next_element_seed(RulesOf { policy, in_list })? {
            rules.push(rule);
        }
        Ok(rules.join(","))
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
