//! `llms.txt`, the page for language models: each code block stands in a page or a program that is compiled, and each
//! link leads to a file.

use std::{fs, path::Path};

const PAGE: &str = include_str!("../../llms.txt");

/// The parts between the fences: text, code, text and so on.
fn parts() -> impl Iterator<Item = &'static str> {
    PAGE.split("\n```")
}

/// The pages and programs of a folder, or one page.
fn sources(place: &Path) -> Vec<String> {
    if place.is_dir() {
        let entries = fs::read_dir(place).unwrap();
        return entries
            .flat_map(|it| sources(&it.unwrap().path()))
            .collect();
    }
    let is_source = place.extension().is_some_and(|it| it == "md" || it == "rs");
    let source = is_source.then(|| fs::read_to_string(place).unwrap());
    source.map(|it| without_indents(&it)).into_iter().collect()
}

fn without_indents(code: &str) -> String {
    let lines = code.lines().map(|it| format!("{}\n", it.trim_start()));
    lines.collect()
}

#[test]
fn each_code_block_stands_in_a_page_or_an_example() {
    let places = ["README.md", "docs/guide", "examples"];
    let sources: Vec<String> = places
        .iter()
        .flat_map(|place| sources(&crate::root().join(place)))
        .collect();
    let blocks = parts().skip(1).step_by(2);
    let blocks: Vec<&str> = blocks
        .map(|block| block.split_once('\n').unwrap().1)
        .collect();
    assert!(blocks.len() > 5, "{blocks:?}");
    for block in blocks {
        let lines = format!("\n{}", without_indents(block));
        assert!(
            sources.iter().any(|source| source.contains(&lines)),
            "copy this from a page or an example again:{lines}"
        );
    }
}

#[test]
fn each_link_leads_to_a_file() {
    let links = parts()
        .step_by(2)
        .flat_map(|text| text.split("](").skip(1))
        .map(|link| link.split_once(')').unwrap().0);
    let links: Vec<&str> = links.collect();
    assert!(links.len() > 20, "{links:?}");
    for link in links {
        assert!(crate::root().join(link).is_file(), "{link}");
    }
}
