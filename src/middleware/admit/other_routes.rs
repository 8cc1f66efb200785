//! The router's routes without an entry in the table: an entry that no request meets may be meant for one of them.

use http::Method;

/// The maximum number of routes to remember, more than most routers have.
const MAX_ROUTES: usize = 256;

#[derive(Debug, Default)]
pub(super) struct OtherRoutes {
    routes: Vec<OtherRoute>,
}

#[derive(Debug)]
pub(super) struct OtherRoute {
    path: Box<str>,
    erased: Box<str>,
}

impl OtherRoutes {
    /// Adds a route, and returns whether the route is new.
    pub(super) fn add(&mut self, path: &str) -> bool {
        let is_new =
            self.routes.len() < MAX_ROUTES && !self.routes.iter().any(|route| *route.path == *path);
        if is_new {
            self.routes.push(OtherRoute::of(path));
        }
        is_new
    }

    pub(super) fn all(&self) -> &[OtherRoute] {
        &self.routes
    }

    /// The newest route.
    pub(super) fn newest(&self) -> &[OtherRoute] {
        &self.routes[self.routes.len().saturating_sub(1)..]
    }
}

impl OtherRoute {
    fn of(path: &str) -> Self {
        Self {
            path: path.into(),
            erased: erased(path).into(),
        }
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Whether an entry for this path is probably meant for the route. `erased` is the path without the names of its
    /// captures.
    pub(super) fn is_meant(&self, path: &str, erased: &str, by_prefix: bool) -> bool {
        let is_another = *self.path != *path;
        let other_captures = *self.erased == *erased;
        is_another && (other_captures || (by_prefix && self.has_other_prefix(erased)))
    }

    /// Whether path and route differ by a prefix, or by a slash at the end.
    fn has_other_prefix(&self, erased: &str) -> bool {
        let path = erased.trim_end_matches('/');
        let route = self.erased.trim_end_matches('/');
        let fits = route.ends_with(path) || path.ends_with(route);
        fits && has_name(path) && has_name(route)
    }
}

fn has_name(erased: &str) -> bool {
    let mut segments = erased.split('/');
    segments.any(|segment| !segment.is_empty() && !segment.starts_with('{'))
}

/// The path without the names of its captures.
pub(super) fn erased(path: &str) -> String {
    let segments = path.split('/');
    let erased = segments.map(|segment| match segment {
        capture if capture.starts_with("{*") => "{*}",
        capture if capture.starts_with('{') && !capture.starts_with("{{") => "{}",
        name => name,
    });
    erased.collect::<Vec<_>>().join("/")
}

/// An entry as written in the code, and the route that is probably meant.
pub(super) fn described(method: Option<&Method>, path: &str, meant: Option<&str>) -> String {
    let method = method.map_or(String::new(), |method| format!("{method} "));
    match meant {
        Some(meant) => format!("`{method}{path}` (the router has `{meant}`)"),
        None => format!("`{method}{path}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_that_is_probably_meant_is_found() {
        let mut others = OtherRoutes::default();
        for route in [
            "/items/{item_id}",
            "/api/health",
            "/files/{*path}",
            "/v1/users/{id}/",
        ] {
            assert!(others.add(route) && !others.add(route), "{route}");
        }
        for (path, captures, prefix) in [
            (
                "/items/{id}",
                Some("/items/{item_id}"),
                Some("/items/{item_id}"),
            ),
            ("/items/{item_id}", None, None),
            ("/items/{*rest}", None, None),
            (
                "/files/{*rest}",
                Some("/files/{*path}"),
                Some("/files/{*path}"),
            ),
            ("/health", None, Some("/api/health")),
            ("/outer/api/health", None, Some("/api/health")),
            ("/users/{user}", None, Some("/v1/users/{id}/")),
            ("/alth", None, None),
            ("/{id}", None, None),
            ("/", None, None),
        ] {
            let meant = |by_prefix| {
                let mut routes = others.all().iter();
                let route = routes.find(|route| route.is_meant(path, &erased(path), by_prefix));
                route.map(OtherRoute::path)
            };
            assert_eq!((meant(false), meant(true)), (captures, prefix), "{path}");
        }
    }
}
