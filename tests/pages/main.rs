//! The pages: plain words, true figures, and the page for language models. `./test pages` runs them, and `./test docs` too;
//! they are no tests of the crate.

mod figures;
mod llms;
mod prose;

use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
