use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header, request::Parts};

use super::{MakeRejection, Rejection, draft11::item_name};
use crate::decision::Denial;

const TYPES: &str = "https://iana.org/assignments/http-problem-types#";

/// Enough for a few names of usual length.
const ROOM: usize = 256;

/// Answers with `application/problem+json` (RFC 9457), in the problem types of the `RateLimit` draft.
///
/// For a denial, it names the violated quotas as `RateLimit-Policy` does, and says so when the request can never pass.
/// It never contains a key. `HEAD` gets no body, but the length of the one that `GET` would get.
///
/// ```json
/// {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429,"violated-policies":["ip/1s"]}
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ProblemJson {
    types: &'static str,
}

impl ProblemJson {
    /// Sets the prefix of `quota-exceeded` and `temporary-reduced-capacity` in the types' URIs: by default
    /// `https://iana.org/assignments/http-problem-types#`, where the draft asks for them to be registered.
    ///
    /// # Panics
    ///
    /// When `uri` has a character that is not allowed in a URI.
    #[must_use]
    pub const fn types(mut self, uri: &'static str) -> Self {
        let mut rest = uri.as_bytes();
        while let [byte, tail @ ..] = rest {
            assert!(
                byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'<' | b'>'),
                "not a URI"
            );
            rest = tail;
        }
        self.types = uri;
        self
    }
}

impl Default for ProblemJson {
    fn default() -> Self {
        Self { types: TYPES }
    }
}

impl<B: From<String>> MakeRejection<B> for ProblemJson {
    fn make_rejection(&self, rejection: &Rejection, head: &Parts) -> Response<B> {
        let mut problem = problem(rejection, self.types);
        let mut headers = HeaderMap::new();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if head.method == Method::HEAD {
            // Otherwise the server would send the length of the empty body (RFC 9110, 8.6).
            headers.insert(header::CONTENT_LENGTH, problem.len().into());
            problem.clear();
        }
        let mut response = Response::new(B::from(problem));
        *response.status_mut() = rejection.status();
        *response.headers_mut() = headers;
        response
    }
}

/// Nothing in here needs escaping: policy names are `[A-Za-z0-9._-]`, and URIs were checked.
///
/// Without `write!`, which would take most of the time of a rejection.
fn problem(rejection: &Rejection, uris: &str) -> String {
    let status = rejection.status();
    let (types, kind) = match (rejection, status) {
        (Rejection::Denied(_), _) => (uris, "quota-exceeded"),
        (_, StatusCode::SERVICE_UNAVAILABLE) => (uris, "temporary-reduced-capacity"),
        _ => ("about:", "blank"),
    };
    let title = status.canonical_reason().unwrap_or_default();
    let mut json = String::with_capacity(ROOM);
    json.extend([r#"{"type":""#, types, kind, r#"","title":""#, title]);
    json.extend([r#"","status":"#, status.as_str()]);
    if let Rejection::Denied(denial) = rejection {
        push_violated(&mut json, denial);
    }
    json.push('}');
    json
}

fn push_violated(json: &mut String, denial: &Denial) {
    if denial.retry_after().is_none() {
        json.push_str(
            r#","detail":"This request costs more than a limit allows. It will never pass.""#,
        );
    }
    let mut names: Vec<String> = Vec::new();
    for of_policy in denial.usage().policies() {
        for usage in of_policy.rules().iter().filter(|usage| usage.is_exceeded()) {
            let name = item_name(of_policy.policy(), &usage.rule());
            let name = ["\"", &name, "\""].concat();
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    json.extend([r#","violated-policies":["#, &names.join(", "), "]"]);
}
