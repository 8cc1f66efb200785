//! [`Settings`]: the server and the names of its keys. The command line comes first, then the environment, then a file.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use clap::Args;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::{Error, Result, text};

const DEFAULT_FILE: &str = "sluicegate.toml";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);

/// The settings of one source, or, after [`load`](Self::load), of all together. Not `Debug`, because of the passwords.
#[derive(Args, Clone, Default, Deserialize)]
#[command(next_help_heading = "Server options")]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// The server: redis://, rediss:// (TLS) or unix:// [env: SLUICEGATE_REDIS]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) redis: Option<String>,

    /// Nodes of a Redis Cluster, separated by commas; one is enough [env: SLUICEGATE_CLUSTER]
    #[arg(long, global = true, value_name = "URL", value_delimiter = ',')]
    pub(crate) cluster: Option<Vec<String>>,

    /// Sentinels, separated by commas; they name the address of --primary [env: SLUICEGATE_SENTINEL]
    #[arg(long, global = true, value_name = "URL", value_delimiter = ',')]
    pub(crate) sentinel: Option<Vec<String>>,

    /// The name of the primary: NAME, or redis://USER:PASSWORD@NAME [env: SLUICEGATE_PRIMARY] [default: mymaster]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) primary: Option<String>,

    /// A file with the password of the user in the URL, or of the primary: read at each login [env: SLUICEGATE_PASSWORD_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,

    /// The prefix of all keys, as in `RedisStore::prefix` [env: SLUICEGATE_PREFIX] [default: sluicegate]
    #[arg(long, global = true)]
    pub(crate) prefix: Option<String>,

    /// The secret of the hashed identities, as in `RedisStore::secret`; other users of this machine can see it on the
    /// command line, but not in the environment or in a file [env: SLUICEGATE_SECRET]
    #[arg(long, global = true)]
    pub(crate) secret: Option<String>,

    /// The timeout of one call, or of an attempt to connect [env: SLUICEGATE_TIMEOUT] [default: 2s]
    #[arg(long, global = true, value_name = "TIME", value_parser = text::parse_duration)]
    #[serde(default, deserialize_with = "duration")]
    timeout: Option<Duration>,

    /// The number of leading bits of an IPv6 address that are one identity, as in `PeerIp::ipv6_prefix` [env:
    /// SLUICEGATE_IPV6_PREFIX] [default: 64]
    #[arg(long, global = true, value_name = "BITS", value_parser = clap::value_parser!(u8).range(32..=128))]
    #[serde(default, deserialize_with = "ipv6_prefix")]
    ipv6_prefix: Option<u8>,

    /// The policies of the service, for verbs that read them; relative to the configuration file. Not a
    /// server option on the command line, where each of these verbs has an argument.
    #[arg(skip)]
    pub(crate) policies: Option<PathBuf>,

    /// The source that names the server, for messages.
    #[arg(skip)]
    #[serde(skip)]
    source: Source,
}

#[derive(Clone, Default)]
enum Source {
    #[default]
    CommandLine,
    Environment,
    File(PathBuf),
}

impl Settings {
    /// Adds the environment and the configuration file to the command line's settings.
    pub(crate) fn load(args: Self, file: Option<&Path>) -> Result<Self> {
        let environment = Self::from_environment(|name| env::var(name).ok())?;
        let variable = env::var_os("SLUICEGATE_CONFIG").filter(|path| !path.is_empty());
        let default = Path::new(DEFAULT_FILE);
        let file = file
            .or(variable.as_ref().map(Path::new))
            .or_else(|| default.exists().then_some(default));
        let file = file.map_or_else(|| Ok(Self::default()), Self::from_file)?;
        for source in [&args, &environment, &file] {
            source.validate()?;
        }
        Ok(args.or(environment).or(file))
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout.unwrap_or(DEFAULT_TIMEOUT)
    }

    pub(crate) fn ipv6_prefix(&self) -> u8 {
        self.ipv6_prefix.unwrap_or(64)
    }

    fn from_environment(get: impl Fn(&str) -> Option<String>) -> Result<Self> {
        // An empty variable counts as not set, so that you can switch one off for a single command.
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let list = |name| get(name).map(|list| list.split(',').map(str::to_owned).collect());
        let timeout = get("SLUICEGATE_TIMEOUT").map(|text| text::parse_duration(&text));
        let bits = get("SLUICEGATE_IPV6_PREFIX").map(|text| {
            let bits = text.parse().ok().filter(|bits| (32..=128).contains(bits));
            bits.ok_or(IPV6_PREFIX)
        });
        Ok(Self {
            redis: get("SLUICEGATE_REDIS"),
            cluster: list("SLUICEGATE_CLUSTER"),
            sentinel: list("SLUICEGATE_SENTINEL"),
            primary: get("SLUICEGATE_PRIMARY"),
            password_file: get("SLUICEGATE_PASSWORD_FILE").map(PathBuf::from),
            prefix: get("SLUICEGATE_PREFIX"),
            secret: get("SLUICEGATE_SECRET"),
            timeout: { timeout.transpose() }
                .map_err(|why| Error::usage(format_args!("SLUICEGATE_TIMEOUT: {why}")))?,
            ipv6_prefix: { bits.transpose() }
                .map_err(|why| Error::usage(format_args!("SLUICEGATE_IPV6_PREFIX: {why}")))?,
            policies: None,
            source: Source::Environment,
        })
    }

