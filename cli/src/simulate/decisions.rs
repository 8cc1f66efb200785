//! `--decisions`: a line of JSON for each request.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::json;
use sluicegate::Decision;

use super::replay;
use super::request::Request;
use crate::{Error, Result, text};

/// A file with a line of JSON for each request.
pub(super) struct Decisions {
    path: PathBuf,
    file: BufWriter<File>,
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
        let shadows = shadow.iter().flat_map(|it| it.usage().policies());
        let shadows = shadows.filter(replay::refuses);
        let shadows: Vec<&str> = shadows.map(|usage| usage.policy().name()).collect();
        let mut line = json!({
            "file": request.file, "line": request.line, "time_ms": request.ms,
            // Without a key for any policy, the middleware lets the request pass.
            "allowed": decision.is_none_or(Decision::is_allowed),
            "policy": denial.map(|denial| denial.policy().name()),
            "rule": denial.map(|denial| denial.rule().rule().to_string()),
            "retry_after_ms": retry_after.map(text::millis),
            "banned": blocked.map(|blocked| text::identity(blocked.key())),
            "shadow_refused": (!shadows.is_empty()).then_some(shadows),
        });
        if let Some(fields) = line.as_object_mut() {
            fields.retain(|_, value| !value.is_null());
        }
        writeln!(self.file, "{line}").map_err(|error| Error::file(&self.path, &error))
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        let flushed = self.file.flush();
        flushed.map_err(|error| Error::file(&self.path, &error))
    }
}
