//! `--decisions`: a line of JSON for each request.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use serde::Serialize;
use sluicegate::Decision;

use super::{
    super::{
        error::{Error, Result},
        text,
    },
    replay,
    request::Request,
};

/// A file with a line of JSON for each request.
pub(super) struct Decisions {
    path: PathBuf,
    file: BufWriter<File>,
}

#[derive(Serialize)]
struct Line<'a> {
    file: usize,
    line: u64,
    /// The time of the replay.
    time_ms: u64,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    /// The banned identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    banned: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shadow_refused: Vec<&'a str>,
}

impl Decisions {
    pub(super) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(|error| Error::file(path, &error))?;
        Ok(Self {
            path: path.into(),
            file: BufWriter::new(file),
        })
    }

    pub(super) fn write(&mut self, request: &Request, decision: Option<&Decision>) -> Result<()> {
        let (denial, blocked, retry_after) = match decision {
            Some(Decision::Denied(denial)) => (Some(denial), None, denial.retry_after()),
            Some(Decision::Blocked(blocked)) => (None, Some(blocked), blocked.retry_after()),
            _ => (None, None, None),
        };
        let shadow = decision.and_then(|decision| decision.usage().shadow());
        let shadows = shadow
            .into_iter()
            .flat_map(|shadow| shadow.usage().policies());
        let shadows = shadows.filter(replay::refuses);
        let line = Line {
            file: request.file,
            line: request.line,
            time_ms: request.ms,
            // Without a key for any policy, the middleware lets the request pass.
            allowed: decision.is_none_or(Decision::is_allowed),
            policy: denial.map(|denial| denial.policy().name()),
            rule: denial.map(|denial| denial.rule().rule().to_string()),
            retry_after_ms: retry_after.map(text::millis),
            banned: blocked.map(|blocked| text::identity(blocked.key())),
            shadow_refused: shadows.map(|usage| usage.policy().name()).collect(),
        };
        let written = serde_json::to_writer(&mut self.file, &line).map_err(Into::into);
        written
            .and_then(|()| self.file.write_all(b"\n"))
            .map_err(|error| Error::file(&self.path, &error))
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        self.file
            .flush()
            .map_err(|error| Error::file(&self.path, &error))
    }
}