    fn from_file(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).map_err(|error| Error::file(file, &error))?;
        let mut settings: Self = toml::from_str(&text).map_err(|error| {
            // Do not print the line: it may contain a password.
            let start = error.span().map_or(0, |span| span.start);
            let (line, column) = text::position(&text, start);
            let (file, message) = (file.display(), error.message());
            Error::usage(format_args!("{file}:{line}:{column}: {message}"))
        })?;
        // Relative to the configuration file, so that the tool works in any folder.
        settings.policies = settings.policies.map(|path| file.with_file_name(path));
        settings.password_file = settings.password_file.map(|path| file.with_file_name(path));
        settings.source = Source::File(file.to_owned());
        Ok(settings)
    }

    pub(crate) fn prefix(&self) -> &str {
        self.prefix.as_deref().unwrap_or("sluicegate")
    }

    /// The file of policies in an argument, or else in the configuration file.
    pub(crate) fn policies_or<'a>(&'a self, argument: Option<&'a Path>) -> Option<&'a Path> {
        argument.or(self.policies.as_deref())
    }

    /// The source of the setting with this name: `--redis`, `SLUICEGATE_REDIS`, or `redis` in a file.
    pub(crate) fn origin(&self, name: &str) -> String {
        match &self.source {
            Source::CommandLine => format!("--{name}"),
            Source::Environment => format!("SLUICEGATE_{}", name.to_uppercase()),
            Source::File(file) => format!("`{name}` in {}", file.display()),
        }
    }

    /// The number of settings that name a server.
    fn servers(&self) -> usize {
        let lists = [&self.cluster, &self.sentinel].into_iter();
        usize::from(self.redis.is_some()) + lists.flatten().count()
    }

    fn validate(&self) -> Result<()> {
        if self.servers() > 1 {
            let source = match &self.source {
                Source::CommandLine => "the command line",
                Source::Environment => "the environment",
                Source::File(_) => "the configuration file",
            };
            return Err(Error::usage(format_args!(
                "{source} names several of redis, cluster and sentinel: give one of them"
            )));
        }
        Ok(())
    }

    /// These settings, completed by `other`. All settings that name the server come from one source.
    fn or(self, other: Self) -> Self {
        let server = if self.servers() > 0 { &self } else { &other }.clone();
        Self {
            redis: server.redis,
            cluster: server.cluster,
            sentinel: server.sentinel,
            primary: self.primary.or(other.primary),
            password_file: self.password_file.or(other.password_file),
            prefix: self.prefix.or(other.prefix),
            secret: self.secret.or(other.secret),
            timeout: self.timeout.or(other.timeout),
            ipv6_prefix: self.ipv6_prefix.or(other.ipv6_prefix),
            policies: self.policies.or(other.policies),
            source: server.source,
        }
    }
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let span = text::parse_duration(&text);
    span.map(Some).map_err(D::Error::custom)
}

const IPV6_PREFIX: &str = "the prefix of an IPv6 network must be 32 to 128 bits";

fn ipv6_prefix<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    match u8::deserialize(deserializer)? {
        bits @ 32..=128 => Ok(Some(bits)),
        _ => Err(D::Error::custom(IPV6_PREFIX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Settings {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn the_command_line_beats_the_environment_and_that_the_file() {
        let args = Settings {
            prefix: Some("args".into()),
            ..Settings::default()
        };
        let get = |name: &str| match name {
            "SLUICEGATE_PREFIX" | "SLUICEGATE_SECRET" => Some("environment".into()),
            "SLUICEGATE_CLUSTER" => Some("redis://a,redis://b".into()),
            "SLUICEGATE_PRIMARY" => Some(String::new()),
            _ => None,
        };
        let environment = Settings::from_environment(get).ok().unwrap();
        let file = file(
            "prefix = 'file'\nsecret = 'file'\ntimeout = '7s'\nredis = 'redis://c'\nprimary = 'file'\nipv6_prefix = 56",
        );
        let all = args.or(environment).or(file);
        assert_eq!(all.prefix.as_deref(), Some("args"));
        assert_eq!(all.secret.as_deref(), Some("environment"));
        assert_eq!(all.timeout(), Duration::from_secs(7));
        assert_eq!(all.primary.as_deref(), Some("file"));
        assert_eq!(all.ipv6_prefix(), 56);
        // The settings that name the server come from one source.
        assert_eq!(all.cluster.unwrap(), ["redis://a", "redis://b"]);
        assert!(all.redis.is_none());
    }

    #[test]
    fn what_nobody_sets_has_a_default() {
        let none = Settings::default();
        assert_eq!((none.timeout(), none.ipv6_prefix()), (DEFAULT_TIMEOUT, 64));
    }
}
