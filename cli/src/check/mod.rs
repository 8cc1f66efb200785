//! `sluicegate check`: mistakes in a file of policies, and rules that are probably not meant.

mod warnings;

use std::ops::Range;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::policies_file::PoliciesFile;
use super::{BAD, BOLD, DIM, GOOD, Output, Result, WARN, policies_file, text};

#[derive(Args)]
#[command(after_help = include_str!("../help/check.txt"))]
pub(crate) struct CheckArgs {
    /// The file of policies
    file: PathBuf,

    /// Also fail on warnings
    #[arg(long)]
    strict: bool,

    /// The cost of the most expensive request: a rule with a lower limit never admits it
    #[arg(long, value_name = "UNITS", default_value_t = 1)]
    cost: u64,
}

/// The answer as JSON; fields are only ever added.
#[derive(Serialize)]
struct Report {
    file: String,
    /// The number of policies without a mistake.
    policies: usize,
    errors: Vec<Finding>,
    warnings: Vec<Finding>,
    notes: Vec<Finding>,
}

#[derive(Default, Serialize)]
struct Finding {
    /// Counted from 1; null if the format does not give it.
    line: Option<usize>,
    column: Option<usize>,
    policy: Option<String>,
    rule: Option<String>,
    code: Option<&'static str>,
    message: String,
    #[serde(skip)]
    span: Option<Range<usize>>,
}

pub(crate) fn run(args: &CheckArgs, output: &mut Output) -> Result<bool> {
    let file = PoliciesFile::read(&args.file)?;
    let report = report(&file, args.cost);
    output.report(&report, |report, output| write(report, &file, output))?;
    let failed = !report.errors.is_empty() || args.strict && !report.warnings.is_empty();
    Ok(!failed)
}

fn report(file: &PoliciesFile, cost: u64) -> Report {
    let errors = file.errors.iter();
    let errors = errors.map(|(message, span)| finding(file, span.clone(), message.clone()));
    let mut report = Report {
        file: file.path.display().to_string(),
        policies: file.policies.len(),
        errors: errors.collect(),
        warnings: Vec::new(),
        notes: Vec::new(),
    };
    if file.policies.is_empty() && file.errors.is_empty() {
        let message = "the file has no policies".to_owned();
        report.warnings.push(finding(file, None, message));
    }
    for (policy, place) in &file.policies {
        for (code, rule, message) in warnings::of(policy, cost) {
            let rule = rule.to_string();
            // A rule has several spellings. Point at the policy if the file has another one than the warning.
            let span = place.as_ref().map(|place| {
                policies_file::within(&file.text, place, &rule).unwrap_or_else(|| place.clone())
            });
            let finding = Finding {
                policy: Some(policy.name().to_owned()),
                rule: Some(rule),
                code: Some(code),
                ..finding(file, span, message)
            };
            match code {
                warnings::NOTE => report.notes.push(finding),
                _ => report.warnings.push(finding),
            }
        }
    }
    report
}

fn finding(file: &PoliciesFile, span: Option<Range<usize>>, message: String) -> Finding {
    let place = |span: &Range<usize>| text::position(&file.text, span.start);
    let (line, column) = span.as_ref().map(place).unzip();
    Finding {
        line,
        column,
        message,
        span,
        ..Finding::default()
    }
}

fn write(report: &Report, file: &PoliciesFile, output: &mut Output) -> Result<()> {
    for (label, style, findings) in [
        ("error", BAD, &report.errors),
        ("warning", WARN, &report.warnings),
        ("note", DIM, &report.notes),
    ] {
        for finding in findings {
            // As compilers write it, so that editors find the place.
            let (place, message) = (file.place(finding.span.as_ref()), &finding.message);
            let of_rule = finding.policy.as_ref().zip(finding.rule.as_ref());
            let of_rule = of_rule.map(|(policy, rule)| format!("policy `{policy}`: `{rule}`: "));
            let of_rule = of_rule.unwrap_or_default();
            let label = format!("{style}{label}:{style:#}");
            output.line(format!("{BOLD}{place}:{BOLD:#} {label} {of_rule}{message}"))?;
            if let Some(span) = &finding.span {
                write_line(file, span, output)?;
            }
        }
    }
    let count = |number: usize, one, many| {
        let noun = [many, one][usize::from(number == 1)];
        format!("{number} {noun}")
    };
    let policies = count(report.policies, "policy", "policies");
    let style = match (&report.errors[..], &report.warnings[..]) {
        ([], []) => GOOD,
        ([], _) => WARN,
        _ => BAD,
    };
    let errors = count(report.errors.len(), "error", "errors");
    let warnings = count(report.warnings.len(), "warning", "warnings");
    let all = format!("{}: {policies} read, {errors}, {warnings}", report.file);
    output.styled(style, &all)
}

/// Writes the line of the text, with carets below the span.
fn write_line(file: &PoliciesFile, span: &Range<usize>, output: &mut Output) -> Result<()> {
    let (number, column) = text::position(&file.text, span.start);
    let Some(line) = file.text.lines().nth(number - 1) else {
        return Ok(());
    };
    let marked = file.text.get(span.clone()).unwrap_or_default();
    let marked = marked.lines().next().unwrap_or_default();
    let margin = " ".repeat(number.to_string().len());
    // Keep tabs, so that the carets stay below their text.
    let indent: String = { line.chars().take(column - 1) }
        .map(|c| if c == '\t' { c } else { ' ' })
        .collect();
    let carets = "^".repeat(marked.chars().count().max(1));
    let line = line.replace(|c| c != '\t' && text::is_unsafe(c), "\u{fffd}");
    let empty = format!("{DIM}{margin} |{DIM:#}");
    output.line(format!("{empty}\n{DIM}{number} |{DIM:#} {line}"))?;
    output.line(format!("{empty} {indent}{WARN}{carets}{WARN:#}\n"))
}
