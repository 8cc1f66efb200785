//! Normalizes a path that clients can write in many ways.

use percent_encoding::percent_decode_str;

/// The path without empty segments, `.`, `..` and percent-encoding; `None` if already normal, or not UTF-8 when
/// decoded.
pub(super) fn normal_form(path: &str) -> Option<String> {
    let is_odd = path.contains('%') || path.contains("//") || path.contains("/.");
    if !is_odd && (!path.ends_with('/') || path.len() == 1) {
        return None;
    }
    // Once, like a service: a path that is encoded twice is another path.
    let decoded = percent_decode_str(path).decode_utf8().ok()?;
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
