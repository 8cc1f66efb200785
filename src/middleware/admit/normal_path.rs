//! Normalizes a path that clients can write in many ways.

/// The path without empty segments, `.`, `..` and percent-encoding; `None` if already normal, or not UTF-8 when
/// decoded.
pub(super) fn normal_form(path: &str) -> Option<String> {
    let is_odd = path.contains('%') || path.contains("//") || path.contains("/.");
    if !is_odd && (!path.ends_with('/') || path.len() == 1) {
        return None;
    }
    let decoded = decoded(path)?;
    let mut segments = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    Some(["/", &segments.join("/")].concat())
}

/// Decodes once, like a service: a path that is encoded twice is another path.
fn decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        let encoded = if *first == b'%' { byte(tail) } else { None };
        bytes.push(encoded.unwrap_or(*first));
        rest = if encoded.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8(bytes).ok()
}

fn byte(digits: &[u8]) -> Option<u8> {
    let digits = str::from_utf8(digits.get(..2)?).ok()?;
    let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_a_path_has_one_form() {
        for path in [
            "/%6Cogin",
            "/%6cogin",
            "//login",
            "/login/",
            "/login//",
            "/./login",
            "/login/.",
            "/a/../login",
            "/../login",
            "/%2e/login",
            "/%2Flogin",
        ] {
            assert_eq!(normal_form(path).as_deref(), Some("/login"), "{path}");
        }
        for (path, expected) in [
            ("//", "/"),
            ("/%256Cogin", "/%6Cogin"),
            ("/100%", "/100%"),
            ("/%zz/a", "/%zz/a"),
            ("/%+1", "/%+1"),
        ] {
            assert_eq!(normal_form(path).as_deref(), Some(expected), "{path}");
        }
    }

    #[test]
    fn a_path_in_its_normal_form_is_not_made_once_more() {
        for path in ["/", "/login", "/a/b.c", "/LOGIN", "*", "", "/%ff"] {
            assert_eq!(normal_form(path), None, "{path}");
        }
    }
}
