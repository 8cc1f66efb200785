//! Takes off what a collector of logs writes in front of a line, or around it.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::bytes::Regex;
use serde_json::Value;

use super::formats::PREFIX;
use super::pattern::compiled;

/// The number of collectors that one line may pass.
const MOST: usize = 3;

/// The codes of a terminal, which tracing-subscriber writes to files too.
static COLOURS: LazyLock<Regex> = LazyLock::new(|| compiled(r"\x1b\[[\d;]*m"));

/// `{"log":"…","stream":"stdout"}` of Docker, `{"MESSAGE":"…"}` of journald.
static WRAPPED: LazyLock<Regex> =
    LazyLock::new(|| compiled(r#"^\{(?:"log":|.*"__REALTIME_TIMESTAMP")"#));

/// The line as the server wrote it.
pub(super) fn bare(line: &[u8]) -> Cow<'_, [u8]> {
    let mut line = Cow::Borrowed(line.trim_ascii());
    if line.contains(&0x1b) {
        line = COLOURS.replace_all(&line, &b""[..]).into_owned().into();
    }
    for _ in 0..MOST {
        let end = PREFIX.find(&line).map_or(0, |it| it.end());
        line = match (unwrapped(&line), line) {
            (Some(inner), _) => inner.into(),
            (None, Cow::Borrowed(line)) if end > 0 => line[end..].trim_ascii().into(),
            (None, Cow::Owned(line)) if end > 0 => line[end..].to_owned().into(),
            (None, line) => return line,
        };
    }
    line
}

fn unwrapped(line: &[u8]) -> Option<Vec<u8>> {
    let is_wrapped = line.starts_with(b"{") && WRAPPED.is_match(line);
    let line: Value = is_wrapped.then(|| serde_json::from_slice(line).ok())??;
    let inner = line.get("log").or(line.get("MESSAGE"))?;
    Some(inner.as_str()?.trim().into())
}
