//! [`Pattern`]: the format of a line of text, compiled from a string with the `$names` of fields.
//!
//! Servers escape quotes and tabs in values, so a client cannot write the end of a quoted field. Between two quotes, one field
//! may have any bytes: all others have no blanks, and a line is read in one way only.

use regex::bytes::{Regex, RegexBuilder};

/// The place of an error in the string, and the problem.
pub(super) type Misfit = (usize, String);

/// A value in quotes, one without blanks, and one that ends where the rest of the line fits.
const QUOTED: &str = r#"(?:[^"\\]|\\.)*"#;
const PLAIN: &str = r#"[^ "\t]+"#;
const ANY: &str = ".*?";

/// The first line of a request: the method, the path and the protocol.
const REQUEST: &str = r#"((?:[^"\\ ]|\\.)*)(?: ((?:[^"\\ ]|\\.)*)(?: (?:[^"\\]|\\.)*)?)?"#;

#[derive(Clone)]
pub(super) struct Pattern {
    pub(super) strict: Regex,
    /// The same where names of users may have blanks.
    pub(super) loose: Regex,
    /// The names of the groups.
    pub(super) names: Vec<String>,
}

/// A field, its place in the string, and the text up to the next field.
struct Field<'a> {
    name: &'a str,
    place: usize,
    after: &'a str,
}

impl Pattern {
    /// Compiles a string with `$name` and `${name}`; `class` says what the values of a field are like.
    pub(super) fn compile(text: &str, class: fn(&str) -> &'static str) -> Result<Self, Misfit> {
        let found = compiled(r"\$(?:\{([^}]*)\}|(\w*))([^$]*)");
        let fields = found.captures_iter(text.as_bytes()).map(|it| {
            let part = |at| it.get(at).map(|it| &text[it.range()]);
            let name = part(1).or(part(2)).unwrap_or_default();
            let (place, after) = (it.get_match().start(), part(3).unwrap_or_default());
            Field { name, place, after }
        });
        let fields: Vec<Field<'_>> = fields.collect();
        let before = fields.first().map_or(text.len(), |it| it.place);
        let (mut names, mut open) = (Vec::new(), None);
        let mut strict = format!("^{}", regex::escape(&text[..before]));
        let mut loose = strict.clone();
        for (at, field) in fields.iter().enumerate() {
            let values = field.values(class(field.name), at + 1 == fields.len(), &mut open)?;
            let after = regex::escape(field.after);
            strict += &format!("({}){after}", values.replace("USER", PLAIN));
            loose += &format!("({}){after}", values.replace("USER", ANY));
            names.push(field.name.to_owned());
            if values == REQUEST {
                names.extend(["request_method", "request_uri"].map(str::to_owned));
            }
        }
        let whole = |regex: String| build(&(regex + "$")).map_err(|error| (0, error.to_string()));
        let (strict, loose) = (whole(strict)?, whole(loose)?);
        Ok(Self {
            strict,
            loose,
            names,
        })
    }
}

impl<'a> Field<'a> {
    /// The shape of the values, up to the next literal. `open` is a field that may have any bytes, up to the next quote.
    fn values(
        &self,
        class: &str,
        is_last: bool,
        open: &mut Option<&'a str>,
    ) -> Result<String, Misfit> {
        let (name, next) = (self.name, self.after.chars().next());
        let wrong = |problem: &str| Err((self.place, format!("`${name}` {problem}")));
        let is_plain = matches!(next, None | Some(' ' | '\t' | '"'));
        let is_any = class.is_empty() || (class == "CHOSEN" && !is_plain);
        if name.is_empty() || (next.is_none() && !is_last) {
            return wrong("cannot be told from what follows: write a delimiter between them");
        }
        if let Some(other) = open.filter(|_| is_any || class == "CHOSEN") {
            return wrong(&format!(
                "cannot be told from `${other}`: both may have blanks, so quote them"
            ));
        }
        if is_any && !matches!(next, Some('"' | '\t')) {
            *open = Some(name);
        }
        if self.after.contains(['"', '\t']) {
            *open = None;
        }
        let is_quoted = next == Some('"');
        let is_free = is_any || class.contains("NEXT") || matches!(class, "CHOSEN" | "USER");
        let end = next.filter(|next| *next != ':');
        let end = end.map(|next| regex::escape(&next.to_string()));
        Ok(match class {
            _ if name == "request" && is_quoted => REQUEST.to_owned(),
            _ if is_quoted && is_free => QUOTED.to_owned(),
            _ if is_any => ANY.to_owned(),
            "CHOSEN" => PLAIN.to_owned(),
            class => class.replace("NEXT", &end.unwrap_or_default()),
        })
    }
}

fn build(regex: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(regex).unicode(false).build()
}

/// A regular expression that is known to be one.
pub(super) fn compiled(regex: &str) -> Regex {
    build(regex).unwrap_or_else(|error| unreachable!("{error}"))
}
