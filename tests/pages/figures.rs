//! Numbers on a page are true: the lines of each service in the guide to limits by the body.

use std::{fs, process::Command};

fn read(path: &str) -> String {
    fs::read_to_string(crate::root().join(path)).unwrap()
}

/// The lines that a reader sees of the first code below this heading.
fn lines_below(heading: &str, page: &str) -> Option<usize> {
    let (_, below) = page.split_once(&format!("\n# {heading}\n"))?;
    let code = below.split("```").nth(1)?.trim();
    Some(code.lines().filter(|it| !it.starts_with("# ")).count())
}

/// Those after the comment at the head.
fn lines_of_example(name: &str, page: &str) -> usize {
    let (_, path) = page.split_once(&format!("\n[{name}]: ")).unwrap();
    let (_, path) = path.lines().next().unwrap().split_once("/source/").unwrap();
    let code = read(path);
    code.lines().filter(|it| !it.starts_with("//!")).count()
}

#[test]
fn the_guide_to_bodies_says_how_many_lines_each_service_takes() {
    let page = read("docs/guide/bodies.md");
    let (_, table) = page
        .split_once("\n| service | lines |\n|---|---|\n")
        .unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    for row in table.lines() {
        let [_, service, lines, _] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let example = || service.rsplit(['[', ']']).nth(1);
        let counted = lines_below(service, &page)
            .or_else(|| example().map(|name| lines_of_example(name, &page)));
        assert_eq!(lines.parse().ok(), counted, "{row}");
    }
    assert_eq!(table.lines().count(), 6);
}

#[test]
fn a_gateway_to_a_language_model_takes_at_most_120_lines_and_no_drop_of_its_own() {
    let page = read("docs/guide/bodies.md");
    assert!(lines_of_example("gateway", &page) <= 120);
    assert!(!read("examples/language_model.rs").contains("Drop"));
}

/// The output of git; `None` without git, or without the whole history.
fn git(arguments: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    let output = git.current_dir(crate::root()).args(arguments).output();
    let output = output.ok().filter(|it| it.status.success())?;
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

#[test]
fn the_figures_of_a_decision_in_redis_are_not_older_than_the_script() {
    let page = read("benches/README.md");
    let (_, below) = page.split_once("`cargo bench --bench script`, ").unwrap();
    let (date, figures) = below.split_once(".\n\n- Three rules take ").unwrap();
    let (micros, figures) = figures.split_once(" of server time").unwrap();
    let (of_hashes, _) = figures
        .split_once(" of a layout with a hash field")
        .unwrap();
    let of_hashes = of_hashes.rsplit(' ').next().unwrap();
    let page = read("README.md").replace("\n  ", " ");
    let claim = format!("Three rules take Redis {micros}: {of_hashes} of a layout with hashes");
    assert!(page.contains(&claim), "README.md says: {claim}");
    if git(&["rev-parse", "--is-shallow-repository"]).as_deref() != Some("false") {
        return;
    }
    let changed = git(&[
        "log",
        "-1",
        "--format=%as",
        "--",
        "lua/*.lua",
        "lua/**/*.lua",
    ])
    .unwrap();
    assert!(
        *date >= *changed,
        "the figures are of {date}, and the script has changed on {changed}: run cargo bench --bench script"
    );
}
