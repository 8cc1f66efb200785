//! Pages are true: samples stand in programs that are run, guides can be read as files, and figures are not old.

use std::{collections::BTreeSet, fs, process::Command};

fn read(path: &str) -> String {
    fs::read_to_string(crate::root().join(path)).unwrap()
}

/// The lines after the comment at the head.
fn code_of(example: &str) -> String {
    let code = read(&format!("examples/{example}.rs"));
    let code = code.lines().filter(|it| !it.starts_with("//!"));
    code.map(|it| format!("{it}\n")).collect()
}

/// The code of these languages on a page.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let blocks = page.split("```").skip(1).step_by(2);
    let blocks = blocks.filter_map(|it| it.split_once('\n'));
    let blocks = blocks.filter(|it| it.0.starts_with(language));
    blocks.map(|it| it.1).collect()
}

#[test]
fn each_sample_of_the_guide_to_bodies_stands_in_an_example_that_the_tests_run() {
    let page = read("docs/guide/bodies.md");
    let samples = blocks(&page, "rust");
    let examples = ["max_tokens", "json_rpc", "graphql", "login"];
    assert_eq!(samples.len(), examples.len());
    for (sample, example) in samples.iter().zip(examples) {
        let code = code_of(example);
        assert!(
            code.contains(sample),
            "copy it from {example}.rs again:\n{sample}"
        );
    }
}

#[test]
fn a_gateway_to_a_language_model_takes_at_most_120_lines_and_no_drop_of_its_own() {
    let code = code_of("language_model");
    assert!(code.lines().count() <= 120 && !code.contains("Drop"));
}

/// The labels of links that a page defines, with their targets.
fn defined(page: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = page.lines().filter_map(|it| it.strip_prefix('['));
    let lines = lines.filter_map(|it| it.split_once("]: "));
    lines.filter(|(label, _)| !label.contains('['))
}

/// The parts of a page between brackets, without code.
fn in_brackets(page: &str) -> Vec<String> {
    let text: String = page.split("```").step_by(2).collect();
    let links = text.split('[').skip(1).filter_map(|it| it.split_once(']'));
    // The label counts, if a text has one.
    let links = links.filter(|(_, rest)| !rest.is_empty() && !rest.starts_with([':', '(']));
    links.map(|(label, _)| label.replace('\n', " ")).collect()
}

#[test]
fn a_guide_is_read_as_a_file_as_well_as_among_the_pages_of_the_crate() {
    let links = read("docs/links.md");
    let links: BTreeSet<&str> = defined(&links).map(|it| it.0).collect();
    for entry in fs::read_dir(support::root().join("docs/guide")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let page = fs::read_to_string(&path).unwrap();
        assert!(page.starts_with("# "), "{name} has no title");
        assert!(
            !page.contains("](crate") && !page.contains("]: crate"),
            "{name}"
        );
        for code in blocks(&page, "rust") {
            let hidden = code.lines().find(|it| *it == "#" || it.starts_with("# "));
            assert_eq!(hidden, None, "{name}: a file shows this line");
        }
        let targets: BTreeSet<&str> = defined(&page).map(|it| it.0).collect();
        for label in in_brackets(&page) {
            assert!(
                targets.contains(&*label),
                "{name} does not define [{label}]"
            );
        }
        // The crate's pages take the first definition of a label.
        let is_page = name != "start";
        assert!(!is_page || targets.is_subset(&links), "{name}: {targets:?}");
    }
}

/// The words of a text, on one line.
fn words(text: &str) -> String {
    let text = text.replace("\\\n", "\n");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_warnings_on_the_first_page_are_those_of_the_crate() {
    let (page, code) = (read("README.md"), words(&read("src/warning.rs")));
    let (_, warnings) = page.split_once("```text\n").unwrap();
    let (warnings, _) = warnings.split_once("```").unwrap();
    let warnings = words(warnings);
    let second = warnings.find("no request").unwrap();
    for warning in [&warnings[..second], &warnings[second..]] {
        assert!(code.contains(warning.trim()), "{warning}");
    }
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
